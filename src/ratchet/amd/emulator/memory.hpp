// ---- memory ---- aux: 0 offset, 1 second offset, 2 bytes, 5 atomic, 3 form (0 plain, 1 signed, 2 low half, 3 high half; 4 and 5
// the same halves of a byte with a sign)
inline void note_lines(W& w, u64 first, u64 count) {
    if (!w.steps) return;
    w.steps->back().lines = u16(w.steps->back().lines + count);
    for (u64 i = 0; i < count; i++) w.launch->trace->lines.push_back(first + i);
}
inline u64 scalar_offset(const W& w, const Operand& o) { return o.kind == NONE ? 0 : scalar32(w, o); }
inline u32 part_of(const u8* from, u32 size, int is_signed) {
    u32 x = 0; memcpy(&x, from, size);
    return !is_signed ? x : size == 1 ? u32(i32(int8_t(x))) : u32(i32(i16(x)));
}
inline void s_load(W& w, const In& in) {
    u64 base = w.pair(in.o[1].number) + scalar_offset(w, in.o[2]) + i64(in.aux[0]);
    // A small load that all lanes share may have become one of the whole word: the rest of it may lie past the tensor
    const u32 size = in.aux[2]; const u64 at = base & ~u64(least(size, 4u) - 1);
    const u8* from = size == 4 && w.m->finds(at, 1) ? (const u8*)at : w.m->memory(at, size);
    if (size < 4) w.s[in.o[0].number] = part_of(from, size, in.aux[3]); else memcpy(w.s + in.o[0].number, from, size);
    issue(w, UNORDERED, VECTORS + in.o[0].number, (size + 3) / 4, ALL);
}
inline void s_buffer_load(W& w, const In& in) {
    const u32* r = w.s + in.o[1].number; u64 base = r[0] | u64(r[1] & 0xffff) << 32;
    // In 64 bits, unlike the offsets of a vector's access: llvm-project #68302
    u64 at = scalar_offset(w, in.o[2]) + in.aux[0]; const u32 size = in.aux[2];
    issue(w, UNORDERED, VECTORS + in.o[0].number, (size + 3) / 4, ALL);
    if (size < 4) { w.s[in.o[0].number] = at + size <= r[2] ? part_of(w.m->memory(base + at, size), size, in.aux[3]) : 0; return; }
    for (int i = 0; i < in.aux[2]; i += 4) { u32 x = 0; if (at + i + 4 <= r[2]) memcpy(&x, w.m->memory(base + at + i, 4), 4); w.s[in.o[0].number + i / 4] = x; }
}
enum Space { BUFFER, GLOBAL, SCRATCH, LDS };
// The lanes' addresses; 0 for one whose access is dropped. o: 0 data or result, 1 address, 2 descriptor or base, 3 soffset
template <Space S> inline u64 addresses(W& w, const In& in, u64* at, u32 size, int a = 1) {
    u64 mask = w.exec(); const Operand &o = in.o[a], &b = in.o[a + 1];
    if constexpr (S == BUFFER) {
        const u32* r = w.s + b.number; u64 base = r[0] | u64(r[1] & 0xffff) << 32, soffset = scalar32(w, in.o[a + 2]);
        if (r[1] >> 16 & 0x3fff) fail("a buffer with a stride is not emulated");
        const u64 room = u64(r[2]) - least(soffset, u64(r[2])); const u32 fixed = u32(in.aux[0]); u8 inside[LANES];
        u32 none[LANES]; const u32* v = in.flags & OFFEN ? w.v[o.number] : none; if (v == none) std::fill(none, none + LANES, 0u);
        // The two offsets are added in 32 bits: LLVM folds a constant out of a sum that wraps (`splitBufferOffsets`)
        for (int l = 0; l < LANES; l++) at[l] = base + soffset + u32(v[l] + fixed);
        for (int l = 0; l < LANES; l++) inside[l] = u64(u32(v[l] + fixed)) + size <= room;
        return mask & packed_bits(inside);
    } else if constexpr (S == GLOBAL) {
        if (b.kind == SCALAR) { u64 base = w.pair(b.number) + i64(in.aux[0]); for (int l = 0; l < LANES; l++) at[l] = base + w.v[o.number][l]; }
        else for (int l = 0; l < LANES; l++) at[l] = (u64(w.v[o.number + 1][l]) << 32 | w.v[o.number][l]) + i64(in.aux[0]);
    } else if constexpr (S == SCRATCH) {
        u64 base = i64(in.aux[0]) + scalar_offset(w, b);
        for (int l = 0; l < LANES; l++) at[l] = base + (o.kind == VECTOR ? w.v[o.number][l] : 0);
    } else for (int l = 0; l < LANES; l++) at[l] = u32(w.v[o.number][l] + u32(in.aux[0]));
    return mask;
}
template <Space S> inline u8* place(W& w, u64 address, u32 size, int lane) {
    if constexpr (S == LDS) return w.m->shared(address, size);
    if constexpr (S == SCRATCH) {
        u64 own = w.launch->scratch_bytes;
        if (address + size > own) fail("an access of %u bytes at %llu is outside a lane's %llu bytes of scratch", size, (unsigned long long)address, (unsigned long long)own);
        return w.scratch.data() + own * lane + address;
    }
    return w.m->memory(address, size);
}
template <Space S> inline void read_at(W& w, u64 address, void* to, u32 size, int lane) {
    if constexpr (S == LDS) w.m->read_shared(address, to, size);
    else memcpy(to, place<S>(w, address, size, lane), size);
}
inline u64 distinct(u64* values, int count) { std::sort(values, values + count); return std::unique(values, values + count) - values; }
// Bank conflicts: cycles beyond the first, over groups of lanes that the LDS serves together; 32 banks of 4 bytes
inline u64 bank_conflicts(const u64* at, u64 mask, u32 size) {
    int group = size <= 4 ? 32 : size == 8 ? 32 : 16; u64 extra = 0;
    if (size > 8) group = 8; else if (size > 4) group = 16;
    for (int start = 0; start < LANES; start += group) {
        u64 words[32][8]; int used[32] = {}; int worst = 0;
        for (int l = start; l < start + group; l++) {
            if (!(mask >> l & 1)) continue;
            for (u32 part = 0; part < (size + 3) / 4; part++) {
                u64 word = at[l] / 4 + part; int bank = word & 31; bool seen = false;
                for (int i = 0; i < used[bank] && i < 8; i++) seen |= words[bank][i] == word;
                if (!seen) { if (used[bank] < 8) words[bank][used[bank]] = word; worst = most(worst, ++used[bank]); }
            }
        }
        if (worst > 1) extra += worst - 1;
    }
    return extra;
}
inline void count_lines(W& w, u64 bytes, u64 lines, u64 pairs) {
    Launch& c = *w.launch;
    c.bytes += bytes; c.lines128 += pairs; c.lines64 += lines; c.lines_at[w.m->pc] += lines;
}
// Whether all lanes are on and their addresses follow one another in a tensor: then they are counted and moved together
template <Space S> inline bool in_a_row(W& w, const u64* at, u64 mask, u32 size) {
    if ((S != GLOBAL && S != BUFFER) || mask != ALL) return false;
    bool row = true;
    for (int l = 0; l < LANES; l++) row &= at[l] == at[0] + u64(l) * size;
    return row && w.m->finds(at[0], LANES * size);
}
template <Space S> inline void count_access(W& w, const In& in, const u64* at, u64 mask, u32 size, bool row = false) {
    Launch& c = *w.launch;
    if (row) {
        const u64 first = at[0], last = first + u64(LANES) * size - 1, lines = (last >> 6) - (first >> 6) + 1;
        count_lines(w, u64(LANES) * size, lines, (last >> 7) - (first >> 7) + 1); note_lines(w, first >> 6, lines);
        return w.m->touch_row(first >> 6, lines);
    }
    if constexpr (S == LDS) {
        if (w.flights.copies) check_copies(w, at, mask, size);
        const u64 extra = bank_conflicts(at, mask, size); c.conflicts += extra; c.conflicts_at[w.m->pc] += extra;
        const u32 moved = u32(__builtin_popcountll(mask)) * size; c.lds_bytes_moved += moved;
        if (w.steps) w.steps->back().bytes += moved, w.steps->back().conflicts = u16(w.steps->back().conflicts + extra);
        return;
    }
    if constexpr (S == SCRATCH) return;
    u64 near[2 * LANES], far[2 * LANES], lines = 0, pairs = 0, floor = 0, line = 0, pair = 0, left = mask;  // `line`: the last counted, plus 1
    for (; left; left &= left - 1) {  // addresses that rise need no sorting
        const u64 first = at[__builtin_ctzll(left)], last = first + size - 1;
        if (first < floor) break;
        floor = first;
        if (first >> 6 >= line) near[lines++] = first >> 6, line = (first >> 6) + 1;
        if (last >> 6 >= line) near[lines++] = last >> 6, line = (last >> 6) + 1;
        if (first >> 7 >= pair) pairs++, pair = (first >> 7) + 1;
        if (last >> 7 >= pair) pairs++, pair = (last >> 7) + 1;
    }
    if (left) {
        int n = 0;
        for (u64 on = mask; on; on &= on - 1) { const u64 first = at[__builtin_ctzll(on)], last = first + size - 1; near[n] = first >> 6; far[n++] = first >> 7; near[n] = last >> 6; far[n++] = last >> 7; }
        lines = distinct(near, n); pairs = distinct(far, n);
    }
    count_lines(w, u64(__builtin_popcountll(mask)) * size, lines, pairs);
    for (u64 i = 0; i < lines; i++) w.m->touch(near[i]), note_lines(w, near[i], 1);
}
// Before gfx942 a lane's scratch is a buffer; word 3 of the one that `begin` made says so.
template <Space S> inline bool is_scratch(const W& w, const In& in) { return S == BUFFER && w.s[in.o[2].number + 3] == SCRATCH_BUFFER; }
// Its scalar offset counts the bytes of all lanes
inline In in_scratch(const W& w, const In& in) { In own = in; own.o[2] = {CONSTANT, 0, 0, scalar32(w, in.o[3]) / LANES, 0}; return own; }
// The queue of an access: lanes of a flat one that are in LDS come back in no order on gfx9
template <Space S> inline u32 queue_of(const W& w, bool returns) {
    if (S == LDS) return LANES == 64 && w.flat ? UNORDERED : SHARED;
    return returns || LANES == 64 ? LOADS : STORES;
}
inline void reads_shared(W& w, const Operand& d, u32 registers, const u64* at, u64 mask, u32 size, i64 gap = 0) {
    Flight& f = issue(w, queue_of<LDS>(w, true), d.number, registers, mask);
    if (!w.m->alone) Flights::touch(f, at, mask, size, false, gap);
}
inline void writes_shared(W& w, const u64* at, u64 changed, u32 size, i64 gap = 0) {
    Flight& f = issue(w, queue_of<LDS>(w, false));
    if (!w.m->alone) Flights::touch(f, at, changed, size, true, gap);
}
template <int N> inline void transposed(const u8* from, u32 (*out)[LANES]) {
    u32 x[LANES * N]; memcpy(x, from, sizeof x);
    for (int i = 0; i < N; i++) for (int l = 0; l < LANES; l++) out[i][l] = x[l * N + i];
}
template <int N> inline void together(const Wave& w, int number, u8* to) {
    u32 x[LANES * N];
    for (int i = 0; i < N; i++) for (int l = 0; l < LANES; l++) x[l * N + i] = w.v[number + i][l];
    memcpy(to, x, sizeof x);
}
template <Space S> void load(W& w, const In& in) {
    if (is_scratch<S>(w, in)) return load<SCRATCH>(w, in_scratch(w, in));
    u64 at[LANES]; u32 size = in.aux[2]; u64 exec = w.exec(), mask = addresses<S>(w, in, at, size); int form = in.aux[3];
    const bool row = in_a_row<S>(w, at, mask, size);
    count_access<S>(w, in, at, mask, size, row);
    if ((S == GLOBAL || S == BUFFER) && !w.m->stores.empty()) check_stores(w, at, mask, size);
    u32 out[4][LANES]; int registers = (size + 3) / 4;
    if (row && size >= 4) {
        const u8* from = (const u8*)at[0];
        switch (size) { case 4: memcpy(out[0], from, 4 * LANES); break; case 8: transposed<2>(from, out); break; case 12: transposed<3>(from, out); break; default: transposed<4>(from, out); }
    } else if (mask != ALL) for (int i = 0; i < registers; i++) std::fill(out[i], out[i] + LANES, 0u);
    for (u64 left = row && size >= 4 ? 0 : mask; left; left &= left - 1) {
        const int l = __builtin_ctzll(left);
        u32 x[4] = {}; read_at<S>(w, at[l], x, size, l);
        if (form == 1 || form >= 4) x[0] = size == 1 ? u32(i32(int8_t(x[0]))) : u32(i32(i16(x[0])));
        for (int i = 0; i < registers; i++) out[i][l] = x[i];
    }
    if (in.flags & TO_LDS) {
        u64 to[LANES]; u32 x[LANES][4];
        for (int l = 0; l < LANES; l++) { to[l] = u64(w.s[M0]) + u32(in.aux[0]) + u64(l) * size; for (int i = 0; i < 4; i++) x[l][i] = out[i][l]; }
        w.m->write_lanes(to, exec, x, size); w.flights.copies += exec != 0;
        return Flights::touch(issue(w, LOADS), to, exec, size, true);
    }
    if constexpr (S == LDS) reads_shared(w, in.o[0], registers, at, mask, size); else issue(w, LOADS, in.o[0].number, registers, exec);
    u32* d = w.v[in.o[0].number];
    if (form >= 2) for (int l = 0; l < LANES; l++) out[0][l] = !(form & 1) ? (out[0][l] & 0xffff) | (d[l] & 0xffff0000) : out[0][l] << 16 | (d[l] & 0xffff);
    for (int i = 0; i < registers; i++) commit(w.v[in.o[0].number + i], out[i], exec);
}
template <Space S> void store(W& w, const In& in) {
    if (is_scratch<S>(w, in)) return store<SCRATCH>(w, in_scratch(w, in));
    u64 at[LANES]; u32 size = in.aux[2]; const Operand& data = in.o[0]; u64 mask = addresses<S>(w, in, at, size);
    const bool row = in_a_row<S>(w, at, mask, size);
    count_access<S>(w, in, at, mask, size, row);
    if (S == BUFFER || S == GLOBAL) w.launch->stored += u64(__builtin_popcountll(mask)) * size;
    const bool seen_late = LANES == 32 && (S == BUFFER || S == GLOBAL) && w.launch->apart && !w.m->alone; u64 changed = 0;
    Flight* flight = S == LDS ? nullptr : &issue(w, queue_of<S>(w, false));
    if (seen_late) Flights::touch(*flight, at, mask, size, true);
    if (w.steps && (S == BUFFER || S == GLOBAL)) return;  // the clock changes no memory
    if (size >= 4 && row && !seen_late) {
        u8* to = (u8*)at[0];
        switch (size) { case 4: together<1>(w, data.number, to); break; case 8: together<2>(w, data.number, to); break; case 12: together<3>(w, data.number, to); break; default: together<4>(w, data.number, to); }
        return;
    }
    u32 x[LANES][4];
    for (u64 left = mask; left; left &= left - 1) {
        const int l = __builtin_ctzll(left);
        for (u32 i = 0; i < (size + 3) / 4; i++) x[l][i] = w.v[data.number + i][l];
        if (in.aux[3] == 3) x[l][0] >>= 16;
        if constexpr (S != LDS) { u8* to = place<S>(w, at[l], size, l); if (seen_late) changed |= u64(memcmp(to, x[l], size) != 0) << l; memcpy(to, x[l], size); }
    }
    if (seen_late) flight->lanes = changed;
    if constexpr (S == LDS) writes_shared(w, at, w.m->write_lanes(at, mask, x, size), size);
}
void ds_read2(W& w, const In& in) {
    u64 at[LANES], mask = w.exec(); u32 size = in.aux[2]; int each = size / 4; u32 out[4][LANES] = {};
    for (int part = 0; part < 2; part++) {
        for (int l = 0; l < LANES; l++) at[l] = u32(w.v[in.o[1].number][l] + u32(in.aux[part]));
        count_access<LDS>(w, in, at, mask, size);
        for (int l = 0; l < LANES; l++) if (mask >> l & 1) { u32 x[2]; w.m->read_shared(at[l], x, size); for (int i = 0; i < each; i++) out[part * each + i][l] = x[i]; }
    }
    for (int i = 0; i < 2 * each; i++) commit(w.v[in.o[0].number + i], out[i], mask);
    reads_shared(w, in.o[0], 2 * each, at, mask, size, i64(in.aux[0]) - in.aux[1]);
}
void ds_write2(W& w, const In& in) {
    u64 at[LANES], mask = w.exec(), changed = 0; u32 size = in.aux[2];
    for (int part = 0; part < 2; part++) {
        for (int l = 0; l < LANES; l++) at[l] = u32(w.v[in.o[0].number][l] + u32(in.aux[part]));
        count_access<LDS>(w, in, at, mask, size);
        u32 x[LANES][4];
        for (u32 i = 0; i < size / 4; i++) for (int l = 0; l < LANES; l++) x[l][i] = w.v[in.o[1 + part].number + i][l];
        changed |= w.m->write_lanes(at, mask, x, size);
    }
    writes_shared(w, at, changed, size, i64(in.aux[0]) - in.aux[1]);
}
// ds_read_b64_tr_* (CDNA 4): 16 lanes' 64 bits are rows of 16 elements, and lane i gets column i
template <int BITS> inline void read_transposed(W& w, const In& in) {
    u64 at[LANES], mask = addresses<LDS>(w, in, at, 8), x[LANES]; u32 low[LANES], high[LANES];
    if (mask != ALL) fail("a transposed read of LDS with lanes off is not emulated");
    count_access<LDS>(w, in, at, mask, 8);
    for (int l = 0; l < LANES; l++) w.m->read_shared(at[l], x + l, 8);
    constexpr int EACH = 64 / BITS, PER_ROW = 16 / EACH;
    for (int l = 0; l < LANES; l++) {
        const int row = l & ~15, i = l & 15; u64 y = 0;
        for (int k = 0; k < EACH; k++) y |= (x[row + PER_ROW * k + i / EACH] >> BITS * (i % EACH) & ((1ull << BITS) - 1)) << BITS * k;
        low[l] = u32(y); high[l] = u32(y >> 32);
    }
    commit(w.v[in.o[0].number], low, mask); commit(w.v[in.o[0].number + 1], high, mask);
    reads_shared(w, in.o[0], 2, at, mask, 8);
}
void ds_read_b64_tr_b16(W& w, const In& in) { read_transposed<16>(w, in); }
void ds_read_b64_tr_b8(W& w, const In& in) { read_transposed<8>(w, in); }
void ds_read_b64_tr_b4(W& w, const In& in) { read_transposed<4>(w, in); }
enum Atomic { SWAP, CMPSWAP, ADD, SUB, SMIN, UMIN, SMAX, UMAX, AND, OR, XOR, INC, DEC, ADD_F32, ADD_F64, MIN_F64, MAX_F64, PK_ADD_F16, PK_ADD_BF16, MIN_F32, MAX_F32 };
template <class U, class I> U changed(int what, U old, U x, U compare) {
    switch (what) {
        case SWAP: return x; case CMPSWAP: return old == compare ? x : old; case ADD: return old + x; case SUB: return old - x;
        case SMIN: return U(least(I(old), I(x))); case UMIN: return least(old, x); case SMAX: return U(most(I(old), I(x))); case UMAX: return most(old, x);
        case AND: return old & x; case OR: return old | x; case XOR: return old ^ x; case INC: return old >= x ? 0 : old + 1; case DEC: return old == 0 || old > x ? x : old - 1;
    }
    if constexpr (sizeof(U) == 4) switch (what) {
        case ADD_F32: return as<u32>(as<f32>(old) + as<f32>(x)); case MIN_F32: return as<u32>(smaller(as<f32>(old), as<f32>(x))); case MAX_F32: return as<u32>(larger(as<f32>(old), as<f32>(x)));
        case PK_ADD_F16: return half_bits(half(old) + half(x)) | half_bits(half(old >> 16) + half(x >> 16)) << 16;
        case PK_ADD_BF16: return bf16_of(as<f32>(old << 16) + as<f32>(x << 16)) | bf16_of(as<f32>(old & 0xffff0000) + as<f32>(x & 0xffff0000)) << 16;
    } else switch (what) {
        case ADD_F64: return as<u64>(as<f64>(old) + as<f64>(x)); case MIN_F64: return as<u64>(smaller(as<f64>(old), as<f64>(x))); case MAX_F64: return as<u64>(larger(as<f64>(old), as<f64>(x)));
    }
    fail("an atomic operation is not emulated at this width");
}
// o: 0 result or none, 1 address, 2 base or descriptor, 3 soffset, 4 data, 5 what is compared with (LDS)
template <Space S> void atomic(W& w, const In& in) {
    u64 at[LANES]; u32 size = in.aux[2]; u64 exec = w.exec(), mask = addresses<S>(w, in, at, size); int what = in.aux[5];
    count_access<S>(w, in, at, mask, size);
    if (S != LDS) w.launch->stored += u64(__builtin_popcountll(mask)) * size;
    u32 out[2][LANES] = {}; int data = in.o[4].number, each = size / 4;
    auto value = [&](int r, int l) { u64 x = w.v[r][l]; return size == 8 ? x | u64(w.v[r + 1][l]) << 32 : x; };
    for (int l = 0; l < LANES; l++) {
        if (!(mask >> l & 1)) continue;
        u8* p = place<S>(w, at[l], size, l);
        u64 old = 0, x = value(data, l), compare = 0; memcpy(&old, p, size);
        if (what == CMPSWAP) { if (S == LDS) { compare = x; x = value(in.o[5].number, l); } else compare = value(data + each, l); }
        u64 fresh = size == 4 ? u64(changed<u32, i32>(what, u32(old), u32(x), u32(compare))) : changed<u64, i64>(what, old, x, compare);
        if (!w.steps || S == LDS) memcpy(p, &fresh, size);
        out[0][l] = u32(old); out[1][l] = u32(old >> 32);
    }
    const bool returns = in.flags & RETURNS;
    issue(w, queue_of<S>(w, returns), in.o[0].number, returns ? each : 0, exec);
    if (returns) for (int i = 0; i < each; i++) commit(w.v[in.o[0].number + i], out[i], exec);
}
// A flat instruction: each lane's address decides whether it is in memory, in LDS or in scratch (operands.py: APERTURES)
constexpr u32 SHARED_HIGH = 1 << 16, PRIVATE_HIGH = 2 << 16;
template <void (*GLOBALLY)(W&, const In&), void (*LOCALLY)(W&, const In&), void (*PRIVATELY)(W&, const In&)>
void flat(W& w, const In& in) {
    const u64 exec = w.exec(); u64 shared = 0, own = 0;
    const u32* high = w.v[in.o[1].number + 1];
    for (int l = 0; l < LANES; l++) { shared |= u64(high[l] == SHARED_HIGH) << l; own |= u64(high[l] == PRIVATE_HIGH) << l; }
    shared &= exec; own &= exec;
    if (LANES == 32 && !shared) issue(w, SHARED);  // it counts in both counters; on gfx9 that of LDS says nothing then
    if (!(shared | own)) return GLOBALLY(w, in);
    const u64 masks[] = {exec & ~(shared | own), shared, own};
    void (*const functions[])(W&, const In&) = {GLOBALLY, LOCALLY, PRIVATELY};
    if (shared == exec) issue(w, GLOBALLY == load<GLOBAL> || in.flags & RETURNS || LANES == 64 ? LOADS : STORES);
    w.flat = true;
    for (int i = 0; i < 3; i++) if (masks[i]) { w.set_mask(EXEC, masks[i]); functions[i](w, in); }
    w.flat = false; w.set_mask(EXEC, exec);
}
