// SPDX-License-Identifier: Apache-2.0
#include "security/enrol_wire.h"

#include <errno.h>
#include <openssl/err.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

static const char magic[8] = "nebe1";

enum neb_status sec_enrol_body(const struct sec_enrol_request *r, struct neb_buf *out) {
    neb_buf_clear(out);
    neb_buf_add(out, magic, sizeof magic);
    neb_buf_u8(out, (uint8_t)r->kind);
    neb_buf_add(out, r->id, sizeof r->id);
    neb_buf_str(out, r->name);
    neb_buf_str(out, r->endpoint);
    neb_buf_u16(out, (uint16_t)r->csr_len);
    neb_buf_add(out, r->csr, r->csr_len);
    return neb_buf_check(out);
}

enum neb_status sec_enrol_parse(const uint8_t *p, size_t len, struct sec_enrol_request *out) {
    struct sec_enrol_request q = {.body = p};
    struct neb_rd r = neb_rd_make(p, len);
    char front[sizeof magic];
    neb_rd_copy(&r, front, sizeof front);
    uint8_t kind = neb_rd_u8(&r);
    neb_rd_copy(&r, q.id, sizeof q.id);
    neb_rd_str(&r, q.name, sizeof q.name);
    neb_rd_str(&r, q.endpoint, sizeof q.endpoint);
    q.csr_len = neb_rd_u16(&r);
    q.csr = neb_rd_view(&r, q.csr_len);
    q.body_len = r.off;
    neb_rd_copy(&r, q.pop, sizeof q.pop);
    neb_rd_copy(&r, q.proof, sizeof q.proof);
    q.kind = (enum sec_enrol_kind)kind;
    if (!neb_rd_done(&r) || len > SEC_ENROL_REQUEST_MAX || memcmp(front, magic, sizeof magic) ||
        kind < SEC_ENROL_JOIN || kind > SEC_ENROL_RENEW || !sec_name_valid(q.name) ||
        (q.endpoint[0] && !sec_endpoint_valid(q.endpoint)) || !q.csr_len ||
        q.csr_len > SEC_CERT_MAX)
        return NEB_ERR_FORMAT;
    *out = q;
    return NEB_OK;
}

static void hmac_parts(const uint8_t key[32], const void *tag, size_t tag_len, const uint8_t *x,
                       const uint8_t *body, size_t len, uint8_t out[32]) {
    crypto_auth_hmacsha256_state s;
    crypto_auth_hmacsha256_init(&s, key, 32);
    crypto_auth_hmacsha256_update(&s, tag, tag_len);
    crypto_auth_hmacsha256_update(&s, x, SEC_EXPORTER_BYTES);
    crypto_auth_hmacsha256_update(&s, body, len);
    crypto_auth_hmacsha256_final(&s, out);
    sodium_memzero(&s, sizeof s);
}

enum neb_status sec_enrol_pop(const uint8_t own[SEC_KEY_BYTES], const uint8_t other[SEC_KEY_BYTES],
                              const uint8_t exporter[SEC_EXPORTER_BYTES], const uint8_t *body,
                              size_t len, uint8_t out[SEC_POP_BYTES]) {
    static const char tag[] = "nebula curve pop v1";
    uint8_t shared[crypto_scalarmult_BYTES];
    if (crypto_scalarmult(shared, own, other) != 0)
        return NEB_ERR_DENIED;
    hmac_parts(shared, tag, sizeof tag, exporter, body, len, out);
    sodium_memzero(shared, sizeof shared);
    return NEB_OK;
}

enum neb_status sec_enrol_proven(const uint8_t exporter[SEC_EXPORTER_BYTES], const uint8_t *body,
                                 size_t len, const uint8_t pop[SEC_POP_BYTES],
                                 struct neb_buf *out) {
    neb_buf_clear(out);
    neb_buf_add(out, exporter, SEC_EXPORTER_BYTES);
    neb_buf_add(out, body, len);
    neb_buf_add(out, pop, SEC_POP_BYTES);
    return neb_buf_check(out);
}

void sec_enrol_hmac(const uint8_t verifier[32], const struct neb_buf *proven,
                    uint8_t proof[SEC_PROOF_BYTES]) {
    memset(proof, 0, SEC_PROOF_BYTES);
    crypto_auth_hmacsha256(proof, proven->p, proven->len, verifier);
}

static bool has_seconds(unsigned code) {
    return code == SEC_ENROL_LATER || code == SEC_ENROL_EXPIRED;
}

