import triton
import triton.language as tl


@triton.jit
def second(x, BLOCK: tl.constexpr):
    tl.extra.cuda.gdc_wait()  # port: triton-cuda-extra
    at = tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at) + 1)
    start = tl.extra.cuda.globaltimer()  # port: triton-cuda-extra


def run(x):
    second[(1,)](x, BLOCK=64, launch_pdl=True)  # port: triton-cuda-extra
