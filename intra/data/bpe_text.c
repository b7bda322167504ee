// SPDX-License-Identifier: Apache-2.0
// Prepares text before it is split: UTF-8, and canonical composition (Unicode Standard Annex 15).
#include "intra/data/bpe_state.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { REPLACEMENT = 0xfffd };

size_t bpe_char_take(const uint8_t *p, size_t n, uint32_t *c) {
    uint8_t first = p[0], low = 0x80, high = 0xbf;
    *c = first;
    if (first < 0x80)
        return 1;
    *c = REPLACEMENT;
    if (first < 0xc2 || first > 0xf4)
        return 1;
    size_t want = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if (first == 0xe0) // refuses overlong forms, surrogates and anything above U+10FFFF
        low = 0xa0;
    else if (first == 0xed)
        high = 0x9f;
    else if (first == 0xf0)
        low = 0x90;
    else if (first == 0xf4)
        high = 0x8f;
    uint32_t v = first & (0x7fu >> want);
    for (size_t i = 1; i < want; i++) {
        if (i == n || p[i] < low || p[i] > high)
            return i;
        v = v << 6 | (p[i] & 0x3f);
        low = 0x80;
        high = 0xbf;
    }
    *c = v;
    return want;
}

static void char_add(struct neb_buf *b, uint32_t c) {
    uint8_t out[4];
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    if (n == 1) {
        out[0] = (uint8_t)c;
    } else {
        for (size_t i = n; i-- > 1; c >>= 6)
            out[i] = (uint8_t)(0x80 | (c & 0x3f));
        out[0] = (uint8_t)((0xf00u >> n & 0xff) | c);
    }
    neb_buf_add(b, out, n);
}

// Number of ASCII bytes at p.
static size_t ascii(const uint8_t *p, size_t n) {
    size_t i = 0;
    for (uint64_t w; n - i >= sizeof w; i += sizeof w) {
        memcpy(&w, p + i, sizeof w);
        if (w & 0x8080808080808080u)
            break;
    }
    while (i < n && p[i] < 0x80)
        i++;
    return i;
}

// Number of valid UTF-8 bytes at p.
static size_t valid(const uint8_t *p, size_t n) {
    size_t i = 0;
    uint32_t c;
    while ((i += ascii(p + i, n - i)) < n) {
        size_t k = bpe_char_take(p + i, n - i, &c);
        if (c == REPLACEMENT && (k != 3 || memcmp(p + i, "\xef\xbf\xbd", 3) != 0))
            break;
        i += k;
    }
    return i;
}

enum neb_status bpe_text_to_utf8(const uint8_t **p, size_t *n, struct neb_buf *room) {
    size_t at = *n ? valid(*p, *n) : 0; // *p may be NULL
    uint32_t c;
    if (at == *n)
        return NEB_OK;
    neb_buf_clear(room);
    for (size_t from = 0; from < *n && !room->oom;) {
        neb_buf_add(room, *p + from, at);
        from += at;
        if (from < *n) {
            from += bpe_char_take(*p + from, *n - from, &c);
            char_add(room, REPLACEMENT);
        }
        at = valid(*p + from, *n - from);
    }
    *p = room->p;
    *n = room->len;
    return neb_buf_check(room);
}

// ---- NFC ----------------------------------------------------------------------------------------

// Frequent characters that NFC never changes, whatever stands before them. U+11A7 is in the list
// because utf8proc would drop it after a Hangul syllable.
static bool is_plain(uint32_t c) {
    return c < 0x300 || c == 0x11a7 || (c >= 0x400 && c <= 0x482) || (c >= 0x2010 && c <= 0x2027) ||
           (c >= 0x3001 && c <= 0x3029) || (c >= 0x3041 && c <= 0x3096) ||
           (c >= 0x30a1 && c <= 0x30fa) || (c >= 0x4e00 && c <= 0x9fff) ||
           (c >= 0xac00 && c <= 0xd7a3) || (c >= 0xff01 && c <= 0xff9f) ||
           (c >= 0x1f300 && c <= 0x1faff);
}

// Number of bytes at p that are certainly composed.
static size_t composed(const uint8_t *p, size_t n) {
    size_t i = 0;
    uint32_t c;
    while ((i += ascii(p + i, n - i)) < n) {
        size_t k = bpe_char_take(p + i, n - i, &c);
        if (!is_plain(c))
            break;
        i += k;
    }
    return i;
}

