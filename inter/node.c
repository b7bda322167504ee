#include "inter/node.h"
#include "agent/base/sha256.h"

#include <stdlib.h>
#include <string.h>

enum { JOBS_MAX = 8, PEERS_MAX = 32, CHUNK_HEADER_BYTES = 1 + 29 + 4 + 8 };
enum message { MSG_MANIFEST = 1, MSG_STATE, MSG_ACK, MSG_PROPOSE, MSG_ACCEPT, MSG_COMMIT, MSG_PULL, MSG_CHUNK };

static const neb_ns repeat_after = 2 * NEB_S, chunk_timeout = 30 * NEB_S;
static const char manifest_context[] = "nebula manifest v1", record_context[] = "nebula record v1", accept_context[] = "nebula accept v1";

struct slot { // one member's update in the open round
    bool known;              // manifest is here, and durable
    bool whole;              // blob is durable here
    bool checking;           // BLOB_FINISH is under way
    struct inter_manifest m;
    uint32_t holders;        // bit per member: blob durable there
    struct inter_bitmap got; // while it arrives
};

struct fragment {
    uint32_t round; // open
    uint8_t previous[INTER_SHA_BYTES];
    struct slot slots[INTER_MEMBERS_MAX];
    struct inter_sender out[INTER_MEMBERS_MAX]; // own blob to each member
    bool sending;
    bool voted;
    struct inter_record vote;
    uint8_t vote_hash[INTER_SHA_BYTES];
    uint32_t accepted; // bit per member (leader)
    neb_ns moved;      // last time something happened or was said again
};

struct job {
    bool open;
    struct inter_job_config c;
    struct fragment *fragments;
};

struct path {
    bool up;
    struct inter_estimate estimate;
    struct inter_path_stats stats;
};

struct inter_node {
    struct inter_node_crypto crypto;
    struct job jobs[JOBS_MAX];
    struct path paths[PEERS_MAX];
    uint64_t faults[INTER_FAULTS];
    struct neb_buf scratch;
    struct inter_action sink; // written when the list cannot grow; the step then reports it
};

struct step { // what one step carries along
    struct inter_node *n;
    neb_ns now;
    const struct inter_event *e;
    struct inter_actions *out;
    enum neb_status st;
};

const char *inter_fault_name(enum inter_fault f) {
    static const char *const names[] = {"malformed", "denied", "replay", "corrupt", "second_digest", "refused", "diverged"};
    return f < INTER_FAULTS ? names[f] : "unknown";
}

void inter_actions_clear(struct inter_actions *a) {
    a->n = 0;
    neb_buf_clear(&a->bytes);
}

void inter_actions_free(struct inter_actions *a) {
    free(a->list);
    neb_buf_free(&a->bytes);
    *a = (struct inter_actions){0};
}

// ---- actions --------------------------------------------------------------------------------------------------

static struct inter_action *act(struct step *s, enum inter_action_kind kind) {
    struct inter_actions *a = s->out;
    if (a->n == a->cap) {
        size_t cap = a->cap ? 2 * a->cap : 16;
        struct inter_action *p = realloc(a->list, cap * sizeof *p);
        if (!p) {
            s->st = neb_fail(NEB_ERR_NOMEM, "out of memory for the actions of a step");
            return &s->n->sink;
        }
        a->list = p;
        a->cap = cap;
    }
    a->list[a->n] = (struct inter_action){.kind = kind};
    return &a->list[a->n++];
}

static void fault(struct step *s, enum inter_fault f) {
    s->n->faults[f]++;
    struct inter_action *a = act(s, INTER_ACT_FAULT);
    a->peer = s->e->peer;
    a->fault = f;
}

static struct neb_buf *begin(struct step *s, enum message type) { // writes into the scratch buffer
    neb_buf_clear(&s->n->scratch);
    neb_buf_u8(&s->n->scratch, (uint8_t)type);
    return &s->n->scratch;
}

static void send_to(struct step *s, uint32_t peer) { // what begin() started
    struct neb_buf *b = &s->n->scratch;
    if (!s->n->paths[peer].up)
        return;
    struct inter_action *a = act(s, INTER_ACT_SEND);
    a->peer = peer;
    a->at = s->out->bytes.len;
    a->size = b->len;
    neb_buf_add(&s->out->bytes, b->p, b->len);
    if (b->oom || s->out->bytes.oom)
        s->st = NEB_ERR_NOMEM;
}

static void send_all(struct step *s, const struct job *j) {
    for (uint8_t m = 0; m < j->c.n_members; m++)
        if (m != j->c.self)
            send_to(s, j->c.peers[m]);
}

static void store_record(struct step *s, enum inter_action_kind kind, const struct inter_record *r) {
    act(s, kind)->record = *r;
}

static struct inter_key key_of(const struct job *j, uint32_t round, uint32_t f, uint8_t member) {
    struct inter_key k = {.round = round, .fragment = f, .member = member};
    memcpy(k.job, j->c.id, sizeof k.job);
    return k;
}

