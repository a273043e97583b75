/* The difference of two states; norms.py says what for.
 *
 * A state is a matrix of rows (tokens) of `width` channels. Differences, their squares by channel
 * and the largest are exact as far as float64 is; the difference itself is handed on in float32.
 */
#include "norms.h"

#include <stdlib.h>

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

/* The number that would be at `at` in order; others are moved. */
static double ordered(double *values, int64_t n, int64_t at) {
    int64_t low = 0, high = n - 1;
    while (low < high) {
        double pivot = values[low + (high - low) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (values[i] < pivot) i++;
            while (values[j] > pivot) j--;
            if (i <= j) {
                double other = values[i];
                values[i++] = values[j], values[j--] = other;
            }
        }
        if (at <= j) high = j;
        else if (at >= i) low = i;
        else break;
    }
    return values[at];
}

static double middle(double *values, int64_t n) {
    double upper = ordered(values, n, n / 2);
    return (ordered(values, n, (n - 1) / 2) + upper) / 2;
}

/* The norms of a difference, from what its rows and channels came to; Norms has the same order. */
typedef struct {
    double l2, max_abs, channel, spectral, spread, peak;
    double token_middle, token_upper, token_worst, channel_middle;
} norms_t;

/* 0 where the numbers are to be looked at otherwise: something is not finite. `squares` is changed;
 * `typical` has room for as many numbers as there are rows. */
static int64_t add_up(const row_t *found, int64_t n, double *squares, int64_t width,
                      const uint8_t *alive, double upper, double *typical, norms_t *norms) {
    double plain = 0, weighed = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        double size = sqrt(found[i].weighed_squares);
        plain += found[i].squares, weighed += found[i].weighed_squares;
        norms->max_abs = fmax(norms->max_abs, found[i].most);
        norms->peak = fmax(norms->peak, found[i].weighed_most);
        norms->token_worst = fmax(norms->token_worst, size);
        if (!alive || alive[i]) typical[count++] = size;
    }
    if (!isfinite(plain) || !isfinite(weighed) || !count) return 0;
    for (int64_t j = 0; j < width; j++) {
        squares[j] = sqrt(squares[j] / (double)n);
        norms->channel = fmax(norms->channel, squares[j]);
    }
    norms->l2 = sqrt(plain), norms->spread = sqrt(weighed);
    norms->channel_middle = middle(squares, width);
    norms->token_upper = ordered(typical, count, (int64_t)ceil(upper * (double)(count - 1)));
    norms->token_middle = middle(typical, count);
    return 1;
}

/* All norms of a difference at once, as norms.py has them; 0 where it must find them itself. The
 * arguments up to `weights` are those of driftwalk_difference. `alive` may be null; `sketch` is where
 * the largest singular value is looked for, null: nobody asks for it. It is left to others where
 * the largest number is not between `least` and `most`. */
EXPORT int64_t driftwalk_norms(const void *a, const void *b, const int64_t *rows, int64_t n,
                               int64_t width, int64_t wide, const double *tokens,
                               const double *weights, const uint8_t *alive, double upper,
                               const float *sketch, double least, double most, norms_t *norms) {
    int64_t step = sketch ? width : 0, kept = sketch ? n * width : width, done = 0;
    size_t numbers = (size_t)(width + n) * sizeof(double) + (size_t)n * sizeof(row_t);
    char *room = malloc(numbers + (size_t)kept * sizeof(float));
    if (!room) return 0;
    double *squares = (double *)room, *typical = squares + width;
    row_t *found = (row_t *)(typical + n);
    float *whole = (float *)(found + n);
    memset(squares, 0, (size_t)width * sizeof *squares);
    memset(norms, 0, sizeof *norms);
    driftwalk_difference(a, b, rows, n, width, wide, tokens, weights, found, squares, whole, step);
    done = add_up(found, n, squares, width, alive, upper, typical, norms);
    if (done && sketch && norms->peak > 0) {
        done = norms->peak > least && norms->peak < most;
        if (done) norms->spectral = largest_singular_value(whole, n, width, sketch);
        done = done && norms->spectral >= 0 && isfinite(norms->spectral);
    }
    free(room);
    return done;
}
