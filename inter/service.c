#include "inter/service.h"
#include "agent/base/log.h"
#include "agent/base/sha256.h"
#include "compress/update.h"
#include "security/sign.h"

#include <stdlib.h>
#include <string.h>

enum { BOUNDS_MAX = 16 };
enum { MSG_APP = 32, MSG_APP_ACK = 33, MSG_TELL = 34 };
static const neb_ns tick_interval = 200 * NEB_MS, resend_interval = 3 * NEB_S;

struct pending { // events that actions gave rise to
    struct inter_event e;
    bool has_manifest;
    struct inter_manifest manifest;
};

struct inter_service {
    struct inter_service_callbacks cb;
    const struct sec_identity *identity;
    struct inter_link_config link_config; // without members
    struct sec_members members;
    uint32_t self;
    struct inter_ledger *ledger;
    struct inter_link *link;
    struct inter_node *node;
    struct inter_actions actions;
    struct pending *pending;
    size_t n_pending, cap_pending;
    struct cmp_work *gate;
    neb_ns next_tick, next_resend, next_limit;
    struct inter_rate_limit limit;
    struct {
        uint8_t job[INTER_ID_BYTES];
        struct inter_rate_limit limit;
    } limits[BOUNDS_MAX];
    int n_limits;
    struct inter_snapshots *snapshots;
    bool up[SEC_MEMBERS_MAX];
    struct inter_key mapped_key; // the blob that is being sent: mapped once, not once a chunk
    struct neb_map mapped;
    bool is_mapped;
    struct neb_buf out;
    struct {
        uint8_t job[INTER_ID_BYTES];
        uint64_t elements;
    } bounds[BOUNDS_MAX]; // of jobs whose worker has said how large its model is
    int n_bounds;
    enum neb_status st; // first fatal error
};

static bool sign_as(void *user, const char *context, const void *msg, size_t len,
                    uint8_t sig[INTER_SIG_BYTES]) {
    struct inter_service *s = user;
    return sec_sign(s->identity, context, msg, len, sig) == NEB_OK;
}

static bool verify_as(void *user, uint32_t peer, const char *context, const void *msg, size_t len,
                      const uint8_t sig[INTER_SIG_BYTES]) {
    struct inter_service *s = user;
    if (peer >= s->members.n || !s->members.m[peer].pub.name[0])
        return false;
    const struct sec_public *former = inter_link_former(s->link, peer, NULL);
    return sec_verify(s->members.m[peer].pub.sign, context, msg, len, sig) == NEB_OK ||
           (former && sec_verify(former->sign, context, msg, len, sig) == NEB_OK);
}

static enum neb_status open_link(struct inter_service *s) {
    struct inter_link_config c = s->link_config;
    c.members = &s->members;
    return inter_link_create(&c, &s->link);
}

// ---- snapshots ------------------------------------------------------------------------------------------------

static enum neb_status no_snapshot(void *user, const uint8_t job[INTER_ID_BYTES], struct inter_snapshot_source *out) {
    (void)user, (void)job, (void)out;
    return NEB_ERR_NOT_FOUND;
}
static enum neb_status open_snapshot(void *user, const uint8_t job[INTER_ID_BYTES],
                                     struct inter_snapshot_source *out) {
    struct inter_service *s = user;
    return s->cb.snapshot_open(s->cb.user, job, out);
}
static void close_snapshot(void *user, struct inter_snapshot_source *source) {
    struct inter_service *s = user;
    s->cb.snapshot_close(s->cb.user, source);
}
static void snapshot_done(void *user, const uint8_t job[INTER_ID_BYTES], enum neb_status st, const char *part,
                          uint64_t header_bytes) {
    struct inter_service *s = user;
    if (s->cb.snapshot_done)
        s->cb.snapshot_done(s->cb.user, job, st, part, header_bytes);
}
static enum neb_status send_snapshot(void *user, uint32_t peer, bool bulk, const void *head, size_t n,
                                     const void *body, size_t m) {
    struct inter_service *s = user;
    return bulk ? inter_link_send2(s->link, peer, INTER_BULK, head, n, body, m)
                : inter_link_send(s->link, peer, INTER_CONTROL, head, n);
}

enum neb_status inter_service_snapshot_fetch(struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                                             const char *path, const uint32_t *peers, uint32_t n,
                                             bool header_only) {
    return inter_snapshots_fetch(s->snapshots, job, path, peers, n, header_only, neb_now());
}

bool inter_service_snapshot_progress(const struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                                     struct inter_snapshot_progress *out) {
    return inter_snapshots_progress(s->snapshots, job, out);
}

