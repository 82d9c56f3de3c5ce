// The machine: one wave's registers, operands, memory with faults, and the instructions that are
// no plain function of a lane's operands. Sections are those of the MI300 ISA manual.
constexpr int EXEC = 126, VCC = 106, M0 = 124, TTMP7 = 115, TTMP8 = 116, TTMP9 = 117;
constexpr u32 POISON = 0xFFF7BAD5;  // NaN as f32, f64 and bf16, and no address
constexpr u32 SCRATCH_BUFFER = 0x5C7A7C40;
constexpr u64 CODE = 0x40DEull << 32;  // where the addresses of functions begin: 4 bytes for each record
constexpr u64 ALL = ~0ull >> (64 - LANES);

enum Kind : u8 { NONE, VECTOR, SCALAR, CONSTANT, BIT };
enum Modifier : u8 { NEGATIVE = 1, ABSOLUTE = 2, SIGNED = 4 };
enum Flag : u16 { DPP = 1, SDWA = 2, OUTPUT = 4, HALVES = 8, RETURNS = 16, OFFEN = 32, TO_LDS = 64 };

struct Operand { u8 kind, modifiers; u16 number; u32 low, high; };
struct Instruction { u16 operation, flags; i32 line; Operand o[6]; i32 aux[8]; };
struct Range { u64 first, size; };
// Instructions that a wave ran one after another for one source line: `line` is a number of the decoder's
struct Run { u32 epoch, line, cycles; };
// For the clock: an instruction that a wave executed, with the lines of 64 bytes that it touched, or its bytes and conflicts in LDS
struct Step { u32 pc, line, bytes; u16 lines, conflicts; };
enum Unit : u8 { SALU, VALU, MATRIX_UNIT, VMEM_LOAD, VMEM_STORE, LDS_UNIT, SMEM, WAIT, BARRIER, FREE, UNITS };
struct Trace { std::vector<u64> lines; const u8* units; u64 room; };
struct Launch {
    const Instruction* code; u64 length; const Range* ranges; u64 range_count;
    u64 kernarg, kernarg_size, limit; u32 grid[3]; u32 threads, lds_bytes, scratch_bytes;
    u32 kernarg_sgpr, preload_sgprs, preload_offset, group_sgpr, group_ids, group_in_trap_registers, registers;
    u64 *counts, *lanes; u64 conflicts, lines64, lines128, bytes, stored;
    u64 touched64, lds_bytes_moved; u64* const* seen;  // per range, one bit for each 64 bytes
    u32 lds_unit, backwards, races_pass, apart; u64 other; u32 sides[2];  // `apart`: its waves may have several L0 caches
    u64 *lines_at, *conflicts_at;  // by instruction
    const u64* touched;  // by instruction, a bit for each register that it reads, or writes at once
    const u32* cycles; Run* runs; u32 run_room; u32* run_counts;  // of the first workgroup: room and number of each wave's runs
    u64 step;  // every so many workgroups run; 0 is 1
    Trace* trace;  // or null
};
struct Fault { char text[200]; };
template <class... T> [[noreturn]] void fail(const char* form, T... given) {
    Fault f; snprintf(f.text, sizeof f.text, form, given...); throw f;
}

// Who touched a unit of LDS since the last barrier, or before it without a wait (`late`): bit n stands for wave n
struct Touched { u32 epoch; u32 wrote, read, late; u32 writer, reader; };
struct Late { u32 wave; Flight flight; };
struct Machine {
    Launch& launch; std::vector<u8> lds; const Range* last = nullptr;
    u32 epoch = 0, wave = 0, unit; bool alone, first = true; u64 pc = 0; std::vector<Touched> touched;
    std::vector<Late> late, stores;  // in flight as their wave came to the barrier; stores that were at the last one
    explicit Machine(Launch& l)
        : launch(l), lds(l.lds_bytes), unit(l.lds_unit), alone(l.threads <= LANES || l.races_pass), touched(alone ? 0 : l.lds_bytes / unit + 1) {}

