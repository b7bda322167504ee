// SPDX-License-Identifier: Apache-2.0
#include "inter/stream/streams.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "inter/stream/wire.h"

#include <stdlib.h>
#include <string.h>

struct inter_streams {
    struct inter_streams_config c;
    char dir[NEB_PATH_MAX];
    struct inter_streams_callbacks cb;
    struct inter_spool *spool;
    int n;
    struct inter_stream *list[INTER_STREAMS_MAX];
    struct inter_stream_actions actions;
    struct neb_buf body, head;
    bool up[NEB_MEMBERS_MAX];
    uint64_t session; // the newest of ours
    bool unreadable;  // the last step failed because a batch of the spool cannot be read
};

static bool same_key(const struct inter_stream_key *a, const struct inter_stream_key *b) {
    return a->id == b->id && !memcmp(a->job, b->job, sizeof a->job);
}

static struct inter_stream *find_stream(const struct inter_streams *s,
                                        const struct inter_stream_key *k) {
    for (int i = 0; i < s->n; i++)
        if (same_key(&inter_stream_config_of(s->list[i])->key, k))
            return s->list[i];
    return NULL;
}

enum neb_status inter_streams_create(const struct inter_streams_config *c,
                                     struct inter_streams **out) {
    struct inter_streams *s = calloc(1, sizeof *s);
    if (!s)
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating streams");
    s->c = *c;
    if (strlen(c->dir) >= sizeof s->dir) {
        free(s);
        return neb_fail(NEB_ERR_LIMIT, "%s: name too long", c->dir);
    }
    memcpy(s->dir, c->dir, strlen(c->dir) + 1);
    *out = s;
    return NEB_OK;
}

void inter_streams_destroy(struct inter_streams **sp) {
    struct inter_streams *s = *sp;
    if (!s)
        return;
    for (int i = 0; i < s->n; i++)
        inter_stream_destroy(&s->list[i]);
    inter_spool_close(&s->spool);
    inter_stream_actions_free(&s->actions);
    neb_buf_free(&s->body);
    neb_buf_free(&s->head);
    free(s);
    *sp = NULL;
}

void inter_streams_listen(struct inter_streams *s, const struct inter_streams_callbacks *c) {
    s->cb = *c;
}

// ---- carry out actions --------------------------------------------------------------------------

static enum neb_status send_batch(struct inter_streams *s, struct inter_stream *t, uint64_t seq,
                                  bool *sent) {
    const struct inter_stream_config *c = inter_stream_config_of(t);
    *sent = false;
    if (!inter_job_limits_pass(s->c.limits, c->key.job, neb_now()))
        return NEB_OK;
    enum neb_status st = inter_spool_get(s->spool, &c->key, seq, &s->body);
    s->unreadable = st != NEB_OK && st != NEB_ERR_NOMEM;
    if (st == NEB_ERR_NOT_FOUND)
        return neb_fail(NEB_ERR_CORRUPT, "%s/streams.db: batch %llu of stream %u is gone", s->dir,
                        (unsigned long long)seq, c->key.id);
    NEB_TRY(st);
    neb_buf_clear(&s->head);
    neb_ns age = inter_stream_put_age(t, neb_now(), seq);
    NEB_TRY(inter_stream_data_header(t, seq, age < 0 ? 0 : neb_wall_now() - age, s->body.p,
                                     s->body.len, &s->head));
    uint64_t way;
    st = inter_link_send_on(*s->c.link, c->peer, INTER_BULK, s->head.p, s->head.len, s->body.p,
                            s->body.len, &way);
    *sent = st == NEB_OK;
    if (*sent) {
        inter_stream_sent_on(t, seq, way);
        inter_job_limits_sent(s->c.limits, c->key.job,
                              inter_tcp_wire_bytes(1 + s->head.len + s->body.len));
    }
    return st == NEB_ERR_AGAIN ? NEB_OK : st;
}

// Age of a batch, by this side's clock; -1: not known, or the clocks disagree too much.
static neb_ns age_of(const struct inter_streams *s, uint32_t peer,
                     const struct inter_stream_action *a) {
    struct inter_link_stats link;
    if (a->put_at <= 0 || inter_link_stats(*s->c.link, peer, &link) != NEB_OK)
        return -1;
    neb_ns age = neb_wall_now() + link.clock_offset - a->put_at;
    return age < 0 ? 0 : age > 3600 * NEB_S ? -1 : age;
}

