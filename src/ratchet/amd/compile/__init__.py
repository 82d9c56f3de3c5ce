"""A sandboxed process that compiles kernels for GPUs that are not here."""