    bool holds(u64 address, u32 size) const { return last && address - last->first < last->size && address - last->first + size <= last->size; }
    // The last range that begins at or before an address; null where none does
    const Range* before(u64 address) const {
        const Range* end = launch.ranges + launch.range_count;
        const Range* found = std::upper_bound(launch.ranges, end, address, [](u64 a, const Range& r) { return a < r.first; });
        return found == launch.ranges ? nullptr : found - 1;
    }
    // As `holds`, in whatever range
    bool finds(u64 address, u32 size) {
        if (holds(address, size)) return true;
        if (const Range* found = before(address)) last = found;
        return holds(address, size);
    }
    u8* memory(u64 address, u32 size) {
        if (finds(address, size)) return (u8*)address;
        const Range* found = before(address);
        const u64 past = found ? address + size - found->first - found->size : ~0ull;
        if (past < 1 << 20)
            fail("an access of %u bytes ends %llu bytes past the end of a tensor", size, (unsigned long long)past);
        fail("an access of %u bytes lies in no tensor", size);
    }
    // Counts each 64 bytes of the tensors once, however often they are read and written.
    void touch(u64 line) {
        auto holds = [&](const Range* r) { return line >= r->first >> 6 && line <= (r->first + r->size - 1) >> 6; };
        if (!last || !holds(last)) {
            const Range* found = before(line << 6 | 63);
            if (!found || !holds(found)) return;  // the access itself will fail
            last = found;
        }
        const u64 bit = line - (last->first >> 6); u64& word = launch.seen[last - launch.ranges][bit / 64];
        launch.touched64 += !(word >> (bit & 63) & 1); word |= 1ull << (bit & 63);
    }
    // The same for neighbours in the last range
    void touch_row(u64 line, u64 count) {
        u64* seen = launch.seen[last - launch.ranges]; u64 bit = line - (last->first >> 6);
        while (count) {
            const u64 at = bit & 63, some = least(count, 64 - at), bits = (some == 64 ? ~0ull : (1ull << some) - 1) << at;
            u64& word = seen[bit / 64];
            launch.touched64 += u64(__builtin_popcountll(bits & ~word)); word |= bits;
            bit += some; count -= some;
        }
    }
    u8* shared(u64 address, u32 size) {
        if (address + size > lds.size()) fail("an access of %u bytes at %llu is outside the %llu bytes of LDS", size, (unsigned long long)address, (unsigned long long)lds.size());
        return lds.data() + address;
    }
    // What a wave's runs leave no room for is not noted.
    void note(const Instruction& in) {
        Run* runs = launch.runs + u64(wave) * launch.run_room; u32& count = launch.run_counts[wave];
        if (count && runs[count - 1].line == u32(in.line) && runs[count - 1].epoch == epoch) { runs[count - 1].cycles += launch.cycles[pc]; return; }
        if (count < launch.run_room) runs[count++] = {epoch, u32(in.line), launch.cycles[pc]};
    }
    // Waves meet at barriers only. Between two of them, what one wave writes no other may read or change.
    [[noreturn]] void race(u64 at, const char* did, const char* had, u32 waves, u32 place, u32 in_flight) {
        launch.other = u64(place) + 1; const int other = __builtin_ctz(waves);
        fail("a race in LDS: wave %u %s at %llu what wave %d %s %s", wave, did, (unsigned long long)at, other, had, in_flight >> other & 1 ? "before the last barrier without waiting for it" : "since the last barrier");
    }
    // What a wave has not waited for as it comes to a barrier goes on behind it.
    void leave(Flights& flights) {
        if (alone) return;
        for (u32 q = 0; q < QUEUES; q++) for (u32 i = 0; i < flights.count[q]; i++) if (flights.of(q, i).touched) late.push_back({wave, flights.of(q, i)});
    }
    void pass_barrier() {
        epoch++; stores.clear();
        for (const Late& one : late) {
            const Flight& f = one.flight; const u32 him = 1u << one.wave;
            if (f.queue == STORES) { stores.push_back(one); continue; }
            for (int part = 0; part <= (f.gap != 0); part++) for (u64 left = f.touched; left; left &= left - 1) {
                const u64 first = f.at[__builtin_ctzll(left)] + u64(part * f.gap);
                for (u64 at = first; at < first + f.size; at += unit) {
                    Touched& t = since_barrier(at);
                    if (f.writes) t.wrote |= him, t.writer = f.pc; else t.read |= him, t.reader = f.pc;
                    t.late |= him;
                }
            }
        }
        late.clear();
    }
    Touched& since_barrier(u64 address) {
        Touched& t = touched[address / unit];
        if (t.epoch != epoch) t = {epoch, 0, 0, 0, 0, 0};
        return t;
    }
    void read_shared(u64 address, void* to, u32 size) {
        memcpy(to, shared(address, size), size);
        if (alone) return;
        const u32 me = 1u << wave;
        for (u64 at = address; at < address + size; at += unit) {
            Touched& t = since_barrier(at);
            if (t.wrote && !(t.wrote & me)) race(at, "reads", "wrote", t.wrote, t.writer, t.late);
            t.read |= me; t.reader = u32(pc);
        }
    }
    // What an instruction's lanes write. The same value written again is no change: waves that hold copies of a value may
    // all store it. What lies there after the last lane counts, as copies in a wave's lanes may differ in their last bits.
    // Returns the lanes whose writes count.
    u64 write_lanes(const u64* at, u64 mask, const u32 (*x)[4], u32 size) {
        u8 old[LANES][16]; u64 changed = 0;
        if (!alone) for (u64 left = mask; left; left &= left - 1) { const int l = __builtin_ctzll(left); memcpy(old[l], shared(at[l], size), size); }
        for (u64 left = mask; left; left &= left - 1) { const int l = __builtin_ctzll(left); memcpy(shared(at[l], size), x[l], size); }
        if (!alone) for (u64 left = mask; left; left &= left - 1) { const int l = __builtin_ctzll(left); changed |= u64(note_write(at[l], old[l], size)) << l; }
        return changed;
    }
    bool note_write(u64 address, const u8* old, u32 size) {
        const u8* now = lds.data() + address; const u32 me = 1u << wave; bool noted = false;
        for (u32 i = 0; i < size; i += unit) {
            Touched& t = since_barrier(address + i);
            if (memcmp(now + i, old + i, least(unit, size - i))) {
                if (t.wrote & ~me) race(address + i, "changes", "wrote", t.wrote & ~me, t.writer, t.late);
                if (t.read & ~me) race(address + i, "changes", "read", t.read & ~me, t.reader, t.late);
            } else if (!t.wrote) continue;
            t.wrote |= me; t.writer = u32(pc); noted = true;
        }
        return noted;
    }
};

