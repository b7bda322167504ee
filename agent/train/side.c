// SPDX-License-Identifier: Apache-2.0
#include "agent/train/side.h"
#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "agent/job/sides.h"
#include "agent/train/follow.h"
#include "agent/train/side_check.h"

#include <math.h>

static const struct side_role *const roles[] = {&side_generator, &side_discriminator, &side_teacher,
                                                &side_student};

enum neb_status side_update(struct intra_group *group, struct side_figures *f,
                            struct intra_step_stats *stats) {
    NEB_TRY(intra_group_update(group, stats));
    (void)neb_fault("worker.step"); // a step that takes longer
    intra_loss_add(&f->loss_first, &f->loss_last, stats->loss);
    return NEB_OK;
}

static int64_t at(const struct agent_side *x) {
    return x->role->at ? x->role->at(x) : x->figures->step;
}

// Sets the worker's figures to those of this side.
static void show(struct agent_side *x) {
    struct agent_worker *w = x->w;
    w->x.step = x->figures->step;
    w->x.all_tokens = x->figures->tokens;
    w->x.loss_first = x->figures->loss_first;
    w->x.loss_last = x->figures->loss_last;
    w->x.train_s = x->figures->train_s;
    w->model = x->model;
}

static void say_step(struct agent_side *x) {
    const struct side_figures *f = x->figures;
    const struct exchange_figures shown = worker_figures(x->stats);
    show(x);
    exchange_check_step(&x->w->x, &shown);
    if (f->step == 1 || f->step % x->w->x.job.log_every == 0)
        exchange_send_step(&x->w->x, &shown, f->train_s > 0 ? (double)f->tokens / f->train_s : 0);
}

// ---- checkpoints --------------------------------------------------------------------------------

enum neb_status side_misfit(const struct intra_ckpt *c) {
    return neb_fail(NEB_ERR_FORMAT, "%s does not fit this job", intra_ckpt_path(c));
}

enum neb_status side_put_state(struct intra_ckpt_writer *w, const struct side_layout *l,
                               enum agent_role role, const void *state) {
    struct neb_buf b = {0};
    if (l->version)
        neb_buf_u32(&b, l->version);
    neb_buf_u8(&b, (uint8_t)role);
    for (int i = 0; i < l->n; i++) {
        const void *x = (const char *)state + l->fields[i].at;
        switch (l->fields[i].kind) {
        case 'b': neb_buf_u8(&b, *(const bool *)x); break;
        case 'f': neb_buf_f64(&b, *(const double *)x); break;
        default: neb_buf_u64(&b, *(const uint64_t *)x); break;
        }
    }
    enum neb_status st = neb_buf_check(&b);
    if (st == NEB_OK)
        st = intra_ckpt_add(w, l->section, INTRA_BYTES, b.len, 1, b.p);
    neb_buf_free(&b);
    return st;
}

enum neb_status side_get_state(const struct intra_ckpt *c, const struct side_layout *l,
                               enum agent_role role, void *state) {
    const struct intra_ckpt_section *section = intra_ckpt_find(c, l->section);
    if (!section)
        return neb_fail(NEB_ERR_FORMAT, "%s is not a checkpoint of mode %s", intra_ckpt_path(c),
                        l->mode);
    const void *bytes = intra_ckpt_data(c, section);
    if (!bytes)
        return NEB_ERR_IO;
    struct neb_rd r = neb_rd_make(bytes, section->bytes);
    if ((l->version && neb_rd_u32(&r) != l->version) || neb_rd_u8(&r) != role)
        return side_misfit(c);
    for (int i = 0; i < l->n; i++) {
        void *x = (char *)state + l->fields[i].at;
        switch (l->fields[i].kind) {
        case 'b': *(bool *)x = neb_rd_u8(&r) == 1; break;
        case 'f': *(double *)x = neb_rd_f64(&r); break;
        default: *(uint64_t *)x = neb_rd_u64(&r); break;
        }
    }
    return neb_rd_done(&r) ? NEB_OK : side_misfit(c);
}

static struct agent_side *owner(void *user) { return ((struct worker_tensors *)user)->owner; }

static enum neb_status write_state(void *user, struct intra_ckpt_writer *out) {
    const struct agent_side *x = owner(user);
    NEB_TRY(worker_text_save(x->w, out));
    return x->role->save(x, out);
}

