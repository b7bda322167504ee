// SPDX-License-Identifier: Apache-2.0
// Names of encodings, conversion with iconv, and the check of UTF-8.
#include "intra/read/charset.h"
#include "intra/read/text_kind.h"

#include <ctype.h>
#include <errno.h>
#include <iconv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REST_MAX = 16 }; // bytes of an incomplete character, with its escape sequences

// Some encodings put another sign at the place of these ASCII characters, such as a yen sign for
// the backslash. Text files mean the ASCII character, because their escapes are made of it.
static const char signs[] = "\\~";
enum { SIGNS = sizeof signs - 1 };

struct intra_charset {
    iconv_t conv;
    size_t unit; // bytes to skip after an invalid sequence
    uint8_t rest[REST_MAX];
    size_t n_rest;
    char other[SIGNS][8]; // what iconv makes of each sign; empty: the sign itself
};

// ---- names --------------------------------------------------------------------------------------

// Keeps letters and digits, in lower case: "ISO_8859-1" becomes "iso88591". False: not a valid
// name.
static bool plain(const char *name, char out[INTRA_CHARSET_NAME_MAX + 1]) {
    size_t n = 0;
    if (!*name || strlen(name) > INTRA_CHARSET_NAME_MAX)
        return false;
    for (; *name; name++) {
        if (isalnum((unsigned char)*name))
            out[n++] = (char)tolower((unsigned char)*name);
        else if (!strchr("-_.:+() ", *name)) // rejects "//TRANSLIT" and paths
            return false;
    }
    out[n] = 0;
    return n > 0;
}

bool intra_charset_is_utf8(const char *name) {
    static const char *const same[] = {"utf8", "utf8sig", "ascii", "usascii", "ansix341968", "646"};
    char p[INTRA_CHARSET_NAME_MAX + 1];
    for (size_t i = 0; plain(name, p) && i < sizeof same / sizeof *same; i++)
        if (!strcmp(p, same[i]))
            return true;
    return false;
}

bool intra_charset_is_common(const char *name) {
    static const char *const begin[] = {"iso8859", "latin",    "koi8",       "cp125",    "cp437",
                                        "cp85",    "cp86",     "cp874",      "cp93",     "cp94",
                                        "cp95",    "cp922",    "windows",    "gb",       "euc",
                                        "big5",    "shiftjis", "sjis",       "tis620",   "viscii",
                                        "johab",   "tcvn",     "georgianps", "armscii8", "uhc"};
    char p[INTRA_CHARSET_NAME_MAX + 1];
    for (size_t i = 0; plain(name, p) && i < sizeof begin / sizeof *begin; i++)
        if (!strncmp(p, begin[i], strlen(begin[i])))
            return true;
    return intra_charset_is_utf8(name);
}

static iconv_t try_names(const char *to_utf8, const char *from_utf8, const char *name) {
    char p[INTRA_CHARSET_NAME_MAX + 3], dashes[INTRA_CHARSET_NAME_MAX + 1];
    const char *names[4] = {name, dashes, p, NULL};
    if (!plain(name, p))
        return (iconv_t)-1;
    snprintf(dashes, sizeof dashes, "%s", name);
    for (char *c = dashes; *c; c++)
        *c = *c == '_' ? '-' : *c;
    char cp[INTRA_CHARSET_NAME_MAX + 3];
    if (!strncmp(p, "windows", 7)) {
        snprintf(cp, sizeof cp, "cp%s", p + 7);
        names[3] = cp;
    } else if (!strcmp(p, "macroman")) {
        names[3] = "MACINTOSH";
    }
    for (size_t i = 0; i < 4 && names[i]; i++) {
        iconv_t c = to_utf8 ? iconv_open("UTF-8", names[i]) : iconv_open(names[i], from_utf8);
        if (c != (iconv_t)-1)
            return c;
    }
    return (iconv_t)-1;
}

bool intra_charset_is_known(const char *name) {
    iconv_t c = try_names("", NULL, name);
    if (c != (iconv_t)-1)
        iconv_close(c);
    return c != (iconv_t)-1 || intra_charset_is_utf8(name);
}

// Bytes per letter: the encoded length of "AA" minus that of "A", so that a byte order mark does
// not count.
static size_t unit_of(const char *name) {
    size_t got[2] = {0, 0};
    for (int k = 0; k < 2; k++) {
        iconv_t c = try_names(NULL, "UTF-8", name);
        char from[] = "AA", to[32], *in = from, *out = to;
        size_t left = (size_t)k + 1, room = sizeof to;
        if (c == (iconv_t)-1)
            return 1;
        if (iconv(c, &in, &left, &out, &room) != (size_t)-1)
            got[k] = sizeof to - room;
        iconv_close(c);
    }
    return got[1] > got[0] && got[1] - got[0] <= 4 ? got[1] - got[0] : 1;
}

// ---- converting ---------------------------------------------------------------------------------

// The name of UTF-16 or UTF-32 with its byte order. NULL: the order cannot be determined.
static const char *with_order(const char *name, const uint8_t *head, size_t n) {
    char p[INTRA_CHARSET_NAME_MAX + 1];
    if (!plain(name, p) || (strcmp(p, "utf16") && strcmp(p, "utf32")))
        return name;
    const char *looks = n ? intra_text_order(head, n) : name;
    return looks && !strncmp(looks, p[3] == '1' ? "UTF-16" : "UTF-32", 6) ? looks : n ? NULL : name;
}

