// SPDX-License-Identifier: Apache-2.0
#include "agent/base/number.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS_MAX = 63 }; // longest text of a real number

bool neb_number_whole(const char *text, uint64_t min, uint64_t max, uint64_t *out) {
    uint64_t v = 0;
    if (!*text)
        return false;
    for (; *text; text++) {
        unsigned digit = (unsigned)(unsigned char)*text - '0';
        if (digit > 9 || v > (UINT64_MAX - digit) / 10)
            return false;
        v = 10 * v + digit;
    }
    if (v < min || v > max)
        return false;
    *out = v;
    return true;
}

// strtod of the C locale, where the decimal point is '.'.
static double convert(const char *digits) {
    locale_t c = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
    double v = c ? strtod_l(digits, NULL, c) : strtod(digits, NULL);
    if (c)
        freelocale(c);
    return v;
}

static size_t digits_at(const char *p) { return strspn(p, "0123456789"); }

const char *neb_number_prefix(const char *text, double *out) {
    char copy[DIGITS_MAX + 1];
    size_t n = digits_at(text), fraction = 0;
    if (text[n] == '.') {
        fraction = digits_at(text + n + 1);
        if (n + fraction == 0)
            return NULL;
        n += 1 + fraction;
    }
    if (n == 0)
        return NULL;
    if (text[n] == 'e' || text[n] == 'E') { // an exponent needs digits
        size_t sign = text[n + 1] == '+' || text[n + 1] == '-', e = digits_at(text + n + 1 + sign);
        n += e ? 1 + sign + e : 0;
    }
    if (n > DIGITS_MAX)
        return NULL;
    memcpy(copy, text, n);
    copy[n] = 0;
    double v = convert(copy);
    if (!isfinite(v))
        return NULL;
    *out = v;
    return text + n;
}

bool neb_number_real(const char *text, double min, double max, double *out) {
    bool negative = *text == '-';
    double v;
    const char *end = neb_number_prefix(text + negative, &v);
    v = end && negative ? -v : end ? v : 0;
    if (!end || *end || !(v >= min) || !(v <= max))
        return false;
    *out = v;
    return true;
}

bool neb_number_size(const char *text, uint64_t min, uint64_t max, uint64_t *out) {
    static const char units[] = "KMGT";
    double v;
    const char *end = neb_number_prefix(text, &v);
    const char *unit = end && *end ? strchr(units, *end) : NULL;
    bool binary = unit && end[1] == 'i';
    for (const char *u = units; unit && u <= unit; u++)
        v *= binary ? 1024 : 1000;
    if (!end)
        return false;
    end += unit ? 1 + binary : 0;
    if (binary && *end != 'B')
        return false;
    end += *end == 'B';
    if (*end || v >= 0x1p64 || (uint64_t)v < min || (uint64_t)v > max)
        return false;
    *out = (uint64_t)v;
    return true;
}
