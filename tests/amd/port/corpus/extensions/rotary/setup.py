import torch
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

assert torch.cuda.get_device_capability() >= (8, 0)  # port: device-capability

setup(
    name="rotary",
    ext_modules=[
        CUDAExtension(
            name="rotary",
            sources=["rotary.cu"],
            extra_compile_args={"cxx": ["-O3"], "nvcc": [
                "-O3",
                "-gencode",  # port: nvcc-flag
                "arch=compute_80,code=sm_80",
                "-lineinfo",
            ]},
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
