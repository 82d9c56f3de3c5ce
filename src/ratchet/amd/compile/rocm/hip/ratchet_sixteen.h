// The functions that half and bfloat16 share, with CUDA's and HIP's names. T is the number, T2 a pair of it, N the
// compiler's own type, and H what their names say ("half" or "bfloat16").
#ifndef RATCHET_HIP_RATCHET_SIXTEEN_H
#define RATCHET_HIP_RATCHET_SIXTEEN_H
#define RATCHET_BOTH static inline __host__ __device__ __attribute__((always_inline))
#define RATCHET_GPU static inline __device__ __attribute__((always_inline))

#define RATCHET_NUMBER(T, T2, N)                                                                  \
  struct alignas(2) T {                                                                           \
    N data;                                                                                       \
    T() = default;                                                                                \
    constexpr __host__ __device__ T(N x) : data(x) {}                                             \
    constexpr __host__ __device__ T(float x) : data((N)x) {}                                      \
    constexpr __host__ __device__ T(double x) : data((N)x) {}                                     \
    template <typename I, typename std::enable_if<std::is_integral<I>::value, int>::type = 0>     \
    constexpr __host__ __device__ T(I x) : data((N)(float)x) {}                                   \
    template <typename F,                                                                         \
              typename std::enable_if<std::is_floating_point<F>::value, int>::type = 0>           \
    constexpr __host__ __device__ operator F() const { return (F)(float)data; }                   \
    template <typename I, typename std::enable_if<std::is_integral<I>::value &&                   \
                                                  !std::is_same<I, bool>::value, int>::type = 0>  \
    explicit constexpr __host__ __device__ operator I() const { return (I)(float)data; }          \
    explicit constexpr __host__ __device__ operator N() const { return data; }                    \
    __host__ __device__ T& operator+=(T b) { return data = (N)(data + b.data), *this; }           \
    __host__ __device__ T& operator-=(T b) { return data = (N)(data - b.data), *this; }           \
    __host__ __device__ T& operator*=(T b) { return data = (N)(data * b.data), *this; }           \
    __host__ __device__ T& operator/=(T b) { return data = (N)(data / b.data), *this; }           \
    __host__ __device__ T operator-() const { return T((N)-data); }                               \
    __host__ __device__ T operator+() const { return *this; }                                     \
    friend __host__ __device__ T operator+(T a, T b) { return T((N)(a.data + b.data)); }          \
    friend __host__ __device__ T operator-(T a, T b) { return T((N)(a.data - b.data)); }          \
    friend __host__ __device__ T operator*(T a, T b) { return T((N)(a.data * b.data)); }          \
    friend __host__ __device__ T operator/(T a, T b) { return T((N)(a.data / b.data)); }          \
    friend __host__ __device__ bool operator==(T a, T b) { return a.data == b.data; }             \
    friend __host__ __device__ bool operator!=(T a, T b) { return a.data != b.data; }             \
    friend __host__ __device__ bool operator<(T a, T b) { return a.data < b.data; }               \
    friend __host__ __device__ bool operator>(T a, T b) { return a.data > b.data; }               \
    friend __host__ __device__ bool operator<=(T a, T b) { return a.data <= b.data; }             \
    friend __host__ __device__ bool operator>=(T a, T b) { return a.data >= b.data; }             \
  };                                                                                              \
  struct alignas(4) T2 {                                                                          \
    T x, y;                                                                                       \
    T2() = default;                                                                               \
    constexpr __host__ __device__ T2(T a, T b) : x(a), y(b) {}                                    \
    friend __host__ __device__ T2 operator+(T2 a, T2 b) { return T2(a.x + b.x, a.y + b.y); }      \
    friend __host__ __device__ T2 operator-(T2 a, T2 b) { return T2(a.x - b.x, a.y - b.y); }      \
    friend __host__ __device__ T2 operator*(T2 a, T2 b) { return T2(a.x * b.x, a.y * b.y); }      \
    friend __host__ __device__ T2 operator/(T2 a, T2 b) { return T2(a.x / b.x, a.y / b.y); }      \
    __host__ __device__ T2& operator+=(T2 b) { return *this = *this + b; }                        \
    __host__ __device__ T2& operator*=(T2 b) { return *this = *this * b; }                        \
    __host__ __device__ T2 operator-() const { return T2(-x, -y); }                               \
  };

