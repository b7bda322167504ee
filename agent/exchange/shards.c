// SPDX-License-Identifier: Apache-2.0
#include "intra/train/shards.h"
#include "agent/base/log.h"
#include "agent/exchange/shards_state.h"

#include <stdlib.h>
#include <string.h>

// ---- messages between ranks ----

enum neb_status shards_agree(struct agent_shards *o, enum neb_status st) {
    return intra_full_agree(o->train->model->mesh, st);
}

enum neb_status shards_begin(struct agent_shards *o, enum shards_call call, void *args,
                             size_t bytes) {
    NEB_TRY(intra_group_call(o->group, (int32_t)call));
    return o->world->ops->broadcast(o->world, args, bytes, 0);
}

enum neb_status shards_post(struct agent_shards *o, const void *x, size_t bytes, int to, int tag) {
    struct intra_comm_send s = {0};
    NEB_TRY(o->world->ops->send(o->world, x, bytes, to, tag, &s));
    return o->world->ops->wait(o->world, &s);
}

enum neb_status shards_take(struct agent_shards *o, void *x, size_t bytes, int from, int tag) {
    return o->world->ops->recv(o->world, x, bytes, from, tag);
}

// Marks the tensors that this rank must provide: its replica contains the owner of one of their
// units, and that owner may be this rank itself.
static void want_to_give(struct agent_shards *o, int32_t f) {
    const struct intra_mesh *mesh = o->train->model->mesh;
    memset(o->wanted, 0, (size_t)o->train->model->n_all_tensors * sizeof *o->wanted);
    for (int32_t i = 0; i < o->n; i++)
        if (o->fragment[i] == f && !shards_in_place(o, i) &&
            intra_mesh_replica(&mesh->c, o->owner[i]) == mesh->dp_rank)
            o->wanted[o->units[i].tensor->index] = true;
}

static void want(struct agent_shards *o, int32_t f) {
    memset(o->wanted, 0, (size_t)o->train->model->n_all_tensors * sizeof *o->wanted);
    for (int32_t i = 0; i < o->n; i++)
        if (o->fragment[i] == f)
            o->wanted[o->units[i].tensor->index] = true;
}

enum neb_status shards_gather(struct agent_shards *o, int32_t f) {
    want_to_give(o, f);
    NEB_TRY(intra_trainer_pull(o->train, o->wanted));
    for (int32_t i = 0; i < o->n; i++) {
        const struct intra_unit *u = &o->units[i];
        // a unit in place needs nothing from other ranks
        if (o->fragment[i] == f && !shards_in_place(o, i))
            NEB_TRY(intra_full_gather_rows(o->train->model, u->tensor, u->row0, u->rows,
                                           o->owner[i],
                                           o->local[i] < 0 ? NULL : o->theta_m[o->local[i]]));
    }
    return shards_upload(o, f);
}

enum neb_status shards_scatter(struct agent_shards *o, int32_t f) {
    NEB_TRY(shards_download(o, f));
    for (int32_t i = 0; i < o->n; i++) {
        const struct intra_unit *u = &o->units[i];
        if (o->fragment[i] == f)
            NEB_TRY(intra_full_scatter_rows(o->train->model, u->tensor, u->row0, u->rows,
                                            o->owner[i],
                                            o->local[i] < 0 ? NULL : o->theta_m[o->local[i]]));
    }
    want(o, f);
    return intra_trainer_push(o->train, o->wanted);
}

enum neb_status shards_sum_digest(struct agent_shards *o, int32_t f, struct kern_digest *d) {
    uint64_t x[2] = {d->lo, d->hi};
    NEB_TRY(o->world->ops->all_reduce(o->world, x, 2, INTRA_COMM_U64, INTRA_COMM_SUM));
    *d = (struct kern_digest){x[0], x[1]};
    for (int32_t g = 0; g < o->c.fragments; g++)
        if (f < 0 || g == f)
            *d = kern_digest_add(*d, inter_outer_version_digest(inter_outer_version(o->outer, g)));
    return NEB_OK;
}

// ---- creation and destruction ----

struct hello {                   // sent as it is: all ranks run one build (group.h)
    struct inter_outer_config c; // its pointers are valid on rank 0 only
    int32_t n;
    bool single, masked;
};

