// problem: rotary: x, c, s = randn(6, 4, 32).half(), rand(6, 16), rand(6, 16) -> cat((x[..., :16].float() * c[:, None] - x[..., 16:].float() * s[:, None], x[..., 16:].float() * c[:, None] + x[..., :16].float() * s[:, None]), 2).half()
#include <torch/extension.h>
#include <cuda_fp16.h>  // port: api-name

__global__ void rotary_kernel(const __half* __restrict__ x, const float* __restrict__ cosine, const float* __restrict__ sine, __half* __restrict__ y, int heads, int half_dim) {
  const int token = blockIdx.x, head = blockIdx.y;
  const __half* in = x + (token * heads + head) * 2 * half_dim;
  __half* out = y + (token * heads + head) * 2 * half_dim;
  for (int i = threadIdx.x; i < half_dim; i += blockDim.x) {
    const float c = __ldg(&cosine[token * half_dim + i]), s = __ldg(&sine[token * half_dim + i]);
    const float a = __half2float(in[i]), b = __half2float(in[i + half_dim]);
    out[i] = __float2half_rn(a * c - b * s);
    out[i + half_dim] = __float2half_rn(b * c + a * s);
  }
}

at::Tensor rotary(at::Tensor x, at::Tensor c, at::Tensor s) {
  x = x.contiguous(), c = c.contiguous(), s = s.contiguous();
  auto y = at::empty_like(x);
  const dim3 grid(x.size(0), x.size(1));
  rotary_kernel<<<grid, 64>>>(reinterpret_cast<const __half*>(x.data_ptr<c10::Half>()), c.data_ptr<float>(), s.data_ptr<float>(),
                              reinterpret_cast<__half*>(y.data_ptr<c10::Half>()), x.size(1), x.size(2) / 2);
  return y;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("rotary", &rotary, "rotary positions", py::arg("x"), py::arg("c"), py::arg("s"));
}
