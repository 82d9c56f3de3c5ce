import triton
import triton.language as tl


@triton.jit
def double(x, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, 2 * tl.load(x + at))


def run(x):
    double[(x.numel() // 256,)](x, BLOCK=256, num_warps=4, num_ctas=2)  # port: triton-clusters
    double[(x.numel() // 256,)](x, BLOCK=256, maxnreg=128)  # port: triton-clusters
