// SPDX-License-Identifier: Apache-2.0
// Services of honest agents, and mallory, a listed member that attacks. Mallory uses the real
// service with updates that no worker makes, or a bare link. A file that includes this may define
// HOSTILE_ORDER first: the members in their order.
#ifndef HOSTILE_FIXTURE_H
#define HOSTILE_FIXTURE_H
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "agent/base/sha256.h"
#include "compress/update.h"
#include "inter/ledger/verify.h"
#include "inter/service/service.h"
#include "security/sign.h"
#include "tests/testing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#define OK(x) assert_int_equal((x), NEB_OK)

#ifndef HOSTILE_ORDER
#define HOSTILE_ORDER ANNA, BERT, MALLORY
#endif
enum { HOSTILE_ORDER, SITES };
enum {
    ROWS = 128, // an update has more than one chunk
    COLS = 64,
    ELEMENTS = ROWS * COLS,
    STEP_TOKENS = 64,
    STEPS = 10,
    JOB_STEPS = 1000
};
// From inter/round/node_state.h.
enum {
    MSG_MANIFEST = 1,
    MSG_STATE = 2,
    MSG_PROPOSE = 4,
    MSG_ACCEPT = 5,
    MSG_COMMIT = 6,
    MSG_CHUNK = 8,
    MSG_HEARTBEAT = 9,
    MSG_ELECT = 10,
    MSG_PROMISE = 11
};
enum {
    HEARTBEAT_LEADS = 1,
    HEARTBEAT_JOINED = 2,
    HEARTBEAT_FOLLOWS = 8
}; // inter/round/node_elect.c

struct site {
    int who;
    char dir[64], listen[32];
    struct inter_service *s;
    uint32_t commits;
    struct inter_record last;
    uint64_t faults[INTER_FAULTS], blamed[INTER_FAULTS][INTER_PEERS_MAX];
};
struct frame { // as mallory received it
    uint32_t from;
    enum inter_channel channel;
    struct neb_buf b;
};

static char root[] = "/tmp/nebula-hostile-XXXXXX";
static struct sec_identity *ids[SITES];
static struct sec_members list;
static uint32_t index_of[SITES];
static uint8_t job[INTER_ID_BYTES] = {9, 9};
static struct site sites[SITES];
static struct inter_link *bare;        // mallory without a service
static struct inter_standing standing; // the state of mallory's ledger when she gave up her service
static void (*each_pass)(void);        // what mallory does in each pass
static void (*on_blobs)(struct site *x, const struct inter_record *r, const struct neb_map *blobs);
static bool robust;    // the job's profile
static bool wants_all; // commit_all
// Checks a key that its member had before a rotation. NULL: there is none.
static bool (*signed_before)(void *user, const char *name, const char *context, const void *msg,
                             size_t len, const uint8_t sig[INTER_SIG_BYTES]);
static bool awaits; // honest gates learn the shape of updates only in tell_shape
static bool bare_up[SITES];
static struct frame frames[4096];
static size_t n_frames;

// ---- sites --------------------------------------------------------------------------------------

static inline void on_commit(void *user, const struct inter_record *r,
                             const struct neb_map *blobs) {
    struct site *x = user;
    assert_int_equal(r->round, x->commits); // each commit once, in order
    x->commits++;
    x->last = *r;
    if (on_blobs)
        on_blobs(x, r, blobs);
}
static inline void on_message(void *user, uint32_t peer, uint32_t kind, const uint8_t *p,
                              size_t n) {
    (void)user, (void)peer, (void)kind, (void)p, (void)n;
}
static inline void on_peer(void *user, uint32_t peer, bool up) { (void)user, (void)peer, (void)up; }
static inline void on_fault(void *user, uint32_t peer, enum inter_fault f) {
    struct site *x = user;
    assert_true(peer < INTER_PEERS_MAX);
    x->faults[f]++;
    x->blamed[f][peer]++;
}
// True if there were faults of this kind, and mallory got the blame for all of them.
static inline bool only_hers(const struct site *x, enum inter_fault f) {
    return x->faults[f] && x->blamed[f][index_of[MALLORY]] == x->faults[f];
}