// ---- finding things -------------------------------------------------------------------------------------------

static struct job *find_job(struct inter_node *n, const uint8_t id[INTER_ID_BYTES]) {
    for (int i = 0; i < JOBS_MAX; i++)
        if (n->jobs[i].open && !memcmp(n->jobs[i].c.id, id, INTER_ID_BYTES))
            return &n->jobs[i];
    return NULL;
}

static struct fragment *find_fragment(struct job *j, uint32_t f) { return j && f < j->c.fragments ? &j->fragments[f] : NULL; }

static int member_of_peer(const struct job *j, uint32_t peer) {
    for (uint8_t m = 0; m < j->c.n_members; m++)
        if (m != j->c.self && j->c.peers[m] == peer)
            return m;
    return -1;
}

static bool leads(const struct job *j) { return j->c.self == 0; }

static int count(uint32_t bits) { return __builtin_popcount(bits); }

static bool majority(const struct job *j, uint32_t votes) { return count(votes) > j->c.n_members / 2; }

static bool verify_manifest(struct inter_node *n, const struct job *j, const struct inter_manifest *m) {
    neb_buf_clear(&n->scratch);
    inter_manifest_put_body(&n->scratch, m);
    return n->crypto.verify(n->crypto.user, j->c.peers[m->key.member], manifest_context, n->scratch.p, n->scratch.len, m->sig);
}

static bool verify_record(struct inter_node *n, const struct job *j, const struct inter_record *r) {
    if (r->leader != 0 || r->term != 1)
        return false;
    neb_buf_clear(&n->scratch);
    inter_record_put_body(&n->scratch, r);
    return n->crypto.verify(n->crypto.user, j->c.peers[r->leader], record_context, n->scratch.p, n->scratch.len, r->sig);
}

// ---- what is said ---------------------------------------------------------------------------------------------

static void say_manifest(struct step *s, struct job *j, struct fragment *g, uint32_t peer) {
    inter_manifest_put(begin(s, MSG_MANIFEST), &g->slots[j->c.self].m);
    send_to(s, peer);
}

// What this node holds of a blob: to its owner while it arrives, to all when it is whole.
static void say_state(struct step *s, const struct job *j, const struct slot *t, bool all) {
    struct neb_buf *b = begin(s, MSG_STATE);
    inter_key_put(b, &t->m.key);
    neb_buf_u8(b, t->whole);
    neb_buf_u32(b, t->whole ? 0 : (t->got.n + 7) / 8);
    if (!t->whole)
        neb_buf_add(b, t->got.bits, (t->got.n + 7) / 8);
    if (all)
        send_all(s, j);
    else
        send_to(s, j->c.peers[t->m.key.member]);
}

static void say_record(struct step *s, enum message type, const struct job *j, const struct inter_record *r) {
    inter_record_put(begin(s, type), r);
    send_all(s, j);
}

static void accept_body(struct neb_buf *b, const struct job *j, const struct fragment *g, uint32_t f) {
    neb_buf_add(b, j->c.id, sizeof j->c.id);
    neb_buf_u32(b, g->round);
    neb_buf_u32(b, f);
    neb_buf_u32(b, g->vote.term);
    neb_buf_add(b, g->vote_hash, sizeof g->vote_hash);
}

static void say_accept(struct step *s, struct job *j, struct fragment *g, uint32_t f) {
    uint8_t sig[INTER_SIG_BYTES];
    struct neb_buf *b = begin(s, MSG_ACCEPT);
    accept_body(b, j, g, f);
    if (!s->n->crypto.sign(s->n->crypto.user, accept_context, b->p + 1, b->len - 1, sig))
        return;
    neb_buf_add(b, sig, sizeof sig);
    send_to(s, j->c.peers[g->vote.leader]);
}

static void say_pull(struct step *s, const struct job *j, const struct fragment *g, uint32_t f, uint32_t peer) {
    struct neb_buf *b = begin(s, MSG_PULL);
    neb_buf_add(b, j->c.id, sizeof j->c.id);
    neb_buf_u32(b, f);
    neb_buf_u32(b, g->round);
    send_to(s, peer);
}

static void answer_old(struct step *s, const struct job *j, uint32_t round, uint32_t f) {
    struct inter_action *a = act(s, INTER_ACT_SEND_COMMIT);
    a->peer = s->e->peer;
    a->key = key_of(j, round, f, 0);
}

// ---- sending blobs --------------------------------------------------------------------------------------------

static uint64_t flying_to(const struct inter_node *n, uint32_t peer) {
    uint64_t total = 0;
    for (int i = 0; i < JOBS_MAX; i++)
        for (uint32_t f = 0; n->jobs[i].open && f < n->jobs[i].c.fragments; f++)
            for (uint8_t m = 0; n->jobs[i].fragments[f].sending && m < n->jobs[i].c.n_members; m++)
                if (m != n->jobs[i].c.self && n->jobs[i].c.peers[m] == peer)
                    total += n->jobs[i].fragments[f].out[m].flying_bytes;
    return total;
}

