// SPDX-License-Identifier: Apache-2.0
#include "intra/train/group.h"
#include "agent/base/clock.h"
#include "agent/base/log.h"
#include "intra/train/full.h"
#include "intra/train/step.h"
#include "intra/train/trainer_full.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum order {
    ORDER_END,
    ORDER_STEP,
    ORDER_PASS,
    ORDER_EVAL,
    ORDER_SAVE,
    ORDER_RESTORE,
    ORDER_PULL,
    ORDER_PUSH,
    ORDER_SKIP,
    ORDER_MODEL,
    ORDER_CALL,
    ORDER_CACHE
};

enum {
    // above every tensor's tag (full.c), and in the range that every MPI supports
    ORDER_TAG = 32000,
    RESULT_TAG = 32009,
    SPIN_MS = 5, // how long a rank polls before it sleeps
    // A collective between devices waits for the slowest rank, whose first step may load kernels.
    DEVICE_TIMEOUT_MS = 300000,
};

// sent to each rank before an action; a raw struct, since all ranks run the same build
struct message {
    int64_t order, n;
};

// sent after its size: another build has another size, and size 0 means that no group is made
struct hello {
    struct intra_mesh_config mesh;
    struct intra_trainer_config trainer; // pointers in it are valid on rank 0 only
    bool device;
};

struct intra_group {
    struct intra_comm *world; // NULL: one rank
    struct intra_mesh *mesh;
    // With devices: this rank's device (NULL if the caller owns it), the communicator of all ranks
    // over NCCL, and the mesh over NCCL.
    struct kern *device;
    struct intra_comm *nccl;
    struct intra_mesh *device_mesh;
    bool gives_up; // some rank will not complete the device collectives in flight
    struct intra_trainer *trainer;
    struct intra_model *model;
    struct intra_step step;
    // The caller's micro-batches in a step, and how many came so far; sequences in one.
    int32_t micros, added, batch;
    // How steps and passes are cut (intra_step_cut). Replicas have room for whole micro-batches
    // only if dp divides their number in a step.
    int32_t cut, pass_cut;
    bool passing; // passes without learning are being added
    bool *wanted; // (n_all_tensors)
    const struct intra_group_follower *follower;
};

static enum neb_status spread(struct intra_group *m, void *x, size_t bytes) {
    return m->world->ops->broadcast(m->world, x, bytes, 0);
}

// Point-to-point messages, not a broadcast: a rank can sleep while it waits for a message.
static enum neb_status give(struct intra_group *m, enum order order, int64_t n) {
    const struct intra_comm_ops *ops = m->world->ops;
    struct message x = {(int64_t)order, n};
    for (int to = 1; to < m->world->size; to++) {
        struct intra_comm_send s = {0};
        NEB_TRY(ops->send(m->world, &x, sizeof x, to, ORDER_TAG, &s));
        NEB_TRY(ops->wait(m->world, &s));
    }
    return NEB_OK;
}

// Waits for the next order. Within a step it comes at once, so the rank polls first. When rank 0
// waits for other clusters it may take an hour, so the rank then sleeps.
static enum neb_status take_order(struct intra_group *m, struct message *x) {
    const struct intra_comm_ops *ops = m->world->ops;
    neb_ns start = neb_now();
    for (bool ready = !ops->poll; !ready;) {
        NEB_TRY(ops->poll(m->world, 0, ORDER_TAG, &ready));
        if (ready)
            break;
        if (neb_now() - start > SPIN_MS * NEB_MS)
            neb_sleep(200 * NEB_US);
        else
            sched_yield();
    }
    return ops->recv(m->world, x, sizeof *x, 0, ORDER_TAG);
}

// ---- what all ranks do together -----------------------------------------------------------------

