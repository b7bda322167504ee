// SPDX-License-Identifier: Apache-2.0
// Two ends of inter/service/snapshot.h on a link that drops, doubles and reorders messages;
// restarts; hostile headers.
#include "agent/base/fault.h"
#include "agent/base/fs.h"
#include "agent/base/rng.h"
#include "agent/base/sha256.h"
#include "inter/service/snapshot.h"
#include "security/vault.h"

#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define OK(x) assert_int_equal(x, NEB_OK)

enum { QUEUE = 512, PARAMS = 700001 };

struct packet {
    uint32_t to;
    bool bulk;
    uint8_t *p;
    size_t n, came; // bytes that a slow link has carried
};
struct side {
    uint32_t id;
    struct inter_snapshots *s;
};
static struct {
    struct side side[3];
    struct packet queue[QUEUE];
    size_t n;
    struct neb_rng rng;
    double loss;
    bool steady; // the link neither doubles nor refuses a message
    uint64_t data_bytes;
    float *theta, *v;
    uint32_t round; // round of the holder's state
    int opened, closed;
    int opens_after;    // this many times open reports that the state is not there yet
    bool silent;        // side 2 reports for ever that it is not there
    bool takes_nothing; // the link of side 2 is full
    uint32_t strangers; // a bit for each peer that is not a cluster of the job
    int refused;        // messages of strangers
    enum neb_status done;
    int n_done;
    uint64_t header;
    uint32_t giver;
    char dir[64];
} W;
static const uint8_t job[INTER_ID_BYTES] = {9};
static struct sec_seal_key *key; // NULL: received files are not encrypted

static struct inter_snapshot *make(uint32_t round) {
    struct inter_snapshot *s = calloc(1, sizeof *s);
    memcpy(s->job, job, sizeof job);
    s->elements = PARAMS;
    s->fragments = 2;
    s->parts[1] = (struct inter_snapshot_part){
        .round = round,
        .version = round,
        .digest = {round, 5},
        .last = {.round = round - 1, .fragment = 1, .n = 1, .eta = 1, .n_plans = 2}};
    memcpy(s->parts[1].last.job, job, sizeof job);
    s->parts[1].last.entries[0].clip = 1;
    return s;
}

static enum neb_status read_body(void *pin, int i, uint64_t from, void *dst, size_t n) {
    (void)pin;
    memcpy(dst, (const uint8_t *)(i ? W.v : W.theta) + from, n);
    return NEB_OK;
}

static enum neb_status open_source(void *user, const uint8_t id[INTER_ID_BYTES],
                                   struct inter_snapshot_source *out) {
    struct side *e = user;
    if (W.silent && e->id == 2)
        return NEB_ERR_AGAIN;
    if (e->id == 2 || memcmp(id, job, sizeof job))
        return NEB_ERR_NOT_FOUND;
    if (W.opens_after && W.opens_after--)
        return NEB_ERR_AGAIN;
    struct inter_snapshot *s = make(W.round);
    *out = (struct inter_snapshot_source){0};
    inter_snapshot_put(&out->header, s);
    free(s);
    out->read = read_body;
    out->len[0] = out->len[1] = PARAMS * sizeof(float);
    W.opened++;
    return NEB_OK;
}
static void close_source(void *user, struct inter_snapshot_source *s) {
    (void)user;
    neb_buf_free(&s->header);
    W.closed++;
}
static void done(void *user, const uint8_t id[INTER_ID_BYTES], enum neb_status st, const char *part,
                 uint64_t header, uint32_t giver) {
    (void)user, (void)id, (void)part;
    W.giver = giver;
    W.done = st;
    W.n_done++;
    W.header = header;
}
static enum neb_status put(void *user, uint32_t peer, bool bulk, const void *head, size_t n,
                           const void *body, size_t m) {
    const struct side *e = user;
    if (W.n + 2 > QUEUE || (bulk && peer == 2 && W.takes_nothing) ||
        (bulk && !W.steady && neb_rng_below(&W.rng, 5) == 0))
        return NEB_ERR_AGAIN;
    if ((double)neb_rng_below(&W.rng, 1000) < W.loss * 1000)
        return NEB_OK;
    W.data_bytes += m;
    for (int twice = !W.steady && neb_rng_below(&W.rng, 20) == 0; twice >= 0; twice--) {
        struct packet *x = &W.queue[W.n++];
        *x = (struct packet){peer | e->id << 8, bulk, malloc(n + m), n + m, 0};
        memcpy(x->p, head, n);
        if (m)
            memcpy(x->p + n, body, m);
    }
    return NEB_OK;
}

