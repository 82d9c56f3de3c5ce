import torch
from setuptools import setup
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CUDAExtension

assert CUDA_HOME is not None  # port: cuda-build
cc_flags = ["-O3"]
cc_flags.append("-gencode")  # port: nvcc-flag
cc_flags.append("arch=compute_90,code=sm_90")  # port: nvcc-flag
setup(
    name="norms",
    ext_modules=[
        CUDAExtension(
            "norms",
            ["norms.cpp", "norms_kernel.cu"],
            extra_compile_args={
                "cxx": ["-O3"],
                # port: nvcc-flag
                "nvcc": ["-O3", "-gencode=arch=compute_80,code=sm_80", "--expt-relaxed-constexpr"],
            },
            libraries=["cublas"],  # port: cuda-build
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
