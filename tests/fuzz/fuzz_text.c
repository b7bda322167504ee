// SPDX-License-Identifier: Apache-2.0
// Text in the encoding that a source names, cut anywhere; and the detected encoding of a file.
// Conversion in pieces gives the same text as conversion at once, and reads no byte after the
// input. Input: a byte for the encoding, one for the length of pieces, the text.
#include "intra/read/charset.h"
#include "intra/read/text_kind.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const names[] = {"UTF-16",  "utf_16_le", "UTF-16BE", "UTF-32", "latin-1",
                                    "cp1252",  "SHIFT_JIS", "CP932",    "EUC-JP", "GBK",
                                    "GB18030", "BIG5",      "EUC-KR",   "JOHAB",  "KOI8-R",
                                    "TIS-620", "UTF-8",     "UTF-7",    "UCS-2",  "BIG5-HKSCS"};
enum { NAMES = sizeof names / sizeof *names };

static void describe(const uint8_t *p, size_t n) {
    struct intra_text_kind kind;
    char looks[160];
    if (intra_text_kind_of(p, n, &kind))
        NEB_ASSERT(kind.name && kind.at < n);
    intra_text_guess(p, n, looks, sizeof looks);
    NEB_ASSERT(memchr(looks, 0, sizeof looks) && intra_utf8_length(p, n) <= n);
}

static enum neb_status convert(const char *name, const uint8_t *p, size_t n, size_t step,
                               struct neb_buf *out) {
    struct intra_charset *c = NULL;
    enum neb_status st = intra_charset_open(name, p, n, &c);
    for (size_t at = 0; st == NEB_OK && at < n;) {
        size_t k = n - at < step ? n - at : step;
        st = intra_charset_convert(c, p + at, k, at + k == n, out);
        at += k;
    }
    intra_charset_close(&c);
    return st;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct neb_buf whole = {0}, pieces = {0};
    if (size < 3)
        return 0;
    const char *name = names[data[0] % NAMES];
    size_t n = size - 2, step = (size_t)data[1] % 31 + 1;
    uint8_t *p = malloc(n); // of exact size
    NEB_ASSERT(p);
    memcpy(p, data + 2, n);
    describe(p, n);
    enum neb_status st = convert(name, p, n, n, &whole);
    NEB_ASSERT(st == NEB_OK || st == NEB_ERR_FORMAT);
    NEB_ASSERT(convert(name, p, n, step, &pieces) == st);
    NEB_ASSERT(whole.len == pieces.len && (!whole.len || !memcmp(whole.p, pieces.p, whole.len)));
    neb_buf_free(&whole);
    neb_buf_free(&pieces);
    free(p);
    return 0;
}
