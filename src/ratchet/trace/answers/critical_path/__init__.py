"""The critical path: `dependencies` builds the graph of waits, `path` walks it."""
