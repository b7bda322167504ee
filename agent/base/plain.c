// SPDX-License-Identifier: Apache-2.0
#include "agent/base/plain.h"

#include <string.h>

// Decodes one UTF-8 character at s. Returns its length and code point; 1 and U+FFFD for invalid
// bytes; 0 if the character is valid so far but continues after `left`.
static size_t decode(const unsigned char *s, size_t left, unsigned *code) {
    static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = s[0] < 0x80 ? 1 : s[0] >> 5 == 6 ? 2 : s[0] >> 4 == 14 ? 3 : s[0] >> 3 == 30 ? 4 : 0;
    *code = n < 2 ? s[0] : s[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if (i == left)
            return 0;
        if (s[i] >> 6 != 2)
            n = 0;
        *code = *code << 6 | (s[i] & 0x3fu);
    }
    bool surrogate = *code >= 0xd800 && *code <= 0xdfff;
    if (n && *code >= least[n] && *code <= 0x10ffff && !surrogate)
        return n;
    *code = 0xfffd;
    return 1;
}

static bool commands(unsigned code, size_t n, const char *but) {
    if (code < 0x20)
        return !code || !strchr(but, (int)code);
    return (code >= 0x7f && code <= 0x9f) || (code >= 0x200e && code <= 0x200f) ||
           (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069) ||
           (code == 0xfffd && n == 1);
}

static size_t clean(char *p, size_t n, const char *but, bool last) {
    unsigned code;
    size_t at = 0;
    while (at < n) {
        size_t k = decode((const unsigned char *)p + at, n - at, &code);
        if (!k && !last)
            return at;
        if (!k)
            k = 1, code = 0xfffd;
        if (commands(code, k, but))
            memset(p + at, '?', k);
        at += k;
    }
    return n;
}

void neb_plain(char *text, bool lines) { clean(text, strlen(text), lines ? "\n" : "", true); }

size_t neb_plain_text(char *p, size_t n, bool last) { return clean(p, n, "\n\t", last); }

bool neb_is_plain(const char *text) {
    unsigned code;
    for (size_t left = strlen(text), k; left; text += k, left -= k) {
        k = decode((const unsigned char *)text, left, &code);
        if (!k || commands(code, k, ""))
            return false;
    }
    return true;
}
