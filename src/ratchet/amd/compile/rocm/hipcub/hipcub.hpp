// Reductions and prefix sums of a block or a warp, by hipcub's and cub's names. ROCm's own hipcub goes first.
#ifndef RATCHET_HIPCUB_HIPCUB_HPP
#define RATCHET_HIPCUB_HIPCUB_HPP
#if __has_include_next(<hipcub/hipcub.hpp>) && __has_include(<rocprim/rocprim.hpp>)
#include_next <hipcub/hipcub.hpp>
namespace cub = hipcub;
#else
#include <hip/hip_runtime.h>
#define RATCHET_IN inline __device__ __attribute__((always_inline))

namespace hipcub {
struct Sum { template <typename T> RATCHET_IN T operator()(const T& a, const T& b) const { return a + b; } };
struct Max { template <typename T> RATCHET_IN T operator()(const T& a, const T& b) const { return a > b ? a : b; } };
struct Min { template <typename T> RATCHET_IN T operator()(const T& a, const T& b) const { return a < b ? a : b; } };
template <typename K, typename V> struct KeyValuePair {
  typedef K Key;
  typedef V Value;
  K key;
  V value;
  __host__ __device__ KeyValuePair() {}
  __host__ __device__ KeyValuePair(const K& k, const V& v) : key(k), value(v) {}
  __host__ __device__ bool operator!=(const KeyValuePair& b) const { return key != b.key || value != b.value; }
};
// Of equal values, the one with the smaller key
struct ArgMax {
  template <typename P> RATCHET_IN P operator()(const P& a, const P& b) const {
    return b.value > a.value || (a.value == b.value && b.key < a.key) ? b : a;
  }
};
struct ArgMin {
  template <typename P> RATCHET_IN P operator()(const P& a, const P& b) const {
    return b.value < a.value || (a.value == b.value && b.key < a.key) ? b : a;
  }
};
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
  template <int N, typename F> RATCHET_IN T Reduce(T (&v)[N], F f) {
    T own = v[0];
    for (int i = 1; i < N; ++i) own = f(own, v[i]);
    return Reduce(own, f);
  }
  RATCHET_IN T Sum(T v) { return Reduce(v, hipcub::Sum()); }
  RATCHET_IN T Sum(T v, int count) { return Reduce(v, hipcub::Sum(), count); }
  template <int N> RATCHET_IN T Sum(T (&v)[N]) { return Reduce(v, hipcub::Sum()); }
};
template <typename T, int X, BlockScanAlgorithm A = BLOCK_SCAN_RAKING, int Y = 1, int Z = 1>
struct BlockScan {
  struct TempStorage { T part[X * Y * Z], first; };
  TempStorage& held;
  RATCHET_IN explicit BlockScan(TempStorage& storage) : held(storage) {}
  RATCHET_IN static int rank() { return threadIdx.x + X * (threadIdx.y + Y * threadIdx.z); }
  // Leaves each thread's inclusive sum in held.part
  template <typename F> RATCHET_IN void sums(T v, F f) {
    const int own = rank();
    __syncthreads();
    held.part[own] = v;
    __syncthreads();
    for (int by = 1; by < X * Y * Z; by *= 2) {
      const T before = own >= by ? held.part[own - by] : v;
      __syncthreads();
      if (own >= by) held.part[own] = f(before, held.part[own]);
      __syncthreads();
    }
  }
  RATCHET_IN T total() const { return held.part[X * Y * Z - 1]; }
  // As cub, the first warp asks for what precedes the block, and its first thread's answer counts
  template <typename Ask> RATCHET_IN T asked(Ask& ask) {
    if (rank() < (int)warpSize) {
      const T said = ask(total());
      if (rank() == 0) held.first = said;
    }
    __syncthreads();
    return held.first;
  }
  template <bool Inclusive, int N, typename F>
  RATCHET_IN void each(T (&v)[N], T (&out)[N], F f, bool some, T before) {
    for (int i = 0; i < N; ++i) {
      const T own = v[i], next = some ? f(before, own) : own;
      out[i] = Inclusive ? next : before;
      before = next, some = true;
    }
  }
  // `first` precedes the block where there is one
  template <bool Inclusive, int N, typename F>
  RATCHET_IN void scan(T (&v)[N], T (&out)[N], F f, bool some, T first) {
    const int own = rank();
    T before = first;
    if (own) before = some ? f(first, held.part[own - 1]) : held.part[own - 1];
    each<Inclusive>(v, out, f, some || own, before);
  }
  template <int N, typename F> RATCHET_IN void sums_of(T (&v)[N], F f) {
    T all = v[0];
    for (int i = 1; i < N; ++i) all = f(all, v[i]);
    sums(all, f);
  }
  template <int N, typename F> RATCHET_IN void InclusiveScan(T (&v)[N], T (&out)[N], F f) {
    sums_of(v, f), scan<true>(v, out, f, false, v[0]);
  }
  template <int N, typename F, typename Ask>
  RATCHET_IN void InclusiveScan(T (&v)[N], T (&out)[N], F f, Ask& ask) {
    sums_of(v, f);
    const T first = asked(ask);
    scan<true>(v, out, f, true, first);
  }
  template <int N, typename F> RATCHET_IN void ExclusiveScan(T (&v)[N], T (&out)[N], T first, F f) {
    sums_of(v, f), scan<false>(v, out, f, true, first);
  }
  template <int N, typename F, typename Ask>
  RATCHET_IN void ExclusiveScan(T (&v)[N], T (&out)[N], F f, Ask& ask) {
    sums_of(v, f);
    const T first = asked(ask);
    scan<false>(v, out, f, true, first);
  }
  template <typename F> RATCHET_IN void InclusiveScan(T v, T& out, F f) { sums(v, f), out = held.part[rank()]; }
  template <typename F> RATCHET_IN void InclusiveScan(T v, T& out, F f, T& all) {
    InclusiveScan(v, out, f), all = total();
  }
  template <typename F> RATCHET_IN void ExclusiveScan(T v, T& out, T first, F f) {
    sums(v, f);
    out = rank() ? f(first, held.part[rank() - 1]) : first;
  }
  template <typename F> RATCHET_IN void ExclusiveScan(T v, T& out, T first, F f, T& all) {
    ExclusiveScan(v, out, first, f), all = total();
  }
  template <typename V> RATCHET_IN void InclusiveSum(V& v, V& out) { InclusiveScan(v, out, hipcub::Sum()); }
  RATCHET_IN void InclusiveSum(const T& v, T& out) { InclusiveScan(v, out, hipcub::Sum()); }
  template <typename V> RATCHET_IN void InclusiveSum(V& v, V& out, T& all) { InclusiveSum(v, out), all = total(); }
  template <int N> RATCHET_IN void ExclusiveSum(T (&v)[N], T (&out)[N]) { ExclusiveScan(v, out, T(), hipcub::Sum()); }
  template <int N> RATCHET_IN void ExclusiveSum(T (&v)[N], T (&out)[N], T& all) { ExclusiveSum(v, out), all = total(); }
  RATCHET_IN void ExclusiveSum(T v, T& out) { ExclusiveScan(v, out, T(), hipcub::Sum()); }
  RATCHET_IN void ExclusiveSum(T v, T& out, T& all) { ExclusiveSum(v, out), all = total(); }
};
template <typename T, int N = RATCHET_LANES> struct WarpReduce {
  struct TempStorage {};
  RATCHET_IN explicit WarpReduce(TempStorage&) {}
  template <typename F> RATCHET_IN T Reduce(T v, F f) {
    for (int by = N / 2; by; by /= 2) v = f(v, __shfl_down(v, by, N));
    return v;
  }
  RATCHET_IN T Sum(T v) { return Reduce(v, hipcub::Sum()); }
};
template <typename T, int N = RATCHET_LANES> struct WarpScan {
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
#include "ratchet_items.hpp"
#include "ratchet_device.hpp"
namespace cub = hipcub;
#undef RATCHET_IN
#endif
#endif
