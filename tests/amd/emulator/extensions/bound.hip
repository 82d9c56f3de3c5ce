#include "rows.cuh"

torch::Tensor forward(torch::Tensor x) { return centred(x); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("forward", &forward, "rows without their mean");
  m.def("means_only", &centred);
}
