// Attention, forward: o = softmax(scale q k^T [causal]) v and lse = log sum exp, without whole scores.
//
//   tensors  q [B,H,T,D], k v [B,G,S,D]; outputs o [B,H,T,D], lse [B,H,T] fp32, contiguous
//   scalars  causal (0 or 1; query t sees keys 0..t), scale
// Online softmax after Milakov and Gimelshein (arXiv:1805.02867) and FlashAttention-2 (arXiv:2307.08691).
// Products of fp32 keep a query to a row (attention_forward_rows.h). Those of bf16 keep everything transposed, a query to a
// column, so that maxima and sums run down registers:
//   S^T = K Q^T,  P^T = exp(S^T - max),  O^T = V^T P^T.
#include <omp.h>

#include "attention_forward_rows.h"
#include "attention_pack.h"

template <class In, class E>
struct Forward {
    Shape s;
    const ratchet_tensor* t;
    E *key_rows, *value_columns;  // each [B*G][key blocks][64*width]

    // One thread's working memory: one block of queries.
    struct Work {
        E *rows, *pairs, *query_panels, *probability;
        float *score, *sum;
        alignas(64) float top[BLOCK], total[BLOCK], factor[BLOCK];
        void carve(Carver& from, int64_t block) {
            rows = from.take<E>(block);
            pairs = from.take<E>(block);
            query_panels = from.take<E>(block);
            probability = from.take<E>(BLOCK * BLOCK);
            score = from.take<float>(BLOCK * BLOCK);
            sum = from.take<float>(block);
        }
    };

    void carve_shared(Carver& from) {
        const int64_t total = s.batch * s.kv_heads * s.key_blocks() * s.block_elements();
        key_rows = from.take<E>(total);
        value_columns = from.take<E>(total);
    }

    void pack_block(int64_t item, Work& w) const {
        const int64_t j = item % s.key_blocks(), head = item / s.key_blocks();
        const int64_t b = head / s.kv_heads, g = head % s.kv_heads, at = item * s.block_elements();
        pack_rows(head_of<In>(t[1], b, g), j * BLOCK, s.width, key_rows + at);
        pack_rows(head_of<In>(t[2], b, g), j * BLOCK, s.width, w.rows);
        pack_pairs(w.rows, s.width, w.pairs);
        transpose_pairs(w.pairs, s.width, value_columns + at);
    }

    // S^T of `panels` panels from `at` on and `keys` keys from `key` on; -inf where a query must not see
    // a key. `q0` is the first of these queries.
    void scores(const E* rows, int64_t key, int64_t keys, int64_t q0, int64_t at, int64_t panels,
                Work& w) const {
        for (int64_t r = 0; r < keys; r += STRIP) {
            const int64_t skip = panels_before(s.causal, key + r, q0, panels), p = at + skip;
            if (skip < panels)
                matmul(rows + r * s.width, s.width, w.query_panels + p * PANEL * s.width, PANEL * s.width,
                       w.score + r * BLOCK + p * PANEL, BLOCK, STRIP, panels - skip,
                       s.width / Pair<E>::size, false);
        }
        const int64_t unmasked = smaller(s.keys, s.causal ? q0 + 1 : s.keys) - key;
        for (int64_t r = bigger(0, unmasked); r < keys; ++r) {
            const int64_t first = key + r >= s.keys ? BLOCK : s.causal ? key + r - q0 : 0;
            for (int64_t p = 0; p < panels; ++p) {
                float* score = w.score + r * BLOCK + (at + p) * PANEL;
                store(score, from_lane(first - p * PANEL, load(score), -INFINITY));
            }
        }
    }

    // P^T of one panel of queries, the running maximum and sum, and the factor for what was summed.
    // The maximum is taken off before scaling, so that nothing is rounded at the size of the logits.
    static void softmax(int64_t p, int64_t keys, float scale_of_scores, bool first, Work& w) {
        const float* score = w.score + p * PANEL;
        E* probability = w.probability + p * PANEL * BLOCK;
        floats top = first ? splat(-INFINITY) : load(w.top + p * PANEL), other = top;
        for (int64_t r = 0; r < keys; r += 2) {
            top = larger(top, load(score + r * BLOCK));
            other = larger(other, load(score + (r + 1) * BLOCK));
        }
        top = larger(top, other);
        const floats scale = splat(scale_of_scores);
        floats even_sum = splat(0.0f), odd_sum = even_sum;
        for (int64_t r = 0; r < keys; r += 2) {
            const floats even = exp_of((load(score + r * BLOCK) - top) * scale);
            const floats odd = exp_of((load(score + (r + 1) * BLOCK) - top) * scale);
            even_sum = even_sum + even;
            odd_sum = odd_sum + odd;
            store_pair(probability + r * PANEL, even, odd);
        }
        floats total = even_sum + odd_sum;
        if (!first) {
            const floats factor = exp_of((load(w.top + p * PANEL) - top) * scale);
            total = multiply_add(load(w.total + p * PANEL), factor, total);
            store(w.factor + p * PANEL, factor);
        }
        store(w.total + p * PANEL, total);
        store(w.top + p * PANEL, top);
    }

    void rescale(int64_t p, Work& w) const {
        const floats factor = load(w.factor + p * PANEL);
        for (int64_t d = 0; d < s.width; ++d) {
            float* at = w.sum + d * BLOCK + p * PANEL;
            store(at, load(at) * factor);
        }
    }

    static bool changed(int64_t p, const Work& w) {
        for (int64_t q = p * PANEL; q < (p + 1) * PANEL; ++q)
            if (w.factor[q] != 1.0f) return true;
        return false;
    }

