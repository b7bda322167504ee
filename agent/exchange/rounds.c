// SPDX-License-Identifier: Apache-2.0
// The fragments of a worker: what is sent, what comes back, and the merge.
#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "agent/exchange/exchange.h"
#include "agent/job/update_size.h"
#include "intra/train/shards.h"

#include <stdlib.h>
#include <string.h>

// Notes the trainer's counters as they are now.
static enum neb_status count(struct agent_exchange *x, uint64_t *out) {
    return x->trainer.n_counters ? x->trainer.ops->counts(x->trainer.user, out) : NEB_OK;
}

enum neb_status exchange_count_from_here(struct agent_exchange *x, int32_t f) {
    NEB_TRY(exchange_count_tokens(x));
    x->kept[f].tokens_base = x->all_tokens;
    return count(x, x->kept[f].counts_base);
}

enum neb_status exchange_begin_counts(struct agent_exchange *x, int32_t f) {
    x->frags[f].merged_step = x->frags[f].committed_step = x->step;
    x->kept[f].steps_base = x->step;
    return exchange_count_from_here(x, f);
}

// The first run may have committed a later send than this repeated run has made so far. At the step
// of that send this notes tokens and rows as they were then.
enum neb_status exchange_at_cursor(struct agent_exchange *x, int32_t f) {
    const struct agent_fragment *g = &x->frags[f];
    struct agent_flight *t = &x->flight[f];
    if (g->in_flight && t->here && (t->mine || t->rejected) && t->cursor > g->send_step &&
        t->cursor == x->step) {
        NEB_TRY(exchange_count_tokens(x));
        t->tokens_at_send = x->all_tokens;
        t->at_cursor = true;
        return count(x, x->kept[f].counts_sent);
    }
    if (!g->in_flight && g->committed_step > g->send_step && g->committed_step == x->step)
        return exchange_count_from_here(x, f); // the merge came before this step
    return NEB_OK;
}

struct count_source {
    const struct agent_exchange *x;
    int32_t f;
};

// Tokens seen of each row of a unit since the fragment's last committed send.
static void unit_counts(void *user, int32_t unit, uint64_t *out) {
    const struct count_source *c = user;
    const struct agent_exchange *x = c->x;
    const struct agent_unit *u = &x->trainer.units[unit];
    const uint64_t *base = x->kept[c->f].counts_base;
    bool coarse = x->job.sync.row_counts == AGENT_ROWS_COARSE;
    uint64_t tokens = x->kept[c->f].tokens_base;
    double share =
        x->all_tokens > tokens ? (double)(x->all_tokens - tokens) / (double)x->all_tokens : 0;
    for (uint32_t r = 0; r < u->rows; r++) {
        uint64_t all = 0, before = 0;
        for (int k = 0; k < 2; k++)
            if (u->counter[k] >= 0) {
                all += x->counters[u->counter[k] + r];
                before += base[u->counter[k] + r];
            }
        out[r] = coarse ? cmp_count_coarse(all - before, all, share) : all - before;
    }
}

enum neb_status exchange_resubmit(struct agent_exchange *x, int32_t f) {
    const struct agent_flight *t = &x->flight[f];
    struct agent_ipc_part part = {t->blob.p, t->blob.len};
    const struct agent_part_key key = {f, x->frags[f].round, t->retries};
    bool carried = agent_shards_carried(x->shards) && !exchange_follows(x, f);
    char hex[33];
    if (carried)
        NEB_TRY(agent_shards_send(x->shards, &key));
    exchange_digest_hex(&x->kept[f].last_digest, hex);
    json_t *head = json_pack(
        "{s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:b,s:s,s:o}", "op", "update", "again",
        (json_int_t)t->retries, "round", (json_int_t)x->frags[f].round, "fragment", (json_int_t)f,
        "tokens", (json_int_t)t->tokens, "step", (json_int_t)x->frags[f].send_step, "steps",
        (json_int_t)t->steps, "missed", (json_int_t)t->missed, "final", x->frags[f].sent_final,
        "digest", hex, "measure", exchange_plan_measure(x, f));
    if (head && carried)
        json_object_set_new(head, "carried", json_true());
    return agent_ipc_send(x->link.ipc, NULL, head, &part, 1);
}

