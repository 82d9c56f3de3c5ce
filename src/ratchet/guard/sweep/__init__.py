"""One training step of every model type of a library: as written, compiled, and with kernels."""
