// The forward pass in fp32: a query to a row, blocks of 48 queries and 256 keys, online softmax in base 2.
#pragma once
#include <omp.h>

#include "attention_rows.h"

template <class In>
struct ForwardRows {
    static const int64_t KEYS = 256;  // of a block: scores of 48 queries in 48 KB
    Shape s;
    const ratchet_tensor* t;

    int64_t width() const { return round_up(s.features, PANEL); }
    int64_t padded_keys() const { return round_up(s.keys, PANEL); }
    int64_t head_elements() const { return padded_keys() * width(); }

    struct Keys {
        float *across, *values;  // K [keys/16][width][16], V [width/16][keys][16]
    };

    // One thread's block of queries.
    struct Work {
        float *rows, *score, *sum;  // [48][width], [48][KEYS], [48][width]
        float top[QUERIES], total[QUERIES];
        void carve(Carver& from, int64_t width) {
            rows = from.take<float>(QUERIES * width);
            score = from.take<float>(QUERIES * KEYS);
            sum = from.take<float>(QUERIES * width);
        }
    };

    Keys keys_at(char* memory, int64_t slot) const {
        float* across = reinterpret_cast<float*>(memory) + slot * 2 * head_elements();
        return {across, across + head_elements()};
    }

    void pack_keys(int64_t kv, int64_t first, int64_t count, Keys keys) const {
        const int64_t b = kv / s.kv_heads, g = kv % s.kv_heads;
        pack_across(head_of<In>(t[1], b, g), first, count, width(), keys.across + first * width());
        pack_down(head_of<In>(t[2], b, g), first, count, width(), keys.values + first * PANEL, padded_keys() * PANEL);
    }

    // How many of `keys` keys from `key` on the query sees.
    int64_t seen(int64_t query, int64_t key, int64_t keys) const {
        return s.causal ? bigger(0, smaller(keys, query + 1 - key)) : keys;
    }

    void scores(int64_t q0, int64_t rows, int64_t key, int64_t keys, Keys from, Work& w) const {
        const int64_t panels = (keys + PANEL - 1) / PANEL;
        for (int64_t p = 0; p < panels; p += TILE_PANELS) {
            const int64_t first = s.causal ? bigger(0, key + p * PANEL - q0) / TILE_ROWS * TILE_ROWS : 0;
            for (int64_t r = first; r < rows; r += TILE_ROWS)
                some_tile<false>(rows - r, panels - p, w.rows + r * width(), width(),
                                 from.across + (key + p * PANEL) * width(), width() * PANEL, w.score + r * KEYS + p * PANEL,
                                 KEYS, s.features, false);
        }
    }

    // P of one query in the place of its scores, and what it changes of the running maximum and sum. The maximum is
    // taken off before scaling, so that nothing is rounded at the size of the logits.
    void softmax(int64_t r, int64_t count, bool first, Work& w) const {
        float* score = w.score + r * KEYS;
        const floats scale = splat(s.scale * LOG2_E);
        const int64_t whole = count / PANEL * PANEL;
        const float before = first ? -INFINITY : w.top[r];
        floats most = splat(before), other = most;
        int64_t k = 0;
        for (; k + 2 * PANEL <= whole; k += 2 * PANEL) {
            most = larger(most, load(score + k));
            other = larger(other, load(score + k + PANEL));
        }
        if (k < whole) most = larger(most, load(score + k));
        if (whole < count) other = larger(other, to_lane(count - whole, load(score + whole), -INFINITY));
        const float top = largest_of(larger(most, other));
        const floats shift = splat(top);
        floats even = splat(0.0f), odd = even;
        for (k = 0; k + 2 * PANEL <= whole; k += 2 * PANEL) {
            const floats one = exp2_of((load(score + k) - shift) * scale), two = exp2_of((load(score + k + PANEL) - shift) * scale);
            store(score + k, one);
            store(score + k + PANEL, two);
            even = even + one;
            odd = odd + two;
        }
        if (k < whole) {
            const floats one = exp2_of((load(score + k) - shift) * scale);
            store(score + k, one);
            even = even + one;
        }
        if (whole < count) {
            const floats last = to_lane(count - whole, exp2_of((load(score + whole) - shift) * scale), 0.0f);
            store(score + whole, last);
            odd = odd + last;
        }
        float total = total_of(even + odd);
        if (!first && top != before) {
            const floats factor = exp2_of((splat(before) - shift) * scale);
            for (int64_t d = 0; d < width(); d += PANEL) store(w.sum + r * width() + d, load(w.sum + r * width() + d) * factor);
            total += w.total[r] * largest_of(factor);
        } else if (!first) {
            total += w.total[r];
        }
        w.top[r] = top;
        w.total[r] = total;
    }

