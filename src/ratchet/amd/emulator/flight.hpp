// ---- memory operations in flight ---- An operation is in flight from its issue until its wave has waited for it. The machine
// carries it out at once; these queues know what a GPU may not have done yet ("Data Dependency Resolution" in the manuals).
// A queue returns in order, but UNORDERED, whose operations are done only once its counter is 0:
//   gfx9: vmcnt counts loads and stores, lgkmcnt the LDS and scalar loads; RDNA 3: stores have vscnt; RDNA 4: loadcnt, storecnt,
//   dscnt, kmcnt. expcnt, samplecnt and bvhcnt count nothing that is emulated: since GCN 3 a store's data may be overwritten at once.
enum Queue : u8 { LOADS, STORES, SHARED, UNORDERED, QUEUES };
constexpr u32 MOST_FLIGHTS = 64, VECTORS = 512, BUSY_WORDS = (VECTORS + 128) / 64;  // a queue's room; scalar registers follow
struct Flight {
    u32 pc, size; u16 first, registers; u8 queue; bool writes;  // registers it loads, or none; bytes of a lane's access
    u64 lanes, touched;  // of the registers, and of `at`: where it reads or writes in LDS, or stores (RDNA)
    u64 low, high; i64 gap; std::conditional_t<LANES == 64, u32, u64> at[LANES];  // and again `gap` bytes further
};
struct Flights {
    u64 busy[BUSY_WORDS]; bool any; u32 copies;  // registers that are not loaded yet; loads to LDS
    u32 begin[QUEUES], count[QUEUES]; Flight all[QUEUES][MOST_FLIGHTS];
    void clear() { memset(busy, 0, sizeof busy); any = false; copies = 0; std::fill(count, count + QUEUES, 0u); std::fill(begin, begin + QUEUES, 0u); }
    Flight& of(u32 queue, u32 i) { return all[queue][(begin[queue] + i) % MOST_FLIGHTS]; }
    void mark(u32 first, u32 registers) {
        any |= registers != 0;
        for (u32 r = first; r < first + registers; r++) busy[r >> 6] |= 1ull << (r & 63);
    }
    // A counter that is full stalls its wave until the oldest operation is done.
    Flight& issue(u32 queue, u32 most, u32 pc, u32 first, u32 registers, u64 lanes) {
        if (count[queue] >= most) retire(queue, most - 1);
        Flight& f = of(queue, count[queue]++);
        f.pc = pc; f.first = u16(first); f.registers = u16(registers); f.lanes = lanes; f.touched = 0; f.queue = u8(queue);
        mark(first, registers);
        return f;
    }
    static void touch(Flight& f, const u64* at, u64 touched, u32 size, bool writes, i64 gap = 0) {
        f.touched = touched; f.size = size; f.writes = writes; f.gap = gap; f.low = ~0ull; f.high = 0;
        for (int l = 0; l < LANES; l++) f.at[l] = at[l];
        for (u64 left = touched; left; left &= left - 1) { const u64 a = at[__builtin_ctzll(left)]; f.low = least(f.low, a); f.high = most(f.high, a + size); }
    }
    void retire(u32 queue, u32 left) {
        if (count[queue] <= left) return;
        for (; count[queue] > left; begin[queue] = (begin[queue] + 1) % MOST_FLIGHTS, count[queue]--)
            if (queue == LOADS && of(queue, 0).touched) copies--;
        if (!count[queue]) begin[queue] = 0;  // the same few places, which the cache holds
        if (!any) return;
        memset(busy, 0, sizeof busy); any = false;
        for (u32 q = 0; q < QUEUES; q++) for (u32 i = 0; i < count[q]; i++) { const Flight& f = of(q, i); mark(f.first, f.registers); }
    }
    bool meets(const u64* registers) const {
        u64 found = 0;
        for (u32 i = 0; i < BUSY_WORDS; i++) found |= busy[i] & registers[i];
        return found;
    }
};
