// What host code may get wrong, and what it may do though it looks odd.
#include <torch/extension.h>
#include <ATen/hip/HIPApplyUtils.cuh>
#include <hip/hip_cooperative_groups.h>
#include <hipcub/hipcub.hpp>
#include <fstream>
#include <thread>

__global__ void twice(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < at::cuda::ATenCeilDiv(2 * n, 2)) y[i] = 2 * x[i] + FLT_MIN * INT_MIN;
}
__global__ void in_turn(const float* x, float* y, int* flag) {
  if (blockIdx.x == 0)
    while (__hip_atomic_load(flag, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT) == 0) {}
  else
    __hip_atomic_store(flag, 1, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT);
  y[blockIdx.x * 32 + threadIdx.x] = 2 * x[blockIdx.x * 32 + threadIdx.x];
}
__global__ void all_together(const float* x, float* y, float* sum) {
  atomicAdd(sum, x[blockIdx.x % 64]);
  cooperative_groups::this_grid().sync();
  if (blockIdx.x < 64) y[blockIdx.x] = x[blockIdx.x] + *sum;
}
static torch::Tensor launched(torch::Tensor x, int threads = 64) {
  auto y = torch::empty_like(x);
  twice<<<(x.numel() + 63) / 64, threads>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  return y;
}
torch::Tensor plain(torch::Tensor x) {
  const at::TensorArg arg{x, "x", 1}, other{x, "other", 2};
  at::checkAllSameGPU("plain", {arg, other});
  at::checkSameGPU("plain", arg, other);
  return launched(x);
}
torch::Tensor own_thread(torch::Tensor x) {
  torch::Tensor y = torch::empty_like(x);
  std::thread([&] { twice<<<1, 64>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel()); }).join();
  return y;
}
torch::Tensor second_gpu(torch::Tensor x) {
  (void)hipSetDevice(1);
  return launched(x);
}
torch::Tensor too_large(torch::Tensor x) {
  float* held = nullptr;
  (void)hipMalloc(&held, 8ull << 30);
  twice<<<1, 64>>>(x.data_ptr<float>(), held, 64);
  return x;
}
torch::Tensor wide_block(torch::Tensor x) { return launched(x, 2048); }
torch::Tensor reads_file(torch::Tensor x) {
  TORCH_CHECK(std::ifstream("weights.bin").good(), "weights.bin cannot be opened");
  return launched(x);
}
torch::Tensor asserts(torch::Tensor x) {
  TORCH_CHECK(x.size(0) == 1, "one row, not ", x.size(0));
  return launched(x);
}
torch::Tensor pinned(torch::Tensor x) {
  auto staged = torch::empty({x.numel()}, x.options().pinned_memory(true));
  for (int i = 0; i < x.numel(); ++i) staged.data_ptr<float>()[i] = 1.f;
  auto ones = torch::empty_like(x);
  (void)hipMemcpyAsync(ones.data_ptr<float>(), staged.data_ptr<float>(), 4 * x.numel(), hipMemcpyHostToDevice, nullptr);
  return launched(x + ones - 1);
}
torch::Tensor host_copy(torch::Tensor x) {
  const auto first = x.cpu();
  auto own = torch::empty({1}, x.options().device(at::kCPU));
  own.data_ptr<float>()[0] = x.to(at::kCPU).data_ptr<float>()[0];
  TORCH_CHECK(first.data_ptr<float>()[0] == x.flatten()[0].item<float>(), "the copy differs");
  TORCH_CHECK(own.to(x.device()).item<float>() == first.data_ptr<float>()[0], "the copy back differs");
  return launched(x);
}
torch::Tensor spins(torch::Tensor x) {
  auto y = torch::empty_like(x), flag = torch::zeros({1}, x.options().dtype(torch::kInt));
  in_turn<<<2, 32>>>(x.data_ptr<float>(), y.data_ptr<float>(), flag.data_ptr<int>());
  return y;
}
static torch::Tensor together(torch::Tensor x, int blocks) {
  auto y = torch::empty_like(x), sum = torch::zeros({1}, x.options());
  float *from = x.data_ptr<float>(), *to = y.data_ptr<float>(), *all = sum.data_ptr<float>();
  void* given[] = {&from, &to, &all};
  (void)hipLaunchCooperativeKernel((void*)all_together, dim3(blocks), dim3(1), given, 0, 0);
  return y;
}
torch::Tensor cooperative(torch::Tensor x) { return together(x, 64); }
torch::Tensor too_many_blocks(torch::Tensor x) { return together(x, 4096); }
torch::Tensor segments(torch::Tensor x, torch::Tensor bounds) {
  const int count = bounds.numel() - 1, *at = bounds.data_ptr<int>();
  auto y = torch::empty({count}, x.options());
  size_t bytes = 0;
  hipcub::DeviceSegmentedReduce::Sum(nullptr, bytes, x.data_ptr<float>(), y.data_ptr<float>(), count, at, at + 1);
  auto held = torch::empty({(long)bytes}, x.options().dtype(torch::kByte));
  hipcub::DeviceSegmentedReduce::Sum(held.data_ptr(), bytes, x.data_ptr<float>(), y.data_ptr<float>(), count, at, at + 1);
  return y;
}
torch::Tensor host_threads(torch::Tensor x) {
  int halves[2] = {0, 0};
  std::thread one([&] { halves[0] = x.numel() / 2; }), two([&] { halves[1] = x.numel() / 2; });
  one.join(), two.join();
  TORCH_CHECK(halves[0] + halves[1] == x.numel());
  return launched(x);
}
torch::Tensor properties(torch::Tensor x) {
  hipDeviceProp_t all;
  int blocks = 0;
  (void)hipSetDevice(x.get_device());
  (void)hipGetDeviceProperties(&all, 0);
  (void)hipOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, twice, 256, 32768);
  return torch::tensor({all.multiProcessorCount, all.warpSize, blocks, all.name[4] == 'I' ? 1 : 0});
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("plain", &plain), m.def("own_thread", &own_thread), m.def("second_gpu", &second_gpu);
  m.def("too_large", &too_large), m.def("wide_block", &wide_block), m.def("reads_file", &reads_file);
  m.def("asserts", &asserts), m.def("pinned", &pinned), m.def("host_copy", &host_copy), m.def("spins", &spins);
  m.def("properties", &properties), m.def("cooperative", &cooperative), m.def("segments", &segments);
  m.def("too_many_blocks", &too_many_blocks), m.def("host_threads", &host_threads);
}
