from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

setup(
    name="causal_conv",
    ext_modules=[
        CUDAExtension(
            name="causal_conv",
            sources=["conv.cpp", "conv_forward.cu", "conv_backward.cu"],
            extra_compile_args={"cxx": ["-O3"], "nvcc": ["-O3"]},
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