enum neb_status inter_service_snapshot_install(struct inter_service *s, const struct inter_job_config *c,
                                               const struct inter_snapshot *snapshot, uint64_t *taken) {
    *taken = 0;
    for (uint32_t f = 0; f < snapshot->fragments; f++) {
        const struct inter_snapshot_part *p = &snapshot->parts[f];
        struct inter_chain chain = {0};
        enum neb_status st = inter_ledger_chain(s->ledger, c->id, f, &chain);
        if (st != NEB_OK && st != NEB_ERR_NOT_FOUND)
            return st;
        bool ahead = p->round > chain.next, before = p->round && chain.next && chain.first + 1 == p->round;
        if (p->round && !inter_node_proves(s->node, c, &p->last))
            return neb_fail(NEB_ERR_DENIED, "the snapshot's record of round %u is not signed by a majority",
                            p->last.round);
        if (ahead) {
            NEB_TRY(inter_ledger_begin_at(s->ledger, c->id, f, p->last.round, p->last.previous));
            NEB_TRY(inter_ledger_put_commit(s->ledger, &p->last));
        }
        if (ahead || before) // the updates of that record are not here
            NEB_TRY(inter_ledger_prune(s->ledger, c->id, f, p->round));
        *taken |= ahead || before ? 1ull << f : 0;
    }
    return NEB_OK;
}

// ---- life -----------------------------------------------------------------------------------------------------

enum neb_status inter_service_create(const struct inter_service_config *c,
                                     struct inter_service **out) {
    enum neb_status st = NEB_OK;
    struct inter_service *s = calloc(1, sizeof *s);
    if (!s)
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating the service");
    s->cb = c->callbacks;
    s->identity = c->identity;
    s->members = *c->members;
    s->self = UINT32_MAX;
    for (uint32_t i = 0; i < s->members.n; i++)
        if (!memcmp(s->members.m[i].pub.sign, sec_identity_public(c->identity)->sign,
                    SEC_KEY_BYTES))
            s->self = i;
    struct inter_node_crypto crypto = {s, sign_as, verify_as};
    s->link_config = (struct inter_link_config){.identity = c->identity,
                                                .listen = c->listen,
                                                .n_bulk = c->n_bulk,
                                                .recycle = c->recycle,
                                                .chunk_bytes = INTER_CHUNK_MAX,
                                                .congestion = c->congestion,
                                                .zmq_context = c->zmq_context};
    NEB_TRY_GOTO(inter_ledger_open(c->dir, &s->ledger), fail);
    NEB_TRY_GOTO(cmp_work_create(&s->gate), fail);
    NEB_TRY_GOTO(inter_node_create(&crypto, &s->node), fail);
    NEB_TRY_GOTO(open_link(s), fail);
    s->limit = c->limit;
    struct inter_snapshots_config snap = {s, c->callbacks.snapshot_open ? open_snapshot : no_snapshot, close_snapshot,
                                          snapshot_done, send_snapshot};
    NEB_TRY_GOTO(inter_snapshots_create(&snap, &s->snapshots), fail);
    s->next_tick = neb_now() + tick_interval;
    *out = s;
    return NEB_OK;
fail:
    inter_service_destroy(&s);
    return st;
}

static void unmap(struct inter_service *s) {
    neb_map_close(&s->mapped);
    s->is_mapped = false;
}

void inter_service_destroy(struct inter_service **sp) {
    struct inter_service *s = *sp;
    if (!s)
        return;
    unmap(s);
    inter_link_destroy(&s->link);
    inter_node_destroy(&s->node);
    inter_snapshots_destroy(&s->snapshots);
    inter_ledger_close(&s->ledger);
    cmp_work_destroy(&s->gate);
    inter_actions_free(&s->actions);
    neb_buf_free(&s->out);
    free(s->pending);
    free(s);
    *sp = NULL;
}

static void step(struct inter_service *s, const struct inter_event *event);

// ---- members --------------------------------------------------------------------------------------------------

enum neb_status inter_service_reload(struct inter_service *s, const struct sec_members *m,
                                     const char *rotated, neb_ns overlap) {
    NEB_TRY(inter_link_reload(s->link, m, rotated, overlap));
    s->members = *inter_link_members(s->link);
    return NEB_OK;
}

const struct sec_members *inter_service_members(const struct inter_service *s) {
    return &s->members;
}

