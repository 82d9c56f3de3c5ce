"""The workers that run candidates, and what they do there."""
