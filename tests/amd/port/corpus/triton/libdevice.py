import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice  # port: triton-libdevice


@triton.jit
def gelu(y, x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    tl.store(y + at, 0.5 * v * (1 + libdevice.erf(v * 0.70710678)), mask=at < n)
