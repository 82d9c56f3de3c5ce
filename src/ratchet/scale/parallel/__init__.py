"""Steps on many ranks: timed by their slowest rank, and made faster by how ranks communicate."""
