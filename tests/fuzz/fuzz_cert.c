// SPDX-License-Identifier: Apache-2.0
// Certificate requests and certificates: OpenSSL's decoder with Nebula's profile and extensions on
// top. An accepted one names a valid member.
#include "security/cert.h"

#include <openssl/err.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct sec_public p;
    struct sec_cert c;
    uint8_t key[SEC_KEY_BYTES], pin[SEC_PIN_BYTES];
    char name[SEC_NAME_MAX];
    if (sec_csr_parse(data, size, &p) == NEB_OK)
        NEB_ASSERT(sec_name_valid(p.name) && size <= SEC_CERT_MAX);
    if (sec_cert_parse(data, size, &c) == NEB_OK)
        NEB_ASSERT(sec_name_valid(c.pub.name) && c.not_before < c.not_after);
    if (sec_ca_cert_parse(data, size, key, pin, name) == NEB_OK)
        NEB_ASSERT(sec_name_valid(name));
    if (sec_cert_verify(data, size, data, size, 1, &c) == NEB_OK)
        NEB_ASSERT(0 && "a certificate cannot be member and CA at once");
    NEB_ASSERT(ERR_peek_error() == 0); // OpenSSL's error queue is empty
    return 0;
}
