"""Problems, kernels, the languages they are written in, and the library that ships."""
