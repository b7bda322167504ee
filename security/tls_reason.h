// SPDX-License-Identifier: Apache-2.0
// Why a TLS call failed, as text. It says only what OpenSSL and the system know.
#ifndef SEC_TLS_REASON_H
#define SEC_TLS_REASON_H
#include <openssl/ssl.h>
#include <stdbool.h>

enum { SEC_TLS_REASON = 160 };

// For a call that returned r. Call it before any other call that sets errno. Keeps OpenSSL's error
// queue as it is.
void sec_tls_reason(const SSL *ssl, int r, char out[SEC_TLS_REASON]);
// True if the other end closed the connection in the middle, without an alert. Same conditions.
bool sec_tls_closed(const SSL *ssl, int r);

#endif
