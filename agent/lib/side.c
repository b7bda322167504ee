// SPDX-License-Identifier: Apache-2.0
// A program as the teacher or a student of mode distill: the streams of agent/train/distill.h, with
// the program's own model and text. Nothing but the streams is kept: their agents have on disk what
// was put, so a restart needs no checkpoint of ours.
#include "agent/lib/side.h"
#include "agent/base/log.h"
#include "kernels/kern.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- opening ------------------------------------------------------------------------------------

static size_t text_ids(const struct nebula_side *s) {
    return agent_request_ids(&s->limits) * (size_t)lib_side_job(s)->accumulate;
}

static enum neb_status make_text(struct nebula_side *s, struct lib_side_text *t) {
    size_t n = text_ids(s);
    t->ids = calloc(n, sizeof *t->ids);
    t->lengths = calloc(n, sizeof *t->lengths);
    t->prefixes = calloc(n, sizeof *t->prefixes);
    t->micro_rows = calloc((size_t)lib_side_job(s)->accumulate, sizeof *t->micro_rows);
    t->micro_ends = calloc((size_t)lib_side_job(s)->accumulate, sizeof *t->micro_ends);
    return t->ids && t->lengths && t->prefixes && t->micro_rows && t->micro_ends
               ? NEB_OK
               : neb_fail(NEB_ERR_NOMEM, "out of memory for the text of a step");
}

static enum neb_status make_room(struct nebula_side *s) {
    const struct agent_job *j = lib_side_job(s);
    struct intra_pairs_config c = agent_distill_pairs(j);
    s->limits = (struct agent_request_limits){
        .vocab = j->model.vocab, .eos = 0, .seq_len = j->seq_len, .tokens = c.tokens};
    size_t teachers = s->teaches ? 1 : (size_t)agent_distill_teachers(j),
           rows = (teachers + (teachers > 1)) * (size_t)c.tokens * (size_t)j->accumulate;
    s->n_all = s->teaches ? 1 : j->distill.ahead + 1;
    s->all = calloc((size_t)s->n_all, sizeof *s->all);
    s->scratch = calloc(agent_request_ids(&s->limits), sizeof *s->scratch);
    s->batch.tokens = calloc((size_t)c.tokens, sizeof *s->batch.tokens);
    s->batch.targets = calloc((size_t)c.tokens, sizeof *s->batch.targets);
    s->batch.prefix = calloc((size_t)c.tokens / INTRA_PAIRS_SEQ_MIN + 1, sizeof *s->batch.prefix);
    s->label_ids = calloc(rows * CMP_SOFT_K_MAX, sizeof *s->label_ids);
    s->label_logp = calloc(rows * CMP_SOFT_K_MAX, sizeof *s->label_logp);
    s->label_tail = calloc(rows, sizeof *s->label_tail);
    if (!s->all || !s->scratch || !s->batch.tokens || !s->batch.targets || !s->batch.prefix ||
        !s->label_ids || !s->label_logp || !s->label_tail)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the labels of %zu tokens", rows);
    for (int32_t i = 0; i < s->n_all; i++)
        NEB_TRY(make_text(s, &s->all[i]));
    NEB_TRY(cmp_tokens_create(&s->tokens));
    return cmp_soft_create(&s->soft);
}

static enum neb_status on_event(void *user, const struct agent_ipc_msg *m, bool *taken) {
    struct nebula_side *s = user;
    for (int32_t i = 0; i < s->n_peers && !*taken; i++) {
        struct agent_stream *both[] = {s->peers[i].labels, s->peers[i].requests};
        for (int k = 0; k < 2 && !*taken; k++) {
            *taken = both[k] && agent_stream_event(both[k], m);
            if (!*taken || !both[k]->refused[0])
                continue;
            s->differs = both[k]->differs;
            return neb_fail(NEB_ERR_INVALID, "%s", both[k]->refused);
        }
    }
    return NEB_OK;
}

