// SPDX-License-Identifier: Apache-2.0
// Names the kind of a file that should be text and is not, from its first bytes.
#ifndef INTRA_TEXT_KIND_H
#define INTRA_TEXT_KIND_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { INTRA_KIND_HEAD = 512 }; // bytes that intra_text_kind_of looks at

struct intra_text_kind {
    const char *name; // such as "gzip data"
    const char *help; // what the user can do; NULL: unknown
    size_t at, n;     // offset and length of the mark
};
// Recognises a file by a mark near its beginning. p: its first bytes, at most INTRA_KIND_HEAD are
// used. False: no known mark.
bool intra_text_kind_of(const uint8_t *p, size_t n, struct intra_text_kind *out);
bool intra_text_is_catalogue(const uint8_t *p, size_t n); // compiled by msgfmt

// "UTF-16LE", "UTF-16BE", "UTF-32LE" or "UTF-32BE", if a byte order mark says so or if the bytes
// read as such text. NULL: neither.
const char *intra_text_order(const uint8_t *p, size_t n);
// Guesses the encoding of text that is not UTF-8. out: a clause to append to a message, such as ";
// it looks like UTF-16LE: …"; empty if there is no guess.
void intra_text_guess(const uint8_t *p, size_t n, char *out, size_t cap);

#endif
