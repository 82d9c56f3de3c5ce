"""Triton kernels from the loop form, and the schedules that they can have."""
