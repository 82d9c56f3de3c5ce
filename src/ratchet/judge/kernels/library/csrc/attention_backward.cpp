// Attention, backward: dq, dk, dv from do, recomputing the probabilities from lse, without whole scores.
//
//   tensors  do q [B,H,T,D], k v [B,G,S,D], o [B,H,T,D], lse [B,H,T] fp32 contiguous; outputs dq dk dv
//   scalars  causal (0 or 1), scale
// FlashAttention-2's backward (arXiv:2307.08691, algorithm 2). Products of fp32 keep a query to a row
// (attention_backward_rows.h). Those of bf16 keep a query to a column:
//   P^T = exp(S^T - lse), dS^T = P^T (dP^T - delta), dV += P^T dO, dK += dS^T Q, dQ^T += K^T dS^T
// with S^T = K Q^T, dP^T = V dO^T, delta = rowsum(dO o). One task owns a head's keys (all of a group's
// query heads), or a part of them; dq of the parts is added in order, so that results repeat bit for bit.
#include <omp.h>

#include <initializer_list>

#include "attention_backward_rows.h"
#include "attention_pack.h"

template <class In, class E>
struct Backward {
    Shape s;
    const ratchet_tensor* t;
    int64_t parts;  // of the keys of one head
    // Keys: [B*G][key blocks][64*width]. Queries: [B*H][query blocks][64*width].
    E *key_rows, *value_rows, *key_columns, *query_panels, *query_pairs, *grad_panels, *grad_pairs;
    float *lse, *delta;  // [B*H][query blocks][64]; lse is +inf beyond the last query
    float* query_sums;   // [parts][B*H][query blocks][width][64]

    struct Work {
        E *rows, *pairs, *probability, *score_grad, *score_grad_pairs;
        float *score, *probability_grad, *key_sum, *value_sum;
        void carve(Carver& from, int64_t block) {
            rows = from.take<E>(block);
            pairs = from.take<E>(block);
            probability = from.take<E>(STRIP * BLOCK);
            score_grad = from.take<E>(STRIP * BLOCK);
            score_grad_pairs = from.take<E>(BLOCK * BLOCK);
            score = from.take<float>(STRIP * BLOCK);
            probability_grad = from.take<float>(STRIP * BLOCK);
            key_sum = from.take<float>(block);
            value_sum = from.take<float>(block);
        }
    };

    int64_t query_count() const { return s.batch * s.heads * s.query_blocks(); }
    int64_t key_count() const { return s.batch * s.kv_heads * s.key_blocks(); }

    void carve_shared(Carver& from) {
        for (E** keys : {&key_rows, &value_rows, &key_columns})
            *keys = from.take<E>(key_count() * s.block_elements());
        for (E** queries : {&query_panels, &query_pairs, &grad_panels, &grad_pairs})
            *queries = from.take<E>(query_count() * s.block_elements());
        lse = from.take<float>(query_count() * BLOCK);
        delta = from.take<float>(query_count() * BLOCK);
        query_sums = from.take<float>(parts * query_count() * s.block_elements());
    }

    void pack_keys(int64_t item, Work& w) const {
        const int64_t j = item % s.key_blocks(), head = item / s.key_blocks();
        const int64_t b = head / s.kv_heads, g = head % s.kv_heads, at = item * s.block_elements();
        pack_rows(head_of<In>(t[2], b, g), j * BLOCK, s.width, key_rows + at);
        pack_rows(head_of<In>(t[3], b, g), j * BLOCK, s.width, value_rows + at);
        pack_pairs(key_rows + at, s.width, w.pairs);
        transpose_pairs(w.pairs, s.width, key_columns + at);
    }