static inline void start(struct site *x) {
    struct inter_service_config c = {.dir = x->dir,
                                     .identity = ids[x->who],
                                     .members = &list,
                                     .listen = x->who == MALLORY ? NULL : x->listen,
                                     .callbacks = {.user = x,
                                                   .commit = on_commit,
                                                   .message = on_message,
                                                   .peer = on_peer,
                                                   .fault = on_fault,
                                                   .signed_before = signed_before}};
    OK(inter_service_create(&c, &x->s));
    if (x->who != MALLORY) { // a restart uses the same port
        snprintf(x->listen, sizeof x->listen, "127.0.0.1:%u", inter_service_port(x->s));
        snprintf(list.m[index_of[x->who]].endpoint, SEC_ENDPOINT_MAX, "%s", x->listen);
    }
}

// Tells the gate the shape of updates, as an agent does when its worker has attached.
static inline void tell_shape(struct site *x) {
    const struct cmp_unit_shape shape = {.unit = 0, .rows = ROWS, .cols = COLS, .counts = true};
    uint8_t sha[INTER_SHA_BYTES];
    cmp_shapes_hash(&shape, 1, sha);
    inter_service_bound(x->s, job, ELEMENTS, INTER_COUNTS_EXACT);
    OK(inter_service_shape(x->s, job, 0, ELEMENTS, sha));
    inter_service_job_judges(x->s, job);
}

static inline void open_job(struct site *x) {
    struct inter_job_config c = {.n_members = SITES,
                                 .self = (uint8_t)x->who,
                                 .peers = {index_of[0], index_of[1], index_of[2]},
                                 .fragments = 1,
                                 .merge_after = 4,
                                 .grace = 2 * NEB_S,
                                 .eta = 0.9f,
                                 .mu = 0.6f,
                                 .robust = robust,
                                 .commit_all = wants_all,
                                 .awaits_shape = awaits && x->who != MALLORY,
                                 .steps = JOB_STEPS,
                                 .step_tokens = STEP_TOKENS,
                                 .tune = {.start_interval = STEPS}};
    memcpy(c.id, job, sizeof c.id);
    OK(inter_service_job_open(x->s, &c));
    if (x->who != MALLORY && !awaits) // mallory needs no gate
        tell_shape(x);
}

static inline void on_bare(void *user, const struct inter_link_event *e) {
    (void)user;
    for (int k = 0; k < SITES && (e->kind == INTER_LINK_UP || e->kind == INTER_LINK_DOWN); k++)
        if (index_of[k] == e->peer)
            bare_up[k] = e->kind == INTER_LINK_UP;
    if (e->kind != INTER_LINK_MSG || n_frames == sizeof frames / sizeof frames[0])
        return;
    struct frame *x = &frames[n_frames++];
    x->from = e->peer;
    x->channel = e->channel;
    neb_buf_add(&x->b, e->data, e->len);
}

static inline void go(void) {
    enum { MOST = (SITES + 1) * 2 * 66 }; // 66 per peer when all bulk connections are open
    zmq_pollitem_t items[MOST];
    size_t n = 0;
    for (int k = 0; k < SITES; k++)
        n += sites[k].s ? inter_service_poll_items(sites[k].s, items + n, MOST - n) : 0;
    n += bare ? inter_link_poll_items(bare, items + n, MOST - n) : 0;
    assert_true(n <= MOST);
    zmq_poll(items, (int)n, 10);
    for (int k = 0; k < SITES; k++)
        if (sites[k].s)
            OK(inter_service_process(sites[k].s));
    if (bare)
        OK(inter_link_process(bare, on_bare, NULL));
    if (each_pass)
        each_pass();
}

#define UNTIL(cond)                                                                                \
    do {                                                                                           \
        neb_ns end_ = neb_now() + 60 * NEB_S;                                                      \
        while (!(cond) && neb_now() < end_)                                                        \
            go();                                                                                  \
        assert_true(cond);                                                                         \
    } while (0)
static inline void go_for(neb_ns time) {
    for (neb_ns end = neb_now() + time; neb_now() < end;)
        go();
}

// ---- updates ------------------------------------------------------------------------------------

