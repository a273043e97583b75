/* What two rows of logits decide. fused.py calls this. */
#include "native.h"

enum { TOP = 5 };

static const float CLOSE = 1e-3f;

/* What a row of logits decides; fused.py has the same structure. */
typedef struct {
    double kl, overlap;
    double first, second, theirs; /* the reference's largest two, and what it has where the
                                     candidate's largest is */
    int64_t best[2];              /* where the largest stands: reference, candidate */
    int64_t finite;               /* 0: some logit is not, and nothing is said of the row */
} choice_t;

typedef struct {
    float value[TOP];
    int64_t at[TOP];
} best_t;

static inline void offer(best_t *best, float x, int64_t at) {
    if (!(x > best->value[TOP - 1])) return;
    int k = TOP - 1;
    for (; k > 0 && x > best->value[k - 1]; k--) {
        best->value[k] = best->value[k - 1];
        best->at[k] = best->at[k - 1];
    }
    best->value[k] = x;
    best->at[k] = at;
}

/* An integer in the order of floats. */
static inline int32_t order(float x) {
    int32_t b = (int32_t)bits(x);
    return b ^ ((b >> 31) & 0x7fffffff);
}

/* The largest of both sides, and the largest difference, of a chunk. */
WIDE static uint32_t tops(const float *restrict r, const float *restrict c, int64_t n, int32_t *top_r,
                          int32_t *top_c) {
    int32_t high_r = INT32_MIN, high_c = INT32_MIN;
    uint32_t most = 0;
#pragma omp simd reduction(max : high_r, high_c, most)
    for (int64_t j = 0; j < n; j++) {
        uint32_t a = bits(c[j] - r[j]) & ~SIGN;
        int32_t x = order(r[j]), y = order(c[j]);
        high_r = x > high_r ? x : high_r;
        high_c = y > high_c ? y : high_c;
        most = a > most ? a : most;
    }
    *top_r = high_r, *top_c = high_c;
    return most;
}

/* exp(x) for x <= 0, to 2e-7 of itself; at -87 it is small enough. */
static inline float exp_below(float x) {
    x = x < -87.0f ? -87.0f : x;
    float k = (x * 1.44269504f + 12582912.0f) - 12582912.0f; /* the nearest integer */
    float f = (x - k * 0.693359375f) + k * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * f + 1.3981999507e-3f;
    p = p * f + 8.3334519073e-3f;
    p = p * f + 4.1665795894e-2f;
    p = p * f + 1.6666665459e-1f;
    p = p * f + 5.0000001201e-1f;
    p = p * f * f + f + 1.0f;
    return p * from_bits((uint32_t)((int32_t)k + 127) << 23);
}

/* Moments of c - r, weighted by exp(r - top), of a chunk. */
WIDE static void moments(const float *restrict r, const float *restrict c, int64_t n, float top,
                         double *sums) {
    float s0 = 0, s1 = 0, s2 = 0, s3 = 0;
#pragma omp simd reduction(+ : s0, s1, s2, s3)
    for (int64_t j = 0; j < n; j++) {
        float d = c[j] - r[j], p = exp_below(r[j] - top), pd = p * d;
        s0 += p;
        s1 += pd;
        s2 += pd * d;
        s3 += pd * d * d;
    }
    sums[0] += s0, sums[1] += s1, sums[2] += s2, sums[3] += s3;
}

WIDE static int all_finite(const float *x, int64_t width) {
    uint32_t most = 0;
#pragma omp simd reduction(max : most)
    for (int64_t j = 0; j < width; j++) {
        uint32_t a = bits(x[j]) & ~SIGN;
        most = a > most ? a : most;
    }
    return most < 0x7f800000u;
}

static double common(const best_t *a, const best_t *b) {
    int count = 0;
    for (int i = 0; i < TOP; i++) {
        for (int j = 0; j < TOP; j++) count += a->at[i] == b->at[j];
    }
    return (double)count / TOP;
}

/* With d = c - r, KL(p || q) = log E[exp d] - E[d], both means over p = softmax(r): half the variance
 * of d, a sixth of its third moment, and less than d^2 / 12 of that. So where logits hardly differ
 * one softmax is enough, in float32: the divergence is right to about 1e-5 of itself. Gives -1 where
 * all logits moved alike, and the rest drowns in that. */