static enum neb_status deal(struct agent_shards *o) {
    uint64_t *elements = calloc((size_t)o->n + 1, sizeof *elements);
    if (!elements)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %d units", o->n);
    for (int32_t i = 0; i < o->n; i++) {
        elements[i] = shards_unit_size(o, i);
        o->place[i] = o->elements;
        o->elements += elements[i];
    }
    intra_shards_assign(elements, o->fragment, o->n, o->single ? 1 : o->ranks, o->load, o->owner);
    free(elements);
    for (int32_t i = 0; i < o->n; i++)
        o->local[i] = o->owner[i] == o->rank ? o->mine++ : -1;
    return NEB_OK;
}

// The buffer holds θ_m of one fragment at a time: the units of each fragment start at its
// beginning.
static enum neb_status make_room(struct agent_shards *o) {
    for (int32_t f = 0; f < o->c.fragments; f++) {
        size_t at = 0;
        for (int32_t i = 0; i < o->n; i++)
            at += o->local[i] >= 0 && o->fragment[i] == f ? shards_unit_size(o, i) : 0;
        o->room_floats = at > o->room_floats ? at : o->room_floats;
    }
    o->room = malloc((o->room_floats + 1) * sizeof *o->room);
    o->theta_m = calloc((size_t)o->mine + 1, sizeof *o->theta_m);
    if (!o->room || !o->theta_m)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %zu parameters of the exchange",
                        o->room_floats);
    for (int32_t f = 0; f < o->c.fragments; f++) {
        size_t at = 0;
        for (int32_t i = 0; i < o->n; i++)
            if (o->local[i] >= 0 && o->fragment[i] == f) {
                o->theta_m[o->local[i]] = o->room + at;
                at += shards_unit_size(o, i);
            }
    }
    return NEB_OK;
}

static enum neb_status make_outer(struct agent_shards *o, struct kern_pool *pool) {
    struct inter_outer_config c = o->c;
    size_t n = (size_t)o->mine + 1;
    struct inter_outer_unit *units = calloc(n, sizeof *units);
    struct inter_outer_position *places = calloc(n, sizeof *places);
    enum neb_status st = units && places ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory");
    for (int32_t i = 0; i < o->n && st == NEB_OK; i++) {
        const struct intra_unit *u = &o->units[i];
        int32_t k = o->local[i];
        bool rows = u->tensor->row_kind != INTRA_ROWS_NONE;
        if (k < 0)
            continue;
        units[k] = (struct inter_outer_unit){(uint32_t)u->rows, (uint32_t)u->cols, rows,
                                             o->fragment[i], o->theta_m[k]};
        places[k] = (struct inter_outer_position){(uint32_t)i, o->place[i]};
        if (rows && !(o->counts[i] = calloc((size_t)u->rows, sizeof **o->counts)))
            st = neb_fail(NEB_ERR_NOMEM, "out of memory for row counts");
    }
    c.places = places;
    if (st == NEB_OK)
        st = inter_outer_create(&c, units, o->mine, pool, &o->outer);
    free(units);
    free(places);
    return st;
}

// A device and its host exchange full tensors, so all units of a tensor must be in one fragment.
static enum neb_status check_fragments(const struct agent_shards *o) {
    for (int32_t i = 1; i < o->n; i++)
        NEB_ASSERT(o->units[i].tensor != o->units[i - 1].tensor ||
                   o->fragment[i] == o->fragment[i - 1]);
    for (int32_t f = 0; f < o->c.fragments; f++) {
        bool any = false;
        for (int32_t i = 0; i < o->n; i++)
            any |= o->fragment[i] == f;
        if (!any)
            return neb_fail(NEB_ERR_INVALID,
                            "sync.fragments: fragment %d of %d is empty; use fewer", f,
                            o->c.fragments);
    }
    return NEB_OK;
}