enum kind {
    GOOD,
    NOT_A_NUMBER,
    INFINITE,
    OTHER_UNIT,
    TRANSPOSED,
    TOO_MANY,
    BOMB,
    ROWS_BEYOND,
    GARBAGE,
    CUT,
    MASKED,
    KINDS
};

static inline void make_update(enum kind kind, uint32_t seed, struct neb_buf *b) {
    static float data[4096 * 1024];
    static uint64_t counts[4096];
    struct cmp_work *w = NULL;
    struct cmp_codec codec;
    struct cmp_unit_shape shape = {
        .unit = kind == OTHER_UNIT, .rows = ROWS, .cols = COLS, .counts = true};
    if (kind == TRANSPOSED)
        shape.rows = ROWS / 2, shape.cols = 2 * COLS;
    if (kind == TOO_MANY)
        shape.rows = 2 * ROWS;
    if (kind == BOMB) // 16 MiB of zeros in about a hundred bytes
        shape.rows = 4096, shape.cols = 1024;
    for (uint32_t i = 0; i < shape.rows * shape.cols; i++) // incompressible
        data[i] = kind == BOMB ? 0 : (float)(int32_t)(neb_mix64(i + seed * 7919ull) >> 33) * 1e-9f;
    for (uint32_t i = 0; i < shape.rows; i++)
        counts[i] = kind == ROWS_BEYOND ? 1000 : 1;
    OK(cmp_work_create(&w));
    OK(cmp_codec_parse("fp32", &codec));
    cmp_update_begin(b, 1);
    OK(cmp_update_add(w, b, &shape, &codec, &(struct cmp_source){.x = data}, counts));
    cmp_work_destroy(&w);
    if (kind == NOT_A_NUMBER || kind == INFINITE)
        neb_put_u32(b->p + b->len - 4, kind == INFINITE ? 0x7f800000 : 0x7fc00000);
    if (kind == MASKED) // for another profile
        memcpy(b->p, "NBS1", 4);
    for (size_t i = 0; i < b->len && kind == GARBAGE; i++)
        b->p[i] = (uint8_t)neb_mix64(seed + i);
    if (kind == CUT)
        b->len -= 7;
}

static inline void submit_as(struct site *x, const struct neb_buf *b, uint64_t tokens,
                             uint64_t step, uint32_t steps) {
    struct inter_manifest m = {.key = {.round = sites[ANNA].commits, .member = (uint8_t)x->who},
                               .tokens = tokens,
                               .step = step,
                               .steps = steps};
    memcpy(m.key.job, job, sizeof job);
    OK(inter_service_submit(x->s, &m, b->p, b->len));
}
static inline void submit(struct site *x, enum kind kind) {
    struct neb_buf b = {0};
    uint32_t round = sites[ANNA].commits;
    make_update(kind, round * 10 + (uint32_t)x->who, &b);
    submit_as(x, &b, STEPS * STEP_TOKENS, (round + 1) * STEPS, STEPS);
    neb_buf_free(&b);
}

static inline const struct inter_entry *entry_of(const struct inter_record *r, int who) {
    for (uint8_t i = 0; i < r->n; i++)
        if (r->entries[i].member == who)
            return &r->entries[i];
    return NULL;
}

// The two honest members submit, and both commit the same record.
static inline void honest_round(void) {
    uint32_t before = sites[ANNA].commits;
    uint8_t a[INTER_SHA_BYTES], b[INTER_SHA_BYTES];
    UNTIL(sites[BERT].commits == before);
    submit(&sites[ANNA], GOOD);
    submit(&sites[BERT], GOOD);
    UNTIL(sites[ANNA].commits == before + 1 && sites[BERT].commits == before + 1);
    inter_record_hash(&sites[ANNA].last, a);
    inter_record_hash(&sites[BERT].last, b);
    assert_memory_equal(a, b, sizeof a);
    assert_true(entry_of(&sites[ANNA].last, ANNA)->verdict == INTER_ACCEPTED);
    assert_true(entry_of(&sites[ANNA].last, BERT)->verdict == INTER_ACCEPTED);
}