static enum neb_status read_state(void *user, const struct intra_ckpt *c) {
    struct agent_side *x = owner(user);
    NEB_TRY(worker_text_compare(x->w, c));
    return x->role->restore(x, c);
}

// The checkpoint is on disk, so the producers' agents may forget what only older generations need.
static enum neb_status durable(void *user) {
    struct agent_side *x = owner(user);
    for (int32_t i = 0; i < x->n_streams; i++)
        if (!side_produces(x->streams[i]))
            NEB_TRY(agent_stream_saved(x->streams[i], x->cursors[i], x->w->x.job.checkpoint_keep,
                                       x->final));
    return NEB_OK;
}

static bool due(struct agent_side *x) {
    int32_t every = x->w->x.job.checkpoint_every;
    int64_t now = at(x);
    // events without a batch are skipped, and the event that is due may be one of them
    bool yes = every && now / every != x->looked / every;
    x->looked = now;
    for (int32_t i = 0; i < x->n_streams; i++)
        yes = yes || x->streams[i]->want_checkpoint;
    return yes && now != x->saved;
}

// Begins a checkpoint, which is written while training goes on (agent/exchange/save.c). Once it is
// on disk, the producers get credit. The reference has none: it starts over after a failure.
static enum neb_status save(struct agent_side *x, bool final) {
    if (x->reference)
        return NEB_OK;
    NEB_TRY(side_wait_stored(x));
    NEB_TRY(exchange_save_wait(&x->w->x)); // the previous one, with its cursors
    for (int32_t i = 0; i < x->n_streams; i++) {
        x->cursors[i] = x->streams[i]->next - (side_produces(x->streams[i]) ? 0 : x->again);
        x->streams[i]->want_checkpoint = false;
    }
    x->final = final;
    x->saved = at(x);
    return x->w->x.federated ? exchange_save(&x->w->x) : exchange_save_at(&x->w->x, x->saved);
}

static enum neb_status restore(struct agent_side *x) {
    struct agent_exchange *e = &x->w->x;
    struct intra_ckpt *c = NULL;
    if (e->federated)
        return exchange_resume(e);
    enum neb_status st = exchange_newest(e, &c);
    if (st == NEB_OK)
        st = read_state(&x->w->tensors, c);
    intra_ckpt_close(&c);
    if (st == NEB_OK)
        neb_info("going on from step %lld", (long long)at(x));
    return st == NEB_ERR_NOT_FOUND ? NEB_OK : st;
}

// ---- as the exchange calls it -------------------------------------------------------------------

static enum neb_status skip(void *user, int64_t n) {
    struct agent_side *x = owner(user);
    NEB_TRY(x->role->skip(x, n));
    return intra_group_skip(x->group, n);
}

static const struct agent_trainer_ops ops = {WORKER_TENSORS_OPS, .save = write_state,
                                             .restore = read_state, .skip = skip,
                                             .durable = durable};

enum neb_status side_trainer(struct agent_side *x, bool rounds) {
    struct agent_worker *w = x->w;
    if (rounds)
        NEB_TRY(worker_tensors_create(x->group, intra_group_trainer(x->group), &w->tensors));
    w->tensors.owner = x;
    w->x.trainer =
        rounds ? worker_tensors_trainer(&w->tensors, &ops)
               : (struct agent_trainer){.ops = &ops, .user = &w->tensors, .pool = w->K->pool};
    w->x.saves.trainer_only = !rounds;
    return NEB_OK;
}

// Rounds go on between the side's steps, as those of replicas (agent/exchange). A cluster of
// another role votes in them like a witness; it holds no updates.
static enum neb_status join_rounds(struct agent_side *x) {
    struct agent_worker *w = x->w;
    w->x.job.model = x->model->c;
    NEB_TRY(exchange_join(&w->x));
    worker_tensors_add_shards(&w->tensors, w->x.shards);
    return NEB_OK;
}

// ---- the loop -----------------------------------------------------------------------------------

static bool done(const struct agent_side *x) { return !x->to && x->role->done(x); }
static bool all_done(const struct agent_side *x) {
    return done(x) && (!x->second || done(x->second));
}

// Puts what was made, and waits for room. After a stop it waits only if what was made would be
// lost.
static enum neb_status put_made(struct agent_side *x) {
    while (x->to && !(x->w->x.stop && x->role->holds)) {
        enum neb_status st = agent_stream_put(x->to, x->made.p, x->made.len);
        if (st == NEB_OK)
            x->to = NULL;
        else if (st != NEB_ERR_AGAIN)
            return st;
        else
            NEB_TRY(side_wait(x));
    }
    return NEB_OK;
}

