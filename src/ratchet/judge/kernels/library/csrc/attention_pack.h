// Attention's tensors as blocks of 64 rows (queries or keys), in the layouts that the products read.
//
//   rows        [64][width]                      A, summed over features
//   panels      [64/16][width/PAIR][16][PAIR]    B, summed over features; rows become columns
//   pairs       [width/16][64/PAIR][16][PAIR]    B, summed over rows
//   transposed  [width][64]                      A, summed over rows
// `width` is the head size rounded up to 32; everything beyond the tensor is zero.
#pragma once
#include <cstdlib>

#include "attention_matmul.h"
#include "ratchet_abi.h"

static const int64_t BLOCK = 64;
static const int64_t BLOCK_PANELS = BLOCK / PANEL;

#if defined(RATCHET_ISA_AMX)
static const int64_t STRIP = 32;  // two tiles of rows, and the 32 bf16 that one tile sums over
#else
static const int64_t STRIP = 16;
#endif

RATCHET_INLINE int64_t round_up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }
RATCHET_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
RATCHET_INLINE int64_t bigger(int64_t a, int64_t b) { return a > b ? a : b; }

// One head of a [B, H, L, D] tensor.
template <class In>
struct Head {
    In* data;
    int64_t row_stride, rows, features;
};

template <class In>
static inline Head<In> head_of(const ratchet_tensor& t, int64_t batch, int64_t head) {
    In* data = static_cast<In*>(t.data) + batch * t.stride[0] + head * t.stride[1];
    return {data, t.stride[2], t.size[2], t.size[3]};
}

template <class In, class E>
static inline void pack_rows(const Head<In>& head, int64_t first, int64_t width, E* out) {
    for (int64_t r = 0; r < BLOCK; ++r, out += width) {
        const bool inside = first + r < head.rows;
        const In* from = head.data + (first + r) * head.row_stride;
        for (int64_t d = 0; d < width; d += PANEL) {
            const int64_t count = inside ? bigger(0, smaller(PANEL, head.features - d)) : 0;
            store(out + d, count == 0 ? splat(0.0f) : load_some(from + d, count));
        }
    }
}

template <class E>
static inline void pack_panels(const E* rows, int64_t width, E* out) {
    const int64_t words = width / Pair<E>::size, row_words = words;
    for (int64_t p = 0; p < BLOCK_PANELS; ++p)
        for (int64_t w = 0; w < words; w += 16)
            transpose_words(rows + p * PANEL * width + w * Pair<E>::size, row_words,
                            out + p * PANEL * width + w * PANEL * Pair<E>::size, PANEL);
}

template <class E>
static inline void pack_pairs(const E* rows, int64_t width, E* out) {
    for (int64_t d = 0; d < width; d += PANEL, out += BLOCK * PANEL)
        for (int64_t r = 0; r < BLOCK; r += 2)
            store_pair(out + r * PANEL, load(rows + r * width + d), load(rows + (r + 1) * width + d));
}

template <class E>
static inline void transpose_pairs(const E* pairs, int64_t width, E* out) {
    const int64_t words = BLOCK / Pair<E>::size;
    for (int64_t d = 0; d < width; d += PANEL)
        for (int64_t w = 0; w < words; w += 16)
            transpose_words(pairs + d * BLOCK + w * PANEL * Pair<E>::size, PANEL,
                            out + d * BLOCK + w * Pair<E>::size, words);
}

// Writes [width][64] sums to the rows of `head` from `first` on, each times `factor` of its row.
template <class In>
static inline void write_transposed(const float* sums, const float* factor, const Head<In>& head,
                                    int64_t first) {
    alignas(64) float rows[PANEL * PANEL];
    const int64_t count = smaller(BLOCK, head.rows - first);
    for (int64_t r = 0; r < count; r += PANEL)
        for (int64_t d = 0; d < head.features; d += PANEL) {
            transpose_words(sums + d * BLOCK + r, BLOCK, rows, PANEL);
            for (int64_t i = 0; i < smaller(PANEL, count - r); ++i)
                store_some(head.data + (first + r + i) * head.row_stride + d,
                           load(rows + i * PANEL) * splat(factor[r + i]), head.features - d);
        }
}