static enum neb_status open_stream(struct nebula_side *s, const struct inter_stream_config *given,
                                   double most, uint64_t next, const uint8_t vocabulary[32],
                                   struct agent_stream **out) {
    struct inter_stream_config c = *given;
    if (most > INTER_STREAM_BATCH_MAX)
        return neb_fail(NEB_ERR_LIMIT,
                        "a step makes batches of up to %.0f bytes, but a stream takes at most %d: "
                        "lower data.batch, data.accumulate or distill.k",
                        most, INTER_STREAM_BATCH_MAX);
    c.window_batches = (uint32_t)lib_side_job(s)->distill.ahead;
    agent_stream_limits(&c, most);
    snprintf(c.terms[0].name, sizeof c.terms[0].name, "vocabulary");
    memcpy(c.terms[0].sha256, vocabulary, sizeof c.terms[0].sha256);
    c.n_terms = 1;
    return agent_stream_open(s->n->x.link.ipc, &c, next, out);
}

// A teacher begins where the student's agent still has text: it has no checkpoint.
static enum neb_status open_peer(struct nebula_side *s, int teacher, int student,
                                 const uint8_t vocabulary[32]) {
    const struct agent_job *j = lib_side_job(s);
    struct lib_side_peer *p = &s->peers[s->n_peers++];
    int peer = s->teaches ? student : teacher;
    const struct inter_stream_config
        labels = {.key = {.id = agent_distill_stream_id(j, AGENT_LABELS_ID, teacher, student)},
                  .type = INTER_STREAM_SOFT_LABELS,
                  .role = s->teaches ? INTER_STREAM_PRODUCER : INTER_STREAM_CONSUMER,
                  .peer = (uint32_t)peer,
                  .measured = agent_distill_k_min(&j->distill) < agent_distill_k_max(&j->distill)},
        requests = {.key = {.id = agent_distill_stream_id(j, AGENT_REQUESTS_ID, teacher, student)},
                    .type = INTER_STREAM_REQUESTS,
                    .role = s->teaches ? INTER_STREAM_CONSUMER : INTER_STREAM_PRODUCER,
                    .peer = (uint32_t)peer};
    p->cluster = peer;
    NEB_TRY(open_stream(s, &labels, agent_distill_labels_most(j),
                        s->teaches ? 0 : (uint64_t)s->step, vocabulary, &p->labels));
    return open_stream(s, &requests, (double)agent_request_most(&s->limits, j->accumulate),
                       s->teaches ? INTER_STREAM_ANYWHERE : (uint64_t)s->step, vocabulary,
                       &p->requests);
}

static enum neb_status open_all(struct nebula_side *s, const uint8_t vocabulary[32]) {
    const struct agent_job *j = lib_side_job(s);
    struct agent_exchange *x = &s->n->x;
    x->link.on_event = on_event;
    x->link.on_event_user = s;
    x->federated = false;
    x->trainer.pool = s->n->pool;
    x->step = s->step;
    NEB_TRY(make_room(s));
    for (int i = 0; i < j->n_clusters; i++)
        if (s->teaches && j->clusters[i].role == AGENT_ROLE_STUDENT)
            NEB_TRY(open_peer(s, x->cluster, i, vocabulary));
        else if (!s->teaches && j->clusters[i].role == AGENT_ROLE_TEACHER)
            NEB_TRY(open_peer(s, i, x->cluster, vocabulary));
    return NEB_OK;
}

static int check_open(const struct nebula *n, const struct nebula_side_options *o) {
    const struct agent_job *j = &n->x.job;
    enum agent_role role = j->clusters[n->x.cluster].role;
    if (o->size != sizeof *o)
        return lib_fail(NEBULA_ERR_VERSION,
                        "nebula_side_open: the options have %zu bytes, but this library knows %zu",
                        o->size, sizeof *o);
    if (n->begun || n->ranks > 1)
        return lib_fail(NEBULA_ERR_STATE, "nebula_side_open: %s",
                        n->begun ? "after nebula_begin" : "only one rank opens a side");
    if (j->mode != AGENT_MODE_DISTILL || (role != AGENT_ROLE_TEACHER && role != AGENT_ROLE_STUDENT))
        return lib_fail(NEBULA_ERR_STATE, "nebula_side_open: job %s has no teacher or student here",
                        j->name);
    if (o->step < 0 || o->step > j->steps)
        return lib_fail(NEBULA_ERR_INVALID, "nebula_side_open: step %lld of %lld",
                        (long long)o->step, (long long)j->steps);
    return NEBULA_OK;
}

