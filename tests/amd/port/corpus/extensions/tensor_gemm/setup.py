from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

setup(
    name="tensor_gemm",
    ext_modules=[
        CUDAExtension(
            name="tensor_gemm",
            sources=["gemm.cu"],
            extra_compile_args={"cxx": ["-O3"], "nvcc": ["-O3", "-arch=sm_80"]},  # port: nvcc-flag
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