// Limits the missed intervals to those that fit in the steps. An absence over several attempts
// counts some of them twice, and so does a last update that is late repeatedly. The other members
// would refuse such an update.
static uint32_t missed_by(const struct agent_exchange *x, int32_t f, uint32_t counted,
                          uint32_t steps) {
    const struct agent_sync *s = &x->job.sync;
    int64_t from = x->step - steps, early = from < s->early_steps ? s->early_steps - from : 0;
    early = early < steps ? early : steps;
    int64_t most = (steps - early) / s->interval + (early ? early / s->early_interval : 0);
    most = most / agent_schedule_every(&x->schedule, f) + 1;
    return counted < most ? counted : (uint32_t)most;
}

// Notes what has begun. It ends at once if nothing may be deferred.
static enum neb_status begun(struct agent_exchange *x, enum exchange_begun what, int32_t f,
                             neb_ns since) {
    x->pending.is = what;
    x->pending.f = f;
    x->pending.since = since;
    x->sync_s += neb_seconds(neb_now() - since);
    return agent_shards_deferred(x->shards) ? NEB_OK : exchange_complete(x, true);
}

static enum neb_status encode_begin(struct agent_exchange *x, int32_t f,
                                    const struct cmp_codec *codec) {
    struct agent_flight *t = &x->flight[f];
    struct count_source counts = {x, f};
    NEB_TRY(count(x, x->counters));
    if (exchange_follows(x, f)) {
        neb_buf_clear(&t->blob);
        cmp_update_begin(&t->blob, 0);
        t->payload = t->blob.len;
        return neb_buf_check(&t->blob);
    }
    return agent_shards_encode_begin(x->shards, f, x->frags[f].round, codec, unit_counts, &counts,
                                     x->job.sync.tune.mode == AGENT_TUNE_AUTO, &t->blob);
}

static enum neb_status encode_end(struct agent_exchange *x, int32_t f) {
    struct agent_flight *t = &x->flight[f];
    bool measured = x->job.sync.tune.mode == AGENT_TUNE_AUTO;
    if (exchange_follows(x, f))
        return NEB_OK;
    enum neb_status st = agent_shards_encode_end(x->shards, measured ? &t->error : NULL, &t->blob);
    t->payload = agent_shards_payload(x->shards, f);
    return st;
}

enum neb_status exchange_encode(struct agent_exchange *x, int32_t f,
                                const struct cmp_codec *codec) {
    NEB_TRY(encode_begin(x, f, codec));
    return encode_end(x, f);
}

// The update is encoded: submits it.
static enum neb_status sent(struct agent_exchange *x, int32_t f) {
    struct agent_flight *t = &x->flight[f];
    NEB_TRY(encode_end(x, f));
    t->sent_at = neb_now();
    t->encode_s = neb_seconds(t->sent_at - x->pending.since);
    x->payload_bytes += t->payload;
    return exchange_resubmit(x, f);
}