static void tell_terms(struct inter_streams *s, const struct inter_stream_config *c,
                       const struct inter_stream_action *a) {
    static const uint8_t none[INTER_SHA_BYTES];
    char text[320], ours[2 * INTER_SHA_BYTES + 1], theirs[2 * INTER_SHA_BYTES + 1];
    neb_hex(a->ours, INTER_SHA_BYTES, ours);
    neb_hex(a->theirs, INTER_SHA_BYTES, theirs);
    snprintf(text, sizeof text,
             "%s differs between the clusters: here %s, there %s; both must use the same", a->term,
             memcmp(a->ours, none, sizeof none) ? ours : "none",
             memcmp(a->theirs, none, sizeof none) ? theirs : "none");
    neb_log(NEB_LOG_ERROR, "stream %u: %s", c->key.id, text);
    if (s->cb.refused)
        s->cb.refused(s->cb.user, c, true, text);
}

static void tell_worker(struct inter_streams *s, const struct inter_stream *t,
                        const struct inter_stream_action *a) {
    const struct inter_stream_config *c = inter_stream_config_of(t);
    struct inter_stream_stats now;
    inter_stream_stats(t, &now);
    if (s->cb.act)
        s->cb.act(s->cb.user, c, a, &now, age_of(s, c->peer, a));
}

static enum neb_status carry_out(struct inter_streams *s, struct inter_stream *t,
                                 const struct inter_stream_action *a, bool *sent) {
    const struct inter_stream_config *c = inter_stream_config_of(t);
    enum neb_status st;
    *sent = true;
    switch (a->kind) {
    case INTER_STREAM_ACT_SEND_CONTROL:
        st = inter_link_send(*s->c.link, c->peer, INTER_CONTROL, s->actions.bytes.p + a->at,
                             a->size);
        return st == NEB_ERR_AGAIN ? NEB_OK : st; // the endpoint sends it again
    case INTER_STREAM_ACT_SEND: return send_batch(s, t, a->seq, sent);
    case INTER_STREAM_ACT_STORE: return inter_spool_put(s->spool, &c->key, a->seq, a->view, a->len);
    case INTER_STREAM_ACT_DROP:
        if (inter_spool_drop(s->spool, &c->key, a->seq) != NEB_OK)
            neb_warn("stream %u: cannot drop batches that are no longer needed; tries again with "
                     "the next drop",
                     c->key.id);
        return NEB_OK;
    case INTER_STREAM_ACT_TERMS: tell_terms(s, c, a); return NEB_OK;
    default: tell_worker(s, t, a); return NEB_OK;
    }
}

static enum neb_status step(struct inter_streams *s, struct inter_stream *t,
                            const struct inter_stream_event *e) {
    // The first batch that the link did not take. It and all later ones are sent again.
    uint64_t failed = UINT64_MAX;
    s->unreadable = false;
    NEB_TRY(inter_stream_step(t, neb_now(), e, &s->actions));
    for (size_t i = 0; i < s->actions.n; i++) {
        const struct inter_stream_action *a = &s->actions.list[i];
        bool sent;
        if (a->kind == INTER_STREAM_ACT_SEND && a->seq > failed)
            continue;
        NEB_TRY(carry_out(s, t, a, &sent));
        failed = sent || failed != UINT64_MAX ? failed : a->seq;
    }
    if (failed == UINT64_MAX)
        return NEB_OK;
    return inter_stream_step(
        t, neb_now(),
        &(struct inter_stream_event){.kind = INTER_STREAM_EV_SEND_FAILED, .seq = failed},
        &s->actions);
}

// ---- streams ------------------------------------------------------------------------------------

static bool same_config(const struct inter_stream_config *a, const struct inter_stream_config *b) {
    bool same = a->type == b->type && a->role == b->role && a->peer == b->peer &&
                a->batch_bytes == b->batch_bytes && a->window_batches == b->window_batches &&
                a->window_start == b->window_start && a->window_bytes == b->window_bytes &&
                a->spool_batches == b->spool_batches && a->spool_bytes == b->spool_bytes &&
                a->measured == b->measured && a->n_terms == b->n_terms;
    for (uint32_t i = 0; same && i < a->n_terms; i++)
        same = !strcmp(a->terms[i].name, b->terms[i].name) &&
               !memcmp(a->terms[i].sha256, b->terms[i].sha256, INTER_SHA_BYTES);
    return same;
}

static void drop_stream(struct inter_streams *s, struct inter_stream *t) {
    int kept = 0;
    for (int i = 0; i < s->n; i++)
        if (s->list[i] != t)
            s->list[kept++] = s->list[i];
    s->n = kept;
    inter_stream_destroy(&t);
}

static enum neb_status open_spool(struct inter_streams *s) {
    if (s->spool)
        return NEB_OK;
    NEB_TRY(inter_spool_open(s->dir, &s->spool));
    inter_spool_seal(s->spool, s->c.seal);
    return NEB_OK;
}

