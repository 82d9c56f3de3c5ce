from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension
link_flags = ["-arch", "arm64"]

setup(
    name="fused_steps",
    ext_modules=[
        CUDAExtension(
            name="fused_steps",
            sources=["ops.cpp", "sgd.cu"],
            extra_compile_args={"cxx": ["-O3"], "nvcc": ["-O3", "--use_fast_math"]},  # port: nvcc-flag
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
