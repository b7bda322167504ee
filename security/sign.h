// SPDX-License-Identifier: Apache-2.0
// Signatures: Ed25519ph (RFC 8032) by libsodium over length(context) || context || message. So a
// signature made for one purpose never verifies for another. No allocation; thread-safe.
#ifndef SEC_SIGN_H
#define SEC_SIGN_H
#include "security/identity.h"

enum { SEC_SIGN_BYTES = 64 };

// Contexts in use. A new kind of message needs a new context.
#define SEC_CONTEXT_MANIFEST "nebula manifest v1"
#define SEC_CONTEXT_RECORD   "nebula record v2"
#define SEC_CONTEXT_ACCEPT   "nebula accept v1"
#define SEC_CONTEXT_PROMISE  "nebula promise v1"

// context: 1 to 255 bytes, otherwise NEB_ERR_INVALID.
NEB_MUST_CHECK enum neb_status sec_sign(const struct sec_identity *id, const char *context,
                                        const void *msg, size_t len, uint8_t sig[SEC_SIGN_BYTES]);
// As sec_sign, with a bare key (the CA's): 64 bytes, seed and public key.
NEB_MUST_CHECK enum neb_status sec_sign_with(const uint8_t *secret, const char *context,
                                             const void *msg, size_t len,
                                             uint8_t sig[SEC_SIGN_BYTES]);
// pub: an Ed25519 public key (sec_public.sign). NEB_ERR_DENIED (not logged): sig is not this key's
// signature of this message.
NEB_MUST_CHECK enum neb_status sec_verify(const uint8_t pub[SEC_KEY_BYTES], const char *context,
                                          const void *msg, size_t len,
                                          const uint8_t sig[SEC_SIGN_BYTES]);

#endif