    void pack_queries(int64_t item, Work& w) const {
        const int64_t i = item % s.query_blocks(), head = item / s.query_blocks();
        const int64_t b = head / s.heads, h = head % s.heads, at = item * s.block_elements();
        pack_rows(head_of<In>(t[1], b, h), i * BLOCK, s.width, w.rows);
        pack_panels(w.rows, s.width, query_panels + at);
        pack_pairs(w.rows, s.width, query_pairs + at);
        pack_rows(head_of<In>(t[0], b, h), i * BLOCK, s.width, w.rows);
        pack_panels(w.rows, s.width, grad_panels + at);
        pack_pairs(w.rows, s.width, grad_pairs + at);
        statistics(item, head_of<In>(t[4], b, h), i * BLOCK, head * s.queries, w);
    }

    // lse and delta of one block; w.rows holds dO.
    void statistics(int64_t item, const Head<In>& o, int64_t q0, int64_t lse_at, const Work& w) const {
        const float* from = static_cast<const float*>(t[5].data) + lse_at;
        for (int64_t r = 0; r < BLOCK; ++r) {
            const bool inside = q0 + r < s.queries;
            lse[item * BLOCK + r] = inside ? from[q0 + r] : INFINITY;
            floats sum = splat(0.0f);
            for (int64_t d = 0; inside && d < s.features; d += PANEL)
                sum = multiply_add(load_some(o.data + (q0 + r) * o.row_stride + d, s.features - d),
                                   load(w.rows + r * s.width + d), sum);
            delta[item * BLOCK + r] = sum_of(sum);
        }
    }

    // Two keys of one panel of queries: P and dS, 0 in the lanes before `first`.
    struct Gradient {
        floats probability, score;
    };
    RATCHET_INLINE Gradient gradient(const float* score, const float* probability_grad, floats scale,
                                            floats lse, floats delta, bool masked, int64_t first) {
        floats p = exp_of(load(score) * scale - lse);
        if (masked) p = from_lane(first, p, 0.0f);
        floats grad = p * (load(probability_grad) - delta);
        if (masked) grad = from_lane(first, grad, 0.0f);
        return {p, grad};
    }

    // P^T and dS^T of one strip of keys, from its S^T and dP^T; `r0` is its first key in the block.
    template <bool MASKED>
    void gradients(int64_t key, int64_t r0, int64_t q0, int64_t skip, int64_t panels, int64_t stat,
                   Work& w) const {
        const floats scale = splat(s.scale);
        for (int64_t p = skip; p < panels; ++p) {
            const floats lse_p = load(lse + stat + p * PANEL), delta_p = load(delta + stat + p * PANEL);
            E* pairs = w.score_grad_pairs + p * PANEL * BLOCK + r0 * PANEL;
            for (int64_t r = 0; r < STRIP; r += 2) {
                Gradient two[2];
                for (int64_t i = 0; i < 2; ++i) {
                    const int64_t at = (r + i) * BLOCK + p * PANEL, row = key + r0 + r + i;
                    const int64_t first =
                        (row >= s.keys ? BLOCK : s.causal ? row - q0 : 0) - p * PANEL;
                    two[i] = gradient(w.score + at, w.probability_grad + at, scale, lse_p, delta_p, MASKED,
                                      first);
                    store(w.probability + at, two[i].probability);
                    store(w.score_grad + at, two[i].score);
                }
                store_pair(pairs + r * PANEL, two[0].score, two[1].score);
            }
        }
    }

    void clear_pairs(int64_t r0, int64_t panels, Work& w) const {
        for (int64_t p = 0; p < panels; ++p)
            std::memset(w.score_grad_pairs + p * PANEL * BLOCK + r0 * PANEL, 0,
                        sizeof(E) * STRIP * PANEL);
    }

