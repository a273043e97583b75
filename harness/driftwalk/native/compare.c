/* One pass over two float32 states: every sum, maximum and count that a comparison needs.
 *
 * A state is a matrix of rows (tokens) of `width` channels. Each call looks at some of the rows, so
 * that threads can share a state, and sums are kept by row, so that no number depends on how they
 * shared it. fused.py calls this.
 *
 * Up to CHUNK elements at a time are summed in float32, their sums in float64: that is within
 * CHUNK * 2^-24 = 6e-5 of the truth for any order of adding, and some 1e-8 off in practice. Where
 * it is not safe (something is not finite or subnormal, squares leave the range, both sides differ
 * by more than 3 %) the chunk is looked at carefully: one by one, in float64. Counts, maxima,
 * places and distances in ULPs are exact either way.
 */
#include "native.h"

enum { WORD = 4, BUCKET_SHIFT = 20 };

static const uint32_t SMALLEST_NORMAL = 0x00800000u;
static const float LOW = 0x1p-80f, CLOSE = 1e-3f;

/* What is known of all rows of a call; fused.py has the same structure. */
typedef struct {
    double max_abs, max_rel;
    int64_t worst[2];     /* row and column of the largest difference */
    int64_t bad[2];       /* elements that are not finite: reference, candidate */
    int64_t bad_either;   /* pairs of which one is not */
    int64_t lone;         /* those of them of which the reference is, */
    double lone_rr;       /* and its squares there: they count for its scale */
    int64_t bad_at[2][2]; /* the first such row and column of each side */
    uint64_t ulp_max;
    int64_t *ulps; /* how many distances from `rest` on by bucket (ulp.py); the others in the first */
    uint64_t rest; /* at least 1, at most 2^22 */
    int64_t precise; /* be careful with all */
} found_t;

/* The numbers of one row; no |difference| in it is larger than `most`. */
typedef struct {
    double rr, cc, rc, dd, abs, most;
} row_t;

/* An integer that counts every float32 from zero; -0 and +0 are one. No branch: signs are random. */
static inline int64_t place(float x) {
    int64_t b = bits(x) & ~SIGN, negative = -(int64_t)(bits(x) >> 31);
    return (b ^ negative) - negative;
}

static inline uint64_t steps(float r, float c) {
    int64_t between = place(r) - place(c);
    return (uint64_t)(between < 0 ? -between : between);
}

static inline void note(found_t *found, float r, float c) {
    uint64_t u = steps(r, c);
    double d = fabs((double)c - (double)r), size = fabs((double)r);
    if (u > found->ulp_max) found->ulp_max = u;
    found->ulps[u < found->rest ? 0 : bits((float)u) >> BUCKET_SHIFT]++;
    if (d > found->max_rel * size) found->max_rel = d / size; /* x / 0 is infinite, 0 / 0 nothing */
}

static void careful(const float *r, const float *c, int64_t n, int64_t row, int64_t first,
                    row_t *sums, found_t *found) {
    for (int64_t j = 0; j < n; j++) {
        int bad[2] = {!isfinite(r[j]), !isfinite(c[j])};
        if (bad[0] || bad[1]) {
            for (int side = 0; side < 2; side++) {
                if (bad[side] && !found->bad[side]++) {
                    found->bad_at[side][0] = row;
                    found->bad_at[side][1] = first + j;
                }
            }
            found->bad_either++;
            if (!bad[0]) {
                found->lone++;
                found->lone_rr += (double)r[j] * (double)r[j];
            }
            continue;
        }
        double x = r[j], y = c[j], d = y - x;
        sums->rr += x * x;
        sums->cc += y * y;
        sums->rc += x * y;
        sums->dd += d * d;
        sums->abs += fabs(d);
        if (fabs(d) > sums->most) sums->most = fabs(d);
        note(found, r[j], c[j]);
    }
}

/* At most CHUNK elements; gives 0, and changes nothing, where they must be looked at carefully. */
WIDE static int fast(const float *restrict r, const float *restrict c, int64_t n, row_t *sums,
                     found_t *found) {
    float rr = 0, rd = 0, dd = 0, total = 0;
    uint32_t most = 0, least = UINT32_MAX, reach = (uint32_t)found->rest - 1;
    uint16_t far[CHUNK];
#pragma omp simd reduction(+ : rr, rd, dd, total) reduction(max : most) reduction(min : least)
    for (int64_t j = 0; j < n; j++) {
        float d = c[j] - r[j];
        uint32_t a = bits(d) & ~SIGN, b = bits(r[j]) & ~SIGN;
        rr += r[j] * r[j];
        rd += r[j] * d;
        dd += d * d;
        total += from_bits(a);
        most = a > most ? a : most; /* floats without sign are in the order of their bits */
        least = b < least ? b : least;
        /* Within reach, up or down? Unlike signs are 2^23 or more apart, however integers wrap. */
        far[j] = bits(c[j]) - bits(r[j]) + reach > 2 * reach;
    }
    int safe = rr > LOW && rr < INFINITY && dd < CLOSE * rr && (dd > LOW || !most);
    if (!safe || least < SMALLEST_NORMAL) return 0;
    sums->rr += rr;
    sums->cc += (double)rr + 2 * (double)rd + dd;
    sums->rc += (double)rr + rd;
    sums->dd += dd;
    sums->abs += total;
    double limit = from_bits(most) * (1 + 0x1p-22);
    if (limit > sums->most) sums->most = limit;

    /* Note what is far, WORD flags at a time; which words to visit is found without a branch. */
    memset(far + n, 0, (size_t)(-n & (WORD - 1)) * sizeof *far);
    uint16_t visit[CHUNK / WORD];
    int64_t visits = 0, noted = 0;
    uint64_t word;
    for (int64_t start = 0; start < n; start += WORD) {
        memcpy(&word, far + start, sizeof word);
        visit[visits] = (uint16_t)start;
        visits += word != 0;
    }
    for (int64_t k = 0; k < visits; k++) {
        memcpy(&word, far + visit[k], sizeof word);
        for (; word; word &= word - 1, noted++) {
            int64_t j = visit[k] + __builtin_ctzll(word) / 16;
            note(found, r[j], c[j]);
        }
    }
    found->ulps[0] += n - noted;
    return 1;
}

