// SPDX-License-Identifier: Apache-2.0
// How a site keeps large files: in clear (NULL), or sealed. base, intra and whoever else writes and reads files knows this
// interface only; security/vault.h is the one that seals.
//
//     writer ── add, add, end ──► vault ── put ──► file          reader: any range of what was added, opened piece by piece
//
// A sealed file begins with NEB_SEALED_MAGIC, whatever kind it is; no format of Nebula's own begins so.
#ifndef NEB_VAULT_H
#define NEB_VAULT_H
#include "agent/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define NEB_SEALED_MAGIC "nebseal"
enum { NEB_SEALED_MAGIC_BYTES = 7 };

typedef enum neb_status neb_vault_put(void *user, const void *p, size_t n);

struct neb_vault_ops {
    // *writer is freed by `drop`, after end or without. An error of put is returned as it is.
    enum neb_status (*begin)(void *ctx, neb_vault_put *put, void *user, void **writer);
    enum neb_status (*add)(void *writer, const void *p, size_t n);
    enum neb_status (*end)(void *writer);
    void (*drop)(void *writer);
    // sealed: a whole file, which stays valid until `close`. All of it is authenticated before open returns; *len: bytes in clear.
    // NEB_ERR_DENIED: another key; NEB_ERR_CORRUPT: cut, changed, reordered; both name the file.
    enum neb_status (*open)(void *ctx, const char *path, const uint8_t *sealed, size_t sealed_len,
                            void **reader, uint64_t *len);
    // Within len. NEB_ERR_CORRUPT: the file has changed since it was opened.
    enum neb_status (*read)(void *reader, uint64_t at, void *dst, size_t n);
    void (*close)(void *reader);
};

struct neb_vault {
    const struct neb_vault_ops *ops;
    void *ctx;
};

static inline bool neb_is_sealed(const uint8_t *p, size_t len) {
    return len >= NEB_SEALED_MAGIC_BYTES && !memcmp(p, NEB_SEALED_MAGIC, NEB_SEALED_MAGIC_BYTES);
}

#endif