enum neb_status inter_service_rekey(struct inter_service *s, const struct sec_identity *id) {
    struct sec_public former[SEC_MEMBERS_MAX];
    neb_ns until[SEC_MEMBERS_MAX] = {0};
    for (uint32_t i = 0; i < s->members.n; i++) {
        const struct sec_public *f = inter_link_former(s->link, i, &until[i]);
        former[i] = f ? *f : (struct sec_public){.name = ""};
    }
    for (uint32_t i = 0; i < s->members.n; i++) // the node learns that nobody is there for a moment
        if (s->up[i]) {
            s->up[i] = false;
            step(s, &(struct inter_event){.kind = INTER_EV_PEER_DOWN, .peer = i});
            s->cb.peer(s->cb.user, i, false);
        }
    inter_link_destroy(&s->link);
    s->identity = s->link_config.identity = id;
    enum neb_status st = open_link(s);
    for (int i = 0; st == NEB_ERR_IO && i < 30; i++) { // ZeroMQ closes a listener in its own time
        neb_sleep(100 * NEB_MS);
        st = open_link(s);
    }
    for (uint32_t i = 0; st == NEB_OK && i < s->members.n; i++)
        if (until[i])
            inter_link_keep_former(s->link, i, &former[i], until[i]);
    return st;
}

bool inter_service_verify(struct inter_service *s, uint32_t peer, const char *context,
                          const void *msg, size_t len, const uint8_t sig[INTER_SIG_BYTES]) {
    return verify_as(s, peer, context, msg, len, sig);
}

void inter_service_job_removed(struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                            uint16_t removed) {
    (void)inter_node_job_removed(s->node, job, removed);
}

// ---- carrying out actions -------------------------------------------------------------------------------------

static void queue_event(struct inter_service *s, const struct inter_event *e) {
    if (s->n_pending == s->cap_pending) {
        size_t cap = s->cap_pending ? 2 * s->cap_pending : 16;
        struct pending *p = realloc(s->pending, cap * sizeof *p);
        if (!p) {
            s->st = neb_fail(NEB_ERR_NOMEM, "out of memory queueing an event");
            return;
        }
        s->pending = p;
        s->cap_pending = cap;
    }
    s->pending[s->n_pending] = (struct pending){.e = *e};
    s->n_pending++;
}

static enum neb_status send_chunk(struct inter_service *s, const struct inter_action *a) {
    uint8_t sha[INTER_SHA_BYTES], *head = s->actions.bytes.p + a->at;
    if (!s->is_mapped || !inter_key_equal(&s->mapped_key, &a->key)) {
        unmap(s);
        enum neb_status st = inter_ledger_has_blob(s->ledger, &a->key)
                                 ? inter_ledger_map_blob(s->ledger, &a->key, &s->mapped)
                                 : NEB_ERR_NOT_FOUND;
        if (st == NEB_ERR_NOT_FOUND) { // removed since the transfer began
            queue_event(s, &(struct inter_event){
                               .kind = INTER_EV_SERVE, .peer = a->peer, .key = a->key});
            return NEB_OK;
        }
        NEB_TRY(st);
        s->mapped_key = a->key;
        s->is_mapped = true;
    }
    NEB_ASSERT(a->offset + a->len <= s->mapped.len);
    neb_sha256(s->mapped.p + a->offset, a->len, sha);
    memcpy(head + a->size - 8, sha, 8); // the header's last field
    enum neb_status st = inter_link_send2(s->link, a->peer, INTER_BULK, head, a->size,
                                          s->mapped.p + a->offset, a->len);
    if (st != NEB_ERR_AGAIN)
        return st;
    queue_event(
        s, &(struct inter_event){
               .kind = INTER_EV_SEND_FAILED, .peer = a->peer, .key = a->key, .chunk = a->chunk});
    return NEB_OK;
}

static void send_record(struct inter_service *s, const struct inter_action *a) {
    struct inter_record r;
    enum neb_status st =
        inter_ledger_get_commit(s->ledger, a->key.job, a->key.fragment, a->key.round, &r);
    if (st != NEB_OK) { // of before the snapshot that this ledger began with
        struct inter_event none = {.kind = INTER_EV_SERVE, .peer = a->peer, .key = a->key};
        none.key.member = INTER_NO_MEMBER;
        queue_event(s, &none);
        return;
    }
    neb_buf_clear(&s->out);
    inter_node_commit_message(&s->out, &r);
    if (inter_link_send(s->link, a->peer, INTER_CONTROL, s->out.p, s->out.len) != NEB_OK)
        neb_debug("a commit record could not be sent yet");
}

void inter_service_bound(struct inter_service *s, const uint8_t job[INTER_ID_BYTES], uint64_t elements) {
    int i = 0;
    while (i < s->n_bounds && memcmp(s->bounds[i].job, job, INTER_ID_BYTES))
        i++;
    if (i == BOUNDS_MAX)
        i = 0;
    memcpy(s->bounds[i].job, job, INTER_ID_BYTES);
    s->bounds[i].elements = elements;
    s->n_bounds = i >= s->n_bounds ? i + 1 : s->n_bounds;
}