struct alignas(64) Wave {
    u32 v[512][LANES]; u32 s[128]; u32 scc = 0; u64 pc = 0; u64 base; bool ended = false; bool waits = false; bool clamps = false;  // FP16_OVFL
    Machine* m; Launch* launch; std::vector<u8> scratch; Flights flights; bool flat = false;  // in a flat instruction
    std::vector<Step>* steps = nullptr;
    u64 pair(int n) const { u64 x; memcpy(&x, s + n, 8); return x; }
    void set_pair(int n, u64 x) { memcpy(s + n, &x, 8); }
    // One bit for each lane: a pair of registers, or one where a wave has 32
    u64 mask(int n) const { return LANES == 64 ? pair(n) : s[n]; }
    void set_mask(int n, u64 x) { memcpy(s + n, &x, LANES / 8); }
    u64 exec() const { return mask(EXEC); }
};
using W = Wave; using In = Instruction;

// ---- operands ----
inline u64 scalar64(const W& w, const Operand& o) {
    if (o.kind == SCALAR) return w.pair(o.number);
    if (o.kind == CONSTANT) return u64(o.high) << 32 | o.low;
    if (o.kind == BIT) return o.number == 0 ? w.scc : o.number == 1 ? w.mask(VCC) == 0 : w.exec() == 0;
    fail("a scalar operand is missing");
}
inline u32 scalar32(const W& w, const Operand& o) { return o.kind == SCALAR ? w.s[o.number] : u32(scalar64(w, o)); }
inline u64 mask_of(const W& w, const Operand& o) { return LANES == 64 ? scalar64(w, o) : scalar32(w, o); }
inline u32 picked(u32 x, int selection, bool is_signed) {  // SDWA: bytes 0-3, words 4-5, 6 for all
    if (selection == 6) return x;
    u32 part = selection < 4 ? x >> 8 * selection & 255 : x >> 16 * (selection - 4) & 0xffff;
    return !is_signed ? part : selection < 4 ? u32(i32(int8_t(part))) : u32(i32(i16(part)));
}
// `sign`: the bit that negation turns, 31 or 15
inline const u32* vector32(const W& w, const In& in, int k, u32* t, int sign, const u32* moved = nullptr) {
    const Operand& o = in.o[k];
    const u32* p = moved;
    if (!p && o.kind == VECTOR) p = w.v[o.number];
    else if (!p) { u32 x = scalar32(w, o); for (int l = 0; l < LANES; l++) t[l] = x; p = t; }
    if (!o.modifiers && !(in.flags & (SDWA | HALVES))) return p;
    if (in.flags & SDWA && k <= 2) {
        int selection = in.aux[3] >> 4 * (k - 1) & 15;
        for (int l = 0; l < LANES; l++) t[l] = picked(p[l], selection, o.modifiers & SIGNED);
        p = t;
    }
    u32 shift = in.flags & HALVES && (in.aux[2] >> (k - 1) & 1) ? 16 : 0;
    u32 keep = o.modifiers & ABSOLUTE ? ~(1u << sign) : ~0u, turn = o.modifiers & NEGATIVE ? 1u << sign : 0;
    for (int l = 0; l < LANES; l++) t[l] = ((p[l] >> shift) & keep) ^ turn;
    return t;
}
inline const u32* whole(const W& w, const Operand& o, u32* t) {
    if (o.kind == VECTOR) return w.v[o.number];
    const u32 x = scalar32(w, o);
    for (int l = 0; l < LANES; l++) t[l] = x;
    return t;
}
inline const u64* vector64(const W& w, const In& in, int k, u64* t) {
    const Operand& o = in.o[k];
    if (o.kind == VECTOR) { const u32 *low = w.v[o.number], *high = w.v[o.number + 1]; for (int l = 0; l < LANES; l++) t[l] = u64(high[l]) << 32 | low[l]; }
    else { u64 x = scalar64(w, o); for (int l = 0; l < LANES; l++) t[l] = x; }
    u64 keep = o.modifiers & ABSOLUTE ? ~0ull >> 1 : ~0ull, turn = o.modifiers & NEGATIVE ? 1ull << 63 : 0;
    if (o.modifiers) for (int l = 0; l < LANES; l++) t[l] = (t[l] & keep) ^ turn;
    return t;
}
// 16 bits put into the half of a register that `op_sel` names; the other half is kept
inline u32 into_half(u32 old, u32 x, const In& in) { return in.aux[2] >> 3 & 1 ? (old & 0xffff) | x << 16 : (old & 0xffff0000) | x; }
// "Data Parallel Processing": the lane that each lane reads; -1 where there is none
inline int dpp_source(int control, int l) {
    int row = l & ~15, at = l & 15, n = control & 15;
    if (control >> 24) return (l & ~7) | (control >> 3 * (l & 7) & 7);  // DPP8
    if (control < 0x100) return (l & ~3) | (control >> 2 * (l & 3) & 3);
    if (control < 0x110) return at + n < 16 ? row + at + n : -1;
    if (control < 0x120) return at - n >= 0 ? row + at - n : -1;
    if (control < 0x130) return row + ((at - n) & 15);
    switch (control) {
        case 0x130: return l + 1 < 64 ? l + 1 : -1;
        case 0x134: return (l + 1) & 63;
        case 0x138: return l - 1;
        case 0x13c: return (l - 1) & 63;
        case 0x140: return row + 15 - at;
        case 0x141: return (l & ~7) + 7 - (l & 7);
        case 0x142: return l >= 16 ? row - 1 : -1;
        case 0x143: return l >= 32 ? 31 : -1;
    }
    return row + (control < 0x160 ? n : at ^ n);  // row_newbcast or row_share, row_xmask
}
struct Moves { int control = -1; u8 source[LANES]; u64 has; };
static const Moves& moves(int control) {  // the same each time, so kept
    static thread_local Moves known[32]; Moves& m = known[(control ^ control >> 5) & 31];
    if (m.control == control) return m;
    m.control = control; m.has = 0;
    for (int l = 0; l < LANES; l++) { const int source = dpp_source(control, l); m.source[l] = u8(most(source, 0)); m.has |= u64(source >= 0) << l; }
    return m;
}
inline u64 move_lanes(const W& w, const In& in, const u32* from, u32* t, u64 mask) {
    const int rows = in.aux[1] & 15, banks = in.aux[1] >> 4 & 15; const bool zero = in.aux[1] >> 8 & 1; const u64 exec = in.aux[1] >> 9 & 1 ? ALL : w.exec();
    const Moves& m = moves(in.aux[0]); u64 valid = m.has;
    for (int l = 0; l < LANES; l++) t[l] = from[m.source[l]];
    if (exec != ALL) { u64 on = 0; for (int l = 0; l < LANES; l++) on |= (exec >> m.source[l] & 1) << l; valid &= on; }
    if (valid != ALL && zero) for (int l = 0; l < LANES; l++) t[l] = valid >> l & 1 ? t[l] : 0;
    u64 kept = zero ? ALL : valid;
    for (int l = 0; l < LANES; l += 4) if (!(rows >> (l >> 4) & 1 && banks >> (l >> 2 & 3) & 1)) kept &= ~(15ull << l);
    return mask & kept;
}
// RDNA keeps the other half of a register that a result of 16 bits goes to; CDNA clears it
inline void finish(const In& in, u32* d, u32* out, bool is_float, bool keeps) {
    if (in.flags & OUTPUT && is_float) {
        f32 factor = in.aux[4] >> 1 == 1 ? 2 : in.aux[4] >> 1 == 2 ? 4 : in.aux[4] >> 1 == 3 ? 0.5f : 1; bool clamp = in.aux[4] & 1;
        for (int l = 0; l < LANES; l++) { f32 x = as<f32>(out[l]) * factor; if (clamp) x = x > 0 ? (x < 1 ? x : 1) : 0; out[l] = as<u32>(x); }
    }
    if (in.flags & SDWA) {
        int selection = in.aux[3] >> 8 & 15, unused = in.aux[3] >> 12;  // 0 zero, 1 sign, 2 kept
        if (selection == 6) return;
        int at = selection < 4 ? 8 * selection : 16 * (selection - 4), width = selection < 4 ? 8 : 16;
        u32 mask = ((1u << width) - 1) << at;
        for (int l = 0; l < LANES; l++) {
            u32 x = out[l] << at & mask, rest = unused == 2 ? d[l] & ~mask : 0;
            if (unused == 1 && x >> (at + width - 1) & 1) rest = ~((1ull << (at + width)) - 1);
            out[l] = x | rest;
        }
    }
    if (in.flags & HALVES && in.aux[2] >> 3 & 1) for (int l = 0; l < LANES; l++) out[l] = out[l] << 16 | (d[l] & 0xffff);
    else if (keeps) for (int l = 0; l < LANES; l++) out[l] |= d[l] & 0xffff0000;
}
inline void commit(u32* d, const u32* out, u64 mask) {
    if (mask == ALL) { memcpy(d, out, 4 * LANES); return; }
    u32 on[LANES]; spread(mask, on);
    for (int l = 0; l < LANES; l++) d[l] = (out[l] & on[l]) | (d[l] & ~on[l]);
}
inline u64 packed_bits(const u8* b) {
    u64 r = 0;
    for (int i = 0; i < LANES / 8; i++) { u64 x; memcpy(&x, b + 8 * i, 8); r |= (x * 0x0102040810204080ull >> 56) << 8 * i; }
    return r;
}

