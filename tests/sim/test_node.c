// Two nodes on a seeded fake network: what holds whatever is lost, late or killed.
//
// The network is that of inter/link.h: each direction has two channels, each in order, unordered
// between them; what is under way when a link breaks is lost. A crash keeps only what a store
// action made durable: manifests, votes, commits and finished blobs. Arriving parts die with the
// process.
//
// Checked: one record per (round, fragment) and the same on both; rounds rise by one; both
// contribute; every round completes once the faults have stopped. NEBULA_SIM_SEEDS=N runs more
// seeds.
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "agent/base/sha256.h"
#include "inter/node.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROUNDS = 4, FLIGHT_MAX = 4096, BLOB = 300000, N = 2 };

struct flight { // one message under way
    neb_ns at;
    int from, to;
    bool bulk;
    uint8_t *p;
    size_t len;
    uint64_t seq;
};

struct disk { // survives a crash
    struct inter_record commits[ROUNDS], votes[ROUNDS];
    bool has_commit[ROUNDS], has_vote[ROUNDS];
    struct inter_manifest manifests[ROUNDS][N];
    bool has_manifest[ROUNDS][N], has_blob[ROUNDS][N];
};

struct host {
    struct inter_node *node; // NULL while it is down
    struct disk disk;
    uint8_t part[N][BLOB];
    uint32_t delivered;
};

struct sim {
    struct neb_rng rng;
    neb_ns now;
    bool up;
    struct host h[N];
    struct flight f[FLIGHT_MAX];
    size_t n_flight;
    neb_ns last[N][2]; // arrival of the newest message of a sender's channel: in order
    uint64_t seq, chunks_sent, crash_in; // crash_in: stores of host 1 until it is killed; 0: never
    neb_ns control_delay, bulk_delay;
    bool damage_next_finish, random;
    bool crash_now[N];
};

static bool sign(void *user, const char *context, const void *msg, size_t len,
                 uint8_t sig[INTER_SIG_BYTES]) {
    (void)user;
    (void)context;
    memset(sig, 0, INTER_SIG_BYTES);
    neb_sha256(msg, len, sig);
    return true;
}

static bool verify(void *user, uint32_t peer, const char *context, const void *msg, size_t len,
                   const uint8_t sig[INTER_SIG_BYTES]) {
    uint8_t want[INTER_SIG_BYTES];
    (void)peer;
    return sign(user, context, msg, len, want) && !memcmp(sig, want, sizeof want);
}

static const struct inter_node_crypto crypto = {.sign = sign, .verify = verify};

static uint8_t blob_byte(uint32_t round, int m, size_t i) {
    return (uint8_t)(i * 31 + i / 251 + round * 7 + (size_t)m * 3);
}

static void fill(uint8_t *p, uint32_t round, int m) {
    for (size_t i = 0; i < BLOB; i++)
        p[i] = blob_byte(round, m, i);
}

static void step(struct sim *s, int i, const struct inter_event *e);

static void post(struct sim *s, int from, bool bulk, const uint8_t *head, size_t n,
                 const uint8_t *body, size_t body_n) {
    if (!s->up)
        return;
    assert_true(s->n_flight < FLIGHT_MAX);
    neb_ns delay = bulk ? s->bulk_delay : s->control_delay;
    if (s->random)
        delay += (neb_ns)neb_rng_below(&s->rng, 200) * NEB_MS;
    struct flight *f = &s->f[s->n_flight++];
    *f = (struct flight){.at = s->now + delay,
                         .from = from,
                         .to = !from,
                         .bulk = bulk,
                         .len = n + body_n,
                         .seq = s->seq++};
    if (f->at < s->last[from][bulk])
        f->at = s->last[from][bulk];
    s->last[from][bulk] = f->at;
    f->p = malloc(f->len);
    assert_non_null(f->p);
    memcpy(f->p, head, n);
    if (body_n)
        memcpy(f->p + n, body, body_n);
}

static bool stored(struct sim *s, int i) { // counts a store of host 1; true: killed right behind it
    if (i == 1 && s->crash_in && --s->crash_in == 0)
        s->crash_now[1] = true;
    return s->crash_now[i];
}