// One turn. *moved: there was something to do.
static enum neb_status turn(struct agent_side *x, bool *moved) {
    struct side_turn t = {0};
    NEB_TRY(put_made(x)); // from the checkpoint
    if (done(x) || x->to)
        return NEB_OK;
    NEB_TRY(x->role->take(x, &t));
    *moved |= t.next != SIDE_WAIT;
    if (t.next != SIDE_LEARN)
        return NEB_OK;
    exchange_heartbeat(&x->w->x, true, 1);
    neb_ns start = neb_now();
    NEB_TRY(x->role->learn(x, &t));
    x->to = t.to;
    if (t.stepped) {
        exchange_step_took(&x->w->x, neb_seconds(neb_now() - start));
        say_step(x);
    }
    if (t.from)
        NEB_TRY(agent_stream_applied(t.from));
    NEB_TRY(put_made(x));
    if (x->to) // a checkpoint implies that the agent has all batches before it
        return NEB_OK;
    bool now = t.save == SIDE_SAVE_NOW || (t.save == SIDE_SAVE_DUE && due(x));
    return now ? save(x, false) : NEB_OK;
}

static enum neb_status run_turns(struct agent_side *x) {
    while (!x->w->x.stop && !all_done(x)) {
        bool moved = false;
        NEB_TRY(exchange_drain(&x->w->x));
        NEB_TRY(turn(x, &moved));
        if (x->second)
            NEB_TRY(turn(x->second, &moved));
        if (!moved && !x->w->x.stop && !all_done(x))
            NEB_TRY(exchange_wait(&x->w->x));
    }
    return NEB_OK;
}

// ---- start and end ------------------------------------------------------------------------------

// Opens the cluster's corpus, and checks it against its digests: they are compared with the peer's.
// Opens the CPU, and the device if the cluster has one and the job uses it.
static enum neb_status set_place(struct agent_side *x) {
    struct agent_worker *w = x->w;
    const struct agent_cluster *c = &w->x.job.clusters[w->x.cluster];
    NEB_TRY(intra_corpus_open(agent_job_corpus(&w->x.job, w->x.cluster), true, &w->corpus));
    NEB_TRY(agent_side_corpus_fits(&w->x.job, w->x.cluster, w->corpus));
    NEB_TRY(kern_cpu_create(w->world ? w->threads : c->threads, &w->K));
    if (agent_job_takes_devices(&w->x.job))
        NEB_TRY(worker_device_open(w));
    bool bf16 = c->precision == AGENT_PRECISION_BF16;
    if (!w->device && bf16)
        NEB_TRY(kern_cpu_bf16(w->K));
    x->at = (struct intra_place){.K = w->K,
                                 .device = w->device,
                                 .type = w->device ? w->device_type
                                         : bf16    ? KERN_BF16
                                                   : KERN_F32,
                                 .device_optional = worker_device_optional(w),
                                 .graphs = (enum intra_graphs)c->cuda_graphs,
                                 .mesh = c->mesh,
                                 .world = w->world};
    return NEB_OK;
}

static enum neb_status create(struct agent_side *x) {
    struct agent_worker *w = x->w;
    struct kern *D = w->device;
    const struct agent_cluster *c = &w->x.job.clusters[w->x.cluster];
    if (w->world && w->world->size != agent_cluster_ranks(c))
        return neb_fail(NEB_ERR_STATE, "cluster %s has a mesh of %d ranks, but %d were started",
                        c->name, agent_cluster_ranks(c), w->world->size);
    enum neb_status st = x->role->create(x);
    // the device itself failed, not a file or a setting
    if (st != NEB_OK && D && D->ops->finish(D) != NEB_OK)
        st = worker_device_joined(w, st);
    NEB_TRY(st);
    worker_device_settle(w, x->group);
    if (w->world && w->x.vault)
        NEB_TRY(agent_follow_seal(x->group, w->x.vault)); // each rank seals what it writes
    if (w->world)
        neb_info("%d ranks: dp %d, pp %d, tp %d, %d threads each", w->world->size, c->mesh.dp,
                 c->mesh.pp, c->mesh.tp, kern_pool_threads(w->K->pool));
    if (x->second) {
        x->second->at = x->at;
        NEB_TRY(x->second->role->create(x->second));
    }
    return NEB_OK;
}

