"""A trace's calls, run again: `calls` finds them, `rebuild` makes inputs, `worker` times them."""
