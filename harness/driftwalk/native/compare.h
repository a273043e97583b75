/* What a comparison of two float32 states adds up. */
#ifndef DRIFTWALK_COMPARE_H
#define DRIFTWALK_COMPARE_H

#include "native.h"

/* Distances in ULPs by bucket: the bits of one as a float, shifted (ulp.py). */
enum { BUCKET_SHIFT = 20, BUCKETS = 256 << 3 };

static inline uint32_t bucket_of(uint32_t distance) { return bits((float)distance) >> BUCKET_SHIFT; }
static inline float bucket_start(int64_t bucket) { return from_bits((uint32_t)bucket << BUCKET_SHIFT); }

/* The numbers of one row; no |difference| in it is larger than `most`. */
typedef struct {
    double rr, cc, rc, dd, abs, most;
} row_t;

/* What is known of some rows. */
typedef struct {
    double max_abs, max_rel; /* max_abs is -1 where nothing is finite */
    int64_t worst[2];        /* row and column of the largest difference */
    int64_t bad[2];          /* elements that are not finite: reference, candidate */
    int64_t bad_either;      /* pairs of which one is not */
    int64_t lone;            /* those of them of which the reference is, */
    double lone_rr;          /* and its squares there: they count for its scale */
    int64_t bad_at[2][2];    /* the first such row and column of each side */
    uint32_t ulp_max;
    uint32_t rest;           /* distances from it on are told apart; the others are in lower buckets */
    int64_t ulps[BUCKETS];
} found_t;

/* What all rows of a pair came to; native/__init__.py has the same structure. */
typedef struct {
    double rr, cc, rc, dd, abs, most, max_abs, max_rel, rms, ulp_max, ulp_p99;
    int64_t worst[2], bad[2], bad_at[2][2];
    int64_t bad_either;
    int64_t rest;  /* distances from it on were told apart everywhere */
    int64_t known; /* 0: too few distances were told apart to know the 99th percentile */
} total_t;

#endif
