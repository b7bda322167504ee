// SPDX-License-Identifier: Apache-2.0
// The exchange of a trainer that is not the built-in one, whose ranks hold pieces of tensors
// (agent/exchange/trainer.h): any shapes, a row that is longer than a unit, tensors that stay at
// home. Parameters change in a known way. The output must not depend on the number of ranks or on
// who holds what. For test_mesh_units.sh.
//
//     mesh_units RANKS 1 1 [key=value ...]   see mesh_program.h; 0 0 0: one rank
//
//     hold=rows|columns|last   runs of elements, every RANKS-th element, or all on the last rank
//     first=N rounds=N         0, 8: the rounds to make
//     codec=NAME               int8
//     save=PATH load=PATH      a checkpoint to which each rank writes a part
//     carry=DIR                each rank carries its own parts of updates, through files in DIR;
//                              rank 0 does the agent's part: joins and cuts
//     wave=N                   at most N elements of a rank are encoded or merged at once
//
// Rank 0 prints a line a round, and the digest of all parameters. Every rank prints to stderr how
// many elements it owns, of how many that all ranks exchange, and its bytes of the exchange.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "agent/base/sha256.h"
#include "agent/exchange/manifest.h"
#include "agent/exchange/shards.h"
#include "intra/ckpt/checkpoint_array.h"
#include "intra/ckpt/checkpoint_parts.h"
#include "tests/parallel/mesh_program.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FRAGMENTS = 2, TAG = 7, CALL_END = -1, CALL_TRAIN = -2, CALL_SAVE = -3, CALL_LOAD = -4 };

struct options {
    struct intra_mesh_config mesh;
    int first, rounds, wave;
    const char *hold, *codec, *save, *load, *carry;
};

static const struct exchange_tensor tensors[] = {
    {.name = "conv", .dims = 4, .shape = {64, 3, 7, 7}, .group = 0},
    {.name = "experts", .dims = 3, .shape = {4, 20, 30}, .group = 1}, // stays at home
    {.name = "embed", .dims = 2, .shape = {5000, 300}, .group = 0},
    {.name = "long", .dims = 2, .shape = {2, EXCHANGE_UNIT_MAX + 1000}, .group = 0},
    {.name = "norm", .dims = 1, .shape = {300}, .group = 0},
    {.name = "scale", .dims = 0, .group = 0}};

struct site {
    const struct options *o;
    struct intra_comm *world; // NULL: one rank
    struct kern *K;
    int rank, ranks;
    struct exchange_manifest *manifest;
    struct agent_unit *units;
    int32_t n;
    uint64_t *place, elements; // (n) elements before each unit
    float **at;                // (n) whole units; what another rank holds is NaN
    float *packed;             // (largest unit)
    struct agent_trainer trainer;
    struct agent_shards *shards;
};

// ---- the trainer -----------------------------------------------------------------------------

// What a rank holds of a unit: of each of `parts` stretches of `size` elements, every `step`-th one
// from `first` to `end`.
struct holding {
    size_t parts, size, first, end, step;
};

static size_t first_of(const struct site *s, int32_t unit, int rank) {
    uint64_t n = (uint64_t)s->ranks, at = ((uint64_t)rank * s->elements + n - 1) / n,
             place = s->place[unit], size = agent_unit_size(&s->units[unit]);
    return at < place ? 0 : at - place < size ? at - place : size;
}

static struct holding holding(const struct site *s, int32_t unit, int rank) {
    const struct agent_unit *u = &s->units[unit];
    size_t size = agent_unit_size(u);
    if (s->o->hold[0] == 'l')
        return (struct holding){1, size, 0, rank == s->ranks - 1 ? size : 0, 1};
    if (s->o->hold[0] == 'c')
        return (struct holding){size / u->cols, u->cols, (size_t)rank, u->cols, (size_t)s->ranks};
    return (struct holding){1, size, first_of(s, unit, rank), first_of(s, unit, rank + 1), 1};
}

#define EACH_HELD(h, k)                                                                            \
    for (size_t part_ = 0; part_ < (h).parts; part_++)                                             \
        for (size_t k = part_ * (h).size + (h).first; k < part_ * (h).size + (h).end; k += (h).step)