static void carry_out(struct sim *s, int i, struct inter_actions *a) {
    struct host *h = &s->h[i];
    struct disk *d = &h->disk;
    for (size_t k = 0; k < a->n && !s->crash_now[i]; k++) {
        struct inter_action *x = &a->list[k];
        const uint8_t *bytes = a->bytes.p + x->at;
        switch (x->kind) {
        case INTER_ACT_SEND: post(s, i, false, bytes, x->size, NULL, 0); break;
        case INTER_ACT_SEND_CHUNK: {
            static uint8_t blob[BLOB];
            uint8_t head[64], sha[32];
            fill(blob, x->key.round, i);
            memcpy(head, bytes, x->size);
            neb_sha256(blob + x->offset, x->len, sha);
            memcpy(head + x->size - 8, sha, 8);
            s->chunks_sent++;
            post(s, i, true, head, x->size, blob + x->offset, x->len);
            break;
        }
        case INTER_ACT_SEND_COMMIT: {
            struct neb_buf b = {0};
            assert_true(d->has_commit[x->key.round]);
            neb_buf_u8(&b, 6);
            inter_record_put(&b, &d->commits[x->key.round]);
            post(s, i, false, b.p, b.len, NULL, 0);
            neb_buf_free(&b);
            break;
        }
        case INTER_ACT_STORE_MANIFEST:
            d->manifests[x->manifest.key.round][x->manifest.key.member] = x->manifest;
            d->has_manifest[x->manifest.key.round][x->manifest.key.member] = true;
            (void)stored(s, i);
            break;
        case INTER_ACT_STORE_VOTE:
            d->votes[x->record.round] = x->record;
            d->has_vote[x->record.round] = true;
            (void)stored(s, i);
            break;
        case INTER_ACT_STORE_COMMIT: {
            uint32_t r = x->record.round;
            assert_false(d->has_commit[r]);
            assert_true(r == 0 || d->has_commit[r - 1]);
            assert_int_equal(x->record.n, N);
            const struct disk *o = &s->h[!i].disk;
            if (o->has_commit[r]) {
                uint8_t p[32], q[32];
                inter_record_hash(&x->record, p);
                inter_record_hash(&o->commits[r], q);
                assert_memory_equal(p, q, sizeof p);
            }
            for (int m = 0; m < N; m++)
                assert_true(d->has_blob[r][m] && o->has_blob[r][m]);
            d->commits[r] = x->record;
            d->has_commit[r] = true;
            (void)stored(s, i);
            break;
        }
        case INTER_ACT_BLOB_OPEN: break;
        case INTER_ACT_BLOB_WRITE:
            memcpy(h->part[x->key.member] + x->offset, x->view, x->len);
            (void)stored(s, i);
            break;
        case INTER_ACT_BLOB_FINISH: {
            struct inter_manifest m = x->manifest;
            uint8_t sha[32];
            neb_sha256(h->part[m.key.member], m.bytes, sha);
            bool ok = !memcmp(sha, m.sha256, sizeof sha) && !s->damage_next_finish;
            s->damage_next_finish = false;
            d->has_blob[m.key.round][m.key.member] |= ok;
            if (stored(s, i))
                break;
            step(s, i, &(struct inter_event){.kind = INTER_EV_BLOB_DONE, .key = m.key, .ok = ok});
            break;
        }
        case INTER_ACT_DELIVER: h->delivered++; break;
        case INTER_ACT_FAULT: assert_int_not_equal(x->fault, INTER_FAULT_DIVERGED); break;
        }
    }
}

static void step(struct sim *s, int i, const struct inter_event *e) {
    struct inter_actions a = {0};
    struct inter_event copy = *e;
    if (!s->h[i].node || s->crash_now[i])
        return;
    copy.peer = (uint32_t)!i;
    assert_int_equal(inter_node_step(s->h[i].node, s->now, &copy, &a), NEB_OK);
    carry_out(s, i, &a);
    inter_actions_free(&a);
}