enum neb_status intra_charset_open(const char *name, const uint8_t *head, size_t n,
                                   struct intra_charset **out) {
    *out = NULL;
    if (!intra_charset_is_known(name))
        return NEB_ERR_INVALID;
    name = with_order(name, head, n);
    if (!name)
        return NEB_ERR_FORMAT;
    struct intra_charset *c = calloc(1, sizeof *c);
    if (!c)
        return neb_fail(NEB_ERR_NOMEM, "out of memory reading text in %s", name);
    c->unit = unit_of(name);
    c->conv = try_names("", NULL, name);
    if (c->conv == (iconv_t)-1)
        c->conv = iconv_open("UTF-8", "UTF-8");
    *out = c;
    for (size_t i = 0; c->unit == 1 && c->conv != (iconv_t)-1 && i < SIGNS; i++) {
        char from[] = {signs[i]}, *in = from, *to = c->other[i];
        size_t left = 1, room = sizeof c->other[i] - 1;
        (void)iconv(c->conv, &in, &left, &to, &room);
        (void)iconv(c->conv, NULL, NULL, NULL, NULL);
        if (c->other[i][0] == signs[i] || left)
            memset(c->other[i], 0, sizeof c->other[i]);
    }
    // the caller closes *out in both cases
    return c->conv != (iconv_t)-1 ? NEB_OK : NEB_ERR_INVALID;
}

// Restores the ASCII signs in the bytes of `out` from `from` on.
static void mend_signs(const struct intra_charset *c, struct neb_buf *out, size_t from) {
    for (size_t i = 0; i < SIGNS; i++) {
        size_t n = strlen(c->other[i]), to = from;
        uint8_t *p = out->p;
        if (!n || out->len == from || !memmem(p + from, out->len - from, c->other[i], n))
            continue;
        for (size_t at = from; at < out->len;) {
            bool is = out->len - at >= n && !memcmp(p + at, c->other[i], n);
            p[to++] = is ? (uint8_t)signs[i] : p[at];
            at += is ? n : 1;
        }
        out->len = to;
    }
}

void intra_charset_close(struct intra_charset **c) {
    if (*c && (*c)->conv != (iconv_t)-1)
        iconv_close((*c)->conv);
    free(*c);
    *c = NULL;
}

// Converts as much as fits into `out` and advances *p and *n. False: the rest of the input is an
// incomplete character.
static bool some(struct intra_charset *c, const uint8_t **p, size_t *n, struct neb_buf *out) {
    char *in = (char *)(uintptr_t)*p, *to = (char *)out->p + out->len;
    size_t left = *n, room = out->cap - out->len, had = room;
    size_t rc = iconv(c->conv, &in, &left, &to, &room);
    int why = rc == (size_t)-1 ? errno : 0;
    out->len += had - room;
    bool moved = left != *n || room != had;
    *p += *n - left;
    *n = left;
    if (why == EINVAL)
        return false;
    if (why && (why != E2BIG || !moved) && *n) {
        size_t skip = *n < c->unit ? *n : c->unit;
        neb_buf_u8(out, 0xff);
        *p += skip;
        *n -= skip;
    }
    return true;
}

static enum neb_status convert(struct intra_charset *c, const uint8_t *p, size_t n, bool end,
                               struct neb_buf *out) {
    while (n) {
        NEB_TRY(neb_buf_reserve(out, n + n / 2 + 64));
        if (some(c, &p, &n, out))
            continue;
        if (!end && n < REST_MAX) {
            memcpy(c->rest, p, n);
            c->n_rest = n;
            return neb_buf_check(out);
        }
        neb_buf_u8(out, 0xff);
        p += end ? n : 1;
        n -= end ? n : 1;
    }
    return neb_buf_check(out);
}

enum neb_status intra_charset_convert(struct intra_charset *c, const uint8_t *p, size_t n, bool end,
                                      struct neb_buf *out) {
    size_t from = out->len;
    while (c->n_rest && (n || end)) { // completes the incomplete character byte by byte
        uint8_t both[REST_MAX];
        size_t k = c->n_rest;
        memcpy(both, c->rest, k);
        c->n_rest = 0;
        if (n) {
            both[k++] = *p++;
            n--;
        }
        NEB_TRY(convert(c, both, k, end && !n, out));
    }
    NEB_TRY(convert(c, p, n, end, out));
    mend_signs(c, out, from);
    return NEB_OK;
}

// ---- UTF-8 --------------------------------------------------------------------------------------

// Length of the non-ASCII character at p. 0: not valid UTF-8.
static size_t char_length(const uint8_t *p, size_t n) {
    uint8_t c = *p;
    size_t want = c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
    if (!want || want > n)
        return 0;
    uint8_t low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
    uint8_t high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    if (p[1] < low || p[1] > high)
        return 0;
    for (size_t i = 2; i < want; i++)
        if (p[i] >> 6 != 2)
            return 0;
    return want;
}

size_t intra_utf8_length(const uint8_t *p, size_t n) {
    size_t i = 0;
    while (i < n) {
        uint64_t w;
        while (n - i >= sizeof w) { // eight ASCII bytes without NUL
            memcpy(&w, p + i, sizeof w);
            if ((w | ((w - 0x0101010101010101u) & ~w)) & 0x8080808080808080u)
                break;
            i += sizeof w;
        }
        if (i == n)
            break;
        size_t k = p[i] < 0x80 ? p[i] != 0 : char_length(p + i, n - i);
        if (!k)
            break;
        i += k;
    }
    return i;
}
