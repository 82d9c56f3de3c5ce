"""The rules: each says what it matches, how bad that is, why, and the fix."""