static inline enum neb_status signed_by(void *user, const uint8_t id[INTER_ID_BYTES],
                                        uint8_t member, const char *context, const void *msg,
                                        size_t len, const uint8_t sig[INTER_SIG_BYTES]) {
    (void)user, (void)id;
    return sec_verify(sec_identity_public(ids[member])->sign, context, msg, len, sig);
}
static inline void expect_sound(const struct site *x) {
    struct inter_ledger *l = NULL;
    struct inter_ledger_counts n;
    struct inter_ledger_check c = {NULL, signed_by, NULL, NULL};
    OK(inter_ledger_open_readonly(x->dir, &l));
    OK(inter_ledger_verify(l, &c, &n));
    assert_int_equal(n.records, x->commits);
    inter_ledger_close(&l);
}

static inline int open_sites(void **state) {
    (void)state;
    static int made;
    for (int k = 0; k < SITES; k++) {
        sites[k] = (struct site){.who = k};
        list.m[index_of[k]].endpoint[0] = 0;
        snprintf(sites[k].listen, sizeof sites[k].listen, "127.0.0.1:*");
        snprintf(sites[k].dir, sizeof sites[k].dir, "%s/%d-%d", root, made, k);
    }
    made++;
    for (int k = 0; k < SITES; k++)
        if (k != MALLORY)
            start(&sites[k]);
    start(&sites[MALLORY]); // last: mallory dials
    for (int k = 0; k < SITES; k++)
        open_job(&sites[k]);
    return 0;
}
static inline int close_sites(void **state) {
    (void)state;
    for (int k = 0; k < SITES; k++)
        inter_service_destroy(&sites[k].s);
    inter_link_destroy(&bare);
    each_pass = NULL;
    robust = awaits = wants_all = false;
    for (; n_frames > 0; n_frames--) {
        neb_buf_free(&frames[n_frames - 1].b);
        frames[n_frames - 1] = (struct frame){0};
    }
    return 0;
}

static inline bool votes(const struct site *x) {
    struct inter_job_status st;
    return inter_service_job_status(x->s, job, &st) && st.votes;
}

// A round of all three. Each has heard from each, so a member that leaves now leaves no vote
// waiting.
static inline void all_three(void) {
    submit(&sites[MALLORY], GOOD);
    honest_round();
    UNTIL(sites[MALLORY].commits == sites[ANNA].commits);
    UNTIL(votes(&sites[ANNA]) && votes(&sites[BERT]) && votes(&sites[MALLORY]));
}

// ---- mallory without a service ------------------------------------------------------------------

static inline void connect_bare(void) {
    struct inter_link_config c = {.identity = ids[MALLORY], .members = &list, .n_bulk = 2};
    inter_link_destroy(&bare);
    bare_up[ANNA] = bare_up[BERT] = false;
    OK(inter_link_create(&c, &bare));
    UNTIL(bare_up[ANNA] && bare_up[BERT]);
}

static inline void say(uint32_t to, enum inter_channel channel, const void *p, size_t n) {
    for (int i = 0; i < 200 && inter_link_send(bare, to, channel, p, n) == NEB_ERR_AGAIN; i++)
        go();
}

static inline void become_bare(void) {
    all_three();
    OK(inter_ledger_get_standing(inter_service_ledger(sites[MALLORY].s), job, &standing));
    inter_service_destroy(&sites[MALLORY].s);
    connect_bare();
}

static inline void say_heartbeat(int to, uint32_t term, uint8_t flags) {
    struct neb_buf b = {0};
    uint8_t head[INTER_SHA_BYTES] = {0};
    neb_buf_u8(&b, MSG_HEARTBEAT);
    neb_buf_add(&b, job, sizeof job);
    neb_buf_u32(&b, term);
    neb_buf_u8(&b, flags);
    neb_buf_u64(&b, standing.epoch);
    neb_buf_u64(&b, standing.epochs[to]);
    neb_buf_u16(&b, 1 << ANNA | 1 << BERT);
    neb_buf_u32(&b, 1);
    neb_buf_u16(&b, 0); // evidence against nobody
    neb_buf_u32(&b, sites[to].commits);
    if (sites[to].commits) // the receiver's own head
        inter_record_hash(&sites[to].last, head);
    neb_buf_add(&b, head, 16);
    (void)!inter_link_send(bare, index_of[to], INTER_CONTROL, b.p, b.len);
    neb_buf_free(&b);
}

