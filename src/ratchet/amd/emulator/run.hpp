// The loop: the waves of a workgroup in turn, each up to its barrier. A workgroup that runs long is set aside for
// others, so that one may wait for what another does.
constexpr u64 SLICE = 1 << 20;  // instructions of a workgroup until others have their turn
constexpr u64 SHORT_SLICE = 1 << 14;  // the same once one was set aside: many may wait for one
constexpr u64 MOST_LIVE = 2048;  // waves of workgroups that have begun
static void begin(Wave& w, const Launch& c, Machine& m, const u32* group, u32 wave) {
    for (u32 r = 0; r < 512; r++) if (c.registers >> (r / 32) & 1) std::fill(w.v[r], w.v[r] + LANES, POISON);
    std::fill(w.s, w.s + 128, POISON);
    w.flights.clear(); w.scc = 0; w.pc = 0; w.ended = w.waits = w.clamps = false; w.m = &m; w.launch = const_cast<Launch*>(&c);
    u32 left = c.threads - wave * LANES;
    w.set_mask(EXEC, left >= LANES ? ALL : (1ull << left) - 1);
    for (u32 l = 0; l < LANES; l++) {  // x, y and z in 10 bits each (LLVM's AMDGPUUsage, "packed work-item IDs")
        u32 at = wave * LANES + l, row = at / c.sides[0];
        w.v[0][l] = at % c.sides[0] | row % c.sides[1] << 10 | row / c.sides[1] << 20;
    }
    w.set_pair(c.kernarg_sgpr, c.kernarg);
    for (u32 i = 0; i < c.preload_sgprs; i++) memcpy(w.s + c.kernarg_sgpr + 2 + i, (const u8*)c.kernarg + c.preload_offset + 4 * i, 4);
    u32 at = c.group_sgpr;
    for (int axis = 0; axis < 3; axis++) if (c.group_ids >> axis & 1) w.s[at++] = group[axis];
    if (c.kernarg_sgpr) { w.s[0] = w.s[1] = w.s[at] = 0; w.s[2] = ~0u; w.s[3] = SCRATCH_BUFFER; }  // and the wave's offset in it
    if (c.group_in_trap_registers) {
        w.s[TTMP9] = group[0]; w.s[TTMP7] = group[1] | group[2] << 16;
        w.s[TTMP8] = (POISON & ~(31u << 25)) | wave << 25;
    }
    w.scratch.assign(u64(c.scratch_bytes) * LANES, 0xD5);
}
static void go(Wave& w, Launch& c, u64& left, u64& slice) {
    for (; !w.ended && !w.waits && slice; slice--) {
        if (w.pc >= c.length) fail("the code runs past its end");
        const Instruction& in = c.code[w.pc];
        if (w.steps) {
            if (w.steps->size() >= c.trace->room) { w.ended = true; return; }
            w.steps->push_back({u32(w.pc), u32(c.trace->lines.size()), 0, 0, 0});
            if (c.trace->units[w.pc] == MATRIX_UNIT) { w.pc++; continue; }  // its sums are no addresses
        }
        c.counts[w.pc]++; c.lanes[w.pc] += u64(__builtin_popcountll(w.exec()));
        if (left-- == 0) fail("the kernel ran for %llu instructions without an end", (unsigned long long)c.limit);
        w.m->pc = w.pc++;
        if (w.m->first) w.m->note(in);
        try {
            if (const u64* touched = c.touched + BUSY_WORDS * w.m->pc; w.flights.any && w.flights.meets(touched)) check_registers(w, touched);
            FUNCTIONS[in.operation](w, in);
        }
        catch (const Fault& f) { w.pc--; throw; }
        if (in.operation == SLEEP) slice = 1;  // it waits for others
    }
}
struct Group {
    Machine m; u32 waves, turn = 0; std::unique_ptr<Wave[]> all;
    Group(Launch& c, u32 n) : m(c), waves(n), all(new Wave[n]) {}
    void start(Launch& c, u64 index) {
        const u32 at[3] = {u32(index % c.grid[0]), u32(index / c.grid[0] % c.grid[1]), u32(index / c.grid[0] / c.grid[1])};
        for (u64 i = 0; i < m.lds.size(); i++) m.lds[i] = u8(POISON >> 8 * (i & 3));
        for (u32 i = 0; i < waves; i++) begin(all[i], c, m, at, i);
        m.first = index == 0; m.late.clear(); m.pass_barrier(); turn = 0;
    }
    // True once all waves have ended; false when the slice is over, and then another wave is next
    bool go_on(Launch& c, u64 slice, u64& left, Wave*& now) {
        for (;;) {
            for (u32 n = 0; n < waves; n++) {
                const u32 k = (turn + n) % waves, i = c.backwards ? waves - 1 - k : k;
                now = &all[i]; m.wave = i;
                go(*now, c, left, slice);
                if (!now->ended && !now->waits) { turn = k + 1; return false; }
            }
            bool busy = false;
            for (u32 i = 0; i < waves; i++) { busy |= !all[i].ended; all[i].waits = false; }
            if (!busy) return true;
            m.pass_barrier(); turn = 0;
        }
    }
};
extern "C" const int ratchet_lanes = LANES;
// 0, or 1 with a message and the place of the instruction that failed
extern "C" int ratchet_emulate(Launch* given, char* message, u64 room, u64* where) {
    Launch& c = *given; const u32 waves = (c.threads + LANES - 1) / LANES; u64 left = c.limit, next = 0, slice = SLICE;
    const u64 groups = u64(c.grid[0]) * c.grid[1] * c.grid[2], most_live = most(u64(1), MOST_LIVE / waves);
    std::deque<std::unique_ptr<Group>> live; std::unique_ptr<Group> idle, group; Wave* now = nullptr;  // `now` is read after a fault: its group must live
    try {
        while (next < groups || !live.empty()) {
            if (next < groups && live.size() < most_live) {
                group = idle ? std::move(idle) : std::make_unique<Group>(c, waves);
                group->start(c, next); next += c.step ? c.step : 1;
            } else { group = std::move(live.front()); live.pop_front(); }
            if (group->go_on(c, slice, left, now)) { idle = std::move(group); continue; }
            live.push_back(std::move(group)); slice = SHORT_SLICE;
        }
    } catch (const Fault& f) { snprintf(message, room, "%s", f.text); *where = now->pc; return 1; }
    return 0;
}
