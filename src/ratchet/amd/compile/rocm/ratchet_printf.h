// printf on the GPU: each call notes its format and values, and the host prints them after the launch.
#ifndef RATCHET_RATCHET_PRINTF_H
#define RATCHET_RATCHET_PRINTF_H
#ifdef __HIP_DEVICE_COMPILE__
#include <type_traits>
#define RATCHET_SAID_WORDS 16384
// The first word counts those that were asked for, also beyond the end. A note: its values' count, the format's
// address, and for each value its kind and 64 bits.
static __device__ unsigned ratchet_said[RATCHET_SAID_WORDS];
template <typename T> static __device__ inline void ratchet_note(unsigned* to, T v) {
  unsigned long long bits = 0;
  if constexpr (std::is_floating_point<T>::value) {
    const double wide = v;
    __builtin_memcpy(&bits, &wide, 8), to[0] = 2;
  } else if constexpr (std::is_pointer<T>::value) {
    typedef typename std::remove_cv<typename std::remove_pointer<T>::type>::type To;
    bits = (unsigned long long)v, to[0] = std::is_same<To, char>::value ? 4 : 3;
  } else if constexpr (std::is_integral<T>::value || std::is_enum<T>::value) {
    bits = (unsigned long long)v;
    to[0] = std::is_unsigned<T>::value;
  } else {
    const double wide = (double)v;
    __builtin_memcpy(&bits, &wide, 8), to[0] = 2;
  }
  to[1] = (unsigned)bits, to[2] = (unsigned)(bits >> 32);
}
template <typename... Given>
static __device__ inline int ratchet_printf(const char* format, Given... given) {
  constexpr unsigned need = 3 + 3 * sizeof...(Given);
  unsigned at = __hip_atomic_fetch_add(ratchet_said, need, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT) + 1;
  if (at + need > RATCHET_SAID_WORDS) return -1;
  ratchet_said[at] = sizeof...(Given);
  ratchet_said[at + 1] = (unsigned)(unsigned long long)format;
  ratchet_said[at + 2] = (unsigned)((unsigned long long)format >> 32);
  at += 3;
  ((ratchet_note(ratchet_said + at, given), at += 3), ...);
  return sizeof...(Given);
}
// The host's code is read here too, and not compiled
template <typename... Given> static __host__ inline int ratchet_printf(const char*, Given...) { return 0; }
namespace std {
using ::ratchet_printf;
}
#define printf(...) ratchet_printf(__VA_ARGS__)
#endif
#endif
