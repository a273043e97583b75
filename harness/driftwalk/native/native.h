/* What all compiled parts share. Plain C without Python's API: hatch_build.py compiles it. */
#ifndef DRIFTWALK_NATIVE_H
#define DRIFTWALK_NATIVE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
/* Compiled twice, for any x86-64 and for those with wider registers; chosen when it is loaded. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#if __GNUC__ >= 12
#define WIDE __attribute__((target_clones("default", "arch=x86-64-v3")))
#else
#define WIDE __attribute__((target_clones("default", "avx2")))
#endif
#else
#define WIDE
#endif

/* Elements that are summed in float32; their sums are added in float64. */
enum { CHUNK = 1024 };

static const uint32_t SIGN = 0x80000000u;

static inline uint32_t bits(float x) {
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

static inline float from_bits(uint32_t b) {
    float x;
    memcpy(&x, &b, sizeof x);
    return x;
}

#endif