static uint64_t known_elements = PARAMS; // elements of the job's model
static uint64_t elements(void *user, const uint8_t id[INTER_ID_BYTES]) {
    (void)user, (void)id;
    return known_elements;
}

static bool takes_part(void *user, const uint8_t id[INTER_ID_BYTES], uint32_t peer) {
    (void)user;
    return !memcmp(id, job, sizeof job) && !(W.strangers >> peer & 1);
}
static void refused(void *user, const uint8_t id[INTER_ID_BYTES], uint32_t peer) {
    (void)user, (void)id;
    assert_true(W.strangers >> peer & 1);
    W.refused++;
}

static void start(uint32_t i) {
    struct inter_snapshots_config c = {&W.side[i], key,      open_source, close_source, done,
                                       put,        elements, takes_part,  refused};
    W.side[i].id = i;
    OK(inter_snapshots_create(&c, &W.side[i].s));
}

static void deliver(neb_ns now) {
    size_t i = neb_rng_below(&W.rng, W.n < 8 ? W.n : 8);
    struct packet x = W.queue[i];
    memmove(W.queue + i, W.queue + i + 1, (W.n - i - 1) * sizeof *W.queue);
    W.n--;
    OK(inter_snapshots_message(W.side[x.to & 0xff].s, now, x.to >> 8, x.bulk, x.p, x.n));
    free(x.p);
}

static neb_ns run(neb_ns now, int chunks_at_most) {
    int before = W.n_done;
    uint64_t from = W.data_bytes;
    for (int i = 0; i < 20000 && W.n_done == before; i++, now += 100 * NEB_MS) {
        while (W.n && W.n_done == before &&
               (W.data_bytes - from) / INTER_SNAPSHOT_CHUNK < (uint64_t)chunks_at_most)
            deliver(now);
        if ((W.data_bytes - from) / INTER_SNAPSHOT_CHUNK >= (uint64_t)chunks_at_most)
            return now;
        for (int k = 0; k < 3; k++)
            OK(inter_snapshots_tick(W.side[k].s, now));
    }
    return now;
}

static int set_up(void **state) {
    (void)state;
    memset(&W, 0, sizeof W);
    W.rng = neb_rng_make(11, 0);
    strcpy(W.dir, "/tmp/nebula-snapshot-XXXXXX");
    assert_non_null(mkdtemp(W.dir));
    W.theta = malloc(PARAMS * sizeof(float));
    W.v = malloc(PARAMS * sizeof(float));
    for (int i = 0; i < PARAMS; i++) {
        W.theta[i] = (float)i;
        W.v[i] = (float)-i;
    }
    W.round = 7;
    for (uint32_t i = 0; i < 3; i++)
        start(i);
    return 0;
}
static int tear_down(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++)
        inter_snapshots_destroy(&W.side[i].s);
    while (W.n)
        free(W.queue[--W.n].p);
    assert_int_equal(W.opened, W.closed);
    free(W.theta);
    free(W.v);
    return neb_fs_remove_tree(W.dir) == NEB_OK ? 0 : -1;
}

static const char *at(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", W.dir, name);
    return path;
}

