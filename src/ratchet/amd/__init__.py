"""AMD GPUs that are not here: compiled for, emulated, profiled, and ported to."""
