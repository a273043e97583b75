/* Formats of 16 bits: float16, and bfloat16, which `brain` tells. halves.py and fused.py call this.
 *
 * Every sum here is of normal numbers, so that it does not matter whether a thread flushes others to
 * zero; there is no branch, so that a compiler makes vectors of it. */
#include "compare.h"

static const uint32_t INFINITE = 0x7f800000u;

/* The float32 that a float16 is. */
static inline uint32_t widened(uint16_t half) {
#if defined(__aarch64__)
    __fp16 value;
    memcpy(&value, &half, sizeof value);
    return bits(value);
#else
    const uint32_t one = 1u << 23; /* in the exponent, which float32 has 112 higher */
    uint32_t size = (uint32_t)(half & 0x7fff) << 13, sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t tiny = bits(from_bits(size + 113 * one) - from_bits(113 * one));
    uint32_t found = size + (size < 31 * one ? 112 * one : 224 * one); /* infinite, or NaN */
    return (size < one ? tiny : found) | sign;
#endif
}

/* The float16 nearest to a float32, of two the even one. */
static inline uint16_t narrowed(uint32_t word) {
#if defined(__aarch64__)
    __fp16 value = (__fp16)from_bits(word);
    uint16_t half;
    memcpy(&half, &value, sizeof half);
    return half;
#else
    const uint32_t one = 1u << 23;
    uint32_t size = word & ~SIGN, sign = (word & SIGN) >> 16;
    uint32_t tiny = bits(from_bits(size) + from_bits(126 * one)) - 126 * one;
    uint32_t found = (size - 112 * one + 0xfff + (size >> 13 & 1)) >> 13;
    uint32_t large = size > INFINITE ? 0x7e00 : 0x7c00;
    return (uint16_t)((size < 113 * one ? tiny : size < 143 * one ? found : large) | sign);
#endif
}

/* The same for bfloat16. */
static inline uint16_t cut(uint32_t word) {
    uint32_t nan = (word & ~SIGN) > INFINITE;
    return (uint16_t)(nan ? word >> 16 | 0x40 : (word + 0x7fff + (word >> 16 & 1)) >> 16);
}

WIDE EXPORT void driftwalk_widen(const uint16_t *restrict from, uint32_t *restrict to, int64_t n,
                                 int64_t brain) {
    if (brain) {
        for (int64_t j = 0; j < n; j++) to[j] = (uint32_t)from[j] << 16;
    } else {
        for (int64_t j = 0; j < n; j++) to[j] = widened(from[j]);
    }
}

WIDE EXPORT void driftwalk_narrow(const uint32_t *restrict from, uint16_t *restrict to, int64_t n,
                                  int64_t brain) {
    if (brain) {
        for (int64_t j = 0; j < n; j++) to[j] = cut(from[j]);
    } else {
        for (int64_t j = 0; j < n; j++) to[j] = narrowed(from[j]);
    }
}

enum { FEW = 256 }; /* distances below FEW - 1 are counted one by one */

static inline uint16_t distance(uint16_t a, uint16_t b) {
    uint16_t x = a & 0x7fff, y = b & 0x7fff;
    uint16_t apart = x > y ? x - y : y - x, sum = x + y; /* at most 2^16 - 2 */
    return (a ^ b) & 0x8000 ? sum : apart;
}

/* The distances of at most CHUNK pairs; gives the largest. */
WIDE static uint16_t tell(const uint16_t *restrict a, const uint16_t *restrict b, int64_t n,
                          uint16_t *restrict far, uint8_t *restrict few) {
    uint16_t largest = 0;
#pragma omp simd reduction(max : largest)
    for (int64_t j = 0; j < n; j++) {
        uint16_t d = distance(a[j], b[j]);
        far[j] = d;
        few[j] = (uint8_t)(d < FEW - 1 ? d : FEW - 1);
        largest = d > largest ? d : largest;
    }
    return largest;
}

static inline int finite(uint32_t word) { return (word & INFINITE) != INFINITE; }

/* Distances in a format of 16 bits, of which a and b are the bits, by bucket. Pairs of which r or c,
 * the values before they were rounded to it, is not finite do not count; r is not looked at where
 * `clean` tells that there are none. Gives the largest. */
EXPORT uint64_t driftwalk_steps16(const uint32_t *r, const uint32_t *c, const int64_t *rows,
                                  int64_t n, int64_t width, const uint16_t *a, const uint16_t *b,
                                  int64_t clean, int64_t *counts) {
    enum { TURNS = 4 }; /* neighbours are often as far apart, and a count waits for the last one */
    int64_t seen[TURNS][FEW] = {{0}};
    uint16_t largest = 0, far[CHUNK];
    uint8_t few[CHUNK + TURNS];
    for (int64_t i = 0; i < n; i++) {
        int64_t end = (rows[i] + 1) * width;
        for (int64_t at = rows[i] * width; at < end; at += CHUNK) {
            int64_t part = end - at < CHUNK ? end - at : CHUNK, known = part;
            uint16_t ours[CHUNK], theirs[CHUNK];
            const uint16_t *x = a + at, *y = b + at;
            if (!clean) {
                known = 0;
                for (int64_t j = at; j < at + part; j++) {
                    ours[known] = a[j], theirs[known] = b[j];
                    known += finite(r[j]) & finite(c[j]);
                }
                x = ours, y = theirs;
            }
            uint16_t most = tell(x, y, known, far, few);
            largest = most > largest ? most : largest;
            memset(few + known, FEW - 1, TURNS); /* such are not counted here */
            for (int64_t j = 0; j < known; j += TURNS) {
                for (int turn = 0; turn < TURNS; turn++) seen[turn][few[j + turn]]++;
            }
            const uint8_t *next = few, *last = few + known;
            while ((next = memchr(next, FEW - 1, (size_t)(last - next)))) {
                counts[bucket_of(far[next++ - few])]++;
            }
        }
    }
    for (int turn = 0; turn < TURNS; turn++) {
        for (uint32_t d = 0; d < FEW - 1; d++) counts[bucket_of(d)] += seen[turn][d];
    }
    return largest;
}
