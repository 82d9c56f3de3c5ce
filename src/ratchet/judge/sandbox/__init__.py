"""Confinement of a candidate: isolation, system calls, limits, zygotes."""
