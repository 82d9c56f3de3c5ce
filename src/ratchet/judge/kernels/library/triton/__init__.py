"""The shipped Triton kernels for AMD and NVIDIA GPUs, each file one self-contained source.

No module imports them: a kernel is text that runs in the judge's sandbox, or in a step once it is
proven. An entry has the name of its problem and the signature of the problem's reference.
"""
