// SPDX-License-Identifier: Apache-2.0
// The fragments of a worker: what is sent, what comes back, and the merge.
#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "agent/exchange/worker.h"
#include "agent/job/update_size.h"
#include "intra/train/shards.h"

#include <stdlib.h>
#include <string.h>

static enum neb_status assign_fragments(const struct agent_worker *w, int32_t *fragment) {
    size_t n = (size_t)w->n_units;
    uint64_t *elements = calloc(n, sizeof *elements);
    int32_t *layer = calloc(n, sizeof *layer);
    enum neb_status st =
        elements && layer ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory for the exchange");
    for (size_t i = 0; i < n && st == NEB_OK; i++) {
        elements[i] = (uint64_t)w->units[i].rows * (uint64_t)w->units[i].cols;
        layer[i] = w->units[i].tensor->layer;
    }
    if (st == NEB_OK)
        intra_shards_fragments(elements, layer, w->n_units, w->job.model.n_layers,
                               w->job.sync.fragments, fragment);
    free(elements);
    free(layer);
    return st;
}

static enum neb_status counts_create(struct worker_counts *c, size_t V) {
    if (!(c->all = calloc(WORKER_COUNTS * V, sizeof *c->all)))
        return neb_fail(NEB_ERR_NOMEM, "out of memory for row counts");
    c->in_base = c->all;
    c->out_base = c->in_base + V;
    c->in_sent = c->out_base + V;
    c->out_sent = c->in_sent + V;
    return NEB_OK;
}

static enum neb_status choose_codecs(struct agent_worker *w) {
    uint64_t elements[INTER_FRAGMENTS_MAX] = {0}, units[INTER_FRAGMENTS_MAX] = {0};
    const struct intra_tensor *last = NULL;
    uint64_t tensor = 0, largest = 0;
    int32_t at = 0;
    for (int32_t i = 0; i < w->n_units; i++) {
        const struct intra_unit *u = &w->units[i];
        uint64_t n = (uint64_t)u->rows * (uint64_t)u->cols;
        tensor = (u->tensor == last ? tensor : 0) + n;
        last = u->tensor;
        largest = tensor > largest ? tensor : largest;
        elements[w->fragment[i]] += n;
        units[w->fragment[i]]++;
    }
    for (int32_t f = 0; f < w->job.sync.fragments; f++)
        at = elements[f] > elements[at] ? f : at;
    w->fragment_elements = elements[at];
    w->fragment_units = units[at];
    NEB_TRY(agent_update_fits(&w->job, elements[at], units[at], largest));
    NEB_TRY(cmp_codec_parse(w->job.sync.codec, &w->codec));
    w->merge_codec = w->codec;
    if (!cmp_codec_coarse(&w->codec))
        return NEB_OK;
    // a merge round carries much: it uses 8 bits if the message size allows it
    NEB_TRY(cmp_codec_parse("int8", &w->merge_codec));
    if (!agent_update_possible(&w->job, &w->merge_codec, elements[at], units[at]))
        w->merge_codec = w->codec;
    return NEB_OK;
}

