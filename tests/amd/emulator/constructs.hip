// One kernel for each construct that people write: y[i] is what the test's table says of x[i], for 64 values of x.
#include <hip/hip_runtime.h>
#include <hip/hip_bf16.h>
#include <hip/hip_cooperative_groups.h>
#include <hip/hip_fp16.h>
#include <hip/hip_fp8.h>
#include <hipcub/hipcub.hpp>
#include <thrust/pair.h>
#include <thrust/tuple.h>
#include <cassert>
#include "ratchet_abi.h"

namespace cg = cooperative_groups;
#define EACH(name, value)                                                        \
  __global__ void name(const float* x, float* y) {                               \
    const int i = threadIdx.x; const float a = x[i]; (void)a; y[i] = (value);    \
  }
#define I ((int)threadIdx.x)
__constant__ float weights[4] = {1.f, 2.f, 4.f, 8.f};
__device__ float offset = 0.5f;
__device__ __attribute__((noinline)) float called(float a) { return a * a + 1.f; }
HIP_DYNAMIC_SHARED(float, dynamic)

EACH(k_expf, expf(a)) EACH(k_logf, logf(fabsf(a) + 1.f)) EACH(k_tanhf, tanhf(a)) EACH(k_erff, erff(a))
EACH(k_sinf, sinf(a)) EACH(k_cosf, cosf(a)) EACH(k_powf, powf(fabsf(a), 1.5f)) EACH(k_rsqrtf, rsqrtf(fabsf(a) + 1.f))
EACH(k_log1pf, log1pf(fabsf(a))) EACH(k_expm1f, expm1f(a)) EACH(k_fast_exp, __expf(a)) EACH(k_divide, __fdividef(a, 3.f))
EACH(k_exp, (float)exp((double)a)) EACH(k_sqrt, (float)sqrt((double)fabsf(a))) EACH(k_overload, exp(a) + max(a, 0.f))
EACH(k_fmod, fmodf(a, 0.7f)) EACH(k_round, roundf(a * 4.f)) EACH(k_hypot, hypotf(a, 1.f)) EACH(k_cbrt, cbrtf(a))
EACH(k_isnan, isnan(a) + 2 * isinf(a) + 4 * isfinite(a)) EACH(k_copysign, copysignf(2.f, a))
EACH(k_popc, (float)(__popc(I) + __popcll(I))) EACH(k_clz, (float)(__clz(I) + __clzll(I)))
EACH(k_ffs, (float)(__ffs(I) + __ffsll((long long)I))) EACH(k_brev, (float)(__brev(I) >> 26))
EACH(k_umulhi, (float)__umulhi((unsigned)I << 28, 64u)) EACH(k_float_bits, __int_as_float(__float_as_int(a)))
EACH(k_shfl, __shfl(a, 3, 16)) EACH(k_shfl_down, __shfl_down(a, 2, 8)) EACH(k_shfl_up, __shfl_up(a, 1, 16))
EACH(k_shfl_xor, __shfl_xor(a, 5, 32)) EACH(k_shfl_double, (float)__shfl_xor((double)a, 1, 32))
EACH(k_shfl_long, (float)__shfl_xor((long long)I, 1, 32)) EACH(k_shfl_half, __half2float(__shfl_xor(__float2half(a), 1, 32)))
EACH(k_shfl_sync, __shfl_xor_sync(~0ull, a, 1, 32)) EACH(k_any, (float)(__any(I == 3) + 2 * __all(I < 64)))
EACH(k_half, __half2float(__hadd(__float2half(a), __float2half(0.5f)))) EACH(k_half_op, (float)static_cast<_Float16>(__half(a) * __half(2.f)))
EACH(k_half2, __low2float(__hfma2(__floats2half2_rn(a, a), __float2half2_rn(2.f), __float2half2_rn(1.f))))
EACH(k_bf16, __bfloat162float(__float2bfloat16(a))) EACH(k_hexp, __half2float(hexp(__float2half(a))))
EACH(k_ldg, __ldg(x + I)) EACH(k_constant, a * weights[I % 4]) EACH(k_device, a + offset) EACH(k_called, called(a))
EACH(k_float4, make_float4(a, 1.f, 2.f, 3.f).x + ((const float4*)x)[I / 4].y)
EACH(k_assert, (assert(I >= 0), a)) EACH(k_printf, (printf("%d", I), a)) EACH(k_clock, clock64() >= 0 ? a : 0.f)
static __device__ float zeros[4];
__constant__ float many[32] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21};
EACH(k_inside, many[21] * a + many[3] + many[17])
EACH(k_static, zeros[I % 4] + a)
EACH(k_fp8, (float)__hip_fp8_e4m3(a) + 8.f * (float)__hip_fp8_e5m2_fnuz(a))
EACH(k_fp8_fnuz, (float)__hip_fp8_e4m3_fnuz(a) + 8.f * (float)__hip_fp8_e5m2(a))
EACH(k_coalesced, I % 3 ? (float)cg::coalesced_threads().thread_rank() : -1.f)
__global__ void k_groups(const float* x, float* y) {
  const cg::thread_group group = cg::tiled_partition(cg::this_thread_block(), 8);
  auto tile = cg::tiled_partition<16>(cg::this_thread_block());
  group.sync();
  y[threadIdx.x] = cg::inclusive_scan(tile, I, cg::plus<int>()) + 1000 * group.thread_rank() +
                   100000 * (int)cg::this_grid().thread_rank();
}
__global__ void k_dynamic(const float* x, float* y) {
  dynamic[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = dynamic[63 - threadIdx.x];
}
__global__ void k_atomics(const float* x, float* y) {
  __shared__ float sum, least;
  __shared__ int count, most, bits;
  __shared__ double wide;
  if (threadIdx.x == 0) sum = 0.f, count = 0, most = -1, bits = 0, wide = 0.0, least = 1e9f;
  __syncthreads();
  atomicAdd(&sum, 1.f), atomicAdd(&count, 1), atomicMax(&most, I), atomicOr(&bits, 1 << I % 8), atomicAdd(&wide, 0.5);
  atomicMin(&least, (float)I);
  __syncthreads();
  y[threadIdx.x] = sum + count + most + bits + (float)wide + least;
}
__global__ void k_tiles(const float* x, float* y) {
  auto tile = cg::tiled_partition<16>(cg::this_thread_block());
  y[threadIdx.x] = cg::reduce(tile, (float)I, cg::plus<float>()) + tile.thread_rank();
}
__global__ void k_block_reduce(const float* x, float* y) {
  typedef hipcub::BlockReduce<float, 64> Reduce;
  __shared__ typename Reduce::TempStorage held;
  const float sum = Reduce(held).Sum((float)I);
  if (threadIdx.x == 0) held.part[0] = sum;
  __syncthreads();
  y[threadIdx.x] = held.part[0];
}
__global__ void k_block_scan(const float* x, float* y) {
  typedef hipcub::BlockScan<float, 64> Scan;
  __shared__ typename Scan::TempStorage held;
  float sum;
  Scan(held).InclusiveSum((float)I, sum);
  y[threadIdx.x] = sum;
}
__global__ void k_generic(const float* x, float* y) {
  __shared__ volatile float held[64];
  volatile float own[2] = {x[I], x[I] + 1.f};
  held[I ^ 1] = x[I];
  __syncthreads();
  const volatile float* from = I % 3 == 0 ? held + I : I % 3 == 1 ? own + (I & 1) : x + I;
  y[I] = *from;
}
__device__ int board[4];
__global__ void k_grid(const float* x, float* y) {
  const cg::grid_group grid = cg::this_grid();
  int total = 0;
  for (int round = 0; round < 3; ++round) {
    if (threadIdx.x == 0) board[blockIdx.x] = 10 * round + blockIdx.x;
    grid.sync();
    for (int block = 0; block < 4; ++block) total += board[block];
    grid.sync();
  }
  if (blockIdx.x == 2) y[threadIdx.x] = x[threadIdx.x] + total;
}

#define RUN(name)                                                                       \
  RATCHET_ENTRY run_##name(const ratchet_tensor* t, int64_t, const double*, int64_t) {  \
    k_##name<<<1, 64, 256>>>((const float*)t[0].data, (float*)t[1].data);               \
    return hipGetLastError() ? RATCHET_DECLINED : RATCHET_DONE;                         \
  }
