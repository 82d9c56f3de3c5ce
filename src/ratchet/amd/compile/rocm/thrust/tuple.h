// thrust's tuples, which are the standard's: kernels may call what is constexpr. ROCm's own thrust goes first.
#ifndef RATCHET_THRUST_TUPLE_H
#define RATCHET_THRUST_TUPLE_H
#if __has_include_next(<thrust/tuple.h>)
#include_next <thrust/tuple.h>
#else
#include <tuple>
namespace thrust {
using std::get;
using std::make_tuple;
using std::tie;
using std::tuple;
using std::tuple_element;
using std::tuple_size;
}  // namespace thrust
#endif
#endif