// Fills the window of every path. Chunk headers carry the first 8 bytes of the chunk's SHA-256; the shell, which reads
// the bytes, puts it in: the header's last field is left zero here.
static void pump(struct step *s, struct job *j) {
    for (uint32_t f = 0; f < j->c.fragments; f++) {
        struct fragment *g = &j->fragments[f];
        for (uint8_t m = 0; g->sending && m < j->c.n_members; m++) {
            uint32_t peer = j->c.peers[m];
            if (m == j->c.self || !s->n->paths[peer].up)
                continue;
            struct path *p = &s->n->paths[peer];
            uint64_t elsewhere = flying_to(s->n, peer) - g->out[m].flying_bytes;
            for (int64_t c; (c = inter_sender_next(&g->out[m], inter_estimate_window(&p->estimate), elsewhere, s->now)) >= 0;) {
                const struct inter_manifest *mf = &g->slots[j->c.self].m;
                struct neb_buf *b = begin(s, MSG_CHUNK);
                inter_key_put(b, &mf->key);
                neb_buf_u32(b, (uint32_t)c);
                neb_buf_u64(b, 0);
                struct inter_action *a = act(s, INTER_ACT_SEND_CHUNK);
                a->peer = peer;
                a->key = mf->key;
                a->chunk = (uint32_t)c;
                a->offset = (uint64_t)c * mf->chunk_bytes;
                a->len = inter_chunk_length(mf->bytes, mf->chunk_bytes, (uint32_t)c);
                a->at = s->out->bytes.len;
                a->size = b->len;
                neb_buf_add(&s->out->bytes, b->p, b->len);
                p->stats.payload_sent += a->len;
                if (s->st != NEB_OK)
                    return;
            }
        }
    }
}

static enum neb_status start_sending(struct job *j, struct fragment *g) {
    const struct inter_manifest *m = &g->slots[j->c.self].m;
    for (uint8_t i = 0; i < j->c.n_members; i++)
        if (i != j->c.self) {
            NEB_TRY(inter_sender_init(&g->out[i], m->bytes, m->chunk_bytes));
            // Not ready before the STATE that answers the manifest: chunks travel on other connections and would
            // overtake it, be dropped as unknown, and wait for their timeout.
        }
    g->sending = true;
    return NEB_OK;
}

// ---- rounds ---------------------------------------------------------------------------------------------------

static void clear_slot(struct slot *t) {
    inter_bitmap_free(&t->got);
    *t = (struct slot){0};
}

static void clear_round(struct job *j, struct fragment *g) {
    for (uint8_t m = 0; m < j->c.n_members; m++) {
        clear_slot(&g->slots[m]);
        inter_sender_free(&g->out[m]);
    }
    g->sending = g->voted = false;
    g->accepted = 0;
}

static void commit(struct step *s, struct job *j, struct fragment *g, const struct inter_record *r) {
    struct inter_record copy = *r; // r may live in the fragment that is cleared
    store_record(s, INTER_ACT_STORE_COMMIT, &copy);
    store_record(s, INTER_ACT_DELIVER, &copy);
    clear_round(j, g);
    inter_record_hash(&copy, g->previous);
    g->round = copy.round + 1;
    g->moved = s->now;
}

static void check_digests(struct step *s, const struct job *j, const struct fragment *g) {
    const struct slot *first = NULL;
    for (uint8_t m = 0; m < j->c.n_members; m++) {
        const struct slot *t = &g->slots[m];
        if (!t->known)
            continue;
        if (first && (first->m.digest[0] != t->m.digest[0] || first->m.digest[1] != t->m.digest[1])) {
            fault(s, INTER_FAULT_DIVERGED);
            return;
        }
        first = first ? first : t;
    }
}

// The leader proposes once every member's blob is durable on every member.
static void try_propose(struct step *s, struct job *j, struct fragment *g, uint32_t f) {
    uint32_t everyone = (1u << j->c.n_members) - 1;
    struct inter_record r = {.round = g->round, .fragment = f, .term = 1, .leader = j->c.self, .eta = j->c.eta, .mu = j->c.mu,
                             .plan_interval = j->c.interval, .plan_overlap = j->c.overlap};
    if (!leads(j) || g->voted)
        return;
    for (uint8_t m = 0; m < j->c.n_members; m++) {
        const struct slot *t = &g->slots[m];
        if (!t->known || !t->whole || t->holders != everyone)
            return;
        r.entries[r.n++] = (struct inter_entry){.member = m, .flags = t->m.flags, .attempt = t->m.key.attempt, .bytes = t->m.bytes,
                                                .tokens = t->m.tokens, .clip = 1};
        memcpy(r.entries[m].sha256, t->m.sha256, sizeof t->m.sha256);
        if (t->m.missed > j->c.merge_after)
            r.flags |= INTER_MERGE;
    }
    memcpy(r.job, j->c.id, sizeof r.job);
    memcpy(r.previous, g->previous, sizeof r.previous);
    neb_buf_clear(&s->n->scratch);
    inter_record_put_body(&s->n->scratch, &r);
    if (!s->n->crypto.sign(s->n->crypto.user, record_context, s->n->scratch.p, s->n->scratch.len, r.sig))
        return;
    g->vote = r;
    g->voted = true;
    g->accepted = 1u << j->c.self;
    inter_record_hash(&r, g->vote_hash);
    g->moved = s->now;
    store_record(s, INTER_ACT_STORE_VOTE, &r);
    if (majority(j, g->accepted)) // a job of one member
        commit(s, j, g, &g->vote);
    else
        say_record(s, MSG_PROPOSE, j, &g->vote);
}

