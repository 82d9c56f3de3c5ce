from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy  # port: triton-cuda-extra


@gluon.jit
def copy(x, y, BLOCK: gl.constexpr, layout: gl.constexpr):
    at = gl.arange(0, BLOCK, layout)
    staged = gl.allocate_shared_memory(gl.float32, [BLOCK], layout)
    async_copy.async_copy_global_to_shared(staged, x + at)
    async_copy.commit_group()
    async_copy.wait_group(0)
    gl.store(y + at, staged.load(layout))
