"""The recipe: the file a user takes home, and its way into a workload or a training script."""
