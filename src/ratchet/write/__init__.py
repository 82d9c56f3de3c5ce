"""Kernels written: authors propose them; the judge alone decides what one is worth."""
