// SPDX-License-Identifier: Apache-2.0
// A complete service with its ledger against a hostile member: mallory leads the job's first term,
// is on the list and has her own key. She sends raw bytes, and well-formed signed messages: updates
// and chunks, proposals, commits, votes, promises, evidence. The service lives for one input, with
// its ledger in its own folder (in /dev/shm if possible). At the end it still works, its disk is
// sound, and each round has at most one record. Input: up to 96 steps. Each step is a byte that
// chooses the kind, and the bytes that this kind takes.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/base/sha256.h"
#include "compress/update.h"
#include "inter/ledger/verify.h"
#include "inter/record/weights.h"
#include "inter/round/node_state.h"
#include "inter/service/state.h"
#include "security/sign.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MALLORY, ANNA, BERT, MEMBERS };
enum { ROWS = 96, COLS = 64, ELEMENTS = ROWS * COLS, STEP_TOKENS = 64, H = 10, STEPS_MAX = 96 };
static const uint8_t job_id[INTER_ID_BYTES] = {9, 9};
static char root[64];
static struct sec_identity *ids[MEMBERS];
static struct sec_members list;
static uint32_t index_of[MEMBERS];
static void *zctx;

struct play { // of one input
    struct neb_rd in;
    struct inter_service *s;
    struct neb_buf blob, out;
    struct inter_manifest m; // her last manifest
    struct inter_record r;   // her last proposal
};

// ---- once per process ----

static void remove_all(void) {
    for (int k = 0; k < MEMBERS; k++)
        sec_identity_destroy(&ids[k]);
    if (neb_fs_remove_tree(root) != NEB_OK)
        neb_warn("%s stays", root);
}