static uint64_t bound_of(const struct inter_service *s, const uint8_t job[INTER_ID_BYTES]) {
    for (int i = 0; i < s->n_bounds; i++)
        if (!memcmp(s->bounds[i].job, job, INTER_ID_BYTES))
            return s->bounds[i].elements;
    return UINT64_MAX;
}

// The gate: structure, finiteness and scale of every frame, before an update may become part of a commit.
static enum neb_status gate(struct inter_service *s, const struct inter_manifest *m, bool *pass,
                            float *norm) {
    struct cmp_update_stats stats = {.norm = 0};
    struct neb_map map;
    NEB_TRY(inter_ledger_map_blob(s->ledger, &m->key, &map));
    *pass = cmp_update_check_max(s->gate, map.p, map.len, bound_of(s, m->key.job), &stats) == NEB_OK;
    neb_map_close(&map);
    // An update of zeros has a norm too: 0 stands for one that is not known.
    *norm = stats.norm > 1e-30 ? stats.norm < 1e30 ? (float)stats.norm : 1e30f : 1e-30f;
    if (!*pass)
        neb_log(NEB_LOG_ERROR, "update of member %u for round %u refused by the gate; it counts nothing",
                m->key.member, m->key.round);
    return NEB_OK;
}

static enum neb_status finish_blob(struct inter_service *s, const struct inter_manifest *m) {
    struct inter_event done = {.kind = INTER_EV_BLOB_DONE, .key = m->key};
    enum neb_status st = inter_ledger_has_blob(s->ledger, &m->key)
                             ? NEB_OK
                             : inter_ledger_part_finish(s->ledger, m);
    if (st == NEB_OK) {
        NEB_TRY(gate(s, m, &done.ok, &done.norm));
        done.refused = !done.ok;
        if (done.refused)
            s->cb.fault(s->cb.user, m->key.member, INTER_FAULT_REFUSED);
    } else if (st != NEB_ERR_CORRUPT) {
        return st;
    }
    queue_event(s, &done);
    return NEB_OK;
}

static enum neb_status open_blob(struct inter_service *s, const struct inter_manifest *m) {
    struct inter_bitmap none;
    if (inter_ledger_has_blob(s->ledger, &m->key)) // from an earlier life of this key
        return finish_blob(s, m);
    NEB_TRY(inter_bitmap_init(&none, inter_chunks(m->bytes, m->chunk_bytes)));
    enum neb_status st = inter_ledger_part_open(s->ledger, m, &none);
    inter_bitmap_free(&none);
    return st;
}

static enum neb_status serve(struct inter_service *s, const struct inter_action *a) {
    struct inter_manifest m;
    enum neb_status st = inter_ledger_find_manifest(s->ledger, &a->key, &m);
    if (st != NEB_OK && st != NEB_ERR_NOT_FOUND)
        return st;
    bool here = st == NEB_OK && inter_ledger_has_blob(s->ledger, &a->key);
    queue_event(s, &(struct inter_event){.kind = INTER_EV_SERVE, .peer = a->peer, .key = a->key});
    if (s->st == NEB_OK && here) {
        s->pending[s->n_pending - 1].manifest = m;
        s->pending[s->n_pending - 1].has_manifest = true;
    }
    return NEB_OK;
}

static enum neb_status deliver(struct inter_service *s, const struct inter_record *r) {
    struct neb_map blobs[INTER_MEMBERS_MAX] = {{0}};
    enum neb_status st = NEB_OK;
    for (uint8_t i = 0; i < r->n && st == NEB_OK; i++) {
        struct inter_key k = inter_entry_key(r, i);
        // A witness has none; an old one may have been removed.
        if (r->entries[i].verdict == INTER_ACCEPTED && inter_ledger_has_blob(s->ledger, &k))
            st = inter_ledger_map_blob(s->ledger, &k, &blobs[i]);
    }
    if (st == NEB_OK)
        s->cb.commit(s->cb.user, r, blobs);
    for (uint8_t i = 0; i < r->n; i++)
        neb_map_close(&blobs[i]);
    return st;
}

