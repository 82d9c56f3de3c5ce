"""Build the extension: `pip install .` on a machine with a GPU, NVIDIA's or, once ported, AMD's."""

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

setup(
    name="cuda_softmax",
    ext_modules=[CUDAExtension("cuda_softmax", ["softmax.cu"])],
    cmdclass={"build_ext": BuildExtension},
)