// Whether this node holds exactly what a record lists, on disk.
static bool holds_all(const struct job *j, const struct fragment *g, const struct inter_record *r) {
    for (uint8_t i = 0; i < r->n; i++) {
        const struct inter_entry *e = &r->entries[i];
        const struct slot *t = e->member < j->c.n_members ? &g->slots[e->member] : NULL;
        if (!t || !t->whole || t->m.key.attempt != e->attempt || t->m.bytes != e->bytes || t->m.tokens != e->tokens ||
            t->m.flags != e->flags || memcmp(t->m.sha256, e->sha256, sizeof e->sha256))
            return false;
    }
    return true;
}

// ---- messages -------------------------------------------------------------------------------------------------

static void on_manifest(struct step *s, struct neb_rd *r) {
    struct inter_manifest m;
    if (!inter_manifest_get(r, &m) || !neb_rd_done(r)) {
        fault(s, INTER_FAULT_MALFORMED);
        return;
    }
    struct job *j = find_job(s->n, m.key.job);
    struct fragment *g = find_fragment(j, m.key.fragment);
    if (!g)
        return; // a job that is not open here yet: its owner will say it again
    if (member_of_peer(j, s->e->peer) != m.key.member) {
        fault(s, INTER_FAULT_DENIED);
        return;
    }
    if (m.key.round != g->round) {
        if (m.key.round > g->round)
            say_pull(s, j, g, m.key.fragment, s->e->peer);
        else
            answer_old(s, j, m.key.round, m.key.fragment);
        return;
    }
    struct slot *t = &g->slots[m.key.member];
    if (t->known) {
        if (memcmp(t->m.sha256, m.sha256, sizeof m.sha256) || t->m.key.attempt != m.key.attempt)
            fault(s, INTER_FAULT_SECOND);
        else
            say_state(s, j, t, false);
        return;
    }
    if (!verify_manifest(s->n, j, &m)) {
        fault(s, INTER_FAULT_DENIED);
        return;
    }
    if (inter_bitmap_init(&t->got, inter_chunks(m.bytes, m.chunk_bytes)) != NEB_OK) {
        s->st = NEB_ERR_NOMEM;
        return;
    }
    t->known = true;
    t->m = m;
    t->holders = 1u << m.key.member;
    g->moved = s->now;
    act(s, INTER_ACT_STORE_MANIFEST)->manifest = m;
    act(s, INTER_ACT_BLOB_OPEN)->manifest = m;
    say_state(s, j, t, false);
    check_digests(s, j, g);
}

static void on_chunk(struct step *s, struct neb_rd *r) {
    struct inter_key k;
    inter_key_get(r, &k);
    uint32_t chunk = neb_rd_u32(r);
    uint64_t check = neb_rd_u64(r);
    size_t len = neb_rd_left(r);
    const uint8_t *data = neb_rd_view(r, len);
    uint8_t sha[INTER_SHA_BYTES];
    if (r->bad) {
        fault(s, INTER_FAULT_MALFORMED);
        return;
    }
    struct job *j = find_job(s->n, k.job);
    struct fragment *g = find_fragment(j, k.fragment);
    if (!g || member_of_peer(j, s->e->peer) != k.member) {
        fault(s, INTER_FAULT_DENIED);
        return;
    }
    struct slot *t = &g->slots[k.member];
    if (k.round != g->round || !t->known || t->m.key.attempt != k.attempt) {
        fault(s, INTER_FAULT_REPLAY);
        return;
    }
    if (chunk >= t->got.n || len != inter_chunk_length(t->m.bytes, t->m.chunk_bytes, chunk)) {
        fault(s, INTER_FAULT_MALFORMED);
        return;
    }
    neb_sha256(data, len, sha);
    struct neb_rd head = neb_rd_make(sha, sizeof sha);
    if (neb_rd_u64(&head) != check) {
        fault(s, INTER_FAULT_CORRUPT); // not acknowledged: it comes again
        return;
    }
    struct neb_buf *b = begin(s, MSG_ACK);
    inter_key_put(b, &k);
    neb_buf_u32(b, chunk);
    if (!inter_bitmap_set(&t->got, chunk)) {
        send_to(s, s->e->peer);
        fault(s, INTER_FAULT_REPLAY);
        return;
    }
    struct inter_action *a = act(s, INTER_ACT_BLOB_WRITE);
    a->key = k;
    a->chunk = chunk;
    a->offset = (uint64_t)chunk * t->m.chunk_bytes;
    a->view = data;
    a->len = len;
    s->n->paths[s->e->peer].stats.payload_received += len;
    send_to(s, s->e->peer);
    g->moved = s->now;
    if (t->got.set == t->got.n && !t->checking) {
        t->checking = true;
        act(s, INTER_ACT_BLOB_FINISH)->manifest = t->m;
    }
}