static double kl_near(const float *r, const float *c, int64_t width, float top) {
    double sums[4] = {0};
    for (int64_t start = 0; start < width; start += CHUNK) {
        int64_t n = width - start < CHUNK ? width - start : CHUNK;
        moments(r + start, c + start, n, top, sums);
    }
    double first = sums[1] / sums[0], second = sums[2] / sums[0], third = sums[3] / sums[0];
    double variance = second - first * first;
    if (!(variance > 0.01 * second)) return -1;
    third += 2 * first * first * first - 3 * first * second;
    return variance / 2 + third / 6;
}

/* exp(x) for x <= 0, to 1e-15 of itself; at -700 it is small enough. */
static inline double exp_exactly(double x) {
    x = x < -700.0 ? -700.0 : x;
    double k = (x * 1.4426950408889634 + 6755399441055744.0) - 6755399441055744.0;
    double f = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10;
    double p = 1.0 / 479001600; /* Taylor to the 12th power: |f| is at most 0.35 */
    p = p * f + 1.0 / 39916800;
    p = p * f + 1.0 / 3628800;
    p = p * f + 1.0 / 362880;
    p = p * f + 1.0 / 40320;
    p = p * f + 1.0 / 5040;
    p = p * f + 1.0 / 720;
    p = p * f + 1.0 / 120;
    p = p * f + 1.0 / 24;
    p = p * f + 1.0 / 6;
    p = p * f + 0.5;
    p = p * f + 1.0;
    p = p * f + 1.0;
    int64_t power = ((int64_t)k + 1023) << 52;
    double scale;
    memcpy(&scale, &power, sizeof scale);
    return p * scale;
}

/* The divergence of any two rows, in float64. */
WIDE static double kl_any(const float *restrict r, const float *restrict c, int64_t width,
                          double top_r, double top_c) {
    double sum_p = 0, sum_q = 0, mean = 0;
#pragma omp simd reduction(+ : sum_p, sum_q, mean)
    for (int64_t j = 0; j < width; j++) {
        double x = (double)r[j] - top_r, y = (double)c[j] - top_c, p = exp_exactly(x);
        sum_p += p;
        sum_q += exp_exactly(y);
        mean += p * (x - y);
    }
    return mean / sum_p + log(sum_q) - log(sum_p);
}

static choice_t decide(const float *r, const float *c, int64_t width) {
    choice_t found = {0};
    best_t best_r, best_c;
    for (int k = 0; k < TOP; k++) {
        best_r.value[k] = best_c.value[k] = -INFINITY;
        best_r.at[k] = -1, best_c.at[k] = -2;
    }
    uint32_t most = 0;
    for (int64_t start = 0; start < width; start += CHUNK) {
        int64_t n = width - start < CHUNK ? width - start : CHUNK;
        int32_t top_r, top_c;
        uint32_t wide = tops(r + start, c + start, n, &top_r, &top_c);
        most = wide > most ? wide : most;
        if (top_r > order(best_r.value[TOP - 1]) || top_c > order(best_c.value[TOP - 1])) {
            for (int64_t j = start; j < start + n; j++) {
                offer(&best_r, r[j], j);
                offer(&best_c, c[j], j);
            }
        }
    }
    if (!all_finite(r, width) || !all_finite(c, width)) return found;
    found.finite = 1;
    found.overlap = common(&best_r, &best_c);
    found.best[0] = best_r.at[0], found.best[1] = best_c.at[0];
    found.first = best_r.value[0], found.second = best_r.value[1];
    found.theirs = r[best_c.at[0]];
    double kl = most == 0 ? 0 : -1;
    if (most && most <= bits(CLOSE)) kl = kl_near(r, c, width, best_r.value[0]);
    if (kl < 0) kl = kl_any(r, c, width, best_r.value[0], best_c.value[0]);
    found.kl = kl > 0 ? kl : 0;
    return found;
}

/* The rows numbered `rows`, each at least TOP wide. */
EXPORT void driftwalk_decide(const float *r, const float *c, const int64_t *rows, int64_t n,
                             int64_t width, choice_t *out) {
    for (int64_t i = 0; i < n; i++) {
        out[i] = decide(r + rows[i] * width, c + rows[i] * width, width);
    }
}
