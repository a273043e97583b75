/* The largest singular value of a matrix, by products with few vectors, of which BLAS makes little.
 * spectral.py says how, and what for. */
#include "norms.h"

#include <stdlib.h>

enum { ROWS = 8, PANEL = 256, PASSES = 3, SQUARINGS = 7 };

typedef float lanes __attribute__((vector_size(32), aligned(4), may_alias));

/* Eight rows of a matrix from row i on; beyond the last, the first of them again. */
typedef struct {
    const float *at[ROWS];
} rows_t;

static inline rows_t eight(const float *matrix, int64_t i, int64_t n, int64_t width) {
    rows_t rows;
    for (int64_t k = 0; k < ROWS; k++) rows.at[k] = matrix + (i + k < n ? i + k : i) * width;
    return rows;
}

WIDE static void times(const float *matrix, int64_t n, int64_t width, const float *vectors,
                       float *out) {
    for (int64_t i = 0; i < n; i += ROWS) {
        rows_t row = eight(matrix, i, n, width);
        lanes sum[ROWS] = {{0}};
        for (int64_t j = 0; j < width; j++) {
            lanes v = *(const lanes *)(vectors + j * VECTORS);
            for (int k = 0; k < ROWS; k++) sum[k] += row.at[k][j] * v;
        }
        int64_t some = n - i < ROWS ? n - i : ROWS;
        memcpy(out + i * VECTORS, sum, (size_t)(some * VECTORS) * sizeof *out);
    }
}

WIDE static void times_back(const float *matrix, int64_t n, int64_t width, const float *vectors,
                            float *out) {
    for (int64_t first = 0; first < width; first += PANEL) {
        int64_t last = first + PANEL < width ? first + PANEL : width;
        for (int64_t i = 0; i < n; i += ROWS) {
            rows_t row = eight(matrix, i, n, width);
            lanes v[ROWS] = {{0}};
            int64_t some = n - i < ROWS ? n - i : ROWS;
            memcpy(v, vectors + i * VECTORS, (size_t)(some * VECTORS) * sizeof *vectors);
            for (int64_t j = first; j < last; j++) {
                lanes *at = (lanes *)(out + j * VECTORS), here = *at;
                for (int k = 0; k < ROWS; k++) here += row.at[k][j] * v[k];
                *at = here;
            }
        }
    }
}

/* out = matrix * vectors: n rows of `width`, times VECTORS columns. */
EXPORT void driftwalk_times(const float *matrix, int64_t n, int64_t width, const float *vectors,
                            float *out) {
    times(matrix, n, width, vectors, out);
}

/* out = transposed matrix * vectors; `out` starts as zeros. */
EXPORT void driftwalk_times_back(const float *matrix, int64_t n, int64_t width,
                                 const float *vectors, float *out) {
    times_back(matrix, n, width, vectors, out);
}

static double product(const double *a, const double *b, int64_t n) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* An orthonormal basis of what the columns of `vectors` span; a column that adds nothing is 0. */
static void orthonormal(float *vectors, int64_t n, double *columns) {
    for (int64_t i = 0; i < n; i++) {
        for (int k = 0; k < VECTORS; k++) columns[k * n + i] = vectors[i * VECTORS + k];
    }
    for (int k = 0; k < VECTORS; k++) {
        double *own = columns + k * n, first = product(own, own, n), left = first;
        for (int again = 0; again < 2; again++) { /* once more for what rounding left */
            for (int j = 0; j < k; j++) {
                const double *other = columns + j * n;
                double part = product(own, other, n);
                for (int64_t i = 0; i < n; i++) own[i] -= part * other[i];
            }
            left = product(own, own, n);
        }
        double scale = left > 1e-24 * first ? 1 / sqrt(left) : 0;
        for (int64_t i = 0; i < n; i++) own[i] *= scale;
    }
    for (int64_t i = 0; i < n; i++) {
        for (int k = 0; k < VECTORS; k++) vectors[i * VECTORS + k] = (float)columns[k * n + i];
    }
}

typedef double matrix_t[VECTORS][VECTORS];

/* Of each two columns of `vectors`. */
WIDE static void products(const float *vectors, int64_t n, matrix_t found) {
    for (int64_t first = 0; first < n; first += PANEL) {
        int64_t last = first + PANEL < n ? first + PANEL : n;
        lanes some[VECTORS] = {{0}};
        for (int64_t j = first; j < last; j++) {
            lanes v = *(const lanes *)(vectors + j * VECTORS);
            for (int p = 0; p < VECTORS; p++) some[p] += vectors[j * VECTORS + p] * v;
        }
        for (int p = 0; p < VECTORS; p++) {
            for (int q = 0; q < VECTORS; q++) found[p][q] += some[p][q];
        }
    }
}

/* The largest eigenvalue of a matrix of products, which has none below 0: high powers of it have
 * next to nothing but its direction. */
static double largest_eigenvalue(const matrix_t of) {
    matrix_t power;
    memcpy(power, of, sizeof power);
    int best = 0;
    for (int squaring = 0; squaring < SQUARINGS; squaring++) {
        matrix_t last;
        double trace = 0;
        for (int p = 0; p < VECTORS; p++) trace += power[p][p];
        if (!(trace > 0)) return 0;
        for (int p = 0; p < VECTORS; p++) {
            for (int q = 0; q < VECTORS; q++) last[p][q] = power[p][q] / trace, power[p][q] = 0;
        }
        for (int p = 0; p < VECTORS; p++) {
            for (int k = 0; k < VECTORS; k++) {
                for (int q = 0; q < VECTORS; q++) power[p][q] += last[p][k] * last[k][q];
            }
        }
    }
    for (int p = 1; p < VECTORS; p++) best = power[p][p] > power[best][best] ? p : best;
    const double *v = power[best];
    double top = 0, bottom = 0;
    for (int p = 0; p < VECTORS; p++) {
        for (int q = 0; q < VECTORS; q++) top += v[p] * of[p][q] * v[q];
        bottom += v[p] * v[p];
    }
    return top / bottom;
}

/* `sketch` has VECTORS random numbers for each column of the matrix. */
double largest_singular_value(const float *matrix, int64_t n, int64_t width, const float *sketch) {
    size_t numbers = (size_t)(n * VECTORS), others = (size_t)(width * VECTORS);
    double *columns = malloc(numbers * sizeof(double) + (numbers + others) * sizeof(float));
    if (!columns) return -1;
    float *basis = (float *)(columns + numbers), *image = basis + numbers;
    matrix_t squares = {{0}};
    for (int pass = 0; pass < PASSES; pass++) {
        times(matrix, n, width, pass ? image : sketch, basis);
        orthonormal(basis, n, columns);
        memset(image, 0, others * sizeof *image);
        times_back(matrix, n, width, basis, image);
    }
    products(image, width, squares);
    free(columns);
    return sqrt(largest_eigenvalue(squares));
}
