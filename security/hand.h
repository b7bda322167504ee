// SPDX-License-Identifier: Apache-2.0
// Hands a job's key from rank 0 of its worker to the other ranks, over whatever joins them. Who listens there without changing anything learns
// nothing of the key (who changes messages there can change the training itself).
//
//     other rank   a pair of keys for this once (X25519) ── public half ──►  rank 0
//     other rank   ◄──────────── the job's key in a sealed box for it ─────  rank 0
#ifndef SEC_HAND_H
#define SEC_HAND_H
#include "security/seal_key.h"

enum {
    SEC_HAND_PUBLIC_BYTES = 32,
    SEC_HAND_BOX_BYTES = SEC_SEAL_HANDED_BYTES + 48,
};

struct sec_hand; // the pair, in locked memory
NEB_MUST_CHECK enum neb_status sec_hand_begin(struct sec_hand **out,
                                              uint8_t public_half[SEC_HAND_PUBLIC_BYTES]);
void sec_hand_destroy(struct sec_hand **h); // NULL-safe
// Never a site's key. NEB_ERR_DENIED: no such public half is possible.
NEB_MUST_CHECK enum neb_status sec_hand_give(const struct sec_seal_key *job,
                                             const uint8_t public_half[SEC_HAND_PUBLIC_BYTES],
                                             uint8_t box[SEC_HAND_BOX_BYTES]);
// NEB_ERR_DENIED: changed on its way, or for somebody else.
NEB_MUST_CHECK enum neb_status sec_hand_take(const struct sec_hand *h,
                                             const uint8_t box[SEC_HAND_BOX_BYTES],
                                             struct sec_seal_key **out);

#endif
