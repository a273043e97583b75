/* What the rows of a pair came to, from what was found of its parts. fused.py calls this. */
#include "compare.h"

static void add(total_t *all, const found_t *part) {
    if (part->max_abs > all->max_abs) { /* of several as large, the first */
        all->max_abs = part->max_abs;
        memcpy(all->worst, part->worst, sizeof all->worst);
    }
    for (int side = 0; side < 2; side++) {
        if (part->bad[side] && !all->bad[side]) {
            memcpy(all->bad_at[side], part->bad_at[side], sizeof all->bad_at[side]);
        }
        all->bad[side] += part->bad[side];
    }
    all->bad_either += part->bad_either;
    if (part->max_rel > all->max_rel) all->max_rel = part->max_rel;
    if (part->ulp_max > all->ulp_max) all->ulp_max = part->ulp_max;
}

/* The smallest bucket that at least 99 % of all distances do not exceed, as ulp.py has it. */
static void quantile(total_t *all, const found_t *parts, int64_t number, int64_t elements) {
    uint32_t rest = 1;
    for (int64_t k = 0; k < number; k++) rest = parts[k].rest > rest ? parts[k].rest : rest;
    int64_t lowest = rest > 1 ? bucket_of(rest) : 0;
    int64_t bucket = 0, below = 0;
    for (;; bucket++) {
        for (int64_t k = 0; k < number; k++) below += parts[k].ulps[bucket];
        if ((double)below >= 0.99 * (double)elements || bucket == BUCKETS - 1) break;
    }
    double start = bucket_start(bucket);
    all->ulp_p99 = start < all->ulp_max ? start : all->ulp_max;
    all->rest = rest;
    all->known = !elements || rest == 1 || (bucket >= lowest && all->ulp_max >= rest);
}

/* `l2` is given the error of each row: infinite where something in it is not finite. */
EXPORT void driftwalk_settle(const row_t *rows, int64_t n, int64_t width, const found_t *parts,
                             int64_t number, double *l2, total_t *all) {
    memset(all, 0, sizeof *all);
    all->max_abs = -1;
    for (int64_t i = 0; i < n; i++) {
        all->rr += rows[i].rr;
        all->cc += rows[i].cc;
        all->rc += rows[i].rc;
        all->dd += rows[i].dd;
        all->abs += rows[i].abs;
        if (rows[i].most > all->most) all->most = rows[i].most;
        l2[i] = isinf(rows[i].most) ? INFINITY : sqrt(rows[i].dd);
    }
    double lone_rr = 0;
    int64_t lone = 0;
    for (int64_t k = 0; k < number; k++) {
        add(all, &parts[k]);
        lone += parts[k].lone;
        lone_rr += parts[k].lone_rr;
    }
    int64_t elements = n * width - all->bad_either;
    /* Of all that is finite in the reference, also where the candidate is not. */
    all->rms = elements + lone ? sqrt((all->rr + lone_rr) / (double)(elements + lone)) : 0;
    quantile(all, parts, number, elements);
}
