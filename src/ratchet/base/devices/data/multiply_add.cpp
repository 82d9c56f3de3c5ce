// Measures multiply-adds in registers: `multiply_add THREADS SECONDS` prints a line `TYPE FLOP/S`
// for each type that this CPU has instructions for.
//
// Each thread times bursts of half a millisecond, all threads together. A rate is the sum over the
// threads of the median of the fastest quarter of their bursts. On a busy machine, a burst fits
// into a moment in which its thread has a core.
//
// Instructions: Intel's Architecture Instruction Set Extensions Programming Reference (319433) and
// Arm's Architecture Reference Manual (DDI 0487). Tiles need a permission of Linux: its
// Documentation/arch/x86/xstate.rst.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#if defined(__AVX512BF16__) || defined(__AMX_BF16__)
#include <immintrin.h>
#endif
#if defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

typedef float Vector __attribute__((vector_size(VECTOR_BYTES)));
constexpr int SUMS = 12;  // Independent sums: four cycles of latency, two instructions a cycle
constexpr double BURST_S = 5e-4;
static volatile float sink;

static void fp32(long rounds) {
  const Vector half = Vector{} + 0.5f, one = Vector{} + 1.0f;
  Vector sum[SUMS];
  for (Vector& each : sum) each = one;
  for (long round = 0; round < rounds; ++round)
#pragma GCC unroll 12
    for (int at = 0; at < SUMS; ++at) sum[at] = sum[at] * half + one;
  for (const Vector& each : sum) sink = each[0];
}
constexpr double FP32_FLOPS = 2.0 * SUMS * VECTOR_BYTES / 4;

#if defined(__AVX512BF16__)
static void bf16(long rounds) {
  const __m512bh one = (__m512bh)_mm512_set1_epi32(0x3f803f80);
  __m512 sum[SUMS];
  for (__m512& each : sum) each = _mm512_setzero_ps();
  for (long round = 0; round < rounds; ++round)
#pragma GCC unroll 12
    for (int at = 0; at < SUMS; ++at) sum[at] = _mm512_dpbf16_ps(sum[at], one, one);
  for (const __m512& each : sum) sink = each[0];
}
constexpr double BF16_FLOPS = 2.0 * SUMS * 32;
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
static void bf16(long rounds) {
  const bfloat16x8_t one = vreinterpretq_bf16_u16(vdupq_n_u16(0x3f80));
  float32x4_t sum[SUMS];
  for (float32x4_t& each : sum) each = vdupq_n_f32(0.0f);
  for (long round = 0; round < rounds; ++round)
#pragma GCC unroll 12
    for (int at = 0; at < SUMS; ++at) sum[at] = vbfmmlaq_f32(sum[at], one, one);
  for (const float32x4_t& each : sum) sink = each[0];
}
constexpr double BF16_FLOPS = 2.0 * SUMS * 16;  // A 2 x 4 by 4 x 2 product
#endif

#if defined(__AMX_BF16__)
static bool tiles_permitted() {
  return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) == 0;
}

static void bf16_tiles(long rounds) {  // Four sums, two tiles of each operand
  alignas(64) unsigned char shapes[64] = {1};  // Palette 1
  for (int tile = 0; tile < 8; ++tile) {
    shapes[16 + 2 * tile] = 64;  // Bytes of a row
    shapes[48 + tile] = 16;      // Rows
  }
  _tile_loadconfig(shapes);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (long round = 0; round < rounds; ++round) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
}
constexpr double TILES_FLOPS = 2.0 * 4 * 16 * 16 * 32;
#endif

using Clock = std::chrono::steady_clock;

static double seconds_since(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

// Return this thread's rate over a time: the median of the fastest quarter of its bursts.
static double rate_of(void (*burst)(long), double flops, double limit_s) {
  long rounds = 1000;
  for (;; rounds *= 2) {  // An interrupted one only makes the bursts shorter than they should be
    const auto began = Clock::now();
    burst(rounds);
    if (seconds_since(began) > BURST_S / 2) break;
  }
  std::vector<double> times_s;
  const auto all = Clock::now();
  while (times_s.size() < 8 || seconds_since(all) < limit_s) {
    const auto began = Clock::now();
    burst(rounds);
    times_s.push_back(seconds_since(began));
  }
  std::sort(times_s.begin(), times_s.end());
  return flops * rounds / times_s[times_s.size() / 8];
}

static void measure(const char* type, void (*burst)(long), double flops, int count,
                    double limit_s) {
  std::vector<double> rates(count);
  std::vector<std::thread> threads;
  for (double& rate : rates)
    threads.emplace_back([=, &rate] { rate = rate_of(burst, flops, limit_s); });
  double total = 0.0;
  for (std::thread& thread : threads) thread.join();
  for (double rate : rates) total += rate;
  std::printf("%s %.6g\n", type, total);
  std::fflush(stdout);
}

int main(int count, char** given) {
  if (count != 3) return 2;
  const int threads = std::atoi(given[1]);
  const double limit_s = std::atof(given[2]);
  measure("fp32", fp32, FP32_FLOPS, threads, limit_s);
#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  measure("bf16", bf16, BF16_FLOPS, threads, limit_s);
#endif
#if defined(__AMX_BF16__)
  if (tiles_permitted()) measure("bf16", bf16_tiles, TILES_FLOPS, threads, limit_s);
#endif
  return 0;
}