enum neb_status worker_sync_create(struct agent_worker *w) {
    const struct agent_sync *s = &w->job.sync;
    enum neb_status st = NEB_OK;
    NEB_TRY(intra_units(w->model, &w->units, &w->n_units));
    int32_t *fragment = w->fragment = calloc((size_t)w->n_units, sizeof *fragment);
    w->wanted = calloc((size_t)w->model->n_all_tensors, sizeof *w->wanted);
    struct inter_outer_unit *units = calloc((size_t)w->n_units, sizeof *units);
    size_t V = (size_t)w->trainer->c.model.vocab;
    w->unit_counts = calloc((size_t)w->n_units, sizeof *w->unit_counts);
    if (!fragment || !units || !w->unit_counts || !w->wanted) {
        st = neb_fail(NEB_ERR_NOMEM, "out of memory for the exchange");
        goto out;
    }
    NEB_TRY_GOTO(assign_fragments(w, fragment), out);
    for (int32_t i = 0; i < w->n_units; i++) {
        const struct intra_unit *u = &w->units[i];
        bool rows = u->tensor->row_kind != INTRA_ROWS_NONE;
        if (rows && !(w->unit_counts[i] = calloc((size_t)u->rows, sizeof **w->unit_counts))) {
            st = neb_fail(NEB_ERR_NOMEM, "out of memory for row counts");
            goto out;
        }
        units[i] = (struct inter_outer_unit){(uint32_t)u->rows, (uint32_t)u->cols, rows,
                                             fragment[i], u->data};
    }
    struct inter_outer_config c = {
        .beta = s->error_feedback,
        .keep = s->blend > 0 ? 0 : s->anticipate / (float)agent_job_exchanging(&w->job),
        .blend = s->blend,
        .kappa = s->kappa,
        .row_weights = s->row_weights,
        .fragments = s->fragments,
        .robust = s->gate == AGENT_GATE_ROBUST};
    worker_masked_config(w, &c);
    NEB_TRY_GOTO(worker_outer_create(w, &c, units), out);
    NEB_TRY_GOTO(choose_codecs(w), out);
    worker_plan_start(w);
    w->schedule = (struct agent_schedule){.steps = w->job.steps,
                                          .interval = s->interval,
                                          .overlap = s->overlap,
                                          .fragments = s->fragments,
                                          .early_interval = s->early_interval,
                                          .early_steps = s->early_steps};
    for (int32_t f = 0; f < s->fragments; f++) {
        w->frags[f].send_step = w->kept[f].counted_miss = -1;
        NEB_TRY_GOTO(counts_create(&w->kept[f].counts, V), out);
    }
out:
    free(units);
    return st;
}

enum neb_status worker_send_shape(struct agent_worker *w) {
    json_t *fragments = json_array();
    char hex[2 * INTER_SHA_BYTES + 1];
    uint8_t sha[INTER_SHA_BYTES];
    for (int32_t f = 0; f < w->job.sync.fragments; f++) {
        uint64_t elements = worker_outer_shape(w, f, sha);
        neb_hex(sha, sizeof sha, hex);
        json_array_append_new(fragments,
                              json_pack("{s:I,s:s}", "elements", (json_int_t)elements, "sha", hex));
    }
    return agent_ipc_send(w->ipc, NULL,
                          json_pack("{s:s,s:I,s:o}", "op", "shape", "elements",
                                    (json_int_t)w->model->n_trainable, "fragments", fragments),
                          NULL, 0);
}

void worker_sync_destroy(struct agent_worker *w) {
    for (int f = 0; f < INTER_FRAGMENTS_MAX; f++) {
        free(w->kept[f].counts.all);
        neb_buf_free(&w->flight[f].blob);
        neb_buf_free(&w->flight[f].bytes);
    }
    for (int32_t i = 0; w->unit_counts && i < w->n_units; i++)
        free(w->unit_counts[i]);
    free(w->unit_counts);
    free(w->fragment);
    free(w->wanted);
    free(w->units);
    worker_outer_destroy(w);
    sec_sum_destroy(&w->sum);
}

static void copy_counts(const struct agent_worker *w, uint64_t *in, uint64_t *out) {
    size_t V = (size_t)w->trainer->c.model.vocab;
    memcpy(in, w->trainer->input_counts, V * sizeof *in);
    memcpy(out, w->trainer->target_counts, V * sizeof *out);
}

void worker_count_from_here(struct agent_worker *w, int32_t f) {
    struct worker_fragment *k = &w->kept[f];
    k->tokens_base = w->all_tokens;
    copy_counts(w, k->counts.in_base, k->counts.out_base);
}