static void submit(struct sim *s, int i) { // the worker: one update as soon as a round is open
    struct disk *d = &s->h[i].disk;
    static uint8_t blob[BLOB];
    uint32_t r = 0;
    while (r < ROUNDS && d->has_commit[r])
        r++;
    if (!s->h[i].node || r == ROUNDS || d->has_manifest[r][i])
        return;
    struct inter_manifest m = {.key = {.job = {1}, .round = r, .member = (uint8_t)i, .attempt = 1},
                               .bytes = BLOB,
                               .chunk_bytes = INTER_CHUNK_MIN,
                               .tokens = 1000,
                               .steps = 10};
    fill(blob, r, i);
    neb_sha256(blob, BLOB, m.sha256);
    struct neb_buf b = {0};
    inter_manifest_put_body(&b, &m);
    (void)sign(NULL, "", b.p, b.len, m.sig);
    neb_buf_free(&b);
    d->has_blob[r][i] = true;
    step(s, i, &(struct inter_event){.kind = INTER_EV_SUBMIT, .manifest = &m});
}

static void boot(struct sim *s, int i) {
    struct host *h = &s->h[i];
    struct inter_job_config c = {.id = {1},
                                 .n_members = N,
                                 .self = (uint8_t)i,
                                 .peers = {0, 1},
                                 .fragments = 1,
                                 .merge_after = 3,
                                 .eta = 0.9f,
                                 .mu = 0.6f,
                                 .interval = 10,
                                 .overlap = 0};
    uint32_t open = 0;
    assert_int_equal(inter_node_create(&crypto, &h->node), NEB_OK);
    assert_int_equal(inter_node_job_open(h->node, &c), NEB_OK);
    for (; open < ROUNDS && h->disk.has_commit[open]; open++)
        inter_node_restore_commit(h->node, &h->disk.commits[open]);
    if (open < ROUNDS) {
        for (int m = 0; m < N; m++)
            if (h->disk.has_manifest[open][m])
                assert_int_equal(inter_node_restore_manifest(h->node, &h->disk.manifests[open][m],
                                                             h->disk.has_blob[open][m], NULL),
                                 NEB_OK);
        if (h->disk.has_vote[open])
            inter_node_restore_vote(h->node, &h->disk.votes[open]);
    }
    memset(h->part, 0, sizeof h->part);
    s->crash_now[i] = false;
}

static void set_link(struct sim *s, bool up) {
    if (up == s->up)
        return;
    for (size_t k = 0; k < s->n_flight; k++)
        free(s->f[k].p);
    s->n_flight = 0;
    s->up = up;
    for (int i = 0; i < N; i++)
        step(s, i, &(struct inter_event){.kind = up ? INTER_EV_PEER_UP : INTER_EV_PEER_DOWN});
}

static void restart(struct sim *s, int i) {
    inter_node_destroy(&s->h[i].node);
    set_link(s, false);
    boot(s, i);
    set_link(s, true);
}

static bool deliver_due(struct sim *s) {
    size_t best = SIZE_MAX;
    for (size_t k = 0; k < s->n_flight; k++)
        if (s->f[k].at <= s->now && (best == SIZE_MAX || s->f[k].at < s->f[best].at ||
                                     (s->f[k].at == s->f[best].at && s->f[k].seq < s->f[best].seq)))
            best = k;
    if (best == SIZE_MAX)
        return false;
    struct flight f = s->f[best];
    s->f[best] = s->f[--s->n_flight];
    step(
        s, f.to,
        &(struct inter_event){.kind = INTER_EV_MESSAGE, .bulk = f.bulk, .data = f.p, .len = f.len});
    free(f.p);
    return true;
}

static bool all_done(const struct sim *s) {
    return s->h[0].disk.has_commit[ROUNDS - 1] && s->h[1].disk.has_commit[ROUNDS - 1];
}

static void tick(struct sim *s) { // 50 ms of virtual time
    for (int i = 0; i < N; i++)
        if (s->crash_now[i])
            restart(s, i);
    while (deliver_due(s))
        ;
    for (int i = 0; i < N; i++) {
        submit(s, i);
        step(s, i, &(struct inter_event){.kind = INTER_EV_TICK});
    }
    s->now += 50 * NEB_MS;
}

