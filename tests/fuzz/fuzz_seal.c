// SPDX-License-Identifier: Apache-2.0
// Sealed files of both kinds: hostile bytes open to nothing, without crash or leak. The corpus has
// one valid input of each kind, sealed with the fixed key, which must open.
#include "security/identity.h"
#include "security/vault.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
static struct sec_vault *vault(void) {
    static struct sec_vault *v;
    static const uint8_t handed[SEC_SEAL_HANDED_BYTES];
    struct sec_seal_key *k = NULL;
    if (!v && (sec_init() != NEB_OK || sec_seal_key_take(handed, &k) != NEB_OK ||
               sec_vault_create_take(&k, NULL, &v) != NEB_OK))
        abort();
    return v;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const struct neb_vault *v = sec_vault_of(vault());
    void *reader = NULL;
    uint64_t len = 0;
    if (v->ops->open(v->ctx, "fuzz", data, size, &reader, &len) != NEB_OK)
        return 0;
    if (len > size)
        abort();
    uint8_t *all = malloc(len + 1);
    if (!all || v->ops->read(reader, 0, all, len) != NEB_OK ||
        (len && (v->ops->read(reader, len / 2, all, 1) != NEB_OK)))
        abort();
    free(all);
    v->ops->close(reader);
    return 0;
}