// ---- waits ---- of each queue as many operations may stay as aux says; -1 for all
inline void wait_for(W& w, const In& in) {
    for (u32 q = 0; q < QUEUES; q++) if (in.aux[q] == 0 || (in.aux[q] > 0 && q != UNORDERED)) w.flights.retire(q, u32(in.aux[q]));
}
[[noreturn]] inline void early(W& w, const Flight& f, u32 r) {
    w.launch->other = u64(f.pc) + 1;
    const u32 number = r < 256 ? r : r < VECTORS ? r - 256 : r - VECTORS; const char kind = r < 256 ? 'v' : r < VECTORS ? 'a' : 's';
    if (r >= VECTORS && (number == VCC || number == VCC + 1)) fail("vcc is used before its load has been waited for");
    fail("%c%u is used before its load has been waited for", kind, number);
}
// Lanes that were off at the load keep their values.
[[gnu::noinline]] static void check_registers(W& w, const u64* touched) {
    for (u32 q = 0; q < QUEUES; q++) for (u32 i = 0; i < w.flights.count[q]; i++) {
        const Flight& f = w.flights.of(q, i);
        if (f.first < VECTORS && !(f.lanes & w.exec())) continue;
        for (u32 r = f.first; r < u32(f.first) + f.registers; r++) if (touched[r >> 6] >> (r & 63) & 1) early(w, f, r);
    }
}
// A register is loaded while another load into it is in flight: only those of one queue return in order.
[[gnu::noinline]] static void check_loaded(W& w, u32 queue, u32 first, u32 registers, u64 lanes) {
    for (u32 q = 0; q < QUEUES; q++) for (u32 i = 0; (q != queue || q == UNORDERED) && i < w.flights.count[q]; i++) {
        const Flight& f = w.flights.of(q, i);
        if (f.registers && f.first < first + registers && first < u32(f.first) + f.registers && (f.first >= VECTORS || f.lanes & lanes)) early(w, f, most(u32(f.first), first));
    }
}
inline Flight& issue(W& w, u32 queue, u32 first = 0, u32 registers = 0, u64 lanes = 0) {
    if (registers && w.flights.any) check_loaded(w, queue, first, registers, lanes);
    return w.flights.issue(queue, LANES == 64 && queue >= SHARED ? 15 : 63, u32(w.m->pc), first, registers, lanes);
}
// Loads to LDS come later than an access to LDS of their own wave that has not waited for them.
[[gnu::noinline]] static void check_copies(W& w, const u64* at, u64 mask, u32 size) {
    for (u32 i = 0; i < w.flights.count[LOADS]; i++) {
        const Flight& f = w.flights.of(LOADS, i);
        for (u64 left = f.touched ? mask : 0; left; left &= left - 1) {
            const u64 a = at[__builtin_ctzll(left)];
            if (a >= f.high || a + size <= f.low) continue;
            for (u64 his = f.touched; his; his &= his - 1) {
                const u64 b = f.at[__builtin_ctzll(his)];
                if (a < b + f.size && b < a + size) { w.launch->other = u64(f.pc) + 1; fail("the bytes at %llu in LDS are used before the load to them has been waited for", (unsigned long long)a); }
            }
        }
    }
}
// RDNA: the waves of a workgroup may have several L0 caches, so a store in flight at a barrier is not seen behind it.
[[gnu::noinline]] static void check_stores(W& w, const u64* at, u64 mask, u32 size) {
    for (u64 left = mask; left; left &= left - 1) {
        const u64 a = at[__builtin_ctzll(left)]; const Late* found = nullptr;
        for (const Late& one : w.m->stores) {
            const Flight& f = one.flight; const bool own = one.wave == w.m->wave;
            if (a >= f.high || a + size <= f.low) continue;
            for (u64 his = own ? f.touched : f.touched & f.lanes; his; his &= his - 1) {
                const u64 b = f.at[__builtin_ctzll(his)];
                if (a >= b + f.size || b >= a + size) continue;
                if (own) goto next;  // its own store is done, and may have been the same
                found = &one;
            }
        }
        if (found) { w.launch->other = u64(found->flight.pc) + 1; fail("a race: wave %u reads what wave %u stored before the last barrier without waiting for it", w.m->wave, found->wave); }
        next:;
    }
}
inline void counted(W& w, const In& in) { issue(w, u32(in.aux[0])); }  // what a counter counts besides, such as a write-back

