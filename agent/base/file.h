// SPDX-License-Identifier: Apache-2.0
// A whole file opened for reading, in clear or sealed (vault.h). The caller reads byte ranges and
// need not know which of the two it is. A clear file is mapped. At most one chunk of a sealed file
// is held in clear.
#ifndef NEB_FILE_H
#define NEB_FILE_H
#include "agent/base/fs.h"
#include "agent/base/vault.h"

struct neb_file;
// With a vault, both sealed and clear files open: a site may have clear files from before it
// sealed. With vault NULL, a sealed file gives NEB_ERR_DENIED, and the error names the option to
// use.
NEB_MUST_CHECK enum neb_status neb_file_open(const char *path, const struct neb_vault *vault,
                                             struct neb_file **out);
void neb_file_close(struct neb_file **f);
uint64_t neb_file_len(const struct neb_file *f); // of the clear text
bool neb_file_sealed(const struct neb_file *f);
// The whole file, valid until close. NULL: the file is sealed (or empty); use neb_file_read.
const uint8_t *neb_file_view(const struct neb_file *f);
// Reads exactly n bytes from `at`; the range must lie within the file. Counts large reads as
// progress (moved.h).
NEB_MUST_CHECK enum neb_status neb_file_read(const struct neb_file *f, uint64_t at, void *dst,
                                             size_t n);

#endif
