// SPDX-License-Identifier: Apache-2.0
// How a site stores large files: in clear (vault NULL) or sealed. Code that reads and writes files
// knows only this interface; security/vault.h implements it.
//
//     writer ── add, add, end ──► vault ── put ──► file
//     reader ◄── any range of the clear text, opened chunk by chunk ── file
//
// Every sealed file begins with NEB_SEALED_MAGIC. No other format of Nebula begins with it.
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
    // Starts a file. The caller frees *writer with `drop`, with or without `end`. An error of `put`
    // is returned unchanged.
    enum neb_status (*begin)(void *ctx, neb_vault_put *put, void *user, void **writer);
    enum neb_status (*add)(void *writer, const void *p, size_t n);
    enum neb_status (*end)(void *writer);
    void (*drop)(void *writer);
    // Opens the whole file `sealed`, which the caller keeps valid until `close`, and authenticates
    // it. *len: bytes of clear text. NEB_ERR_DENIED: another key. NEB_ERR_CORRUPT: cut, changed or
    // reordered. Both errors name the file.
    enum neb_status (*open)(void *ctx, const char *path, const uint8_t *sealed, size_t sealed_len,
                            void **reader, uint64_t *len);
    // Reads a range within *len. NEB_ERR_CORRUPT: the file has changed since `open`.
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