static void on_ack(struct step *s, struct neb_rd *r) {
    struct inter_key k;
    inter_key_get(r, &k);
    uint32_t chunk = neb_rd_u32(r);
    struct job *j = neb_rd_done(r) ? find_job(s->n, k.job) : NULL;
    struct fragment *g = find_fragment(j, k.fragment);
    if (!neb_rd_done(r)) {
        fault(s, INTER_FAULT_MALFORMED);
        return;
    }
    int m = j ? member_of_peer(j, s->e->peer) : -1;
    if (!g || m < 0 || k.member != j->c.self || k.round != g->round || !g->sending)
        return; // of a round that is over
    struct path *p = &s->n->paths[s->e->peer];
    neb_ns rtt;
    if (inter_sender_ack(&g->out[m], chunk, s->now, &rtt))
        inter_estimate_ack(&p->estimate, s->now, inter_chunk_length(g->out[m].bytes, g->out[m].chunk_bytes, chunk), rtt,
                           flying_to(s->n, s->e->peer) > 0);
    g->moved = s->now;
}

static void on_state(struct step *s, struct neb_rd *r) {
    struct inter_key k;
    inter_key_get(r, &k);
    uint8_t whole = neb_rd_u8(r);
    uint32_t len = neb_rd_u32(r);
    const uint8_t *bits = neb_rd_view(r, len);
    if (!neb_rd_done(r) || whole > 1) {
        fault(s, INTER_FAULT_MALFORMED);
        return;
    }
    struct job *j = find_job(s->n, k.job);
    struct fragment *g = find_fragment(j, k.fragment);
    int m = j ? member_of_peer(j, s->e->peer) : -1;
    if (!g || m < 0 || k.member >= j->c.n_members || k.round != g->round)
        return;
    struct slot *t = &g->slots[k.member];
    if (!t->known || t->m.key.attempt != k.attempt)
        return;
    g->moved = s->now;
    if (whole)
        t->holders |= 1u << m;
    if (k.member == j->c.self && g->sending) {
        struct inter_sender *o = &g->out[m];
        if (whole) {
            neb_ns rtt;
            for (uint32_t c = 0; c < o->acked.n; c++)
                (void)inter_sender_ack(o, c, s->now, &rtt);
        } else if (!inter_sender_state(o, bits, len)) {
            fault(s, INTER_FAULT_MALFORMED);
            return;
        }
        o->ready = true;
    }
    try_propose(s, j, g, k.fragment);
}

static void on_propose(struct step *s, struct neb_rd *r) {
    struct inter_record c;
    uint8_t hash[INTER_SHA_BYTES];
    if (!inter_record_get(r, &c) || !neb_rd_done(r)) {
        fault(s, INTER_FAULT_MALFORMED);
        return;
    }
    struct job *j = find_job(s->n, c.job);
    struct fragment *g = find_fragment(j, c.fragment);
    if (!g)
        return;
    if (member_of_peer(j, s->e->peer) != c.leader || !verify_record(s->n, j, &c)) {
        fault(s, INTER_FAULT_DENIED);
        return;
    }
    if (c.round != g->round) {
        if (c.round > g->round)
            say_pull(s, j, g, c.fragment, s->e->peer);
        else
            fault(s, INTER_FAULT_REPLAY);
        return;
    }
    inter_record_hash(&c, hash);
    if (g->voted && memcmp(hash, g->vote_hash, sizeof hash)) {
        fault(s, INTER_FAULT_SECOND);
        return;
    }
    if (memcmp(c.previous, g->previous, sizeof c.previous)) {
        fault(s, INTER_FAULT_DIVERGED);
        return;
    }
    if (!holds_all(j, g, &c))
        return; // blobs are still on their way: the leader will say it again
    if (!g->voted) {
        g->voted = true;
        g->vote = c;
        memcpy(g->vote_hash, hash, sizeof hash);
        store_record(s, INTER_ACT_STORE_VOTE, &c);
    }
    g->moved = s->now;
    say_accept(s, j, g, c.fragment);
}

