"""GPUs that kernels are compiled for, here or not, and what stands in for one that is not here."""
