// ---- matrix: "Matrix Arithmetic Instructions" ---- aux: 0 m (16 or 32), 1 k, 2 type of A, 3 type of B, 4 integer,
// 5 rows of the result that follow one another in a lane's registers, 6 each row of lanes holds all of A and B (RDNA 3)
enum Number { BF16, F16, F32, I8, FP8, BF8, FP8_OCP, BF8_OCP, U8 };
inline f32 small_float(u32 x, int mantissa, bool ocp) {  // FNUZ: bias one more, one NaN, no infinities; OCP: as IEEE, but E4M3
    int bias = (mantissa == 3 ? 7 : 15) + !ocp, e = x >> mantissa & ((1 << (7 - mantissa)) - 1), f = x & ((1 << mantissa) - 1); f32 sign = x & 128 ? -1 : 1;
    if (!ocp && x == 128) return std::numeric_limits<f32>::quiet_NaN();
    if (ocp && mantissa == 3 && (x & 127) == 127) return std::numeric_limits<f32>::quiet_NaN();
    if (ocp && mantissa == 2 && e == 31) return f ? std::numeric_limits<f32>::quiet_NaN() : sign * std::numeric_limits<f32>::infinity();
    return sign * std::ldexp(f32(e ? f + (1 << mantissa) : f), (e ? e : 1) - bias - mantissa);
}
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
template <class T, int N> void multiply(W& w, const In& in) {
    constexpr int GROUPS = LANES / N, REGISTERS = N * N / LANES;
    const int K = in.aux[1], run = in.aux[5], copies = in.aux[6], each = copies ? K : K / GROUPS;
    static thread_local T a[32 * 128], b[128 * 32];
    for (int l = 0; l < LANES; l++) for (int j = 0; j < each; j++) {
        const int k = copies ? j : l / N * each + j;
        const T x = T(element(w, in.o[1].number, in.aux[2], j, l)), y = T(element(w, in.o[2].number, in.aux[3], j, l));
        T &p = a[(l % N) * K + k], &q = b[k * N + l % N];
        if (copies && l >= N && (as<u32>(p) != as<u32>(x) || as<u32>(q) != as<u32>(y))) fail("lanes %d and %d of a matrix operand differ", l, l - N);
        p = x; q = y;
    }
    T sums[REGISTERS][LANES]; const Operand& c = in.o[3];
    for (int r = 0; r < REGISTERS; r++) for (int g = 0; g < GROUPS; g++) {
        T* sum = sums[r] + g * N; int row = r / run * run * GROUPS + g * run + r % run;
        for (int j = 0; j < N; j++) sum[j] = as<T>(c.kind == VECTOR ? w.v[c.number + r][g * N + j] : c.low);
        for (int k = 0; k < K; k++) { T x = a[row * K + k]; for (int j = 0; j < N; j++) sum[j] += x * b[k * N + j]; }
    }
    for (int r = 0; r < REGISTERS; r++) memcpy(w.v[in.o[0].number + r], sums[r], 4 * LANES);
}
void mfma(W& w, const In& in) {
    if (in.aux[4]) { in.aux[0] == 32 ? multiply<i32, 32>(w, in) : multiply<i32, 16>(w, in); }
    else in.aux[0] == 32 ? multiply<f32, 32>(w, in) : multiply<f32, 16>(w, in);
}