static enum neb_status carry_out(struct inter_service *s, const struct inter_action *a) {
    enum neb_status st;
    switch (a->kind) {
    case INTER_ACT_SEND:
        st = inter_link_send(s->link, a->peer, INTER_CONTROL, s->actions.bytes.p + a->at, a->size);
        return st == NEB_ERR_AGAIN ? NEB_OK : st; // the node says it again
    case INTER_ACT_SEND_CHUNK: return send_chunk(s, a);
    case INTER_ACT_SEND_COMMIT: send_record(s, a); return NEB_OK;
    case INTER_ACT_STORE_MANIFEST: return inter_ledger_put_manifest(s->ledger, &a->manifest);
    case INTER_ACT_STORE_VOTE: return inter_ledger_put_vote(s->ledger, &a->record);
    case INTER_ACT_STORE_COMMIT: return inter_ledger_put_commit(s->ledger, &a->record);
    case INTER_ACT_STORE_STANDING: return inter_ledger_put_standing(s->ledger, &a->standing);
    case INTER_ACT_SERVE: return serve(s, a);
    case INTER_ACT_BLOB_OPEN: return open_blob(s, &a->manifest);
    case INTER_ACT_BLOB_WRITE:
        return inter_ledger_part_write(s->ledger, &a->key, a->offset, a->view, a->len);
    case INTER_ACT_BLOB_FINISH: return finish_blob(s, &a->manifest);
    case INTER_ACT_DELIVER: return deliver(s, &a->record);
    case INTER_ACT_FAULT: s->cb.fault(s->cb.user, a->peer, a->fault); return NEB_OK;
    case INTER_ACT_BEHIND:
        if (s->cb.behind)
            s->cb.behind(s->cb.user, a->key.job);
        return NEB_OK;
    }
    return NEB_OK;
}

static void step(struct inter_service *s, const struct inter_event *event) {
    struct inter_event e = *event;
    struct inter_manifest m;
    for (size_t done = 0;;) {
        if (s->st == NEB_OK)
            s->st = inter_node_step(s->node, neb_now(), &e, &s->actions);
        for (size_t i = 0; i < s->actions.n && s->st == NEB_OK; i++)
            s->st = carry_out(s, &s->actions.list[i]);
        if (done == s->n_pending || s->st != NEB_OK)
            break;
        const struct pending *p = &s->pending[done++];
        e = p->e;
        m = p->manifest; // the list may move while the event is handled
        e.manifest = p->has_manifest ? &m : NULL;
    }
    s->n_pending = 0;
}

// ---- messages between agents ----------------------------------------------------------------------------------

// | MSG_APP u8 | epoch of the sender's ledger u64 | seq u64 | previous u64 | kind u32 | body |
// previous: the message that waits before this one, 0 when none does. A receiver that has not taken it drops this one,
// without an acknowledgement: what overtook a message that the link refused must not count as taken.
struct resend {
    struct inter_service *s;
    uint32_t peer;
    uint64_t previous;
};

static void resend_one(void *user, uint64_t seq, uint32_t kind, const uint8_t *p, size_t n) {
    struct resend *r = user;
    struct neb_buf *b = &r->s->out;
    neb_buf_clear(b);
    neb_buf_u8(b, MSG_APP);
    neb_buf_u64(b, inter_ledger_epoch(r->s->ledger));
    neb_buf_u64(b, seq);
    neb_buf_u64(b, r->previous);
    neb_buf_u32(b, kind);
    neb_buf_add(b, p, n);
    if (!b->oom && inter_link_send(r->s->link, r->peer, INTER_CONTROL, b->p, b->len) != NEB_OK)
        neb_debug("a message waits for the link");
    r->previous = seq;
}

static enum neb_status resend_all(struct inter_service *s, uint32_t peer) {
    struct resend r = {s, peer, 0};
    return inter_ledger_pending(s->ledger, s->members.m[peer].pub.name, resend_one, &r);
}

enum neb_status inter_service_send(struct inter_service *s, uint32_t peer, uint32_t kind,
                                   const void *p, size_t n) {
    uint64_t seq, previous;
    if (n > INTER_MESSAGE_MAX || peer >= s->members.n || peer == s->self)
        return neb_fail(NEB_ERR_LIMIT, "message of %zu bytes to member %u", n, peer);
    NEB_TRY(inter_ledger_post(s->ledger, s->members.m[peer].pub.name, kind, p, n, &seq, &previous));
    struct resend r = {s, peer, previous};
    if (s->up[peer])
        resend_one(&r, seq, kind, p, n);
    return NEB_OK;
}

void inter_service_tell(struct inter_service *s, uint32_t peer, uint32_t kind, const void *p,
                        size_t n) {
    if (n > INTER_MESSAGE_MAX || peer >= s->members.n || !s->up[peer])
        return;
    neb_buf_clear(&s->out);
    neb_buf_u8(&s->out, MSG_TELL);
    neb_buf_u32(&s->out, kind);
    neb_buf_add(&s->out, p, n);
    if (!s->out.oom &&
        inter_link_send(s->link, peer, INTER_CONTROL, s->out.p, s->out.len) != NEB_OK)
        neb_debug("telemetry dropped: the control queue is full");
}

