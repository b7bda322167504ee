// SPDX-License-Identifier: Apache-2.0
#include "agent/base/log.h"
#include "agent/exchange/shards_state.h"

#include <stdlib.h>
#include <string.h>

// ---- messages between ranks ----

enum neb_status shards_begin(struct agent_shards *o, enum shards_call call, void *args,
                             size_t bytes) {
    agent_shards_join(o);
    if (o->ranks == 1)
        return NEB_OK;
    NEB_TRY(o->t.ops->call(o->t.user, (int32_t)call));
    return o->t.world->ops->broadcast(o->t.world, args, bytes, 0);
}

enum neb_status shards_post(struct agent_shards *o, const void *x, size_t bytes, int to, int tag) {
    struct intra_comm_send s = {0};
    NEB_TRY(o->t.world->ops->send(o->t.world, x, bytes, to, tag, &s));
    return o->t.world->ops->wait(o->t.world, &s);
}

enum neb_status shards_take(struct agent_shards *o, void *x, size_t bytes, int from, int tag) {
    return o->t.world->ops->recv(o->t.world, x, bytes, from, tag);
}

// ---- parameters ----

static struct agent_move move_of(const struct agent_shards *o, int32_t i, float *at) {
    return (struct agent_move){i, o->owner[i], at};
}

enum neb_status shards_read(struct agent_shards *o, const struct shards_wave *w) {
    int32_t n = 0;
    shards_joint(o, true);
    for (int32_t i = w->begin; i < w->end; i++)
        if (o->fragment[i] == w->f && !shards_in_place(o, i) && !shards_alone(o, i, false))
            o->moves[n++] = move_of(o, i, o->local[i] < 0 ? NULL : o->theta_m[o->local[i]]);
    if (n)
        NEB_TRY(o->t.ops->read(o->t.user, o->moves, n));
    return shards_upload(o, w);
}

enum neb_status shards_write(struct agent_shards *o, const struct shards_wave *w) {
    int32_t n = 0, there = 0;
    NEB_TRY(shards_download(o, w));
    for (int32_t i = w->begin; i < w->end && o->ranks == 1; i++)
        if (o->fragment[i] == w->f && shards_in_place(o, i))
            o->moves[there++] = move_of(o, i, NULL);
    if (there)
        NEB_TRY(o->t.ops->write(o->t.user, o->moves, there, true));
    for (int32_t i = w->begin; i < w->end; i++)
        if (o->fragment[i] == w->f && (o->ranks > 1 || !shards_in_place(o, i)) &&
            !shards_alone(o, i, true))
            o->moves[n++] = move_of(o, i, o->local[i] < 0 ? NULL : o->theta_m[o->local[i]]);
    enum neb_status st = n ? o->t.ops->write(o->t.user, o->moves, n, false) : NEB_OK;
    shards_joint(o, false);
    return st;
}

enum neb_status shards_sum_digest(struct agent_shards *o, int32_t f, struct kern_digest *d) {
    uint64_t x[2] = {d->lo, d->hi};
    if (o->ranks > 1)
        NEB_TRY(o->t.world->ops->all_reduce(o->t.world, x, 2, INTRA_COMM_U64, INTRA_COMM_SUM));
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
    uint64_t wave; // elements of a rank's units in one wave; 0: a wave is a fragment
};

static enum neb_status make_room(struct agent_shards *o) {
    o->room_floats = shards_places(o, NULL);
    o->room = malloc((o->room_floats + 1) * sizeof *o->room);
    o->theta_m = calloc((size_t)o->mine + 1, sizeof *o->theta_m);
    if (!o->room || !o->theta_m)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %zu parameters of the exchange",
                        o->room_floats);
    shards_places(o, o->theta_m);
    return NEB_OK;
}

