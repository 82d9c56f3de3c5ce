// problem: gemm: a, b = randn(16, 16).half(), randn(8, 16).half() -> a.float() @ b.float().t()
#include <torch/extension.h>
#include <cuda_fp16.h>  // port: api-name

__device__ __forceinline__ void mma_16x8x16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if __CUDA_ARCH__ >= 800  // port: arch-switch
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

__global__ void gemm_kernel(const half* a, const half* b, float* c, int k) {
  const int lane = threadIdx.x, group = lane >> 2, pair = (lane & 3) * 2;
  float d[4] = {};
  for (int at = 0; at < k; at += 16) {
    unsigned ar[4], br[2];
    ar[0] = *(const unsigned*)(a + group * k + at + pair), ar[1] = *(const unsigned*)(a + (group + 8) * k + at + pair);
    ar[2] = *(const unsigned*)(a + group * k + at + pair + 8), ar[3] = *(const unsigned*)(a + (group + 8) * k + at + pair + 8);
    br[0] = *(const unsigned*)(b + group * k + at + pair), br[1] = *(const unsigned*)(b + group * k + at + pair + 8);
    mma_16x8x16(d, ar, br);
  }
  c[group * 8 + pair] = d[0], c[group * 8 + pair + 1] = d[1];
  c[(group + 8) * 8 + pair] = d[2], c[(group + 8) * 8 + pair + 1] = d[3];
}

torch::Tensor gemm(torch::Tensor a, torch::Tensor b) {
  auto c = torch::empty({16, 8}, a.options().dtype(torch::kFloat));
  // port: half-wave-block
  gemm_kernel<<<1, 32>>>((const half*)a.data_ptr(), (const half*)b.data_ptr(), c.data_ptr<float>(), a.size(1));
  return c;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("gemm", &gemm); }
