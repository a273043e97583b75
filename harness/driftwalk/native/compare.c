/* One pass over two float32 states: every sum, maximum and count that a comparison needs.
 *
 * A state is a matrix of rows (tokens) of `width` channels. Each call looks at some of the rows, so
 * that threads can share a state, and sums are kept by row, so that no number depends on how they
 * shared it. fused.py calls this.
 *
 * Up to CHUNK elements at a time are summed in float32, their sums in float64: that is within
 * CHUNK * 2^-24 = 6e-5 of the truth for any order of adding, and some 1e-8 off in practice. Where
 * it is not safe (something is not finite, squares leave the range, both sides differ by more than
 * 3 %) the chunk is looked at carefully: one by one, in float64. Counts, maxima, places and
 * distances in ULPs are exact either way.
 */
#include "compare.h"
#include "lanes.h"

enum { AHEAD = 2 * CHUNK, FARTHEST = 1 << 22 };

static const float LOW = 0x1p-80f, CLOSE = 1e-3f;

/* An integer that counts every float32 from zero; -0 and +0 are one. No branch: signs are random. */
static inline int32_t place(float x) {
    int32_t b = (int32_t)(bits(x) & ~SIGN), negative = -(int32_t)(bits(x) >> 31);
    return (b ^ negative) - negative;
}

static inline uint32_t steps(float r, float c) {
    int32_t x = place(r), y = place(c);
    return x > y ? (uint32_t)x - (uint32_t)y : (uint32_t)y - (uint32_t)x;
}

/* Finite pairs whose distances are to be told apart: some hundreds at a time go fastest. */
typedef struct {
    int64_t count;
    float r[2 * CHUNK], c[2 * CHUNK];
} pairs_t;

/* Count distances by bucket, and find the largest ratio. */
WIDE static void tell_apart(const float *restrict r, const float *restrict c, int64_t n,
                            found_t *found) {
    uint32_t far = found->ulp_max, more = 0;
    float least = (float)(found->max_rel * (1 - 0x1p-20));
    uint16_t bucket[2 * CHUNK];
#pragma omp simd reduction(max : far) reduction(| : more)
    for (int64_t j = 0; j < n; j++) {
        uint32_t u = steps(r[j], c[j]);
        far = u > far ? u : far;
        more |= fabsf(c[j] - r[j]) > least * fabsf(r[j]);
        bucket[j] = (uint16_t)bucket_of(u);
    }
    found->ulp_max = far;
    for (int64_t j = 0; j < n; j++) found->ulps[bucket[j]]++;
    for (int64_t j = 0; more && j < n; j++) {
        double d = fabs((double)c[j] - (double)r[j]), m = fabs((double)r[j]);
        if (d > found->max_rel * m) found->max_rel = d / m; /* x / 0 is infinite, 0 / 0 nothing */
    }
}

/* At most CHUNK elements, one by one. */
static void careful(const float *r, const float *c, int64_t n, int64_t row, int64_t first,
                    row_t *sums, pairs_t *met, found_t *found) {
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
        met->r[met->count] = r[j], met->c[met->count++] = c[j];
    }
}

/* Some elements of a chunk, as flags of groups of them. */
typedef struct {
    int64_t groups;
    uint64_t flags[CHUNK / GROUP];
    uint16_t first[CHUNK / GROUP];
} chosen_t;

/* Take them to the others. */
static void meet(const float *restrict r, const float *restrict c, const chosen_t *chosen,
                 pairs_t *restrict met) {
    int64_t count = met->count;
    for (int64_t k = 0; k < chosen->groups; k++) {
        const float *x = r + chosen->first[k], *y = c + chosen->first[k];
        for (uint64_t left = chosen->flags[k]; left; left &= left - 1, count++) {
            int next = __builtin_ctzll(left) >> FLAG_SHIFT;
            met->r[count] = x[next], met->c[count] = y[next];
        }
    }
    met->count = count;
}

/* Fewer than GROUP elements, and zeros, which differ by nothing and change no sum. */
static inline const float *last_of(const float *x, int64_t count, float *zeros) {
    return memcpy(zeros, x, (size_t)count * sizeof *x);
}

