// SPDX-License-Identifier: Apache-2.0
// Invitation tokens: all that a site needs to join a federation, in one word.
//
//     neb1: base64url( 1 | endpoint | name | id 8 | secret 32 | pin 32 | checksum 6 )
//
// endpoint and name are a length byte and text. The checksum is the front of SHA-256 over all bytes
// before it, and finds only a token that was cut or mistyped. Whoever holds the token may join once
// as `name`. So it is a secret until it is used or has expired, and worthless after that.
#ifndef SEC_TOKEN_H
#define SEC_TOKEN_H
#include "security/cert.h"
#include "security/members.h"

enum {
    SEC_INVITE_ID_BYTES = 8,
    SEC_INVITE_SECRET_BYTES = 32,
    SEC_TOKEN_TEXT = 520, // room for the longest token with its end
};

struct sec_token {
    char endpoint[SEC_ENDPOINT_MAX]; // of the enrolment service
    char name[SEC_NAME_MAX];         // of the new member
    uint8_t id[SEC_INVITE_ID_BYTES];
    uint8_t secret[SEC_INVITE_SECRET_BYTES]; // wipe the struct after use
    uint8_t pin[SEC_PIN_BYTES];              // SHA-256 of the CA's SubjectPublicKeyInfo
};

NEB_MUST_CHECK enum neb_status sec_token_format(const struct sec_token *t,
                                                char out[SEC_TOKEN_TEXT]);
// Strict. NEB_ERR_FORMAT; NEB_ERR_CORRUPT: wrong checksum. Messages never hold the token.
NEB_MUST_CHECK enum neb_status sec_token_parse(const char *text, struct sec_token *out);

#endif
