"""Authors: they propose kernels for a problem; the judge alone decides what a kernel is worth.

`author` holds the words that authors, search and the writing run share.
"""