static enum neb_status set_up(struct agent_side *x) {
    struct agent_worker *w = x->w;
    w->x.link.on_event = side_event;
    w->x.link.on_event_user = x;
    NEB_TRY(set_place(x));
    NEB_TRY(create(x));
    w->x.federated = x->role->skip && agent_distill_federates(&w->x.job);
    NEB_TRY(side_trainer(x, w->x.federated));
    if (w->x.federated)
        NEB_TRY(join_rounds(x));
    if (!x->second)
        NEB_TRY(restore(x));
    x->looked = at(x);
    NEB_TRY(x->role->open(x));
    if (x->second)
        return NEB_OK;
    for (int32_t i = 0; i < x->n_streams; i++) // batches that are held
        w->x.saves.reserve += x->streams[i]->c.batch_bytes;
    NEB_TRY(exchange_save_start(&w->x));
    return exchange_announce(&w->x);
}

static enum neb_status results(struct agent_side *x, json_t **out) {
    double loss = NAN;
    char device[96];
    json_t *more = NULL;
    bool finished = x->role->done(x);
    exchange_heartbeat(&x->w->x, false, 0); // evaluation is no step
    NEB_TRY(x->role->report(x, finished, &loss, &more));
    show(x);
    x->w->x.payload_bytes = x->figures->batch_bytes; // updates of rounds are not part of it
    x->w->x.payload_params = 0;
    worker_device_name(x->w, device, sizeof device);
    enum neb_status st = worker_results(x->w, device, loss, finished, out);
    if (st == NEB_OK && json_object_update(*out, more) != 0) {
        json_decref(*out);
        st = neb_fail(NEB_ERR_NOMEM, "out of memory for the report");
    }
    json_decref(more);
    return st;
}

static enum neb_status report(struct agent_side *x) {
    json_t *first = NULL, *other = NULL, *more = NULL;
    const struct agent_side *second = x->second;
    NEB_TRY(results(x, &first));
    if (second && second->role->reports_as) {
        enum neb_status st = results(x->second, &other);
        if (st != NEB_OK) {
            json_decref(first);
            return st;
        }
        more = json_pack("{s:o}", second->role->reports_as, other);
    }
    return exchange_report(&x->w->x, first, more);
}

static enum neb_status write_model(struct agent_side *x, const char *file) {
    NEB_TRY(intra_group_pull(x->group, NULL)); // for the file, translations and the digest
    return x->role->done(x) ? worker_write_model(x->w, x->model, file) : NEB_OK;
}

static enum neb_status run(struct agent_side *x) {
    NEB_TRY(set_up(x));
    NEB_TRY(run_turns(x));
    if (at(x) != x->saved || x->role->done(x))
        NEB_TRY(save(x, x->role->done(x)));
    NEB_TRY(exchange_save_wait(&x->w->x));
    if (!x->second)
        NEB_TRY(side_wait_taken(x));
    NEB_TRY(write_model(x, "model.ckpt"));
    if (x->second)
        NEB_TRY(write_model(x->second, x->second->role->file));
    return report(x);
}

enum neb_status agent_side_run(struct agent_worker *w) {
    struct agent_side x = {.w = w, .saved = -1}, second = {.w = w, .saved = -1};
    enum agent_role is = w->x.job.clusters[w->x.cluster].role, other = AGENT_ROLE_DISCRIMINATOR;
    if (w->x.job.sync.scheme == AGENT_SCHEME_SYNCHRONOUS) {
        bool rtd = w->x.job.mode == AGENT_MODE_RTD;
        is = rtd ? AGENT_ROLE_GENERATOR : AGENT_ROLE_STUDENT;
        other = rtd ? AGENT_ROLE_DISCRIMINATOR : AGENT_ROLE_TEACHER;
        x.reference = second.reference = agent_job_role(&w->x.job, other) >= 0;
        x.second = x.reference ? &second : NULL;
    }
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        x.role = roles[i]->is == is ? roles[i] : x.role;
        second.role = roles[i]->is == other ? roles[i] : second.role;
    }
    enum neb_status st = x.role ? run(&x) : neb_fail(NEB_ERR_STATE, "this cluster has no side");
    w->lost = intra_group_lost(x.group);
    side_close(&x);
    second.role->destroy(&second);
    if (x.role)
        x.role->destroy(&x);
    neb_buf_free(&second.made);
    neb_buf_free(&x.made);
    return st;
}