static enum neb_status make_outer(struct agent_shards *o) {
    struct inter_outer_config c = o->c;
    size_t n = (size_t)o->mine + 1;
    struct inter_outer_unit *units = calloc(n, sizeof *units);
    struct inter_outer_position *places = calloc(n, sizeof *places);
    enum neb_status st = units && places ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory");
    for (int32_t k = 0; k < o->mine && st == NEB_OK; k++) {
        int32_t i = o->own[k];
        const struct agent_unit *u = &o->t.units[i];
        bool rows = agent_unit_counts_rows(u);
        units[k] = (struct inter_outer_unit){u->rows, u->cols, rows, o->fragment[i], o->theta_m[k]};
        places[k] = (struct inter_outer_position){(uint32_t)i, o->place[i]};
        if (rows && !(o->counts[k] = calloc(u->rows, sizeof **o->counts)))
            st = neb_fail(NEB_ERR_NOMEM, "out of memory for row counts");
    }
    c.places = places;
    c.wave = shards_most_in_wave(o);
    if (st == NEB_OK)
        st = inter_outer_create(&c, units, o->mine, o->t.pool, &o->outer);
    free(units);
    free(places);
    return st;
}

static enum neb_status allocate(struct agent_shards *o, const struct hello *h,
                                const int32_t *fragment) {
    o->n = o->t.n_units;
    if (o->n != h->n)
        return neb_fail(NEB_ERR_STATE, "this rank has %d units, but rank 0 has %d", o->n, h->n);
    size_t n = (size_t)o->n + 1, ranks = (size_t)o->ranks, rows = 1;
    o->fragment = calloc(n, sizeof *o->fragment);
    o->owner = calloc(n, sizeof *o->owner);
    o->local = calloc(n, sizeof *o->local);
    o->own = calloc(n, sizeof *o->own);
    o->place = calloc(n, sizeof *o->place);
    o->counts = calloc(n, sizeof *o->counts);
    o->wave = calloc(n, sizeof *o->wave);
    o->load = calloc(ranks, sizeof *o->load);
    o->moves = calloc(n, sizeof *o->moves);
    o->pieces = calloc(ranks, sizeof *o->pieces);
    o->sizes = calloc(ranks * INTER_PARTS_MAX, sizeof *o->sizes);
    o->sent = calloc((size_t)o->c.fragments, sizeof *o->sent);
    o->payload = calloc((size_t)o->c.fragments, sizeof *o->payload);
    for (int32_t i = 0; i < o->n && o->rank == 0 && o->ranks > 1; i++)
        if (agent_unit_counts_rows(&o->t.units[i]) && o->t.units[i].rows > rows)
            rows = o->t.units[i].rows;
    o->others_counts = calloc(rows, sizeof *o->others_counts);
    if (!o->fragment || !o->owner || !o->local || !o->own || !o->place || !o->counts || !o->wave ||
        !o->load || !o->moves || !o->pieces || !o->sizes || !o->sent || !o->payload ||
        !o->others_counts)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %d units", o->n);
    memcpy(o->fragment, fragment, (size_t)o->n * sizeof *fragment);
    // A device and its host exchange full tensors.
    for (int32_t i = 0; i < o->n; i++)
        NEB_ASSERT(agent_unit_first(&o->t.units[i]) || fragment[i] == fragment[i - 1]);
    NEB_TRY(shards_deal(o, h->wave));
    return make_room(o);
}

// θ starts as a copy of the parameters.
static enum neb_status fill_theta(struct agent_shards *o) {
    struct inter_outer_array arrays[INTER_OUTER_ARRAYS];
    inter_outer_arrays(o->outer, arrays);
    for (int32_t f = 0; f < o->c.fragments; f++)
        for (struct shards_wave w = {.f = f}; shards_next(o, &w);) {
            NEB_TRY(shards_read(o, &w));
            for (int32_t i = w.begin; i < w.end; i++)
                if (o->fragment[i] == f && o->local[i] >= 0)
                    memcpy(arrays[0].p + inter_outer_unit_at(o->outer, o->local[i]),
                           o->theta_m[o->local[i]], shards_unit_size(o, i) * sizeof(float));
        }
    return NEB_OK;
}

