// SPDX-License-Identifier: Apache-2.0
// Makes foreign text safe to print on a terminal or in a log.
#ifndef NEB_PLAIN_H
#define NEB_PLAIN_H
#include <stdbool.h>
#include <stddef.h>

// Replaces, in place, each byte of a character that controls a terminal by '?': control characters
// of one and two bytes, characters that change the writing direction, and invalid UTF-8. lines:
// keeps newlines. The log calls it on every line; other code that prints foreign text must call it
// itself.
void neb_plain(char *text, bool lines);
// The same for a part of a long text that may contain 0 bytes; keeps newlines and tabs. Returns the
// number of bytes done. Unless `last`, up to three bytes of an incomplete character may remain; the
// caller puts them before the next part.
size_t neb_plain_text(char *p, size_t n, bool last);
// True if neb_plain(text, false) would change nothing.
bool neb_is_plain(const char *text);

#endif