/* The numbers of `n` rows, those numbered `rows`, and what is known of all of them. */
EXPORT void driftwalk_compare(const float *r, const float *c, const int64_t *rows, int64_t n,
                              int64_t width, row_t *out, found_t *found) {
    double certain = -1;
    for (int64_t i = 0; i < n; i++) {
        const float *x = r + rows[i] * width, *y = c + rows[i] * width;
        int64_t bad = found->bad_either;
        row_t sums = {0};
        for (int64_t start = 0; start < width; start += CHUNK) {
            int64_t part = width - start < CHUNK ? width - start : CHUNK;
            if (found->precise || !fast(x + start, y + start, part, &sums, found)) {
                careful(x + start, y + start, part, rows[i], start, &sums, found);
            }
        }
        if (found->bad_either > bad) sums.most = INFINITY; /* fused.py: tokens, not maxima */
        out[i] = sums;
        double least = isfinite(sums.most) ? sums.most * (1 - 0x1p-20) : -1;
        if (least > certain) certain = least;
    }
    for (int64_t i = 0; i < n; i++) {
        if (out[i].most < certain) continue;
        const float *x = r + rows[i] * width, *y = c + rows[i] * width;
        for (int64_t j = 0; j < width; j++) {
            double d = fabs((double)y[j] - (double)x[j]);
            if (d > found->max_abs && isfinite(d)) {
                found->max_abs = d;
                found->worst[0] = rows[i];
                found->worst[1] = j;
            }
        }
        if (certain == 0 && !found->bad_either) break; /* no difference anywhere */
    }
}

/* A distance that about one in fifty reaches, judging by `pieces` runs of 16 elements from all over
 * both states: the smallest of its bucket, and no more than `farthest`. */
EXPORT uint64_t driftwalk_sample(const float *r, const float *c, int64_t n, int64_t pieces,
                                 uint64_t farthest) {
    enum { RUN = 16, BUCKETS = 256 << 3 };
    int64_t runs = n / RUN, every = runs > pieces ? runs / pieces : 1, seen = 0;
    int32_t counts[BUCKETS] = {0};
    for (int64_t run = 0; run < runs; run += every) {
        for (int64_t j = run * RUN; j < (run + 1) * RUN; j++, seen++) {
            uint64_t u = steps(r[j], c[j]);
            counts[bits((float)u) >> BUCKET_SHIFT]++;
        }
    }
    int bucket = BUCKETS - 1;
    for (int64_t above = 0; bucket > 0; bucket--) {
        above += counts[bucket];
        if (above > seen / 50) break;
    }
    float edge = ceilf(from_bits((uint32_t)bucket << BUCKET_SHIFT));
    return edge < 1 ? 1 : edge > (float)farthest ? farthest : (uint64_t)edge;
}

/* How many |differences| exceed floor + rtol * |reference|; the largest ratio of both, if above
 * `ratio`. Rows that can hold neither are passed over. */
EXPORT int64_t driftwalk_beyond(const float *r, const float *c, const int64_t *rows, int64_t n,
                                int64_t width, const row_t *known, double floor, double rtol,
                                double *ratio) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        double edge = *ratio < 1 ? *ratio * floor : floor;
        if (!(known[i].most > edge)) continue;
        const float *x = r + rows[i] * width, *y = c + rows[i] * width;
        for (int64_t j = 0; j < width; j++) {
            double d = fabs((double)y[j] - (double)x[j]);
            if (!(d > edge && isfinite(d))) continue;
            double allowed = floor + rtol * fabs((double)x[j]);
            count += d > allowed;
            if (d > *ratio * allowed) *ratio = d / allowed;
        }
    }
    return count;
}

/* Distances in a format of 16 bits, of which a and b are the bits, by bucket; pairs of which r or c,
 * the values before they were rounded to it, is not finite do not count. Gives the largest. */
EXPORT uint64_t driftwalk_steps16(const float *r, const float *c, const int64_t *rows, int64_t n,
                                  int64_t width, const uint16_t *a, const uint16_t *b,
                                  int64_t *counts) {
    int32_t largest = 0;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = rows[i] * width; j < (rows[i] + 1) * width; j++) {
            if (!isfinite(r[j]) || !isfinite(c[j])) continue;
            int32_t x = a[j] & 0x7fff, y = b[j] & 0x7fff;
            int32_t d = (a[j] >> 15 ? -x : x) - (b[j] >> 15 ? -y : y);
            if (d < 0) d = -d;
            if (d > largest) largest = d;
            counts[bits((float)d) >> BUCKET_SHIFT]++;
        }
    }
    return (uint64_t)largest;
}