#define RATCHET_PAIRED(T, T2, name, of)                                                           \
  RATCHET_GPU T h##name(T a) { return T((float)of((float)a)); }                                   \
  RATCHET_GPU T2 h2##name(T2 a) { return T2(h##name(a.x), h##name(a.y)); }
#define RATCHET_COMPARED(T, T2, name, sign)                                                       \
  RATCHET_GPU bool __h##name(T a, T b) { return a sign b; }                                       \
  RATCHET_GPU bool __hb##name##2(T2 a, T2 b) { return a.x sign b.x && a.y sign b.y; }             \
  RATCHET_GPU T2 __h##name##2(T2 a, T2 b) {                                                       \
    return T2(T(a.x sign b.x ? 1.0f : 0.0f), T(a.y sign b.y ? 1.0f : 0.0f));                      \
  }
#define RATCHET_SHUFFLED(T, name, By)                                                             \
  RATCHET_GPU T name(T v, By by, int width = warpSize) {                                          \
    int bits = 0;                                                                                 \
    __builtin_memcpy(&bits, &v, sizeof(T));                                                       \
    bits = name(bits, by, width);                                                                 \
    __builtin_memcpy(&v, &bits, sizeof(T));                                                       \
    return v;                                                                                     \
  }                                                                                               \
  template <typename M> RATCHET_GPU T name##_sync(M, T v, By by, int width = warpSize) {          \
    return name(v, by, width);                                                                    \
  }
#define RATCHET_SHUFFLES(T)                                                                       \
  RATCHET_SHUFFLED(T, __shfl, int) RATCHET_SHUFFLED(T, __shfl_xor, int)                           \
  RATCHET_SHUFFLED(T, __shfl_down, unsigned) RATCHET_SHUFFLED(T, __shfl_up, unsigned)
// A loop of compare-and-swap on the word that holds the number
#define RATCHET_ATOMIC(T, T2)                                                                     \
  RATCHET_GPU T2 atomicAdd(T2* place, T2 v) {                                                     \
    unsigned *word = (unsigned*)place, old = *word, seen, fresh;                                  \
    T2 was;                                                                                       \
    do {                                                                                          \
      seen = old;                                                                                 \
      __builtin_memcpy(&was, &seen, 4);                                                           \
      const T2 sum = was + v;                                                                     \
      __builtin_memcpy(&fresh, &sum, 4);                                                          \
      old = atomicCAS(word, seen, fresh);                                                         \
    } while (old != seen);                                                                        \
    return was;                                                                                   \
  }                                                                                               \
  RATCHET_GPU T atomicAdd(T* place, T v) {                                                        \
    const bool high = (size_t)place & 2;                                                          \
    unsigned *word = (unsigned*)((char*)place - (high ? 2 : 0)), old = *word, seen;               \
    T was;                                                                                        \
    do {                                                                                          \
      seen = old;                                                                                 \
      const unsigned short own = high ? seen >> 16 : seen;                                        \
      __builtin_memcpy(&was, &own, 2);                                                            \
      const T sum = was + v;                                                                      \
      unsigned short bits;                                                                        \
      __builtin_memcpy(&bits, &sum, 2);                                                           \
      old = atomicCAS(word, seen, high ? (seen & 0xffffu) | (unsigned)bits << 16                  \
                                       : (seen & 0xffff0000u) | bits);                            \
    } while (old != seen);                                                                        \
    return was;                                                                                   \
  }                                                                                               \
  RATCHET_GPU T2 unsafeAtomicAdd(T2* place, T2 v) { return atomicAdd(place, v); }                 \
  RATCHET_GPU T __ldg(const T* place) { return *place; }                                          \
  RATCHET_GPU T2 __ldg(const T2* place) { return *place; }

