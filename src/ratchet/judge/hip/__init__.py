"""HIP sources for the emulator: compiled for a GPU that is not here, and loaded to be emulated."""
