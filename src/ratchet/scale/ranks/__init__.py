"""A job on many ranks: checked before it starts, explained when it hangs."""