static void check_whole(uint32_t round) {
    struct neb_map m;
    struct inter_snapshot *s = calloc(1, sizeof *s);
    assert_int_equal(W.done, NEB_OK);
    OK(sec_vault_map(key, at("x.part"), &m));
    struct neb_rd r = neb_rd_make(m.p, m.len);
    assert_true(inter_snapshot_get(&r, s));
    assert_int_equal(r.off, W.header);
    assert_int_equal(s->parts[1].round, round);
    assert_int_equal(neb_rd_left(&r), 2 * PARAMS * sizeof(float));
    assert_memory_equal(m.p + r.off, W.theta, PARAMS * sizeof(float));
    assert_memory_equal(m.p + r.off + PARAMS * sizeof(float), W.v, PARAMS * sizeof(float));
    assert_false(neb_fs_exists(at("x.map")));
    neb_map_close(&m);
    free(s);
    OK(neb_map_open(at("x.part"), &m)); // the bytes on disk
    assert_true((memmem(m.p, m.len, W.theta + 300000, 64) == NULL) == (key != NULL));
    neb_map_close(&m);
}

static const uint32_t zero[] = {0}, none_first[] = {2, 0};

static void test_over_a_bad_link(void **state) {
    (void)state;
    W.loss = 0.1;
    OK(inter_snapshots_fetch(W.side[1].s, job, at("x"), none_first, 2, false, NEB_S));
    run(NEB_S, INT32_MAX);
    assert_int_equal(W.n_done, 1);
    assert_int_equal(W.giver, 0);
    check_whole(7);
}

static void test_resumes_after_a_restart(void **state) {
    (void)state;
    uint64_t total = 2 * PARAMS * sizeof(float);
    // Receives so many chunks that the map is written.
    OK(inter_snapshots_fetch(W.side[1].s, job, at("x"), zero, 1, false, NEB_S));
    neb_ns now = run(NEB_S, 14);
    assert_int_equal(W.n_done, 0);
    inter_snapshots_destroy(&W.side[1].s); // a crash; the map was written with the offer
    while (W.n)
        free(W.queue[--W.n].p);
    W.round = 8; // the holder has a newer state, but the transfer of this one has begun
    start(1);
    OK(inter_snapshots_fetch(W.side[1].s, job, at("x"), zero, 1, false, now + NEB_S));
    run(now + NEB_S, INT32_MAX);
    check_whole(7);
    assert_int_equal(W.giver, 0); // chunks that are not in the map were fetched again
    assert_true(W.data_bytes < 3 * total);
}

// A part was here before this fetch. The member that gave it is not known, so no giver is named.
static void test_unknown_giver(void **state) {
    (void)state;
    W.rng = neb_rng_make(1, 0);
    OK(inter_snapshots_fetch(W.side[1].s, job, at("x"), zero, 1, false, NEB_S));
    neb_ns now = run(NEB_S, 6);
    for (int i = 0; i < 100 && !W.n_done; i++, now += 10 * NEB_S) { // side 0 falls silent
        while (W.n)
            free(W.queue[--W.n].p);
        OK(inter_snapshots_tick(W.side[1].s, now));
    }
    assert_int_equal(W.done, NEB_ERR_NOT_FOUND);
    while (W.n)
        free(W.queue[--W.n].p);
    OK(inter_snapshots_fetch(W.side[1].s, job, at("x"), zero, 1, false, now));
    run(now, INT32_MAX);
    check_whole(7);
    assert_int_equal(W.giver, UINT32_MAX);
}

static void test_a_newer_one(void **state) {
    (void)state;
    OK(inter_snapshots_fetch(W.side[1].s, job, at("x"), zero, 1, false, NEB_S));
    neb_ns now = run(NEB_S, INT32_MAX);
    check_whole(7);
    OK(neb_fs_remove(at("x.part")));
    W.round = 9;
    OK(inter_snapshots_fetch(W.side[1].s, job, at("x"), zero, 1, false, now + 10 * NEB_S));
    run(now + 10 * NEB_S, INT32_MAX);
    check_whole(9);
    assert_int_equal(W.giver, 0);
}

static void say(uint32_t from, uint32_t to, uint8_t type, const uint8_t id[INTER_SHA_BYTES],
                const uint32_t *chunk, neb_ns now) {
    struct neb_buf b = {0};
    neb_buf_u8(&b, type);
    neb_buf_add(&b, job, sizeof job);
    neb_buf_add(&b, id, INTER_SHA_BYTES);
    if (chunk)
        neb_buf_u32(&b, *chunk);
    OK(inter_snapshots_message(W.side[to].s, now, from, false, b.p, b.len));
    neb_buf_free(&b);
}

