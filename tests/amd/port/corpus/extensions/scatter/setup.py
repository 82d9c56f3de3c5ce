from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

setup(
    name="scatter",
    ext_modules=[
        CUDAExtension(
            name="scatter",
            sources=["scatter.cu"],
            extra_compile_args={"cxx": ["-O3"], "nvcc": ["-O3"]},
            libraries=["cudart"],  # port: cuda-build
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
