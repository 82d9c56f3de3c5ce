from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

setup(
    name="group_norm",
    ext_modules=[
        CUDAExtension(
            name="group_norm",
            sources=["group_norm.cu"],
            extra_compile_args={"cxx": ["-O3"], "nvcc": ["-O3", "--expt-relaxed-constexpr"]},  # port: nvcc-flag
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