static void id_of(uint32_t round, uint8_t id[INTER_SHA_BYTES]) {
    struct neb_buf header = {0};
    struct inter_snapshot *s = make(round);
    inter_snapshot_put(&header, s);
    neb_sha256(header.p, header.len, id);
    free(s);
    neb_buf_free(&header);
}

// A peer that could not use what it took is not given the same again, even if it asks at once. But
// another peer is, and so is one that begins again after some chunks.
static void test_asks_anew(void **state) {
    (void)state;
    static const uint8_t none[INTER_SHA_BYTES];
    uint8_t id[INTER_SHA_BYTES];
    id_of(7, id);
    OK(inter_snapshots_fetch(W.side[1].s, job, at("x"), zero, 1, false, NEB_S));
    neb_ns now = run(NEB_S, INT32_MAX);
    check_whole(7);
    say(2, 0, INTER_SNAPSHOT_ASK, none, NULL, now);
    for (uint64_t was = W.data_bytes; W.data_bytes == was;) // until the link takes the chunk
        say(2, 0, INTER_SNAPSHOT_GET, id, &(uint32_t){3}, now);
    say(2, 0, INTER_SNAPSHOT_ASK, none, NULL, now);
    assert_int_equal(W.opened, 1);
    OK(inter_snapshots_fetch(W.side[1].s, job, at("y"), zero, 1, false, now));
    now = run(now, INT32_MAX);
    OK(neb_fs_remove(at("x.part")));
    W.round = 9;
    OK(inter_snapshots_fetch(W.side[1].s, job, at("x"), zero, 1, false, now));
    run(now, INT32_MAX);
    check_whole(9);
    assert_int_equal(W.opened, 2);
}

static void test_header_only(void **state) {
    (void)state;
    OK(inter_snapshots_fetch(W.side[1].s, job, at("x"), zero, 1, true, NEB_S));
    run(NEB_S, INT32_MAX);
    assert_int_equal(W.n_done, 1);
    assert_int_equal(W.done, NEB_OK);
    struct neb_map m;
    OK(sec_vault_map(key, at("x.part"), &m));
    assert_int_equal(m.len, W.header);
    neb_map_close(&m);
}

static void test_nobody_has_one(void **state) {
    (void)state;
    static const uint32_t two[] = {2};
    struct inter_snapshot_progress p;
    OK(inter_snapshots_fetch(W.side[1].s, job, at("x"), two, 1, false, NEB_S));
    assert_true(inter_snapshots_progress(W.side[1].s, job, &p));
    run(NEB_S, INT32_MAX);
    assert_int_equal(W.done, NEB_ERR_NOT_FOUND);
    assert_false(inter_snapshots_progress(W.side[1].s, job, &p));
}

static void offer(uint64_t total, neb_ns now) { // made by hand, from side 2
    struct neb_buf b = {0};
    uint8_t id[INTER_SHA_BYTES] = {1};
    neb_buf_u8(&b, INTER_SNAPSHOT_OFFER);
    neb_buf_add(&b, job, sizeof job);
    neb_buf_add(&b, id, sizeof id);
    neb_buf_u64(&b, total);
    neb_buf_u64(&b, 4000);
    OK(inter_snapshots_message(W.side[1].s, now, 2, false, b.p, b.len));
    neb_buf_free(&b);
}

// The only message in flight goes to this side, and says that no state is here.
static void expect_none(uint32_t to) {
    static const uint8_t nothing[INTER_SHA_BYTES + 16];
    assert_int_equal(W.n, 1);
    assert_int_equal(W.queue[0].to & 0xff, to);
    assert_false(W.queue[0].bulk);
    assert_int_equal(W.queue[0].p[0], INTER_SNAPSHOT_OFFER);
    assert_memory_equal(W.queue[0].p + 1 + INTER_ID_BYTES, nothing, sizeof nothing);
    free(W.queue[--W.n].p);
}