// Gives rank 0 the results of all picks.
static enum neb_status collect(struct intra_group *m) {
    const struct intra_comm_ops *ops = m->world->ops;
    const struct intra_mesh_config *c = &m->mesh->c;
    for (int32_t r = 0; r < c->dp; r++) {
        size_t bytes = intra_step_result_bytes(&m->step, r);
        int from = intra_mesh_rank(c, r, c->pp - 1, 0);
        struct intra_comm_send s = {0};
        if (!bytes)
            continue;
        if (m->world->rank == from) {
            NEB_TRY(intra_step_pack(&m->step));
            NEB_ASSERT(m->step.results.len == bytes);
            if (from) {
                NEB_TRY(ops->send(m->world, m->step.results.p, bytes, 0, RESULT_TAG, &s));
                NEB_TRY(ops->wait(m->world, &s));
            }
        } else if (m->world->rank == 0) {
            neb_buf_clear(&m->step.results);
            if (!neb_buf_grow(&m->step.results, bytes))
                return neb_fail(NEB_ERR_NOMEM, "out of memory for the results of a step");
            NEB_TRY(ops->recv(m->world, m->step.results.p, bytes, from, RESULT_TAG));
        }
        if (m->world->rank == 0)
            intra_step_take(&m->step, r, m->step.results.p);
    }
    return NEB_OK;
}

// All ranks get the step, cut it alike, and run the pieces of their replica.
static enum neb_status run_pieces(struct intra_group *m, bool learns) {
    struct intra_trainer *t = m->trainer;
    NEB_TRY(spread(m, m->step.bytes.p, m->step.bytes.len));
    NEB_TRY(intra_step_cut(&m->step, intra_mesh_dp(m->mesh), intra_mesh_dp_rank(m->mesh),
                           learns ? m->cut : m->pass_cut, learns));
    for (int32_t i = 0; i < m->step.n_pieces; i++) {
        const struct intra_step_piece *x = &m->step.pieces[i];
        const struct intra_picks *picks = x->picks.n ? &x->picks : NULL;
        if (learns)
            intra_trainer_micro_batch(t, &x->b, picks);
        else
            intra_trainer_eval_batch(t, &x->b, picks);
    }
    if (learns)
        intra_trainer_run(t);
    return t->model->failed == NEB_OK ? collect(m) : t->model->failed;
}

static enum neb_status do_step(struct intra_group *m, struct intra_step_stats *out) {
    NEB_TRY(run_pieces(m, true));
    intra_trainer_update(m->trainer, out);
    return out->status;
}

static enum neb_status do_pass(struct intra_group *m, double *loss, int64_t *count) {
    intra_trainer_eval_begin(m->trainer);
    NEB_TRY(run_pieces(m, false));
    return intra_trainer_eval_end(m->trainer, loss, count);
}

// tokens, targets: (n, seq_len); rank 0's input, buffers on the other ranks.
static enum neb_status do_eval(struct intra_group *m, int32_t *tokens, int32_t *targets, int n,
                               double *loss) {
    size_t bytes = (size_t)n * (size_t)m->trainer->c.seq_len * sizeof *tokens;
    NEB_TRY(spread(m, tokens, bytes));
    NEB_TRY(spread(m, targets, bytes));
    *loss = intra_trainer_eval(m->trainer, tokens, targets, n);
    return m->trainer->model->failed;
}

enum { LONGEST_BITS = 32 }; // of the number in ORDER_CACHE; the slots are above

static enum neb_status do_cache(struct intra_group *m, int64_t n) {
    enum neb_status st =
        intra_trainer_cache(m->trainer, (int32_t)(n >> LONGEST_BITS), (int32_t)(n & UINT32_MAX));
    return m->world ? intra_full_agree(m->mesh, st) : st;
}