static struct sim *begin(uint64_t seed) {
    struct sim *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->rng = neb_rng_make(seed, 0);
    s->now = NEB_S;
    for (int i = 0; i < N; i++)
        boot(s, i);
    set_link(s, true);
    return s;
}

// Virtual seconds until every round is committed on both.
static double run(struct sim *s, double limit_s) {
    neb_ns start = s->now;
    while (!all_done(s) && neb_seconds(s->now - start) < limit_s)
        tick(s);
    return neb_seconds(s->now - start);
}

static void end(struct sim *s) {
    for (size_t k = 0; k < s->n_flight; k++)
        free(s->f[k].p);
    for (int i = 0; i < N; i++)
        inter_node_destroy(&s->h[i].node);
    free(s);
}

static void test_plain(void **state) {
    (void)state;
    struct sim *s = begin(1);
    s->control_delay = s->bulk_delay = 40 * NEB_MS;
    double t = run(s, 600);
    print_message("plain: %.1f s, %u chunks\n", t, (unsigned)s->chunks_sent);
    assert_true(all_done(s));
    assert_int_equal(s->chunks_sent, ROUNDS * N * inter_chunks(BLOB, INTER_CHUNK_MIN));
    end(s);
}

static void test_bulk_overtakes_control(void **state) {
    (void)state;
    struct sim *s = begin(2);
    s->control_delay = 200 * NEB_MS;
    s->bulk_delay = 40 * NEB_MS;
    double t = run(s, 600);
    print_message("bulk before control: %.1f s\n", t);
    assert_true(all_done(s));
    assert_true(t < 30);
    end(s);
}

static void test_damaged_whole(void **state) {
    (void)state;
    struct sim *s = begin(3);
    s->control_delay = s->bulk_delay = 40 * NEB_MS;
    s->damage_next_finish = true;
    double t = run(s, 3600);
    print_message("damaged blob: %.1f s\n", t);
    assert_true(all_done(s));
    end(s);
}

static void test_receiver_killed_at_every_store(void **state) {
    (void)state;
    int stuck = 0, total = 0;
    for (uint64_t k = 1; k <= 90; k++, total++) {
        struct sim *s = begin(4);
        s->control_delay = s->bulk_delay = 40 * NEB_MS;
        s->crash_in = k;
        (void)run(s, 3600);
        stuck += !all_done(s);
        end(s);
    }
    print_message("killed behind each of %d stores: stuck %d\n", total, stuck);
    assert_int_equal(stuck, 0);
}

static void test_seeds(void **state) {
    (void)state;
    const char *env = getenv("NEBULA_SIM_SEEDS");
    unsigned long seeds = env ? strtoul(env, NULL, 10) : 100;
    int stuck = 0;
    for (unsigned long seed = 1; seed <= seeds; seed++) {
        struct sim *s = begin(seed);
        s->random = true;
        for (int k = 0; k < 600 && !all_done(s); k++) { // 30 s with faults
            uint64_t die = neb_rng_below(&s->rng, 100);
            if (die < 2)
                set_link(s, !s->up);
            else if (die == 2)
                restart(s, (int)neb_rng_below(&s->rng, 2));
            else if (die == 3 && s->n_flight) { // one bit of one message
                struct flight *f = &s->f[neb_rng_below(&s->rng, s->n_flight)];
                if (f->bulk)
                    f->p[f->len - 1] ^= 1;
            }
            tick(s);
        }
        set_link(s, true);
        (void)run(s, 3600);
        if (!all_done(s) && !stuck++)
            print_message("seed %lu: stuck\n", seed);
        end(s);
    }
    print_message("%lu seeds, stuck %d\n", seeds, stuck);
    assert_int_equal(stuck, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),         cmocka_unit_test(test_bulk_overtakes_control),
        cmocka_unit_test(test_damaged_whole), cmocka_unit_test(test_receiver_killed_at_every_store),
        cmocka_unit_test(test_seeds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