// A member that is not a cluster of the job gets nothing, not even chunks of another member's
// transfer. Its offers and data are ignored. A removed member gets nothing more.
static void test_strangers_get_nothing(void **state) {
    (void)state;
    static const uint8_t none[INTER_SHA_BYTES];
    uint8_t id[INTER_SHA_BYTES];
    id_of(7, id);
    W.rng = neb_rng_make(1, 0);
    W.strangers = 1u << 2;
    say(2, 0, INTER_SNAPSHOT_ASK, none, NULL, NEB_S);
    expect_none(2);
    assert_int_equal(W.opened, 0);
    say(1, 0, INTER_SNAPSHOT_ASK, none, NULL, NEB_S); // a cluster of the job
    assert_int_equal(W.opened, 1);
    while (W.n)
        free(W.queue[--W.n].p);
    say(2, 0, INTER_SNAPSHOT_GET, id, &(uint32_t){0}, NEB_S);
    expect_none(2);
    assert_int_equal(W.refused, 2);
    OK(inter_snapshots_fetch(W.side[1].s, job, at("x"), none_first, 2, false, NEB_S));
    offer(4000 + 2 * PARAMS * sizeof(float), NEB_S); // from side 2
    assert_false(neb_fs_exists(at("x.part")));
    assert_int_equal(W.refused, 3);
    for (uint64_t was = W.data_bytes; W.data_bytes == was;) // until a chunk waits for the link
        say(1, 0, INTER_SNAPSHOT_GET, id, &(uint32_t){3}, NEB_S);
    while (W.n)
        free(W.queue[--W.n].p);
    W.opens_after = 1000; // member 1 is revoked while it looks for a newer state
    say(1, 0, INTER_SNAPSHOT_ASK, none, NULL, 60 * NEB_S);
    W.strangers |= 1u << 1;
    W.opens_after = 0;
    uint64_t was = W.data_bytes;
    OK(inter_snapshots_tick(W.side[0].s, 60 * NEB_S));
    assert_int_equal(W.n, 0);
    assert_int_equal(W.opened, 1);
    assert_int_equal(W.data_bytes, was);
}

// A peer asks for chunks without end and takes none. It does not delay another peer.
static void test_stalled_peer(void **state) {
    (void)state;
    static const uint8_t none[INTER_SHA_BYTES];
    uint8_t id[INTER_SHA_BYTES];
    id_of(7, id);
    neb_ns now = NEB_S;
    W.takes_nothing = true;
    say(2, 0, INTER_SNAPSHOT_ASK, none, NULL, now);
    OK(inter_snapshots_fetch(W.side[1].s, job, at("x"), zero, 1, false, now));
    for (int k = 0; k < 60 && !W.n_done; k++, now += 500 * NEB_MS) {
        say(2, 0, INTER_SNAPSHOT_GET, id, &(uint32_t){5000}, now); // old requests are dropped,
        for (uint32_t chunk = 0; chunk < 600; chunk++)             // so these chunks come first
            say(2, 0, INTER_SNAPSHOT_GET, id, &chunk, now);
        while (W.n && !W.n_done)
            deliver(now);
        for (int i = 0; i < 2; i++)
            OK(inter_snapshots_tick(W.side[i].s, now));
    }
    check_whole(7);
}

// side 2 takes a chunk of side 0
static void take_one(const uint8_t id[INTER_SHA_BYTES], neb_ns now) {
    uint64_t was = W.data_bytes;
    for (int k = 0; k < 100 && W.data_bytes == was; k++) {
        say(2, 0, INTER_SNAPSHOT_GET, id, &(uint32_t){3}, now);
        OK(inter_snapshots_tick(W.side[0].s, now)); // resends what the link refused
    }
    assert_true(W.data_bytes > was);
    while (W.n)
        free(W.queue[--W.n].p);
}

// Returns the number of states opened after side 1 asked for one while side 2 was taking one.
static int opened_for(const uint8_t taken[INTER_SHA_BYTES], neb_ns now) {
    static const uint8_t none[INTER_SHA_BYTES];
    take_one(taken, now);
    say(1, 0, INTER_SNAPSHOT_ASK, none, NULL, now + NEB_S);
    while (W.n)
        free(W.queue[--W.n].p);
    return W.opened;
}

