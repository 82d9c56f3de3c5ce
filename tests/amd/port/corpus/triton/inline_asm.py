import triton
import triton.language as tl


@triton.jit
def exp2_approx(x):
    # port: triton-inline-asm
    return tl.inline_asm_elementwise(
        asm="ex2.approx.ftz.f32 $0, $1;",
        constraints="=f,f",
        args=[x],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def kernel(y, x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, exp2_approx(tl.load(x + at, mask=at < n)), mask=at < n)
