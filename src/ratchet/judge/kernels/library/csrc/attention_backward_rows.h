// The backward pass in fp32: a query to a row, blocks of 96 keys and 48 queries (arXiv:2307.08691, algorithm 2).
//   P = exp(S - lse), dS = P (dP - delta), dV += P^T dO, dK += dS^T Q, dQ += dS K
#pragma once
#include <omp.h>

#include "attention_rows.h"

template <class In>
struct BackwardRows {
    static const int64_t KEYS = 96;  // of a block: whole tiles of 6 and 8 rows
    Shape s;
    const ratchet_tensor* t;
    int64_t parts;  // of the keys of one head
    int64_t slots;  // of heads that are packed at a time: a thread's own one each, or all

    int64_t width() const { return round_up(s.features, PANEL); }
    int64_t key_elements() const { return round_up(s.keys, PANEL) * width(); }
    int64_t query_elements() const { return s.queries * width(); }
    int64_t down_keys() const { return round_up(s.keys, PANEL) * PANEL; }
    int64_t down_queries() const { return s.queries * PANEL; }

    // One key head and its query heads.
    struct Packed {
        float *keys_across, *values_across, *keys_down;  // of K and V
        float *queries_down, *grads_down, *lse, *delta;  // [group], of Q and dO; lse in base 2
        float* query_sums;                               // [parts][group][queries][width]
    };
    struct Work {
        float *queries, *grads, *probability, *score_grad;  // [48][width] of Q and dO, [48][KEYS]
        float *key_sum, *value_sum;                         // [KEYS][width]
        void carve(Carver& from, int64_t width) {
            queries = from.take<float>(QUERIES * width);
            grads = from.take<float>(QUERIES * width);
            probability = from.take<float>(QUERIES * KEYS);
            score_grad = from.take<float>(QUERIES * KEYS);
            key_sum = from.take<float>(KEYS * width);
            value_sum = from.take<float>(KEYS * width);
        }
    };

    Packed carve_head(Carver& from) const {
        Packed head;
        for (float** keys : {&head.keys_across, &head.values_across, &head.keys_down}) *keys = from.take<float>(key_elements());
        for (float** queries : {&head.queries_down, &head.grads_down}) *queries = from.take<float>(s.group() * query_elements());
        head.lse = from.take<float>(s.group() * s.queries);
        head.delta = from.take<float>(s.group() * s.queries);
        head.query_sums = from.take<float>(parts * s.group() * query_elements());
        return head;
    }

    void pack_keys(int64_t kv, int64_t first, int64_t count, const Packed& to) const {
        const int64_t b = kv / s.kv_heads, g = kv % s.kv_heads;
        pack_across(head_of<In>(t[2], b, g), first, count, width(), to.keys_across + first * width());
        pack_across(head_of<In>(t[3], b, g), first, count, width(), to.values_across + first * width());
        pack_down(head_of<In>(t[2], b, g), first, count, width(), to.keys_down + first * PANEL, down_keys());
    }

    // `h` counts within the group.
    void pack_queries(int64_t kv, int64_t h, int64_t first, int64_t count, const Packed& to) const {
        const int64_t head = kv * s.group() + h, b = head / s.heads, own = head % s.heads, at = h * query_elements() + first * PANEL;
        const Head<In> grad = head_of<In>(t[0], b, own), o = head_of<In>(t[4], b, own);
        pack_down(head_of<In>(t[1], b, own), first, count, width(), to.queries_down + at, down_queries());
        pack_down(grad, first, count, width(), to.grads_down + at, down_queries());
        const float* lse = static_cast<const float*>(t[5].data) + head * s.queries;
        for (int64_t r = first; r < first + count; ++r) {
            floats sum = splat(0.0f);
            for (int64_t d = 0; d < s.features; d += PANEL) {
                const In* from = o.data + r * o.row_stride + d;
                __builtin_prefetch(from + AHEAD * o.row_stride);
                sum = multiply_add(load_some(from, s.features - d), load(to.grads_down + h * query_elements() + d / PANEL * down_queries() + r * PANEL),
                                   sum);
            }
            to.delta[h * s.queries + r] = total_of(sum);
            to.lse[h * s.queries + r] = lse[r] * LOG2_E;
        }
    }

    int64_t seen(int64_t query, int64_t key, int64_t keys) const {
        return s.causal ? bigger(0, smaller(keys, query + 1 - key)) : keys;
    }

