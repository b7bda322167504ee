// SPDX-License-Identifier: Apache-2.0
// The key that seals a site's files at rest.
//
//     key file (0600): 32 bytes, or "nebkeyp1" | salt 16 | these 32 bytes sealed with a passphrase
//            │         (Argon2id); or the same as systemd credential nebula-seal
//            ▼
//     site key ── id: 8 public bytes, at the front of what it seals
//            ├── with a job's id ──► job key: all that the job's worker gets; it opens no other job
//            └── with zeros      ──► what belongs to no job
//
// The site key itself never seals anything. Keys lie in locked memory, which core dumps leave out,
// and are wiped.
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
// Asks for a passphrase. out: cap bytes of locked memory, to be NUL-terminated.
typedef enum neb_status sec_passphrase_ask(void *user, const char *path, char *out, size_t cap);

// Makes a key file. passphrase NULL: the key is stored as it is. NEB_ERR_EXISTS: the file exists;
// it is never replaced, because what it sealed would be lost. NEB_ERR_INVALID: the passphrase has
// fewer than 8 characters.
NEB_MUST_CHECK enum neb_status sec_seal_key_make(const char *path, const char *passphrase,
                                                 struct sec_seal_key **out);
// path NULL: the credential. ask NULL: a key under a passphrase gives NEB_ERR_DENIED.
// NEB_ERR_NOT_FOUND: no file, or no credential (this is not logged). NEB_ERR_DENIED: a link, not
// this user's, open to others, or another passphrase. NEB_ERR_FORMAT: not a key file.
NEB_MUST_CHECK enum neb_status sec_seal_key_load(const char *path, sec_passphrase_ask *ask,
                                                 void *user, struct sec_seal_key **out);
void sec_seal_key_destroy(struct sec_seal_key **k);
const uint8_t *sec_seal_key_id(const struct sec_seal_key *k); // (SEC_SEAL_ID_BYTES), public

// The key of one job.
NEB_MUST_CHECK enum neb_status sec_seal_key_derive(const struct sec_seal_key *site,
                                                   const uint8_t context[SEC_SEAL_CONTEXT_BYTES],
                                                   struct sec_seal_key **out);
// Hands a job's key to its worker. out: locked memory of the caller, who wipes it. Never for a
// site's key.
void sec_seal_key_hand(const struct sec_seal_key *job, uint8_t out[SEC_SEAL_HANDED_BYTES]);
NEB_MUST_CHECK enum neb_status sec_seal_key_take(const uint8_t in[SEC_SEAL_HANDED_BYTES],
                                                 struct sec_seal_key **out);

// For the sealing modules: the key of a file with this context. NEB_ERR_DENIED (not logged): k is
// the key of another job.
NEB_MUST_CHECK enum neb_status sec_seal_key_of(const struct sec_seal_key *k,
                                               const uint8_t context[SEC_SEAL_CONTEXT_BYTES],
                                               uint8_t out[SEC_SEAL_KEY_BYTES]);
// The context of a job's key; zeros for a site's key.
const uint8_t *sec_seal_key_context(const struct sec_seal_key *k);

// ---- to the other ranks of a worker -------------------------------------------------------------
//
// Hands a job's key from rank 0 of its worker to the other ranks, over whatever joins them. A
// listener that changes nothing learns nothing about the key. One that changes messages could
// change the training itself.
//
//     other rank   makes a key pair for one use (X25519) ── public half ──►  rank 0
//     other rank   ◄──────── the job's key in a sealed box for that half ──  rank 0

enum {
    SEC_HAND_PUBLIC_BYTES = 32,
    SEC_HAND_BOX_BYTES = SEC_SEAL_HANDED_BYTES + 48,
};

struct sec_hand; // the key pair, in locked memory
NEB_MUST_CHECK enum neb_status sec_hand_begin(struct sec_hand **out,
                                              uint8_t public_half[SEC_HAND_PUBLIC_BYTES]);
void sec_hand_destroy(struct sec_hand **h); // NULL-safe
// job: never a site's key. NEB_ERR_DENIED: public_half is not a valid public key.
NEB_MUST_CHECK enum neb_status sec_hand_give(const struct sec_seal_key *job,
                                             const uint8_t public_half[SEC_HAND_PUBLIC_BYTES],
                                             uint8_t box[SEC_HAND_BOX_BYTES]);
// NEB_ERR_DENIED: the box was changed in flight, or is for another pair. The caller destroys *out.
NEB_MUST_CHECK enum neb_status sec_hand_take(const struct sec_hand *h,
                                             const uint8_t box[SEC_HAND_BOX_BYTES],
                                             struct sec_seal_key **out);

#endif