static void on_accept(struct step *s, struct neb_rd *r) {
    uint8_t id[INTER_ID_BYTES], hash[INTER_SHA_BYTES], sig[INTER_SIG_BYTES];
    neb_rd_copy(r, id, sizeof id);
    uint32_t round = neb_rd_u32(r), f = neb_rd_u32(r), term = neb_rd_u32(r);
    neb_rd_copy(r, hash, sizeof hash);
    size_t body = r->off - 1; // behind the type
    neb_rd_copy(r, sig, sizeof sig);
    if (!neb_rd_done(r)) {
        fault(s, INTER_FAULT_MALFORMED);
        return;
    }
    struct job *j = find_job(s->n, id);
    struct fragment *g = find_fragment(j, f);
    int m = j ? member_of_peer(j, s->e->peer) : -1;
    if (!g || m < 0 || !leads(j) || round > g->round)
        return;
    if (round < g->round) {
        answer_old(s, j, round, f);
        return;
    }
    if (!g->voted || term != g->vote.term || memcmp(hash, g->vote_hash, sizeof hash)) {
        fault(s, INTER_FAULT_REPLAY);
        return;
    }
    if (!s->n->crypto.verify(s->n->crypto.user, s->e->peer, accept_context, r->p + 1, body, sig)) {
        fault(s, INTER_FAULT_DENIED);
        return;
    }
    g->accepted |= 1u << m;
    if (!majority(j, g->accepted))
        return;
    struct inter_record done = g->vote;
    commit(s, j, g, &done);
    say_record(s, MSG_COMMIT, j, &done);
}

static void on_commit(struct step *s, struct neb_rd *r) {
    struct inter_record c;
    if (!inter_record_get(r, &c) || !neb_rd_done(r)) {
        fault(s, INTER_FAULT_MALFORMED);
        return;
    }
    struct job *j = find_job(s->n, c.job);
    struct fragment *g = find_fragment(j, c.fragment);
    if (!g)
        return;
    if (!verify_record(s->n, j, &c)) {
        fault(s, INTER_FAULT_DENIED);
        return;
    }
    if (c.round < g->round) {
        fault(s, INTER_FAULT_REPLAY);
        return;
    }
    if (c.round > g->round) {
        say_pull(s, j, g, c.fragment, s->e->peer);
        return;
    }
    if (memcmp(c.previous, g->previous, sizeof c.previous)) {
        fault(s, INTER_FAULT_DIVERGED);
        return;
    }
    if (!holds_all(j, g, &c))
        return; // its blobs have to arrive first; their owners keep sending
    commit(s, j, g, &c);
}

// Says again what the other side may have missed.
static void repeat(struct step *s, struct job *j, struct fragment *g, uint32_t f, uint32_t peer) {
    int m = member_of_peer(j, peer);
    const struct slot *own = &g->slots[j->c.self];
    if (own->known && !(own->holders >> m & 1))
        say_manifest(s, j, g, peer);
    if (g->slots[m].known)
        say_state(s, j, &g->slots[m], false);
    if (g->voted && leads(j)) {
        inter_record_put(begin(s, MSG_PROPOSE), &g->vote);
        send_to(s, peer);
    } else if (g->voted && g->vote.leader == m) {
        say_accept(s, j, g, f);
    }
}

static void on_pull(struct step *s, struct neb_rd *r) {
    uint8_t id[INTER_ID_BYTES];
    neb_rd_copy(r, id, sizeof id);
    uint32_t f = neb_rd_u32(r), round = neb_rd_u32(r);
    struct job *j = neb_rd_done(r) ? find_job(s->n, id) : NULL;
    struct fragment *g = find_fragment(j, f);
    if (!neb_rd_done(r))
        fault(s, INTER_FAULT_MALFORMED);
    else if (!g || member_of_peer(j, s->e->peer) < 0)
        return;
    else if (round < g->round)
        answer_old(s, j, round, f);
    else if (round == g->round) // it has just opened the job or come back: what was said before is lost on it
        repeat(s, j, g, f, s->e->peer);
}

static void on_message(struct step *s) {
    static void (*const handlers[])(struct step *, struct neb_rd *) = {
        NULL, on_manifest, on_state, on_ack, on_propose, on_accept, on_commit, on_pull, on_chunk};
    struct neb_rd r = neb_rd_make(s->e->data, s->e->len);
    uint8_t type = neb_rd_u8(&r);
    if (type < MSG_MANIFEST || type > MSG_CHUNK || (type == MSG_CHUNK) != s->e->bulk)
        fault(s, INTER_FAULT_MALFORMED);
    else
        handlers[type](s, &r);
}

// ---- other events ---------------------------------------------------------------------------------------------