RUN(expf) RUN(logf) RUN(tanhf) RUN(erff) RUN(sinf) RUN(cosf) RUN(powf) RUN(rsqrtf) RUN(log1pf) RUN(expm1f)
RUN(fast_exp) RUN(divide) RUN(exp) RUN(sqrt) RUN(overload) RUN(fmod) RUN(round) RUN(hypot) RUN(cbrt) RUN(isnan)
RUN(copysign) RUN(popc) RUN(clz) RUN(ffs) RUN(brev) RUN(umulhi) RUN(float_bits) RUN(shfl) RUN(shfl_down)
RUN(shfl_up) RUN(shfl_xor) RUN(shfl_double) RUN(shfl_long) RUN(shfl_half) RUN(shfl_sync) RUN(any) RUN(half)
RUN(half_op) RUN(half2) RUN(bf16) RUN(hexp) RUN(ldg) RUN(constant) RUN(device) RUN(called) RUN(float4) RUN(assert)
RUN(printf) RUN(clock) RUN(static) RUN(inside) RUN(fp8) RUN(fp8_fnuz) RUN(coalesced) RUN(groups) RUN(dynamic) RUN(atomics) RUN(tiles) RUN(block_reduce) RUN(block_scan)
__global__ void k_first(const float* x, float* y) { y[threadIdx.x] = x[0]; }
__global__ void k_warp_scan(const float* x, float* y) {
  __shared__ hipcub::WarpScan<int, 32>::TempStorage held;
  int before;
  hipcub::WarpScan<int, 32>(held).ExclusiveSum(I, before);
  y[threadIdx.x] = before;
}
__global__ void k_wave_sum(const float* x, float* y) {
  __shared__ hipcub::WarpReduce<int>::TempStorage held;
  y[threadIdx.x] = __shfl(hipcub::WarpReduce<int>(held).Sum(I), 0);
}
RUN(warp_scan) RUN(generic) RUN(wave_sum)
struct Running {
  float sum;
  __device__ float operator()(float all) { return sum += all, sum - all; }
};
__global__ void k_block_items(const float* x, float* y) {
  typedef hipcub::BlockLoad<float, 64, 2, hipcub::BLOCK_LOAD_WARP_TRANSPOSE> Load;
  typedef hipcub::BlockStore<float, 64, 2, hipcub::BLOCK_STORE_WARP_TRANSPOSE> Store;
  typedef hipcub::BlockScan<float, 64, hipcub::BLOCK_SCAN_WARP_SCANS> Scan;
  __shared__ union { typename Load::TempStorage load; typename Store::TempStorage store; typename Scan::TempStorage scan; } held;
  float v[2];
  Running running = {100.f};
  Load(held.load).Load(x, v, 64, 0.f);
  Scan(held.scan).InclusiveScan(v, v, hipcub::Sum(), running);
  Store(held.store).Store(y, v, 64);
}
__global__ void k_block_exclusive(const float* x, float* y) {
  typedef hipcub::BlockScan<int, 64> Scan;
  __shared__ typename Scan::TempStorage held;
  int v[2] = {I, 1}, sums[2], single, all;
  Scan(held).ExclusiveSum(v, sums);
  Scan(held).ExclusiveScan(I, single, -5, hipcub::Max(), all);
  y[I] = sums[0] + 10000 * (sums[1] - sums[0]) + single + all;
}
__global__ void k_block_exchange(const float* x, float* y) {
  typedef hipcub::BlockExchange<int, 64, 2> Exchange;
  __shared__ typename Exchange::TempStorage held;
  int v[2] = {2 * I, 2 * I + 1}, back[2];
  Exchange(held).BlockedToStriped(v, v);
  Exchange(held).StripedToBlocked(v, back);
  y[I] = v[0] + 1000 * v[1] + (back[0] != 2 * I) + (back[1] != 2 * I + 1);
}
__global__ void k_block_sort(const float* x, float* y) {
  typedef hipcub::BlockRadixSort<int, 64, 1, float> Sort;
  __shared__ typename Sort::TempStorage held;
  int keys[1] = {I * 37 % 64 - 32};
  float values[1] = {x[I]};
  Sort(held).SortDescending(keys, values);
  y[I] = values[0] + 100 * keys[0];
}
__global__ void k_block_arg(const float* x, float* y) {
  typedef hipcub::KeyValuePair<int, float> Pair;
  typedef hipcub::BlockReduce<Pair, 64> Reduce;
  __shared__ typename Reduce::TempStorage held;
  __shared__ int best, least;
  const Pair own(I, (float)(I % 16)), most = Reduce(held).Reduce(own, hipcub::ArgMax());
  if (I == 0) best = most.key;
  __syncthreads();
  const Pair fewest = Reduce(held).Reduce(own, hipcub::ArgMin());
  if (I == 0) least = fewest.key;
  __syncthreads();
  y[I] = 100 * best + least;
}
__device__ thrust::tuple<float, int> halves(float a) { return thrust::make_tuple(a * 0.5f, 3); }
EACH(k_tuple, thrust::get<0>(halves(a)) + thrust::get<1>(halves(a)) + thrust::make_pair(1.f, 2).second)
RUN(block_items) RUN(block_exclusive) RUN(block_exchange) RUN(block_sort) RUN(block_arg) RUN(tuple)
#define DEVICE(name, call)                                                                       \
  RATCHET_ENTRY run_device_##name(const ratchet_tensor* t, int64_t, const double*, int64_t) {    \
    const float* x = (const float*)t[0].data; float *y = (float*)t[1].data, *other;              \
    size_t bytes = 0; void* memory = nullptr;                                                    \
    if (hipMalloc(&other, 256) || (call) || bytes == 0 || hipMalloc(&memory, bytes)) return 2;   \
    if (call) return 3;                                                                          \
    if (t[0].data && #name[0] == 'm') k_first<<<1, 64>>>(other, y);                              \
    return hipFree(memory) || hipFree(other) ? 4 : RATCHET_DONE;                                 \
  }