static uint64_t held(void *user, int32_t unit, int rank) {
    struct holding h = holding(user, unit, rank);
    return h.first < h.end ? h.parts * ((h.end - h.first + h.step - 1) / h.step) : 0;
}

// Copies what `rank` holds of a unit between the unit and a packed run, and returns its length.
static size_t pack(const struct site *s, int32_t unit, int rank, float *unpacked, float *run,
                   bool in) {
    struct holding h = holding(s, unit, rank);
    size_t n = 0;
    EACH_HELD(h, k) {
        if (in)
            run[n] = unpacked[k];
        else
            unpacked[k] = run[n];
        n++;
    }
    return n;
}

static enum neb_status post(const struct site *s, const float *x, size_t n, int to) {
    struct intra_comm_send send = {0};
    NEB_TRY(s->world->ops->send(s->world, x, n * sizeof *x, to, TAG, &send));
    return s->world->ops->wait(s->world, &send);
}

static enum neb_status move_one(struct site *s, const struct agent_move *m, bool to_owner) {
    int32_t u = m->unit;
    for (int r = 0; r < s->ranks; r++) {
        size_t n = held(s, u, r);
        if (!n || (r != s->rank && m->rank != s->rank))
            continue;
        bool gives = to_owner ? r == s->rank : m->rank == s->rank,
             gets = to_owner ? m->rank == s->rank : r == s->rank;
        if (gives)
            pack(s, u, r, to_owner ? s->at[u] : m->at, s->packed, true);
        if (gives && !gets)
            NEB_TRY(post(s, s->packed, n, to_owner ? m->rank : r));
        if (gets && !gives)
            NEB_TRY(s->world->ops->recv(s->world, s->packed, n * sizeof(float),
                                        to_owner ? r : m->rank, TAG));
        if (gets)
            pack(s, u, r, to_owner ? m->at : s->at[u], s->packed, false);
    }
    return NEB_OK;
}

static enum neb_status read_units(void *user, const struct agent_move *moves, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        NEB_TRY(move_one(user, &moves[i], true));
    return NEB_OK;
}

static enum neb_status write_units(void *user, const struct agent_move *moves, int32_t n,
                                   bool there) {
    NEB_ASSERT(!there);
    for (int32_t i = 0; i < n; i++)
        NEB_TRY(move_one(user, &moves[i], false));
    return NEB_OK;
}

static enum neb_status call(void *user, int32_t n) {
    const struct site *s = user;
    return s->world ? s->world->ops->broadcast(s->world, &n, sizeof n, 0) : NEB_OK;
}

static void change(const struct site *s, int64_t time, float size) {
    for (int32_t i = 0; i < s->n; i++) {
        struct holding h = holding(s, i, s->rank);
        EACH_HELD(h, k) {
            uint64_t x = neb_mix64((s->place[i] + k) * 1000003 + (uint64_t)time);
            s->at[i][k] += size * ((float)((int)(x % 2001) - 1000) * 1e-3f);
        }
    }
}

// time and size are rank 0's.
static enum neb_status train(struct site *s, int64_t time, float size) {
    int64_t a[2] = {time, (int64_t)(size * 1e6f)};
    if (s->world)
        NEB_TRY(s->world->ops->broadcast(s->world, a, sizeof a, 0));
    change(s, a[0], (float)a[1] * 1e-6f);
    return NEB_OK;
}

// ---- checkpoints -----------------------------------------------------------------------------

// Each rank writes the state that it owns and the parameters that it holds: rank 0 into the file,
// the others into parts.
static enum neb_status put_state(struct site *s, struct intra_ckpt_writer *w) {
    int32_t *writer = calloc((size_t)s->ranks, sizeof *writer);
    enum neb_status st = writer ? NEB_OK : NEB_ERR_NOMEM, written = NEB_OK;
    char name[64];
    for (int r = 0; r < s->ranks && writer; r++)
        writer[r] = r;
    for (int32_t i = 0; i < s->n && st == NEB_OK; i++) {
        size_t n = pack(s, i, s->rank, s->at[i], s->packed, true);
        snprintf(name, sizeof name, "held.%d.%d", i, s->rank);
        st = n ? intra_ckpt_add(w, name, INTRA_F32, n, 1, s->packed) : NEB_OK;
    }
    if (st == NEB_OK && s->world)
        st = agent_shards_part_put(s->shards, writer, w, &written);
    else if (st == NEB_OK)
        st = agent_shards_save(s->shards, w);
    free(writer);
    return st == NEB_OK ? written : st;
}

