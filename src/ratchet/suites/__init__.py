"""Judge a whole suite: its candidates, a table of verdicts, and a score."""
