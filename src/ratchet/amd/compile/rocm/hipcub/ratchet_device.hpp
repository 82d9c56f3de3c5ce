// Reductions, prefix sums and sorts of whole arrays, by hipcub's names: right, and not written to be fast.
#ifndef RATCHET_HIPCUB_DEVICE_HPP
#define RATCHET_HIPCUB_DEVICE_HPP
#include <hip/hip_runtime.h>
#include <iterator>
#include <limits>
#include <type_traits>

namespace hipcub {
template <typename It> using RatchetOf = typename std::iterator_traits<It>::value_type;
// As cub: without memory, a call only tells how much it needs
inline bool ratchet_asks(void* memory, size_t& bytes) { return memory ? false : (bytes = 16, true); }

template <typename In, typename Out, typename F, typename T>
__global__ void ratchet_reduce(In in, Out out, long count, F f, T first) {
  __shared__ T part[256];
  const long each = (count + 255) / 256, begin = each * threadIdx.x;
  T sum = first;
  for (long i = begin; i < begin + each && i < count; ++i) sum = i == begin ? T(in[i]) : f(sum, T(in[i]));
  part[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x) return;
  T all = first;
  for (long t = 0; t * each < count; ++t) all = f(all, part[t]);
  out[0] = all;
}
template <bool Inclusive, typename In, typename Out, typename F, typename T>
__global__ void ratchet_scan(In in, Out out, long count, F f, T first, bool has_first) {
  __shared__ T part[256];
  const long each = (count + 255) / 256, begin = each * threadIdx.x, end = begin + each < count ? begin + each : count;
  T sum = first;
  for (long i = begin; i < end; ++i) sum = i == begin ? T(in[i]) : f(sum, T(in[i]));
  part[threadIdx.x] = sum;
  __syncthreads();
  sum = first;
  bool some = has_first;
  for (long t = 0; t < threadIdx.x && t * each < count; ++t) sum = some ? f(sum, part[t]) : part[t], some = true;
  for (long i = begin; i < end; ++i) {
    const T own = in[i], next = some ? f(sum, own) : own;
    out[i] = Inclusive ? next : sum;
    sum = next, some = true;
  }
}
// The bits of a key, in whose order keys are sorted
template <typename K> inline __device__ unsigned long long ratchet_bits(K key, int begin, int end) {
  constexpr int width = 8 * sizeof(K);
  unsigned long long bits = 0;
  __builtin_memcpy(&bits, &key, sizeof key);
  const unsigned long long top = 1ull << (width - 1);
  if (std::is_integral<K>::value) bits ^= std::is_signed<K>::value ? top : 0;
  else bits = bits & top ? ~bits : bits | top;
  bits <<= 64 - (end < width ? end : width);
  return bits >> (64 - (end < width ? end : width) + begin);
}
template <typename K, typename V>
__global__ void ratchet_sort(const K* in, K* out, const V* values, V* sorted, long count, int begin, int end, bool falls) {
  const long i = blockIdx.x * 256l + threadIdx.x;
  if (i >= count) return;
  const unsigned long long own = ratchet_bits(in[i], begin, end);
  long place = 0;
  for (long j = 0; j < count; ++j) {
    const unsigned long long other = ratchet_bits(in[j], begin, end);
    place += (falls ? other > own : other < own) || (other == own && j < i);
  }
  out[place] = in[i];
  if (values) sorted[place] = values[i];
}
template <typename In, typename Out, typename At, typename F, typename T>
__global__ void ratchet_segments(In in, Out out, int count, At begins, At ends, F f, T first) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= count) return;
  T sum = first;
  for (auto j = begins[i]; j < ends[i]; ++j) sum = f(sum, T(in[j]));
  out[i] = sum;
}