// For a peer that never finishes, the state is kept for a day, as are the updates since it. After
// that the state is kept only as long as other peers can continue from it.
static void test_endless_transfer(void **state) {
    (void)state;
    static const uint8_t none[INTER_SHA_BYTES];
    const neb_ns hour = 3600 * NEB_S;
    uint8_t id[INTER_SHA_BYTES];
    id_of(7, id);
    neb_ns start = NEB_S, now = start;
    say(2, 0, INTER_SNAPSHOT_ASK, none, NULL, start);
    for (; now < start + 20 * hour; now += NEB_S + (now - start) / 2)
        take_one(id, now);
    assert_int_equal(opened_for(id, start + 23 * hour), 1);
    W.round = 9;
    assert_int_equal(opened_for(id, now = start + 25 * hour), 2);
    id_of(9, id);
    assert_int_equal(opened_for(id, now + 300 * NEB_S), 2);
    assert_int_equal(opened_for(id, now + 700 * NEB_S), 3);
}

static uint64_t on_disk(const char *name) {
    struct stat info;
    return stat(at(name), &info) == 0 ? (uint64_t)info.st_blocks * 512 : 0;
}

// A state takes half a minute to open. It is offered once, when the member asks again.
static void test_slow_to_open(void **state) {
    (void)state;
    neb_ns now = NEB_S;
    W.opens_after = 300;
    for (int i = 0; i < 6 && (!i || W.done != NEB_OK); i++) {
        OK(inter_snapshots_fetch(W.side[1].s, job, at("x"), zero, 1, false, now));
        now = run(now, INT32_MAX);
    }
    check_whole(7);
    assert_int_equal(W.opened, 1);
    assert_in_range(now / NEB_S, 30, 100);
}

// Updates since a state stay while the state is opened or transferred, and then for as long as the
// transfer took. But no peer can hold them for more than a day.
static void test_updates_stay(void **state) {
    (void)state;
    static const uint8_t other[INTER_ID_BYTES] = {10};
    neb_ns start = NEB_S, now = start;
    W.opens_after = 40; // opening takes four seconds
    OK(inter_snapshots_fetch(W.side[1].s, job, at("x"), zero, 1, false, now));
    assert_false(inter_snapshots_hold(W.side[0].s, now, job));
    now = run(now, 1);
    assert_int_equal(W.n_done, 0);
    assert_true(inter_snapshots_hold(W.side[0].s, now, job));
    assert_false(inter_snapshots_hold(W.side[0].s, now, other));
    assert_false(inter_snapshots_hold(W.side[1].s, now, job));
    W.loss = 0.2;
    neb_ns end = run(now, INT32_MAX);
    check_whole(7);
    neb_ns took = end - now;
    assert_true(took > NEB_S);
    assert_true(inter_snapshots_hold(W.side[0].s, end + took / 2, job));
    assert_false(inter_snapshots_hold(W.side[0].s, end + 2 * took + 10 * NEB_S, job));
    // A peer asks without end.
    const neb_ns hour = 3600 * NEB_S;
    uint8_t begun[INTER_SHA_BYTES] = {0};
    start = now = end + 100 * hour;
    for (bool held; now < start + 60 * hour; now += 60 * NEB_S) {
        struct neb_buf b = {0};
        W.opens_after = 1 << 30;
        neb_buf_u8(&b, INTER_SNAPSHOT_ASK);
        neb_buf_add(&b, job, sizeof job);
        neb_buf_add(&b, begun, sizeof begun);
        OK(inter_snapshots_message(W.side[0].s, now, 1, false, b.p, b.len));
        neb_buf_free(&b);
        for (int k = 0; k < 60; k++)
            OK(inter_snapshots_tick(W.side[0].s, now + k * NEB_S));
        held = inter_snapshots_hold(W.side[0].s, now + 60 * NEB_S, job);
        neb_ns since = now - start;
        if (since < 23 * hour || (since > 49 * hour && since < 60 * hour))
            assert_true(held);
        else if (since > 25 * hour && since < 47 * hour)
            assert_false(held);
    }
}

