// SPDX-License-Identifier: Apache-2.0
// Text in other encodings, into UTF-8, by the C library's iconv.
//
// What cannot be converted becomes a byte 0xff, which UTF-8 has nowhere: so whoever looks at the
// result sees where.
#ifndef INTRA_CHARSET_H
#define INTRA_CHARSET_H
#include "agent/base/bytes.h"

enum { INTRA_CHARSET_NAME_MAX = 40 };
struct intra_charset;
// Whether a text in it can be read: UTF-8, or a name that iconv takes, also as Python and browsers
// write it (latin-1, utf_16_le, windows1252).
bool intra_charset_is_known(const char *name);
bool intra_charset_is_utf8(
    const char *name); // UTF-8 or ASCII, which is UTF-8: nothing is to be converted
// What a file's own header may name: the encodings of catalogues and no rare ones, whose converters
// see little use.
bool intra_charset_is_common(const char *name);
// head: the n first bytes of the text. UTF-16 and UTF-32 without the order of their bytes take it
// from the byte order mark, or else from what the head looks like. NEB_ERR_INVALID (not logged): no
// such encoding; NEB_ERR_FORMAT (not logged): the order cannot be told.
NEB_MUST_CHECK enum neb_status intra_charset_open(const char *name, const uint8_t *head, size_t n,
                                                  struct intra_charset **out);
void intra_charset_close(struct intra_charset **c);
// The n bytes at p behind what is in out. What is cut off at their end waits for the next call, or
// is bad at the text's end.
NEB_MUST_CHECK enum neb_status intra_charset_convert(struct intra_charset *c, const uint8_t *p,
                                                     size_t n, bool end, struct neb_buf *out);
// Bytes from p on that are UTF-8 without NUL: n where all are.
size_t intra_utf8_length(const uint8_t *p, size_t n);

#endif
