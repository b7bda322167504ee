// SPDX-License-Identifier: Apache-2.0
// Who this member is: a CURVE25519 key pair for links and an Ed25519 key pair for signatures, in a
// home folder.
//
//     HOME/keys/curve.key   0600   "nebkey1c" + 32 secret bytes + 8 bytes of checksum
//     HOME/keys/sign.key    0600   "nebkey1s" + 32 seed bytes   + 8 bytes of checksum
//     HOME/identity         0600   the public line below
//
// The public part is one line that goes to the other side. It may be printed and mailed:
//     nebid1:NAME:<curve key>:<signing key>:<checksum>      base64url without padding
//
// Secrets lie in locked memory (locked.h), which core dumps leave out, and are wiped on destroy.
//
// Threads: an identity is read-only after create or load, and may be shared.
#ifndef SEC_IDENTITY_H
#define SEC_IDENTITY_H
#include "agent/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SEC_KEY_BYTES = 32,
    SEC_NAME_MAX = 33, // with its end; a name is [a-z0-9][a-z0-9_.-]*
    SEC_ID_TEXT = 160, // room for the public line with its end
};

struct sec_public {
    char name[SEC_NAME_MAX];
    uint8_t curve[SEC_KEY_BYTES]; // CURVE25519 public key, for links
    uint8_t sign[SEC_KEY_BYTES];  // Ed25519 public key, for signatures
};

struct sec_identity;

// Starts libsodium and forbids core dumps and debuggers. Call it before any ZeroMQ context exists.
// Idempotent.
NEB_MUST_CHECK enum neb_status sec_init(void);

// The home folder: home, or $NEBULA_HOME if home is NULL, or ~/.nebula. NEB_ERR_LIMIT: too long.
NEB_MUST_CHECK enum neb_status sec_home(const char *home, char *out, size_t cap);

// Makes keys in home. name NULL: the host's name, made to fit. NEB_ERR_EXISTS: home has an
// identity. Only for one process at a time; sec_identity_first is safe for several.
NEB_MUST_CHECK enum neb_status sec_identity_create(const char *home, const char *name,
                                                   struct sec_identity **out);
// NEB_ERR_NOT_FOUND (not logged): no keys. NEB_ERR_DENIED: a key file is a link, another user's or
// open to others. NEB_ERR_FORMAT, NEB_ERR_CORRUPT: a file is missing or damaged (the log names it
// and a remedy), or keys and public line do not belong together.
NEB_MUST_CHECK enum neb_status sec_identity_load(const char *home, struct sec_identity **out);
// Loads the identity of home, or makes one. Of several processes, one makes it (flock of home).
// made (may be NULL): this process made it. Errors as of load and create.
NEB_MUST_CHECK enum neb_status sec_identity_first(const char *home, const char *name,
                                                  struct sec_identity **out, bool *made);
// If the keys are complete and the public line is missing or damaged, writes the line again with
// this name. *mended: it was written.
NEB_MUST_CHECK enum neb_status sec_identity_mend(const char *home, const char *name, bool *mended);
// sec_identity_load, for callers that need an identity: NEB_ERR_NOT_FOUND is logged too.
NEB_MUST_CHECK enum neb_status sec_identity_need(const char *home, struct sec_identity **out);
// Moves keys and public line to HOME/former-keys-N, N being the first free number, so that home can
// get new ones. Does nothing if there are none.
NEB_MUST_CHECK enum neb_status sec_identity_put_aside(const char *home);
void sec_identity_destroy(struct sec_identity **id);

const struct sec_public *sec_identity_public(const struct sec_identity *id);
// 32 bytes of locked memory
const uint8_t *sec_identity_curve_secret(const struct sec_identity *id);
const uint8_t *sec_identity_sign_secret(const struct sec_identity *id); // 64 bytes of locked memory

bool sec_name_valid(const char *name);
// True if text has only characters of base64url. libsodium 1.0.18 decodes bytes from 128 on as '_',
// so without this check a text would have several spellings.
bool sec_base64_only(const char *text);
NEB_MUST_CHECK enum neb_status sec_public_format(const struct sec_public *p, char *out, size_t cap);
// Strict. NEB_ERR_FORMAT: not exactly one such line. NEB_ERR_CORRUPT: the checksum differs.
NEB_MUST_CHECK enum neb_status sec_public_parse(const char *text, struct sec_public *out);

#endif