    void strip(int64_t key_at, int64_t query_at, int64_t key, int64_t r0, int64_t q0, int64_t panels,
               int64_t stat, Work& w) const {
        const int64_t width = s.width, skip = panels_before(s.causal, key + r0, q0, panels);
        clear_pairs(r0, skip, w);
        if (skip == panels) return;
        const int64_t todo = panels - skip, column = skip * PANEL, steps = width / Pair<E>::size;
        matmul(key_rows + key_at + r0 * width, width, query_panels + query_at + column * width,
               PANEL * width, w.score + column, BLOCK, STRIP, todo, steps, false);
        matmul(value_rows + key_at + r0 * width, width, grad_panels + query_at + column * width,
               PANEL * width, w.probability_grad + column, BLOCK, STRIP, todo, steps, false);
        if (key + r0 + STRIP > s.keys || (s.causal && key + r0 + STRIP > q0 + column + 1))
            gradients<true>(key, r0, q0, skip, panels, stat, w);
        else
            gradients<false>(key, r0, q0, skip, panels, stat, w);
        const int64_t queries = todo * PANEL / Pair<E>::size;
        matmul(w.probability + column, BLOCK, grad_pairs + query_at + column * PANEL, BLOCK * PANEL,
               w.value_sum + r0 * width, width, STRIP, width / PANEL, queries, true);
        matmul(w.score_grad + column, BLOCK, query_pairs + query_at + column * PANEL, BLOCK * PANEL,
               w.key_sum + r0 * width, width, STRIP, width / PANEL, queries, true);
    }

    int64_t part_blocks() const { return (s.key_blocks() + parts - 1) / parts; }

    // The keys of block j with every query of one head that sees them.
    void key_block(int64_t kv, int64_t j, int64_t head, int64_t part, Work& w) const {
        const int64_t key = j * BLOCK, keys = round_up(smaller(BLOCK, s.keys - key), STRIP);
        const int64_t key_at = (kv * s.key_blocks() + j) * s.block_elements();
        for (int64_t i = s.causal ? j : 0; i < s.query_blocks(); ++i) {
            const int64_t block = head * s.query_blocks() + i, at = block * s.block_elements();
            const int64_t q0 = i * BLOCK, panels = panels_of(q0, s.queries);
            for (int64_t r0 = 0; r0 < keys; r0 += STRIP)
                strip(key_at, at, key, r0, q0, panels, block * BLOCK, w);
            matmul(key_columns + key_at, BLOCK, w.score_grad_pairs, BLOCK * PANEL,
                   query_sums + (part * query_count() + block) * s.block_elements(), BLOCK, s.width, panels,
                   keys / Pair<E>::size, j > part * part_blocks());
        }
    }

    void key_part(int64_t kv, int64_t part, Work& w) const {
        const int64_t b = kv / s.kv_heads, g = kv % s.kv_heads;
        const int64_t end = smaller(s.key_blocks(), (part + 1) * part_blocks());
        for (int64_t j = part * part_blocks(); j < end; ++j) {
            std::memset(w.key_sum, 0, sizeof(float) * s.block_elements());
            std::memset(w.value_sum, 0, sizeof(float) * s.block_elements());
            for (int64_t h = g * s.group(); h < (g + 1) * s.group(); ++h)
                key_block(kv, j, b * s.heads + h, part, w);
            write_rows(w.key_sum, s.width, s.scale, head_of<In>(t[7], b, g), j * BLOCK);
            write_rows(w.value_sum, s.width, 1.0f, head_of<In>(t[8], b, g), j * BLOCK);
        }
    }

    void write_queries(int64_t item) const {
        const int64_t i = item % s.query_blocks(), head = item / s.query_blocks();
        float factor[BLOCK], *sums = query_sums + item * s.block_elements();
        for (float& f : factor) f = s.scale;
        for (int64_t part = 1; part < parts; ++part) {
            if (part * part_blocks() >= s.key_blocks() || (s.causal && part * part_blocks() > i)) break;
            const float* more = sums + part * query_count() * s.block_elements();
            for (int64_t e = 0; e < s.block_elements(); e += PANEL)
                store(sums + e, load(sums + e) + load(more + e));
        }
        write_transposed(sums, factor, head_of<In>(t[6], head / s.heads, head % s.heads), i * BLOCK);
    }

