// SPDX-License-Identifier: Apache-2.0
// The state of the exchange on the devices of a mesh: each rank has its shard on its own device,
// next to what it trains there, or in pinned memory of its host. Its device computes in both cases.
//
//     replicas       θ_m of a unit is where its owner trains it: only frames cross the bus
//     alone          copied on the device between the trainer's memory and a buffer
//                    (agent_trainer_ops.fetch, store)
//     cut tensors    read on the host (shards.c), uploaded into a buffer of the device, and
//                    fetched from there after a merge
#include "agent/base/log.h"
#include "agent/exchange/shards_state.h"
#include "kernels/device_stage.h"

#include <stdlib.h>

enum neb_status shards_upload(struct agent_shards *o, const struct shards_wave *w) {
    for (int32_t i = w->begin; o->device && i < w->end; i++) {
        int32_t k = o->local[i];
        if (o->fragment[i] != w->f || k < 0 || o->in_place[k])
            continue;
        if (shards_alone(o, i, false))
            NEB_TRY(o->t.ops->fetch(o->t.user, i, o->there[k]));
        else
            kern_stage_upload(o->device, o->there[k], o->theta_m[k],
                              shards_unit_size(o, i) * sizeof(float));
    }
    return NEB_OK;
}

enum neb_status shards_download(struct agent_shards *o, const struct shards_wave *w) {
    bool any = false;
    for (int32_t i = w->begin; o->device && i < w->end; i++) {
        int32_t k = o->local[i];
        if (o->fragment[i] != w->f || k < 0)
            continue;
        if (shards_alone(o, i, true)) {
            if (!o->in_place[k])
                NEB_TRY(o->t.ops->store(o->t.user, i, o->there[k]));
        } else if (o->ranks > 1 || !o->in_place[k]) {
            kern_stage_download(o->device, o->theta_m[k], o->there[k],
                                shards_unit_size(o, i) * sizeof(float));
            any = true;
        }
    }
    return any ? kern_stage_end(o->device) : NEB_OK;
}

// ---- to the device and back to the host ----

void shards_leave_device(struct agent_shards *o) {
    if (o->device)
        o->device->ops->release(o->device, o->there_room);
    free(o->there);
    free(o->in_place);
    o->device = NULL;
    o->there_room = NULL;
    o->there = NULL;
    o->in_place = NULL;
}

// Finds where the device holds θ_m of each unit: where this rank trains it, or in a new buffer.
static enum neb_status find_places(struct agent_shards *o) {
    size_t room = 0;
    void *p = NULL;
    o->there = calloc((size_t)o->mine + 1, sizeof *o->there);
    o->in_place = calloc((size_t)o->mine + 1, sizeof *o->in_place);
    if (!o->there || !o->in_place)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %d units", o->mine);
    for (int32_t k = 0; k < o->mine; k++) {
        o->there[k] = o->t.ops->there(o->t.user, o->own[k]);
        o->in_place[k] = o->there[k] != NULL;
        if (o->in_place[k])
            continue;
        size_t end = (size_t)(o->theta_m[k] - o->room) + shards_unit_size(o, o->own[k]);
        room = end > room ? end : room;
    }
    if (room)
        NEB_TRY(o->device->ops->alloc(o->device, room * sizeof(float), &p));
    o->there_room = p;
    o->there_bytes = room * sizeof(float);
    for (int32_t k = 0; k < o->mine; k++)
        if (!o->in_place[k])
            o->there[k] = o->there_room + (o->theta_m[k] - o->room);
    return NEB_OK;
}

static enum neb_status place(struct agent_shards *o, enum agent_shards_place how) {
    size_t spare = o->ranks > 1 ? INTER_OUTER_SPARE_RANKS_BYTES : INTER_OUTER_SPARE_BYTES;
    o->device = o->t.device;
    NEB_TRY(find_places(o));
    if (how == AGENT_SHARDS_PINNED)
        return inter_outer_to_pinned(o->outer, o->device, o->there);
    return inter_outer_to_device(o->outer, o->device, o->there,
                                 how == AGENT_SHARDS_DEVICE ? 0 : spare);
}

// *there: all ranks have moved. If not, none has.
static enum neb_status try_place(struct agent_shards *o, enum agent_shards_place how, bool *there) {
    enum neb_status st = intra_comm_agree(o->t.world, place(o, how));
    *there = st == NEB_OK;
    if (*there)
        neb_info("the exchange's state is %s%s: %llu bytes of the device's memory for %llu "
                 "parameters of this rank, and %llu bytes on the host",
                 how == AGENT_SHARDS_PINNED ? "in pinned host memory, computed on " : "on ",
                 o->device->name, (unsigned long long)agent_shards_device_bytes(o),
                 (unsigned long long)o->load[o->rank], (unsigned long long)agent_shards_bytes(o));
    if (*there || how == AGENT_SHARDS_DEVICE || st != NEB_ERR_NOMEM)
        return st;
    st = inter_outer_to_host(o->outer);
    shards_leave_device(o);
    return intra_comm_agree(o->t.world, st);
}

enum neb_status shards_do_place(struct agent_shards *o, enum agent_shards_place how) {
    bool there = false;
    const char *all = o->ranks > 1 ? " of every rank" : "";
    if (!o->t.device) // either all ranks have a device or none has
        return NEB_OK;
    if (how != AGENT_SHARDS_PINNED)
        NEB_TRY(try_place(o, how, &there));
    if (how != AGENT_SHARDS_PINNED && !there && o->rank == 0)
        neb_warn("the exchange's state does not fit on the device%s; it stays on the host", all);
    if (there || !o->t.deferred)
        return NEB_OK;
    NEB_TRY(try_place(o, AGENT_SHARDS_PINNED, &there));
    if (!there && o->rank == 0)
        neb_warn("the memory for the exchange's state cannot be pinned on the host%s: processors "
                 "compute with it, and the training loop waits for them",
                 all);
    return NEB_OK;
}

enum neb_status agent_shards_place(struct agent_shards *o, enum agent_shards_place how) {
    NEB_ASSERT(!o->masked); // masked sums are computed on the host
    NEB_TRY(shards_begin(o, SHARDS_PLACE, &how, sizeof how));
    return shards_do_place(o, how);
}

uint64_t agent_shards_device_bytes(const struct agent_shards *o) {
    return inter_outer_device_bytes(o->outer) + o->there_bytes;
}
