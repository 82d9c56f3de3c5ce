"""A finding as a script of its own, with its environment and an issue for upstream."""
