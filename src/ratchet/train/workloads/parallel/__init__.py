"""A workload on many ranks: its layout, its step on each of them, and torchrun to start them."""