static enum neb_status allocate(struct agent_shards *o, const struct hello *h,
                                const int32_t *fragment) {
    NEB_TRY(intra_units(o->train->whole, &o->units, &o->n));
    if (o->n != h->n)
        return neb_fail(NEB_ERR_STATE, "this rank has %d units, but rank 0 has %d", o->n, h->n);
    size_t n = (size_t)o->n + 1, ranks = (size_t)o->ranks;
    o->fragment = calloc(n, sizeof *o->fragment);
    o->owner = calloc(n, sizeof *o->owner);
    o->local = calloc(n, sizeof *o->local);
    o->place = calloc(n, sizeof *o->place);
    o->counts = calloc(n, sizeof *o->counts);
    o->load = calloc(ranks, sizeof *o->load);
    o->wanted = calloc((size_t)o->train->model->n_all_tensors, sizeof *o->wanted);
    o->pieces = calloc(ranks, sizeof *o->pieces);
    o->sizes = calloc(ranks * INTER_PARTS_MAX, sizeof *o->sizes);
    if (!o->fragment || !o->owner || !o->local || !o->place || !o->counts || !o->load ||
        !o->wanted || !o->pieces || !o->sizes)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %d units", o->n);
    memcpy(o->fragment, fragment, (size_t)o->n * sizeof *fragment);
    NEB_TRY(check_fragments(o));
    NEB_TRY(deal(o));
    return make_room(o);
}

// θ starts as a copy of the parameters.
static enum neb_status fill_theta(struct agent_shards *o) {
    struct inter_outer_array arrays[INTER_OUTER_ARRAYS];
    inter_outer_arrays(o->outer, arrays);
    NEB_TRY(intra_trainer_pull(o->train, NULL));
    for (int32_t i = 0; i < o->n; i++) {
        const struct intra_unit *u = &o->units[i];
        int32_t k = o->local[i];
        NEB_TRY(
            intra_full_gather_rows(o->train->model, u->tensor, u->row0, u->rows, o->owner[i],
                                   k < 0 ? NULL : arrays[0].p + inter_outer_unit_at(o->outer, k)));
    }
    return NEB_OK;
}

static enum neb_status join(struct intra_group *group, const struct hello *h,
                            const int32_t *fragment, const struct sec_sum *sum,
                            struct kern_pool *pool, struct agent_shards **out) {
    struct agent_shards *o = calloc(1, sizeof *o);
    if (!o)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the exchange");
    o->group = group;
    o->train = intra_group_trainer(group);
    o->world = intra_group_world(group);
    o->rank = o->world->rank;
    o->ranks = o->world->size;
    o->c = h->c;
    o->c.sum = sum;
    o->c.places = NULL;
    o->single = h->single;
    o->masked = h->masked;
    enum neb_status st = allocate(o, h, fragment);
    if (st == NEB_OK)
        st = make_outer(o, pool);
    NEB_TRY_GOTO(shards_agree(o, st), fail);
    NEB_TRY_GOTO(fill_theta(o), fail);
    o->extra = shards_extra;
    o->extra.user = o;
    o->train->extra = &o->extra;
    neb_info("this rank owns %d of %d units of the exchange: %llu of %llu parameters, %llu bytes",
             o->mine, o->n, (unsigned long long)agent_shards_elements(o),
             (unsigned long long)o->elements, (unsigned long long)agent_shards_bytes(o));
    *out = o;
    return NEB_OK;
fail:
    agent_shards_destroy(&o);
    return st;
}

enum neb_status agent_shards_create(struct intra_group *group,
                                    const struct inter_outer_config *outer, const int32_t *fragment,
                                    bool single, struct kern_pool *pool,
                                    struct agent_shards **out) {
    struct intra_comm *world = intra_group_world(group);
    struct intra_unit *units = NULL;
    struct hello h = {.c = *outer, .single = single, .masked = outer->sum != NULL};
    NEB_ASSERT(single || !h.masked);
    NEB_TRY(intra_units(intra_group_trainer(group)->whole, &units, &h.n));
    free(units);
    NEB_TRY(intra_group_call(group, SHARDS_CREATE));
    NEB_TRY(world->ops->broadcast(world, &h, sizeof h, 0));
    NEB_TRY(world->ops->broadcast(world, (int32_t *)fragment, (size_t)h.n * sizeof *fragment, 0));
    return join(group, &h, fragment, outer->sum, pool, out);
}

static enum neb_status follow_create(struct agent_shards_follower *follower,
                                     struct intra_group *group) {
    struct intra_comm *world = intra_group_world(group);
    struct hello h;
    NEB_TRY(world->ops->broadcast(world, &h, sizeof h, 0));
    int32_t *fragment = calloc((size_t)h.n + 1, sizeof *fragment);
    if (!fragment) // the other ranks notice when this rank exits
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %d units", h.n);
    enum neb_status st = world->ops->broadcast(world, fragment, (size_t)h.n * sizeof *fragment, 0);
    if (st == NEB_OK)
        st = join(group, &h, fragment, NULL, follower->pool, &follower->shards);
    free(fragment);
    return st;
}

