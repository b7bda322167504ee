// SPDX-License-Identifier: Apache-2.0
// Hands a job's key from rank 0 of its worker to the other ranks, over whatever joins them. A
// listener that changes nothing learns nothing about the key. One that changes messages could
// change the training itself.
//
//     other rank   makes a key pair for one use (X25519) ── public half ──►  rank 0
//     other rank   ◄──────── the job's key in a sealed box for that half ──  rank 0
#ifndef SEC_HAND_H
#define SEC_HAND_H
#include "security/seal_key.h"

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
