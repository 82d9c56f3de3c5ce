// thrust's pairs, which are the standard's: kernels may call what is constexpr. ROCm's own thrust goes first.
#ifndef RATCHET_THRUST_PAIR_H
#define RATCHET_THRUST_PAIR_H
#if __has_include_next(<thrust/pair.h>)
#include_next <thrust/pair.h>
#else
#include <utility>
namespace thrust {
using std::make_pair;
using std::pair;
}  // namespace thrust
#endif
#endif
