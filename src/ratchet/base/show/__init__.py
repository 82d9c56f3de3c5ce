"""Results in words, tables, axes and plots, on a terminal and as a page."""