static enum neb_status save(struct site *s) {
    struct intra_part part = {1234, (uint32_t)s->rank, (uint32_t)s->ranks - 1};
    uint64_t note[2] = {part.token, part.n}, versions[FRAGMENTS];
    struct intra_ckpt_writer *w = NULL;
    NEB_TRY(s->rank ? intra_part_create(NULL, s->o->save, &part, &w)
                    : intra_ckpt_create_in(NULL, s->o->save, &w));
    enum neb_status st = put_state(s, w);
    for (int32_t f = 0; f < FRAGMENTS; f++)
        versions[f] = inter_outer_version(agent_shards_outer(s->shards), f);
    if (st == NEB_OK && s->rank == 0)
        st = intra_ckpt_add(w, "versions", INTRA_U64, FRAGMENTS, 1, versions);
    if (st == NEB_OK && s->rank == 0)
        st = intra_ckpt_add(w, "ranks", INTRA_U64, 1, 1, &(uint64_t){(uint64_t)s->ranks});
    if (st == NEB_OK && s->rank == 0 && part.n)
        st = intra_ckpt_add(w, INTRA_PARTS_SECTION, INTRA_U64, 2, 1, note);
    if (st == NEB_OK && s->rank)
        st = intra_ckpt_commit(w);
    st = intra_comm_agree(s->world, st); // rank 0's file is last: it names the parts
    if (st == NEB_OK && !s->rank)
        st = intra_ckpt_commit(w);
    intra_ckpt_writer_destroy(&w);
    return st;
}

// Of all ranks that wrote, takes what this rank holds.
static enum neb_status load_held(struct site *s, const struct intra_ckpt *c) {
    struct site old = *s; // every run of a test has one way to hold
    uint64_t ranks;
    char name[64];
    NEB_TRY(intra_ckpt_read(c, "ranks", INTRA_U64, 1, 1, &ranks));
    old.ranks = (int)ranks;
    for (int32_t i = 0; i < s->n; i++)
        for (int r = 0; r < old.ranks; r++) {
            size_t n = held(&old, i, r);
            snprintf(name, sizeof name, "held.%d.%d", i, r);
            if (!n)
                continue;
            NEB_TRY(intra_ckpt_read(c, name, INTRA_F32, n, 1, s->packed));
            pack(&old, i, r, s->at[i], s->packed, false);
        }
    return NEB_OK;
}

static enum neb_status load(struct site *s) {
    struct intra_ckpt *c = NULL;
    uint64_t versions[FRAGMENTS];
    enum neb_status st = intra_ckpt_open_in(NULL, s->o->load, true, &c);
    if (st == NEB_OK)
        st = load_held(s, c);
    NEB_TRY(intra_comm_agree(s->world, st));
    if (s->rank == 0) {
        st = intra_ckpt_read(c, "versions", INTRA_U64, FRAGMENTS, 1, versions);
        for (int32_t f = 0; f < FRAGMENTS && st == NEB_OK; f++)
            inter_outer_set_fragment(agent_shards_outer(s->shards), f, (uint32_t)versions[f], true);
        if (st == NEB_OK)
            st = agent_shards_restore(s->shards, c);
    }
    intra_ckpt_close(&c);
    return st;
}

// ---- parts of updates, carried by the ranks ----------------------------------------------------

enum { COMMITTED = 2 }; // updates of a commit: the same one twice

static void part_path(const struct site *s, const char *kind, int32_t f, int rank,
                      char out[NEB_PATH_MAX]) {
    snprintf(out, NEB_PATH_MAX, "%s/%s-%d-%d", s->o->carry, kind, f, rank);
}