// Bulk messages share a link with this rate in bit/s. Small messages arrive at once.
static void carry(double bps, neb_ns time, neb_ns now) {
    size_t bulk = 0;
    for (size_t i = 0; i < W.n; i++)
        bulk += W.queue[i].bulk;
    for (size_t i = 0; i < W.n && bulk; i++)
        W.queue[i].came += (size_t)(bps / 8 * neb_seconds(time) / (double)bulk);
    for (size_t i = 0; i < W.n;) {
        struct packet x = W.queue[i];
        if (x.bulk && x.came < x.n) {
            i++;
            continue;
        }
        memmove(W.queue + i, W.queue + i + 1, (W.n - i - 1) * sizeof *W.queue);
        W.n--;
        OK(inter_snapshots_message(W.side[x.to & 0xff].s, now, x.to >> 8, x.bulk, x.p, x.n));
        free(x.p);
    }
}

// A chunk takes half a minute. It is not requested again, and its peer is not given up.
static void test_slow_path(void **state) {
    (void)state;
    const double bps = 64e3, total = 2.0 * PARAMS * sizeof(float);
    neb_ns now = NEB_S;
    W.steady = true;
    OK(inter_snapshots_fetch(W.side[1].s, job, at("x"), zero, 1, false, now));
    for (; !W.n_done && now < 4000 * NEB_S; now += 100 * NEB_MS) {
        carry(bps, 100 * NEB_MS, now);
        for (int k = 0; k < 2; k++)
            OK(inter_snapshots_tick(W.side[k].s, now));
    }
    check_whole(7);
    assert_true(neb_seconds(now) < 1.2 * 8 * total / bps);
    assert_true((double)W.data_bytes < 1.2 * total);
}