static enum neb_status on_app(struct inter_service *s, uint32_t peer, struct neb_rd *r) {
    const char *name = s->members.m[peer].pub.name;
    uint64_t epoch = neb_rd_u64(r), seq = neb_rd_u64(r), previous = neb_rd_u64(r), last;
    uint32_t kind = neb_rd_u32(r);
    size_t n = neb_rd_left(r);
    const uint8_t *p = neb_rd_view(r, n);
    if (r->bad || seq == 0 || seq > INT64_MAX || previous >= seq)
        return NEB_OK;
    NEB_TRY(inter_ledger_taken(s->ledger, name, epoch, &last));
    if (seq > last && previous > last)
        return NEB_OK; // it overtook one, which is sent again
    if (seq > last) {
        // Taken first: a crash in between loses the message for the caller, who asks again; twice would be worse.
        NEB_TRY(inter_ledger_take(s->ledger, name, epoch, seq));
        s->cb.message(s->cb.user, peer, kind, p, n);
    }
    neb_buf_clear(&s->out);
    neb_buf_u8(&s->out, MSG_APP_ACK);
    neb_buf_u64(&s->out, epoch);
    neb_buf_u64(&s->out, seq);
    enum neb_status st = inter_link_send(s->link, peer, INTER_CONTROL, s->out.p, s->out.len);
    return st == NEB_ERR_AGAIN ? NEB_OK : st;
}

static void on_event(void *user, const struct inter_link_event *e) {
    struct inter_service *s = user;
    if (s->st != NEB_OK)
        return;
    if (e->kind != INTER_LINK_MSG) {
        s->up[e->peer] = e->kind == INTER_LINK_UP;
        step(s,
             &(struct inter_event){.kind = s->up[e->peer] ? INTER_EV_PEER_UP : INTER_EV_PEER_DOWN,
                                   .peer = e->peer});
        if (s->up[e->peer] && s->st == NEB_OK)
            s->st = resend_all(s, e->peer);
        s->cb.peer(s->cb.user, e->peer, s->up[e->peer]);
        return;
    }
    struct neb_rd r = neb_rd_make(e->data, e->len);
    uint8_t type = e->len ? e->data[0] : 0;
    if (inter_snapshot_is(type)) {
        s->st = inter_snapshots_message(s->snapshots, neb_now(), e->peer, e->channel == INTER_BULK, e->data, e->len);
        return;
    }
    if (type < MSG_APP || e->channel == INTER_BULK) {
        step(s, &(struct inter_event){.kind = INTER_EV_MESSAGE,
                                      .peer = e->peer,
                                      .bulk = e->channel == INTER_BULK,
                                      .data = e->data,
                                      .len = e->len});
        return;
    }
    (void)neb_rd_u8(&r);
    if (type == MSG_APP) {
        s->st = on_app(s, e->peer, &r);
    } else if (type == MSG_APP_ACK) {
        uint64_t epoch = neb_rd_u64(&r), seq = neb_rd_u64(&r);
        if (neb_rd_done(&r) && epoch == inter_ledger_epoch(s->ledger))
            s->st = inter_ledger_posted(s->ledger, s->members.m[e->peer].pub.name, seq);
    } else if (type == MSG_TELL) {
        uint32_t kind = neb_rd_u32(&r);
        size_t n = neb_rd_left(&r);
        const uint8_t *p = neb_rd_view(&r, n);
        if (!r.bad)
            s->cb.message(s->cb.user, e->peer, kind, p, n);
    }
}

// ---- the operator's limit -------------------------------------------------------------------------------------

void inter_service_limit(struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                         const struct inter_rate_limit *limit) {
    int i = 0;
    while (i < s->n_limits && memcmp(s->limits[i].job, job, INTER_ID_BYTES))
        i++;
    s->next_limit = 0;
    if (!limit || !inter_rate_limit_any(limit)) {
        if (i < s->n_limits)
            s->limits[i] = s->limits[--s->n_limits];
        return;
    }
    if (i == BOUNDS_MAX)
        return;
    memcpy(s->limits[i].job, job, INTER_ID_BYTES);
    s->limits[i].limit = *limit;
    s->n_limits = i == s->n_limits ? i + 1 : s->n_limits;
}

