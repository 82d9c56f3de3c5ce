#pragma once
#include <torch/extension.h>

struct ConvParams { int batch, channels, length; };
constexpr int kConvWidth = 4;
constexpr int kConvThreads = 64;
torch::Tensor forward_cuda(const torch::Tensor& x, const torch::Tensor& w);
torch::Tensor backward_cuda(const torch::Tensor& g, const torch::Tensor& w);
