// SPDX-License-Identifier: Apache-2.0
// Certificate and key of the status page, as PEM for the server and as X509 for the names in it.
#ifndef AGENT_WEB_TLS_H
#define AGENT_WEB_TLS_H
#include "agent/base/bytes.h"
#include "agent/base/fs.h"
#include "agent/base/status.h"

#include <openssl/x509.h>
#include <stdbool.h>

enum { AGENT_WEB_FINGERPRINT = 32 * 3 }; // "AB:CD:…" and its end

struct agent_web_tls {
    struct neb_buf cert; // PEM, ended by 0; may be a chain, the page's own first
    char *key;           // PEM, sec_locked_alloc
    X509 *x509;          // the page's own
};

// Where a pair lies, to see that it was renewed.
struct agent_web_tls_files {
    char cert[NEB_PATH_MAX], key[NEB_PATH_MAX];
    struct agent_web_tls_mark { // of both files, links followed; all 0: one of them is not there
        uint64_t inode[2], size[2];
        int64_t changed_ns[2];
    } loaded, seen; // when they were last loaded; when they were last looked at
};

// From the operator's files. NEB_ERR_FORMAT: no certificate, no key (or one with a passphrase), or not a pair; NEB_ERR_INVALID: expired.
NEB_MUST_CHECK enum neb_status agent_web_tls_load(const char *cert_path, const char *key_path,
                                                  struct agent_web_tls *out);
// The agent's own: HOME/page/{cert,key}.pem, P-256, self-signed, for ten years, for this machine's name, loopback and `host` (a
// numeric address without brackets). Made at the first start, and again when it has expired or `host` is not in it. files: where it lies.
NEB_MUST_CHECK enum neb_status agent_web_tls_own(const char *home, const char *host,
                                                 struct agent_web_tls *out,
                                                 struct agent_web_tls_files *files);
// Notes the pair as loaded. Call it before loading, so that a renewal in between is not missed. NEB_ERR_LIMIT: a path is too long.
NEB_MUST_CHECK enum neb_status agent_web_tls_files(struct agent_web_tls_files *f, const char *cert,
                                                   const char *key);
// Does the pair differ from the loaded one, both files there and the same as at the last look (a renewal writes one after the
// other)? True once for each renewal: it counts as loaded from then on. To be called about once a second.
bool agent_web_tls_renewed(struct agent_web_tls_files *f);

// SHA-256 of the certificate, as browsers and `openssl x509 -fingerprint -sha256` show it.
void agent_web_tls_fingerprint(const struct agent_web_tls *t, char out[AGENT_WEB_FINGERPRINT]);
void agent_web_tls_free(struct agent_web_tls *t); // wipes the key

#endif