enum neb_status sec_enrol_answer_make(const struct sec_enrol_answer *a, struct neb_buf *out) {
    neb_buf_clear(out);
    neb_buf_u32(out, 0);
    neb_buf_u8(out, (uint8_t)a->code);
    if (a->code == SEC_ENROL_OK) {
        neb_buf_u32(out, (uint32_t)a->cert_len);
        neb_buf_add(out, a->cert, a->cert_len);
        neb_buf_u32(out, (uint32_t)a->ca_len);
        neb_buf_add(out, a->ca, a->ca_len);
        neb_buf_u32(out, (uint32_t)a->list_len);
        neb_buf_add(out, a->list, a->list_len);
    } else if (has_seconds(a->code)) {
        neb_buf_u32(out, a->seconds);
    }
    NEB_TRY(neb_buf_check(out));
    neb_put_u32(out->p, (uint32_t)(out->len - 4));
    return NEB_OK;
}

static const uint8_t *take(struct neb_rd *r, size_t *len) {
    *len = neb_rd_u32(r);
    return neb_rd_view(r, *len);
}

enum neb_status sec_enrol_answer_parse(const uint8_t *p, size_t len, struct sec_enrol_answer *out) {
    struct sec_enrol_answer a = {.code = SEC_ENROL_REFUSED};
    struct neb_rd r = neb_rd_make(p, len);
    uint8_t code = neb_rd_u8(&r);
    if (code == SEC_ENROL_OK) {
        a.cert = take(&r, &a.cert_len);
        a.ca = take(&r, &a.ca_len);
        a.list = take(&r, &a.list_len);
    } else if (has_seconds(code)) {
        a.seconds = neb_rd_u32(&r);
    }
    if (!neb_rd_done(&r) || code >= SEC_ENROL_CODES)
        return neb_fail(NEB_ERR_FORMAT, "enrolment: the hub's answer is damaged");
    a.code = (enum sec_enrol_code)code;
    *out = a;
    return NEB_OK;
}

// ---- why a TLS call failed ----------------------------------------------------------------------

bool sec_tls_closed(const SSL *ssl, int r) {
    int e = errno, why = SSL_get_error(ssl, r);
    return why == SSL_ERROR_ZERO_RETURN ||
           (why == SSL_ERROR_SYSCALL && (e == 0 || e == ECONNRESET || e == EPIPE)) ||
           (why == SSL_ERROR_SSL &&
            ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING);
}

// The other end sent an alert.
static void of_alert(int alert, char *out) {
    bool certificate = alert >= SSL_AD_BAD_CERTIFICATE && alert <= SSL_AD_UNKNOWN_CA &&
                       alert != SSL_AD_ILLEGAL_PARAMETER;
    snprintf(out, SEC_TLS_REASON, "the other end refused %s: %s%s",
             certificate ? "this side's certificate" : "it", SSL_alert_desc_string_long(alert),
             certificate ? " (its own log says why)" : "");
}

void sec_tls_reason(const SSL *ssl, int r, char out[SEC_TLS_REASON]) {
    int e = errno, why = SSL_get_error(ssl, r);
    unsigned long first = ERR_peek_error();
    int reason = ERR_GET_REASON(first);
    const char *text = first ? ERR_reason_error_string(first) : NULL;
    if (sec_tls_closed(ssl, r))
        snprintf(out, SEC_TLS_REASON, "the other end closed the connection");
    else if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE)
        snprintf(out, SEC_TLS_REASON, "the other end did not continue in time");
    else if (why == SSL_ERROR_SYSCALL)
        snprintf(out, SEC_TLS_REASON, "%s", strerror(e));
    else if (reason > SSL_AD_REASON_OFFSET && reason <= SSL_AD_REASON_OFFSET + UINT8_MAX)
        of_alert(reason - SSL_AD_REASON_OFFSET, out);
    else if (reason == SSL_R_UNSUPPORTED_PROTOCOL)
        snprintf(out, SEC_TLS_REASON, "the other end offers no TLS 1.3, which is required");
    else if (reason == SSL_R_HTTP_REQUEST || reason == SSL_R_WRONG_VERSION_NUMBER)
        snprintf(out, SEC_TLS_REASON, "the other end does not speak TLS (%s)",
                 text ? text : "no reason given");
    else
        snprintf(out, SEC_TLS_REASON, "%s", text ? text : "OpenSSL gives no reason");
}
