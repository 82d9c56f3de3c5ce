#include <torch/library.h>
#include "steps.h"

std::vector<at::Tensor> sgd(const at::Tensor& p, const at::Tensor& g, const at::Tensor& m) {
  TORCH_CHECK(p.sizes() == g.sizes() && p.sizes() == m.sizes());
  return sgd_cuda(p.contiguous(), g.contiguous(), m.contiguous(), 0.1, 0.9);
}

TORCH_LIBRARY(fused_steps, m) { m.def("sgd(Tensor p, Tensor g, Tensor m) -> Tensor[]"); }
TORCH_LIBRARY_IMPL(fused_steps, CUDA, m) { m.impl("sgd", &sgd); }