static void on_submit(struct step *s) {
    const struct inter_manifest *m = s->e->manifest;
    struct job *j = find_job(s->n, m->key.job);
    struct fragment *g = find_fragment(j, m->key.fragment);
    NEB_ASSERT(g && m->key.member == j->c.self);
    struct slot *t = &g->slots[j->c.self];
    if (m->key.round != g->round || t->known)
        return; // the service answers repeated submissions from the ledger
    t->known = t->whole = true;
    t->m = *m;
    t->holders = 1u << j->c.self;
    g->moved = s->now;
    act(s, INTER_ACT_STORE_MANIFEST)->manifest = *m;
    if ((s->st = start_sending(j, g)) != NEB_OK)
        return;
    inter_manifest_put(begin(s, MSG_MANIFEST), m);
    send_all(s, j);
    check_digests(s, j, g);
    try_propose(s, j, g, m->key.fragment);
}

static void on_blob_done(struct step *s) {
    struct job *j = find_job(s->n, s->e->key.job);
    struct fragment *g = find_fragment(j, s->e->key.fragment);
    if (!g || g->round != s->e->key.round || s->e->key.member >= j->c.n_members)
        return;
    struct slot *t = &g->slots[s->e->key.member];
    t->checking = false;
    if (!s->e->ok) { // the whole does not match its digest: start over
        memset(t->got.bits, 0, (t->got.n + 7) / 8);
        t->got.set = 0;
        say_state(s, j, t, false);
        return;
    }
    t->whole = true;
    t->holders |= 1u << j->c.self;
    say_state(s, j, t, true);
    try_propose(s, j, g, s->e->key.fragment);
}

static void on_peer(struct step *s, bool up) {
    struct path *p = &s->n->paths[s->e->peer];
    p->up = up;
    for (int i = 0; i < JOBS_MAX; i++) {
        struct job *j = &s->n->jobs[i];
        int m = j->open ? member_of_peer(j, s->e->peer) : -1;
        for (uint32_t f = 0; m >= 0 && f < j->c.fragments; f++) {
            struct fragment *g = &j->fragments[f];
            if (g->sending) {
                p->stats.payload_resent += up ? 0 : g->out[m].flying_bytes; // will travel a second time
                inter_sender_link_lost(&g->out[m]);
            }
            if (up) {
                repeat(s, j, g, f, s->e->peer);
                say_pull(s, j, g, f, s->e->peer);
                g->moved = s->now;
            }
        }
    }
}

static void on_tick(struct step *s) {
    for (int i = 0; i < JOBS_MAX; i++) {
        struct job *j = &s->n->jobs[i];
        for (uint32_t f = 0; j->open && f < j->c.fragments; f++) {
            struct fragment *g = &j->fragments[f];
            bool busy = g->voted;
            for (uint8_t m = 0; m < j->c.n_members; m++) {
                struct slot *t = &g->slots[m];
                busy |= t->known;
                if (t->known && !t->whole && !t->checking && t->got.set == t->got.n) { // all had arrived before a restart
                    t->checking = true;
                    act(s, INTER_ACT_BLOB_FINISH)->manifest = t->m;
                }
            }
            for (uint8_t m = 0; g->sending && m < j->c.n_members; m++)
                if (m != j->c.self)
                    inter_sender_expire(&g->out[m], s->now, chunk_timeout);
            if (!busy || s->now - g->moved < repeat_after)
                continue;
            g->moved = s->now;
            for (uint8_t m = 0; m < j->c.n_members; m++)
                if (m != j->c.self && s->n->paths[j->c.peers[m]].up)
                    repeat(s, j, g, f, j->c.peers[m]);
        }
    }
}

static void on_send_failed(struct step *s) {
    struct job *j = find_job(s->n, s->e->key.job);
    struct fragment *g = find_fragment(j, s->e->key.fragment);
    int m = j ? member_of_peer(j, s->e->peer) : -1;
    if (!g || m < 0 || g->round != s->e->key.round || !g->sending)
        return;
    s->n->paths[s->e->peer].stats.payload_sent -= inter_chunk_length(g->out[m].bytes, g->out[m].chunk_bytes, s->e->chunk);
    inter_sender_unsend(&g->out[m], s->e->chunk);
}

enum neb_status inter_node_step(struct inter_node *n, neb_ns now, const struct inter_event *e, struct inter_actions *out) {
    struct step s = {.n = n, .now = now, .e = e, .out = out};
    inter_actions_clear(out);
    NEB_ASSERT(e->peer < PEERS_MAX);
    switch (e->kind) {
    case INTER_EV_TICK: on_tick(&s); break;
    case INTER_EV_PEER_UP: on_peer(&s, true); break;
    case INTER_EV_PEER_DOWN: on_peer(&s, false); break;
    case INTER_EV_MESSAGE: on_message(&s); break;
    case INTER_EV_SUBMIT: on_submit(&s); break;
    case INTER_EV_BLOB_DONE: on_blob_done(&s); break;
    case INTER_EV_SEND_FAILED: on_send_failed(&s); return s.st; // no pump: the queue is full
    }
    for (int i = 0; i < JOBS_MAX && s.st == NEB_OK; i++)
        if (n->jobs[i].open)
            pump(&s, &n->jobs[i]);
    return s.st;
}

// ---- life -----------------------------------------------------------------------------------------------------