/* At most CHUNK elements; gives 0, and changes nothing, where they must be looked at carefully.
 *
 * Who is nearer than `near` times |reference| is fewer than `rest` steps away, since there a step is
 * 2^-24 of it or more, and half a step for rounding is left. Only the others are met one by one. */
WIDE static int fast(const float *restrict r, const float *restrict c, int64_t n, row_t *sums,
                     pairs_t *met, found_t *found) {
    float near = (float)(found->rest - 1) * (0x1p-24f * (1 - 0x1p-20f));
    floats rr[2] = {{0}}, cc[2] = {{0}}, dd[2] = {{0}}, total[2] = {{0}}, most = {0};
    float last[2][GROUP] = {{0}};
    chosen_t beyond;
    int64_t groups = 0;
    for (int64_t start = 0; start < n; start += GROUP) {
        const float *x = r + start, *y = c + start;
        if (n - start < GROUP) x = last_of(x, n - start, last[0]), y = last_of(y, n - start, last[1]);
        __builtin_prefetch(x + AHEAD); /* what follows the chunk comes while some of it are met */
        __builtin_prefetch(y + AHEAD);
        words far[GROUP / LANES];
#pragma GCC unroll 4
        for (int k = 0; k < GROUP / LANES; k++) {
            floats one = load(x + k * LANES), other = load(y + k * LANES), d = apart(one, other);
            rr[k & 1] += one * one;
            cc[k & 1] += other * other;
            dd[k & 1] += d * d;
            total[k & 1] += d;
            most = larger(most, d);
            far[k] = exceeds(d, one * near);
        }
        /* Which groups to visit is found without a branch. */
        beyond.flags[groups] = flags(far);
        beyond.first[groups] = (uint16_t)start;
        groups += beyond.flags[groups] != 0;
    }
    beyond.groups = groups;
    float all_rr = sum(rr[0] + rr[1]), all_cc = sum(cc[0] + cc[1]), all_dd = sum(dd[0] + dd[1]);
    float highest = most[0];
    for (int k = 1; k < LANES; k++) highest = most[k] > highest ? most[k] : highest;
    int safe = all_rr > LOW && all_rr < INFINITY && all_cc < INFINITY;
    if (!safe || !(all_dd < CLOSE * all_rr) || !(all_dd > LOW || highest == 0)) return 0;
    sums->rr += all_rr;
    sums->cc += all_cc;
    sums->rc += ((double)all_rr + all_cc - all_dd) / 2; /* says more than a large product */
    sums->dd += all_dd;
    sums->abs += sum(total[0] + total[1]);
    double limit = highest * (1 + 0x1p-22);
    if (limit > sums->most) sums->most = limit;
    int64_t known = met->count;
    meet(r, c, &beyond, met);
    found->ulps[0] += n - (met->count - known);
    return 1;
}

/* A distance that three in two hundred reach, judging by some runs of elements from all over `n`
 * rows: the smallest of its bucket. */
static uint32_t sample(const float *r, const float *c, const int64_t *rows, int64_t n,
                       int64_t width) {
    enum { RUN = 256, RUNS = 16 };
    int64_t run = width < RUN ? width : RUN;
    found_t found;
    memset(&found, 0, sizeof found);
    found.max_rel = INFINITY; /* not wanted here */
    for (int64_t k = 0; k < RUNS; k++) {
        int64_t at = rows[k * n / RUNS] * width + k * (width - run) / (RUNS - 1);
        tell_apart(r + at, c + at, run, &found);
    }
    int64_t bucket = BUCKETS - 1;
    for (int64_t above = 0; bucket > 0; bucket--) {
        above += found.ulps[bucket];
        if (above > RUNS * run / 66) break;
    }
    float edge = ceilf(bucket_start(bucket));
    return edge < 1 ? 1 : edge > FARTHEST ? FARTHEST : (uint32_t)edge;
}

