// Cooperative groups of a block and of its tiles. A group of the whole grid would wait for blocks that have not begun.
#ifndef RATCHET_HIP_HIP_COOPERATIVE_GROUPS_H
#define RATCHET_HIP_HIP_COOPERATIVE_GROUPS_H
#include <hip/hip_runtime.h>
#define RATCHET_CG static inline __device__ __attribute__((always_inline))
#define RATCHET_IN inline __device__ __attribute__((always_inline))

namespace cooperative_groups {
struct thread_block {
  RATCHET_IN void sync() const { __syncthreads(); }
  RATCHET_IN unsigned thread_rank() const {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  }
  RATCHET_IN unsigned size() const { return blockDim.x * blockDim.y * blockDim.z; }
  RATCHET_IN unsigned num_threads() const { return size(); }
  RATCHET_IN dim3 group_index() const { return dim3(blockIdx.x, blockIdx.y, blockIdx.z); }
  RATCHET_IN dim3 thread_index() const { return dim3(threadIdx.x, threadIdx.y, threadIdx.z); }
};
RATCHET_CG thread_block this_thread_block() { return {}; }

template <unsigned N, typename Of = thread_block> struct thread_block_tile {
  static_assert(N <= 64 && (N & (N - 1)) == 0, "a tile has a power of two of threads, 64 at most");
  RATCHET_IN unsigned thread_rank() const { return this_thread_block().thread_rank() % N; }
  RATCHET_IN unsigned meta_group_rank() const { return this_thread_block().thread_rank() / N; }
  RATCHET_IN unsigned meta_group_size() const { return (this_thread_block().size() + N - 1) / N; }
  static constexpr __device__ unsigned size() { return N; }
  static constexpr __device__ unsigned num_threads() { return N; }
  RATCHET_IN void sync() const { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront"); }
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
};
template <unsigned N, typename Of> RATCHET_CG thread_block_tile<N, Of> tiled_partition(const Of&) { return {}; }
template <typename G> RATCHET_CG void sync(const G& group) { group.sync(); }

template <typename T> struct plus { RATCHET_IN T operator()(T a, T b) const { return a + b; } };
template <typename T> struct greater { RATCHET_IN T operator()(T a, T b) const { return a > b ? a : b; } };
template <typename T> struct less { RATCHET_IN T operator()(T a, T b) const { return a < b ? a : b; } };
template <unsigned N, typename Of, typename T, typename F>
RATCHET_CG T reduce(const thread_block_tile<N, Of>& tile, T v, F f) {
  for (unsigned by = N / 2; by; by /= 2) v = f(v, tile.shfl_xor(v, by));
  return v;
}
}  // namespace cooperative_groups
#undef RATCHET_CG
#undef RATCHET_IN
#endif