static void destroy(struct nebula_side *s) {
    for (int32_t i = 0; i < s->n_peers; i++) {
        agent_stream_close(&s->peers[i].labels);
        agent_stream_close(&s->peers[i].requests);
    }
    for (int32_t i = 0; s->all && i < s->n_all; i++) {
        free(s->all[i].ids);
        free(s->all[i].lengths);
        free(s->all[i].prefixes);
        free(s->all[i].micro_rows);
        free(s->all[i].micro_ends);
    }
    free(s->all);
    free(s->scratch);
    free(s->batch.tokens);
    free(s->batch.targets);
    free(s->batch.prefix);
    free(s->label_ids);
    free(s->label_logp);
    free(s->label_tail);
    cmp_tokens_destroy(&s->tokens);
    cmp_soft_destroy(&s->soft);
    neb_buf_free(&s->bytes);
    if (s->n)
        lib_destroy(s->n);
    free(s);
}

int nebula_side_open(struct nebula **np, const struct nebula_side_options *o,
                     struct nebula_side **out) {
    LIB_POINT;
    uint8_t vocabulary[32];
    int st = lib_usable(np ? *np : NULL, "nebula_side_open");
    if (st)
        return st;
    struct nebula *n = *np;
    *np = NULL;
    *out = NULL;
    struct nebula_side *s = calloc(1, sizeof *s);
    if (!s) {
        lib_destroy(n);
        return lib_fail(NEBULA_ERR_MEMORY, "nebula_side_open: out of memory");
    }
    s->n = n;
    s->serves = -1;
    st = check_open(n, o);
    const char *hex = o->vocabulary ? o->vocabulary : n->x.job.tokenizer_sha256;
    if (!st && !neb_unhex(hex, vocabulary, sizeof vocabulary))
        st = lib_fail(NEBULA_ERR_INVALID,
                      "nebula_side_open: the vocabulary must be a SHA-256 in 64 digits%s",
                      o->vocabulary ? "" : "; the job names none (tokenizer_sha256), so give it");
    if (!st) {
        s->step = o->step;
        s->teaches = n->x.job.clusters[n->x.cluster].role == AGENT_ROLE_TEACHER;
        st = lib_pass(open_all(s, vocabulary));
    }
    if (st) {
        destroy(s);
        return st;
    }
    *out = s;
    return NEBULA_OK;
}

int nebula_side_info_get(const struct nebula_side *s, struct nebula_side_info *out) {
    if (!s || !out || out->size != sizeof *out)
        return lib_fail(NEBULA_ERR_INVALID, "nebula_side_info_get: NULL, or the size is not set");
    const struct agent_job *j = lib_side_job(s);
    *out = (struct nebula_side_info){.size = sizeof *out,
                                     .role = s->teaches ? NEBULA_TEACHER : NEBULA_STUDENT,
                                     .vocab = j->model.vocab,
                                     .seq_len = j->seq_len,
                                     .accumulate = j->accumulate,
                                     .tokens = s->limits.tokens,
                                     .k = j->distill.k,
                                     .k_max = agent_distill_k_max(&j->distill),
                                     .ahead = j->distill.ahead,
                                     .lambda = j->distill.lambda,
                                     .temperature = j->distill.temperature,
                                     .step = s->step,
                                     .steps = j->steps};
    return NEBULA_OK;
}

// ---- waiting ------------------------------------------------------------------------------------

enum { ASK_AGENT_S = 2 };