/* The numbers of `n` rows, those numbered `rows`, and what is known of all of them. Distances from
 * `rest` on are told apart; 0 is for one that few reach, as a sample has it. */
EXPORT void driftwalk_compare(const float *r, const float *c, const int64_t *rows, int64_t n,
                              int64_t width, int64_t rest, int64_t precise, row_t *out,
                              found_t *found) {
    double certain = -1;
    pairs_t met;
    met.count = 0;
    memset(found, 0, sizeof *found);
    found->max_abs = -1;
    found->rest = precise ? 1 : rest ? (uint32_t)rest : sample(r, c, rows, n, width);
    for (int64_t i = 0; i < n; i++) {
        const float *x = r + rows[i] * width, *y = c + rows[i] * width;
        int64_t bad = found->bad_either;
        row_t sums = {0};
        for (int64_t start = 0; start < width; start += CHUNK) {
            int64_t part = width - start < CHUNK ? width - start : CHUNK;
            if (precise || !fast(x + start, y + start, part, &sums, &met, found)) {
                careful(x + start, y + start, part, rows[i], start, &sums, &met, found);
            }
            if (met.count > CHUNK) {
                tell_apart(met.r, met.c, met.count, found);
                met.count = 0;
            }
        }
        if (found->bad_either > bad) sums.most = INFINITY; /* fused.py: tokens, not maxima */
        out[i] = sums;
        double least = isfinite(sums.most) ? sums.most * (1 - 0x1p-20) : -1;
        if (least > certain) certain = least;
    }
    tell_apart(met.r, met.c, met.count, found);
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

/* Bytes of what driftwalk_compare leaves; only compiled code looks inside. */
EXPORT int64_t driftwalk_found_size(void) { return sizeof(found_t); }

/* Those of at most CHUNK elements that differ by more than `least`. */
WIDE static void choose(const float *restrict r, const float *restrict c, int64_t n, float least,
                        chosen_t *chosen) {
    float last[2][GROUP] = {{0}};
    int64_t groups = 0;
    for (int64_t start = 0; start < n; start += GROUP) {
        const float *x = r + start, *y = c + start;
        if (n - start < GROUP) x = last_of(x, n - start, last[0]), y = last_of(y, n - start, last[1]);
        words far[GROUP / LANES];
        for (int k = 0; k < GROUP / LANES; k++) {
            far[k] = exceeds(apart(load(x + k * LANES), load(y + k * LANES)), (floats){0} + least);
        }
        chosen->flags[groups] = flags(far);
        chosen->first[groups] = (uint16_t)start;
        groups += chosen->flags[groups] != 0;
    }
    chosen->groups = groups;
}

/* How many |differences| exceed floor + rtol * |reference|; the largest ratio of both, if above
 * `ratio`. Rows that can hold neither are passed over. */
EXPORT int64_t driftwalk_beyond(const float *r, const float *c, const int64_t *rows, int64_t n,
                                int64_t width, const row_t *known, double floor, double rtol,
                                double *ratio) {
    int64_t count = 0;
    chosen_t beyond;
    pairs_t met;
    for (int64_t i = 0; i < n; i++) {
        double edge = *ratio < 1 ? *ratio * floor : floor;
        if (!(known[i].most > edge)) continue;
        float least = edge > LOW ? (float)(edge * (1 - 0x1p-20)) : 0; /* below, digits are lost */
        for (int64_t start = 0; start < width; start += CHUNK) {
            const float *x = r + rows[i] * width + start, *y = c + rows[i] * width + start;
            int64_t part = width - start < CHUNK ? width - start : CHUNK;
            choose(x, y, part, least, &beyond);
            met.count = 0;
            meet(x, y, &beyond, &met);
            for (int64_t j = 0; j < met.count; j++) {
                double d = fabs((double)met.c[j] - (double)met.r[j]);
                if (!(d > edge && isfinite(d))) continue;
                double allowed = floor + rtol * fabs((double)met.r[j]);
                count += d > allowed;
                if (d > *ratio * allowed) *ratio = d / allowed;
            }
        }
    }
    return count;
}