// The smallest of all that hold now. Looked at every second: a limit may begin at any minute.
static void apply_limit(struct inter_service *s, neb_ns now) {
    int minute = inter_rate_minute(neb_wall_now());
    uint64_t bps = inter_rate_limit_at(&s->limit, minute);
    for (int i = 0; i < s->n_limits; i++) {
        uint64_t other = inter_rate_limit_at(&s->limits[i].limit, minute);
        bps = other && (!bps || other < bps) ? other : bps;
    }
    inter_link_limit(s->link, bps);
    s->next_limit = now + NEB_S;
}

enum neb_status inter_service_process(struct inter_service *s) {
    neb_ns now = neb_now();
    if (now >= s->next_limit)
        apply_limit(s, now);
    NEB_TRY(inter_link_process(s->link, on_event, s));
    now = neb_now();
    if ((now >= s->next_tick || inter_link_resumes(s->link)) && s->st == NEB_OK) {
        s->next_tick = now + tick_interval;
        step(s, &(struct inter_event){.kind = INTER_EV_TICK,
                                      .peer = s->self < SEC_MEMBERS_MAX ? s->self : 0});
    }
    if (s->st == NEB_OK)
        s->st = inter_snapshots_tick(s->snapshots, now);
    if (now >= s->next_resend) {
        s->next_resend = now + resend_interval;
        for (uint32_t i = 0; i < s->members.n && s->st == NEB_OK; i++)
            if (s->up[i])
                s->st = resend_all(s, i);
    }
    return s->st;
}

size_t inter_service_poll_items(const struct inter_service *s, zmq_pollitem_t *items, size_t cap) {
    return inter_link_poll_items(s->link, items, cap);
}

neb_ns inter_service_next_deadline(const struct inter_service *s) {
    neb_ns link = inter_link_next_deadline(s->link);
    return link < s->next_tick ? link : s->next_tick;
}

// ---- jobs -----------------------------------------------------------------------------------------------------

static enum neb_status restore_manifest(struct inter_service *s, const struct inter_manifest *m,
                                        bool own) {
    bool durable = inter_ledger_has_blob(s->ledger, &m->key), pass = true;
    struct inter_bitmap got = {0};
    enum neb_status st = NEB_OK;
    if (own && !durable)
        return NEB_OK; // stored before its blob in a crash: the worker submits again
    float norm = 0;
    if (durable)
        NEB_TRY(gate(s, m, &pass, &norm));
    pass = pass || own;
    if (!own && !durable) {
        NEB_TRY(inter_bitmap_init(&got, inter_chunks(m->bytes, m->chunk_bytes)));
        st = inter_ledger_part_open(s->ledger, m, &got);
    }
    enum inter_holding h = !durable ? INTER_HOLD_PART : pass ? INTER_HOLD_WHOLE : INTER_HOLD_REFUSED;
    if (st == NEB_OK)
        st = inter_node_restore_manifest(s->node, m, h, own || durable ? NULL : &got);
    inter_bitmap_free(&got);
    inter_node_restore_norm(s->node, &m->key, norm);
    return st;
}

static enum neb_status restore_fragment(struct inter_service *s, const struct inter_job_config *c,
                                        uint32_t f) {
    struct inter_record r;
    struct inter_manifest m;
    enum neb_status st = inter_ledger_last_commit(s->ledger, c->id, f, &r);
    if (st == NEB_OK)
        inter_node_restore_commit(s->node, &r);
    else if (st != NEB_ERR_NOT_FOUND)
        return st;
    uint32_t round = inter_node_round(s->node, c->id, f);
    for (uint8_t i = 0; i < c->n_members; i++) {
        struct inter_key k = {.round = round, .fragment = f, .member = i};
        memcpy(k.job, c->id, sizeof k.job);
        st = inter_ledger_get_manifest(s->ledger, &k, &m);
        if (st == NEB_OK)
            st = restore_manifest(s, &m, i == c->self);
        if (st != NEB_OK && st != NEB_ERR_NOT_FOUND)
            return st;
    }
    st = inter_ledger_get_vote(s->ledger, c->id, f, round, &r);
    if (st == NEB_OK)
        inter_node_restore_vote(s->node, &r);
    return st == NEB_ERR_NOT_FOUND ? NEB_OK : st;
}