    // P and dS of one query in the places of S and dP; zeros where another query of the tile sees keys.
    void gradients(int64_t r, int64_t count, int64_t panels, float lse_of_row, float delta_of_row, Work& w) const {
        float *p = w.probability + r * KEYS, *grad = w.score_grad + r * KEYS;
        const floats scale = splat(s.scale * LOG2_E), lse = splat(-lse_of_row), delta = splat(delta_of_row);
        int64_t k = 0;
        for (; k + PANEL <= count; k += PANEL) {
            const floats one = exp2_of(multiply_add(load(p + k), scale, lse));
            store(grad + k, one * (load(grad + k) - delta));
            store(p + k, one);
        }
        if (k < count) {
            const floats one = to_lane(count - k, exp2_of(multiply_add(load(p + k), scale, lse)), 0.0f);
            store(grad + k, to_lane(count - k, one * (load(grad + k) - delta), 0.0f));
            store(p + k, one);
            k += PANEL;
        }
        for (; k < smaller(round_up(count, PANEL) + PANEL, panels * PANEL); k += PANEL) {
            store(p + k, splat(0.0f));
            store(grad + k, splat(0.0f));
        }
    }

    // The keys key .. key + keys with the queries of one head from q0 on.
    void block(const Packed& from, int64_t h, int64_t key, int64_t keys, int64_t q0, int64_t rows, float* query_sums, Work& w) const {
        const int64_t panels = (keys + PANEL - 1) / PANEL, features = width() / PANEL;
        for (int64_t p = 0; p < panels; p += TILE_PANELS) {
            const int64_t first = s.causal ? bigger(0, key + p * PANEL - q0) / TILE_ROWS * TILE_ROWS : 0, at = (key + p * PANEL) * width();
            for (int64_t r = first; r < rows; r += TILE_ROWS) {
                some_tile<false>(rows - r, panels - p, w.queries + r * width(), width(), from.keys_across + at, width() * PANEL,
                                 w.probability + r * KEYS + p * PANEL, KEYS, s.features, false);
                some_tile<false>(rows - r, panels - p, w.grads + r * width(), width(), from.values_across + at, width() * PANEL,
                                 w.score_grad + r * KEYS + p * PANEL, KEYS, s.features, false);
            }
        }
        const int64_t row = h * s.queries + q0;
        for (int64_t r = 0; r < rows; ++r) gradients(r, seen(q0 + r, key, keys), panels, from.lse[row + r], from.delta[row + r], w);
        for (int64_t p = 0; p < features; p += TILE_PANELS) {
            const int64_t down = h * query_elements() + p * down_queries() + q0 * PANEL;
            for (int64_t k = 0; k < keys; k += TILE_ROWS) {
                const int64_t first = s.causal ? bigger(0, key + k - q0) : 0;  // the first query that sees one of these keys
                if (first >= rows) break;
                some_tile<true>(keys - k, features - p, w.probability + first * KEYS + k, KEYS, from.grads_down + down + first * PANEL,
                                down_queries(), w.value_sum + k * width() + p * PANEL, width(), rows - first, true);
                some_tile<true>(keys - k, features - p, w.score_grad + first * KEYS + k, KEYS, from.queries_down + down + first * PANEL,
                                down_queries(), w.key_sum + k * width() + p * PANEL, width(), rows - first, true);
            }
            for (int64_t r = 0; r < rows; r += TILE_ROWS) {
                const int64_t steps = seen(q0 + smaller(rows, r + TILE_ROWS) - 1, key, keys);
                if (steps > 0)
                    some_tile<false>(rows - r, features - p, w.score_grad + r * KEYS, KEYS, from.keys_down + p * down_keys() + key * PANEL,
                                     down_keys(), query_sums + (q0 + r) * width() + p * PANEL, width(), steps, true);
            }
        }
    }

    int64_t key_blocks() const { return (s.keys + KEYS - 1) / KEYS; }
    int64_t part_blocks() const { return (key_blocks() + parts - 1) / parts; }
    int64_t query_blocks() const { return (s.queries + QUERIES - 1) / QUERIES; }

    void key_part(int64_t kv, int64_t part, const Packed& from, Work& w) const {
        const int64_t b = kv / s.kv_heads, g = kv % s.kv_heads, end = smaller(key_blocks(), (part + 1) * part_blocks());
        float* sums = from.query_sums + part * s.group() * query_elements();
        std::memset(sums, 0, sizeof(float) * s.group() * query_elements());
        for (int64_t j = part * part_blocks(); j < end; ++j) {
            const int64_t key = j * KEYS, keys = smaller(KEYS, s.keys - key);
            std::memset(w.key_sum, 0, sizeof(float) * KEYS * width());
            std::memset(w.value_sum, 0, sizeof(float) * KEYS * width());
            for (int64_t h = 0; h < s.group(); ++h) {
                const int64_t head = kv * s.group() + h;
                for (int64_t q0 = s.causal ? key / QUERIES * QUERIES : 0; q0 < s.queries; q0 += QUERIES) {
                    const int64_t rows = smaller(QUERIES, s.queries - q0);
                    copy_rows(head_of<In>(t[1], head / s.heads, head % s.heads), q0, rows, width(), w.queries);
                    copy_rows(head_of<In>(t[0], head / s.heads, head % s.heads), q0, rows, width(), w.grads);
                    block(from, h, key, keys, q0, rows, sums + h * query_elements(), w);
                }
            }
            write_some_rows(w.key_sum, keys, s.scale, head_of<In>(t[7], b, g), key);
            write_some_rows(w.value_sum, keys, 1.0f, head_of<In>(t[8], b, g), key);
        }
    }

