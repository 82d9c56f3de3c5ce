// A block's arrays: loads, stores, exchanges and sorts of several items a thread, by hipcub's names.
#ifndef RATCHET_HIPCUB_ITEMS_HPP
#define RATCHET_HIPCUB_ITEMS_HPP
namespace hipcub {
template <typename K> __device__ unsigned long long ratchet_bits(K key, int begin, int end);

enum BlockLoadAlgorithm {
  BLOCK_LOAD_DIRECT, BLOCK_LOAD_STRIPED, BLOCK_LOAD_VECTORIZE, BLOCK_LOAD_TRANSPOSE,
  BLOCK_LOAD_WARP_TRANSPOSE, BLOCK_LOAD_WARP_TRANSPOSE_TIMESLICED
};
enum BlockStoreAlgorithm {
  BLOCK_STORE_DIRECT, BLOCK_STORE_STRIPED, BLOCK_STORE_VECTORIZE, BLOCK_STORE_TRANSPOSE,
  BLOCK_STORE_WARP_TRANSPOSE, BLOCK_STORE_WARP_TRANSPOSE_TIMESLICED
};
// Where a thread's item lies: thread by thread, or striped over the block
template <int X, int Y, int Z, int N, bool Striped> struct RatchetItems {
  struct TempStorage {};
  RATCHET_IN RatchetItems() {}
  RATCHET_IN explicit RatchetItems(TempStorage&) {}
  RATCHET_IN static int place(int item) {
    const int own = threadIdx.x + X * (threadIdx.y + Y * threadIdx.z);
    return Striped ? item * X * Y * Z + own : own * N + item;
  }
};
template <typename T, int X, int N, BlockLoadAlgorithm A = BLOCK_LOAD_DIRECT, int Y = 1, int Z = 1>
struct BlockLoad : RatchetItems<X, Y, Z, N, A == BLOCK_LOAD_STRIPED> {
  using RatchetItems<X, Y, Z, N, A == BLOCK_LOAD_STRIPED>::RatchetItems;
  template <typename It> RATCHET_IN void Load(It from, T (&items)[N]) {
    for (int i = 0; i < N; ++i) items[i] = from[this->place(i)];
  }
  template <typename It> RATCHET_IN void Load(It from, T (&items)[N], int count) {
    for (int i = 0; i < N; ++i)
      if (this->place(i) < count) items[i] = from[this->place(i)];
  }
  template <typename It, typename V> RATCHET_IN void Load(It from, T (&items)[N], int count, V other) {
    for (int i = 0; i < N; ++i) items[i] = T(other);
    Load(from, items, count);
  }
};
template <typename T, int X, int N, BlockStoreAlgorithm A = BLOCK_STORE_DIRECT, int Y = 1, int Z = 1>
struct BlockStore : RatchetItems<X, Y, Z, N, A == BLOCK_STORE_STRIPED> {
  using RatchetItems<X, Y, Z, N, A == BLOCK_STORE_STRIPED>::RatchetItems;
  template <typename It> RATCHET_IN void Store(It to, T (&items)[N]) {
    for (int i = 0; i < N; ++i) to[this->place(i)] = items[i];
  }
  template <typename It> RATCHET_IN void Store(It to, T (&items)[N], int count) {
    for (int i = 0; i < N; ++i)
      if (this->place(i) < count) to[this->place(i)] = items[i];
  }
};
template <typename T, int X, int N, bool TimeSlicing = false, int Y = 1, int Z = 1> struct BlockExchange {
  struct TempStorage { T part[X * Y * Z * N]; };
  TempStorage& held;
  RATCHET_IN explicit BlockExchange(TempStorage& storage) : held(storage) {}
  template <typename From, typename To, typename Out> RATCHET_IN void moved(T (&in)[N], Out (&out)[N], From from, To to) {
    __syncthreads();
    for (int i = 0; i < N; ++i) held.part[from(i)] = in[i];
    __syncthreads();
    for (int i = 0; i < N; ++i) out[i] = held.part[to(i)];
  }
  RATCHET_IN static int blocked(int i) { return RatchetItems<X, Y, Z, N, false>::place(i); }
  RATCHET_IN static int striped(int i) { return RatchetItems<X, Y, Z, N, true>::place(i); }
  template <typename Out> RATCHET_IN void BlockedToStriped(T (&in)[N], Out (&out)[N]) { moved(in, out, blocked, striped); }
  template <typename Out> RATCHET_IN void StripedToBlocked(T (&in)[N], Out (&out)[N]) { moved(in, out, striped, blocked); }
  template <typename Out, typename At> RATCHET_IN void ScatterToBlocked(T (&in)[N], Out (&out)[N], At (&at)[N]) {
    moved(in, out, [&](int i) { return (int)at[i]; }, blocked);
  }
  template <typename Out, typename At> RATCHET_IN void ScatterToStriped(T (&in)[N], Out (&out)[N], At (&at)[N]) {
    moved(in, out, [&](int i) { return (int)at[i]; }, striped);
  }
};
struct NullType {};
template <typename K, int X, int N, typename V = NullType> struct BlockRadixSort {
  struct TempStorage {
    typename BlockExchange<K, X, N>::TempStorage keys;
    typename BlockExchange<V, X, N>::TempStorage values;
  };
  TempStorage& held;
  RATCHET_IN explicit BlockRadixSort(TempStorage& storage) : held(storage) {}
  // Each key goes behind those that precede it
  RATCHET_IN void sort(K (&keys)[N], V (&values)[N], int begin, int end, bool falls) {
    typedef BlockExchange<K, X, N> Keys;
    int at[N];
    __syncthreads();
    for (int i = 0; i < N; ++i) held.keys.part[Keys::blocked(i)] = keys[i];
    __syncthreads();
    for (int i = 0; i < N; ++i) {
      const unsigned long long own = ratchet_bits(keys[i], begin, end);
      at[i] = 0;
      for (int j = 0; j < X * N; ++j) {
        const unsigned long long other = ratchet_bits(held.keys.part[j], begin, end);
        at[i] += (falls ? other > own : other < own) || (other == own && j < Keys::blocked(i));
      }
    }
    Keys(held.keys).ScatterToBlocked(keys, keys, at);
    BlockExchange<V, X, N>(held.values).ScatterToBlocked(values, values, at);
  }
  RATCHET_IN void Sort(K (&keys)[N], V (&values)[N], int begin = 0, int end = 8 * sizeof(K)) {
    sort(keys, values, begin, end, false);
  }
  RATCHET_IN void SortDescending(K (&keys)[N], V (&values)[N], int begin = 0, int end = 8 * sizeof(K)) {
    sort(keys, values, begin, end, true);
  }
  RATCHET_IN void Sort(K (&keys)[N], int begin = 0, int end = 8 * sizeof(K)) {
    V none[N];
    sort(keys, none, begin, end, false);
  }
  RATCHET_IN void SortDescending(K (&keys)[N], int begin = 0, int end = 8 * sizeof(K)) {
    V none[N];
    sort(keys, none, begin, end, true);
  }
};
}  // namespace hipcub
#endif
