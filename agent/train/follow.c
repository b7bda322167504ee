// SPDX-License-Identifier: Apache-2.0
#include "agent/train/follow.h"
#include "agent/base/log.h"
#include "agent/proc/harden.h"
#include "security/seal_key.h"

enum {
    CALL_SEAL = 1000, // must not collide with the calls of the exchange
    TAG_HAND = 32010, // must not collide with the tags of the exchange
};

static enum neb_status post(struct intra_comm *world, const void *x, size_t bytes, int to) {
    struct intra_comm_send s = {0};
    NEB_TRY(world->ops->send(world, x, bytes, to, TAG_HAND, &s));
    return world->ops->wait(world, &s);
}

enum neb_status agent_follow_seal(struct intra_group *group, const struct sec_vault *vault) {
    struct intra_comm *world = intra_group_world(group);
    NEB_TRY(intra_group_call(group, CALL_SEAL));
    for (int r = 1; r < world->size; r++) {
        uint8_t public_half[SEC_HAND_PUBLIC_BYTES], box[SEC_HAND_BOX_BYTES];
        NEB_TRY(world->ops->recv(world, public_half, sizeof public_half, r, TAG_HAND));
        NEB_TRY(sec_hand_give(sec_vault_key(vault), public_half, box));
        NEB_TRY(post(world, box, sizeof box, r));
    }
    intra_group_trainer(group)->vault = sec_vault_of(vault);
    return NEB_OK;
}

static enum neb_status take_key(const struct sec_hand *hand, struct intra_comm *world,
                                struct sec_vault **out) {
    uint8_t box[SEC_HAND_BOX_BYTES];
    struct sec_seal_key *k = NULL;
    NEB_TRY(world->ops->recv(world, box, sizeof box, 0, TAG_HAND));
    NEB_TRY(sec_hand_take(hand, box, &k));
    return sec_vault_create_take(&k, NULL, out);
}

static enum neb_status follow_seal(struct agent_follower *f, struct intra_group *group) {
    struct intra_comm *world = intra_group_world(group);
    uint8_t public_half[SEC_HAND_PUBLIC_BYTES];
    struct sec_hand *hand = NULL;
    NEB_ASSERT(!f->vault);
    agent_harden_keys(true);
    NEB_TRY(sec_hand_begin(&hand, public_half));
    enum neb_status st = post(world, public_half, sizeof public_half, 0);
    if (st == NEB_OK)
        st = take_key(hand, world, &f->vault);
    sec_hand_destroy(&hand);
    intra_group_trainer(group)->vault = sec_vault_of(f->vault);
    return st;
}

static enum neb_status follow_exchange(struct agent_follower *f, struct intra_group *group,
                                       int32_t n) {
    static const struct agent_trainer_ops ops = {WORKER_TENSORS_OPS};
    bool created = f->shards != NULL;
    if (!f->tensors.units)
        NEB_TRY(worker_tensors_create(group, intra_group_trainer(group), &f->tensors));
    const struct agent_trainer trainer = worker_tensors_trainer(&f->tensors, &ops);
    NEB_TRY(agent_shards_follow(&trainer, n, &f->shards));
    if (!created)
        worker_tensors_add_shards(&f->tensors, f->shards);
    return NEB_OK;
}

enum neb_status agent_follow(void *user, struct intra_group *group, int32_t n) {
    return n == CALL_SEAL ? follow_seal(user, group) : follow_exchange(user, group, n);
}

void agent_follow_end(void *user) {
    struct agent_follower *f = user;
    agent_shards_destroy(&f->shards);
    worker_tensors_destroy(&f->tensors);
}
