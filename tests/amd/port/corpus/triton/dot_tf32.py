import triton
import triton.language as tl


@triton.jit
def square(x, y, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tile = tl.load(x + at)
    tl.store(y + at, tl.dot(tile, tile, allow_tf32=True))  # port: triton-tf32
