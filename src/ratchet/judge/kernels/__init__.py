"""Problems, kernels, their languages, and the shipped library."""
