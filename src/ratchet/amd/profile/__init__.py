"""The static profile: what a kernel compiles to for GPUs that are not here."""
