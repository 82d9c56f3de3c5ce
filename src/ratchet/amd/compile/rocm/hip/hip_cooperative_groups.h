// Cooperative groups of the grid, of a block, of its tiles and of the lanes that are on.
#ifndef RATCHET_HIP_HIP_COOPERATIVE_GROUPS_H
#define RATCHET_HIP_HIP_COOPERATIVE_GROUPS_H
#include <hip/hip_runtime.h>
#define RATCHET_CG static inline __device__ __attribute__((always_inline))
#define RATCHET_IN inline __device__ __attribute__((always_inline))

namespace cooperative_groups {
RATCHET_CG void ratchet_wave_fence() { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront"); }
RATCHET_CG unsigned ratchet_rank() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
RATCHET_CG unsigned ratchet_size() { return blockDim.x * blockDim.y * blockDim.z; }

struct thread_group {
  unsigned tile;  // its threads; 0 is the block
  RATCHET_IN unsigned thread_rank() const { return tile ? ratchet_rank() % tile : ratchet_rank(); }
  RATCHET_IN unsigned size() const { return tile ? tile : ratchet_size(); }
  RATCHET_IN unsigned num_threads() const { return size(); }
  RATCHET_IN bool is_valid() const { return true; }
  RATCHET_IN void sync() const {
    if (tile) ratchet_wave_fence();
    else __syncthreads();
  }
};
struct thread_block {
  RATCHET_IN static void sync() { __syncthreads(); }
  RATCHET_IN static unsigned thread_rank() { return ratchet_rank(); }
  RATCHET_IN static unsigned size() { return ratchet_size(); }
  RATCHET_IN static unsigned num_threads() { return size(); }
  RATCHET_IN static bool is_valid() { return true; }
  RATCHET_IN static dim3 group_index() { return dim3(blockIdx.x, blockIdx.y, blockIdx.z); }
  RATCHET_IN static dim3 thread_index() { return dim3(threadIdx.x, threadIdx.y, threadIdx.z); }
  RATCHET_IN static dim3 group_dim() { return dim3(blockDim.x, blockDim.y, blockDim.z); }
  RATCHET_IN static dim3 dim_threads() { return group_dim(); }
  RATCHET_IN operator thread_group() const { return {0}; }
};
RATCHET_CG thread_block this_thread_block() { return {}; }

// Blocks that have come to the barrier of the grid, and how often all of them had.
static __device__ unsigned ratchet_grid_here, ratchet_grid_rounds;
struct grid_group {
  // All blocks must be live: see `hipLaunchCooperativeKernel`
  RATCHET_IN static void sync() {
    __threadfence();
    __syncthreads();
    if (ratchet_rank() == 0) {
      const unsigned round = __hip_atomic_load(&ratchet_grid_rounds, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT);
      if (atomicAdd(&ratchet_grid_here, 1u) + 1 == num_blocks()) {
        __hip_atomic_store(&ratchet_grid_here, 0u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
        atomicAdd(&ratchet_grid_rounds, 1u);
      } else {
        while (__hip_atomic_load(&ratchet_grid_rounds, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT) == round)
          __builtin_amdgcn_s_sleep(1);  // others have their turn
      }
    }
    __syncthreads();
  }
  RATCHET_IN static bool is_valid() { return true; }
  RATCHET_IN static unsigned long long num_blocks() { return (unsigned long long)gridDim.x * gridDim.y * gridDim.z; }
  RATCHET_IN static unsigned long long block_rank() {
    return blockIdx.x + (unsigned long long)gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  }
  RATCHET_IN static unsigned long long size() { return num_blocks() * ratchet_size(); }
  RATCHET_IN static unsigned long long num_threads() { return size(); }
  RATCHET_IN static unsigned long long thread_rank() { return block_rank() * ratchet_size() + ratchet_rank(); }
};
RATCHET_CG grid_group this_grid() { return {}; }

template <unsigned N, typename Of = thread_block> struct thread_block_tile {
  static_assert(N <= 64 && (N & (N - 1)) == 0, "a tile has a power of two of threads, 64 at most");
  RATCHET_IN static unsigned thread_rank() { return ratchet_rank() % N; }
  RATCHET_IN static unsigned meta_group_rank() { return ratchet_rank() / N; }
  RATCHET_IN static unsigned meta_group_size() { return (ratchet_size() + N - 1) / N; }
  static constexpr __device__ unsigned size() { return N; }
  static constexpr __device__ unsigned num_threads() { return N; }
  RATCHET_IN static bool is_valid() { return true; }
  RATCHET_IN static void sync() { ratchet_wave_fence(); }
  template <typename T> RATCHET_IN T shfl(T v, int from) const { return __shfl(v, from, N); }
  template <typename T> RATCHET_IN T shfl_down(T v, unsigned by) const { return __shfl_down(v, by, N); }
  template <typename T> RATCHET_IN T shfl_up(T v, unsigned by) const { return __shfl_up(v, by, N); }
  template <typename T> RATCHET_IN T shfl_xor(T v, int by) const { return __shfl_xor(v, by, N); }
  RATCHET_IN unsigned long long ballot(int said) const {
    const unsigned first = __lane_id() & ~(N - 1);
    return __ballot(said) >> first & (N == 64 ? ~0ull : (1ull << (N % 64)) - 1);
  }
  RATCHET_IN int any(int said) const { return ballot(said) != 0; }
  RATCHET_IN int all(int said) const { return ballot(!said) == 0; }
  RATCHET_IN operator thread_group() const { return {N}; }
};
template <unsigned N, typename Of> RATCHET_CG thread_block_tile<N, Of> tiled_partition(const Of&) { return {}; }
RATCHET_CG thread_group tiled_partition(const thread_group&, unsigned threads) { return {threads}; }
template <typename G> RATCHET_CG void sync(const G& group) { group.sync(); }

struct coalesced_group {
  unsigned long long mask;
  RATCHET_IN unsigned size() const { return __popcll(mask); }
  RATCHET_IN unsigned num_threads() const { return size(); }
  RATCHET_IN unsigned thread_rank() const { return __popcll(mask & ((1ull << __lane_id()) - 1)); }
  RATCHET_IN void sync() const { ratchet_wave_fence(); }
  RATCHET_IN unsigned ratchet_lane(unsigned rank) const {
    unsigned long long left = mask;
    for (; rank; --rank) left &= left - 1;
    return __ffsll((unsigned long long)left) - 1;
  }
  template <typename T> RATCHET_IN T shfl(T v, unsigned from) const { return __shfl(v, ratchet_lane(from % size())); }
  template <typename T> RATCHET_IN T shfl_down(T v, unsigned by) const {
    const unsigned own = thread_rank();
    return __shfl(v, ratchet_lane(own + by < size() ? own + by : own));
  }
  template <typename T> RATCHET_IN T shfl_up(T v, unsigned by) const {
    const unsigned own = thread_rank();
    return __shfl(v, ratchet_lane(own >= by ? own - by : own));
  }
  RATCHET_IN int any(int said) const { return (__ballot(said) & mask) != 0; }
  RATCHET_IN int all(int said) const { return (__ballot(!said) & mask) == 0; }
};
RATCHET_CG coalesced_group coalesced_threads() { return {(unsigned long long)__ballot(1)}; }

template <typename T> struct plus { RATCHET_IN T operator()(T a, T b) const { return a + b; } };
template <typename T> struct greater { RATCHET_IN T operator()(T a, T b) const { return a > b ? a : b; } };
template <typename T> struct less { RATCHET_IN T operator()(T a, T b) const { return a < b ? a : b; } };
template <typename T> struct bit_and { RATCHET_IN T operator()(T a, T b) const { return a & b; } };
template <typename T> struct bit_or { RATCHET_IN T operator()(T a, T b) const { return a | b; } };
template <typename T> struct bit_xor { RATCHET_IN T operator()(T a, T b) const { return a ^ b; } };
template <unsigned N, typename Of, typename T, typename F>
RATCHET_CG T reduce(const thread_block_tile<N, Of>& tile, T v, F f) {
  for (unsigned by = N / 2; by; by /= 2) v = f(v, tile.shfl_xor(v, by));
  return v;
}
template <unsigned N, typename Of, typename T, typename F>
RATCHET_CG T inclusive_scan(const thread_block_tile<N, Of>& tile, T v, F f) {
  for (unsigned by = 1; by < N; by *= 2) {
    const T before = tile.shfl_up(v, by);
    if (tile.thread_rank() >= by) v = f(before, v);
  }
  return v;
}
template <typename G> RATCHET_CG void memcpy_async(const G& group, void* to, const void* from, unsigned long bytes) {
  for (unsigned long i = group.thread_rank(); i < bytes; i += group.size()) ((char*)to)[i] = ((const char*)from)[i];
}
template <typename G> RATCHET_CG void wait(const G& group) { group.sync(); }
}  // namespace cooperative_groups
#undef RATCHET_CG
#undef RATCHET_IN
#endif
