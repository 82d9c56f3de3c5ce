import triton
import triton.language as tl


@triton.jit
def total(x, y, n, BLOCK: tl.constexpr):
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for i in tl.range(0, n, BLOCK, warp_specialize=True):  # port: triton-warp-specialization
        acc += tl.load(x + i + tl.arange(0, BLOCK))
    tl.store(y, tl.sum(acc, axis=0))


def configs():
    # port: triton-warp-specialization
    return [triton.Config({"BLOCK": 256}, num_warps=4, num_consumer_groups=2)]
