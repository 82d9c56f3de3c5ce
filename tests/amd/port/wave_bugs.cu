// Kernels that count warps of 32 lanes: each is wrong on a wave of 64 as it stands, and right once
// it is ported. Launched with 128 threads; y[i] is checked against what CUDA gives.
#define FULL 0xffffffffu

__global__ void broadcast(const float* x, float* y) {
  y[threadIdx.x] = __shfl_sync(FULL, x[threadIdx.x], 0);
}

__global__ void rotate(const float* x, float* y) {
  y[threadIdx.x] = __shfl_sync(FULL, x[threadIdx.x], threadIdx.x % 32 + 1);
}

__global__ void shift_down(const float* x, float* y) {
  y[threadIdx.x] = __shfl_down_sync(FULL, x[threadIdx.x], 8);
}

__global__ void shift_up(const float* x, float* y) {
  y[threadIdx.x] = __shfl_up_sync(FULL, x[threadIdx.x], 8);
}

__global__ void inclusive_scan(const float* x, float* y) {
  float v = x[threadIdx.x];
  for (int d = 1; d < 32; d *= 2) {
    const float other = __shfl_up_sync(FULL, v, d);
    if (threadIdx.x % 32 >= d) v += other;
  }
  const float total = __shfl_sync(FULL, v, 31);
  y[threadIdx.x] = v + 100.0f * total;
}

__global__ void count_votes(const float* x, float* y) {
  y[threadIdx.x] = __popc(__ballot_sync(FULL, x[threadIdx.x] > 0.0f));
}

__global__ void rank_of_votes(const float* x, float* y) {
  const unsigned votes = __ballot_sync(FULL, x[threadIdx.x] > 0.0f);
  y[threadIdx.x] = __popc(votes & ((1u << (threadIdx.x & 31)) - 1));
}

__global__ void any_in_second_warp(const float* x, float* y) {
  y[threadIdx.x] = __any_sync(FULL, threadIdx.x / 32 == 1) ? 1.0f : 0.0f;
}

__global__ void all_in_first_warp(const float* x, float* y) {
  y[threadIdx.x] = __all_sync(FULL, threadIdx.x / 32 == 0) ? 1.0f : 0.0f;
}

__global__ void all_of_half_a_wave(const float* x, float* y) {
  float v = 0.0f;
  if (threadIdx.x >= 96) v = __all_sync(FULL, x[threadIdx.x] > -1000.0f) ? 1.0f : 0.0f;
  y[threadIdx.x] = v;
}

__global__ void active_lanes(const float* x, float* y) {
  float v = 0.0f;
  if (x[threadIdx.x] > 0.0f) v = __popc(__activemask());
  y[threadIdx.x] = v;
}

__global__ void first_active(const float* x, float* y) {
  float v = -1.0f;
  if (threadIdx.x % 64 >= 37) v = __ffs(__activemask()) - 1;
  y[threadIdx.x] = v;
}

__global__ void masked_sum(const float* x, float* y) {
  const unsigned mask = __ballot_sync(FULL, threadIdx.x % 32 < 16);
  float v = 0.0f;
  if (threadIdx.x % 32 < 16) {
    v = x[threadIdx.x];
    for (int d = 8; d > 0; d /= 2) v += __shfl_down_sync(mask, v, d);
    v = __shfl_sync(mask, v, 0);
  }
  y[threadIdx.x] = v;
}

__global__ void same_keys(const float* x, float* y) {
  y[threadIdx.x] = __popc(__match_any_sync(FULL, (int)x[threadIdx.x]));
}

__global__ void first_of_key(const float* x, float* y) {
  y[threadIdx.x] = __ffs(__match_any_sync(FULL, (int)x[threadIdx.x])) - 1;
}

// One lane of each warp adds for all of it; the others learn their place from it.
__global__ void aggregated_add(const float* x, float* y) {
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  y[threadIdx.x] = -1.0f;
  __syncthreads();
  if (x[threadIdx.x] > 0.0f) {
    const unsigned active = __activemask();
    const int lane = threadIdx.x & 31, leader = __ffs(active) - 1;
    int base = 0;
    if (lane == leader) base = atomicAdd(&count, __popc(active));
    base = __shfl_sync(active, base, leader);
    y[threadIdx.x] = base >= 0 ? __popc(active & ((1u << lane) - 1)) : -2.0f;
  }
}

template <typename T>
__device__ T of_lane(T v, int lane) {
  return __shfl_sync(FULL, v, lane);
}

__global__ void through_a_template(const float* x, float* y) {
  y[threadIdx.x] = of_lane<float>(x[threadIdx.x], 3) + of_lane<int>((int)x[threadIdx.x], 4);
}

#define LANE_OF(v, lane) __shfl_sync(FULL, (v), (lane))

__global__ void through_a_macro(const float* x, float* y) {
  y[threadIdx.x] = LANE_OF(x[threadIdx.x], 7);
}

__global__ void last_lane_of_votes(const float* x, float* y) {
  const unsigned votes = __ballot_sync(FULL, x[threadIdx.x] > 0.0f);
  y[threadIdx.x] = votes ? 31 - __clz(votes) : -1;
}

__global__ void neighbours(const float* x, float* y) {
  const float v = x[threadIdx.x];
  y[threadIdx.x] = __shfl_up_sync(FULL, v, 1) + 10.0f * __shfl_down_sync(FULL, v, 1);
}

// The second step of a block's reduction: one warp over the partial sums of all.
__global__ void block_sum(const float* x, float* y) {
  __shared__ float partial[32];
  float v = x[threadIdx.x];
  for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(FULL, v, d);
  v = __shfl_sync(FULL, v, 0);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  float sum = 0.0f;
  for (int i = 0; i < 4; i++) sum += partial[i];
  y[threadIdx.x] = sum + 1000.0f * v;
}
