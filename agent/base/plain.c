#include "agent/base/plain.h"

#include <stddef.h>
#include <string.h>

// The length of the character of UTF-8 at s, and its code point; 1 and U+FFFD where there is none.
static size_t decode(const unsigned char *s, unsigned *code) {
    static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = s[0] < 0x80 ? 1 : s[0] >> 5 == 6 ? 2 : s[0] >> 4 == 14 ? 3 : s[0] >> 3 == 30 ? 4 : 0;
    *code = n < 2 ? s[0] : s[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if (s[i] >> 6 != 2) // the end of the text, too
            n = 0;
        *code = *code << 6 | (s[i] & 0x3fu);
    }
    if (n && *code >= least[n] && *code <= 0x10ffff)
        return n;
    *code = 0xfffd;
    return 1;
}

void neb_plain(char *text, bool lines) {
    unsigned code;
    size_t n;
    for (char *s = text; *s; s += n) {
        n = decode((const unsigned char *)s, &code);
        bool control = code < 0x20 ? !(lines && code == '\n') : code >= 0x7f && code <= 0x9f,
             turned = (code >= 0x200e && code <= 0x200f) || (code >= 0x2028 && code <= 0x202e) ||
                      (code >= 0x2066 && code <= 0x2069);
        if (control || turned || (code == 0xfffd && n == 1))
            memset(s, '?', n);
    }
}