// ---- manifests and chunks by hand ---------------------------------------------------------------

static inline void sign_manifest(struct inter_manifest *m) {
    struct neb_buf b = {0};
    inter_manifest_put_body(&b, m);
    OK(sec_sign(ids[MALLORY], SEC_CONTEXT_MANIFEST, b.p, b.len, m->sig));
    neb_buf_free(&b);
}

static inline struct inter_manifest manifest_of(const struct neb_buf *blob, uint32_t attempt) {
    uint32_t round = sites[ANNA].commits;
    struct inter_manifest m = {.key = {.round = round, .member = MALLORY, .attempt = attempt},
                               .bytes = (uint32_t)blob->len,
                               .chunk_bytes = INTER_CHUNK_MIN,
                               .tokens = STEPS * STEP_TOKENS,
                               .step = (round + 1) * STEPS,
                               .steps = STEPS};
    memcpy(m.key.job, job, sizeof job);
    neb_sha256(blob->p, blob->len, m.sha256);
    sign_manifest(&m);
    return m;
}

static inline void say_manifest(int to, const struct inter_manifest *m) {
    struct neb_buf b = {0};
    neb_buf_u8(&b, MSG_MANIFEST);
    inter_manifest_put(&b, m);
    say(index_of[to], INTER_CONTROL, b.p, b.len);
    neb_buf_free(&b);
}

static inline void say_chunk(int to, const struct inter_manifest *m, const struct neb_buf *blob,
                             uint32_t i) {
    struct neb_buf b = {0};
    uint8_t sha[INTER_SHA_BYTES];
    const uint8_t *p = blob->p + (size_t)i * m->chunk_bytes;
    uint32_t n = inter_chunk_length(m->bytes, m->chunk_bytes, i);
    neb_sha256(p, n, sha);
    neb_buf_u8(&b, MSG_CHUNK);
    inter_key_put(&b, &m->key);
    neb_buf_u32(&b, i);
    neb_buf_add(&b, sha, 8);
    neb_buf_add(&b, p, n);
    say(index_of[to], INTER_BULK, b.p, b.len);
    neb_buf_free(&b);
}

static inline bool holds_manifest(int who, const struct inter_manifest *m) {
    struct inter_manifest there;
    return inter_ledger_find_manifest(inter_service_ledger(sites[who].s), &m->key, &there) ==
               NEB_OK &&
           !memcmp(there.sha256, m->sha256, sizeof m->sha256);
}

static inline bool holds_blob(int who, const struct inter_manifest *m) {
    return inter_ledger_has_blob(inter_service_ledger(sites[who].s), &m->key);
}

static inline void announce(int to, const struct inter_manifest *m) {
    say_manifest(to, m);
    UNTIL(holds_manifest(to, m));
}

// Delivers the first `chunks` chunks. All members know the manifest already: a member that hears of
// it from others would ask them.
static inline void give(int to, const struct inter_manifest *m, const struct neb_buf *blob,
                        uint32_t chunks) {
    bool all = chunks == inter_chunks(m->bytes, m->chunk_bytes);
    // Chunks may overtake each other, so they are sent repeatedly.
    for (int k = 0; k < 20 && (all ? !holds_blob(to, m) : !k); k++) {
        for (uint32_t i = 0; i < chunks; i++)
            say_chunk(to, m, blob, i);
        go_for(200 * NEB_MS);
    }
    assert_true(holds_blob(to, m) == all);
}

// ---- replay ------------------------------------------------------------------------------------

// Asks for the chunks of every announced update, so that they are recorded too.
static inline void ask_for_chunks(void) {
    for (size_t i = 0, n = n_frames; i < n; i++) {
        struct neb_rd r = neb_rd_make(frames[i].b.p, frames[i].b.len);
        struct inter_manifest m;
        struct neb_buf b = {0};
        uint8_t bits[64] = {0};
        if (neb_rd_u8(&r) != MSG_MANIFEST || !inter_manifest_get(&r, &m))
            continue;
        uint32_t len = (inter_chunks(m.bytes, m.chunk_bytes) + 7) / 8;
        assert_true(len <= sizeof bits);
        neb_buf_u8(&b, MSG_STATE);
        inter_key_put(&b, &m.key);
        neb_buf_add(&b, m.sha256, 8);
        neb_buf_u64(&b, UINT64_MAX / 2);
        neb_buf_u8(&b, INTER_HOLD_PART);
        neb_buf_u32(&b, len);
        neb_buf_add(&b, bits, len);
        neb_buf_u32(&b, 0); // goodput: not known
        neb_buf_u8(&b, 0);
        say(frames[i].from, INTER_CONTROL, b.p, b.len);
        neb_buf_free(&b);
    }
}