// ---- lanes: readlane and its kin, permutations of LDS hardware ----
inline int first_lane(u64 mask) { return mask ? __builtin_ctzll(mask) : 0; }
inline void v_readfirstlane_b32(W& w, const In& in) {
    const Operand& o = in.o[1];
    w.s[in.o[0].number] = o.kind == VECTOR ? w.v[o.number][first_lane(w.exec())] : scalar32(w, o);
}
inline void v_readlane_b32(W& w, const In& in) { w.s[in.o[0].number] = w.v[in.o[1].number][scalar32(w, in.o[2]) & (LANES - 1)]; }
inline void v_writelane_b32(W& w, const In& in) { w.v[in.o[0].number][scalar32(w, in.o[2]) & (LANES - 1)] = scalar32(w, in.o[1]); }
inline void v_swap_b32(W& w, const In& in) {
    u32 *a = w.v[in.o[0].number], *b = w.v[in.o[1].number]; u64 mask = w.exec();
    for (int l = 0; l < LANES; l++) if (mask >> l & 1) std::swap(a[l], b[l]);
}
inline void swap_rows(W& w, const In& in, int size) {
    u32 *a = w.v[in.o[0].number], *b = w.v[in.o[1].number];
    for (int l = 0; l < LANES; l++) if (l & size) std::swap(a[l], b[l - size]);
}
inline void v_permlane16_swap_b32(W& w, const In& in) { swap_rows(w, in, 16); }
inline void v_permlane32_swap_b32(W& w, const In& in) { swap_rows(w, in, 32); }
// Each lane reads one of 16, in its own row or across in the other; aux[0]: 1 from lanes that are off too, 2 or zero
inline void permute_rows(W& w, const In& in, int across) {
    const u32* from = w.v[in.o[1].number]; u32 *d = w.v[in.o[0].number], out[LANES]; u64 mask = w.exec();
    const u64 selected = scalar32(w, in.o[2]) | u64(scalar32(w, in.o[3])) << 32;
    for (int l = 0; l < LANES; l++) {
        int source = ((l & ~15) ^ across) | int(selected >> 4 * (l & 15) & 15);
        out[l] = in.aux[0] & 1 || mask >> source & 1 ? from[source] : in.aux[0] & 2 ? 0 : d[l];
    }
    commit(d, out, mask);
}
inline void v_permlane16_b32(W& w, const In& in) { permute_rows(w, in, 0); }
inline void v_permlanex16_b32(W& w, const In& in) { permute_rows(w, in, 16); }
inline void v_fma_mix(W& w, const In& in, int form) {  // form 0: f32, 1: low half, 2: high half
    u32* d = w.v[in.o[0].number]; u64 mask = w.exec();
    u32 t[3][LANES], out[LANES]; const u32* p[3];
    for (int k = 0; k < 3; k++) { const Operand& o = in.o[k + 1]; if (o.kind == VECTOR) p[k] = w.v[o.number]; else { u32 x = scalar32(w, o); for (int l = 0; l < LANES; l++) t[k][l] = x; p[k] = t[k]; } }
    int sel = in.aux[2] & 255, high = in.aux[2] >> 8 & 255, neg = in.aux[2] >> 16 & 255, abs = u32(in.aux[2]) >> 24;
    for (int l = 0; l < LANES; l++) {
        f32 x[3];
        for (int k = 0; k < 3; k++) {
            x[k] = high >> k & 1 ? half(sel >> k & 1 ? p[k][l] >> 16 : p[k][l]) : as<f32>(p[k][l]);
            if (abs >> k & 1) x[k] = std::fabs(x[k]);
            if (neg >> k & 1) x[k] = -x[k];
        }
        f32 r = form ? f16_of(f64(x[0]) * x[1] + x[2]) : fma_f32(x[0], x[1], x[2]);
        out[l] = form == 0 ? as<u32>(r) : form == 1 ? half_bits(r, w.clamps) | (d[l] & 0xffff0000) : half_bits(r, w.clamps) << 16 | (d[l] & 0xffff);
    }
    commit(d, out, mask);
}
inline void v_fma_mix_f32(W& w, const In& in) { v_fma_mix(w, in, 0); }
inline void v_fma_mixlo_f16(W& w, const In& in) { v_fma_mix(w, in, 1); }
inline void v_fma_mixhi_f16(W& w, const In& in) { v_fma_mix(w, in, 2); }
inline void v_pk_mov_b32(W& w, const In& in) {
    u64 a[LANES], b[LANES]; vector64(w, in, 1, a); vector64(w, in, 2, b);
    u32 low[LANES], high[LANES]; int sel = in.aux[2];
    for (int l = 0; l < LANES; l++) { low[l] = u32(a[l] >> (sel & 1 ? 32 : 0)); high[l] = u32(b[l] >> (sel & 2 ? 32 : 0)); }
    commit(w.v[in.o[0].number], low, w.exec()); commit(w.v[in.o[0].number + 1], high, w.exec());
}
inline void ds_bpermute_b32(W& w, const In& in) {
    const u32 *at = w.v[in.o[1].number], *from = w.v[in.o[2].number]; u64 mask = w.exec(); u32 out[LANES];
    for (int l = 0; l < LANES; l++) { int source = (at[l] + in.aux[0]) >> 2 & (LANES - 1); out[l] = mask >> source & 1 ? from[source] : 0; }
    commit(w.v[in.o[0].number], out, mask); issue(w, SHARED, in.o[0].number, 1, mask);
}
inline void ds_permute_b32(W& w, const In& in) {
    const u32 *at = w.v[in.o[1].number], *from = w.v[in.o[2].number]; u64 mask = w.exec(); u32 out[LANES] = {};
    for (int l = 0; l < LANES; l++) if (mask >> l & 1) out[(at[l] + in.aux[0]) >> 2 & (LANES - 1)] = from[l];
    commit(w.v[in.o[0].number], out, mask); issue(w, SHARED, in.o[0].number, 1, mask);
}
inline void ds_swizzle_b32(W& w, const In& in) {
    const u32* from = w.v[in.o[1].number]; u64 mask = w.exec(); u32 out[LANES], c = in.aux[0];
    for (int l = 0; l < LANES; l++) {
        int source = c >> 15 ? (l & ~3) | (c >> 2 * (l & 3) & 3) : (l & 32) | ((((l & 31) & c) | (c >> 5 & 31)) ^ (c >> 10 & 31));
        out[l] = mask >> source & 1 ? from[source] : 0;
    }
    commit(w.v[in.o[0].number], out, mask); issue(w, SHARED, in.o[0].number, 1, mask);
}

