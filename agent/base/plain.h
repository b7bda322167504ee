// SPDX-License-Identifier: Apache-2.0
// Words of others on a terminal or in a log.
#ifndef NEB_PLAIN_H
#define NEB_PLAIN_H
#include <stdbool.h>
#include <stddef.h>

// In place: each byte of a character that commands a terminal becomes '?'. Those are the control
// characters of one and two bytes, what turns the direction of writing, and what is not UTF-8.
// lines: newlines stay. Every log line passes it; what else prints others' words calls it.
void neb_plain(char *text, bool lines);
// The same for text that may be long and hold bytes of 0; newlines and tabs stay. Returns how many
// bytes are done; not `last`: up to three, the begin of a character, may be left, to precede the
// next part.
size_t neb_plain_text(char *p, size_t n, bool last);
// Whether neb_plain (not lines) would leave it as it is.
bool neb_is_plain(const char *text);

#endif
