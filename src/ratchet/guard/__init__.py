"""Guard what is fast: compare, find regressions over time, and track them down."""