DEVICE(max, hipcub::DeviceReduce::Max(memory, bytes, x, other, 64))
DEVICE(scan, hipcub::DeviceScan::ExclusiveSum(memory, bytes, x, y, 64))
DEVICE(sort, hipcub::DeviceRadixSort::SortPairsDescending(memory, bytes, x, other, x, y, 64))
RATCHET_ENTRY run_grid(const ratchet_tensor* t, int64_t, const double*, int64_t) {
  void* given[] = {(void*)&t[0].data, (void*)&t[1].data};
  return hipLaunchCooperativeKernel((void*)k_grid, dim3(4), dim3(64), given, 0, 0) ? RATCHET_DECLINED : RATCHET_DONE;
}
RATCHET_ENTRY run_host(const ratchet_tensor* t, int64_t, const double*, int64_t) {
  float* held = nullptr;
  float on_host[64], value = 2.f;
  hipDeviceProp_t all;
  hipStream_t stream;
  hipEvent_t event;
  if (hipMalloc(&held, sizeof on_host) || hipGetDeviceProperties(&all, 0) || all.warpSize < 32) return 2;
  if (hipStreamCreate(&stream) || hipEventCreate(&event) || hipEventRecord(event, stream)) return 3;
  if (hipMemcpy(on_host, t[0].data, sizeof on_host, hipMemcpyDeviceToHost)) return 4;
  for (float& one : on_host) one *= value;
  if (hipMemcpyAsync(held, on_host, sizeof on_host, hipMemcpyHostToDevice, stream)) return 5;
  if (hipMemcpyToSymbol(HIP_SYMBOL(offset), &value, sizeof value)) return 6;
  k_device<<<1, 64, 0, stream>>>(held, (float*)t[1].data);
  if (all.warpSize < 0) printf("%d lanes\n", all.warpSize), std::printf("none\n");
  value = 0.5f;
  if (hipMemcpyToSymbol(HIP_SYMBOL(offset), &value, sizeof value) || hipFree(held)) return 7;
  return hipGetErrorString(hipSuccess)[0] ? RATCHET_DONE : 8;
}