// A repeated run may have committed a later send than this run has made so far. At the step of that
// send this notes tokens and rows as they were then.
void worker_at_cursor(struct agent_worker *w, int32_t f) {
    const struct agent_fragment *g = &w->frags[f];
    struct agent_flight *t = &w->flight[f];
    if (g->in_flight && t->here && (t->mine || t->rejected) && t->cursor > g->send_step &&
        t->cursor == w->step) {
        t->tokens_at_send = w->all_tokens;
        copy_counts(w, w->kept[f].counts.in_sent, w->kept[f].counts.out_sent);
        t->at_cursor = true;
    } else if (!g->in_flight && g->committed_step > g->send_step && g->committed_step == w->step) {
        worker_count_from_here(w, f); // the merge came before this step
    }
}

struct count_source {
    struct agent_worker *w;
    int32_t f;
};

// Tokens seen of each row of a unit since the fragment's last committed send.
static const uint64_t *unit_counts(void *user, int32_t unit) {
    struct count_source *c = user;
    struct agent_worker *w = c->w;
    const struct intra_unit *u = &w->units[unit];
    const uint64_t *in = w->trainer->input_counts, *out = w->trainer->target_counts;
    const struct worker_counts *was = &w->kept[c->f].counts;
    enum intra_row_kind kind = u->tensor->row_kind;
    uint64_t *now = w->unit_counts[unit];
    bool coarse = w->job.sync.row_counts == AGENT_ROWS_COARSE;
    uint64_t base = w->kept[c->f].tokens_base;
    double share =
        w->all_tokens > base ? (double)(w->all_tokens - base) / (double)w->all_tokens : 0;
    for (int32_t r = 0; r < u->rows; r++) {
        size_t row = (size_t)(u->row0 + r);
        uint64_t all = (kind != INTRA_ROWS_OUTPUT ? in[row] : 0) +
                       (kind != INTRA_ROWS_INPUT ? out[row] : 0),
                 before = (kind != INTRA_ROWS_OUTPUT ? was->in_base[row] : 0) +
                          (kind != INTRA_ROWS_INPUT ? was->out_base[row] : 0);
        now[r] = coarse ? cmp_count_coarse(all - before, all, share) : all - before;
    }
    return now;
}

static void digest_hex(const struct kern_digest *d, char out[33]) {
    uint8_t b[16];
    neb_put_u64(b, d->lo);
    neb_put_u64(b + 8, d->hi);
    neb_hex(b, sizeof b, out);
}

enum neb_status worker_resubmit(struct agent_worker *w, int32_t f) {
    const struct agent_flight *t = &w->flight[f];
    struct agent_ipc_part part = {t->blob.p, t->blob.len};
    char hex[33];
    digest_hex(&w->kept[f].last_digest, hex);
    json_t *head = json_pack(
        "{s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:b,s:s,s:o}", "op", "update", "again",
        (json_int_t)t->retries, "round", (json_int_t)w->frags[f].round, "fragment", (json_int_t)f,
        "tokens", (json_int_t)t->tokens, "step", (json_int_t)w->frags[f].send_step, "steps",
        (json_int_t)t->steps, "missed", (json_int_t)t->missed, "final", w->frags[f].sent_final,
        "digest", hex, "measure", worker_plan_measure(w, f));
    return agent_ipc_send(w->ipc, NULL, head, &part, 1);
}

// Limits the missed intervals to what the steps can hold. An absence over several attempts, or a
// last update that is late repeatedly, counts some of them twice, and the other members would
// refuse it.
static uint32_t missed_by(const struct agent_worker *w, uint32_t counted, uint32_t steps) {
    const struct agent_sync *s = &w->job.sync;
    int64_t from = w->step - steps, early = from < s->early_steps ? s->early_steps - from : 0;
    early = early < steps ? early : steps;
    int64_t most = (steps - early) / s->interval + (early ? early / s->early_interval : 0) + 1;
    return counted < most ? counted : (uint32_t)most;
}