enum neb_status inter_service_job_open(struct inter_service *s, const struct inter_job_config *given) {
    struct inter_job_config c = *given;
    struct inter_standing standing;
    enum neb_status st = inter_ledger_get_standing(s->ledger, c.id, &standing);
    if (st != NEB_OK && st != NEB_ERR_NOT_FOUND)
        return st;
    // Later ledgers have greater epochs: nanoseconds since 1970 are, while head nodes keep roughly to the time of day.
    c.epoch = st == NEB_OK ? standing.epoch : (uint64_t)neb_wall_now();
    NEB_TRY(inter_node_job_open(s->node, &c));
    if (st == NEB_OK)
        inter_node_restore_standing(s->node, &standing);
    for (uint32_t f = 0; f < c.fragments; f++)
        NEB_TRY(restore_fragment(s, &c, f));
    for (uint32_t i = 0; i < s->members.n; i++) // a job that opens on a link that is up learns so
        if (s->up[i])
            step(s, &(struct inter_event){.kind = INTER_EV_PEER_UP, .peer = i});
    return s->st;
}

void inter_service_job_leave(struct inter_service *s, const uint8_t job[INTER_ID_BYTES]) {
    struct inter_event e = {.kind = INTER_EV_LEAVE, .peer = s->self};
    memcpy(e.key.job, job, sizeof e.key.job);
    step(s, &e);
}

bool inter_service_job_status(const struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                              struct inter_job_status *out) {
    return inter_node_job_status(s->node, job, neb_now(), out);
}

void inter_service_job_close(struct inter_service *s, const uint8_t job[INTER_ID_BYTES]) {
    inter_node_job_close(s->node, job);
}

enum neb_status inter_service_deliver(struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                                      uint32_t fragment, uint32_t round) {
    struct inter_record r;
    enum neb_status st = inter_ledger_get_commit(s->ledger, job, fragment, round, &r);
    return st == NEB_OK ? deliver(s, &r) : st == NEB_ERR_NOT_FOUND ? NEB_OK : st;
}

enum neb_status inter_service_submit(struct inter_service *s, const struct inter_manifest *given,
                                     const void *blob, size_t len) {
    struct inter_manifest m = *given, stored;
    uint32_t open = inter_node_round(s->node, m.key.job, m.key.fragment);
    if (len == 0 || len > INTER_BLOB_MAX)
        return neb_fail(NEB_ERR_LIMIT, "update of %zu bytes; at most %d", len, INTER_BLOB_MAX);
    if (open == UINT32_MAX || m.key.round > open)
        return neb_fail(NEB_ERR_STATE, "update for round %u of fragment %u, but round %u is open",
                        m.key.round, m.key.fragment, open);
    if (m.key.round < open) // others went on without it, or a worker was restarted: this round is over
        return inter_service_deliver(s, m.key.job, m.key.fragment, m.key.round);
    m.key.attempt += inter_node_attempt(s->node, m.key.job);
    neb_sha256(blob, len, m.sha256);
    if (inter_ledger_find_manifest(s->ledger, &m.key, &stored) == NEB_OK &&
        inter_ledger_has_blob(s->ledger, &m.key)) {
        if (memcmp(stored.sha256, m.sha256, sizeof m.sha256))
            neb_warn("round %u: the worker computed other bytes than before its restart; those of "
                     "the ledger stand",
                     m.key.round);
        return NEB_OK;
    }
    m.bytes = (uint32_t)len;
    m.chunk_bytes = inter_node_chunk_bytes(s->node, m.bytes);
    neb_buf_clear(&s->out);
    inter_manifest_put_body(&s->out, &m);
    NEB_TRY(neb_buf_check(&s->out));
    if (!sign_as(s, SEC_CONTEXT_MANIFEST, s->out.p, s->out.len, m.sig))
        return neb_fail(NEB_ERR_DENIED, "cannot sign an update");
    NEB_TRY(inter_ledger_put_blob(s->ledger, &m.key, blob, len));
    struct inter_event e = {.kind = INTER_EV_SUBMIT, .manifest = &m, .peer = s->self};
    bool pass; // ours is not ours to refuse: its norm is what is wanted
    NEB_TRY(gate(s, &m, &pass, &e.norm));
    step(s, &e);
    return s->st;
}

enum neb_status inter_service_prune(struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                                    uint32_t fragment, uint32_t round) {
    unmap(s);
    return inter_ledger_prune(s->ledger, job, fragment, round);
}

struct inter_ledger *inter_service_ledger(struct inter_service *s) {
    return s->ledger;
}
uint32_t inter_service_port(const struct inter_service *s) { return inter_link_port(s->link); }
uint64_t inter_service_faults(const struct inter_service *s, enum inter_fault f) {
    return inter_node_faults(s->node, f);
}

enum neb_status inter_service_stats(struct inter_service *s, uint32_t peer,
                                    struct inter_peer_stats *out) {
    *out = (struct inter_peer_stats){0};
    NEB_TRY(inter_link_stats(s->link, peer, &out->link));
    inter_node_path(s->node, peer, &out->path);
    return NEB_OK;
}
