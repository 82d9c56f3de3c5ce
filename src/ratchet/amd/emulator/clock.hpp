// ---- the clock ---- What waves of neighbouring workgroups executed, in order, is played on the compute units of one die: each
// wave in order, its waits against its own loads in flight, units and caches shared. Times are cycles of the engine. clock.py
// has the rates with their sources.
#include <cstdlib>
#include <memory>
#include <new>
#include <queue>
struct Level { u32 bytes, line, latency; double bytes_per_cycle; };  // of a cache; of memory, no size
struct Clock {
    const u8* units; const u16 *cost, *latency; const u8* results; const u32* place;  // by record: cycles that a unit is busy, until
    // the result is there, registers of the result, and bytes from the code's begin
    Level l1, l2, mall, memory; u32 code_bytes, code_line, lds_latency; double lds_bytes_per_cycle;
    u32 compute_units, simds, resident, issue; u64 room;  // steps of a wave's trace
    u32 stride;  // from one of the die's workgroups to its next
    double cycles, refill_cycles[2], steady_cycles[2]; u64 steps, steady_steps[2], hits[3], accesses[3]; double stalled[UNITS];  // refills: the first and
    // the last workgroup in another one's place; steady: an eighth of the steps, and the first wave's end
};
constexpr double QUEUE_CYCLES = 64;  // assumed: work that a unit holds before a wave must wait to issue
struct Tag { u64 line, used; double ready; bool dirty; };  // the number of a line plus one; zeros: none
struct Cache {  // least recently used of 16 ways; `ready` is when a line's bytes are there. Pages that no line needs stay untouched
    static constexpr u32 WAYS = 16; u32 shift; u64 sets, tick = 0; std::unique_ptr<Tag[], decltype(&free)> tags;
    Cache(u64 bytes, u32 line)
        : shift(u32(__builtin_ctz(line))), sets(most<u64>(1, bytes / line / WAYS)), tags(static_cast<Tag*>(calloc(sets * WAYS, sizeof(Tag))), free) {
        if (!tags) throw std::bad_alloc();
    }
    // The place of a line of 64 bytes, and whether it was there; a line that was not takes the oldest place
    Tag& find(u64 line64, bool& hit) {
        const u64 line = line64 << 6 >> shift, mixed = line ^ line >> 7 ^ line >> 15; Tag* row = tags.get() + mixed % sets * WAYS; Tag* old = row;
        for (u32 i = 0; i < WAYS; i++) {
            if (row[i].line == line + 1) { hit = true; row[i].used = ++tick; return row[i]; }
            if (row[i].used < old->used) old = row + i;
        }
        hit = old->dirty = false; old->line = line + 1; old->used = ++tick; return *old;
    }
};
struct Played {  // a wave
    const std::vector<Step>* steps = nullptr; size_t at = 0; double time = 0; u32 simd = 0, unit = 0, group = 0; u64 fetched = ~0ull; bool parked = false;
    std::deque<double> queues[QUEUES]; std::vector<float> ready; double last_ready = 0;
};
struct Player {
    Clock& k; const Launch& c; const std::vector<u64>& lines; std::vector<std::vector<std::vector<Step>>>& traces;
    std::vector<Cache> l1, code; Cache l2, mall; std::vector<double> l1_free, request_free, lds_free, port; double l2_free = 0, mall_free = 0, memory_free = 0;
    std::vector<Played> waves; std::vector<u32> arrived, alive; u32 per_group, next = 0; u64 retired = 0, total = 0;
    using At = std::pair<double, u32>; std::priority_queue<At, std::vector<At>, std::greater<At>> heap;
    Player(Clock& clock, const Launch& launch, const std::vector<u64>& touched, std::vector<std::vector<std::vector<Step>>>& all)
        : k(clock), c(launch), lines(touched), traces(all), l2(clock.l2.bytes, clock.l2.line), mall(most(clock.mall.bytes, 1u << 16), clock.l2.line),
          l1_free(clock.compute_units), request_free(clock.compute_units), lds_free(clock.compute_units), port(clock.compute_units * clock.simds * UNITS),
          waves(all.size() * (all.empty() ? 0 : all[0].size())), arrived(all.size()), alive(all.size()), per_group(u32(all.empty() ? 0 : all[0].size())) {
        for (u32 u = 0; u < k.compute_units; u++) { l1.emplace_back(k.l1.bytes, k.l1.line); code.emplace_back(k.code_bytes, k.code_line); }
        for (const auto& group : all) for (const auto& one : group) total += one.size();
    }
    void dispatch(u32 unit, double now) {
        const u32 group = next++;
        // What the memory was asked for belongs to the time: nothing waits for stores
        if (now > 0) { k.refill_cycles[1] = most(now, memory_free); if (k.refill_cycles[0] == 0) k.refill_cycles[0] = k.refill_cycles[1]; }
        for (u32 i = 0; i < per_group; i++) {
            Played& w = waves[group * per_group + i];
            w.steps = &traces[group][i]; w.time = now; w.unit = unit; w.simd = (group / k.compute_units * per_group + i) % k.simds; w.group = group;
            w.ready.assign(VECTORS, 0);
            alive[group]++; heap.push({now, group * per_group + i});
        }
    }
    // When a line's bytes come from beyond L1
    double beyond(u64 line, double now, bool store) {
        double at = most(now, l2_free); l2_free = at + k.l1.line / k.l2.bytes_per_cycle;
        bool hit; Tag& tag = l2.find(line, hit); k.accesses[1]++; k.hits[1] += hit;
        if (store && !tag.dirty) { memory_free = most(memory_free, at) + k.l2.line / k.memory.bytes_per_cycle; tag.dirty = true; }  // it will be written back
        if (hit || store) return tag.ready = most(at + k.l2.latency, tag.ready);  // no read before a write
        double done;
        if (k.mall.bytes) {
            bool near; mall.find(line, near); k.accesses[2]++; k.hits[2] += near;
            at = most(at, mall_free); mall_free = at + k.l2.line / k.mall.bytes_per_cycle; done = at + k.mall.latency;
            if (!near) { const double from = most(at, memory_free); memory_free = from + k.l2.line / k.memory.bytes_per_cycle; done = from + k.memory.latency; }
        } else { const double from = most(at, memory_free); memory_free = from + k.l2.line / k.memory.bytes_per_cycle; done = from + k.memory.latency; }
        tag.ready = done; return done;
    }
    double access(Played& w, const Step& s, bool store) {
        double start = most(w.time, l1_free[w.unit]), done = start; const u32 cost = k.cost[s.pc]; double busy = 0; u64 before = ~0ull;
        for (u32 i = 0; i < s.lines; i++) {
            const u64 line = lines[s.line + i]; const u64 own = line << 6 >> l1[0].shift;
            if (own == before) continue;
            before = own; busy += k.l1.line / k.l1.bytes_per_cycle;
            bool hit = false; Tag* tag = nullptr;
            if (!store) { tag = &l1[w.unit].find(line, hit); k.accesses[0]++; k.hits[0] += hit; }
            if (hit) { done = most(done, most(start + busy + k.l1.latency, tag->ready)); continue; }
            const double asked = most(start + busy, request_free[w.unit]); request_free[w.unit] = asked + k.l1.line / 64.0;
            const double there = beyond(line, asked, store);
            if (tag) tag->ready = there;
            done = most(done, there);
        }
        l1_free[w.unit] = start + most(busy, double(cost));
        return most(done, start + k.l1.latency);
    }
    double waited(Played& w, const Instruction& in) {
        double until = w.time;
        for (u32 q = 0; q < QUEUES; q++) {
            auto& done = w.queues[q];
            if (in.aux[q] < 0 || (q == UNORDERED && in.aux[q])) continue;
            while (done.size() > size_t(in.aux[q])) { until = most(until, done.front()); done.pop_front(); }
        }
        return until;
    }
    void push(Played& w, u32 queue, double done) {
        auto& all = w.queues[queue];
        if (queue != UNORDERED && !all.empty()) done = most(done, all.back());
        all.push_back(done);
    }
    double registers(const Played& w, const Step& s) {  // when those that an instruction touches are there
        double found = 0; const u64* touched = c.touched + BUSY_WORDS * s.pc;
        for (u32 i = 0; i < VECTORS / 64; i++) for (u64 left = touched[i]; left; left &= left - 1) found = most(found, double(w.ready[64 * i + u32(__builtin_ctzll(left))]));
        return found;
    }
    void play() {
        const u32 groups = u32(traces.size()), begin = least(groups, k.compute_units * k.resident);
        for (u32 g = 0; g < begin; g++) dispatch(g % k.compute_units, 0);
        double now = 0;
        while (!heap.empty()) {
            const u32 number = heap.top().second; Played& w = waves[number]; w.time = most(w.time, heap.top().first); heap.pop();
            if (w.at == w.steps->size()) {
                now = most(now, w.time);
                if (!k.steady_steps[1]) { k.steady_steps[1] = retired; k.steady_cycles[1] = w.time; }
                if (!--alive[w.group]) { if (next < groups) dispatch(w.unit, w.time); } else release(w.group, w.time);
                continue;
            }
            const Step& s = (*w.steps)[w.at]; const u8 unit = k.units[s.pc];
            const u64 line = k.place[s.pc] / k.code_line;
            if (line != w.fetched) {
                w.fetched = line; bool hit; Tag& tag = code[w.unit].find(line * k.code_line >> 6, hit);
                if (!hit) tag.ready = w.time + k.l2.latency;
                bool after; Tag& following = code[w.unit].find((line + 1) * k.code_line >> 6, after);
                if (!after) following.ready = most(w.time, tag.ready) + k.code_line / 32.0;
                if (code[w.unit].find(line * k.code_line >> 6, hit).ready > w.time) { heap.push({code[w.unit].find(line * k.code_line >> 6, hit).ready, number}); continue; }
            }
            if (unit == WAIT) {
                const double until = waited(w, c.code[s.pc]); k.stalled[WAIT] += until - w.time;
                next_step(w, until + k.issue, number); continue;
            }
            if (unit == BARRIER) { w.parked = true; w.at++; retired++; arrived[w.group]++; release(w.group, w.time + k.issue); continue; }
            if (unit == FREE) { next_step(w, w.time + k.cost[s.pc], number); continue; }
            double from = w.time;
            if (w.last_ready > w.time && unit != MATRIX_UNIT) from = most(from, registers(w, s));
            const u8 kind = unit == VMEM_STORE ? u8(VMEM_LOAD) : unit; double& free = port[(w.unit * k.simds + w.simd) * UNITS + kind];
            from = most(from, free);
            if (kind == VMEM_LOAD) from = most(from, l1_free[w.unit] - QUEUE_CYCLES);
            if (kind == LDS_UNIT) from = most(from, lds_free[w.unit] - QUEUE_CYCLES);
            if (from > w.time) { k.stalled[kind] += from - w.time; heap.push({from, number}); continue; }
            const u32 cost = k.cost[s.pc]; const Instruction& in = c.code[s.pc];
            free = w.time + (unit == VALU || unit == MATRIX_UNIT ? cost : k.issue);
            switch (unit) {
                case VMEM_LOAD: push(w, LOADS, access(w, s, false)); break;
                case VMEM_STORE: push(w, LANES == 64 ? LOADS : STORES, access(w, s, true)); break;
                case SMEM: push(w, UNORDERED, w.time + k.l2.latency / 2); break;
                case LDS_UNIT: {
                    const double start = most(w.time, lds_free[w.unit]); lds_free[w.unit] = start + most(1.0, s.bytes / k.lds_bytes_per_cycle) + s.conflicts;
                    push(w, SHARED, lds_free[w.unit] + k.lds_latency); break;
                }
                default: if (k.latency[s.pc] > k.issue && in.o[0].kind == VECTOR) {
                    const double there = w.time + k.latency[s.pc]; w.last_ready = most(w.last_ready, there);
                    for (u32 r = 0; r < k.results[s.pc] && in.o[0].number + r < VECTORS; r++) w.ready[in.o[0].number + r] = float(there);
                }
            }
            next_step(w, w.time + (unit == VALU && cost == 0 ? 0 : k.issue), number);
        }
        k.cycles = most(now, memory_free); k.steps = total;
    }
    void next_step(Played& w, double time, u32 number) {
        w.at++; w.time = time; retired++;
        if (retired * 8 >= total && !k.steady_steps[0]) { k.steady_steps[0] = retired; k.steady_cycles[0] = time; }
        heap.push({time, number});
    }
    void release(u32 group, double now) {
        u32 there = 0;
        for (u32 i = 0; i < per_group; i++) { const Played& w = waves[group * per_group + i]; there += w.parked; }
        if (!there || there < alive[group]) return;
        for (u32 i = 0; i < per_group; i++) {
            Played& w = waves[group * per_group + i];
            if (w.parked) { w.parked = false; k.stalled[BARRIER] += most(0.0, now - w.time); w.time = most(w.time, now); heap.push({w.time, group * per_group + i}); }
        }
    }
};
// Plays `samples` workgroups of the first die. 0, or 1 with a message and the place of the instruction that failed
extern "C" int ratchet_play(Launch* given, Clock* clock, u64 samples, char* message, u64 room, u64* where) {
    Launch& c = *given; const u32 waves = (c.threads + LANES - 1) / LANES; u64 left = c.limit; const u64 groups = u64(c.grid[0]) * c.grid[1] * c.grid[2];
    Trace trace; trace.units = clock->units; trace.room = clock->room; c.trace = &trace;
    std::vector<std::vector<std::vector<Step>>> traces(samples, std::vector<std::vector<Step>>(waves));
    Group group(c, waves); Wave* now = nullptr;
    try {
        for (u64 g = 0; g < samples; g++) {
            group.start(c, least(groups - 1, g * clock->stride)); group.m.first = false;
            for (u32 i = 0; i < waves; i++) group.all[i].steps = &traces[g][i];
            for (u64 turns = 0; !group.go_on(c, SLICE, left, now); turns++) if (turns > clock->room) { now->pc = 0; fail("a workgroup waits for another one"); }
        }
    } catch (const Fault& f) { c.trace = nullptr; snprintf(message, room, "%s", f.text); *where = now->pc; return 1; }
    c.trace = nullptr;
    Player(*clock, c, trace.lines, traces).play();
    return 0;
}