enum neb_status inter_streams_open(struct inter_streams *s, const struct inter_stream_config *c) {
    struct inter_stream *t = find_stream(s, &c->key);
    if (t && same_config(inter_stream_config_of(t), c))
        return NEB_OK;
    if (t)
        return neb_fail(NEB_ERR_EXISTS, "stream %u is open with other limits or terms", c->key.id);
    if (s->n == INTER_STREAMS_MAX || c->peer >= NEB_MEMBERS_MAX)
        return neb_fail(NEB_ERR_LIMIT,
                        "stream %u: cannot open it: %d streams are open, which is the limit",
                        c->key.id, s->n);
    if (c->role == INTER_STREAM_PRODUCER)
        NEB_TRY(open_spool(s));
    NEB_TRY(inter_stream_create(c, s->c.crypto, &t));
    enum neb_status st =
        c->role == INTER_STREAM_PRODUCER ? inter_spool_restore(s->spool, t) : NEB_OK;
    if (st != NEB_OK) {
        inter_stream_destroy(&t);
        return st;
    }
    s->list[s->n++] = t;
    if (s->up[c->peer])
        st = step(s, t, &(struct inter_stream_event){.kind = INTER_STREAM_EV_PEER_UP});
    if (st != NEB_OK)
        drop_stream(s, t); // the next opening restores it
    return st;
}

enum neb_status inter_streams_put(struct inter_streams *s, const struct inter_stream_key *k,
                                  uint64_t seq, const void *p, size_t n) {
    struct inter_stream *t = find_stream(s, k);
    struct inter_stream_stats before, after;
    if (!t || inter_stream_config_of(t)->role != INTER_STREAM_PRODUCER)
        return neb_fail(NEB_ERR_NOT_FOUND, "stream %u is not open here for writing", k->id);
    inter_stream_stats(t, &before);
    enum neb_status st = step(
        s, t,
        &(struct inter_stream_event){.kind = INTER_STREAM_EV_PUT, .seq = seq, .data = p, .len = n});
    // The endpoint may count a batch that is not on disk. The next opening restores what is there.
    if (st != NEB_OK) {
        drop_stream(s, t);
        return st;
    }
    inter_stream_stats(t, &after);
    bool outside =
        after.faults[INTER_STREAM_FAULT_OUTSIDE] > before.faults[INTER_STREAM_FAULT_OUTSIDE];
    if (outside && seq > after.next)
        return neb_fail(
            NEB_ERR_STATE,
            "%s/streams.db has lost batches %llu to %llu of stream %u, and the worker's checkpoint "
            "is newer: remove the checkpoints of this cluster that are newer than these batches, "
            "so that it makes them again, or restore streams.db from a backup",
            s->dir, (unsigned long long)after.next, (unsigned long long)seq - 1, k->id);
    if (outside ||
        after.faults[INTER_STREAM_FAULT_OVERSIZE] > before.faults[INTER_STREAM_FAULT_OVERSIZE])
        return neb_fail(
            NEB_ERR_STATE,
            "stream %u: batch %llu of %zu bytes is refused: batch %llu is next, and the spool "
            "holds %llu bytes",
            k->id, (unsigned long long)seq, n, (unsigned long long)after.next,
            (unsigned long long)after.held_bytes);
    if (after.faults[INTER_STREAM_FAULT_CONFLICT] > before.faults[INTER_STREAM_FAULT_CONFLICT])
        neb_warn("stream %u: after its restart the worker computed a different batch %llu; the one "
                 "in the spool is kept",
                 k->id, (unsigned long long)seq);
    return NEB_OK;
}

// Greater than any before, also than those of a previous incarnation.
static uint64_t next_session(struct inter_streams *s) {
    uint64_t now = (uint64_t)neb_wall_now();
    return s->session = now > s->session ? now : s->session + 1;
}

enum neb_status inter_streams_tell(struct inter_streams *s, const struct inter_stream_key *k,
                                   enum inter_stream_event_kind what, uint64_t seq) {
    struct inter_stream *t = find_stream(s, k);
    struct inter_stream_event e = {.kind = what, .seq = seq};
    if (!t)
        return neb_fail(NEB_ERR_NOT_FOUND, "stream %u is not open", k->id);
    if (what == INTER_STREAM_EV_ATTACH)
        e.session = next_session(s);
    return step(s, t, &e);
}

static bool of_job(const struct inter_stream *t, const uint8_t job[INTER_ID_BYTES]) {
    return !memcmp(inter_stream_config_of(t)->key.job, job, INTER_ID_BYTES);
}

enum neb_status inter_streams_detach(struct inter_streams *s, const uint8_t job[INTER_ID_BYTES]) {
    for (int i = 0; i < s->n; i++)
        if (of_job(s->list[i], job))
            NEB_TRY(
                step(s, s->list[i], &(struct inter_stream_event){.kind = INTER_STREAM_EV_DETACH}));
    return NEB_OK;
}

