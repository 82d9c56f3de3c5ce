"""Ratchet: PyTorch training that only gets faster."""

__version__ = "0.1.0"
