"""Repeated runs of kernels: `repeats` finds equal stretches, `sequences` ranks them."""