static enum neb_status do_move(struct intra_group *m, bool pull) {
    struct intra_model *part = m->trainer->model, *whole = m->trainer->whole;
    NEB_TRY(spread(m, m->wanted, (size_t)part->n_all_tensors * sizeof *m->wanted));
    if (pull && intra_mesh_dp_rank(m->mesh) == 0) // only replica 0's parameters are gathered
        NEB_TRY(intra_trainer_pull(m->trainer, m->wanted));
    for (int32_t i = 0; i < whole->n_tensors; i++) {
        const struct intra_tensor *t = &whole->tensors[i];
        float *x = whole->params ? intra_param(whole, t) : NULL;
        if (!m->wanted[t->index])
            continue;
        NEB_TRY(pull ? intra_full_gather(part, t, INTRA_ARENA_PARAMS, part->params, x)
                     : intra_full_scatter(part, t, INTRA_ARENA_PARAMS, x, part->params));
    }
    return pull ? NEB_OK : intra_trainer_push(m->trainer, m->wanted);
}

// ---- making and ending a group ------------------------------------------------------------------

static enum neb_status make_room(struct intra_group *m) {
    struct intra_model *part = m->trainer->model;
    m->wanted = calloc((size_t)part->n_all_tensors, sizeof *m->wanted);
    if (!m->wanted)
        return neb_fail(NEB_ERR_NOMEM, "out of memory listing tensors");
    m->model = m->trainer->whole;
    return NEB_OK;
}

static enum neb_status check_hello(const struct hello *h) {
    const struct intra_trainer_config *c = &h->trainer;
    if (c->accumulate < 1 || c->batch < 1 || h->mesh.dp < 1 ||
        (int64_t)c->accumulate * c->batch > INT32_MAX ||
        !intra_mesh_batch(c->accumulate * c->batch, c->batch, h->mesh.dp))
        return neb_fail(NEB_ERR_INVALID,
                        "mesh.dp: %d does not divide the sequences of a step, data.batch %d x "
                        "data.accumulate %d: the replicas get equal shares",
                        h->mesh.dp, c->batch, c->accumulate);
    return intra_mesh_check(&h->mesh, &h->trainer.model);
}

struct lack { // why a rank cannot take part, with or without its device; NEB_OK: it can
    int32_t status, rank;
    char why[KERN_WHY_MAX];
};

// Afterwards all ranks hold the same *x: that of the first rank that lacks something. The returned
// status is about the communicator only.
static enum neb_status share_lack(struct intra_group *m, struct lack *x) {
    const struct intra_comm *world = m->world;
    uint64_t first = x->status ? (uint64_t)(world->size - world->rank) : 0;
    NEB_TRY(world->ops->all_reduce(m->world, &first, 1, INTRA_COMM_U64, INTRA_COMM_MAX));
    if (!first)
        return NEB_OK;
    x->rank = world->rank;
    return world->ops->broadcast(m->world, x, sizeof *x, world->size - (int)first);
}

// Opens this rank's device (on rank 0 the caller did) and joins the devices of all ranks.
static enum neb_status join_devices(struct intra_group *m, const struct hello *h,
                                    struct intra_trainer_config *c, struct lack *lack) {
    int index = 0;
    if (!intra_mesh_is_root(m->mesh)) {
        enum neb_status st = kern_device_index(true, &index);
        if (st != NEB_OK)
            neb_last_error(lack->why, sizeof lack->why);
        else
            st = kern_device_open(index, lack->why, &m->device);
        lack->status = (int32_t)st;
        c->device = m->device;
    }
    NEB_TRY(share_lack(m, lack));
    if (lack->status)
        return NEB_OK;
    // the minimum over the ranks, computed as the maximum of complements
    uint64_t least = ~(uint64_t)c->device->total_bytes;
    NEB_TRY(m->world->ops->all_reduce(m->world, &least, 1, INTRA_COMM_U64, INTRA_COMM_MAX));
    c->device_least = (size_t)~least;
    lack->status =
        (int32_t)intra_comm_nccl(m->world, c->device->index, DEVICE_TIMEOUT_MS, &m->nccl);
    if (lack->status)
        neb_last_error(lack->why, sizeof lack->why);
    NEB_TRY(share_lack(m, lack));
    if (lack->status)
        return NEB_OK;
    NEB_TRY(intra_mesh_create(&h->mesh, m->nccl, &m->device_mesh));
    c->device_mesh = m->device_mesh;
    return NEB_OK;
}