enum neb_status lib_side_wait(struct nebula_side *s) {
    struct agent_exchange *x = &s->n->x;
    neb_ns now = neb_now();
    NEB_TRY(exchange_drain(x));
    if (now - x->link.asked > ASK_AGENT_S * NEB_S) {
        x->link.asked = now;
        enum neb_status st =
            agent_ipc_send(x->link.ipc, NULL, json_pack("{s:s}", "op", "hello"), NULL, 0);
        if (st != NEB_OK && st != NEB_ERR_AGAIN)
            return st;
    }
    if (x->link.orphan || x->reattach)
        return neb_fail(NEB_ERR_STATE,
                        "the agent was restarted: close this side and open it again");
    NEB_TRY(exchange_wait(x));
    return lib_idle(s->n);
}

enum neb_status lib_side_end_job(struct nebula_side *s, const char *why) {
    enum neb_status st = exchange_report(&s->n->x, json_pack("{s:s}", "error", why), NULL);
    exchange_hang_up(&s->n->x); // the program may end now
    s->failed = true;
    return st;
}

int lib_side_end_call(struct nebula_side *s, enum neb_status st) {
    bool again = s->n->x.link.orphan || s->n->x.reattach;
    int code = lib_pass(st);
    s->failed = st != NEB_OK;
    if (s->differs) { // the next program would fail too
        s->differs = false;
        if (lib_side_end_job(s, nebula_last_error()) != NEB_OK)
            neb_debug("the agent is gone");
    }
    return code && again ? (int)NEBULA_ERR_AGAIN : code;
}

int lib_side_usable(const struct nebula_side *s, const char *call, bool teacher, bool any) {
    if (!s)
        return lib_fail(NEBULA_ERR_INVALID, "%s: the handle is NULL or closed", call);
    if (s->failed)
        return lib_fail(NEBULA_ERR_STATE, "%s: an earlier call failed; close the side", call);
    if (!any && s->teaches != teacher)
        return lib_fail(NEBULA_ERR_STATE, "%s is a call of a %s", call,
                        teacher ? "teacher" : "student");
    return lib_usable(s->n, call);
}

enum neb_status lib_side_put(struct nebula_side *s, struct agent_stream *t, bool *stored) {
    enum neb_status st;
    uint64_t end = t->next + 1;
    *stored = false;
    while ((st = agent_stream_put(t, s->bytes.p, s->bytes.len)) == NEB_ERR_AGAIN) {
        if (s->n->x.stop)
            return NEB_OK;
        NEB_TRY(lib_side_wait(s));
    }
    NEB_TRY(st);
    while (t->stored < end && !s->n->x.stop)
        NEB_TRY(lib_side_wait(s));
    *stored = t->stored >= end;
    return NEB_OK;
}

// ---- text -------------------------------------------------------------------------------------

bool lib_side_writes(const struct nebula_side *s, int64_t step) {
    const struct agent_job *j = lib_side_job(s);
    return j->distill.source == (s->teaches ? AGENT_TEXT_TEACHER : AGENT_TEXT_STUDENT) &&
           agent_distill_sampled(j, step);
}

int nebula_side_writes(const struct nebula_side *s, int64_t step) {
    return s ? lib_side_writes(s, step) : 0;
}

void lib_side_take_micro(const struct nebula_side *s, struct lib_side_text *t, int32_t micro) {
    const struct intra_pair_batch *b = &s->batch;
    int32_t *ids = t->ids;
    t->sequences = micro ? t->sequences : 0;
    t->rows = (micro ? t->rows : 0) + (int32_t)b->n_targets;
    t->micro_rows[micro] = (int32_t)b->n_targets;
    for (int32_t i = 0; i < t->sequences; i++)
        ids += t->lengths[i];
    for (int32_t i = 0; i < b->B; i++) {
        const int32_t *x = b->tokens + (size_t)i * (size_t)b->T,
                      *y = b->targets + (size_t)i * (size_t)b->T;
        int32_t prefix = b->prefix[i], n = prefix;
        memcpy(ids, x, (size_t)prefix * sizeof *x);
        for (; n - 1 < b->T && y[n - 1] != KERN_IGNORE; n++)
            ids[n] = y[n - 1];
        t->prefixes[t->sequences] = prefix;
        t->lengths[t->sequences++] = n;
        ids += n;
    }
    t->micro_ends[micro] = t->sequences;
}