static enum neb_status join(const struct agent_trainer *trainer, const struct hello *h,
                            const int32_t *fragment, const struct sec_sum *sum,
                            struct agent_shards **out) {
    struct agent_shards *o = calloc(1, sizeof *o);
    if (!o)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the exchange");
    o->t = *trainer;
    o->side.opened = -1;
    o->rank = o->t.world ? o->t.world->rank : 0;
    o->ranks = o->t.world ? o->t.world->size : 1;
    o->c = h->c;
    o->c.sum = sum;
    o->c.places = NULL;
    o->single = h->single;
    o->masked = h->masked;
    o->carried = o->ranks > 1 && !o->single && trainer->carrier_ops;
    enum neb_status st = allocate(o, h, fragment);
    if (st == NEB_OK)
        st = make_outer(o);
    NEB_TRY_GOTO(intra_comm_agree(o->t.world, st), fail);
    NEB_TRY_GOTO(fill_theta(o), fail);
    if (o->t.world)
        neb_info(
            "this rank owns %d of %d units of the exchange: %llu of %llu parameters, %llu bytes",
            o->mine, o->n, (unsigned long long)agent_shards_elements(o),
            (unsigned long long)o->elements, (unsigned long long)agent_shards_bytes(o));
    *out = o;
    return NEB_OK;
fail:
    agent_shards_destroy(&o);
    return st;
}

enum neb_status agent_shards_create(const struct agent_trainer *trainer,
                                    const struct inter_outer_config *outer, const int32_t *fragment,
                                    bool single, struct agent_shards **out) {
    struct intra_comm *world = trainer->world;
    struct hello h = {
        .c = *outer, .n = trainer->n_units, .single = single, .masked = outer->sum != NULL};
    h.wave = shards_wave_of(trainer, h.masked);
    NEB_ASSERT(single || !h.masked);
    if (world) {
        NEB_TRY(trainer->ops->call(trainer->user, SHARDS_CREATE));
        NEB_TRY(world->ops->broadcast(world, &h, sizeof h, 0));
        NEB_TRY(
            world->ops->broadcast(world, (int32_t *)fragment, (size_t)h.n * sizeof *fragment, 0));
    }
    return join(trainer, &h, fragment, outer->sum, out);
}

static enum neb_status follow_create(const struct agent_trainer *trainer,
                                     struct agent_shards **out) {
    struct intra_comm *world = trainer->world;
    struct hello h;
    NEB_TRY(world->ops->broadcast(world, &h, sizeof h, 0));
    int32_t *fragment = calloc((size_t)h.n + 1, sizeof *fragment);
    if (!fragment) // the other ranks notice when this rank exits
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %d units", h.n);
    enum neb_status st = world->ops->broadcast(world, fragment, (size_t)h.n * sizeof *fragment, 0);
    if (st == NEB_OK)
        st = join(trainer, &h, fragment, NULL, out);
    free(fragment);
    return st;
}

void agent_shards_destroy(struct agent_shards **op) {
    struct agent_shards *o = *op;
    if (!o)
        return;
    agent_shards_join(o);
    inter_outer_destroy(&o->outer);
    shards_leave_device(o);
    for (int32_t k = 0; o->counts && k < o->mine; k++)
        free(o->counts[k]);
    for (int r = 0; o->pieces && r < o->ranks; r++)
        neb_buf_free(&o->pieces[r]);
    free(o->counts);
    free(o->others_counts);
    for (int32_t f = 0; o->sent && f < o->c.fragments; f++)
        neb_buf_free(&o->sent[f]);
    free(o->pieces);
    free(o->sizes);
    free(o->sent);
    free(o->payload);
    free(o->fragment);
    free(o->owner);
    free(o->local);
    free(o->own);
    free(o->place);
    free(o->wave);
    free(o->load);
    free(o->moves);
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
    for (int32_t k = 0; k < o->mine; k++)
        rows += o->counts[k] ? o->t.units[o->own[k]].rows : 0;
    return inter_outer_bytes(o->outer) + o->room_floats * sizeof *o->room +
           rows * sizeof **o->counts;
}

const int32_t *agent_shards_owners(const struct agent_shards *o, int32_t *n) {
    *n = o->n;
    return o->owner;
}

uint64_t agent_shards_elements(const struct agent_shards *o) { return o->load[o->rank]; }