    void write_some_rows(const float* sums, int64_t count, float factor, const Head<In>& to, int64_t first) const {
        for (int64_t r = 0; r < count; ++r)
            for (int64_t d = 0; d < s.features; d += PANEL)
                store_some(to.data + (first + r) * to.row_stride + d, load(sums + r * width() + d) * splat(factor), s.features - d);
    }

    // dQ of a block of queries; the parts are added in order, so that results repeat bit for bit.
    void write_queries(int64_t kv, int64_t h, int64_t q0, const Packed& from) const {
        const int64_t rows = smaller(QUERIES, s.queries - q0), head = kv * s.group() + h;
        float* sums = from.query_sums + h * query_elements() + q0 * width();
        for (int64_t part = 1; part < parts; ++part) {
            const float* more = sums + part * s.group() * query_elements();
            for (int64_t e = 0; e < rows * width(); e += PANEL) store(sums + e, load(sums + e) + load(more + e));
        }
        write_some_rows(sums, rows, s.scale, head_of<In>(t[6], head / s.heads, head % s.heads), q0);
    }

    // Everything of one key head by one thread: nobody waits for another.
    void whole_head(int64_t kv, const Packed& own, Work& w) const {
        pack_keys(kv, 0, s.keys, own);
        for (int64_t h = 0; h < s.group(); ++h) pack_queries(kv, h, 0, s.queries, own);
        key_part(kv, 0, own, w);
        for (int64_t item = 0; item < s.group() * query_blocks(); ++item)
            write_queries(kv, item / query_blocks(), item % query_blocks() * QUERIES, own);
    }

    int64_t run() {
        static thread_local Scratch scratch;
        const int64_t threads = omp_get_max_threads(), heads = s.batch * s.kv_heads;
        // One part from two heads a thread on; else about four tasks a thread.
        const bool alone = heads >= 2 * threads;
        parts = alone ? 1 : bigger(1, smaller(smaller(8, key_blocks()), (4 * threads - 1) / heads));
        slots = alone ? threads : heads;
        Carver measure{nullptr, 0};
        carve_head(measure);
        const int64_t packed = measure.used;
        Work unused;
        unused.carve(measure, width());
        const int64_t one = measure.used - packed;
        char* memory = scratch.at_least(slots * packed + threads * one);
        if (!memory) return RATCHET_DECLINED;
        auto at = [&](int64_t slot) {
            Carver from{memory, slot * packed};
            return carve_head(from);
        };
        const int64_t queries = s.group() * query_blocks();  // blocks of a key head
#pragma omp parallel num_threads(threads)
        {
            Work w;
            Carver mine{memory, slots * packed + one * omp_get_thread_num()};
            w.carve(mine, width());
            if (alone) {
                const Packed own = at(omp_get_thread_num());
#pragma omp for schedule(dynamic, 1) nowait
                for (int64_t kv = 0; kv < heads; ++kv) whole_head(kv, own, w);
            } else {
#pragma omp for schedule(static) nowait
                for (int64_t item = 0; item < heads * key_blocks(); ++item) {
                    const int64_t key = item % key_blocks() * KEYS;
                    pack_keys(item / key_blocks(), key, smaller(KEYS, s.keys - key), at(item / key_blocks()));
                }
#pragma omp for schedule(static)
                for (int64_t item = 0; item < heads * queries; ++item) {
                    const int64_t q0 = item % query_blocks() * QUERIES;
                    pack_queries(item / queries, item % queries / query_blocks(), q0, smaller(QUERIES, s.queries - q0),
                                 at(item / queries));
                }
#pragma omp for schedule(dynamic, 1)
                for (int64_t item = 0; item < heads * parts; ++item) key_part(item % heads, item / heads, at(item % heads), w);
#pragma omp for schedule(static) nowait
                for (int64_t item = 0; item < heads * queries; ++item)
                    write_queries(item / queries, item % queries / query_blocks(), item % query_blocks() * QUERIES, at(item / queries));
            }
        }
        return RATCHET_DONE;
    }
};
