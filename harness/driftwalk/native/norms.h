/* What the compiled parts of norms.py and spectral.py share. */
#ifndef DRIFTWALK_NORMS_H
#define DRIFTWALK_NORMS_H

#include "native.h"

enum { VECTORS = 8 };

/* What one row came to, as it is and weighed. */
typedef struct {
    double squares, weighed_squares, most, weighed_most;
} row_t;

/* norms.c: the differences of rows. */
void driftwalk_difference(const void *a, const void *b, const int64_t *rows, int64_t n,
                          int64_t width, int64_t wide, const double *tokens,
                          const double *weights, row_t *found, double *squares, float *whole,
                          int64_t step);

/* spectral.c: the largest singular value; negative where there was no memory for it. */
double largest_singular_value(const float *matrix, int64_t n, int64_t width, const float *sketch);

#endif
