// ---- matrix: "Matrix Arithmetic Instructions" ---- aux: 0 rows and columns of a block (4, 16, 32), 1 k, 2 type of A,
// 3 type of B, 4 result (0 f32, 1 i32, 2 f64), 5 rows of the result that follow one another in a lane's registers,
// 6 each row of lanes holds all of A and B (RDNA 3), 7 blocks, and from bit 8 on cbsz, abid and blgp, 4 bits each
enum Number { BF16, F16, F32, I8, FP8, BF8, FP8_OCP, BF8_OCP, U8, F64 };
inline f32 element(const W& w, int number, int type, int j, int l) {
    switch (type) {
        case F32: return as<f32>(w.v[number + j][l]);
        case BF16: return as<f32>(w.v[number + j / 2][l] >> 16 * (j & 1) << 16);
        case F16: return half(w.v[number + j / 2][l] >> 16 * (j & 1));
    }
    u32 byte = w.v[number + j / 4][l] >> 8 * (j & 3) & 255;
    switch (type) { case I8: return f32(int8_t(byte)); case U8: return f32(byte); case FP8: return small_float(byte, 3, false); case BF8: return small_float(byte, 2, false); case FP8_OCP: return small_float(byte, 3, true); }
    return small_float(byte, 2, true);
}
template <class T> inline T element_of(const W& w, int number, int type, int j, int l) { return T(element(w, number, type, j, l)); }
template <> inline f64 element_of(const W& w, int number, int, int j, int l) { return as<f64>(u64(w.v[number + 2 * j + 1][l]) << 32 | w.v[number + 2 * j][l]); }
inline f32 multiplied(f32 a, f32 b, f32 sum) { return sum + a * b; }
inline i32 multiplied(i32 a, i32 b, i32 sum) { return i32(u32(sum) + u32(a) * u32(b)); }
inline f64 multiplied(f64 a, f64 b, f64 sum) { return std::fma(a, b, sum); }
// `static`: a library's own, or machines for other numbers of lanes in one process would share the arrays below.
// RDNA 3 wants A and B in both halves of a wave. Each half multiplies its own, so their orders along k may differ, as rocWMMA's do.
template <class T, int N> static void check_halves(const T* a, const T* b, int K) {
    for (u64 k = 0, taken = 0; k < u64(K); k++) {
        int wrong = 0, l = 0;
        for (int tried = 0; tried < K && l < N; tried++) {
            const int other = (int(k) + tried) % K;
            if (taken >> other & 1) continue;
            for (l = 0; l < N && !memcmp(a + l * K + k, a + (N + l) * K + other, sizeof(T)) && !memcmp(b + k * N + l, b + (K + other) * N + l, sizeof(T));) l++;
            if (l == N) taken |= 1ull << other;
            else if (!tried) wrong = l;
        }
        if (l < N) fail("lanes %d and %d of a matrix operand differ", N + wrong, wrong);
    }
}
// A lane has `each` neighbours along k of one row of A, and of one column of B; lanes go over the rows, the blocks, then along k.
// A result's rows come in runs of `run`: a register holds one row of a run, and of as many runs, of blocks and of one block, as it has room for.
template <class T, int N> static void multiply(W& w, const In& in) {
    const int K = in.aux[1], run = in.aux[5], copies = in.aux[6], blocks = most(in.aux[7] & 255, 1), each = copies ? K : K * N * blocks / LANES;
    constexpr int WORDS = sizeof(T) / 4, RUNS = LANES / N;
    const int together = most(1, LANES * run / (N * N)), group = 1 << (in.aux[7] >> 8 & 15), abid = in.aux[7] >> 12 & 15, pattern = in.aux[7] >> 16;
    const auto lane_of_b = [&](int l) { return pattern >= 4 ? (pattern - 4) * 16 + l % 16 : pattern ? (pattern - 1) * 32 + l % 32 : l; };
    static thread_local T a[32 * 128], b[128 * 32], sums[32][LANES];
    for (int l = 0; l < LANES; l++) for (int j = 0; j < each; j++) {
        const int block = copies ? l / N : l / N % blocks, k = copies ? j : l / (N * blocks) * each + j;
        a[(block * N + l % N) * K + k] = element_of<T>(w, in.o[1].number, in.aux[2], j, l);
        b[(block * K + k) * N + l % N] = element_of<T>(w, in.o[2].number, in.aux[3], j, lane_of_b(l));
    }
    if (copies) check_halves<T, N>(a, b, K);
    const Operand& c = in.o[3];
    for (int block = 0; block < blocks; block++) for (int i = 0; i < N; i++) {
        const int r = block * (N * N / LANES) + i / (run * RUNS) * run + i % run;
        const int first = (block % together + i / run % RUNS * together) * N;
        T* sum = sums[r] + first;
        for (int j = 0; j < N; j++) {
            u32 x[2] = {c.low, c.high};
            if (c.kind == VECTOR) for (int word = 0; word < WORDS; word++) x[word] = w.v[c.number + WORDS * r + word][first + j];
            memcpy(sum + j, x, sizeof(T));
        }
        const T *row = a + ((block / group * group + abid) * N + i) * K, *columns = b + block * K * N;
        for (int k = 0; k < K; k++) for (int j = 0; j < N; j++) sum[j] = multiplied(row[k], columns[k * N + j], sum[j]);
    }
    const int all = most(1, N * N * blocks / LANES);
    for (int r = 0; r < all; r++) for (int l = 0; l < LANES; l++) {
        u32 x[2]; memcpy(x, &sums[r][l], sizeof(T));
        for (int word = 0; word < WORDS; word++) w.v[in.o[0].number + WORDS * r + word][l] = x[word];
    }
}
template <class T> static void multiply_by_size(W& w, const In& in) {
    in.aux[0] == 32 ? multiply<T, 32>(w, in) : in.aux[0] == 16 ? multiply<T, 16>(w, in) : multiply<T, 4>(w, in);
}
void mfma(W& w, const In& in) {
    in.aux[4] == 2 ? multiply_by_size<f64>(w, in) : in.aux[4] ? multiply_by_size<i32>(w, in) : multiply_by_size<f32>(w, in);
}
// ---- gfx950's products of 8-bit and 4-bit floats, whose scales are powers of two ---- aux: 0 rows, 1 k, 2 and 3 types (0 E4M3,
// 1 E5M2, 4 E2M1), 4 and 5 the scales' bytes, 6 has scales. A lane has 32 elements of a row: E2M1 32 neighbours along k, the others
// 16 neighbours and 16 half of k further. Each 32 along k have a scale, which lies in the lanes of the row's k / 32.
inline f32 scale_of(u32 x) { return x == 255 ? std::numeric_limits<f32>::quiet_NaN() : std::ldexp(1.0f, i32(x) - 127); }
static void scaled_operand(const W& w, const In& in, int side, f32* out) {  // rows of K elements
    const int N = in.aux[0], K = in.aux[1], type = in.aux[2 + side], groups = LANES / N, number = in.o[1 + side].number;
    u32 t[LANES]; const u32* scales = in.aux[6] ? whole(w, in.o[4 + side], t) : nullptr;
    for (int l = 0; l < LANES; l++) for (int j = 0; j < 32; j++) {
        const int group = l / N, k = type == 4 ? group * 32 + j : group * 16 + j / 16 * 16 * groups + j % 16;
        const f32 x = type == 4 ? tiny_float(w.v[number + j / 8][l] >> 4 * (j & 7) & 15) : small_float(w.v[number + j / 4][l] >> 8 * (j & 3) & 255, type ? 2 : 3, true);
        out[l % N * K + k] = x * (scales ? scale_of(scales[k / 32 * N + l % N] >> 8 * in.aux[4 + side] & 255) : 1.0f);
    }
}
void mfma_scaled(W& w, const In& in) {
    const int N = in.aux[0], K = in.aux[1], all = N * N / LANES; f32 a[32 * 128], b[32 * 128]; u32 sums[16][LANES];
    scaled_operand(w, in, 0, a); scaled_operand(w, in, 1, b);
    const Operand& c = in.o[3];
    for (int r = 0; r < all; r++) for (int l = 0; l < LANES; l++) {
        const int row = r / 4 * 4 * (LANES / N) + l / N * 4 + r % 4;
        f32 sum = as<f32>(c.kind == VECTOR ? w.v[c.number + r][l] : c.low);
        for (int k = 0; k < K; k++) sum += a[row * K + k] * b[l % N * K + k];
        sums[r][l] = as<u32>(sum);
    }
    for (int r = 0; r < all; r++) memcpy(w.v[in.o[0].number + r], sums[r], sizeof sums[r]);
}