// Gives every rank a device, or none.
static enum neb_status take_devices(struct intra_group *m, const struct hello *h,
                                    struct intra_trainer_config *c) {
    struct lack lack = {0};
    bool owner = intra_mesh_is_root(m->mesh);
    NEB_TRY(join_devices(m, h, c, &lack));
    if (!lack.status)
        return NEB_OK;
    if (!c->device_optional || lack.status == NEB_ERR_NOMEM) {
        // Every rank knows the reason and ends. NEB_ERR_IO would mean a lost rank, and the caller
        // would restart the ranks.
        enum neb_status st =
            lack.status == NEB_ERR_IO ? NEB_ERR_UNSUPPORTED : (enum neb_status)lack.status;
        return owner ? neb_fail(st, "rank %d: %s. Set `device: cpu` to train without a GPU",
                                (int)lack.rank, lack.why)
                     : st;
    }
    if (owner) // a device that is present but fails deserves a warning
        neb_log(lack.status == NEB_ERR_IO ? NEB_LOG_WARN : NEB_LOG_INFO,
                "training on the CPU, because not every rank has a device: rank %d: %s",
                (int)lack.rank, lack.why);
    // A rank may have made a communicator that other ranks never joined.
    if (m->nccl && m->nccl->ops->abort)
        m->nccl->ops->abort(m->nccl);
    intra_comm_destroy(&m->nccl);
    kern_destroy(&m->device);
    c->device = NULL;
    c->device_type = KERN_F32;
    return NEB_OK;
}

// Either all ranks have a trainer, or none continues. Rank 0 reports to the user, so it names what
// another rank lacks.
static enum neb_status share_trainer(struct intra_group *m, enum neb_status st) {
    struct lack lack = {0};
    if (st == NEB_OK)
        st = make_room(m);
    if (st != NEB_OK)
        neb_last_error(lack.why, sizeof lack.why);
    lack.status = (int32_t)st;
    NEB_TRY(share_lack(m, &lack));
    if (lack.status && lack.rank != 0 && intra_mesh_is_root(m->mesh))
        return neb_fail((enum neb_status)lack.status, "rank %d: %s", (int)lack.rank, lack.why);
    return (enum neb_status)lack.status;
}

// Builds this rank's part of the group. All ranks have the same h, which rank 0 has checked.
static enum neb_status join(struct intra_group *m, const struct hello *h, struct kern *K) {
    struct intra_trainer_config c = h->trainer;
    int32_t sequences = c.accumulate * c.batch, dp = h->mesh.dp;
    m->micros = c.accumulate;
    m->batch = c.batch;
    m->cut = m->pass_cut = c.accumulate % dp ? INTRA_STEP_PARTS : INTRA_STEP_WHOLE;
    if (c.varied && m->cut == INTRA_STEP_PARTS) {
        c.batch = c.batch / dp + 1; // a part may have one sequence more than the others
    } else {
        c.batch = intra_mesh_batch(sequences, c.batch, dp);
        c.accumulate = sequences / c.batch / dp;
        m->cut = m->cut == INTRA_STEP_PARTS ? c.batch : INTRA_STEP_WHOLE;
    }
    NEB_TRY(intra_mesh_create(&h->mesh, m->world, &m->mesh));
    c.mesh = m->mesh;
    if (h->device)
        NEB_TRY(take_devices(m, h, &c));
    return share_trainer(m, intra_trainer_create(&c, K, &m->trainer));
}

