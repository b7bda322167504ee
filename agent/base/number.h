// SPDX-License-Identifier: Apache-2.0
// Numbers in text that people write: options, job files. Accepts no leading blanks, no hexadecimal,
// no "nan" or "inf". The decimal point is '.', whatever locale an embedding program has set.
#ifndef NEB_NUMBER_H
#define NEB_NUMBER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Parses digits only, within [min, max]. *out is set only on success.
bool neb_number_whole(const char *text, uint64_t min, uint64_t max, uint64_t *out);
// Parses "1", "-0.5", "1e-3": the whole text, finite, within [min, max]. *out is set only on
// success.
bool neb_number_real(const char *text, double min, double max, double *out);
// Parses the unsigned number at the start of `text` ("80ms", "0.1%"). Returns the rest of the text,
// or NULL if there is no number or it is not finite.
const char *neb_number_prefix(const char *text, double *out);
// Parses a size in bytes, within [min, max]: "4096", "200M", "1.5G", "200MB", "4GiB". K, M, G, T
// are decimal; KiB, MiB, GiB, TiB are binary.
bool neb_number_size(const char *text, uint64_t min, uint64_t max, uint64_t *out);

#endif
