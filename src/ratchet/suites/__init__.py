"""A whole suite before the judge: who answers it, its verdicts in a table, its score."""
