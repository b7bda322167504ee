// SPDX-License-Identifier: Apache-2.0
#include "security/tls_reason.h"

#include <errno.h>
#include <openssl/err.h>
#include <stdio.h>
#include <string.h>

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
