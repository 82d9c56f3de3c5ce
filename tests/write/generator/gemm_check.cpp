// Checks gemm.h against sums in double: every kind of factor, edges, blocks, the epilogue. The test puts the
// prelude and gemm.h before it. Prints the number of cases and the worst error relative to the sum of sizes.
#include <array>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

template <typename T> T stored(float x);
template <> float stored<float>(float x) { return x; }
template <> uint16_t stored<uint16_t>(float x) {
    const uint32_t u = r_bits(x);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// Logical matrices A[M, K] and B[K, N], and what each element of their product is in double.
template <typename A, typename B> struct Product {
    int64_t M, N, K;
    std::vector<A> a;
    std::vector<B> b;
    std::vector<double> sum, size;

    Product(int64_t m, int64_t n, int64_t k) : M(m), N(n), K(k), a(m * k), b(k * n), sum(m * n, 0), size(m * n, 1e-30) {
        std::mt19937 source((unsigned)(M * 7 + N * 3 + K));
        std::normal_distribution<float> normal;
        for (auto& x : a) x = stored<A>(normal(source));
        for (auto& x : b) x = stored<B>(normal(source));
        for (int64_t i = 0; i < M; ++i)
            for (int64_t p = 0; p < K; ++p)
                for (int64_t j = 0; j < N; ++j) {
                    const double term = (double)r_item(a[i * K + p]) * (double)r_item(b[p * N + j]);
                    sum[i * N + j] += term, size[i * N + j] += std::fabs(term);
                }
    }
};

template <typename T> std::vector<T> turned(const std::vector<T>& from, int64_t rows, int64_t columns) {
    std::vector<T> to(from.size());
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) to[c * rows + r] = from[r * columns + c];
    return to;
}

// `tables`: 0 for factors in even steps, 1 for B by tables of places, 2 for both.
template <typename A, typename B>
double worst_error(const Product<A, B>& product, bool turn_a, bool turn_b, int tables, bool after) {
    const int64_t M = product.M, N = product.N, K = product.K;
    const std::vector<A> a = turn_a ? turned(product.a, M, K) : product.a;
    const std::vector<B> b = turn_b ? turned(product.b, K, N) : product.b;
    std::vector<float> c(M * N, NAN), out(M * N, NAN);
    const int64_t ar = turn_a ? 1 : K, ac = turn_a ? M : 1, br = turn_b ? 1 : N, bc = turn_b ? K : 1;
    std::vector<int64_t> ai(M), ak(K), bj(N), bk(K), ai_runs(M), ak_runs(K), bj_runs(N), bk_runs(K);
    for (int64_t i = 0; i < M; ++i) ai[i] = i * ar;
    for (int64_t k = 0; k < K; ++k) ak[k] = k * ac, bk[k] = k * br;
    for (int64_t j = 0; j < N; ++j) bj[j] = j * bc;
    r_runs(ai.data(), ai_runs.data(), M), r_runs(ak.data(), ak_runs.data(), K);
    r_runs(bj.data(), bj_runs.data(), N), r_runs(bk.data(), bk_runs.data(), K);
    const auto doubled = [&](const float* part, int64_t row, int64_t r_low, int64_t r_high, int64_t c_low, int64_t c_high) {
        for (int64_t r = r_low; r < r_high; ++r)
            for (int64_t j = c_low; j < c_high; ++j) out[r * N + j] = 2 * part[r * row + j];
    };
    const r_bands none{-BAND_NONE, BAND_NONE, -BAND_NONE, BAND_NONE};
    const r_epilogue epilogue = after ? r_epilogue(doubled) : r_epilogue();
#pragma omp parallel num_threads(2)
    {
        const int64_t thread = omp_get_thread_num(), team = omp_get_num_threads();
        const r_even<A> even_a{a.data(), ar, ac};
        const r_even<B> even_b{b.data(), bc, br};
        const r_apart<A> apart_a{a.data(), ai.data(), ak.data(), ai_runs.data(), ak_runs.data()};
        const r_apart<B> apart_b{b.data(), bj.data(), bk.data(), bj_runs.data(), bk_runs.data()};
        if (tables == 0) r_gemm(M, N, K, even_a, even_b, c.data(), N, 1, thread, team, none, epilogue);
        else if (tables == 1) r_gemm(M, N, K, even_a, apart_b, c.data(), N, 1, thread, team, none, epilogue);
        else r_gemm(M, N, K, apart_a, apart_b, c.data(), N, 1, thread, team, none, epilogue);
    }
    double worst = 0;
    for (int64_t i = 0; i < M; ++i)
        for (int64_t j = 0; j < N; ++j) {
            const double found = after ? out[i * N + j] / 2 : c[i * N + j];
            const double error = std::fabs(found - product.sum[i * N + j]) / product.size[i * N + j];
            if (!(error <= worst)) worst = error;
        }
    return worst;
}

// Any argument leaves the largest size out.
int main(int arguments, char**) {
    double worst = 0;
    int cases = 0;
    const std::array<int64_t, 3> sizes[] = {{1, 1, 1}, {3, 70, 5}, {37, 83, 61}, {64, 96, 64}, {130, 40, 700}, {33, 530, 33}, {200, 33, 320}, {97, 513, 801}};
    for (const auto& [m, n, k] : sizes) {
        if (arguments > 1 && k == 801) continue;
        const Product<float, float> floats(m, n, k);
        const Product<uint16_t, uint16_t> halves(m, n, k);
        const Product<float, uint16_t> mixed(m, n, k);
        for (int flags = 0; flags < 8; ++flags)
            for (int tables = 0; tables < 3; ++tables) {
                const bool turn_a = flags & 1, turn_b = flags & 2, after = flags & 4;
                for (const double error : {worst_error(floats, turn_a, turn_b, tables, after),
                                           worst_error(halves, turn_a, turn_b, tables, after),
                                           worst_error(mixed, turn_a, turn_b, tables, after)}) {
                    ++cases;
                    if (!(error <= worst)) worst = error;
                }
            }
    }
    std::printf("%d %g\n", cases, worst);
}