enum neb_status worker_send(struct agent_worker *w, int32_t f) {
    struct agent_fragment *g = &w->frags[f];
    struct agent_flight *t = &w->flight[f];
    struct worker_fragment *k = &w->kept[f];
    struct count_source counts = {w, f};
    neb_ns start = neb_now();
    worker_heartbeat(w, false, 0);
    t->retries = g->in_flight ? t->retries + 1 : 0;
    t->steps = w->step > k->steps_base ? (uint32_t)(w->step - k->steps_base) : 0;
    g->missed = missed_by(w, g->missed + (g->in_flight ? t->missed : 0), t->steps);
    bool merge = g->missed > (uint32_t)w->job.sync.merge_after;
    struct cmp_codec codec;
    NEB_TRY(worker_plan_codec(w, f, merge, &codec));
    NEB_TRY(worker_outer_encode(w, f, &codec, unit_counts, &counts));
    t->sent_at = neb_now();
    t->encode_s = neb_seconds(t->sent_at - start);
    t->stall_s = 0;
    copy_counts(w, k->counts.in_sent, k->counts.out_sent);
    t->tokens = w->all_tokens > k->tokens_base ? w->all_tokens - k->tokens_base : 0;
    t->tokens_at_send = w->all_tokens;
    t->missed = g->missed; // they count for the update that carries their steps
    g->missed = 0;
    g->in_flight = true;
    g->arrived = t->here; // true in a repeated run
    g->sent_final = w->step >= w->schedule.steps;
    g->send_step = w->step;
    worker_plan_sent(w, f);
    for (size_t i = 0; i < w->n_log; i++) // a repeated run merges where it did before
        if (w->log[i].fragment == (uint32_t)f && w->log[i].round == g->round)
            g->merge_step = w->log[i].step;
    size_t params = 0;
    for (int32_t i = 0; i < w->n_units; i++)
        params += w->job.sync.fragments == 1 ? (size_t)w->units[i].rows * w->units[i].cols : 0;
    if (w->job.sync.fragments > 1)
        params = w->model->n_trainable / (size_t)w->job.sync.fragments;
    w->payload_bytes += t->blob.len;
    w->masked_sent += w->sum != NULL;
    w->payload_params += params;
    NEB_TRY(worker_resubmit(w, f));
    w->sync_s += neb_seconds(neb_now() - start);
    return NEB_OK;
}

static void take_plan(struct agent_flight *t, const json_t *plan) {
    const char *const keys[] = {"interval", "overlap", "codec", "reason", "left_out"};
    json_int_t v[5];
    t->planned = false;
    for (int i = 0; i < 5; i++) {
        const json_t *x = json_object_get(plan, keys[i]);
        v[i] = json_integer_value(x);
        if (!json_is_integer(x) || v[i] < 0 || v[i] > UINT32_MAX)
            return;
    }
    if (v[0] < 1 || v[2] > CMP_LEVELS_MAX || !cmp_level_valid((int)v[2]) || v[3] >= INTER_REASONS ||
        v[4] > INTER_LEFT_OUT_MAX)
        return;
    t->plan = (struct inter_plan){.interval = (uint32_t)v[0],
                                  .overlap = (uint32_t)v[1],
                                  .codec = (uint8_t)v[2],
                                  .reason = (uint8_t)v[3],
                                  .left_out = (uint8_t)v[4]};
    t->planned = true;
}

