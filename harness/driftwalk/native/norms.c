/* The difference of two states and its strongest pattern; norms.py says what for.
 *
 * A state is a matrix of rows (tokens) of `width` channels. Differences, their squares by channel
 * and the largest are exact as far as float64 is; the difference itself is handed on in float32, for
 * products with few vectors, of which BLAS makes little.
 */
#include "native.h"

enum { VECTORS = 8, HALVES = 2, ROWS = 4, PANEL = 256 };

typedef float lanes __attribute__((vector_size(16), aligned(4), may_alias));

/* What one row came to, as it is and weighed. */
typedef struct {
    double squares, weighed_squares, most, weighed_most;
} row_t;

/* One row, of weight `token`; each channel has a weight of its own. Weighed squares are added up by
 * channel, the weighed difference goes to `whole`. */
#define DIFFERENCE(NAME, A, B)                                                                     \
    WIDE static row_t NAME(const A *restrict a, const B *restrict b, int64_t width, double token,  \
                           const double *restrict weights, double *restrict squares,              \
                           float *restrict whole) {                                                \
        double sum = 0, most = 0, weighed = 0, weighed_most = 0;                                   \
        _Pragma("omp simd reduction(max : most, weighed_most) reduction(+ : sum, weighed)")       \
        for (int64_t j = 0; j < width; j++) {                                                      \
            double d = (double)a[j] - (double)b[j], e = d * (token * weights[j]);                  \
            double size = fabs(d), weighed_size = fabs(e);                                         \
            sum += d * d;                                                                          \
            weighed += e * e;                                                                      \
            squares[j] += e * e;                                                                   \
            whole[j] = (float)e;                                                                   \
            most = size > most ? size : most;                                                      \
            weighed_most = weighed_size > weighed_most ? weighed_size : weighed_most;              \
        }                                                                                          \
        return (row_t){sum, weighed, most, weighed_most};                                          \
    }

DIFFERENCE(single_single, float, float)
DIFFERENCE(single_double, float, double)
DIFFERENCE(double_single, double, float)
DIFFERENCE(double_double, double, double)

/* The rows numbered `rows`, with a weight for each and for each channel. `wide` has bit 0 set where a
 * is float64, bit 1 where b is, bit 2 where b is one row for all. Each row of the weighed difference
 * goes `step` floats beyond the last: 0 keeps none of them. */
EXPORT void driftwalk_difference(const void *a, const void *b, const int64_t *rows, int64_t n,
                                 int64_t width, int64_t wide, const double *tokens,
                                 const double *weights, row_t *found, double *squares,
                                 float *whole, int64_t step) {
    int64_t one = wide & 4;
    wide &= 3;
    for (int64_t i = 0; i < n; i++) {
        int64_t at = rows[i] * width, to = one ? 0 : at;
        const float *a4 = (const float *)a + at, *b4 = (const float *)b + to;
        const double *a8 = (const double *)a + at, *b8 = (const double *)b + to;
        float *out = whole + i * step;
        double w = tokens[i];
        found[i] = wide == 0   ? single_single(a4, b4, width, w, weights, squares, out)
                   : wide == 1 ? double_single(a8, b4, width, w, weights, squares, out)
                   : wide == 2 ? single_double(a4, b8, width, w, weights, squares, out)
                               : double_double(a8, b8, width, w, weights, squares, out);
    }
}

/* Four rows of a matrix from row i on; beyond the last, the first of them again. */
typedef struct {
    const float *a, *b, *c, *d;
} rows_t;

static inline rows_t four(const float *matrix, int64_t i, int64_t n, int64_t width) {
    const float *a = matrix + i * width;
    return (rows_t){a, i + 1 < n ? a + width : a, i + 2 < n ? a + 2 * width : a,
                    i + 3 < n ? a + 3 * width : a};
}

/* out = matrix * vectors: n rows of `width`, times VECTORS columns. */
EXPORT void driftwalk_times(const float *matrix, int64_t n, int64_t width, const float *vectors,
                            float *out) {
    for (int64_t i = 0; i < n; i += ROWS) {
        rows_t row = four(matrix, i, n, width);
        lanes sum[HALVES * ROWS] = {{0}};
        for (int64_t j = 0; j < width; j++) {
            const lanes *v = (const lanes *)(vectors + j * VECTORS);
            lanes low = v[0], high = v[1];
            sum[0] += row.a[j] * low, sum[1] += row.a[j] * high;
            sum[2] += row.b[j] * low, sum[3] += row.b[j] * high;
            sum[4] += row.c[j] * low, sum[5] += row.c[j] * high;
            sum[6] += row.d[j] * low, sum[7] += row.d[j] * high;
        }
        int64_t some = n - i < ROWS ? n - i : ROWS;
        memcpy(out + i * VECTORS, sum, (size_t)(some * VECTORS) * sizeof *out);
    }
}

/* out = transposed matrix * vectors; `out` starts as zeros. */
EXPORT void driftwalk_times_back(const float *matrix, int64_t n, int64_t width,
                                 const float *vectors, float *out) {
    for (int64_t first = 0; first < width; first += PANEL) {
        int64_t last = first + PANEL < width ? first + PANEL : width;
        for (int64_t i = 0; i < n; i += ROWS) {
            rows_t row = four(matrix, i, n, width);
            lanes v[HALVES * ROWS] = {{0}};
            int64_t some = n - i < ROWS ? n - i : ROWS;
            memcpy(v, vectors + i * VECTORS, (size_t)(some * VECTORS) * sizeof *vectors);
            for (int64_t j = first; j < last; j++) {
                lanes *at = (lanes *)(out + j * VECTORS), low = at[0], high = at[1];
                low += row.a[j] * v[0], high += row.a[j] * v[1];
                low += row.b[j] * v[2], high += row.b[j] * v[3];
                low += row.c[j] * v[4], high += row.c[j] * v[5];
                low += row.d[j] * v[6], high += row.d[j] * v[7];
                at[0] = low, at[1] = high;
            }
        }
    }
}
