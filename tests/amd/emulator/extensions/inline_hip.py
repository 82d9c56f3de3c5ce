import os

from torch.utils.cpp_extension import load_inline

os.environ["CXX"] = "hipcc"
source = """
#include <hip/hip_runtime.h>

__global__ void less_mean(const float* x, float* y, int width) {
  float sum = 0.f;
  for (int i = 0; i < width; ++i) sum += x[blockIdx.x * width + i];
  for (int i = threadIdx.x; i < width; i += blockDim.x)
    y[blockIdx.x * width + i] = x[blockIdx.x * width + i] - sum / width;
}

torch::Tensor less_mean_hip(torch::Tensor x) {
  auto y = torch::empty_like(x);
  less_mean<<<x.size(0), 64>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
  return y;
}
"""
rows = load_inline(name="less_mean", cpp_sources=source, functions=["less_mean_hip"])


def centred(x, scalars):
    return (rows.less_mean_hip(x.float()).to(x.dtype),)