enum neb_status worker_take_commit(struct agent_worker *w, const struct agent_ipc_msg *m) {
    int64_t f = agent_ipc_int(m, "fragment", -1), round = agent_ipc_int(m, "round", -1);
    json_t *entries = json_object_get(m->head, "entries"), *e;
    size_t i, at = 0;
    if (f < 0 || f >= w->job.sync.fragments || json_array_size(entries) != m->n_parts)
        return neb_fail(NEB_ERR_FORMAT, "the agent sent a malformed commit");
    struct agent_fragment *g = &w->frags[f];
    struct agent_flight *t = &w->flight[f];
    if (t->here || round != (int64_t)g->round)
        return NEB_OK; // a duplicate, or a later round: worker_merge asks for it in time
    neb_buf_clear(&t->bytes);
    for (i = 0; i < m->n_parts; i++)
        neb_buf_add(&t->bytes, m->parts[i].p, m->parts[i].len);
    NEB_TRY(neb_buf_check(&t->bytes));
    t->n = (uint32_t)m->n_parts;
    t->mine = t->at_cursor = false;
    t->cursor = (int64_t)json_integer_value(json_object_get(m->head, "cursor"));
    t->former = false;
    json_array_foreach(entries, i, e) {
        bool own = json_integer_value(json_object_get(e, "member")) == w->cluster;
        // this process does not have what was sent before the disk was lost
        bool mine = own && !w->lost;
        t->former |= own && json_integer_value(json_object_get(e, "attempt")) < w->incarnation;
        t->parts[i] = (struct inter_outer_part){
            .blob = t->bytes.p + at,
            .len = m->parts[i].len,
            .mine = mine,
            .tokens = (uint64_t)json_integer_value(json_object_get(e, "tokens")),
            .weight = (uint64_t)json_integer_value(json_object_get(e, "weight")),
            .clip = (float)json_number_value(json_object_get(e, "clip"))};
        at += m->parts[i].len;
        t->mine |= mine;
    }
    NEB_TRY(worker_masked_seeds(w, t, json_object_get(m->head, "seeds")));
    t->eta = (float)json_number_value(json_object_get(m->head, "eta"));
    t->mu = (float)json_number_value(json_object_get(m->head, "mu"));
    t->merge = json_is_true(json_object_get(m->head, "merge"));
    t->all_final = json_is_true(json_object_get(m->head, "final"));
    take_plan(t, json_object_get(m->head, "plan"));
    t->rejected = json_is_true(json_object_get(m->head, "rejected"));
    t->unread = json_is_true(json_object_get(m->head, "unread"));
    t->arrived_at = neb_now();
    t->here = true;
    g->arrived = g->in_flight;
    return NEB_OK;
}

enum neb_status worker_request_commit(struct agent_worker *w, int32_t f) {
    return agent_ipc_send(w->ipc, NULL,
                          json_pack("{s:s,s:I,s:I}", "op", "ready", "fragment", (json_int_t)f,
                                    "round", (json_int_t)w->frags[f].round),
                          NULL, 0);
}

// Drops our update, as all members do; the tokens behind it are lost too.
static bool drop_rejected(struct agent_worker *w, int32_t f) {
    struct agent_flight *t = &w->flight[f];
    if (!t->rejected || !w->frags[f].in_flight)
        return false;
    if (t->unread && t->tokens)
        neb_warn("round %u: too few other clusters have trained since the last one, so the sum "
                 "would reveal this cluster's update. The sum is not read, and %u steps of "
                 "learning in fragment %d are dropped",
                 w->frags[f].round, t->steps, f);
    else if (!t->unread)
        neb_log(NEB_LOG_ERROR,
                "round %u: the gate refused the update of this cluster; %u steps of learning in "
                "fragment %d are dropped",
                w->frags[f].round, t->steps, f);
    t->mine = true; // its steps are settled
    return true;
}

