// SPDX-License-Identifier: Apache-2.0
#include "security/hand.h"

#include "security/locked.h"

#include <sodium.h>
#include <string.h>

struct sec_hand {
    uint8_t secret_half[crypto_box_SECRETKEYBYTES], public_half[crypto_box_PUBLICKEYBYTES];
    uint8_t handed[SEC_SEAL_HANDED_BYTES]; // scratch
};
_Static_assert(crypto_box_PUBLICKEYBYTES == SEC_HAND_PUBLIC_BYTES, "libsodium's box");
_Static_assert(SEC_SEAL_HANDED_BYTES + crypto_box_SEALBYTES == SEC_HAND_BOX_BYTES,
               "libsodium's sealed box");

static enum neb_status room(struct sec_hand **out) {
    NEB_TRY(sec_seal_init());
    // sec_locked_alloc puts the end of the block at the end of a page: the rounded size keeps it
    // aligned.
    struct sec_hand *h = *out = sec_locked_alloc((sizeof *h + 15) & ~(size_t)15);
    if (!h)
        return neb_fail(NEB_ERR_NOMEM, "out of memory handing the job's key to another rank");
    sodium_memzero(h, sizeof *h);
    return NEB_OK;
}

enum neb_status sec_hand_begin(struct sec_hand **out, uint8_t public_half[SEC_HAND_PUBLIC_BYTES]) {
    NEB_TRY(room(out));
    crypto_box_keypair((*out)->public_half, (*out)->secret_half);
    memcpy(public_half, (*out)->public_half, SEC_HAND_PUBLIC_BYTES);
    return NEB_OK;
}

void sec_hand_destroy(struct sec_hand **h) {
    sodium_free(*h); // wipes
    *h = NULL;
}

enum neb_status sec_hand_give(const struct sec_seal_key *job,
                              const uint8_t public_half[SEC_HAND_PUBLIC_BYTES],
                              uint8_t box[SEC_HAND_BOX_BYTES]) {
    struct sec_hand *h = NULL;
    NEB_TRY(room(&h));
    sec_seal_key_hand(job, h->handed);
    int rc = crypto_box_seal(box, h->handed, sizeof h->handed, public_half);
    sec_hand_destroy(&h);
    return rc == 0 ? NEB_OK
                   : neb_fail(NEB_ERR_DENIED,
                              "another rank asked for the job's key with an invalid public key");
}

enum neb_status sec_hand_take(const struct sec_hand *h, const uint8_t box[SEC_HAND_BOX_BYTES],
                              struct sec_seal_key **out) {
    struct sec_hand *scratch = NULL;
    *out = NULL;
    NEB_TRY(room(&scratch));
    enum neb_status st =
        crypto_box_seal_open(scratch->handed, box, SEC_HAND_BOX_BYTES, h->public_half,
                             h->secret_half) == 0
            ? sec_seal_key_take(scratch->handed, out)
            : neb_fail(NEB_ERR_DENIED,
                       "the job's key was changed in flight from rank 0, or is for another rank");
    sec_hand_destroy(&scratch);
    return st;
}
