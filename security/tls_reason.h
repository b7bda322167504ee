// SPDX-License-Identifier: Apache-2.0
// Why a TLS call failed, in words: what OpenSSL and the system know, and nothing that they do not.
#ifndef SEC_TLS_REASON_H
#define SEC_TLS_REASON_H
#include <openssl/ssl.h>
#include <stdbool.h>

enum { SEC_TLS_REASON = 160 };

// Of a call that returned r; before any other call that sets errno. Leaves the error queue as it is.
void sec_tls_reason(const SSL *ssl, int r, char out[SEC_TLS_REASON]);
// Whether the other end closed the connection without a word, in the middle of what was said.
bool sec_tls_closed(const SSL *ssl, int r);

#endif