static void free_group(struct intra_group **mp) {
    struct intra_group *m = *mp;
    if (!m)
        return;
    intra_step_free(&m->step);
    free(m->wanted);
    bool failed = m->gives_up || (m->trainer && m->trainer->model->failed != NEB_OK);
    if (m->nccl && failed) {
        // The other ranks may never complete the collectives of their communicators.
        if (m->device_mesh)
            intra_mesh_abort(m->device_mesh);
        if (m->nccl->ops->abort)
            m->nccl->ops->abort(m->nccl);
    }
    intra_trainer_destroy(&m->trainer);
    intra_mesh_destroy(&m->device_mesh);
    intra_comm_destroy(&m->nccl);
    kern_destroy(&m->device);
    intra_mesh_destroy(&m->mesh);
    free(m);
    *mp = NULL;
}

bool intra_group_lost(const struct intra_group *m) {
    return m && m->nccl && m->nccl->ops->lost(m->nccl);
}

enum neb_status intra_group_create(const struct intra_trainer_config *c,
                                   const struct intra_mesh_config *mesh, struct intra_comm *world,
                                   struct kern *K, struct intra_group **out) {
    enum neb_status st = NEB_OK;
    struct intra_group *m = calloc(1, sizeof *m);
    struct hello h = {.mesh = *mesh, .trainer = *c, .device = c->device};
    if (!m)
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating a trainer");
    m->world = world;
    h.trainer.mesh = h.trainer.device_mesh = NULL;
    if (!world) {
        NEB_TRY_GOTO(intra_trainer_create(&h.trainer, K, &m->trainer), fail);
        m->model = m->trainer->model;
        *out = m;
        return NEB_OK;
    }
    st = check_hello(&h);
    uint64_t bytes = st == NEB_OK ? sizeof h : 0;
    enum neb_status told = spread(m, &bytes, sizeof bytes);
    st = st != NEB_OK ? st : told;
    if (st == NEB_OK)
        st = spread(m, &h, sizeof h);
    if (st == NEB_OK)
        st = join(m, &h, K);
    if (st == NEB_OK) {
        *out = m;
        return NEB_OK;
    }
fail:
    m->gives_up = true;
    free_group(&m);
    return st;
}

void intra_group_destroy(struct intra_group **mp) {
    struct intra_group *m = *mp;
    if (m && m->world && m->trainer->model->failed == NEB_OK)
        intra_model_keep_failure(m->trainer->model, give(m, ORDER_END, 0));
    free_group(mp);
}

// ---- the other ranks ----------------------------------------------------------------------------

static enum neb_status follow_eval(struct intra_group *m, int n) {
    size_t tokens = (size_t)n * (size_t)m->trainer->c.seq_len;
    int32_t *x = malloc(tokens * sizeof *x), *y = malloc(tokens * sizeof *y);
    double loss;
    enum neb_status st =
        x && y ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory evaluating %d windows", n);
    st = intra_full_agree(m->mesh, st);
    if (st == NEB_OK)
        st = do_eval(m, x, y, n, &loss);
    free(x);
    free(y);
    return st;
}

// Room for the bytes of rank 0's step.
static enum neb_status make_step(struct intra_group *m, int64_t bytes) {
    intra_step_begin(&m->step);
    return neb_buf_grow(&m->step.bytes, (size_t)bytes)
               ? NEB_OK
               : neb_fail(NEB_ERR_NOMEM, "out of memory for a step of %lld bytes",
                          (long long)bytes);
}

static enum neb_status follow_step(struct intra_group *m, const struct message *x) {
    struct intra_step_stats stats;
    double loss;
    int64_t count;
    NEB_TRY(make_step(m, x->n));
    return x->order == ORDER_STEP ? do_step(m, &stats) : do_pass(m, &loss, &count);
}