static void set_up(void) {
    static const char *const names[MEMBERS] = {"mallory", "anna", "bert"};
    snprintf(root, sizeof root, "%s/nebula-fuzz-service-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    NEB_ASSERT(sec_init() == NEB_OK && mkdtemp(root));
    for (int k = 0; k < MEMBERS; k++) {
        char home[96];
        snprintf(home, sizeof home, "%s/%s", root, names[k]);
        NEB_ASSERT(sec_identity_create(home, names[k], &ids[k]) == NEB_OK);
        struct sec_member m = {.pub = *sec_identity_public(ids[k])};
        NEB_ASSERT(sec_members_add(&list, &m) == NEB_OK);
    }
    for (int k = 0; k < MEMBERS; k++)
        index_of[k] = (uint32_t)(sec_members_by_name(&list, names[k]) - list.m);
    NEB_ASSERT((zctx = zmq_ctx_new()) != NULL);
    atexit(remove_all);
}

// ---- the service ----

static void on_commit(void *user, const struct inter_record *r, const struct neb_map *blobs) {
    (void)user, (void)r, (void)blobs;
}
static void on_message(void *user, uint32_t peer, uint32_t kind, const uint8_t *p, size_t n) {
    uint64_t sum = 0;
    (void)user, (void)peer, (void)kind;
    for (size_t i = 0; i < n; i++)
        sum += p[i];
    NEB_ASSERT(sum <= 255 * (uint64_t)n);
}
static void on_peer(void *user, uint32_t peer, bool up) { (void)user, (void)peer, (void)up; }
static void on_fault(void *user, uint32_t peer, enum inter_fault f) {
    (void)user;
    NEB_ASSERT(peer < INTER_PEERS_MAX && f < INTER_FAULTS);
}

static void hear(struct play *p, int from, enum inter_channel channel, const void *b, size_t n) {
    uint8_t *copy = malloc(n ? n : 1); // of exact size
    NEB_ASSERT(copy);
    if (n)
        memcpy(copy, b, n);
    service_on_event(p->s, &(struct inter_link_event){.kind = INTER_LINK_MSG,
                                                      .peer = index_of[from],
                                                      .channel = channel,
                                                      .data = copy,
                                                      .len = n});
    free(copy);
}

static void tick(struct play *p) {
    service_step(p->s, &(struct inter_event){.kind = INTER_EV_TICK, .peer = index_of[ANNA]});
}

static void link_is(struct play *p, int who, bool up) {
    service_on_event(p->s, &(struct inter_link_event){.kind = up ? INTER_LINK_UP : INTER_LINK_DOWN,
                                                      .peer = index_of[who]});
}

static struct job *job_of(struct play *p) { return node_find_job(p->s->node, job_id); }
static struct fragment *round_of(struct play *p) { return &job_of(p)->fragments[0]; }

static void heartbeat(struct play *p, int from, uint8_t flags, uint32_t term, uint32_t round) {
    struct neb_buf *b = &p->out;
    neb_buf_clear(b);
    neb_buf_u8(b, MSG_HEARTBEAT);
    neb_buf_add(b, job_id, sizeof job_id);
    neb_buf_u32(b, term);
    neb_buf_u8(b, flags);
    neb_buf_u64(b, 1000u + (uint64_t)from);
    neb_buf_u64(b, job_of(p)->standing.epoch);
    neb_buf_u16(b, 7);
    neb_buf_u32(b, 1);
    neb_buf_u16(b, 0);
    neb_buf_u32(b, round);
    neb_buf_add(b, round_of(p)->previous, HEAD_BYTES);
    hear(p, from, INTER_CONTROL, b->p, b->len);
}

static void begin(struct play *p, const char *dir) {
    struct inter_service_config c = {
        .dir = dir,
        .identity = ids[ANNA],
        .members = &list,
        .zmq_context = zctx,
        .callbacks = {
            .commit = on_commit, .message = on_message, .peer = on_peer, .fault = on_fault}};
    const struct cmp_unit_shape shape = {.unit = 0, .rows = ROWS, .cols = COLS, .counts = true};
    struct inter_job_config j = {.n_members = MEMBERS,
                                 .self = ANNA,
                                 .fragments = 1,
                                 .merge_after = 4,
                                 .eta = 0.9f,
                                 .mu = 0.6f,
                                 .steps = 1000,
                                 .step_tokens = STEP_TOKENS,
                                 .tune = {.start_interval = H}};
    uint8_t sha[INTER_SHA_BYTES];
    memcpy(j.id, job_id, sizeof j.id);
    memcpy(j.peers, index_of, sizeof index_of);
    cmp_shapes_hash(&shape, 1, sha);
    NEB_ASSERT(inter_service_create(&c, &p->s) == NEB_OK);
    inter_service_bound(p->s, job_id, ELEMENTS, INTER_COUNTS_EXACT);
    NEB_ASSERT(inter_service_shape(p->s, job_id, 0, ELEMENTS, sha) == NEB_OK);
    NEB_ASSERT(inter_service_job_open(p->s, &j) == NEB_OK);
    for (int k = 0; k < MEMBERS; k++)
        if (k != ANNA) {
            link_is(p, k, true);
            heartbeat(p, k, k == MALLORY ? 3 : 2, 0, 0);
        }
    tick(p);
    NEB_ASSERT(job_of(p)->standing.joined);
}

// ---- mallory's messages ----

static void sign(struct play *p, const char *context, uint8_t sig[INTER_SIG_BYTES]) { // p->out
    NEB_ASSERT(sec_sign(ids[MALLORY], context, p->out.p, p->out.len, sig) == NEB_OK);
}

static void make_blob(struct neb_buf *b, uint8_t seed) {
    static float data[ELEMENTS];
    uint64_t counts[ROWS];
    const struct cmp_unit_shape shape = {.unit = 0, .rows = ROWS, .cols = COLS, .counts = true};
    struct cmp_work *w = NULL;
    struct cmp_codec codec;
    for (uint32_t i = 0; i < ELEMENTS; i++)
        data[i] = (float)(int32_t)(i * 2654435761u + seed * 40503u) * 1e-9f;
    for (uint32_t i = 0; i < ROWS; i++)
        counts[i] = 1;
    NEB_ASSERT(cmp_work_create(&w) == NEB_OK && cmp_codec_parse("fp32", &codec) == NEB_OK);
    neb_buf_clear(b);
    cmp_update_begin(b, 1);
    NEB_ASSERT(cmp_update_add(w, b, &shape, &codec, &(struct cmp_source){.x = data}, counts) ==
               NEB_OK);
    cmp_work_destroy(&w);
    if (seed % 4 == 3) // sometimes one that the gate refuses
        neb_put_u32(b->p + b->len - 4, 0x7fc00000);
}

static void say_manifest(struct play *p) {
    uint32_t round = round_of(p)->round;
    uint8_t attempt = neb_rd_u8(&p->in), seed = neb_rd_u8(&p->in), odd = neb_rd_u8(&p->in);
    make_blob(&p->blob, seed);
    p->m = (struct inter_manifest){
        .key = {.round = round + (odd & 1), .member = MALLORY, .attempt = attempt % 4u + 1},
        .bytes = (uint32_t)p->blob.len + (odd >> 1 & 1),
        .chunk_bytes = INTER_CHUNK_MIN,
        .tokens = H * STEP_TOKENS * (1u + (odd >> 2 & 3)),
        .step = (round + 1) * H,
        .steps = H + (odd >> 4)};
    memcpy(p->m.key.job, job_id, sizeof job_id);
    neb_sha256(p->blob.p, p->blob.len, p->m.sha256);
    neb_buf_clear(&p->out);
    inter_manifest_put_body(&p->out, &p->m);
    sign(p, SEC_CONTEXT_MANIFEST, p->m.sig);
    neb_buf_clear(&p->out);
    neb_buf_u8(&p->out, MSG_MANIFEST);
    inter_manifest_put(&p->out, &p->m);
    hear(p, MALLORY, INTER_CONTROL, p->out.p, p->out.len);
}

static void say_chunk(struct play *p) {
    uint32_t chunks = p->m.bytes ? inter_chunks(p->m.bytes, p->m.chunk_bytes) : 0;
    uint32_t i = neb_rd_u8(&p->in), at = chunks ? i % chunks * INTER_CHUNK_MIN : 0;
    uint8_t sha[INTER_SHA_BYTES];
    if (!chunks || at >= p->blob.len)
        return;
    size_t n = p->blob.len - at < INTER_CHUNK_MIN ? p->blob.len - at : INTER_CHUNK_MIN;
    neb_sha256(p->blob.p + at, n, sha);
    neb_buf_clear(&p->out);
    neb_buf_u8(&p->out, MSG_CHUNK);
    inter_key_put(&p->out, &p->m.key);
    neb_buf_u32(&p->out, i % chunks);
    neb_buf_add(&p->out, sha, 8);
    neb_buf_add(&p->out, p->blob.p + at, n);
    if (i >> 7)
        p->out.p[p->out.len - 1] ^= 1;
    hear(p, i >> 6 & 1 ? BERT : MALLORY, INTER_BULK, p->out.p, p->out.len);
}

static void sign_record(struct play *p, struct inter_record *r) {
    uint8_t hash[INTER_SHA_BYTES];
    neb_buf_clear(&p->out);
    inter_record_put_body(&p->out, r);
    sign(p, SEC_CONTEXT_RECORD, r->sig);
    inter_record_hash(r, hash);
    neb_buf_clear(&p->out);
    r->accepts[0] = (struct inter_accept){.member = MALLORY, .epoch = 1000 + MALLORY};
    inter_accept_put_body(&p->out, r, hash, r->accepts[0].epoch);
    sign(p, SEC_CONTEXT_ACCEPT, r->accepts[0].sig);
    r->n_accepts = 1;
}

// What an honest leader would propose about the updates that anna has, with one change.
static void say_proposal(struct play *p) {
    struct fragment *g = round_of(p);
    uint8_t which = neb_rd_u8(&p->in), odd = neb_rd_u8(&p->in), by = neb_rd_u8(&p->in);
    struct inter_record *r = &p->r;
    *r = (struct inter_record){
        .round = g->round, .leader = MALLORY, .eta = 0.9f, .mu = 0.6f, .n_plans = MEMBERS};
    memcpy(r->job, job_id, sizeof job_id);
    memcpy(r->previous, g->previous, sizeof r->previous);
    for (uint8_t m = 0; m < MEMBERS; m++) {
        r->plans[m] = (struct inter_plan){.interval = H, .codec = 1};
        r->cursors[m] = g->cursors[m];
        const struct slot *t = &g->slots[m];
        if (!t->known || (which >> m & 1))
            continue;
        struct inter_entry *e = &r->entries[r->n++];
        *e = (struct inter_entry){.member = m,
                                  .flags = t->m.flags,
                                  .verdict = t->refused ? INTER_REJECTED : INTER_ACCEPTED,
                                  .attempt = t->m.key.attempt,
                                  .bytes = t->m.bytes,
                                  .tokens = t->m.tokens,
                                  .digest = {t->m.digest[0], t->m.digest[1]},
                                  .clip = 1};
        memcpy(e->sha256, t->m.sha256, sizeof e->sha256);
        r->cursors[m] = t->m.step > r->cursors[m] ? t->m.step : r->cursors[m];
    }
    if (!r->n)
        return;
    inter_weights_fill(r, g->absences);
    switch (odd % 10) {
    case 1: r->plans[ANNA].interval += by; break; // a leader may choose this plan
    case 2: r->entries[by % r->n].verdict ^= 1; break;
    case 3: r->cursors[by % MEMBERS] += by; break;
    case 4: r->entries[by % r->n].weight += by; break;
    case 5: r->flags ^= INTER_MERGE; break;
    case 6: r->round += by; break;
    case 7: r->entries[by % r->n].sha256[by % 32] ^= 1; break;
    case 8: r->term = MEMBERS * (by % 4u); break;
    case 9: r->previous[by % 32] ^= 1; break;
    default: break;
    }
    sign_record(p, r);
    neb_buf_clear(&p->out);
    neb_buf_u8(&p->out, MSG_PROPOSE);
    inter_record_put(&p->out, r);
    neb_buf_u64(&p->out, 1000 + MALLORY);
    neb_buf_u8(&p->out, 0);
    hear(p, MALLORY, INTER_CONTROL, p->out.p, p->out.len);
}

// A commit, with anna's vote if she gave one.
static void say_commit(struct play *p) {
    const struct fragment *g = round_of(p);
    struct inter_record r = p->r;
    uint8_t hash[INTER_SHA_BYTES];
    inter_record_hash(&r, hash);
    if (!r.n)
        return;
    if (g->voted && !memcmp(hash, g->vote_hash, sizeof hash) && g->vote.term == r.term) {
        r.accepts[1] = (struct inter_accept){.member = ANNA, .epoch = job_of(p)->standing.epoch};
        neb_buf_clear(&p->out);
        inter_accept_put_body(&p->out, &r, hash, r.accepts[1].epoch);
        NEB_ASSERT(sec_sign(ids[ANNA], SEC_CONTEXT_ACCEPT, p->out.p, p->out.len,
                            r.accepts[1].sig) == NEB_OK);
        r.n_accepts = 2;
    }
    neb_buf_clear(&p->out);
    inter_node_commit_message(&p->out, &r);
    hear(p, MALLORY, INTER_CONTROL, p->out.p, p->out.len);
}

static void put_key(struct play *p, uint8_t type) {
    uint8_t member = neb_rd_u8(&p->in), ahead = neb_rd_u8(&p->in);
    struct inter_key k = {.round = round_of(p)->round + ahead / 64u - 1u,
                          .fragment = ahead >> 5 & 1,
                          .member = member % 4u,
                          .attempt = member / 4u};
    memcpy(k.job, job_id, sizeof job_id);
    const struct slot *t = &round_of(p)->slots[k.member];
    if (t->known && ahead & 1)
        k = t->m.key;
    neb_buf_clear(&p->out);
    neb_buf_u8(&p->out, type);
    inter_key_put(&p->out, &k);
}

static void say_state(struct play *p) {
    put_key(p, MSG_STATE);
    uint8_t what = neb_rd_u8(&p->in);
    const struct slot *t = &round_of(p)->slots[what % 3];
    neb_buf_add(&p->out, t->m.sha256, STATE_DIGEST);
    neb_buf_u64(&p->out, 1000 + MALLORY);
    neb_buf_u8(&p->out, what >> 2 & 3);
    neb_buf_u32(&p->out, what >> 4 & 1);
    if (what >> 4 & 1)
        neb_buf_u8(&p->out, what);
    neb_buf_u32(&p->out, 100000);
    neb_buf_u8(&p->out, what >> 7);
    hear(p, MALLORY, INTER_CONTROL, p->out.p, p->out.len);
}

static void say_about_key(struct play *p) {
    static const uint8_t types[] = {MSG_ACK, MSG_WANT, MSG_GONE};
    uint8_t type = types[neb_rd_u8(&p->in) % 3];
    put_key(p, type);
    if (type == MSG_ACK)
        neb_buf_u32(&p->out, neb_rd_u8(&p->in));
    hear(p, MALLORY, INTER_CONTROL, p->out.p, p->out.len);
}

static void say_pull(struct play *p) {
    neb_buf_clear(&p->out);
    neb_buf_u8(&p->out, MSG_PULL);
    neb_buf_add(&p->out, job_id, sizeof job_id);
    neb_buf_u32(&p->out, neb_rd_u8(&p->in) >> 7);
    neb_buf_u32(&p->out, round_of(p)->round + neb_rd_u8(&p->in) % 4u - 1u);
    hear(p, MALLORY, INTER_CONTROL, p->out.p, p->out.len);
}

// Mallory asks for a term, or answers a request for one: with a vote for her last proposal, or
// without one.
static void say_election(struct play *p) {
    uint8_t how = neb_rd_u8(&p->in);
    uint32_t term = how & 1 ? 3u * (how >> 1 & 3) : job_of(p)->standing.term;
    neb_buf_clear(&p->out);
    neb_buf_u8(&p->out, how & 1 ? MSG_ELECT : MSG_PROMISE);
    neb_buf_add(&p->out, job_id, sizeof job_id);
    neb_buf_u8(&p->out, how >> 3 & 1);
    neb_buf_u32(&p->out, term);
    neb_buf_u64(&p->out, 1000 + MALLORY);
    if (!(how & 1)) {
        struct inter_promise x = {.member = MALLORY,
                                  .term = term,
                                  .epoch = 1000 + MALLORY,
                                  .round = round_of(p)->round + (how >> 4 & 1),
                                  .voted = p->r.n && how >> 5 & 1,
                                  .vote_term = p->r.term};
        struct neb_buf said = p->out;
        neb_buf_u32(&said, 0);
        neb_buf_u32(&said, x.round);
        neb_buf_u8(&said, x.voted);
        if (x.voted) {
            inter_record_put(&said, &p->r);
            inter_record_hash(&p->r, x.vote_hash);
        }
        p->out = (struct neb_buf){0};
        inter_promise_put_body(&p->out, job_id, 0, &x);
        sign(p, SEC_CONTEXT_PROMISE, x.sig);
        neb_buf_free(&p->out);
        neb_buf_add(&said, x.sig, sizeof x.sig);
        p->out = said;
    }
    hear(p, MALLORY, INTER_CONTROL, p->out.p, p->out.len);
}

// Raw: a type and any bytes, after the job's id if requested.
static void say_raw(struct play *p, enum inter_channel channel) {
    uint8_t head = neb_rd_u8(&p->in), type = neb_rd_u8(&p->in);
    size_t n = neb_rd_u8(&p->in) * (head >> 7 ? 16u : 1u);
    n = n < neb_rd_left(&p->in) ? n : neb_rd_left(&p->in);
    const uint8_t *rest = neb_rd_view(&p->in, n);
    neb_buf_clear(&p->out);
    neb_buf_u8(&p->out, (uint8_t)(type % (head >> 6 & 1 ? 64 : 18)));
    if (head & 1)
        neb_buf_add(&p->out, job_id, sizeof job_id);
    neb_buf_add(&p->out, rest, n);
    hear(p, head & 2 ? BERT : MALLORY, channel, p->out.p, p->out.len);
}

static void submit(struct play *p) {
    uint32_t round = round_of(p)->round;
    struct neb_buf b = {0};
    struct inter_manifest m = {.key = {.round = round, .member = ANNA},
                               .tokens = H * STEP_TOKENS,
                               .step = (round + 1) * H,
                               .steps = H};
    memcpy(m.key.job, job_id, sizeof job_id);
    make_blob(&b, (uint8_t)(4 * round));
    NEB_ASSERT(inter_service_submit(p->s, &m, b.p, b.len) == NEB_OK);
    neb_buf_free(&b);
}

static void one_step(struct play *p) {
    switch (neb_rd_u8(&p->in) % 16) {
    case 0: say_raw(p, INTER_CONTROL); break;
    case 1: say_raw(p, INTER_BULK); break;
    case 2: say_manifest(p); break;
    case 3: say_chunk(p); break;
    case 4: say_proposal(p); break;
    case 5: say_commit(p); break;
    case 6: say_state(p); break;
    case 7: say_about_key(p); break;
    case 8: say_pull(p); break;
    case 9: say_election(p); break;
    case 10: {
        uint8_t flags = neb_rd_u8(&p->in), round = neb_rd_u8(&p->in);
        heartbeat(p, flags >> 7 ? BERT : MALLORY, flags & 7, flags >> 3 & 7,
                  round_of(p)->round + round % 4u - 1u);
        break;
    }
    case 11:
        link_is(p, MALLORY, false);
        link_is(p, MALLORY, true);
        break;
    case 12:
    case 13: submit(p); break;
    default: tick(p); break;
    }
}

// ---- invariants ----

static enum neb_status signed_by(void *user, const uint8_t id[INTER_ID_BYTES], uint8_t member,
                                 const char *context, const void *msg, size_t len,
                                 const uint8_t sig[INTER_SIG_BYTES]) {
    (void)user, (void)id;
    NEB_ASSERT(member < MEMBERS);
    return sec_verify(sec_identity_public(ids[member])->sign, context, msg, len, sig);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char dir[96];
    struct play p = {.in = neb_rd_make(data, size)};
    struct inter_ledger_counts counts;
    const struct inter_ledger_check check = {NULL, signed_by, NULL, NULL};
    if (!zctx)
        set_up();
    snprintf(dir, sizeof dir, "%s/home", root);
    begin(&p, dir);
    for (int k = 0; k < STEPS_MAX && neb_rd_left(&p.in); k++) {
        one_step(&p);
        NEB_ASSERT(p.s->st == NEB_OK); // no message of hers ends the service
    }
    NEB_ASSERT(inter_ledger_verify(inter_service_ledger(p.s), &check, &counts) == NEB_OK);
    NEB_ASSERT(counts.records == round_of(&p)->round);
    inter_service_destroy(&p.s);
    neb_buf_free(&p.blob);
    neb_buf_free(&p.out);
    NEB_ASSERT(neb_fs_remove_tree(dir) == NEB_OK);
    return 0;
}
