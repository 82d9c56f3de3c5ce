"""The recipe file, and its installation in a workload or a training script."""
