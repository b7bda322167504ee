// SPDX-License-Identifier: Apache-2.0
// Certificate and key of the status page: PEM for the server, X509 for the names in it.
#ifndef AGENT_WEB_TLS_H
#define AGENT_WEB_TLS_H
#include "agent/base/bytes.h"
#include "agent/base/fs.h"
#include "agent/base/status.h"

#include <openssl/x509.h>
#include <stdbool.h>

enum { AGENT_WEB_FINGERPRINT = 32 * 3 }; // "AB:CD:…" with the final 0

struct agent_web_tls {
    struct neb_buf cert; // PEM with a final 0; may be a chain, the page's own first
    char *key;           // PEM, from sec_locked_alloc
    X509 *x509;          // the page's own certificate
};

// The files of a pair, to notice a renewal.
struct agent_web_tls_files {
    char cert[NEB_PATH_MAX], key[NEB_PATH_MAX];
    struct agent_web_tls_mark { // of both files, links followed; all 0: a file is missing
        uint64_t inode[2], size[2];
        int64_t changed_ns[2];
    } loaded, seen; // at the last load; at the last check
};

// Loads the operator's files. NEB_ERR_FORMAT: no certificate, no key (or one with a passphrase), or
// not a pair. NEB_ERR_INVALID: expired.
NEB_MUST_CHECK enum neb_status agent_web_tls_load(const char *cert_path, const char *key_path,
                                                  struct agent_web_tls *out);
// Loads the agent's own pair HOME/page/{cert,key}.pem: P-256, self-signed, valid for ten years, for
// this machine's name, loopback and `host` (a numeric address without brackets). Makes it first if
// it is missing or expired or lacks `host`. files: its paths.
NEB_MUST_CHECK enum neb_status agent_web_tls_own(const char *home, const char *host,
                                                 struct agent_web_tls *out,
                                                 struct agent_web_tls_files *files);
// Notes the pair as loaded. Call before loading, so that a renewal during the load is noticed.
// NEB_ERR_LIMIT: path too long.
NEB_MUST_CHECK enum neb_status agent_web_tls_files(struct agent_web_tls_files *f, const char *cert,
                                                   const char *key);
// True once for each renewal: the pair differs from the loaded one, both files exist, and nothing
// changed since the last check (a renewal writes them one after the other). The pair then counts as
// loaded. Call about once a second.
bool agent_web_tls_renewed(struct agent_web_tls_files *f);

// SHA-256 of the certificate, as browsers and `openssl x509 -fingerprint -sha256` show it.
void agent_web_tls_fingerprint(const struct agent_web_tls *t, char out[AGENT_WEB_FINGERPRINT]);
void agent_web_tls_free(struct agent_web_tls *t); // wipes the key

#endif