static enum neb_status carry_put(void *carrier, const struct agent_part_key *k, const void *p,
                                 size_t len) {
    const struct site *s = carrier;
    char path[NEB_PATH_MAX];
    part_path(s, "update", k->fragment, s->rank, path);
    return neb_fs_write(path, p, len, 0600);
}

static struct neb_buf taken;

static enum neb_status carry_take(void *carrier, const struct agent_part_key *k,
                                  struct agent_ipc_part parts[AGENT_IPC_PARTS_MAX], size_t *n) {
    const struct site *s = carrier;
    char path[NEB_PATH_MAX];
    part_path(s, "commit", k->fragment, s->rank, path);
    NEB_TRY(neb_fs_read(path, SIZE_MAX / 2, &taken));
    for (*n = 0; *n < COMMITTED; ++*n)
        parts[*n] = (struct agent_ipc_part){taken.p, taken.len};
    return NEB_OK;
}

static void carry_done(void *carrier, const struct agent_part_key *k) {
    (void)carrier, (void)k;
    neb_buf_free(&taken);
}

static enum neb_status carry_renew(void *carrier) {
    (void)carrier;
    return NEB_OK;
}

static const struct agent_carrier_ops carrier = {carry_put, carry_take, carry_done, carry_renew};

// Rank 0, as the agent: joins its own part in *b and those of the other ranks.
static enum neb_status join_carried(struct site *s, int32_t f, struct neb_buf *b) {
    const struct agent_part_key k = {.fragment = f};
    struct cmp_update_piece pieces[64] = {{b->p, b->len}};
    struct neb_buf others[64] = {{0}}, joined = {0};
    char path[NEB_PATH_MAX];
    int32_t units;
    const int32_t *owner = agent_shards_owners(s->shards, &units);
    NEB_ASSERT(agent_shards_carried(s->shards) && s->ranks <= 64);
    NEB_TRY(agent_shards_send(s->shards, &k));
    for (int r = 1; r < s->ranks; r++) {
        part_path(s, "update", f, r, path);
        NEB_TRY(neb_fs_read(path, SIZE_MAX / 2, &others[r]));
        pieces[r] = (struct cmp_update_piece){others[r].p, others[r].len};
    }
    for (int r = 0; r < s->ranks; r++)
        NEB_TRY(cmp_update_owned(pieces[r].p, pieces[r].len, owner, (uint32_t)units, r));
    NEB_ASSERT(cmp_update_owned(pieces[0].p, pieces[0].len, owner, (uint32_t)units, 1) != NEB_OK ||
               b->len == 8); // 8: rank 0 owns nothing of the fragment
    NEB_TRY(cmp_update_join(pieces, (size_t)s->ranks, &joined));
    NEB_ASSERT(joined.len == agent_shards_payload(s->shards, f));
    for (int r = 1; r < s->ranks; r++)
        neb_buf_free(&others[r]);
    neb_buf_free(b);
    *b = joined;
    return NEB_OK;
}

// Rank 0, as the agent: leaves each rank its part of a commit, and puts its own into *own.
static enum neb_status cut_carried(struct site *s, int32_t f, const struct neb_buf *b,
                                   struct neb_buf *own) {
    char path[NEB_PATH_MAX];
    int32_t units;
    const int32_t *owner = agent_shards_owners(s->shards, &units);
    for (int r = s->ranks - 1; r >= 0; r--) {
        neb_buf_clear(own);
        NEB_TRY(cmp_update_cut(b->p, b->len, owner, (uint32_t)units, r, own));
        part_path(s, "commit", f, r, path);
        if (r)
            NEB_TRY(neb_fs_write(path, own->p, own->len, 0600));
    }
    return NEB_OK;
}

// ---- rounds ----------------------------------------------------------------------------------

static void no_counts(void *user, int32_t unit, uint64_t *out) {
    (void)user, (void)unit, (void)out;
}