static int open_files(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

// A late answer counts, but only once. A peer that offers and sends nothing costs one idle time,
// however often it offers. Its file is closed.
static void test_late_offers(void **state) {
    (void)state;
    W.silent = true;
    OK(inter_snapshots_fetch(W.side[1].s, job, at("x"), none_first, 2, false, NEB_S));
    neb_ns now = NEB_S;
    for (; now < 13 * NEB_S; now += NEB_S) // 2 does not answer; 0's data is lost
        for (int k = 0; k < 2; k++) {
            OK(inter_snapshots_tick(W.side[k].s, now));
            while (W.n)
                free(W.queue[--W.n].p);
        }
    int files = open_files();
    offer(4000 + 2 * PARAMS * sizeof(float), now);
    assert_int_equal(open_files(), files + 1);
    for (; now < 130 * NEB_S && open_files() > files; now += NEB_S)
        OK(inter_snapshots_tick(W.side[1].s, now));
    assert_int_equal(open_files(), files);
    offer(4000 + 2 * PARAMS * sizeof(float), now);
    assert_int_equal(open_files(), files);
    run(now, INT32_MAX);
    check_whole(7);
}

// A holder withdraws its offer half way: nothing stays open.
static void test_withdrawn_offer(void **state) {
    (void)state;
    int files = open_files();
    OK(inter_snapshots_fetch(W.side[1].s, job, at("x"), none_first, 2, false, NEB_S));
    offer(4000 + 2 * PARAMS * sizeof(float), NEB_S);
    assert_int_equal(open_files(), files + 1);
    offer(0, NEB_S);
    assert_int_equal(open_files(), files);
    run(NEB_S, INT32_MAX);
    check_whole(7);
    assert_int_equal(open_files(), files);
}

// A size that the model cannot have is refused, and the next member is asked. If the model's size
// is unknown, no space is reserved for the claimed size.
static void test_too_large(void **state) {
    (void)state;
    OK(inter_snapshots_fetch(W.side[1].s, job, at("x"), none_first, 2, false, NEB_S));
    offer(4000 + 2 * PARAMS * sizeof(float) + 1, NEB_S);
    offer(1ull << 42, NEB_S);
    assert_false(neb_fs_exists(at("x.part")));
    run(NEB_S, INT32_MAX);
    assert_int_equal(W.n_done, 1);
    check_whole(7);
    OK(neb_fs_remove(at("x.part")));
    known_elements = UINT64_MAX;
    OK(inter_snapshots_fetch(W.side[1].s, job, at("x"), none_first, 2, false, 100 * NEB_S));
    offer(1ull << 33, 100 * NEB_S);
    assert_true(neb_fs_exists(at("x.part")) && on_disk("x.part") < 1 << 20);
    known_elements = PARAMS;
}

// There is no room for the offered size. The attempt ends and leaves nothing behind.
static void test_no_room(void **state) {
    (void)state;
    struct rlimit was, little;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    little = was;
    little.rlim_cur = 1 << 20;
    signal(SIGXFSZ, SIG_IGN);
    OK(inter_snapshots_fetch(W.side[1].s, job, at("x"), none_first, 2, false, NEB_S));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    offer(4000 + 2 * PARAMS * sizeof(float), NEB_S);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_int_equal(W.n_done, 1);
    assert_int_equal(W.done, NEB_ERR_NOSPC);
    assert_false(neb_fs_exists(at("x.part")) || neb_fs_exists(at("x.map")));
}

// There is room, but the ledger needs it. This is tested for a known size and for an unknown one.
static void test_room_of_the_ledger(void **state) {
    (void)state;
    for (int unknown = 0; unknown < 2; unknown++) {
        known_elements = unknown ? UINT64_MAX : PARAMS;
        OK(inter_snapshots_fetch(W.side[1].s, job, at("x"), zero, 1, false, NEB_S));
        if (unknown)
            run(NEB_S, 2);
        neb_fault_arm("snapshot.room:*");
        run(NEB_S, INT32_MAX);
        neb_fault_arm(NULL);
        assert_int_equal(W.n_done, unknown + 1);
        assert_int_equal(W.done, NEB_ERR_NOSPC);
        assert_false(neb_fs_exists(at("x.part")) || neb_fs_exists(at("x.map")));
    }
    known_elements = PARAMS;
}

static void test_headers(void **state) {
    (void)state;
    struct inter_snapshot *s = make(7), *got = calloc(1, sizeof *got);
    struct neb_buf b = {0};
    inter_snapshot_put(&b, s);
    struct neb_rd r = neb_rd_make(b.p, b.len);
    assert_true(inter_snapshot_get(&r, got));
    assert_memory_equal(got, s, sizeof *s);
    for (size_t n = 0; n < b.len; n++) { // cut anywhere
        r = neb_rd_make(b.p, n);
        assert_false(inter_snapshot_get(&r, got));
    }
    s->parts[1].last.round = 5; // the round is not that of its last record
    neb_buf_clear(&b);
    inter_snapshot_put(&b, s);
    r = neb_rd_make(b.p, b.len);
    assert_false(inter_snapshot_get(&r, got));
    neb_buf_free(&b);
    free(s);
    free(got);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
int main(void) {
    const struct CMUnitTest tests[] = {TEST(test_over_a_bad_link),
                                       TEST(test_resumes_after_a_restart),
                                       TEST(test_unknown_giver),
                                       TEST(test_a_newer_one),
                                       TEST(test_asks_anew),
                                       TEST(test_header_only),
                                       TEST(test_nobody_has_one),
                                       TEST(test_too_large),
                                       TEST(test_no_room),
                                       TEST(test_room_of_the_ledger),
                                       TEST(test_headers),
                                       TEST(test_slow_to_open),
                                       TEST(test_updates_stay),
                                       TEST(test_slow_path),
                                       TEST(test_late_offers),
                                       TEST(test_withdrawn_offer),
                                       TEST(test_strangers_get_nothing),
                                       TEST(test_stalled_peer),
                                       TEST(test_endless_transfer)};
    // A key of this job.
    static const uint8_t handed[SEC_SEAL_HANDED_BYTES] = {[SEC_SEAL_ID_BYTES] = 9};
    int failed = cmocka_run_group_tests_name("in clear", tests, NULL, NULL);
    if (sec_seal_key_take(handed, &key) != NEB_OK)
        return 1;
    failed += cmocka_run_group_tests_name("sealed", tests, NULL, NULL);
    sec_seal_key_destroy(&key);
    return failed;
}