#define RATCHET_CALL static hipError_t
struct DeviceReduce {
  template <typename In, typename Out, typename F, typename T>
  RATCHET_CALL Reduce(void* memory, size_t& bytes, In in, Out out, long count, F f, T first, hipStream_t s = 0, bool = false) {
    if (ratchet_asks(memory, bytes)) return hipSuccess;
    ratchet_reduce<<<1, 256, 0, s>>>(in, out, count, f, first);
    return hipGetLastError();
  }
  template <typename In, typename Out>
  RATCHET_CALL Sum(void* memory, size_t& bytes, In in, Out out, long count, hipStream_t s = 0, bool = false) {
    return Reduce(memory, bytes, in, out, count, hipcub::Sum(), RatchetOf<In>(), s);
  }
  template <typename In, typename Out>
  RATCHET_CALL Max(void* memory, size_t& bytes, In in, Out out, long count, hipStream_t s = 0, bool = false) {
    return Reduce(memory, bytes, in, out, count, hipcub::Max(), std::numeric_limits<RatchetOf<In>>::lowest(), s);
  }
  template <typename In, typename Out>
  RATCHET_CALL Min(void* memory, size_t& bytes, In in, Out out, long count, hipStream_t s = 0, bool = false) {
    return Reduce(memory, bytes, in, out, count, hipcub::Min(), std::numeric_limits<RatchetOf<In>>::max(), s);
  }
};
struct DeviceSegmentedReduce {
  template <typename In, typename Out, typename At>
  RATCHET_CALL Sum(void* memory, size_t& bytes, In in, Out out, int count, At begins, At ends, hipStream_t s = 0, bool = false) {
    if (ratchet_asks(memory, bytes)) return hipSuccess;
    ratchet_segments<<<(count + 255) / 256, 256, 0, s>>>(in, out, count, begins, ends, hipcub::Sum(), RatchetOf<In>());
    return hipGetLastError();
  }
};
struct DeviceScan {
  template <typename In, typename Out, typename F>
  RATCHET_CALL InclusiveScan(void* memory, size_t& bytes, In in, Out out, F f, long count, hipStream_t s = 0, bool = false) {
    if (ratchet_asks(memory, bytes)) return hipSuccess;
    ratchet_scan<true><<<1, 256, 0, s>>>(in, out, count, f, RatchetOf<In>(), false);
    return hipGetLastError();
  }
  template <typename In, typename Out, typename F, typename T>
  RATCHET_CALL ExclusiveScan(void* memory, size_t& bytes, In in, Out out, F f, T first, long count, hipStream_t s = 0, bool = false) {
    if (ratchet_asks(memory, bytes)) return hipSuccess;
    ratchet_scan<false><<<1, 256, 0, s>>>(in, out, count, f, first, true);
    return hipGetLastError();
  }
  template <typename In, typename Out>
  RATCHET_CALL InclusiveSum(void* memory, size_t& bytes, In in, Out out, long count, hipStream_t s = 0, bool = false) {
    return InclusiveScan(memory, bytes, in, out, hipcub::Sum(), count, s);
  }
  template <typename In, typename Out>
  RATCHET_CALL ExclusiveSum(void* memory, size_t& bytes, In in, Out out, long count, hipStream_t s = 0, bool = false) {
    return ExclusiveScan(memory, bytes, in, out, hipcub::Sum(), RatchetOf<In>(), count, s);
  }
};
struct DeviceRadixSort {
  template <typename K, typename V>
  RATCHET_CALL ratchet_pairs(void* memory, size_t& bytes, const K* in, K* out, const V* values, V* sorted, long count, int begin, int end, hipStream_t s, bool falls) {
    if (ratchet_asks(memory, bytes) || !count) return hipSuccess;
    ratchet_sort<<<(count + 255) / 256, 256, 0, s>>>(in, out, values, sorted, count, begin, end, falls);
    return hipGetLastError();
  }
  template <typename K>
  RATCHET_CALL SortKeys(void* memory, size_t& bytes, const K* in, K* out, long count, int begin = 0, int end = 8 * sizeof(K), hipStream_t s = 0, bool = false) {
    return ratchet_pairs(memory, bytes, in, out, (const char*)0, (char*)0, count, begin, end, s, false);
  }
  template <typename K>
  RATCHET_CALL SortKeysDescending(void* memory, size_t& bytes, const K* in, K* out, long count, int begin = 0, int end = 8 * sizeof(K), hipStream_t s = 0, bool = false) {
    return ratchet_pairs(memory, bytes, in, out, (const char*)0, (char*)0, count, begin, end, s, true);
  }
  template <typename K, typename V>
  RATCHET_CALL SortPairs(void* memory, size_t& bytes, const K* in, K* out, const V* values, V* sorted, long count, int begin = 0, int end = 8 * sizeof(K), hipStream_t s = 0, bool = false) {
    return ratchet_pairs(memory, bytes, in, out, values, sorted, count, begin, end, s, false);
  }
  template <typename K, typename V>
  RATCHET_CALL SortPairsDescending(void* memory, size_t& bytes, const K* in, K* out, const V* values, V* sorted, long count, int begin = 0, int end = 8 * sizeof(K), hipStream_t s = 0, bool = false) {
    return ratchet_pairs(memory, bytes, in, out, values, sorted, count, begin, end, s, true);
  }
};
#undef RATCHET_CALL
}  // namespace hipcub
#endif