    // Everything of one key head by one thread: nobody waits for another.
    void whole_head(int64_t kv, Work& w) const {
        const int64_t first = kv * s.group() * s.query_blocks(), count = s.group() * s.query_blocks();
        for (int64_t j = 0; j < s.key_blocks(); ++j) pack_keys(kv * s.key_blocks() + j, w);
        for (int64_t item = first; item < first + count; ++item) pack_queries(item, w);
        key_part(kv, 0, w);
        for (int64_t item = first; item < first + count; ++item) write_queries(item);
    }

    int64_t run() {
        static thread_local Scratch scratch;
        const int threads = omp_get_max_threads();
        const int64_t heads = s.batch * s.kv_heads;
        // One part from two heads a thread on; else about four tasks a thread.
        const int64_t wanted = heads >= 2 * threads ? 1 : (4 * threads - 1) / heads;
        parts = bigger(1, smaller(smaller(8, s.key_blocks()), wanted));
        Carver measure{nullptr, 0};
        carve_shared(measure);
        Work unused;
        for (int i = 0; i < threads; ++i) unused.carve(measure, s.block_elements());
        char* memory = scratch.at_least(measure.used);
        if (!memory) return RATCHET_DECLINED;
        Carver from{memory, 0};
        carve_shared(from);
        const int64_t shared = from.used, one = (measure.used - shared) / threads;
#pragma omp parallel num_threads(threads)
        {
            Work w;
            Carver mine{memory, shared + one * omp_get_thread_num()};
            w.carve(mine, s.block_elements());
#if defined(RATCHET_ISA_AMX)
            AmxScope tiles(amx_full_config());
#endif
            if (parts == 1) {
#pragma omp for schedule(dynamic, 1) nowait
                for (int64_t kv = 0; kv < heads; ++kv) whole_head(kv, w);
            } else {
#pragma omp for schedule(static) nowait
                for (int64_t item = 0; item < key_count(); ++item) pack_keys(item, w);
#pragma omp for schedule(static)
                for (int64_t item = 0; item < query_count(); ++item) pack_queries(item, w);
#pragma omp for schedule(dynamic, 1)
                for (int64_t item = 0; item < heads * parts; ++item)
                    key_part(item % heads, item / heads, w);
#pragma omp for schedule(static) nowait
                for (int64_t item = 0; item < query_count(); ++item) write_queries(item);
            }
        }
        return RATCHET_DONE;
    }
};

RATCHET_ENTRY attention_backward(const ratchet_tensor* t, int64_t count, const double* scalars,
                                         int64_t scalar_count) {
    Shape s;
    if (count != 9 || !shape_of(t[1], t[2], t[3], scalars, scalar_count, &s)) return RATCHET_DECLINED;
    for (int i : {0, 4, 6})
        if (!is_head_tensor(t[i], t[1].dtype) || !same_size(t[i], t[1])) return RATCHET_DECLINED;
    for (int i : {7, 8})
        if (!is_head_tensor(t[i], t[1].dtype) || !same_size(t[i], t[2])) return RATCHET_DECLINED;
    if (t[5].dtype != RATCHET_F32 || !ratchet_is_contiguous(&t[5]) ||
        ratchet_numel(&t[5]) != s.batch * s.heads * s.queries)
        return RATCHET_DECLINED;
#if defined(RATCHET_ISA_AMX)
    if (!amx_permitted()) return RATCHET_DECLINED;
#endif
    if (t[1].dtype == RATCHET_F32) return BackwardRows<float>{s, t, 1, 1}.run();
#if defined(RATCHET_BF16_PRODUCTS)
    return Backward<uint16_t, uint16_t>{s, t}.run();
#else
    return BackwardRows<uint16_t>{s, t, 1, 1}.run();
#endif
}