// Writes [rows][width] sums, times `factor`, to the rows of `head` from `first` on.
template <class In>
static inline void write_rows(const float* sums, int64_t width, float factor, const Head<In>& head,
                              int64_t first) {
    for (int64_t r = 0; r < smaller(BLOCK, head.rows - first); ++r)
        for (int64_t d = 0; d < head.features; d += PANEL)
            store_some(head.data + (first + r) * head.row_stride + d,
                       load(sums + r * width + d) * splat(factor), head.features - d);
}

// Memory that a calling thread keeps between calls; grown, never shrunk.
class Scratch {
  public:
    ~Scratch() { std::free(memory); }
    char* at_least(int64_t bytes) {
        if (bytes <= size) return memory;
        std::free(memory);
        memory = static_cast<char*>(std::aligned_alloc(4096, round_up(bytes, 4096)));
        size = memory ? bytes : 0;
        return memory;
    }

  private:
    char* memory = nullptr;
    int64_t size = 0;
};

// Hands out parts of one allocation, each on its own cache line; with no base it only counts.
struct Carver {
    char* base;
    int64_t used;
    template <class T>
    T* take(int64_t count) {
        T* part = reinterpret_cast<T*>(base + used);
        used += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
        return part;
    }
};

struct Shape {
    int64_t batch, heads, kv_heads, queries, keys, features, width;
    bool causal;
    float scale;
    int64_t group() const { return heads / kv_heads; }
    int64_t query_blocks() const { return (queries + BLOCK - 1) / BLOCK; }
    int64_t key_blocks() const { return (keys + BLOCK - 1) / BLOCK; }
    int64_t block_elements() const { return BLOCK * width; }
};

// The panels of the block at `first` that hold queries, in whole strips of the summed dimension.
static inline int64_t panels_of(int64_t first, int64_t queries) {
    return round_up(smaller(BLOCK, queries - first), STRIP) / PANEL;
}

// The panels of queries from `q0` on that see no key from `key` on: causal attention skips them.
static inline int64_t panels_before(bool causal, int64_t key, int64_t q0, int64_t panels) {
    if (!causal || key <= q0) return 0;
    return smaller(panels, (key - q0) / STRIP * (STRIP / PANEL));
}

static inline bool is_head_tensor(const ratchet_tensor& t, int64_t dtype) {
    if (t.ndim != 4 || t.dtype != dtype) return false;
    for (int i = 0; i < 4; ++i)
        if (t.size[i] < 1) return false;
    return t.stride[3] == 1 || t.size[3] == 1;
}

static inline bool same_size(const ratchet_tensor& a, const ratchet_tensor& b) {
    for (int i = 0; i < 4; ++i)
        if (a.size[i] != b.size[i]) return false;
    return true;
}

// Fills `shape` from q, k, v; false for what this kernel does not take.
static inline bool shape_of(const ratchet_tensor& q, const ratchet_tensor& k, const ratchet_tensor& v,
                            const double* scalars, int64_t scalar_count, Shape* shape) {
    if (q.dtype != RATCHET_F32 && q.dtype != RATCHET_BF16) return false;
    if (!is_head_tensor(q, q.dtype) || !is_head_tensor(k, q.dtype) || !is_head_tensor(v, q.dtype))
        return false;
    if (!same_size(k, v) || q.size[0] != k.size[0] || q.size[3] != k.size[3]) return false;
    if (q.size[1] % k.size[1] != 0 || q.size[3] > 256 || scalar_count != 2) return false;
    if (!(scalars[1] > 0 && scalars[1] < 1e30)) return false;
    *shape = {q.size[0], q.size[1], k.size[1], q.size[2], k.size[2], q.size[3],
              round_up(q.size[3], 32), scalars[0] != 0, static_cast<float>(scalars[1])};
    return true;
}