void lib_side_lay_out(struct nebula_side *s, const struct lib_side_text *t, int32_t micro) {
    struct intra_pair_batch *b = &s->batch;
    int32_t from = micro ? t->micro_ends[micro - 1] : 0, to = t->micro_ends[micro];
    const int32_t *ids = t->ids;
    b->B = to - from;
    b->T = 0;
    b->n_targets = 0;
    for (int32_t i = 0; i < from; i++)
        ids += t->lengths[i];
    for (int32_t i = from; i < to; i++)
        b->T = t->lengths[i] - 1 > b->T ? t->lengths[i] - 1 : b->T;
    for (int32_t i = from; i < to; ids += t->lengths[i++]) {
        size_t row = (size_t)(i - from) * (size_t)b->T;
        int32_t n = t->lengths[i], prefix = t->prefixes[i];
        b->prefix[i - from] = prefix;
        b->n_targets += n - prefix;
        for (int32_t k = 0; k < b->T; k++) {
            b->tokens[row + (size_t)k] = k < n - 1 ? ids[k] : 0;
            b->targets[row + (size_t)k] = k >= prefix - 1 && k < n - 1 ? ids[k + 1] : KERN_IGNORE;
        }
    }
}

// ---- next, and the end --------------------------------------------------------------------------

int lib_side_state(const struct nebula_side *s) {
    bool done = s->teaches ? lib_side_all_labelled(s) : s->step >= lib_side_job(s)->steps;
    return s->n->x.stop ? NEBULA_STOP : done ? NEBULA_DONE : NEBULA_TRAIN;
}

void lib_side_give_text(const struct nebula_side *s, const struct lib_side_text *t,
                        struct nebula_text *out) {
    out->sequences = t->sequences;
    out->rows = t->rows;
    out->lengths = t->lengths;
    out->prefixes = t->prefixes;
    out->ids = t->ids;
    out->step = s->teaches ? (int64_t)s->peers[s->serves].labels->next : s->step;
    out->student = s->teaches ? s->peers[s->serves].cluster : s->n->x.cluster;
}

// *here: there is something to do, and *out has it.
static enum neb_status look(struct nebula_side *s, struct nebula_text *out, bool *here) {
    NEB_TRY(exchange_drain(&s->n->x));
    if (s->teaches) {
        if (s->serves < 0)
            NEB_TRY(lib_side_look_for_text(s));
        if ((*here = s->serves >= 0))
            lib_side_give_text(s, &s->all[0], out);
        return NEB_OK;
    }
    NEB_TRY(lib_side_look_for_labels(s, here));
    if (!*here)
        return NEB_OK;
    s->learning = true;
    lib_side_give_text(s, &s->all[s->step % s->n_all], out);
    out->k = s->labels.k;
    out->label_ids = s->labels.ids;
    out->label_logprobs = s->labels.logp;
    out->label_tails = s->labels.tail;
    return NEB_OK;
}

int nebula_side_next(struct nebula_side *s, double timeout_s, struct nebula_text *out, int *state) {
    LIB_POINT;
    neb_ns end = neb_now() + (neb_ns)(timeout_s * 1e9);
    int st = lib_side_usable(s, "nebula_side_next", false, true);
    if (st)
        return st;
    if (!out || out->size != sizeof *out || !state)
        return lib_fail(NEBULA_ERR_INVALID, "nebula_side_next: NULL, or the size is not set");
    *out = (struct nebula_text){.size = sizeof *out};
    if (!s->teaches && s->step < lib_side_job(s)->steps &&
        s->peers[0].requests->next <= (uint64_t)s->step)
        return lib_fail(NEBULA_ERR_STATE, "nebula_side_next: step %lld was not asked for",
                        (long long)s->step);
    if (s->learning)
        return lib_fail(NEBULA_ERR_STATE, "nebula_side_next: call nebula_side_learned first");
    for (bool here = false;;) {
        enum neb_status found = look(s, out, &here);
        *state = s->n->state = lib_side_state(s);
        if (found == NEB_OK && (here || *state != NEBULA_TRAIN)) {
            s->n->step_end = neb_now();
            return NEBULA_OK;
        }
        if (found == NEB_OK && timeout_s > 0 && neb_now() >= end)
            return lib_fail(NEBULA_ERR_NOT_FOUND, "nebula_side_next: nothing has come for %g s",
                            timeout_s);
        if (found == NEB_OK)
            found = lib_side_wait(s);
        if (found != NEB_OK)
            return lib_side_end_call(s, found);
    }
}