static enum neb_status follow_order(struct intra_group *m, bool *end) {
    struct message x;
    NEB_TRY(take_order(m, &x));
    *end = x.order == ORDER_END;
    switch ((enum order)x.order) {
    case ORDER_END: return NEB_OK;
    case ORDER_STEP:
    case ORDER_PASS: return follow_step(m, &x);
    case ORDER_EVAL: return follow_eval(m, (int)x.n);
    case ORDER_SAVE: (void)!intra_trainer_save(m->trainer, NULL); return m->trainer->model->failed;
    case ORDER_RESTORE: return intra_trainer_restore(m->trainer, NULL);
    case ORDER_PULL: return do_move(m, true);
    case ORDER_PUSH: return do_move(m, false);
    case ORDER_SKIP: intra_optim_skip(m->trainer->optim, x.n); return NEB_OK;
    case ORDER_MODEL: return intra_trainer_save_model(m->trainer, NULL);
    case ORDER_CACHE: return do_cache(m, x.n);
    case ORDER_CALL:
        if (m->follower)
            return m->follower->called(m->follower->user, m, (int32_t)x.n);
        break;
    }
    return neb_fail(NEB_ERR_STATE, "unknown order %d from rank 0", (int)x.order);
}

enum neb_status intra_group_serve(struct intra_comm *world, struct kern *K,
                                  const struct intra_group_follower *follower) {
    struct hello h = {0};
    struct intra_group *m = calloc(1, sizeof *m);
    if (!m)
        return neb_fail(NEB_ERR_NOMEM, "out of memory joining a process group");
    m->world = world;
    m->follower = follower;
    uint64_t bytes = 0;
    enum neb_status st = spread(m, &bytes, sizeof bytes);
    bool end = bytes == 0; // rank 0 cannot use its configuration, and logs why
    if (st == NEB_OK && !end)
        st =
            bytes == sizeof h
                ? spread(m, &h, sizeof h)
                : neb_fail(
                      NEB_ERR_UNSUPPORTED,
                      "rank %d runs another build than rank 0: start the same program on all ranks",
                      world->rank);
    if (st == NEB_OK && !end)
        st = join(m, &h, K);
    while (st == NEB_OK && !end)
        st = follow_order(m, &end);
    if (follower)
        follower->end(follower->user);
    m->gives_up = st != NEB_OK;
    free_group(&m);
    return st;
}

// ---- rank 0 -------------------------------------------------------------------------------------

struct intra_trainer *intra_group_trainer(struct intra_group *m) {
    return m->trainer;
}
struct intra_model *intra_group_model(struct intra_group *m) {
    return m->model;
}
void intra_group_release(struct intra_group *m) {
    if (m->world)
        intra_model_release(m->model);
}
struct intra_comm *intra_group_world(struct intra_group *m) {
    return m->world;
}
enum neb_status intra_group_call(struct intra_group *m, int32_t n) {
    return m->world ? give(m, ORDER_CALL, n) : NEB_OK;
}
struct kern *intra_group_device(const struct intra_group *m) {
    return m->trainer->c.device;
}

// Rank 0 keeps a micro-batch until all ranks run it.
static void add(struct intra_group *m, const struct intra_batch *b,
                const struct intra_picks *picks) {
    if (!m->added)
        intra_step_begin(&m->step);
    m->added++;
    intra_model_keep_failure(m->trainer->model, intra_step_add(&m->step, b, picks));
}

void intra_group_micro(struct intra_group *m, const int32_t *tokens, const int32_t *targets) {
    if (!m->world) {
        intra_trainer_micro(m->trainer, tokens, targets);
        return;
    }
    struct intra_batch b = {
        .tokens = tokens, .targets = targets, .B = m->batch, .T = m->trainer->c.seq_len};
    add(m, &b, NULL);
    intra_trainer_count(m->trainer, tokens, targets, b.B * b.T); // rank 0 counts for all ranks
}

void intra_group_micro_batch(struct intra_group *m, const struct intra_batch *b,
                             const struct intra_picks *picks) {
    NEB_ASSERT(!m->passing);
    if (m->world)
        add(m, b, picks);
    else
        intra_trainer_micro_batch(m->trainer, b, picks);
}

