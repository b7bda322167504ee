// SPDX-License-Identifier: Apache-2.0
// Who this member is: a CURVE25519 key pair for links and an Ed25519 key pair for signatures, in a
// home folder.
//
//     HOME/keys/curve.key   0600   "nebkey1c" + 32 secret bytes + 8 bytes of checksum
//     HOME/keys/sign.key    0600   "nebkey1s" + 32 seed bytes   + 8 bytes of checksum
//     HOME/identity         0600   the public line below
//
// The public part is one line to hand to the other side, safe to print and to mail:
//     nebid1:NAME:<curve key>:<signing key>:<checksum>      base64url without padding
//
// Secrets live in locked, guarded memory (locked.h), left out of core dumps and wiped on
// destroy. Threads: an identity is read-only after create/load and may be shared.
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
    uint8_t curve[SEC_KEY_BYTES]; // CURVE25519 public key: links
    uint8_t sign[SEC_KEY_BYTES];  // Ed25519 public key: signatures
};

struct sec_identity;

// sodium_init, before any ZeroMQ context exists, and no core dumps for this process. Idempotent.
NEB_MUST_CHECK enum neb_status sec_init(void);

// HOME as given, or $NEBULA_HOME, or ~/.nebula when home is NULL.
NEB_MUST_CHECK enum neb_status sec_home(const char *home, char *out, size_t cap);

// Makes keys in home. name NULL: the host's name, made to fit. NEB_ERR_EXISTS when there are keys
// already. One process at a time: sec_identity_first.
NEB_MUST_CHECK enum neb_status sec_identity_create(const char *home, const char *name,
                                                   struct sec_identity **out);
// NEB_ERR_NOT_FOUND (not logged): no keys there. NEB_ERR_DENIED: a key file is a link, not ours or
// open to others; NEB_ERR_CORRUPT: a file is missing or damaged (named, with what to do), or keys
// and public line do not belong together.
NEB_MUST_CHECK enum neb_status sec_identity_load(const char *home, struct sec_identity **out);
// The one that is in home, or a new one; of two processes at once, one makes it (flock of home). made (may
// be NULL): it was this one. As the two above.
NEB_MUST_CHECK enum neb_status sec_identity_first(const char *home, const char *name,
                                                  struct sec_identity **out, bool *made);
// Where the keys are whole and the public line is missing or damaged, it is written again, with
// this name. *mended: it was.
NEB_MUST_CHECK enum neb_status sec_identity_mend(const char *home, const char *name, bool *mended);
// For who cannot do without: that there are no keys is logged, too.
NEB_MUST_CHECK enum neb_status sec_identity_need(const char *home, struct sec_identity **out);
// Keys and public line go to HOME/former-keys-N, the first N that is free, for a home that is to have others. Where there are none, nothing.
NEB_MUST_CHECK enum neb_status sec_identity_put_aside(const char *home);
void sec_identity_destroy(struct sec_identity **id);

const struct sec_public *sec_identity_public(const struct sec_identity *id);
// 32 bytes of locked memory
const uint8_t *sec_identity_curve_secret(const struct sec_identity *id);
const uint8_t *sec_identity_sign_secret(const struct sec_identity *id); // 64 bytes of locked memory

bool sec_name_valid(const char *name);
// Only characters of base64url. libsodium 1.0.18 decodes bytes of 128 and more as '_': a text would
// have several spellings.
bool sec_base64_only(const char *text);
NEB_MUST_CHECK enum neb_status sec_public_format(const struct sec_public *p, char *out, size_t cap);
// Strict: NEB_ERR_FORMAT for anything but exactly such a line, NEB_ERR_CORRUPT for a wrong
// checksum.
NEB_MUST_CHECK enum neb_status sec_public_parse(const char *text, struct sec_public *out);

#endif
