// SPDX-License-Identifier: Apache-2.0
// A whole file for reading, in clear or sealed (agent/base/vault.h): who reads ranges of it need not know which.
// Memory: a file in clear is mapped; of a sealed one no more than a chunk is held in clear.
#ifndef NEB_FILE_H
#define NEB_FILE_H
#include "agent/base/fs.h"
#include "agent/base/vault.h"

struct neb_file;
// vault NULL: only files in clear can be read, a sealed one is NEB_ERR_DENIED and the error says which option opens it. With a
// vault, files in clear are read too: those of the time before the site sealed.
NEB_MUST_CHECK enum neb_status neb_file_open(const char *path, const struct neb_vault *vault,
                                             struct neb_file **out);
void neb_file_close(struct neb_file **f);
uint64_t neb_file_len(const struct neb_file *f); // in clear
bool neb_file_sealed(const struct neb_file *f);
// The whole of it, until close; NULL: it is sealed (or empty), read it.
const uint8_t *neb_file_view(const struct neb_file *f);
// Exactly n bytes from `at`, which must lie within the file; of many it tells as it goes (agent/base/moved.h).
NEB_MUST_CHECK enum neb_status neb_file_read(const struct neb_file *f, uint64_t at, void *dst,
                                             size_t n);

#endif