    // One block of keys with two panels of queries: small enough for scores and operands to stay in L1.
    void key_block(int64_t at, int64_t key, int64_t limit, int64_t q0, int64_t p, int64_t panels,
                   Work& w) const {
        const int64_t seen = s.causal ? smaller(limit, q0 + panels * PANEL) : limit;
        const int64_t keys = round_up(smaller(BLOCK, seen - key), STRIP);
        if (keys <= 0) return;
        scores(key_rows + at, key, keys, q0, p, panels, w);
        for (int64_t i = p; i < p + panels; ++i) {
            softmax(i, keys, s.scale, key == 0, w);
            if (key > 0 && changed(i, w)) rescale(i, w);
        }
        matmul(value_columns + at, BLOCK, w.probability + p * BLOCK * PANEL, BLOCK * PANEL,
               w.sum + p * PANEL, BLOCK, s.width, panels, keys / Pair<E>::size, key > 0);
    }

    void query_block(int64_t b, int64_t h, int64_t q0, Work& w) const {
        const int64_t head = (b * s.kv_heads + h / s.group()) * s.key_blocks();
        const int64_t panels = panels_of(q0, s.queries);
        const int64_t limit = s.causal ? smaller(s.keys, q0 + BLOCK) : s.keys;
        pack_rows(head_of<In>(t[0], b, h), q0, s.width, w.rows);
        pack_panels(w.rows, s.width, w.query_panels);
        for (int64_t key = 0; key < limit; key += BLOCK)
            for (int64_t p = 0; p < panels; p += 2)
                key_block((head + key / BLOCK) * s.block_elements(), key, limit, q0 + p * PANEL, p,
                          smaller(2, panels - p), w);
        finish(b, h, q0, w);
    }

    void finish(int64_t b, int64_t h, int64_t q0, Work& w) const {
        float* lse = static_cast<float*>(t[4].data) + (b * s.heads + h) * s.queries + q0;
        const int64_t count = smaller(BLOCK, s.queries - q0);
        for (int64_t q = 0; q < count; ++q) {
            w.factor[q] = 1.0f / w.total[q];
            lse[q] = w.top[q] * s.scale + std::log(w.total[q]);
        }
        write_transposed(w.sum, w.factor, head_of<In>(t[3], b, h), q0);
    }

    void whole_head(int64_t kv, Work& w) const {
        const int64_t b = kv / s.kv_heads, g = kv % s.kv_heads;
        for (int64_t j = 0; j < s.key_blocks(); ++j) pack_block(kv * s.key_blocks() + j, w);
        for (int64_t h = g * s.group(); h < (g + 1) * s.group(); ++h)
            for (int64_t i = 0; i < s.query_blocks(); ++i) query_block(b, h, i * BLOCK, w);
    }

    int64_t run() {
        static thread_local Scratch scratch;
        const int threads = omp_get_max_threads();
        Carver measure{nullptr, 0};
        carve_shared(measure);
        Work unused;
        for (int i = 0; i < threads; ++i) unused.carve(measure, s.block_elements());
        char* memory = scratch.at_least(measure.used);
        if (!memory) return RATCHET_DECLINED;
        Carver from{memory, 0};
        carve_shared(from);
        const int64_t shared = from.used, one = (measure.used - shared) / threads;
        const int64_t packs = s.batch * s.kv_heads * s.key_blocks();
        const int64_t blocks = s.query_blocks(), items = s.batch * s.heads * blocks;
#pragma omp parallel num_threads(threads)
        {
            Work w;
            Carver mine{memory, shared + one * omp_get_thread_num()};
            w.carve(mine, s.block_elements());
#if defined(RATCHET_ISA_AMX)
            AmxScope tiles(amx_full_config());
#endif
            // With heads enough, a thread packs and works through its own, and nobody waits: on a
            // busy machine a barrier costs a scheduler's tick.
            if (s.batch * s.kv_heads >= 2 * threads) {
#pragma omp for schedule(dynamic, 1) nowait
                for (int64_t kv = 0; kv < s.batch * s.kv_heads; ++kv) whole_head(kv, w);
            } else {
#pragma omp for schedule(static)
                for (int64_t item = 0; item < packs; ++item) pack_block(item, w);
#pragma omp for schedule(dynamic, 1) nowait
                for (int64_t item = 0; item < items; ++item) {
                    const int64_t head = item / blocks, last = blocks - 1 - item % blocks;  // longest first
                    query_block(head / s.heads, head % s.heads, last * BLOCK, w);
                }
            }
        }
        return RATCHET_DONE;
    }
};

RATCHET_ENTRY attention_forward(const ratchet_tensor* t, int64_t count, const double* scalars,
                                        int64_t scalar_count) {
    Shape s;
    if (count != 5 || !shape_of(t[0], t[1], t[2], scalars, scalar_count, &s)) return RATCHET_DECLINED;
    if (!is_head_tensor(t[3], t[0].dtype) || !same_size(t[3], t[0])) return RATCHET_DECLINED;
    if (t[4].dtype != RATCHET_F32 || !ratchet_is_contiguous(&t[4]) ||
        ratchet_numel(&t[4]) != s.batch * s.heads * s.queries)
        return RATCHET_DECLINED;
#if defined(RATCHET_ISA_AMX)
    if (!amx_permitted()) return RATCHET_DECLINED;
#endif
    if (t[0].dtype == RATCHET_F32) return ForwardRows<float>{s, t}.run();
#if defined(RATCHET_BF16_PRODUCTS)
    return Forward<uint16_t, uint16_t>{s, t, nullptr, nullptr}.run();
#else
    return ForwardRows<uint16_t>{s, t}.run();
#endif
}