#define RATCHET_SIXTEEN(T, T2, H)                                                                 \
  RATCHET_BOTH T __float2##H(float a) { return T(a); }                                            \
  RATCHET_BOTH T __float2##H##_rn(float a) { return T(a); }                                       \
  RATCHET_BOTH T __double2##H(double a) { return T(a); }                                          \
  RATCHET_BOTH T __int2##H##_rn(int a) { return T((float)a); }                                    \
  RATCHET_BOTH T __uint2##H##_rn(unsigned a) { return T((float)a); }                              \
  RATCHET_BOTH T __ushort_as_##H(unsigned short a) {                                              \
    T v;                                                                                          \
    return __builtin_memcpy(&v, &a, 2), v;                                                        \
  }                                                                                               \
  RATCHET_BOTH T __short_as_##H(short a) { return __ushort_as_##H((unsigned short)a); }           \
  RATCHET_BOTH unsigned short __##H##_as_ushort(T a) {                                            \
    unsigned short v;                                                                             \
    return __builtin_memcpy(&v, &a, 2), v;                                                        \
  }                                                                                               \
  RATCHET_BOTH short __##H##_as_short(T a) { return (short)__##H##_as_ushort(a); }                \
  RATCHET_BOTH T __hadd(T a, T b) { return a + b; }                                               \
  RATCHET_BOTH T __hsub(T a, T b) { return a - b; }                                               \
  RATCHET_BOTH T __hmul(T a, T b) { return a * b; }                                               \
  RATCHET_BOTH T __hdiv(T a, T b) { return a / b; }                                               \
  RATCHET_BOTH T __hneg(T a) { return -a; }                                                       \
  RATCHET_BOTH T __habs(T a) { return (float)a < 0.0f ? -a : a; }                                 \
  RATCHET_GPU T __hfma(T a, T b, T c) { return T(__builtin_fmaf((float)a, (float)b, (float)c)); } \
  RATCHET_GPU T __hmax(T a, T b) { return T(__builtin_fmaxf((float)a, (float)b)); }               \
  RATCHET_GPU T __hmin(T a, T b) { return T(__builtin_fminf((float)a, (float)b)); }               \
  RATCHET_GPU bool __hisnan(T a) { return (float)a != (float)a; }                                 \
  RATCHET_GPU int __hisinf(T a) { return __builtin_isinf((float)a); }                             \
  RATCHET_BOTH T2 __hadd2(T2 a, T2 b) { return a + b; }                                           \
  RATCHET_BOTH T2 __hsub2(T2 a, T2 b) { return a - b; }                                           \
  RATCHET_BOTH T2 __hmul2(T2 a, T2 b) { return a * b; }                                           \
  RATCHET_BOTH T2 __h2div(T2 a, T2 b) { return a / b; }                                           \
  RATCHET_BOTH T2 __hneg2(T2 a) { return -a; }                                                    \
  RATCHET_BOTH T2 __habs2(T2 a) { return T2(__habs(a.x), __habs(a.y)); }                          \
  RATCHET_GPU T2 __hfma2(T2 a, T2 b, T2 c) {                                                      \
    return T2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));                                      \
  }                                                                                               \
  RATCHET_GPU T2 __hmax2(T2 a, T2 b) { return T2(__hmax(a.x, b.x), __hmax(a.y, b.y)); }           \
  RATCHET_GPU T2 __hmin2(T2 a, T2 b) { return T2(__hmin(a.x, b.x), __hmin(a.y, b.y)); }           \
  RATCHET_COMPARED(T, T2, eq, ==) RATCHET_COMPARED(T, T2, ne, !=)                                 \
  RATCHET_COMPARED(T, T2, lt, <) RATCHET_COMPARED(T, T2, gt, >)                                   \
  RATCHET_COMPARED(T, T2, le, <=) RATCHET_COMPARED(T, T2, ge, >=)                                 \
  RATCHET_PAIRED(T, T2, exp, expf) RATCHET_PAIRED(T, T2, exp2, exp2f)                             \
  RATCHET_PAIRED(T, T2, exp10, exp10f) RATCHET_PAIRED(T, T2, log, logf)                           \
  RATCHET_PAIRED(T, T2, log2, log2f) RATCHET_PAIRED(T, T2, log10, log10f)                         \
  RATCHET_PAIRED(T, T2, sqrt, sqrtf) RATCHET_PAIRED(T, T2, rsqrt, rsqrtf)                         \
  RATCHET_PAIRED(T, T2, sin, sinf) RATCHET_PAIRED(T, T2, cos, cosf)                               \
  RATCHET_PAIRED(T, T2, tanh, tanhf) RATCHET_PAIRED(T, T2, rcp, 1.0f / )                          \
  RATCHET_PAIRED(T, T2, floor, floorf) RATCHET_PAIRED(T, T2, ceil, ceilf)                         \
  RATCHET_PAIRED(T, T2, rint, rintf) RATCHET_PAIRED(T, T2, trunc, truncf)                         \
  RATCHET_SHUFFLES(T) RATCHET_SHUFFLES(T2) RATCHET_ATOMIC(T, T2)
#endif