static enum neb_status encode(struct site *s, int32_t f, struct neb_buf *b) {
    struct cmp_codec codec;
    uint8_t sha[NEB_SHA256_BYTES];
    char hex[2 * NEB_SHA256_BYTES + 1];
    float error;
    NEB_TRY(cmp_codec_parse(s->o->codec, &codec));
    NEB_TRY(agent_shards_encode(s->shards, f, 0, &codec, no_counts, NULL, &error, b));
    if (s->o->carry)
        NEB_TRY(join_carried(s, f, b));
    neb_sha256(b->p, b->len, sha);
    neb_hex(sha, sizeof sha, hex);
    printf("%d %s %zu %.7g\n", f, hex, b->len, (double)error);
    return NEB_OK;
}

static enum neb_status merge(struct site *s, int32_t f, int round, const struct neb_buf *b) {
    struct neb_buf own = {0};
    if (s->o->carry)
        NEB_TRY(cut_carried(s, f, b, &own));
    b = s->o->carry ? &own : b;
    const struct inter_outer_part parts[COMMITTED] = {{b->p, b->len, 3000, 1, true, 0},
                                                      {b->p, b->len, 1000, 0.5f, false, 0}};
    struct inter_outer_round r = {parts, round % 5 == 3 ? 0 : COMMITTED, 0.8f, 0.6f, false, false,
                                  NULL};
    agent_shards_expect(s->shards, &(struct agent_shards_commit){.index = {0, 1}});
    struct kern_digest d;
    NEB_TRY(agent_shards_merge(s->shards, f, round % 5 == 4, &r, &d));
    neb_buf_free(&own);
    printf("%d %d: %016llx%016llx\n", round, f, (unsigned long long)d.lo, (unsigned long long)d.hi);
    return NEB_OK;
}

static enum neb_status step(struct site *s, int64_t time, float size) {
    NEB_TRY(call(s, CALL_TRAIN));
    return train(s, time, size);
}

static enum neb_status rounds(struct site *s) {
    struct neb_buf b[FRAGMENTS] = {{0}};
    struct kern_digest d;
    enum neb_status st = NEB_OK;
    for (int i = s->o->first; i < s->o->first + s->o->rounds && st == NEB_OK; i++) {
        int32_t f = i % FRAGMENTS;
        NEB_TRY_GOTO(step(s, 2 * i, 0.01f), out);
        NEB_TRY_GOTO(encode(s, f, &b[f]), out);
        NEB_TRY_GOTO(step(s, 2 * i + 1, 0.001f), out);
        st = merge(s, f, i, &b[f]);
    }
    NEB_TRY_GOTO(agent_shards_digest(s->shards, -1, &d), out);
    printf("exchange %016llx%016llx\n", (unsigned long long)d.lo, (unsigned long long)d.hi);
    for (int32_t f = 0; f < FRAGMENTS && s->o->save; f++)
        NEB_TRY_GOTO(encode(s, f, &b[f]), out);
    if (s->o->save)
        NEB_TRY_GOTO(call(s, CALL_SAVE), out);
    if (s->o->save)
        st = save(s);
out:
    for (int32_t f = 0; f < FRAGMENTS; f++)
        neb_buf_free(&b[f]);
    return st;
}

// ---- set-up ----------------------------------------------------------------------------------

static enum neb_status prepare(struct site *s) {
    static const struct agent_trainer_ops ops = {
        .read = read_units, .write = write_units, .call = call};
    size_t most = 0;
    NEB_TRY(exchange_manifest_create(tensors, sizeof tensors / sizeof *tensors, &s->manifest));
    NEB_TRY(exchange_manifest_units(s->manifest, 0, &s->units, &s->n));
    s->place = calloc((size_t)s->n, sizeof *s->place);
    s->at = calloc((size_t)s->n, sizeof *s->at);
    NEB_ASSERT(s->place && s->at);
    for (int32_t i = 0; i < s->n; i++) {
        size_t n = agent_unit_size(&s->units[i]);
        s->place[i] = s->elements;
        s->elements += n;
        most = n > most ? n : most;
    }
    for (int32_t i = 0; i < s->n; i++) {
        size_t n = agent_unit_size(&s->units[i]);
        struct holding h = holding(s, i, s->rank);
        NEB_ASSERT(s->at[i] = calloc(n, sizeof **s->at));
        for (size_t k = 0; k < n; k++)
            s->at[i][k] = NAN;
        EACH_HELD(h, k) { s->at[i][k] = (float)(k % 17) * 0.03f; }
    }
    NEB_ASSERT(s->packed = malloc(most * sizeof *s->packed));
    s->trainer = (struct agent_trainer){.ops = &ops,
                                        .user = s,
                                        .units = s->units,
                                        .n_units = s->n,
                                        .held = held,
                                        .pool = s->K->pool,
                                        .world = s->world,
                                        .carrier_ops = s->o->carry ? &carrier : NULL,
                                        .carrier = s,
                                        .wave = (uint64_t)s->o->wave};
    return NEB_OK;
}

