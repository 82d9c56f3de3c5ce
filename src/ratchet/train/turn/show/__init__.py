"""A turn in words, tables and figures."""