enum neb_status exchange_send(struct agent_exchange *x, int32_t f) {
    struct agent_fragment *g = &x->frags[f];
    struct agent_flight *t = &x->flight[f];
    struct exchange_fragment *k = &x->kept[f];
    neb_ns start = neb_now();
    NEB_TRY(exchange_complete(x, true));
    NEB_TRY(exchange_count_tokens(x));
    exchange_heartbeat(x, false, 0);
    t->retries = g->in_flight ? t->retries + 1 : 0;
    t->steps = x->step > k->steps_base ? (uint32_t)(x->step - k->steps_base) : 0;
    g->missed = missed_by(x, f, g->missed + (g->in_flight ? t->missed : 0), t->steps);
    bool merge = g->missed > (uint32_t)x->job.sync.merge_after;
    struct cmp_codec codec;
    NEB_TRY(exchange_plan_codec(x, f, merge, &codec));
    NEB_TRY(encode_begin(x, f, &codec));
    t->stall_s = 0;
    memcpy(k->counts_sent, x->counters, x->trainer.n_counters * sizeof *x->counters);
    t->tokens = x->all_tokens > k->tokens_base && !exchange_follows(x, f)
                    ? x->all_tokens - k->tokens_base
                    : 0;
    t->tokens_at_send = x->all_tokens;
    t->missed = g->missed; // they count for the update that carries their steps
    g->missed = 0;
    g->in_flight = true;
    g->arrived = t->here; // true in a repeated run
    g->sent_final = x->step >= x->schedule.steps;
    g->send_step = x->step;
    exchange_plan_sent(x, f);
    for (size_t i = 0; i < x->merges.n; i++) // a repeated run merges at the logged step
        if (x->merges.log[i].fragment == (uint32_t)f && x->merges.log[i].round == g->round)
            g->merge_step = x->merges.log[i].step;
    x->masked_sent += x->sum != NULL;
    x->payload_params += agent_job_groups(&x->job) == 1
                             ? x->elements / (uint64_t)exchange_fragments(x)
                             : k->elements;
    return begun(x, EXCHANGE_SENDS, f, start);
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

enum neb_status exchange_take_commit(struct agent_exchange *x, struct agent_ipc_msg *m) {
    int64_t f = agent_ipc_int(m, "fragment", -1), round = agent_ipc_int(m, "round", -1);
    json_t *entries = json_object_get(m->head, "entries"), *e;
    size_t i;
    if (f < 0 || f >= exchange_fragments(x) || json_array_size(entries) != m->n_parts)
        return neb_fail(NEB_ERR_FORMAT, "the agent sent a malformed commit");
    struct agent_fragment *g = &x->frags[f];
    struct agent_flight *t = &x->flight[f];
    int32_t owner = agent_job_fragment_owner(&x->job, (int32_t)f);
    if (t->here || round != (int64_t)g->round)
        return NEB_OK; // a duplicate, or a later round: exchange_merge asks for it in time
    agent_ipc_msg_take_parts(&t->message, m);
    t->n = 0;
    t->mine = t->at_cursor = false;
    t->cursor = (int64_t)json_integer_value(json_object_get(m->head, "cursor"));
    t->former = false;
    json_array_foreach(entries, i, e) {
        bool own = json_integer_value(json_object_get(e, "member")) == x->cluster;
        // this process does not have what was sent before the disk was lost
        bool mine = own && !x->lost;
        t->former |= own && json_integer_value(json_object_get(e, "attempt")) < x->incarnation;
        t->mine |= mine;
        if (owner >= 0 && owner != json_integer_value(json_object_get(e, "member")))
            continue; // an empty update
        t->commit.index[t->n] = (uint8_t)i;
        t->parts[t->n++] = (struct inter_outer_part){
            .blob = t->message.parts[i].p,
            .len = t->message.parts[i].len,
            .mine = mine,
            .tokens = (uint64_t)json_integer_value(json_object_get(e, "tokens")),
            .weight = (uint64_t)json_integer_value(json_object_get(e, "weight")),
            .clip = (float)json_number_value(json_object_get(e, "clip"))};
    }
    NEB_TRY(exchange_masked_seeds(x, t, json_object_get(m->head, "seeds")));
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

enum neb_status exchange_request_commit(struct agent_exchange *x, int32_t f) {
    return agent_ipc_send(x->link.ipc, NULL,
                          json_pack("{s:s,s:I,s:I}", "op", "ready", "fragment", (json_int_t)f,
                                    "round", (json_int_t)x->frags[f].round),
                          NULL, 0);
}

// Drops our update, as all members do; the tokens behind it are lost too.
static bool drop_rejected(struct agent_exchange *x, int32_t f) {
    struct agent_flight *t = &x->flight[f];
    if (!t->rejected || !x->frags[f].in_flight)
        return false;
    if (t->unread && t->tokens)
        neb_warn("round %u: too few other clusters have trained since the last one, so the sum "
                 "would reveal this cluster's update. The sum is not read, and %u steps of "
                 "learning in fragment %d are dropped",
                 x->frags[f].round, t->steps, f);
    else if (!t->unread)
        neb_log(NEB_LOG_ERROR,
                "round %u: the gate refused the update of this cluster; %u steps of learning in "
                "fragment %d are dropped",
                x->frags[f].round, t->steps, f);
    t->mine = true; // its steps are settled
    return true;
}

// Sets the counters by the record. An update may be committed although a newer one replaced it.
// Then what the newer one added still counts. An update of a previous incarnation may contain more
// than this process has seen.
static enum neb_status settle_counts(struct agent_exchange *x, int32_t f) {
    const struct agent_flight *t = &x->flight[f];
    struct agent_fragment *g = &x->frags[f];
    struct exchange_fragment *k = &x->kept[f];
    bool listed = false;
    for (uint32_t i = 0; i < t->n; i++) {
        k->tokens_base += t->parts[i].mine ? t->parts[i].tokens : 0;
        listed |= t->parts[i].mine;
    }
    // The first run may have sent more than this repeated run, and the gate may have refused that
    // update. This run makes those steps again, but they are committed: until then,
    // exchange_at_cursor counts from their end.
    bool beyond = t->cursor > g->send_step;
    k->steps_base = g->committed_step = listed || beyond ? t->cursor : g->send_step;
    if (beyond && !t->at_cursor) {
        uint64_t base = k->tokens_base;
        NEB_TRY(exchange_count_from_here(x, f));
        k->tokens_base = listed && base < k->tokens_base ? base : k->tokens_base;
        return NEB_OK;
    }
    if (!listed || beyond || k->tokens_base > t->tokens_at_send)
        k->tokens_base = t->tokens_at_send;
    memcpy(k->counts_base, k->counts_sent, x->trainer.n_counters * sizeof *k->counts_base);
    return NEB_OK;
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

// For tests: changes one value in memory.
static enum neb_status flip_for_test(const struct agent_exchange *x) {
    char point[sizeof "worker.flip." + AGENT_NAME_MAX];
    struct inter_outer_array arrays[INTER_OUTER_ARRAYS];
    snprintf(point, sizeof point, "worker.flip.%s", x->job.clusters[x->cluster].name);
    if (!neb_fault(point))
        return NEB_OK;
    inter_outer_arrays(x->outer, arrays);
    agent_shards_join(x->shards);
    NEB_TRY(inter_outer_pull(x->outer));
    arrays[0].p[0] += 0.001f;
    return inter_outer_push(x->outer);
}

static json_t *round_line(const struct agent_exchange *x, int32_t f, neb_ns start) {
    const struct agent_fragment *g = &x->frags[f];
    const struct agent_flight *t = &x->flight[f];
    const struct cmp_variant *level = cmp_level(t->codec);
    char codec[32];
    cmp_codec_name(t->missed > (uint32_t)x->job.sync.merge_after ? &x->kept[f].merge_codec
                                                                 : &x->kept[f].codec,
                   codec, sizeof codec);
    if (level)
        snprintf(codec, sizeof codec, "%s", level->name);
    if (x->sum)
        snprintf(codec, sizeof codec, "sum16");
    return json_pack(
        "{s:s,s:I,s:I,s:I,s:I,s:s,s:I,s:s,s:f,s:f,s:f,s:f,s:b,s:I,s:I,s:f,s:f,s:f,s:I,s:i}", "kind",
        "round", "updates", (json_int_t)t->n, "round", (json_int_t)g->round, "fragment",
        (json_int_t)f, "step", (json_int_t)x->step, "digest", "", "payload_bytes",
        (json_int_t)t->payload, "codec", codec, "encode_s", t->encode_s, "travel_s",
        neb_seconds(t->arrived_at - t->sent_at), "held_s", neb_seconds(start - t->arrived_at),
        "apply_s", neb_seconds(neb_now() - start), "merge", t->merge, "missed",
        (json_int_t)t->missed, "overlap", (json_int_t)(g->merge_step - g->send_step), "stall_s",
        t->stall_s, "error", (double)t->error, "share", own_share(t), "tokens",
        (json_int_t)t->tokens, "interval", agent_schedule_interval(&x->schedule, x->step));
}

static enum neb_status merged(struct agent_exchange *x, int32_t f) {
    json_t *line = x->pending.line;
    char hex[33];
    x->pending.line = NULL;
    enum neb_status st = agent_shards_merge_end(x->shards, &x->kept[f].last_digest);
    exchange_digest_hex(&x->kept[f].last_digest, hex);
    json_object_set_new(line, "digest", json_string(hex));
    if (st == NEB_OK)
        exchange_metrics(x, line);
    else
        json_decref(line);
    return st;
}

enum neb_status exchange_complete(struct agent_exchange *x, bool wait) {
    enum exchange_begun is = x->pending.is;
    neb_ns start = neb_now();
    if (is == EXCHANGE_NOTHING || (!wait && agent_shards_busy(x->shards)))
        return NEB_OK;
    x->pending.is = EXCHANGE_NOTHING;
    agent_shards_join(x->shards);
    if (is == EXCHANGE_SENDS)
        NEB_TRY(sent(x, x->pending.f));
    if (is == EXCHANGE_MERGES)
        NEB_TRY(merged(x, x->pending.f));
    x->sync_s += neb_seconds(neb_now() - start);
    return NEB_OK;
}

// The round of fragment f as its commit says.
static struct inter_outer_round round_of(const struct agent_exchange *x, int32_t f) {
    const struct agent_flight *t = &x->flight[f];
    return (struct inter_outer_round){
        t->parts, t->n, t->eta, t->mu, t->merge, t->all_final || exchange_follows(x, f), &t->seeds};
}

static enum neb_status open_commit(struct agent_exchange *x, int32_t f) {
    const struct inter_outer_round r = round_of(x, f);
    x->flight[f].commit.round = x->frags[f].round;
    agent_shards_expect(x->shards, &x->flight[f].commit);
    return agent_shards_open(x->shards, f, &r);
}

enum neb_status exchange_open_next(struct agent_exchange *x) {
    if (!agent_shards_deferred(x->shards) || x->pending.is || agent_shards_opened(x->shards) >= 0)
        return NEB_OK;
    for (int32_t f = 0; f < exchange_fragments(x); f++) {
        const struct agent_fragment *g = &x->frags[f];
        const struct agent_flight *t = &x->flight[f];
        if (!g->in_flight || !t->here || t->rejected || !t->n || x->step >= g->merge_step)
            continue;
        NEB_TRY(open_commit(x, f));
        return begun(x, EXCHANGE_OPENS, f, neb_now());
    }
    return NEB_OK;
}

// Warns when this cluster is left out repeatedly although all links are up: its updates take longer
// than the others wait. Reported after 4 rounds, 8, 16, …
static void say_left_out(struct agent_exchange *x, int32_t f) {
    enum { FIRST = 4 };
    const struct agent_flight *t = &x->flight[f];
    char text[256];
    double took = neb_seconds(t->arrived_at - t->sent_at);
    // not so if a link is down, or while it catches up with an old round
    if (x->link.alive < x->link.others || took < (double)x->job.sync.grace_s)
        return;
    x->left_out_rounds++;
    if (x->left_out_rounds < FIRST || x->left_out_rounds & (x->left_out_rounds - 1))
        return;
    snprintf(text, sizeof text,
             "left out of %u rounds in a row although all links are up: the others had not "
             "received all of its %.3g MB after %.3g s, and they wait sync.grace_s, %g s. Raise "
             "sync.grace_s, or send less (sync.interval, codec, fragments)",
             x->left_out_rounds, (double)t->payload / 1e6, took, (double)x->job.sync.grace_s);
    exchange_fault(x, text);
}

enum neb_status exchange_merge(struct agent_exchange *x, int32_t f) {
    struct agent_fragment *g = &x->frags[f];
    struct agent_flight *t = &x->flight[f];
    struct exchange_fragment *k = &x->kept[f];
    struct inter_outer_round r = round_of(x, f);
    neb_ns start = neb_now();
    bool foreign = !g->in_flight; // others continued without us
    NEB_TRY(exchange_complete(x, true));
    exchange_heartbeat(x, false, 0);
    NEB_TRY(exchange_log_merge(x, f));
    // an update that is taken over contains the same steps as the work of this incarnation
    bool reject = drop_rejected(x, f) || t->taken_over;
    if (agent_shards_deferred(x->shards) && agent_shards_opened(x->shards) != f && r.n && !reject)
        NEB_TRY(open_commit(x, f));
    t->commit.round = g->round;
    agent_shards_expect(x->shards, &t->commit);
    NEB_TRY(agent_shards_merge_begin(x->shards, f, reject, &r));
    agent_ipc_msg_clear(&t->message);
    neb_buf_free(&t->blob);
    if (foreign)
        t->mine = false; // the update is from a previous incarnation
    x->left_out_rounds = t->mine ? 0 : x->left_out_rounds;
    if (t->mine) // otherwise tokens and row counts carry over, like the residual
        NEB_TRY(settle_counts(x, f));
    NEB_TRY(flip_for_test(x));
    x->pending.line = round_line(x, f, start);
    exchange_plan_merged(x, f);
    if (t->taken_over || (t->mine && t->cursor > g->send_step)) // the commits contain them
        g->missed = 0;
    else if (g->in_flight &&
             !t->mine) { // late: the next update carries all steps, also those of missed intervals
        g->missed += t->missed + 1;
        say_left_out(x, f);
    }
    // the round has the update from before the outage: the next update carries the missed intervals
    else if (g->in_flight && t->retries && k->tokens_base < t->tokens_at_send)
        g->missed += t->missed;
    g->in_flight = g->arrived = t->here = t->rejected = t->taken_over = false;
    g->round++;
    g->merged_step = x->step;
    g->finished = t->all_final;
    x->rounds++;
    NEB_TRY(begun(x, EXCHANGE_MERGES, f, start));
    return g->finished ? NEB_OK : exchange_request_commit(x, f);
}

enum neb_status exchange_take_over(struct agent_exchange *x, int32_t f) {
    struct agent_flight *t = &x->flight[f];
    int64_t cursor = t->cursor;
    for (uint32_t i = 0; i < t->n; i++) // this process does not have the update that was sent then
        t->parts[i].mine = false;
    t->mine = false;
    t->taken_over = true;
    neb_log(NEB_LOG_WARN,
            "round %u: an update that this cluster sent before it lost its disk is committed: "
            "fragment %d and the data continue from step %lld, not %lld",
            x->frags[f].round, f, (long long)cursor, (long long)x->step);
    // the merge is logged, so a repeated run takes the update over at the same step
    enum neb_status st = exchange_merge(x, f);
    if (st == NEB_OK && cursor > x->step)
        st = exchange_skip_steps(x, cursor - x->step);
    return st == NEB_OK ? exchange_begin_counts(x, f) : st;
}