enum neb_status intra_group_update(struct intra_group *m, struct intra_step_stats *out) {
    if (!m->world) {
        intra_trainer_update(m->trainer, out);
        return out->status;
    }
    NEB_ASSERT(m->added == m->micros);
    m->added = 0;
    NEB_TRY(m->trainer->model->failed);
    NEB_TRY(give(m, ORDER_STEP, (int64_t)m->step.bytes.len));
    return do_step(m, out);
}

void intra_group_pass(struct intra_group *m, const struct intra_batch *b,
                      const struct intra_picks *picks) {
    if (!m->passing && !m->world)
        intra_trainer_eval_begin(m->trainer);
    m->passing = true;
    if (m->world)
        add(m, b, picks);
    else
        intra_trainer_eval_batch(m->trainer, b, picks);
}

enum neb_status intra_group_passed(struct intra_group *m, double *loss, int64_t *count) {
    *loss = 0;
    *count = 0;
    if (!m->passing)
        return NEB_OK;
    m->passing = false;
    if (!m->world)
        return intra_trainer_eval_end(m->trainer, loss, count);
    m->added = 0;
    NEB_TRY(m->trainer->model->failed);
    NEB_TRY(give(m, ORDER_PASS, (int64_t)m->step.bytes.len));
    return do_pass(m, loss, count);
}

enum neb_status intra_group_cache(struct intra_group *m, int32_t slots, int32_t longest) {
    int64_t n = (int64_t)slots << LONGEST_BITS | longest;
    if (m->world)
        NEB_TRY(give(m, ORDER_CACHE, n));
    return do_cache(m, n);
}

enum neb_status intra_group_skip(struct intra_group *m, int64_t n) {
    if (m->world)
        NEB_TRY(give(m, ORDER_SKIP, n));
    intra_optim_skip(m->trainer->optim, n);
    return NEB_OK;
}

enum neb_status intra_group_eval(struct intra_group *m, const int32_t *tokens,
                                 const int32_t *targets, int n, double *loss) {
    if (!m->world) {
        *loss = intra_trainer_eval(m->trainer, tokens, targets, n);
        return m->trainer->model->failed;
    }
    NEB_TRY(give(m, ORDER_EVAL, n));
    NEB_TRY(intra_full_agree(m->mesh, NEB_OK));
    // the root of a broadcast only reads
    return do_eval(m, (int32_t *)tokens, (int32_t *)targets, n, loss);
}

enum neb_status intra_group_save(struct intra_group *m, struct intra_ckpt_writer *w) {
    if (m->world)
        NEB_TRY(give(m, ORDER_SAVE, 0));
    return intra_trainer_save(m->trainer, w);
}

enum neb_status intra_group_restore(struct intra_group *m, const struct intra_ckpt *c) {
    if (m->world)
        NEB_TRY(give(m, ORDER_RESTORE, 0));
    return intra_trainer_restore(m->trainer, c);
}

enum neb_status intra_group_save_model(struct intra_group *m, struct intra_ckpt_writer *w) {
    if (m->world)
        NEB_TRY(give(m, ORDER_MODEL, 0));
    return intra_trainer_save_model(m->trainer, w);
}

static enum neb_status move(struct intra_group *m, const bool *wanted, bool pull) {
    if (!m->world)
        return pull ? intra_trainer_pull(m->trainer, wanted)
                    : intra_trainer_push(m->trainer, wanted);
    NEB_ASSERT(pull || m->model->params);
    if (!m->model->params)
        NEB_TRY(intra_model_allocate(m->model, false));
    for (int32_t i = 0; i < m->trainer->model->n_all_tensors; i++)
        m->wanted[i] = !wanted || wanted[i];
    NEB_TRY(give(m, pull ? ORDER_PULL : ORDER_PUSH, 0));
    return do_move(m, pull);
}

enum neb_status intra_group_pull(struct intra_group *m, const bool *wanted) {
    return move(m, wanted, true);
}
enum neb_status intra_group_push(struct intra_group *m, const bool *wanted) {
    return move(m, wanted, false);
}