enum neb_status inter_node_create(const struct inter_node_crypto *crypto, struct inter_node **out) {
    struct inter_node *n = calloc(1, sizeof *n);
    if (!n)
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating a node");
    n->crypto = *crypto;
    *out = n;
    return NEB_OK;
}

static void close_job(struct job *j) {
    for (uint32_t f = 0; j->open && f < j->c.fragments; f++)
        clear_round(j, &j->fragments[f]);
    free(j->fragments);
    *j = (struct job){0};
}

void inter_node_destroy(struct inter_node **np) {
    if (!*np)
        return;
    for (int i = 0; i < JOBS_MAX; i++)
        close_job(&(*np)->jobs[i]);
    neb_buf_free(&(*np)->scratch);
    free(*np);
    *np = NULL;
}

enum neb_status inter_node_job_open(struct inter_node *n, const struct inter_job_config *c) {
    if (c->n_members < 1 || c->n_members > INTER_MEMBERS_MAX || c->self >= c->n_members || c->fragments < 1 ||
        c->fragments > INTER_FRAGMENTS_MAX)
        return neb_fail(NEB_ERR_INVALID, "job: %u members, %u fragments", c->n_members, c->fragments);
    for (uint8_t m = 0; m < c->n_members; m++)
        if (m != c->self && c->peers[m] >= PEERS_MAX)
            return neb_fail(NEB_ERR_INVALID, "job: peer %u of member %u", c->peers[m], m);
    if (find_job(n, c->id))
        return neb_fail(NEB_ERR_EXISTS, "the job is open already");
    for (int i = 0; i < JOBS_MAX; i++) {
        if (n->jobs[i].open)
            continue;
        n->jobs[i] = (struct job){.open = true, .c = *c, .fragments = calloc(c->fragments, sizeof *n->jobs[i].fragments)};
        if (n->jobs[i].fragments)
            return NEB_OK;
        n->jobs[i].open = false;
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening a job");
    }
    return neb_fail(NEB_ERR_LIMIT, "at most %d jobs at a time; stop one first", JOBS_MAX);
}

void inter_node_job_close(struct inter_node *n, const uint8_t id[INTER_ID_BYTES]) {
    struct job *j = find_job(n, id);
    if (j)
        close_job(j);
}

void inter_node_restore_commit(struct inter_node *n, const struct inter_record *last) {
    struct fragment *g = find_fragment(find_job(n, last->job), last->fragment);
    if (!g)
        return;
    inter_record_hash(last, g->previous);
    g->round = last->round + 1;
}

enum neb_status inter_node_restore_manifest(struct inter_node *n, const struct inter_manifest *m, bool durable,
                                            const struct inter_bitmap *got) {
    struct job *j = find_job(n, m->key.job);
    struct fragment *g = find_fragment(j, m->key.fragment);
    if (!g || m->key.round != g->round || m->key.member >= j->c.n_members)
        return NEB_OK; // of a round that is over
    struct slot *t = &g->slots[m->key.member];
    t->known = true;
    t->m = *m;
    t->whole = durable;
    t->holders = 1u << m->key.member | (durable ? 1u << j->c.self : 0u);
    if (m->key.member == j->c.self)
        return start_sending(j, g);
    NEB_TRY(inter_bitmap_init(&t->got, inter_chunks(m->bytes, m->chunk_bytes)));
    if (got)
        (void)inter_bitmap_merge(&t->got, got->bits, (got->n + 7) / 8);
    return NEB_OK;
}

void inter_node_restore_vote(struct inter_node *n, const struct inter_record *r) {
    struct job *j = find_job(n, r->job);
    struct fragment *g = find_fragment(j, r->fragment);
    if (!g || r->round != g->round)
        return;
    g->voted = true;
    g->vote = *r;
    g->accepted = 1u << j->c.self;
    inter_record_hash(r, g->vote_hash);
}

void inter_node_path(const struct inter_node *n, uint32_t peer, struct inter_path_stats *out) {
    *out = n->paths[peer].stats;
    out->goodput_bps = n->paths[peer].estimate.goodput_bps;
    out->rtt = n->paths[peer].estimate.rtt;
}

uint64_t inter_node_faults(const struct inter_node *n, enum inter_fault f) { return n->faults[f]; }

uint32_t inter_node_round(const struct inter_node *n, const uint8_t id[INTER_ID_BYTES], uint32_t fragment) {
    struct fragment *g = find_fragment(find_job((struct inter_node *)(uintptr_t)n, id), fragment);
    return g ? g->round : UINT32_MAX;
}

uint32_t inter_node_chunk_bytes(const struct inter_node *n, uint32_t blob_bytes) {
    const struct inter_estimate *best = &n->paths[0].estimate;
    for (int i = 1; i < PEERS_MAX; i++)
        if (n->paths[i].estimate.goodput_bps > best->goodput_bps)
            best = &n->paths[i].estimate;
    return inter_estimate_chunk(best, blob_bytes);
}