enum neb_status shards_shapes(const struct agent_shards *o, int32_t f, struct cmp_unit_shape **out,
                              int32_t *n) {
    *n = 0;
    if (!(*out = calloc((size_t)o->n + 1, sizeof **out)))
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %d units", o->n);
    for (int32_t i = 0; i < o->n; i++)
        if (o->fragment[i] == f)
            (*out)[(*n)++] = (struct cmp_unit_shape){(uint32_t)i, o->t.units[i].rows,
                                                     o->t.units[i].cols, shards_weighs_rows(o, i)};
    return NEB_OK;
}

uint64_t agent_shards_shape(const struct agent_shards *o, int32_t f, uint8_t sha256[32]) {
    struct cmp_unit_shape *shapes;
    uint64_t elements = 0;
    int32_t n;
    NEB_ASSERT(shards_shapes(o, f, &shapes, &n) == NEB_OK); // a few bytes for each unit
    for (int32_t k = 0; k < n; k++)
        elements += (uint64_t)shapes[k].rows * shapes[k].cols;
    cmp_shapes_hash(shapes, (uint32_t)n, sha256);
    free(shapes);
    return elements;
}

// ---- the other ranks ----

enum neb_status agent_shards_follow(const struct agent_trainer *trainer, int32_t n,
                                    struct agent_shards **shards) {
    struct agent_shards *o = *shards;
    union {
        struct shards_encode encode;
        struct shards_merge merge;
        struct shards_restore restore;
        struct shards_adopt adopt;
        struct agent_part_key key;
        int32_t f;
        enum agent_shards_place how;
    } a;
    static const size_t bytes[] = {
        [SHARDS_ENCODE] = sizeof a.encode, [SHARDS_MERGE] = sizeof a.merge,
        [SHARDS_ENCODED] = sizeof a.f,     [SHARDS_MERGED] = sizeof a.f,
        [SHARDS_OPEN] = sizeof a.merge,    [SHARDS_RESTORE] = sizeof a.restore,
        [SHARDS_ADOPT] = sizeof a.adopt,   [SHARDS_DIGEST] = sizeof a.f,
        [SHARDS_PLACE] = sizeof a.how,     [SHARDS_SEND] = sizeof a.key,
        [SHARDS_RENEW] = sizeof a.f,       [SHARDS_GIVE_FLIGHT] = sizeof a.f,
        [SHARDS_TAKE_FLIGHT] = sizeof a.f};
    if (n == SHARDS_CREATE)
        return follow_create(trainer, shards);
    if (n < 0 || (size_t)n >= sizeof bytes / sizeof *bytes)
        return neb_fail(NEB_ERR_STATE, "rank 0 sent call %d, which this program does not know", n);
    NEB_TRY(trainer->world->ops->broadcast(trainer->world, &a, bytes[n], 0));
    struct kern_digest d;
    agent_shards_join(o);
    switch ((enum shards_call)n) {
    case SHARDS_ENCODE: return shards_do_encode(o, &a.encode, NULL, NULL, NULL);
    case SHARDS_ENCODED: return shards_do_encoded(o, NULL, NULL);
    case SHARDS_OPEN: return shards_do_open(o, &a.merge, NULL);
    case SHARDS_MERGE: return shards_do_merge(o, &a.merge, NULL);
    case SHARDS_MERGED: return shards_do_merged(o, a.f, &d);
    case SHARDS_RESTORE: return shards_do_restore(o, &a.restore, NULL);
    case SHARDS_ADOPT: return shards_do_adopt(o, &a.adopt, NULL);
    case SHARDS_PLACE: return shards_do_place(o, a.how);
    case SHARDS_SEND: return shards_do_send(o, &a.key);
    case SHARDS_RENEW: return shards_do_renew(o);
    case SHARDS_GIVE_FLIGHT: return shards_do_give_flight(o, a.f, NULL, NULL);
    case SHARDS_TAKE_FLIGHT: return shards_do_take_flight(o, a.f, NULL, NULL);
    default: return shards_do_digest(o, a.f, &d);
    }
}
