"""Processes that the judge owns: a child, its private channel, its whole family, its time."""