// ---- flow ----
inline void jump(W& w, const In& in) { w.pc = u64(i64(in.aux[0])); }
inline void nothing(W&, const In&) {}
inline void sleep(W&, const In&) {}  // the loop gives others their turn
inline void s_branch(W& w, const In& in) { jump(w, in); }
inline void s_cbranch_scc0(W& w, const In& in) { if (!w.scc) jump(w, in); }
inline void s_cbranch_scc1(W& w, const In& in) { if (w.scc) jump(w, in); }
inline void s_cbranch_vccz(W& w, const In& in) { if (!w.mask(VCC)) jump(w, in); }
inline void s_cbranch_vccnz(W& w, const In& in) { if (w.mask(VCC)) jump(w, in); }
inline void s_cbranch_execz(W& w, const In& in) { if (!w.exec()) jump(w, in); }
inline void s_cbranch_execnz(W& w, const In& in) { if (w.exec()) jump(w, in); }
inline void s_setreg_overflow(W& w, const In& in) { w.clamps = in.aux[0] & 1; }
inline void go_to(W& w, u64 address) {
    if (address < CODE || address % 4 || (address - CODE) / 4 >= w.launch->length) fail("a call or a return to %#llx, where no function is", (unsigned long long)address);
    w.pc = (address - CODE) / 4;
}
inline void s_swappc_b64(W& w, const In& in) { const u64 to = w.pair(in.o[1].number); w.set_pair(in.o[0].number, CODE + 4 * w.pc); go_to(w, to); }
inline void s_setpc_b64(W& w, const In& in) { go_to(w, w.pair(in.o[0].number)); }
inline void s_endpgm(W& w, const In&) { w.ended = true; }
inline void s_barrier(W& w, const In&) { w.m->leave(w.flights); w.waits = true; }
inline void s_barrier_signal(W& w, const In&) { w.m->leave(w.flights); }  // a wave waits for all, and so for their signals
inline void s_barrier_wait(W& w, const In&) { w.waits = true; }
inline void s_trap(W&, const In&) { fail("the kernel trapped: a device assertion failed"); }
