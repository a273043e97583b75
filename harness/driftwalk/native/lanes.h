/* Four floats at a time, in vectors that gcc and clang have on every machine. Where a machine has an
 * instruction for what plain operators need two or three for, it is named. */
#ifndef DRIFTWALK_LANES_H
#define DRIFTWALK_LANES_H

#include "native.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { LANES = 4, GROUP = 16 };

typedef float floats __attribute__((vector_size(16)));
typedef uint32_t words __attribute__((vector_size(16)));

static inline floats load(const float *at) {
    floats x;
    memcpy(&x, at, sizeof x);
    return x;
}

static inline float sum(floats x) { return (x[0] + x[1]) + (x[2] + x[3]); }

static inline floats size(floats x) { return (floats)((words)x & ~SIGN); }

/* |x - y| */
static inline floats apart(floats x, floats y) {
#if defined(__aarch64__)
    return (floats)vabdq_f32((float32x4_t)x, (float32x4_t)y);
#else
    return size(x - y);
#endif
}

static inline floats larger(floats x, floats y) {
#if defined(__aarch64__)
    return (floats)vmaxq_f32((float32x4_t)x, (float32x4_t)y);
#elif defined(__SSE2__)
    return (floats)_mm_max_ps((__m128)x, (__m128)y);
#else
    words first = (words)(x > y);
    return (floats)(((words)x & first) | ((words)y & ~first));
#endif
}

/* Where x > |y|: all bits of a word, or none. x has no sign. */
static inline words exceeds(floats x, floats y) {
#if defined(__aarch64__)
    return (words)vcagtq_f32((float32x4_t)x, (float32x4_t)y);
#else
    return (words)(x > size(y));
#endif
}

/* One bit for each of GROUP words, 1 << FLAG_SHIFT bits apart. */
#if defined(__aarch64__)
enum { FLAG_SHIFT = 2 };
#else
enum { FLAG_SHIFT = 0 };
#endif

static inline uint64_t flags(const words at[GROUP / LANES]) {
#if defined(__aarch64__)
    uint16x8_t low = vuzp1q_u16((uint16x8_t)at[0], (uint16x8_t)at[1]);
    uint16x8_t high = vuzp1q_u16((uint16x8_t)at[2], (uint16x8_t)at[3]);
    uint8x16_t all = vuzp1q_u8((uint8x16_t)low, (uint8x16_t)high);
    uint8x8_t nibbles = vshrn_n_u16((uint16x8_t)all, 4);
    return vget_lane_u64((uint64x1_t)nibbles, 0) & 0x1111111111111111u;
#elif defined(__SSE2__)
    __m128i low = _mm_packs_epi32((__m128i)at[0], (__m128i)at[1]);
    __m128i high = _mm_packs_epi32((__m128i)at[2], (__m128i)at[3]);
    return (uint64_t)_mm_movemask_epi8(_mm_packs_epi16(low, high));
#else
    uint64_t found = 0;
    for (int k = 0; k < GROUP; k++) found |= (uint64_t)(at[k / LANES][k % LANES] & 1) << k;
    return found;
#endif
}

#endif
