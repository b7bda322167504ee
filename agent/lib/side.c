// SPDX-License-Identifier: Apache-2.0
// A program as the teacher or a student of mode distill: the streams of agent/train/distill.h, with
// the program's own model and text. Nothing but the streams is kept: their agents have on disk what
// was put, so a restart needs no checkpoint of ours.
#include "agent/base/log.h"
#include "agent/exchange/stream.h"
#include "agent/job/label_request.h"
#include "agent/job/sides.h"
#include "agent/lib/state.h"
#include "compress/softlabel.h"
#include "kernels/kern.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct text { // of one step, as the caller sees it
    int32_t sequences, rows;
    int32_t *lengths, *prefixes, *ids; // room for the text of a step
    int32_t *micro_rows;               // (accumulate)
};

struct peer { // the other end: a student of the teacher, or the teacher
    int cluster;
    struct agent_stream *labels, *requests;
};

struct nebula_side {
    struct nebula *n; // owned: the connection to the agent
    bool teaches, failed, opened;
    int32_t n_peers;
    struct peer peers[AGENT_CLUSTERS_MAX];
    struct agent_request_limits limits;
    struct intra_pair_batch batch; // scratch: a micro-batch
    struct cmp_tokens *tokens;
    struct cmp_soft *soft;
    struct neb_buf bytes; // scratch: what is put
    int32_t *scratch;     // (agent_request_ids)
    // Teacher: all[0], the text that is being labelled. Student: those that were asked for, step s
    // in all[s % n_all].
    struct text *all;
    int32_t n_all;
    int serves; // teacher: whose text it has; -1: nobody's
    int32_t *label_ids;
    float *label_logp, *label_tail; // (rows, k), (rows)
    int64_t step;                   // student: the next step to learn
    bool learning;                  // student: its labels were given
    uint64_t rows, put_bytes;       // labels that passed, for the report
};

static const struct agent_job *job_of(const struct nebula_side *s) { return &s->n->x.job; }

// ---- opening ------------------------------------------------------------------------------------

static size_t text_ids(const struct nebula_side *s) {
    return agent_request_ids(&s->limits) * (size_t)job_of(s)->accumulate;
}

static enum neb_status make_text(struct nebula_side *s, struct text *t) {
    size_t n = text_ids(s);
    t->ids = calloc(n, sizeof *t->ids);
    t->lengths = calloc(n, sizeof *t->lengths);
    t->prefixes = calloc(n, sizeof *t->prefixes);
    t->micro_rows = calloc((size_t)job_of(s)->accumulate, sizeof *t->micro_rows);
    return t->ids && t->lengths && t->prefixes && t->micro_rows
               ? NEB_OK
               : neb_fail(NEB_ERR_NOMEM, "out of memory for the text of a step");
}

static enum neb_status make_room(struct nebula_side *s) {
    const struct agent_job *j = job_of(s);
    struct intra_pairs_config c = agent_distill_pairs(j);
    s->limits = (struct agent_request_limits){
        .vocab = j->model.vocab, .eos = 0, .seq_len = j->seq_len, .tokens = c.tokens};
    size_t rows = (size_t)c.tokens * (size_t)j->accumulate;
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
            if (*taken && both[k]->refused[0])
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
    c.window_batches = (uint32_t)job_of(s)->distill.ahead;
    agent_stream_limits(&c, most);
    snprintf(c.terms[0].name, sizeof c.terms[0].name, "vocabulary");
    memcpy(c.terms[0].sha256, vocabulary, sizeof c.terms[0].sha256);
    c.n_terms = 1;
    return agent_stream_open(s->n->x.link.ipc, &c, next, out);
}