// Sets the counters by the record. An update that was replaced by a newer one may have been
// committed nevertheless: what the newer one added still counts. An update of a previous
// incarnation may contain more than this process has seen.
static void settle_counts(struct agent_worker *w, int32_t f) {
    const struct agent_flight *t = &w->flight[f];
    struct agent_fragment *g = &w->frags[f];
    struct worker_fragment *k = &w->kept[f];
    size_t V = (size_t)w->trainer->c.model.vocab;
    bool listed = false;
    for (uint32_t i = 0; i < t->n; i++) {
        k->tokens_base += t->parts[i].mine ? t->parts[i].tokens : 0;
        listed |= t->parts[i].mine;
    }
    // A repeated run may have sent more than this one, and it may have been refused: this run makes
    // those steps again, but they are committed. Until they are made, worker_at_cursor counts from
    // their end.
    bool beyond = t->cursor > g->send_step;
    k->steps_base = g->committed_step = listed || beyond ? t->cursor : g->send_step;
    if (beyond && !t->at_cursor) {
        uint64_t base = k->tokens_base;
        worker_count_from_here(w, f);
        k->tokens_base = listed && base < k->tokens_base ? base : k->tokens_base;
        return;
    }
    if (!listed || beyond || k->tokens_base > t->tokens_at_send)
        k->tokens_base = t->tokens_at_send;
    memcpy(k->counts.in_base, k->counts.in_sent, V * sizeof *k->counts.in_base);
    memcpy(k->counts.out_base, k->counts.out_sent, V * sizeof *k->counts.out_base);
}

// The weight of this cluster's update in a round, 0 to 1.
static double own_share(const struct agent_flight *t) {
    double own = 0, all = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        double x = (double)(t->parts[i].weight ? t->parts[i].weight : t->parts[i].tokens);
        all += x;
        own += t->parts[i].mine ? x : 0;
    }
    return all > 0 ? own / all : 0;
}

// For tests: one value in memory changes.
static enum neb_status flip_for_test(const struct agent_worker *w) {
    char point[sizeof "worker.flip." + AGENT_NAME_MAX];
    struct inter_outer_array arrays[INTER_OUTER_ARRAYS];
    snprintf(point, sizeof point, "worker.flip.%s", w->job.clusters[w->cluster].name);
    if (!neb_fault(point))
        return NEB_OK;
    inter_outer_arrays(w->outer, arrays);
    NEB_TRY(inter_outer_pull(w->outer));
    arrays[0].p[0] += 0.001f;
    return inter_outer_push(w->outer);
}

static void say_round(struct agent_worker *w, int32_t f, neb_ns start) {
    const struct agent_fragment *g = &w->frags[f];
    const struct agent_flight *t = &w->flight[f];
    const struct cmp_variant *level = cmp_level(t->codec);
    char hex[33], codec[32];
    digest_hex(&w->kept[f].last_digest, hex);
    cmp_codec_name(t->missed > (uint32_t)w->job.sync.merge_after ? &w->merge_codec : &w->codec,
                   codec, sizeof codec);
    if (level)
        snprintf(codec, sizeof codec, "%s", level->name);
    if (w->sum)
        snprintf(codec, sizeof codec, "sum16");
    worker_metrics(
        w, json_pack(
               "{s:s,s:I,s:I,s:I,s:I,s:s,s:I,s:s,s:f,s:f,s:f,s:b,s:I,s:I,s:f,s:f,s:f,s:I,s:i}",
               "kind", "round", "updates", (json_int_t)t->n, "round", (json_int_t)g->round,
               "fragment", (json_int_t)f, "step", (json_int_t)w->step, "digest", hex,
               "payload_bytes", (json_int_t)t->blob.len, "codec", codec, "encode_s", t->encode_s,
               "travel_s", neb_seconds(t->arrived_at - t->sent_at), "apply_s",
               neb_seconds(neb_now() - start), "merge", t->merge, "missed", (json_int_t)t->missed,
               "overlap", (json_int_t)(g->merge_step - g->send_step), "stall_s", t->stall_s,
               "error", (double)t->error, "share", own_share(t), "tokens", (json_int_t)t->tokens,
               "interval", agent_schedule_interval(&w->schedule, w->step)));
}

