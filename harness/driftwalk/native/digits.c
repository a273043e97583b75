/* Numbers to four digits, as a report has them. metrics.py calls this. */
#include <stdio.h>
#include <stdlib.h>

#include "native.h"

/* Each as "%.4g" has it: an integer of four digits over a power of ten. Both are exact in float64,
 * so the quotient is the float nearest to that decimal. Where rounding is in doubt, or the power is
 * not exact, the text decides. */
EXPORT void driftwalk_four_digits(double *values, int64_t n) {
    static const double POWERS[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                    1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                    1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    for (int64_t i = 0; i < n; i++) {
        double x = values[i];
        if (!(x > 0) || isinf(x)) continue;
        uint64_t word;
        memcpy(&word, &x, sizeof word);
        int power = (int)(word >> 52) - 1023; /* of two: x is at least that, and less than twice */
        int places = 3 - (int)floor(power * 0.30102999566398120);
        if (places >= 0 && places <= 22 && x * POWERS[places] >= 10000) places--;
        if (places >= 0 && places <= 22) {
            double scaled = x * POWERS[places], digits = rint(scaled);
            if (fabs(fabs(scaled - digits) - 0.5) > 1e-6 && digits >= 1000) {
                values[i] = digits / POWERS[places];
                continue;
            }
        }
        char text[32];
        snprintf(text, sizeof text, "%.4g", x);
        values[i] = strtod(text, NULL);
    }
}