void agent_shards_destroy(struct agent_shards **op) {
    struct agent_shards *o = *op;
    if (!o)
        return;
    inter_outer_destroy(&o->outer);
    shards_leave_device(o);
    for (int32_t i = 0; o->counts && i < o->n; i++)
        free(o->counts[i]);
    for (int r = 0; o->pieces && r < o->ranks; r++)
        neb_buf_free(&o->pieces[r]);
    free(o->counts);
    free(o->pieces);
    free(o->sizes);
    free(o->units);
    free(o->fragment);
    free(o->owner);
    free(o->local);
    free(o->place);
    free(o->load);
    free(o->wanted);
    free(o->theta_m);
    free(o->room);
    free(o);
    *op = NULL;
}

struct inter_outer *agent_shards_outer(struct agent_shards *o) {
    return o->outer;
}

uint64_t agent_shards_bytes(const struct agent_shards *o) {
    uint64_t rows = 0;
    for (int32_t i = 0; i < o->n; i++)
        rows += o->counts[i] ? (uint64_t)o->units[i].rows : 0;
    return inter_outer_bytes(o->outer) + o->room_floats * sizeof *o->room +
           rows * sizeof **o->counts;
}

uint64_t agent_shards_elements(const struct agent_shards *o) { return o->load[o->rank]; }

uint64_t agent_shards_shape(const struct agent_shards *o, int32_t f, uint8_t sha256[32]) {
    struct cmp_unit_shape *shapes = calloc((size_t)o->n + 1, sizeof *shapes);
    uint64_t elements = 0;
    uint32_t n = 0;
    NEB_ASSERT(shapes); // a few bytes for each unit
    for (int32_t i = 0; i < o->n; i++)
        if (o->fragment[i] == f) {
            shapes[n++] = shards_shape_of(o, i);
            elements += shards_unit_size(o, i);
        }
    cmp_shapes_hash(shapes, n, sha256);
    free(shapes);
    return elements;
}

// ---- the other ranks ----

enum neb_status agent_shards_follow(void *user, struct intra_group *group, int32_t n) {
    struct agent_shards_follower *follower = user;
    struct agent_shards *o = follower->shards;
    struct intra_comm *world = intra_group_world(group);
    union {
        struct shards_encode encode;
        struct shards_merge merge;
        struct shards_restore restore;
        struct shards_adopt adopt;
        int32_t f;
        bool must;
    } a;
    size_t bytes;
    if (n == SHARDS_CREATE)
        return follow_create(follower, group);
    switch ((enum shards_call)n) {
    case SHARDS_ENCODE: bytes = sizeof a.encode; break;
    case SHARDS_MERGE: bytes = sizeof a.merge; break;
    case SHARDS_RESTORE: bytes = sizeof a.restore; break;
    case SHARDS_ADOPT: bytes = sizeof a.adopt; break;
    case SHARDS_DIGEST: bytes = sizeof a.f; break;
    case SHARDS_PLACE: bytes = sizeof a.must; break;
    default:
        return neb_fail(NEB_ERR_STATE, "rank 0 sent call %d, which this program does not know", n);
    }
    NEB_TRY(world->ops->broadcast(world, &a, bytes, 0));
    struct kern_digest d;
    switch ((enum shards_call)n) {
    case SHARDS_ENCODE: return shards_do_encode(o, &a.encode, NULL, NULL, NULL, NULL);
    case SHARDS_MERGE: return shards_do_merge(o, &a.merge, NULL, &d);
    case SHARDS_RESTORE: return shards_do_restore(o, &a.restore, NULL, NULL);
    case SHARDS_ADOPT: return shards_do_adopt(o, &a.adopt, NULL, NULL);
    case SHARDS_PLACE: return shards_do_place(o, a.must);
    default: return shards_do_digest(o, a.f, &d);
    }
}

void agent_shards_follow_end(void *user) {
    struct agent_shards_follower *follower = user;
    agent_shards_destroy(&follower->shards);
}
