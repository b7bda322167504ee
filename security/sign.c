// SPDX-License-Identifier: Apache-2.0
#include "security/sign.h"

#include <sodium.h>
#include <string.h>

// The length of the context comes first, so that no two (context, message) pairs give the same
// bytes.
static bool start(crypto_sign_state *s, const char *context, const void *msg, size_t len) {
    size_t n = strlen(context);
    if (n == 0 || n > 255)
        return false;
    uint8_t n8 = (uint8_t)n;
    crypto_sign_init(s);
    crypto_sign_update(s, &n8, 1);
    crypto_sign_update(s, (const uint8_t *)context, n);
    if (len)
        crypto_sign_update(s, msg, len);
    return true;
}

enum neb_status sec_sign_with(const uint8_t *secret, const char *context, const void *msg,
                              size_t len, uint8_t sig[SEC_SIGN_BYTES]) {
    crypto_sign_state s;
    if (!start(&s, context, msg, len))
        return neb_fail(NEB_ERR_INVALID, "signature context must have 1 to 255 bytes");
    crypto_sign_final_create(&s, sig, NULL, secret);
    return NEB_OK;
}

enum neb_status sec_sign(const struct sec_identity *id, const char *context, const void *msg,
                         size_t len, uint8_t sig[SEC_SIGN_BYTES]) {
    return sec_sign_with(sec_identity_sign_secret(id), context, msg, len, sig);
}

enum neb_status sec_verify(const uint8_t pub[SEC_KEY_BYTES], const char *context, const void *msg,
                           size_t len, const uint8_t sig[SEC_SIGN_BYTES]) {
    crypto_sign_state s;
    if (!start(&s, context, msg, len))
        return neb_fail(NEB_ERR_INVALID, "signature context must have 1 to 255 bytes");
    return crypto_sign_final_verify(&s, sig, pub) == 0 ? NEB_OK : NEB_ERR_DENIED;
}
