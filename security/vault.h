// SPDX-License-Identifier: Apache-2.0
// The vault that seals (agent/base/vault.h). It writes sealed streams with one context, and reads
// any sealed stream or file of sealed chunks that its key opens.
#ifndef SEC_VAULT_H
#define SEC_VAULT_H
#include "agent/base/fs.h"
#include "agent/base/vault.h"
#include "security/seal_key.h"

struct sec_vault;
// Takes the key, also on failure. context: for the files that are written; NULL: the context of the
// key (zeros for a site's key).
NEB_MUST_CHECK enum neb_status sec_vault_create_take(struct sec_seal_key **k,
                                                     const uint8_t context[SEC_SEAL_CONTEXT_BYTES],
                                                     struct sec_vault **out);
void sec_vault_destroy(struct sec_vault **v); // close all that it opened first
// NULL for NULL. Valid until destroy.
const struct neb_vault *sec_vault_of(const struct sec_vault *v);
const struct sec_seal_key *sec_vault_key(const struct sec_vault *v); // NULL for NULL

// Seals all that w gets, with this context. Call it before the first byte. key NULL: in clear.
NEB_MUST_CHECK enum neb_status sec_vault_seal_writer(const struct sec_seal_key *key,
                                                     const uint8_t context[SEC_SEAL_CONTEXT_BYTES],
                                                     struct neb_fs_writer *w);
// Maps a whole file, sealed or in clear, in memory that core dumps leave out. Close with
// neb_map_close. key NULL: opens files in clear only.
NEB_MUST_CHECK enum neb_status sec_vault_map(const struct sec_seal_key *key, const char *path,
                                             struct neb_map *out);

#endif
