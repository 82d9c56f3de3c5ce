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

// `tables`: 0 for factors in even steps, 1 for B by tables of places, 2 for both.
template <typename A, typename B>
double worst_error(int64_t M, int64_t N, int64_t K, bool turn_a, bool turn_b, int tables, bool after) {
    std::mt19937 source((unsigned)(M * 7 + N * 3 + K));
    std::normal_distribution<float> normal;
    std::vector<A> a(M * K);
    std::vector<B> b(K * N);
    for (auto& x : a) x = stored<A>(normal(source));
    for (auto& x : b) x = stored<B>(normal(source));
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
            double sum = 0, size = 1e-30;
            for (int64_t k = 0; k < K; ++k) {
                const double term = (double)r_item(a[i * ar + k * ac]) * (double)r_item(b[k * br + j * bc]);
                sum += term, size += std::fabs(term);
            }
            const double error = std::fabs((after ? out[i * N + j] / 2 : c[i * N + j]) - sum) / size;
            if (!(error <= worst)) worst = error;
        }
    return worst;
}

int main() {
    double worst = 0;
    int cases = 0;
    const std::array<int64_t, 3> sizes[] = {{1, 1, 1}, {3, 70, 5}, {37, 83, 61}, {64, 96, 64}, {130, 40, 700}, {33, 530, 33}, {200, 33, 320}, {97, 513, 1300}};
    for (const auto& [m, n, k] : sizes)
        for (int flags = 0; flags < 8; ++flags)
            for (int tables = 0; tables < 3; ++tables) {
                const bool turn_a = flags & 1, turn_b = flags & 2, after = flags & 4;
                for (const double error : {worst_error<float, float>(m, n, k, turn_a, turn_b, tables, after),
                                           worst_error<uint16_t, uint16_t>(m, n, k, turn_a, turn_b, tables, after),
                                           worst_error<float, uint16_t>(m, n, k, turn_a, turn_b, tables, after)}) {
                    ++cases;
                    if (!(error <= worst)) worst = error;
                }
            }
    std::printf("%d %g\n", cases, worst);
}
