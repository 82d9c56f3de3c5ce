// problem: gate: x = randn(27, 8) -> tuple(x.softmax(1).topk(2))
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>  // port: api-name
#include <c10/cuda/CUDAGuard.h>

// A token has one lane an expert, so a warp holds 32 / kExperts tokens.
template <int kExperts>
__global__ void gate_kernel(const float* x, float* weights, int64_t* experts, int tokens) {
  const int token = (blockIdx.x * blockDim.x + threadIdx.x) / kExperts, expert = threadIdx.x % kExperts;
  const bool inside = token < tokens;
  const float score = inside ? x[token * kExperts + expert] : -INFINITY;
  float most = score, total;
  for (int d = kExperts / 2; d > 0; d /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, d, kExperts));  // port: mask-width
  const float own = inside ? expf(score - most) : 0.f;
  total = own;
  for (int d = kExperts / 2; d > 0; d /= 2) total += __shfl_xor_sync(0xffffffff, total, d, kExperts);  // port: mask-width
  float left = own;
  for (int rank = 0; rank < 2; ++rank) {
    float best = left;
    int where = expert;
    for (int d = kExperts / 2; d > 0; d /= 2) {
      const float other = __shfl_xor_sync(0xffffffff, best, d, kExperts);  // port: mask-width
      const int there = __shfl_xor_sync(0xffffffff, where, d, kExperts);  // port: mask-width
      if (other > best || (other == best && there < where)) best = other, where = there;
    }
    if (inside && expert == where) {
      weights[token * 2 + rank] = best / total;
      experts[token * 2 + rank] = where;
      left = -1.f;
    }
  }
}

std::tuple<torch::Tensor, torch::Tensor> gate_cuda(torch::Tensor x) {
  const c10::cuda::CUDAGuard guard(x.device());
  const int tokens = x.size(0), count = x.size(1);
  auto weights = torch::empty({tokens, 2}, x.options());
  auto experts = torch::empty({tokens, 2}, x.options().dtype(torch::kLong));
  const auto stream = at::cuda::getCurrentCUDAStream().stream();
  const int blocks = (tokens * count + 127) / 128;
#define LAUNCH(N) gate_kernel<N><<<blocks, 128, 0, stream>>>(x.data_ptr<float>(), weights.data_ptr<float>(), experts.data_ptr<int64_t>(), tokens)
  if (count == 8) LAUNCH(8);
  else LAUNCH(16);
#undef LAUNCH
  return {weights, experts};
}
