// SPDX-License-Identifier: Apache-2.0
#include "security/token.h"

#include "agent/base/sha256.h"

#include <sodium.h>
#include <string.h>

enum {
    VERSION = 1,
    CHECK_BYTES = 6,
    FIXED = SEC_INVITE_ID_BYTES + SEC_INVITE_SECRET_BYTES + SEC_PIN_BYTES + CHECK_BYTES,
    RAW_MAX = 1 + SEC_ENDPOINT_MAX + SEC_NAME_MAX + FIXED,
};
static const char prefix[] = "neb1:";
_Static_assert(sizeof prefix + (RAW_MAX + 2) / 3 * 4 <= SEC_TOKEN_TEXT, "a token fits its text");

static uint8_t *put(uint8_t *at, const void *p, size_t n) {
    memcpy(at, p, n);
    return at + n;
}

static uint8_t *put_text(uint8_t *at, const char *s) {
    *at = (uint8_t)strlen(s);
    return put(at + 1, s, *at);
}

static void checksum(const uint8_t *raw, size_t n, uint8_t out[CHECK_BYTES]) {
    uint8_t h[NEB_SHA256_BYTES];
    neb_sha256(raw, n, h);
    memcpy(out, h, CHECK_BYTES);
}

enum neb_status sec_token_format(const struct sec_token *t, char out[SEC_TOKEN_TEXT]) {
    uint8_t raw[RAW_MAX], *at = raw;
    if (!sec_endpoint_valid(t->endpoint) || !sec_name_valid(t->name))
        return neb_fail(NEB_ERR_INVALID,
                        "invitation: '%s' is not a member name, or '%s' is not HOST:PORT", t->name,
                        t->endpoint);
    *at++ = VERSION;
    at = put_text(at, t->endpoint);
    at = put_text(at, t->name);
    at = put(at, t->id, sizeof t->id);
    at = put(at, t->secret, sizeof t->secret);
    at = put(at, t->pin, sizeof t->pin);
    checksum(raw, (size_t)(at - raw), at);
    at += CHECK_BYTES;
    memcpy(out, prefix, sizeof prefix);
    sodium_bin2base64(out + sizeof prefix - 1, SEC_TOKEN_TEXT - sizeof prefix + 1, raw,
                      (size_t)(at - raw), sodium_base64_VARIANT_URLSAFE_NO_PADDING);
    sodium_memzero(raw, sizeof raw);
    return NEB_OK;
}

static bool get_text(struct neb_rd *r, char *out, size_t cap) {
    uint8_t n = neb_rd_u8(r);
    if (r->bad || n >= cap)
        return false;
    memset(out, 0, cap);
    neb_rd_copy(r, out, n);
    return !r->bad && strlen(out) == n;
}

static enum neb_status decode(const uint8_t *raw, size_t n, struct sec_token *t) {
    uint8_t sum[CHECK_BYTES];
    if (n < FIXED)
        return neb_fail(NEB_ERR_FORMAT, "the token is cut short: copy all of it");
    checksum(raw, n - CHECK_BYTES, sum);
    if (memcmp(sum, raw + n - CHECK_BYTES, CHECK_BYTES) != 0)
        return neb_fail(NEB_ERR_CORRUPT,
                        "the token is damaged (wrong checksum): copy all of it again");
    struct neb_rd r = neb_rd_make(raw, n - CHECK_BYTES);
    if (neb_rd_u8(&r) != VERSION || !get_text(&r, t->endpoint, sizeof t->endpoint) ||
        !get_text(&r, t->name, sizeof t->name) || !sec_endpoint_valid(t->endpoint) ||
        !sec_name_valid(t->name))
        return neb_fail(NEB_ERR_FORMAT, "the token is from another version of nebula");
    neb_rd_copy(&r, t->id, sizeof t->id);
    neb_rd_copy(&r, t->secret, sizeof t->secret);
    neb_rd_copy(&r, t->pin, sizeof t->pin);
    return neb_rd_done(&r) ? NEB_OK : neb_fail(NEB_ERR_FORMAT, "the token has a wrong length");
}

enum neb_status sec_token_parse(const char *text, struct sec_token *out) {
    uint8_t raw[RAW_MAX];
    size_t n = 0;
    const char *end = NULL;
    struct sec_token t = {.name = ""};
    size_t skip = sizeof prefix - 1;
    if (strlen(text) >= SEC_TOKEN_TEXT || strncmp(text, prefix, skip) != 0 ||
        !sec_base64_only(text + skip) ||
        sodium_base642bin(raw, sizeof raw, text + skip, strlen(text + skip), NULL, &n, &end,
                          sodium_base64_VARIANT_URLSAFE_NO_PADDING) != 0 ||
        *end != 0)
        return neb_fail(NEB_ERR_FORMAT,
                        "not a token: expected neb1:... as 'nebula invite' prints it");
    enum neb_status st = decode(raw, n, &t);
    if (st == NEB_OK)
        *out = t;
    sodium_memzero(&t, sizeof t);
    sodium_memzero(raw, sizeof raw);
    return st;
}