static int class_of(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

// Sorts the marks of one character by combining class. The sort of utf8proc takes quadratic time.
static enum neb_status sort_marks(utf8proc_int32_t *c, size_t n) {
    size_t count[257] = {0};
    for (size_t i = 1; i < n && n <= 16; i++)
        for (size_t k = i; k && class_of(c[k - 1]) > class_of(c[k]); k--) {
            utf8proc_int32_t t = c[k];
            c[k] = c[k - 1];
            c[k - 1] = t;
        }
    if (n <= 16)
        return NEB_OK;
    utf8proc_int32_t *was = malloc(n * sizeof *was);
    if (!was)
        return neb_fail(NEB_ERR_NOMEM, "out of memory normalizing %zu characters", n);
    memcpy(was, c, n * sizeof *was);
    for (size_t i = 0; i < n; i++)
        count[class_of(was[i]) + 1]++;
    for (int i = 0; i < 256; i++)
        count[i + 1] += count[i];
    for (size_t i = 0; i < n; i++)
        c[count[class_of(was[i])]++] = was[i];
    free(was);
    return NEB_OK;
}

static enum neb_status sort_all(utf8proc_int32_t *c, size_t n) {
    for (size_t i = 0; i < n;) {
        size_t from = i;
        while (i < n && class_of(c[i]))
            i++;
        if (i - from > 1)
            NEB_TRY(sort_marks(c + from, i - from));
        i += i == from;
    }
    return NEB_OK;
}

// Appends NFC of the n bytes at p to `room`. chars: scratch.
static enum neb_status compose_all(const uint8_t *p, size_t n, struct neb_buf *chars,
                                   struct neb_buf *room) {
    enum { LONGEST = 4 }; // characters that one decomposes into, such as U+1F82
    const utf8proc_option_t how = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    int boundary = 0;
    uint32_t c;
    neb_buf_clear(chars);
    for (size_t i = 0; i < n;) {
        utf8proc_int32_t out[LONGEST];
        i += bpe_char_take(p + i, n - i, &c);
        utf8proc_ssize_t k =
            utf8proc_decompose_char((utf8proc_int32_t)c, out, LONGEST, how, &boundary);
        NEB_ASSERT(k >= 0 && k <= LONGEST);
        neb_buf_add(chars, out, (size_t)k * sizeof *out);
    }
    NEB_TRY(neb_buf_check(chars));
    utf8proc_int32_t *all = (utf8proc_int32_t *)(void *)chars->p; // malloc'ed, so aligned
    size_t n_all = chars->len / sizeof *all;
    NEB_TRY(sort_all(all, n_all));
    utf8proc_ssize_t left = utf8proc_normalize_utf32(all, (utf8proc_ssize_t)n_all, how);
    NEB_ASSERT(left >= 0);
    for (utf8proc_ssize_t i = 0; i < left && !room->oom; i++)
        char_add(room, (uint32_t)all[i]);
    return neb_buf_check(room);
}

// A plain character starts a new run: nothing before it can change. So each run of other characters
// is composed together with the one character before it.
enum neb_status bpe_text_compose(const uint8_t **text, size_t *n, struct neb_buf *room) {
    const uint8_t *p = *text;
    size_t end = *n ? composed(p, *n) : 0, from = 0; // p may be NULL
    enum neb_status st = NEB_OK;
    struct neb_buf chars = {0};
    uint32_t c;
    if (end == *n)
        return NEB_OK;
    neb_buf_clear(room);
    while (end < *n) {
        size_t last = end, k;
        while (last > from && (p[--last] & 0xc0) == 0x80)
            ;
        neb_buf_add(room, p + from, last - from);
        for (from = end; from < *n; from += k) {
            k = bpe_char_take(p + from, *n - from, &c);
            if (is_plain(c))
                break;
        }
        NEB_TRY_GOTO(compose_all(p + last, from - last, &chars, room), out);
        end = from < *n ? from + composed(p + from, *n - from) : from;
    }
    neb_buf_add(room, p + from, end - from);
    st = neb_buf_check(room);
    *text = room->p;
    *n = room->len;
out:
    neb_buf_free(&chars);
    return st;
}
