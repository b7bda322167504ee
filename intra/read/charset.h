// SPDX-License-Identifier: Apache-2.0
// Converts text of other encodings to UTF-8 with the C library's iconv.
//
// A byte sequence that cannot be converted becomes the byte 0xff. UTF-8 never contains this byte,
// so a later check of the result finds the place.
#ifndef INTRA_CHARSET_H
#define INTRA_CHARSET_H
#include "agent/base/bytes.h"

enum { INTRA_CHARSET_NAME_MAX = 40 };
struct intra_charset;
// True for UTF-8 and for each name that iconv accepts, also in the spelling of Python and of
// browsers (latin-1, utf_16_le, windows1252).
bool intra_charset_is_known(const char *name);
bool intra_charset_is_utf8(const char *name); // UTF-8 or ASCII: no conversion needed
// True for an encoding that the header of a file may name. The list holds the usual encodings of
// catalogues. It leaves out rare ones, because their converters are little tested.
bool intra_charset_is_common(const char *name);
// head: the first n bytes of the text. For UTF-16 and UTF-32 without a byte order in the name, the
// order is taken from the byte order mark, or guessed from the head. The caller closes *out also
// after an error. NEB_ERR_INVALID (not logged): unknown encoding; NEB_ERR_FORMAT (not logged): the
// byte order cannot be determined; NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status intra_charset_open(const char *name, const uint8_t *head, size_t n,
                                                  struct intra_charset **out);
void intra_charset_close(struct intra_charset **c);
// Appends the n bytes at p to `out`. An incomplete character at their end waits for the next call;
// at the end of the text (`end`) it is invalid.
NEB_MUST_CHECK enum neb_status intra_charset_convert(struct intra_charset *c, const uint8_t *p,
                                                     size_t n, bool end, struct neb_buf *out);
// Bytes from p on that are valid UTF-8 without NUL; n if all are.
size_t intra_utf8_length(const uint8_t *p, size_t n);

#endif