// The experts stay at home; fragments take whole tensors.
static enum neb_status create(struct site *s) {
    const struct inter_outer_config c = {
        .beta = 0.9f, .keep = 0.4f, .kappa = 0.1f, .fragments = FRAGMENTS};
    int32_t *fragment = calloc((size_t)s->n, sizeof *fragment);
    NEB_ASSERT(fragment);
    for (int32_t i = 0; i < s->n; i++)
        fragment[i] = !strcmp(s->units[i].tensor, "experts") ? -1 : s->units[i].group >= 3;
    enum neb_status st = agent_shards_create(&s->trainer, &c, fragment, false, &s->shards);
    free(fragment);
    return st;
}

static enum neb_status serve(struct site *s) {
    for (int32_t n = 0;;) {
        NEB_TRY(s->world->ops->broadcast(s->world, &n, sizeof n, 0));
        switch (n) {
        case CALL_END: return NEB_OK;
        case CALL_TRAIN: NEB_TRY(train(s, 0, 0)); break;
        case CALL_SAVE: NEB_TRY(save(s)); break;
        case CALL_LOAD: NEB_TRY(load(s)); break;
        default: NEB_TRY(agent_shards_follow(&s->trainer, n, &s->shards));
        }
    }
}

static enum neb_status lead(struct site *s) {
    NEB_TRY(create(s));
    if (s->o->load)
        NEB_TRY(call(s, CALL_LOAD));
    if (s->o->load)
        NEB_TRY(load(s));
    NEB_TRY(rounds(s));
    return call(s, CALL_END);
}

static void say_share(const struct site *s) {
    uint64_t own = 0, all = 0;
    for (int32_t i = 0; i < s->n; i++)
        all += strcmp(s->units[i].tensor, "experts") ? agent_unit_size(&s->units[i]) : 0;
    own = agent_shards_elements(s->shards);
    fprintf(stderr, "rank %d owns %llu of %llu, %llu bytes\n", s->rank, (unsigned long long)own,
            (unsigned long long)all, (unsigned long long)agent_shards_bytes(s->shards));
}

static void destroy(struct site *s) {
    agent_shards_destroy(&s->shards);
    exchange_manifest_destroy(&s->manifest);
    for (int32_t i = 0; s->at && i < s->n; i++)
        free(s->at[i]);
    free(s->at);
    free(s->units);
    free(s->place);
    free(s->packed);
}

static enum neb_status run(const void *options, struct intra_comm *world, struct kern *K,
                           struct kern *D) {
    struct site s = {.o = options,
                     .world = world,
                     .K = K,
                     .rank = world ? world->rank : 0,
                     .ranks = world ? world->size : 1};
    (void)D;
    enum neb_status st = prepare(&s);
    if (st == NEB_OK)
        st = s.rank ? serve(&s) : lead(&s);
    if (st == NEB_OK)
        say_share(&s);
    destroy(&s);
    return st;
}

int main(int argc, char **argv) {
    struct options o = {.rounds = 8, .hold = "rows", .codec = "int8"};
    const struct mesh_option all[] = {
        {.key = "first", .number = &o.first}, {.key = "rounds", .number = &o.rounds},
        {.key = "hold", .text = &o.hold},     {.key = "codec", .text = &o.codec},
        {.key = "save", .text = &o.save},     {.key = "load", .text = &o.load},
        {.key = "carry", .text = &o.carry},   {.key = "wave", .number = &o.wave}};
    if (!mesh_options(argc, argv, &o.mesh, all, sizeof all / sizeof *all))
        return 2;
    return mesh_main(&o.mesh, NULL, false, run, &o);
}
