// SPDX-License-Identifier: Apache-2.0
// Numbers from text that people write: options, job files. Nothing but the number counts as one: no blanks before it, no
// hexadecimal, no "nan" and "inf"; the decimal point is '.' whatever locale a foreign trainer has set.
#ifndef NEB_NUMBER_H
#define NEB_NUMBER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Digits alone, within [min, max]. *out is set only if so.
bool neb_number_whole(const char *text, uint64_t min, uint64_t max, uint64_t *out);
// "1", "-0.5", "1e-3" and nothing behind it, finite, within [min, max]. *out is set only if so.
bool neb_number_real(const char *text, double min, double max, double *out);
// The number that `text` begins with ("80ms", "0.1%"), no sign before it; returns what follows, NULL where there is none or it is not
// finite.
const char *neb_number_prefix(const char *text, double *out);
// "4096", "200M", "1.5G", with a B behind it or not: bytes; K, M, G and T are decimal, KiB, MiB, GiB and TiB are not. Within [min, max].
bool neb_number_size(const char *text, uint64_t min, uint64_t max, uint64_t *out);

#endif
