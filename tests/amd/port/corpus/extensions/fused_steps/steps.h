#pragma once
#include <torch/all.h>
std::vector<at::Tensor> sgd_cuda(const at::Tensor& p, const at::Tensor& g, const at::Tensor& m, double lr, double momentum);