enum neb_status inter_streams_close(struct inter_streams *s, const uint8_t job[INTER_ID_BYTES],
                                    bool forget) {
    int kept = 0;
    for (int i = 0; i < s->n; i++) {
        if (of_job(s->list[i], job))
            inter_stream_destroy(&s->list[i]);
        else
            s->list[kept++] = s->list[i];
    }
    s->n = kept;
    if (!forget)
        return NEB_OK;
    char path[NEB_PATH_MAX];
    NEB_TRY(neb_path(path, sizeof path, s->dir, "streams.db"));
    if (!s->spool && !neb_fs_exists(path))
        return NEB_OK;
    NEB_TRY(open_spool(s));
    return inter_spool_forget(s->spool, job);
}

// A step that no worker asked for, so no request can return its error. If a batch cannot be read,
// the stream and the job end, and the worker gets the error as a message. A worker that opens the
// stream again reads that batch again. Any other error is for the agent.
static enum neb_status step_alone(struct inter_streams *s, struct inter_stream *t,
                                  const struct inter_stream_event *e) {
    char text[1024];
    enum neb_status st = step(s, t, e);
    if (st == NEB_OK || !s->unreadable)
        return st;
    neb_last_error(text, sizeof text);
    if (s->cb.refused)
        s->cb.refused(s->cb.user, inter_stream_config_of(t), false, text);
    drop_stream(s, t);
    return NEB_OK;
}

bool inter_streams_stats(const struct inter_streams *s, const struct inter_stream_key *k,
                         struct inter_stream_stats *out) {
    const struct inter_stream *t = find_stream(s, k);
    if (t)
        inter_stream_stats(t, out);
    return t != NULL;
}

// Answers a producer whose consumer was done here before this agent restarted: nobody here opens
// the stream again. All that may be in the producer's spool is granted as saved. The producer gets
// no HELLO, so it asks again each second, and its later batches are granted in the same way.
static enum neb_status answer_over(struct inter_streams *s, uint32_t peer, const uint8_t *p,
                                   size_t n) {
    struct inter_stream_message m;
    if (!s->cb.over || !inter_stream_parse(p, n, &m) || m.kind != INTER_STREAM_HELLO ||
        m.hello.role != INTER_STREAM_PRODUCER || m.hello.base > INT64_MAX / 2 ||
        !s->cb.over(s->cb.user, &m.key, peer))
        return NEB_OK;
    uint64_t all = m.hello.base + INTER_STREAM_SPOOL_MAX;
    neb_buf_clear(&s->head);
    inter_stream_put_grant(&s->head, &m.key,
                           &(struct inter_stream_grant){next_session(s), all, all, all,
                                                        INTER_STREAM_WINDOW_MAX, UINT32_MAX});
    NEB_TRY(neb_buf_check(&s->head));
    enum neb_status st = inter_link_send(*s->c.link, peer, INTER_CONTROL, s->head.p, s->head.len);
    return st == NEB_ERR_AGAIN ? NEB_OK : st; // the producer asks again
}

enum neb_status inter_streams_message(struct inter_streams *s, uint32_t peer, bool bulk,
                                      const uint8_t *p, size_t n) {
    struct inter_stream_key k;
    struct inter_stream *t = inter_stream_parse_key(p, n, &k) ? find_stream(s, &k) : NULL;
    if (!t && !bulk)
        return answer_over(s, peer, p, n);
    // Not open here yet, or from a peer that is not part of the stream.
    if (!t || inter_stream_config_of(t)->peer != peer)
        return NEB_OK;
    return step_alone(s, t,
                      &(struct inter_stream_event){
                          .kind = INTER_STREAM_EV_MESSAGE, .bulk = bulk, .data = p, .len = n});
}

static enum neb_status step_all_of(struct inter_streams *s, uint32_t peer,
                                   const struct inter_stream_event *e) {
    for (int i = s->n; i-- > 0;) // backwards: a step may drop the stream
        if (inter_stream_config_of(s->list[i])->peer == peer)
            NEB_TRY(step_alone(s, s->list[i], e));
    return NEB_OK;
}

enum neb_status inter_streams_peer(struct inter_streams *s, uint32_t peer, bool up) {
    s->up[peer] = up;
    return step_all_of(s, peer,
                       &(struct inter_stream_event){.kind = up ? INTER_STREAM_EV_PEER_UP
                                                               : INTER_STREAM_EV_PEER_DOWN});
}

enum neb_status inter_streams_lost(struct inter_streams *s, uint32_t peer, uint64_t way) {
    return step_all_of(s, peer,
                       &(struct inter_stream_event){.kind = INTER_STREAM_EV_CONN_LOST, .way = way});
}

enum neb_status inter_streams_tick(struct inter_streams *s) {
    for (int i = s->n; i-- > 0;)
        NEB_TRY(
            step_alone(s, s->list[i], &(struct inter_stream_event){.kind = INTER_STREAM_EV_TICK}));
    return NEB_OK;
}