// Sends the votes in every recorded commit as if their signers did.
static inline void say_votes(uint32_t to) {
    for (size_t i = 0, n = n_frames; i < n; i++) {
        struct neb_rd r = neb_rd_make(frames[i].b.p, frames[i].b.len);
        struct inter_record c;
        uint8_t hash[INTER_SHA_BYTES];
        if (neb_rd_u8(&r) != MSG_COMMIT || !inter_record_get(&r, &c))
            continue;
        inter_record_hash(&c, hash);
        for (uint8_t k = 0; k < c.n_accepts; k++) {
            struct neb_buf b = {0};
            neb_buf_u8(&b, MSG_ACCEPT);
            inter_accept_put_body(&b, &c, hash, c.accepts[k].epoch);
            neb_buf_add(&b, c.accepts[k].sig, INTER_SIG_BYTES);
            say(to, INTER_CONTROL, b.p, b.len);
            neb_buf_free(&b);
        }
    }
}

static inline void resend_all(void) {
    size_t n = n_frames; // answers are for the next time
    for (int k = ANNA; k <= BERT; k++) {
        for (size_t i = 0; i < n; i++)
            say(index_of[k], frames[i].channel, frames[i].b.p, frames[i].b.len);
        say_votes(index_of[k]);
    }
}

// Sends the same frames altered, cut, and on the wrong channel.
static inline void say_altered(int times) {
    struct neb_rng rng = neb_rng_make(2, 2);
    assert_true(n_frames > 5);
    for (int t = 0; t < times; t++) {
        const struct frame *f = &frames[neb_rng_below(&rng, n_frames)];
        if (!f->b.len || f->b.len > 60000)
            continue;
        struct neb_buf b = {0};
        neb_buf_add(&b, f->b.p, f->b.len);
        for (uint64_t k = 1 + neb_rng_below(&rng, 4); k > 0; k--)
            b.p[neb_rng_below(&rng, b.len)] ^= (uint8_t)(1u << neb_rng_below(&rng, 8));
        if (neb_rng_below(&rng, 4) == 0)
            b.len = 1 + (size_t)neb_rng_below(&rng, b.len);
        if (neb_rng_below(&rng, 8) == 0)
            b.p[0] = (uint8_t)neb_rng_below(&rng, 40);
        say(index_of[neb_rng_below(&rng, 2)], neb_rng_below(&rng, 4) ? f->channel : INTER_BULK, b.p,
            b.len);
        neb_buf_free(&b);
        if (t % 50 == 0)
            go();
    }
}

// ---- before and after all tests ----------------------------------------------------------------

static inline int setup(void **state) {
    (void)state;
    static const char *const names[SITES] = {
        [ANNA] = "anna", [BERT] = "bert", [MALLORY] = "mallory"};
    char home[80];
    OK(sec_init());
    neb_log_set_sink(testing_drop, NULL);
    if (!mkdtemp(root))
        return -1;
    for (int k = 0; k < SITES; k++) {
        snprintf(home, sizeof home, "%s/%s", root, names[k]);
        OK(sec_identity_create(home, names[k], &ids[k]));
        struct sec_member m = {.pub = *sec_identity_public(ids[k])};
        OK(sec_members_add(&list, &m));
    }
    for (int k = 0; k < SITES; k++)
        index_of[k] = (uint32_t)(sec_members_by_name(&list, names[k]) - list.m);
    return 0;
}
static inline int teardown(void **state) {
    (void)state;
    for (int k = 0; k < SITES; k++)
        sec_identity_destroy(&ids[k]);
    return neb_fs_remove_tree(root) == NEB_OK ? 0 : -1;
}

#endif