// A teacher begins where the student's agent still has text: it has no checkpoint.
static enum neb_status open_peer(struct nebula_side *s, int student, int peer,
                                 const uint8_t vocabulary[32]) {
    const struct agent_job *j = job_of(s);
    struct peer *p = &s->peers[s->n_peers++];
    const struct inter_stream_config
        labels = {.key = {.id = (uint16_t)(AGENT_LABELS_ID + student)},
                  .type = INTER_STREAM_SOFT_LABELS,
                  .role = s->teaches ? INTER_STREAM_PRODUCER : INTER_STREAM_CONSUMER,
                  .peer = (uint32_t)peer,
                  .measured = agent_distill_k_min(&j->distill) < agent_distill_k_max(&j->distill)},
        requests = {.key = {.id = (uint16_t)(AGENT_REQUESTS_ID + student)},
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
    const struct agent_job *j = job_of(s);
    struct agent_exchange *x = &s->n->x;
    x->link.on_event = on_event;
    x->link.on_event_user = s;
    x->federated = false;
    x->trainer.pool = s->n->pool;
    x->step = s->step;
    NEB_TRY(make_room(s));
    if (!s->teaches)
        return open_peer(s, x->cluster, agent_job_role(j, AGENT_ROLE_TEACHER), vocabulary);
    for (int i = 0; i < j->n_clusters; i++)
        if (j->clusters[i].role == AGENT_ROLE_STUDENT)
            NEB_TRY(open_peer(s, i, i, vocabulary));
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
    const struct agent_job *j = job_of(s);
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

// Handles messages that have come, and waits a little for more. NEB_ERR_STATE: the agent is another
// process now.
static enum neb_status wait_a_little(struct nebula_side *s) {
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

// After a failure that is none of the caller's values the side can only be closed.
static int end_call(struct nebula_side *s, enum neb_status st) {
    bool again = s->n->x.link.orphan || s->n->x.reattach;
    int code = lib_pass(st);
    s->failed = st != NEB_OK;
    return code && again ? (int)NEBULA_ERR_AGAIN : code;
}

static int usable(const struct nebula_side *s, const char *call, bool teacher, bool any) {
    if (!s)
        return lib_fail(NEBULA_ERR_INVALID, "%s: the handle is NULL or closed", call);
    if (s->failed)
        return lib_fail(NEBULA_ERR_STATE, "%s: an earlier call failed; close the side", call);
    if (!any && s->teaches != teacher)
        return lib_fail(NEBULA_ERR_STATE, "%s is a call of a %s", call,
                        teacher ? "teacher" : "student");
    return lib_usable(s->n, call);
}

// Puts s->bytes as the next batch, and waits until it is on the agent's disk.
static enum neb_status put(struct nebula_side *s, struct agent_stream *t) {
    enum neb_status st;
    uint64_t end = t->next + 1;
    while ((st = agent_stream_put(t, s->bytes.p, s->bytes.len)) == NEB_ERR_AGAIN)
        NEB_TRY(s->n->x.stop ? NEB_OK : wait_a_little(s));
    NEB_TRY(st);
    while (t->stored < end && !s->n->x.stop)
        NEB_TRY(wait_a_little(s));
    return NEB_OK;
}

// ---- the teacher --------------------------------------------------------------------------------

// Appends the sequences of the micro-batch s->batch to t.
static void take_micro(const struct nebula_side *s, struct text *t, int32_t *n_ids, int32_t micro) {
    const struct intra_pair_batch *b = &s->batch;
    t->micro_rows[micro] = (int32_t)b->n_targets;
    for (int32_t i = 0; i < b->B; i++) {
        const int32_t *x = b->tokens + (size_t)i * (size_t)b->T,
                      *y = b->targets + (size_t)i * (size_t)b->T;
        int32_t prefix = b->prefix[i], n = prefix;
        memcpy(t->ids + *n_ids, x, (size_t)prefix * sizeof *x);
        for (; n - 1 < b->T && y[n - 1] != KERN_IGNORE; n++)
            t->ids[*n_ids + n] = y[n - 1];
        t->prefixes[t->sequences] = prefix;
        t->lengths[t->sequences++] = n;
        t->rows += n - prefix;
        *n_ids += n;
    }
}

static enum neb_status read_request(struct nebula_side *s, const struct agent_stream *from,
                                    const uint8_t *p, size_t n) {
    const struct agent_job *j = job_of(s);
    struct text *t = &s->all[0];
    struct neb_rd r = neb_rd_make(p, n);
    int32_t n_ids = 0;
    t->sequences = t->rows = 0;
    NEB_TRY(agent_request_open(&r, (int64_t)from->next, j->steps));
    for (int32_t a = 0; a < j->accumulate; a++) {
        NEB_TRY(agent_request_next(s->tokens, &s->limits, &r, s->scratch, &s->batch));
        take_micro(s, t, &n_ids, a);
    }
    return neb_rd_done(&r) ? NEB_OK : neb_fail(NEB_ERR_FORMAT, "a student's request is too long");
}

// Text that got its labels before a restart is passed over. The agent then forgets it.
static enum neb_status pass_over(struct nebula_side *s) {
    for (int32_t i = 0; i < s->n_peers; i++) {
        struct peer *p = &s->peers[i];
        const uint8_t *bytes;
        size_t n;
        if (p->labels->limit && p->labels->next < p->labels->stored)
            p->labels->next = p->labels->stored;
        if (p->requests->anywhere || !p->labels->limit)
            continue;
        if (p->requests->next > p->labels->next)
            return neb_fail(NEB_ERR_STATE,
                            "cluster %s has forgotten the text of step %llu, which has no labels",
                            job_of(s)->clusters[p->cluster].name,
                            (unsigned long long)p->labels->next);
        while (p->requests->next < p->labels->next &&
               agent_stream_next(p->requests, &bytes, &n) == NEB_OK)
            NEB_TRY(agent_stream_applied(p->requests));
    }
    return NEB_OK;
}

// The student with text and room that is furthest behind; -1: none.
static int next_peer(const struct nebula_side *s) {
    int found = -1;
    for (int32_t i = 0; i < s->n_peers; i++) {
        const struct peer *p = &s->peers[i];
        bool ready = !p->requests->anywhere && p->requests->next < p->requests->have &&
                     p->requests->next == p->labels->next && p->labels->next < p->labels->limit;
        if (ready && (found < 0 || p->labels->next < s->peers[found].labels->next))
            found = i;
    }
    return found;
}

// Students that ended without their last labels report that they need no more.
static bool all_labelled(const struct nebula_side *s) {
    uint64_t steps = (uint64_t)job_of(s)->steps;
    for (int32_t i = 0; i < s->n_peers; i++)
        if (s->peers[i].labels->next < steps && s->peers[i].labels->durable < steps)
            return false;
    return true;
}

// Sets s->serves if there is text to label.
static enum neb_status look_for_text(struct nebula_side *s) {
    const uint8_t *p;
    size_t n;
    NEB_TRY(pass_over(s));
    int i = next_peer(s);
    if (i < 0 || agent_stream_next(s->peers[i].requests, &p, &n) != NEB_OK)
        return NEB_OK;
    NEB_TRY(read_request(s, s->peers[i].requests, p, n));
    s->serves = i;
    return NEB_OK;
}

static int check_row(const struct nebula_side *s, int64_t row, int32_t k, const int32_t *ids,
                     const float *logp, float *tail) {
    int32_t vocab = job_of(s)->model.vocab;
    double sum = 0;
    for (int32_t j = 0; j < k; j++) {
        const char *what = isnan(logp[j])                  ? "is not a number"
                           : logp[j] > 0                   ? "is positive"
                           : j && logp[j] > logp[j - 1]    ? "is above the one before it"
                           : ids[j] < 0 || ids[j] >= vocab ? "has an id outside the vocabulary"
                                                           : NULL;
        for (int32_t i = 0; !what && i < j; i++)
            what = ids[i] == ids[j] ? "has an id that is twice in the row" : NULL;
        if (what)
            return lib_fail(NEBULA_ERR_INVALID,
                            "nebula_side_put: row %lld, label %d (id %d, log-probability %g) %s",
                            (long long)row, j, ids[j], (double)logp[j], what);
        sum += exp((double)logp[j]);
    }
    if (sum > 1.001)
        return lib_fail(NEBULA_ERR_INVALID,
                        "nebula_side_put: the probabilities of row %lld sum to %g", (long long)row,
                        sum);
    *tail = sum < 1 ? (float)(1 - sum) : 0;
    return NEBULA_OK;
}

static int check_put(struct nebula_side *s, int64_t step, int32_t student, int64_t rows, int32_t k,
                     const int32_t *ids, const float *logp) {
    const struct text *t = &s->all[0];
    int32_t most = agent_distill_k_max(&job_of(s)->distill);
    if (!ids || !logp)
        return lib_fail(NEBULA_ERR_INVALID, "nebula_side_put: ids or logprobs is NULL");
    if (s->serves < 0)
        return lib_fail(NEBULA_ERR_STATE, "nebula_side_put: no text is waiting for labels");
    const struct peer *p = &s->peers[s->serves];
    if (step != (int64_t)p->labels->next || student != p->cluster)
        return lib_fail(NEBULA_ERR_INVALID,
                        "nebula_side_put: labels of step %lld of cluster %d, but those of step "
                        "%llu of cluster %d are due",
                        (long long)step, student, (unsigned long long)p->labels->next, p->cluster);
    if (rows != t->rows)
        return lib_fail(NEBULA_ERR_INVALID, "nebula_side_put: %lld rows, but the text has %d",
                        (long long)rows, t->rows);
    if (k < CMP_SOFT_K_MIN || k > most)
        return lib_fail(NEBULA_ERR_INVALID, "nebula_side_put: k %d is not in 1..%d", k, most);
    for (int64_t i = 0; i < rows; i++) {
        int st = check_row(s, i, k, ids + i * k, logp + i * k, s->label_tail + i);
        if (st)
            return st;
    }
    return NEBULA_OK;
}

static enum neb_status teach(struct nebula_side *s, int32_t k, const int32_t *ids,
                             const float *logp) {
    const struct agent_job *j = job_of(s);
    struct peer *p = &s->peers[s->serves];
    const struct text *t = &s->all[0];
    size_t row = 0;
    neb_buf_clear(&s->bytes);
    neb_buf_u64(&s->bytes, p->labels->next);
    for (int32_t a = 0; a < j->accumulate; a++) {
        struct cmp_soft_head h = {(uint32_t)t->micro_rows[a], k, j->model.vocab,
                                  j->distill.temperature};
        NEB_TRY(cmp_soft_encode(s->soft, &h, ids + row * (size_t)k, logp + row * (size_t)k,
                                s->label_tail + row, &s->bytes));
        row += (size_t)t->micro_rows[a];
    }
    s->serves = -1;
    s->rows += row;
    s->put_bytes += s->bytes.len;
    NEB_TRY(put(s, p->labels));
    NEB_TRY(agent_stream_applied(p->requests));
    // labels on disk: nobody needs this text again
    NEB_TRY(agent_stream_saved(p->requests, p->requests->next, 1, true));
    const struct exchange_figures f = {0, 0, 0};
    exchange_made_step(&s->n->x, &f, (uint64_t)t->rows, 0);
    return NEB_OK;
}

int nebula_side_put(struct nebula_side *s, int64_t step, int32_t student, int64_t rows, int32_t k,
                    const int32_t *ids, const float *logprobs) {
    LIB_POINT;
    int st = usable(s, "nebula_side_put", true, false);
    if (!st)
        st = check_put(s, step, student, rows, k, ids, logprobs);
    return st ? st : end_call(s, teach(s, k, ids, logprobs));
}

// ---- the student --------------------------------------------------------------------------------

static int check_ask(const struct nebula_side *s, int32_t sequences, const int32_t *lengths,
                     const int32_t *prefixes, const int32_t *ids) {
    const struct agent_job *j = job_of(s);
    size_t at = 0;
    if (!lengths || !prefixes || !ids || sequences < j->accumulate)
        return lib_fail(NEBULA_ERR_INVALID,
                        "nebula_side_ask: %d sequences; the job has %d micro-batches", sequences,
                        j->accumulate);
    for (int32_t a = 0; a < j->accumulate; a++) {
        int64_t from = (int64_t)sequences * a / j->accumulate,
                to = (int64_t)sequences * (a + 1) / j->accumulate, T = 0;
        for (int64_t i = from; i < to; i++) {
            if (lengths[i] > j->seq_len + 1 || prefixes[i] < 1 || prefixes[i] >= lengths[i])
                return lib_fail(NEBULA_ERR_INVALID,
                                "nebula_side_ask: sequence %lld has %d ids, %d of them given; a "
                                "sequence has at most %d, at least one given and one target",
                                (long long)i, lengths[i], prefixes[i], j->seq_len + 1);
            for (int32_t k = 0; k < lengths[i]; k++, at++)
                if (ids[at] < 0 || ids[at] >= j->model.vocab)
                    return lib_fail(NEBULA_ERR_INVALID,
                                    "nebula_side_ask: sequence %lld has id %d, outside the "
                                    "vocabulary of %d",
                                    (long long)i, ids[at], j->model.vocab);
            T = lengths[i] - 1 > T ? lengths[i] - 1 : T;
        }
        if ((to - from) * T > s->limits.tokens ||
            to - from > s->limits.tokens / INTRA_PAIRS_SEQ_MIN)
            return lib_fail(NEBULA_ERR_INVALID,
                            "nebula_side_ask: micro-batch %d has %lld sequences of up to %lld "
                            "tokens; data.batch x data.seq_len allow %d tokens, and %d sequences",
                            a, (long long)(to - from), (long long)T, s->limits.tokens,
                            s->limits.tokens / INTRA_PAIRS_SEQ_MIN);
    }
    return NEBULA_OK;
}

// Lays sequences [from, to) of t, whose ids begin at `ids`, out as a micro-batch.
static const int32_t *lay_out(struct nebula_side *s, const struct text *t, int64_t from, int64_t to,
                              const int32_t *ids) {
    struct intra_pair_batch *b = &s->batch;
    b->B = (int32_t)(to - from);
    b->T = 0;
    b->n_targets = 0;
    for (int64_t i = from; i < to; i++)
        b->T = t->lengths[i] - 1 > b->T ? t->lengths[i] - 1 : b->T;
    for (int64_t i = from; i < to; ids += t->lengths[i++]) {
        size_t row = (size_t)(i - from) * (size_t)b->T;
        int32_t n = t->lengths[i], prefix = t->prefixes[i];
        b->prefix[i - from] = prefix;
        b->n_targets += n - prefix;
        for (int32_t k = 0; k < b->T; k++) {
            b->tokens[row + (size_t)k] = k < n - 1 ? ids[k] : 0;
            b->targets[row + (size_t)k] = k >= prefix - 1 && k < n - 1 ? ids[k + 1] : KERN_IGNORE;
        }
    }
    return ids;
}

static enum neb_status ask(struct nebula_side *s, int32_t sequences, const int32_t *lengths,
                           const int32_t *prefixes, const int32_t *ids) {
    const struct agent_job *j = job_of(s);
    struct agent_stream *to = s->peers[0].requests;
    struct text *t = &s->all[to->next % (uint64_t)s->n_all];
    size_t n_ids = 0;
    t->sequences = sequences;
    t->rows = 0;
    memcpy(t->lengths, lengths, (size_t)sequences * sizeof *lengths);
    memcpy(t->prefixes, prefixes, (size_t)sequences * sizeof *prefixes);
    for (int32_t i = 0; i < sequences; i++)
        n_ids += (size_t)lengths[i];
    memcpy(t->ids, ids, n_ids * sizeof *ids);
    neb_buf_clear(&s->bytes);
    agent_request_begin((int64_t)to->next, &s->bytes);
    for (int32_t a = 0; a < j->accumulate; a++) {
        ids = lay_out(s, t, (int64_t)sequences * a / j->accumulate,
                      (int64_t)sequences * (a + 1) / j->accumulate, ids);
        t->micro_rows[a] = (int32_t)s->batch.n_targets;
        t->rows += t->micro_rows[a];
        NEB_TRY(agent_request_add(s->tokens, &s->limits, &s->batch, s->scratch, &s->bytes));
    }
    if (to->next < to->stored) { // asked before a restart
        to->next++;
        return NEB_OK;
    }
    return put(s, to);
}

int nebula_side_ask(struct nebula_side *s, int32_t sequences, const int32_t *lengths,
                    const int32_t *prefixes, const int32_t *ids) {
    LIB_POINT;
    int st = usable(s, "nebula_side_ask", false, false);
    if (!st)
        st = check_ask(s, sequences, lengths, prefixes, ids);
    if (st)
        return st;
    struct agent_stream *to = s->peers[0].requests;
    while (!to->limit && !s->n->x.stop) { // its agent has not answered yet
        enum neb_status waited = wait_a_little(s);
        if (waited != NEB_OK)
            return end_call(s, waited);
    }
    if (to->next >= (uint64_t)job_of(s)->steps)
        return lib_fail(NEBULA_ERR_INVALID, "nebula_side_ask: all %lld steps were asked for",
                        (long long)job_of(s)->steps);
    if (to->next >= (uint64_t)s->step + (uint64_t)job_of(s)->distill.ahead)
        return lib_fail(NEBULA_ERR_AGAIN,
                        "nebula_side_ask: step %llu is more than distill.ahead %d steps after the "
                        "last one that was learned: learn first",
                        (unsigned long long)to->next, job_of(s)->distill.ahead);
    return end_call(s, ask(s, sequences, lengths, prefixes, ids));
}

static enum neb_status read_labels(struct nebula_side *s, const uint8_t *p, size_t n, int32_t *k) {
    const struct agent_job *j = job_of(s);
    const struct text *t = &s->all[s->step % s->n_all];
    struct neb_rd r = neb_rd_make(p, n);
    uint64_t step = neb_rd_u64(&r);
    size_t row = 0;
    *k = 0;
    if (r.bad || step != (uint64_t)s->step)
        return neb_fail(NEB_ERR_FORMAT, "labels of step %llu have come, but those of %lld are due",
                        (unsigned long long)step, (long long)s->step);
    for (int32_t a = 0; a < j->accumulate; a++) {
        struct cmp_soft_head h = {.rows = (uint32_t)t->micro_rows[a], .vocab = j->model.vocab};
        size_t at = row * (size_t)(*k ? *k : 1);
        NEB_TRY(cmp_soft_decode(s->soft, &r, &h, s->label_ids + at, s->label_logp + at,
                                s->label_tail + row));
        if (h.temperature != j->distill.temperature || (*k && h.k != *k))
            return neb_fail(NEB_ERR_FORMAT,
                            "labels have temperature %g and k %d, but %g and %d are due",
                            (double)h.temperature, h.k, (double)j->distill.temperature, *k);
        *k = h.k;
        row += (size_t)t->micro_rows[a];
    }
    return neb_rd_done(&r) ? NEB_OK : neb_fail(NEB_ERR_FORMAT, "labels are too long");
}

static enum neb_status learned(struct nebula_side *s, double loss, uint64_t tokens) {
    struct agent_exchange *x = &s->n->x;
    const struct text *t = &s->all[s->step % s->n_all];
    const struct exchange_figures f = {loss, 0, NAN};
    s->rows += (uint64_t)t->rows;
    NEB_TRY(agent_stream_applied(s->peers[0].labels));
    intra_loss_add(&x->loss_first, &x->loss_last, loss);
    exchange_made_step(x, &f, tokens, neb_seconds(neb_now() - s->n->step_end));
    s->step++;
    s->learning = false;
    return exchange_drain(x);
}

static int state_of(const struct nebula_side *s) {
    bool done = s->teaches ? all_labelled(s) : s->step >= job_of(s)->steps;
    return s->n->x.stop ? NEBULA_STOP : done ? NEBULA_DONE : NEBULA_TRAIN;
}

int nebula_side_learned(struct nebula_side *s, double loss, uint64_t tokens, int *state) {
    LIB_POINT;
    int st = usable(s, "nebula_side_learned", false, false);
    if (st)
        return st;
    if (!s->learning)
        return lib_fail(NEBULA_ERR_STATE, "nebula_side_learned: call nebula_side_next first");
    st = end_call(s, learned(s, loss, tokens));
    *state = s->n->state = state_of(s);
    return st;
}

int nebula_side_saved(struct nebula_side *s) {
    LIB_POINT;
    int st = usable(s, "nebula_side_saved", false, false);
    if (st)
        return st;
    struct agent_stream *l = s->peers[0].labels;
    l->want_checkpoint = false;
    return end_call(s, agent_stream_saved(l, (uint64_t)s->step, 1, true));
}

// ---- both ---------------------------------------------------------------------------------------

static void give_text(const struct nebula_side *s, const struct text *t, struct nebula_text *out) {
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
    const uint8_t *p;
    size_t n;
    NEB_TRY(exchange_drain(&s->n->x));
    if (s->teaches) {
        if (s->serves < 0)
            NEB_TRY(look_for_text(s));
        if ((*here = s->serves >= 0))
            give_text(s, &s->all[0], out);
        return NEB_OK;
    }
    if (agent_stream_next(s->peers[0].labels, &p, &n) != NEB_OK)
        return NEB_OK;
    if (!s->learning) {
        NEB_TRY(read_labels(s, p, n, &out->k));
        s->put_bytes += n;
    }
    *here = s->learning = true;
    give_text(s, &s->all[s->step % s->n_all], out);
    out->label_ids = s->label_ids;
    out->label_logprobs = s->label_logp;
    out->label_tails = s->label_tail;
    return NEB_OK;
}

int nebula_side_next(struct nebula_side *s, double timeout_s, struct nebula_text *out, int *state) {
    LIB_POINT;
    neb_ns end = neb_now() + (neb_ns)(timeout_s * 1e9);
    int st = usable(s, "nebula_side_next", false, true);
    if (st)
        return st;
    if (!out || out->size != sizeof *out || !state)
        return lib_fail(NEBULA_ERR_INVALID, "nebula_side_next: NULL, or the size is not set");
    *out = (struct nebula_text){.size = sizeof *out};
    if (!s->teaches && s->step < job_of(s)->steps &&
        s->peers[0].requests->next <= (uint64_t)s->step)
        return lib_fail(NEBULA_ERR_STATE, "nebula_side_next: step %lld was not asked for",
                        (long long)s->step);
    if (s->learning)
        return lib_fail(NEBULA_ERR_STATE, "nebula_side_next: call nebula_side_learned first");
    for (bool here = false;;) {
        enum neb_status found = look(s, out, &here);
        *state = s->n->state = state_of(s);
        if (found == NEB_OK && (here || *state != NEBULA_TRAIN)) {
            s->n->step_end = neb_now();
            return NEBULA_OK;
        }
        if (found == NEB_OK && timeout_s > 0 && neb_now() >= end)
            return lib_fail(NEBULA_ERR_NOT_FOUND, "nebula_side_next: nothing has come for %g s",
                            timeout_s);
        if (found == NEB_OK)
            found = wait_a_little(s);
        if (found != NEB_OK)
            return end_call(s, found);
    }
}

// The agent keeps labels only as long as this program has not reported.
static enum neb_status wait_taken(struct nebula_side *s) {
    for (int32_t i = 0; i < s->n_peers; i++) {
        struct agent_stream *l = s->peers[i].labels;
        while (s->teaches && l->durable < l->next && !s->n->x.stop)
            NEB_TRY(wait_a_little(s));
    }
    return NEB_OK;
}

static enum neb_status report(struct nebula_side *s, double eval_loss) {
    struct agent_exchange *x = &s->n->x;
    struct exchange_results r = {
        .device = "attached", .eval_loss = eval_loss, .done = s->n->state == NEBULA_DONE};
    json_t *results, *quality;
    if (!s->teaches && r.done)
        NEB_TRY(agent_stream_saved(s->peers[0].labels, (uint64_t)s->step, 1, true));
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
    return exchange_report(x, results,
                           json_pack("{s:s,s:i,s:I,s:I,s:o}", "role",
                                     s->teaches ? "teacher" : "student", "vocab",
                                     job_of(s)->model.vocab, "steps_alone", (json_int_t)0,
                                     "label_rows", (json_int_t)s->rows, "quality", quality));
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
    else if (agent_ipc_send(s->n->x.link.ipc, NULL, json_pack("{s:s}", "op", "detach"), NULL, 0) !=
             NEB_OK)
        neb_debug("the agent is gone");
    int code = lib_pass(st);
    destroy(s);
    return code;
}
