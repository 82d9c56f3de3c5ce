#include <torch/extension.h>

static int width_of(const torch::Tensor& x) { return x.size(0); }

torch::Tensor rows_without_mean(torch::Tensor x);

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("run", [](torch::Tensor x) { return width_of(x) ? rows_without_mean(x) : x; });
}