    void probabilities(int64_t q0, int64_t rows, int64_t key, int64_t keys, Work& w) const {
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t count = seen(q0 + r, key, keys);
            if (count > 0) softmax(r, count, key == 0, w);
            // Zeros where another query of the tile sees keys.
            const int64_t last = smaller(rows, r / TILE_ROWS * TILE_ROWS + TILE_ROWS) - 1;
            for (int64_t k = round_up(count, PANEL); k < seen(q0 + last, key, keys); k += PANEL)
                store(w.score + r * KEYS + k, splat(0.0f));
        }
    }

    void query_block(int64_t head, int64_t q0, Keys from, Work& w) const {
        const int64_t b = head / s.heads, h = head % s.heads, rows = smaller(QUERIES, s.queries - q0);
        copy_rows(head_of<In>(t[0], b, h), q0, rows, width(), w.rows);
        const int64_t limit = s.causal ? smaller(s.keys, q0 + rows) : s.keys, panels = width() / PANEL;
        for (int64_t key = 0; key < limit; key += KEYS) {
            const int64_t keys = smaller(KEYS, limit - key);
            scores(q0, rows, key, keys, from, w);
            probabilities(q0, rows, key, keys, w);
            for (int64_t p = 0; p < panels; p += TILE_PANELS)
                for (int64_t r = 0; r < rows; r += TILE_ROWS) {
                    const int64_t steps = seen(q0 + smaller(rows, r + TILE_ROWS) - 1, key, keys);
                    if (steps > 0)
                        some_tile<false>(rows - r, panels - p, w.score + r * KEYS, KEYS,
                                         from.values + p * padded_keys() * PANEL + key * PANEL, padded_keys() * PANEL,
                                         w.sum + r * width() + p * PANEL, width(), steps, key > 0);
                }
        }
        finish(b, h, q0, rows, w);
    }

    void finish(int64_t b, int64_t h, int64_t q0, int64_t rows, const Work& w) const {
        float* lse = static_cast<float*>(t[4].data) + (b * s.heads + h) * s.queries + q0;
        const Head<In> out = head_of<In>(t[3], b, h);
        for (int64_t r = 0; r < rows; ++r) {
            lse[r] = w.top[r] * s.scale + std::log(w.total[r]);
            const floats factor = splat(1.0f / w.total[r]);
            for (int64_t d = 0; d < s.features; d += PANEL)
                store_some(out.data + (q0 + r) * out.row_stride + d, load(w.sum + r * width() + d) * factor, s.features - d);
        }
    }

    int64_t run() const {
        static thread_local Scratch scratch;
        const int64_t threads = omp_get_max_threads(), kv_heads = s.batch * s.kv_heads;
        // With heads enough, a thread packs and works through its own, in memory that stays in its cache, and nobody
        // waits: on a busy machine a barrier costs a scheduler's tick.
        const bool alone = kv_heads >= 2 * threads;
        const int64_t packed = (alone ? threads : kv_heads) * 2 * head_elements() * static_cast<int64_t>(sizeof(float));
        Carver measure{nullptr, 0};
        Work unused;
        unused.carve(measure, width());
        const int64_t one = measure.used;
        char* memory = scratch.at_least(packed + threads * one);
        if (!memory) return RATCHET_DECLINED;
        const int64_t blocks = (s.queries + QUERIES - 1) / QUERIES, chunks = (s.keys + KEYS - 1) / KEYS;
        const int64_t items = s.batch * s.heads * blocks;
#pragma omp parallel num_threads(threads)
        {
            Work w;
            Carver mine{memory, packed + one * omp_get_thread_num()};
            w.carve(mine, width());
            if (alone) {
                const Keys keys = keys_at(memory, omp_get_thread_num());
#pragma omp for schedule(dynamic, 1) nowait
                for (int64_t kv = 0; kv < kv_heads; ++kv) {
                    pack_keys(kv, 0, s.keys, keys);
                    for (int64_t item = 0; item < s.group() * blocks; ++item)
                        query_block(kv * s.group() + item / blocks, item % blocks * QUERIES, keys, w);
                }
            } else {
#pragma omp for schedule(static)
                for (int64_t item = 0; item < kv_heads * chunks; ++item) {
                    const int64_t first = item % chunks * KEYS;
                    pack_keys(item / chunks, first, smaller(KEYS, s.keys - first), keys_at(memory, item / chunks));
                }
#pragma omp for schedule(dynamic, 1) nowait
                for (int64_t item = 0; item < items; ++item) {
                    const int64_t head = item % (s.batch * s.heads), last = blocks - 1 - item / (s.batch * s.heads);
                    query_block(head, last * QUERIES, keys_at(memory, head / s.group()), w);  // longest first
                }
            }
        }
        return RATCHET_DONE;
    }
};
