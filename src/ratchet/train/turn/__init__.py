"""One optimization turn: its order stands in `schedule`."""