// The agent keeps labels only as long as this program has not reported.
static enum neb_status wait_taken(struct nebula_side *s) {
    for (int32_t i = 0; i < s->n_peers; i++) {
        struct agent_stream *l = s->peers[i].labels;
        while (s->teaches && l->durable < l->next && !s->n->x.stop)
            NEB_TRY(lib_side_wait(s));
    }
    return NEB_OK;
}

static enum neb_status report(struct nebula_side *s, double eval_loss) {
    struct agent_exchange *x = &s->n->x;
    struct exchange_results r = {
        .device = "attached", .eval_loss = eval_loss, .done = s->n->state == NEBULA_DONE};
    json_t *results, *quality;
    for (int32_t i = 0; i < s->n_peers && !s->teaches && r.done; i++)
        NEB_TRY(agent_stream_saved(s->peers[i].labels, (uint64_t)s->step, 1, true));
    NEB_TRY(wait_taken(s));
    x->payload_bytes = s->put_bytes;
    NEB_TRY(exchange_results(x, &r, &results));
    quality = json_pack("{s:n,s:o,s:i,s:i,s:f,s:f,s:f}", "chrf", "eval_loss",
                        isfinite(eval_loss) ? json_real(eval_loss) : json_null(), "pairs", 0,
                        "beam", 0, "decode_s", 0.0, "label_bytes_per_target_token",
                        s->rows ? (double)s->put_bytes / (double)s->rows : 0.0, "taught_share",
                        s->rows ? 1.0 : 0.0);
    if (!s->teaches)
        json_object_set_new(quality, "stall", agent_stream_stall(s->peers[0].labels));
    else if (lib_side_job(s)->distill.align == AGENT_ALIGN_TEXT)
        json_object_set_new(quality, "mapped_share",
                            json_real(s->rows ? (double)s->mapped / (double)s->rows : 0));
    return exchange_report(x, results,
                           json_pack("{s:s,s:i,s:I,s:I,s:o}", "role",
                                     s->teaches ? "teacher" : "student", "vocab",
                                     lib_side_job(s)->model.vocab, "steps_alone", (json_int_t)0,
                                     "label_rows", (json_int_t)s->rows, "quality", quality));
}

int nebula_side_fail(struct nebula_side **sp, const char *why) {
    LIB_POINT;
    int st = lib_side_usable(sp ? *sp : NULL, "nebula_side_fail", false, true);
    if (st)
        return st;
    struct nebula_side *s = *sp;
    *sp = NULL;
    if (!why || !*why)
        why = "the program of this side has failed";
    st = lib_pass(lib_side_end_job(s, why));
    destroy(s);
    return st;
}

int nebula_side_close(struct nebula_side **sp, double eval_loss) {
    LIB_POINT;
    if (!sp || !*sp)
        return NEBULA_OK;
    struct nebula_side *s = *sp;
    enum neb_status st = NEB_OK;
    *sp = NULL;
    if (!s->failed && s->n->state != NEBULA_TRAIN)
        st = report(s, eval_loss);
    else if (s->n->x.link.ipc &&
             agent_ipc_send(s->n->x.link.ipc, NULL, json_pack("{s:s}", "op", "detach"), NULL, 0) !=
                 NEB_OK)
        neb_debug("the agent is gone");
    int code = lib_pass(st);
    destroy(s);
    return code;
}