// Warns when this cluster is left out repeatedly although all links are up: its updates take longer
// than the others wait. Reported after 4 rounds, 8, 16, …
static void say_left_out(struct agent_worker *w, int32_t f) {
    enum { FIRST = 4 };
    const struct agent_flight *t = &w->flight[f];
    char text[256];
    double took = neb_seconds(t->arrived_at - t->sent_at);
    // not so if a link is down, or while it catches up with an old round
    if (w->alive < w->others || took < (double)w->job.sync.grace_s)
        return;
    w->left_out_rounds++;
    if (w->left_out_rounds < FIRST || w->left_out_rounds & (w->left_out_rounds - 1))
        return;
    snprintf(text, sizeof text,
             "left out of %u rounds in a row although all links are up: the others had not "
             "received all of its %.3g MB after %.3g s, and they wait sync.grace_s, %g s. Raise "
             "sync.grace_s, or send less (sync.interval, codec, fragments)",
             w->left_out_rounds, (double)t->blob.len / 1e6, took, (double)w->job.sync.grace_s);
    neb_warn("%s", text);
    worker_metrics(w, json_pack("{s:s,s:s}", "kind", "fault", "text", text));
}

enum neb_status worker_merge(struct agent_worker *w, int32_t f) {
    struct agent_fragment *g = &w->frags[f];
    struct agent_flight *t = &w->flight[f];
    struct worker_fragment *k = &w->kept[f];
    struct inter_outer_round r = {t->parts, t->n, t->eta, t->mu, t->merge, t->all_final, &t->seeds};
    neb_ns start = neb_now();
    bool foreign = !g->in_flight; // others continued without us
    worker_heartbeat(w, false, 0);
    NEB_TRY(worker_log_merge(w, f));
    // with an update that is taken over, this incarnation's work repeats the same steps
    bool reject = drop_rejected(w, f) || t->taken_over;
    NEB_TRY(worker_outer_merge(w, f, reject, &r));
    if (foreign)
        t->mine = false; // it is from a previous incarnation of this cluster
    w->left_out_rounds = t->mine ? 0 : w->left_out_rounds;
    if (t->mine) // otherwise tokens and row counts carry over, like the residual
        settle_counts(w, f);
    NEB_TRY(flip_for_test(w));
    say_round(w, f, start);
    worker_plan_merged(w, f);
    if (t->taken_over || (t->mine && t->cursor > g->send_step)) // the commits contain them
        g->missed = 0;
    else if (g->in_flight &&
             !t->mine) { // late: the next update carries all of it, including what was missed
        g->missed += t->missed + 1;
        say_left_out(w, f);
    }
    // the vote took the update from before the outage: the next one carries the missed intervals
    else if (g->in_flight && t->retries && k->tokens_base < t->tokens_at_send)
        g->missed += t->missed;
    g->in_flight = g->arrived = t->here = t->rejected = t->taken_over = false;
    g->round++;
    g->merged_step = w->step;
    g->finished = t->all_final;
    w->rounds++;
    w->sync_s += neb_seconds(neb_now() - start);
    return g->finished ? NEB_OK : worker_request_commit(w, f);
}

enum neb_status worker_take_over(struct agent_worker *w, int32_t f) {
    struct agent_flight *t = &w->flight[f];
    int64_t cursor = t->cursor;
    for (uint32_t i = 0; i < t->n; i++) // this process does not have what was sent then
        t->parts[i].mine = false;
    t->mine = false;
    t->taken_over = true;
    neb_log(NEB_LOG_WARN,
            "round %u: an update that this cluster sent before it lost its disk is committed: "
            "fragment %d and the data continue from step %lld, not %lld",
            w->frags[f].round, f, (long long)cursor, (long long)w->step);
    // logged at the step at which a repeated run takes it over too
    enum neb_status st = worker_merge(w, f);
    if (st == NEB_OK && cursor > w->step)
        st = worker_skip_steps(w, cursor - w->step);
    worker_begin_counts(w, f);
    return st;
}
