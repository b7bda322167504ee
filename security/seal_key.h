// SPDX-License-Identifier: Apache-2.0
// The key that a site's files at rest are sealed with.
//
//     key file (0600): 32 bytes, or  "nebkeyp1" | salt 16 | the 32 bytes sealed by a passphrase (Argon2id)
//            │              or the same as systemd credential nebula-seal
//            ▼
//     site key ── id: 8 public bytes, in the front of what it seals
//            ├── with a job's id ──► job key: all that the job's worker gets; opens nothing of another job
//            └── with zeros      ──► what belongs to no job
//
// Nothing is ever sealed with the site key itself. Keys lie in locked memory that no core dump shows, and are wiped.
#ifndef SEC_SEAL_KEY_H
#define SEC_SEAL_KEY_H
#include "agent/base/status.h"
#include "security/seal.h"

#include <stdbool.h>

enum {
    SEC_SEAL_ID_BYTES = 8,
    SEC_SEAL_CONTEXT_BYTES = 16, // a job's id, or zeros
    SEC_SEAL_PASSPHRASE_MIN = 8,
    SEC_SEAL_PASSPHRASE_MAX = 1024,
    SEC_SEAL_HANDED_BYTES = SEC_SEAL_ID_BYTES + SEC_SEAL_CONTEXT_BYTES + SEC_SEAL_KEY_BYTES,
};

struct sec_seal_key;
// Fills in a passphrase (NUL-terminated, cap bytes in locked memory).
typedef enum neb_status sec_passphrase_ask(void *user, const char *path, char *out, size_t cap);

// Makes a key file. passphrase NULL: the key as it is. NEB_ERR_EXISTS: there is one (never replaced: what it sealed would be
// lost); NEB_ERR_INVALID: a passphrase under 8 characters.
NEB_MUST_CHECK enum neb_status sec_seal_key_make(const char *path, const char *passphrase,
                                                 struct sec_seal_key **out);
// path NULL: the credential. ask NULL: a key under a passphrase is NEB_ERR_DENIED. NEB_ERR_NOT_FOUND: none there (no
// credential: not logged);
// NEB_ERR_DENIED: a link, not ours, open to others, or another passphrase; NEB_ERR_FORMAT: no key file.
NEB_MUST_CHECK enum neb_status sec_seal_key_load(const char *path, sec_passphrase_ask *ask,
                                                 void *user, struct sec_seal_key **out);
void sec_seal_key_destroy(struct sec_seal_key **k);
const uint8_t *sec_seal_key_id(const struct sec_seal_key *k); // (SEC_SEAL_ID_BYTES), public

// The key of one job.
NEB_MUST_CHECK enum neb_status sec_seal_key_derive(const struct sec_seal_key *site,
                                                   const uint8_t context[SEC_SEAL_CONTEXT_BYTES],
                                                   struct sec_seal_key **out);
// To hand a job's key to its worker; out lies in locked memory of the caller's, who wipes it. Never for a site's key.
void sec_seal_key_hand(const struct sec_seal_key *job, uint8_t out[SEC_SEAL_HANDED_BYTES]);
NEB_MUST_CHECK enum neb_status sec_seal_key_take(const uint8_t in[SEC_SEAL_HANDED_BYTES],
                                                 struct sec_seal_key **out);

// For the sealing modules: the key of a file of this context. NEB_ERR_DENIED (not logged): k is another job's.
NEB_MUST_CHECK enum neb_status sec_seal_key_of(const struct sec_seal_key *k,
                                               const uint8_t context[SEC_SEAL_CONTEXT_BYTES],
                                               uint8_t out[SEC_SEAL_KEY_BYTES]);
// A job's own context; zeros of a site's key.
const uint8_t *sec_seal_key_context(const struct sec_seal_key *k);

#endif
