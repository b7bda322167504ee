// SPDX-License-Identifier: Apache-2.0
// Secrets in files. A secret file is a plain file of this user, closed to others (0600), and never
// opened through a symbolic link. In $CREDENTIALS_DIRECTORY it may belong to root and be readable
// by its group, because systemd makes credentials that way. It holds raw key material, or sealed
// bytes.
//
// Sealed bytes: 24 bytes nonce || XSalsa20-Poly1305 (libsodium secretbox). The seal key comes from
// a key file, or by Argon2id from a recovery code of 160 bits (the CA's backup).
//
// Threads: no state.
#ifndef SEC_SEAL_H
#define SEC_SEAL_H
#include "agent/base/status.h"

#include <stddef.h>
#include <stdint.h>

enum {
    SEC_SEAL_KEY_BYTES = 32,
    SEC_SEAL_EXTRA = 24 + 16, // a sealed text is longer by this
    SEC_SEAL_SALT_BYTES = 16,
    SEC_CODE_TEXT = 40, // room for a recovery code with its end: eight groups of four, A-Z 2-7
};

// Starts libsodium, and lets it lock as much memory as the system allows (locked.h). For processes
// that seal but are not agents. sec_init also forbids debuggers.
NEB_MUST_CHECK enum neb_status sec_seal_init(void);

// Reads a secret file of at most cap bytes into buf, locked memory of the caller. NEB_ERR_NOT_FOUND
// (not logged). NEB_ERR_DENIED: a link, not this user's, or open to others. NEB_ERR_FORMAT: larger.
NEB_MUST_CHECK enum neb_status sec_secret_read(const char *path, void *buf, size_t cap,
                                               size_t *len);
// Atomic, durable, 0600.
NEB_MUST_CHECK enum neb_status sec_secret_write(const char *path, const void *p, size_t n);

// out has room for len + SEC_SEAL_EXTRA bytes.
void sec_seal(const uint8_t key[SEC_SEAL_KEY_BYTES], const void *plain, size_t len, uint8_t *out);
// plain has room for len - SEC_SEAL_EXTRA bytes. NEB_ERR_DENIED (not logged): the key is another
// one, or the bytes were changed.
NEB_MUST_CHECK enum neb_status sec_unseal(const uint8_t key[SEC_SEAL_KEY_BYTES],
                                          const uint8_t *sealed, size_t len, void *plain);

void sec_code_make(char code[SEC_CODE_TEXT]); // a new recovery code
// The key of a recovery code. Ignores spaces and dashes, takes lower case as upper.
// NEB_ERR_INVALID: not a code. NEB_ERR_NOMEM: Argon2id needs 64 MiB.
NEB_MUST_CHECK enum neb_status sec_code_key(const char *code,
                                            const uint8_t salt[SEC_SEAL_SALT_BYTES],
                                            uint8_t key[SEC_SEAL_KEY_BYTES]);

#endif
