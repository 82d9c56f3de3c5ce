"""The static profile: what a kernel compiles to on GPUs that are not here."""
