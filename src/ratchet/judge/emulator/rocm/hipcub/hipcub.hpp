// Reductions and prefix sums of a block or a warp, by hipcub's and cub's names.
#ifndef RATCHET_HIPCUB_HIPCUB_HPP
#define RATCHET_HIPCUB_HIPCUB_HPP
#include <hip/hip_runtime.h>
#define RATCHET_IN inline __device__ __attribute__((always_inline))

namespace hipcub {
struct Sum { template <typename T> RATCHET_IN T operator()(const T& a, const T& b) const { return a + b; } };
struct Max { template <typename T> RATCHET_IN T operator()(const T& a, const T& b) const { return a > b ? a : b; } };
struct Min { template <typename T> RATCHET_IN T operator()(const T& a, const T& b) const { return a < b ? a : b; } };
enum BlockReduceAlgorithm { BLOCK_REDUCE_RAKING, BLOCK_REDUCE_WARP_REDUCTIONS, BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY };
enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_WARP_SCANS, BLOCK_SCAN_RAKING_MEMOIZE };

template <typename T, int X, int Y = 1, int Z = 1> struct RatchetBlock {
  struct TempStorage { T part[X * Y * Z]; };
  TempStorage& held;
  RATCHET_IN explicit RatchetBlock(TempStorage& storage) : held(storage) {}
  RATCHET_IN static int rank() { return threadIdx.x + X * (threadIdx.y + Y * threadIdx.z); }
};
template <typename T, int X, BlockReduceAlgorithm A = BLOCK_REDUCE_WARP_REDUCTIONS, int Y = 1, int Z = 1>
struct BlockReduce : RatchetBlock<T, X, Y, Z> {
  using RatchetBlock<T, X, Y, Z>::RatchetBlock;
  template <typename F> RATCHET_IN T Reduce(T v, F f, int count = X * Y * Z) {
    const int own = this->rank();
    this->held.part[own] = v;
    __syncthreads();
    for (int left = count; left > 1;) {
      const int half = (left + 1) / 2;
      if (own < left - half) this->held.part[own] = f(this->held.part[own], this->held.part[own + half]);
      __syncthreads();
      left = half;
    }
    return this->held.part[0];
  }
  RATCHET_IN T Sum(T v) { return Reduce(v, hipcub::Sum()); }
  RATCHET_IN T Sum(T v, int count) { return Reduce(v, hipcub::Sum(), count); }
};
template <typename T, int X, BlockScanAlgorithm A = BLOCK_SCAN_RAKING, int Y = 1, int Z = 1>
struct BlockScan : RatchetBlock<T, X, Y, Z> {
  using RatchetBlock<T, X, Y, Z>::RatchetBlock;
  template <typename F> RATCHET_IN void InclusiveScan(T v, T& out, F f) {
    const int own = this->rank();
    this->held.part[own] = v;
    __syncthreads();
    for (int by = 1; by < X * Y * Z; by *= 2) {
      const T before = own >= by ? this->held.part[own - by] : v;
      __syncthreads();
      if (own >= by) this->held.part[own] = f(before, this->held.part[own]);
      __syncthreads();
    }
    out = this->held.part[own];
  }
  RATCHET_IN void InclusiveSum(T v, T& out) { InclusiveScan(v, out, hipcub::Sum()); }
  RATCHET_IN void InclusiveSum(T v, T& out, T& all) {
    InclusiveSum(v, out);
    all = this->held.part[X * Y * Z - 1];
  }
  RATCHET_IN void ExclusiveSum(T v, T& out) {
    InclusiveSum(v, out);
    const int own = this->rank();
    out = own ? this->held.part[own - 1] : T();
  }
  RATCHET_IN void ExclusiveSum(T v, T& out, T& all) {
    ExclusiveSum(v, out);
    all = this->held.part[X * Y * Z - 1];
  }
};
template <typename T, int N = 32> struct WarpReduce {
  struct TempStorage {};
  RATCHET_IN explicit WarpReduce(TempStorage&) {}
  template <typename F> RATCHET_IN T Reduce(T v, F f) {
    for (int by = N / 2; by; by /= 2) v = f(v, __shfl_down(v, by, N));
    return v;
  }
  RATCHET_IN T Sum(T v) { return Reduce(v, hipcub::Sum()); }
};
template <typename T, int N = 32> struct WarpScan {
  struct TempStorage {};
  RATCHET_IN explicit WarpScan(TempStorage&) {}
  template <typename F> RATCHET_IN void InclusiveScan(T v, T& out, F f) {
    const int own = (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % N;
    for (int by = 1; by < N; by *= 2) {
      const T before = __shfl_up(v, by, N);
      if (own >= by) v = f(before, v);
    }
    out = v;
  }
  RATCHET_IN void InclusiveSum(T v, T& out) { InclusiveScan(v, out, hipcub::Sum()); }
  RATCHET_IN void ExclusiveSum(T v, T& out) {
    InclusiveSum(v, out);
    out = out - v;
  }
};
}  // namespace hipcub
#include "ratchet_device.hpp"
namespace cub = hipcub;
#undef RATCHET_IN
#endif
