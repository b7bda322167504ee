// SPDX-License-Identifier: Apache-2.0
// What a file is that should be text, by its bytes.
#ifndef INTRA_TEXT_KIND_H
#define INTRA_TEXT_KIND_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { INTRA_KIND_HEAD = 512 }; // bytes that are looked at

struct intra_text_kind {
    const char *name; // "gzip data"
    const char *help; // what to do; NULL: nothing is known
    size_t at;        // where the mark lies
};
// A kind of file that is known by a mark near its beginning: p are its first bytes, up to
// INTRA_KIND_HEAD of them. False: none.
bool intra_text_kind_of(const uint8_t *p, size_t n, struct intra_text_kind *out);
bool intra_text_is_catalogue(const uint8_t *p, size_t n); // compiled by msgfmt

// "UTF-16LE", "UTF-16BE", "UTF-32LE", "UTF-32BE": by the byte order mark, or because it reads as
// text so. NULL: neither.
const char *intra_text_order(const uint8_t *p, size_t n);
// What text is that is not UTF-8: a clause to be put behind a message, such as "; it looks like
// UTF-16LE: …".
void intra_text_guess(const uint8_t *p, size_t n, char *out, size_t cap);

#endif
