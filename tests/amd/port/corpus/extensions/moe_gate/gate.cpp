#include <torch/extension.h>

std::tuple<torch::Tensor, torch::Tensor> gate_cuda(torch::Tensor x);

std::tuple<torch::Tensor, torch::Tensor> gate(torch::Tensor x) {
  TORCH_CHECK(x.device().is_cuda() && x.dim() == 2);
  TORCH_CHECK(x.size(1) == 8 || x.size(1) == 16, "8 or 16 experts");
  return gate_cuda(x.contiguous());
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("gate", &gate, "the two best experts of each token"); }
