"""Two ways of running something, timed in adjacent pairs until the answer is clear."""
