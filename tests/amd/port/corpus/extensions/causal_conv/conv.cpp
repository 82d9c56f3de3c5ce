#include "conv.h"
#define CHECK_SHAPE(x, ...) TORCH_CHECK(x.sizes() == torch::IntArrayRef({__VA_ARGS__}), #x " has another shape")

torch::Tensor conv_forward(torch::Tensor x, torch::Tensor w) {
  CHECK_SHAPE(w, x.size(1), kConvWidth);
  return forward_cuda(x.contiguous(), w.contiguous());
}

torch::Tensor conv_backward(torch::Tensor g, torch::Tensor w) { return backward_cuda(g.contiguous(), w.contiguous()); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("conv_forward", &conv_forward);
  m.def("conv_backward", &conv_backward);
}
