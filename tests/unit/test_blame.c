// SPDX-License-Identifier: Apache-2.0
// Which peer a node blames. A peer may pass on what another member wrote. The sender of bytes that
// do not match a signature is blamed for the bytes; the signer is blamed for their meaning (enum
// inter_fault). Member 1 passes things on; this node is member 2.
#include "agent/base/sha256.h"
#include "inter/round/node.h"
#include "security/sign.h"
#include "tests/testing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define OK(x) assert_int_equal((x), NEB_OK)

enum { AUTHOR, OTHER, SELF, THIRD, MEMBERS };
enum { CHUNK = INTER_CHUNK_MIN, BYTES = 2 * CHUNK, STEP_TOKENS = 100 };
// as in inter/round/node_state.h
enum {
    MSG_MANIFEST = 1,
    MSG_STATE,
    MSG_COMMIT = 6,
    MSG_CHUNK = 8,
    MSG_HEARTBEAT = 9,
    MSG_WANT = 12,
    MSG_GONE = 13,
    MSG_FORWARD,
    MSG_EVIDENCE
};

// no member's place in the job equals its peer index, so that a mix-up blames the wrong one
static const uint32_t peers[MEMBERS] = {13, 11, 12, 10};
static const uint8_t job[INTER_ID_BYTES] = {3, 1};
static struct inter_node *node;
static struct inter_actions out;
static neb_ns now;

static bool fake_sign(void *user, const char *context, const void *msg, size_t len,
                      uint8_t sig[INTER_SIG_BYTES]) {
    (void)user, (void)context, (void)msg, (void)len;
    memset(sig, (int)peers[SELF], INTER_SIG_BYTES);
    return true;
}
static bool fake_verify(void *user, uint32_t peer, const char *context, const void *msg, size_t len,
                        const uint8_t sig[INTER_SIG_BYTES]) {
    (void)user, (void)context, (void)msg, (void)len;
    return sig[0] == peer;
}
static const struct inter_node_crypto crypto = {NULL, fake_sign, fake_verify};

static void open_job(uint16_t witnesses) {
    struct inter_job_config c = {.n_members = MEMBERS,
                                 .self = SELF,
                                 .witnesses = mset_from_bits(witnesses),
                                 .epoch = 5,
                                 .peers = {peers[0], peers[1], peers[2], peers[3]},
                                 .fragments = 1,
                                 .merge_after = 4,
                                 .steps = 1000,
                                 .step_tokens = STEP_TOKENS,
                                 .tune = {.start_interval = 10}};
    memcpy(c.id, job, sizeof job);
    OK(inter_node_create(&crypto, &node));
    OK(inter_node_job_open(node, &c));
}

static int set_up(void **state) {
    (void)state;
    now = 100 * NEB_S;
    open_job(0);
    return 0;
}
static int tear_down(void **state) {
    (void)state;
    inter_node_destroy(&node);
    inter_actions_free(&out);
    return 0;
}

static void step(const struct inter_event *e) { OK(inter_node_step(node, now, e, &out)); }

static void hear(int from, bool bulk, const struct neb_buf *b) {
    step(&(struct inter_event){
        .kind = INTER_EV_MESSAGE, .peer = peers[from], .bulk = bulk, .data = b->p, .len = b->len});
}

// The last step reported exactly this fault of this peer.
static void blames(enum inter_fault f, uint32_t peer) {
    int n = 0;
    for (size_t i = 0; i < out.n; i++)
        if (out.list[i].kind == INTER_ACT_FAULT && out.list[i].fault != INTER_FAULT_EQUIVOCATED) {
            assert_string_equal(inter_fault_name(out.list[i].fault), inter_fault_name(f));
            assert_int_equal(out.list[i].peer, peer);
            n++;
        }
    assert_int_equal(n, 1);
}
static void blames_nobody(void) {
    for (size_t i = 0; i < out.n; i++)
        assert_int_not_equal(out.list[i].kind, INTER_ACT_FAULT);
}

static const uint8_t *blob_of(int seed) {
    static uint8_t blob[BYTES];
    memset(blob, seed, sizeof blob);
    return blob;
}

static struct inter_manifest manifest(int author, uint32_t attempt, int seed) {
    struct inter_manifest m = {.key = {.member = (uint8_t)author, .attempt = attempt},
                               .bytes = BYTES,
                               .chunk_bytes = CHUNK,
                               .tokens = 10 * STEP_TOKENS,
                               .step = 10,
                               .steps = 10,
                               .digest = {7, 8}};
    memcpy(m.key.job, job, sizeof job);
    neb_sha256(blob_of(seed), BYTES, m.sha256);
    memset(m.sig, (int)peers[author], sizeof m.sig);
    return m;
}

static void show(int from, const struct inter_manifest *m) {
    struct neb_buf b = {0};
    neb_buf_u8(&b, MSG_MANIFEST);
    inter_manifest_put(&b, m);
    hear(from, false, &b);
    neb_buf_free(&b);
}

static void send_chunk(int from, const struct inter_manifest *m, uint32_t i, int seed, bool whole) {
    struct neb_buf b = {0};
    uint8_t sha[INTER_SHA_BYTES];
    neb_sha256(blob_of(seed), CHUNK, sha);
    sha[0] ^= !whole;
    neb_buf_u8(&b, MSG_CHUNK);
    inter_key_put(&b, &m->key);
    neb_buf_u32(&b, i);
    neb_buf_add(&b, sha, 8);
    neb_buf_add(&b, blob_of(seed), CHUNK);
    hear(from, true, &b);
    neb_buf_free(&b);
}

static void finished(const struct inter_manifest *m, bool ok, bool refused) {
    step(&(struct inter_event){.kind = INTER_EV_BLOB_DONE,
                               .peer = peers[SELF],
                               .key = m->key,
                               .ok = ok,
                               .refused = refused});
}

// The author answers for the meaning of its signed update: weight, size and number of attempts are
// never blamed on the peer that passed it on.
static void test_manifests(void **state) {
    (void)state;
    struct inter_manifest m = manifest(AUTHOR, 0, 1), good = m;
    m.sig[0] ^= 1;
    show(OTHER, &m);
    blames(INTER_FAULT_DENIED, peers[OTHER]);
    m = good;
    m.tokens *= 100;
    show(OTHER, &m);
    blames(INTER_FAULT_FORGED, peers[AUTHOR]);
    for (uint32_t a = 0; a < INTER_ATTEMPTS_MAX; a++) {
        m = manifest(AUTHOR, a, 1);
        show(OTHER, &m);
        blames_nobody();
    }
    m = manifest(AUTHOR, INTER_ATTEMPTS_MAX, 1);
    show(OTHER, &m);
    blames(INTER_FAULT_FORGED, peers[AUTHOR]);
    m = manifest(AUTHOR, INTER_ATTEMPTS_MAX - 1, 2); // another update in place of the last one
    show(OTHER, &m);
    blames(INTER_FAULT_SECOND, peers[AUTHOR]);
}

static void link_up(int who) {
    step(&(struct inter_event){.kind = INTER_EV_PEER_UP, .peer = peers[who]});
}

// `who` holds the full update; this node asks it after the author was too slow.
static void ask(int who, const struct inter_manifest *m) {
    struct neb_buf b = {0};
    neb_buf_u8(&b, MSG_STATE);
    inter_key_put(&b, &m->key);
    neb_buf_add(&b, m->sha256, 8);
    neb_buf_u64(&b, 9);
    neb_buf_u8(&b, INTER_HOLD_COMPLETE);
    neb_buf_u32(&b, 0);
    neb_buf_u32(&b, 0);
    neb_buf_u8(&b, 0);
    hear(who, false, &b);
    neb_buf_free(&b);
    bool asked = false;
    for (int k = 0; k < 100 && !asked; k++) {
        now += 200 * NEB_MS;
        step(&(struct inter_event){.kind = INTER_EV_TICK});
        for (size_t i = 0; i < out.n; i++)
            asked |= out.list[i].kind == INTER_ACT_SEND && out.list[i].peer == peers[who] &&
                     out.bytes.p[out.list[i].at] == MSG_WANT;
    }
    assert_true(asked);
}

static bool said_state(int to) {
    for (size_t i = 0; i < out.n; i++)
        if (out.list[i].kind == INTER_ACT_SEND && out.list[i].peer == peers[to] &&
            out.bytes.p[out.list[i].at] == MSG_STATE)
            return true;
    return false;
}

static bool keeps_a_chunk(void) {
    for (size_t i = 0; i < out.n; i++)
        if (out.list[i].kind == INTER_ACT_BLOB_WRITE)
            return true;
    return false;
}

// A member that was not asked cannot deliver chunks of another's update: one false chunk would
// spoil it.
static void test_unasked_chunks(void **state) {
    (void)state;
    struct inter_manifest m = manifest(AUTHOR, 0, 1);
    link_up(AUTHOR);
    link_up(OTHER);
    show(AUTHOR, &m);
    send_chunk(OTHER, &m, 1, 9, true);
    blames(INTER_FAULT_REPLAY, peers[OTHER]);
    assert_false(keeps_a_chunk());
    send_chunk(AUTHOR, &m, 1, 1, true);
    assert_true(keeps_a_chunk());
    blames_nobody();
    ask(OTHER, &m);
    send_chunk(OTHER, &m, 0, 1, true);
    assert_true(keeps_a_chunk());
    blames_nobody();
}

// When chunks of several senders do not fit together, the node takes all from one sender: first the
// author, then the member that it asks. That sender can be blamed.
static void test_one_sender_after_a_mix(void **state) {
    (void)state;
    struct inter_manifest m = manifest(AUTHOR, 0, 1);
    link_up(AUTHOR);
    link_up(OTHER);
    show(AUTHOR, &m);
    ask(OTHER, &m);
    send_chunk(AUTHOR, &m, 0, 1, true);
    send_chunk(OTHER, &m, 1, 9, true);
    finished(&m, false, false);
    blames(INTER_FAULT_CORRUPT, INTER_PEER_NONE);
    assert_true(said_state(AUTHOR) && !said_state(OTHER));
    send_chunk(OTHER, &m, 1, 9, true);
    blames(INTER_FAULT_REPLAY, peers[OTHER]);
    assert_false(keeps_a_chunk());
    send_chunk(AUTHOR, &m, 0, 1, true);
    assert_true(keeps_a_chunk());
    ask(OTHER, &m); // from here on the author sends nothing
    send_chunk(AUTHOR, &m, 1, 1, true);
    assert_false(keeps_a_chunk());
    send_chunk(OTHER, &m, 1, 1, true);
    assert_true(keeps_a_chunk());
}

// If the bytes differ from the signed digest, the sender is blamed. If there were several senders,
// nobody is blamed. If they match and the gate refuses them, the author is blamed.
static void test_blobs(void **state) {
    (void)state;
    struct inter_manifest m = manifest(AUTHOR, 0, 1);
    show(OTHER, &m);
    link_up(OTHER);
    ask(OTHER, &m);
    send_chunk(OTHER, &m, 0, 1, false);
    blames(INTER_FAULT_CORRUPT, peers[OTHER]);
    send_chunk(OTHER, &m, 0, 9, true);
    send_chunk(OTHER, &m, 1, 9, true);
    finished(&m, false, false);
    blames(INTER_FAULT_CORRUPT, peers[OTHER]);
    send_chunk(AUTHOR, &m, 0, 1, true);
    send_chunk(OTHER, &m, 1, 9, true);
    finished(&m, false, false);
    blames(INTER_FAULT_CORRUPT, INTER_PEER_NONE);
    link_up(AUTHOR);
    ask(AUTHOR, &m);
    send_chunk(AUTHOR, &m, 0, 9, true);
    send_chunk(AUTHOR, &m, 1, 9, true);
    finished(&m, false, false);
    blames(INTER_FAULT_CORRUPT, peers[AUTHOR]);
    ask(OTHER, &m);
    send_chunk(OTHER, &m, 0, 1, true);
    send_chunk(OTHER, &m, 1, 1, true);
    finished(&m, false, true); // refused by the gate
    blames(INTER_FAULT_REFUSED, peers[AUTHOR]);
}

static struct inter_manifest differing(int author) {
    struct inter_manifest m = manifest(author, 0, author);
    m.digest[1]++;
    return m;
}

// The member whose parameters differ from this node's is blamed, whoever passed its update on and
// whichever of the two updates came first.
static void test_parameters(void **state) {
    (void)state;
    struct inter_manifest a = differing(AUTHOR), own = manifest(SELF, 0, 3),
                          o = manifest(OTHER, 0, 2);
    show(OTHER, &o);
    show(OTHER, &a); // this node has no parameters of the round yet
    blames_nobody();
    own.key.attempt = inter_node_attempt(node, job);
    step(&(struct inter_event){.kind = INTER_EV_SUBMIT, .peer = peers[SELF], .manifest = &own});
    blames(INTER_FAULT_DIVERGED, peers[AUTHOR]);
    show(OTHER, &a);
    blames_nobody(); // reported once
    struct inter_manifest t = differing(THIRD);
    show(OTHER, &t);
    blames(INTER_FAULT_DIVERGED, peers[THIRD]);
}

// Reports which members have the same parameter digest in the open round, for a node that took a
// state from a peer and needs others to confirm it.
static void test_digests(void **state) {
    (void)state;
    struct inter_manifest a = differing(AUTHOR), o = manifest(OTHER, 0, 2);
    struct inter_digests said = {mset_of(0), mset_of(0)};
    assert_true(inter_node_digests(node, job, 0, 0, o.digest, &said));
    assert_true(mset_empty(mset_union(said.same, said.other))); // no member has reported
    show(OTHER, &a);
    show(OTHER, &o);
    assert_true(inter_node_digests(node, job, 0, 0, o.digest, &said));
    assert_int_equal(mset_bits(said.same), 1u << OTHER);
    assert_int_equal(mset_bits(said.other), 1u << AUTHOR);
    assert_true(inter_node_digests(node, job, 0, 0, a.digest, &said));
    assert_int_equal(mset_bits(said.same), 1u << AUTHOR);
    assert_false(inter_node_digests(node, job, 0, 1, o.digest, &said)); // that round is not open
    assert_false(inter_node_digests(node, job, 9, 0, o.digest, &said));
    const uint8_t none[INTER_ID_BYTES] = {77};
    assert_false(inter_node_digests(node, none, 0, 0, o.digest, &said));
}

// A witness has no parameters: the majority's digest counts. If two members differ, a third
// decides.
static void test_parameters_at_a_witness(void **state) {
    (void)state;
    inter_node_destroy(&node);
    open_job(1u << SELF);
    struct inter_manifest a = differing(AUTHOR), o = manifest(OTHER, 0, 2),
                          t = manifest(THIRD, 0, 3);
    show(OTHER, &a);
    show(OTHER, &o);
    blames_nobody();
    show(OTHER, &t);
    blames(INTER_FAULT_DIVERGED, peers[AUTHOR]);
    inter_node_destroy(&node);
    open_job(1u << SELF);
    show(OTHER, &o);
    show(OTHER, &t);
    blames_nobody();
    show(OTHER, &a);
    blames(INTER_FAULT_DIVERGED, peers[AUTHOR]);
}

static void envelope_to(struct neb_buf *b, int from, int to, const struct neb_buf *inner) {
    uint8_t sig[INTER_SIG_BYTES];
    memset(sig, (int)peers[from], sizeof sig);
    neb_buf_clear(b);
    neb_buf_u8(b, MSG_FORWARD);
    neb_buf_add(b, sig, sizeof sig);
    neb_buf_add(b, job, sizeof job);
    neb_buf_u8(b, (uint8_t)from);
    neb_buf_u8(b, (uint8_t)to);
    neb_buf_add(b, inner->p, inner->len);
}
static void envelope(struct neb_buf *b, int from, const struct neb_buf *inner) {
    envelope_to(b, from, SELF, inner);
}

static void heartbeat_at(struct neb_buf *b, uint64_t epoch, uint32_t round) {
    static const uint8_t head[16];
    neb_buf_clear(b);
    neb_buf_u8(b, MSG_HEARTBEAT);
    neb_buf_add(b, job, sizeof job);
    neb_buf_u32(b, 0);
    neb_buf_u8(b, 2); // joined
    neb_buf_u64(b, epoch);
    neb_buf_u64(b, 5);
    neb_buf_u16(b, 0);
    neb_buf_u32(b, 1);
    neb_buf_u16(b, 0);
    neb_buf_u32(b, round);
    neb_buf_add(b, head, sizeof head);
}
static void heartbeat(struct neb_buf *b, uint64_t epoch) { heartbeat_at(b, epoch, 0); }

// The origin is blamed for what it wrote in an envelope; the peer that passed it on is blamed for a
// replay.
static void test_envelopes(void **state) {
    (void)state;
    struct neb_buf inner = {0}, b = {0};
    heartbeat(&inner, 9);
    envelope(&b, AUTHOR, &inner);
    hear(OTHER, false, &b);
    blames_nobody();
    heartbeat(&inner, 8); // an envelope of a previous incarnation
    envelope(&b, AUTHOR, &inner);
    hear(OTHER, false, &b);
    blames(INTER_FAULT_REPLAY, peers[OTHER]);
    inner.len--;
    envelope(&b, AUTHOR, &inner);
    hear(OTHER, false, &b);
    blames(INTER_FAULT_MALFORMED, peers[AUTHOR]);
    b.p[1] ^= 1; // its signature
    hear(OTHER, false, &b);
    blames(INTER_FAULT_DENIED, peers[OTHER]);
    neb_buf_free(&inner);
    neb_buf_free(&b);
}

static int sent_to(int to) {
    int n = 0;
    for (size_t i = 0; i < out.n; i++)
        n += out.list[i].kind == INTER_ACT_SEND && out.list[i].peer == peers[to];
    return n;
}

// This node answers for what it passes on: it drops what the origin has not signed.
static void test_forwarding(void **state) {
    (void)state;
    struct neb_buf inner = {0}, b = {0};
    step(&(struct inter_event){.kind = INTER_EV_PEER_UP, .peer = peers[THIRD]});
    heartbeat(&inner, 9);
    envelope_to(&b, AUTHOR, THIRD, &inner);
    hear(AUTHOR, false, &b);
    blames_nobody();
    assert_int_equal(sent_to(THIRD), 1);
    b.p[1] ^= 1; // its signature
    hear(AUTHOR, false, &b);
    blames(INTER_FAULT_DENIED, peers[AUTHOR]);
    assert_int_equal(sent_to(THIRD), 0);
    neb_buf_free(&inner);
    neb_buf_free(&b);
}

// The peer that shows a commit without a majority, or evidence that proves nothing, is blamed.
static void test_empty_proofs(void **state) {
    (void)state;
    struct neb_buf b = {0};
    struct inter_record r = {.n = 1, .eta = 1, .n_plans = MEMBERS};
    struct inter_manifest first = manifest(AUTHOR, 0, 1), second = manifest(AUTHOR, 0, 2);
    memcpy(r.job, job, sizeof job);
    r.entries[0] = (struct inter_entry){.member = OTHER, .bytes = BYTES, .clip = 1};
    memset(r.sig, (int)peers[r.leader], sizeof r.sig); // signed by its leader, member 0
    neb_buf_u8(&b, MSG_COMMIT);
    inter_record_put(&b, &r);
    hear(OTHER, false, &b);
    blames(INTER_FAULT_DENIED, peers[OTHER]);
    second.sig[0] ^= 1; // the author has signed only the first
    struct inter_evidence e = {inter_statement_of_update(&first),
                               inter_statement_of_update(&second)};
    neb_buf_clear(&b);
    neb_buf_u8(&b, MSG_EVIDENCE);
    inter_evidence_put(&b, &e);
    hear(OTHER, false, &b);
    blames(INTER_FAULT_DENIED, peers[OTHER]);
    neb_buf_free(&b);
}

// `from` reports that it is at this round and that it no longer has a record of the first round.
static void says_gone(int from, uint32_t round) {
    struct neb_buf b = {0};
    struct inter_key k = {.member = INTER_NO_MEMBER};
    memcpy(k.job, job, sizeof job);
    if (round) {
        heartbeat_at(&b, 5, round);
        hear(from, false, &b);
        neb_buf_clear(&b);
    }
    neb_buf_u8(&b, MSG_GONE);
    inter_key_put(&b, &k);
    hear(from, false, &b);
    neb_buf_free(&b);
}

// A record of round 19 with a majority's accepts, or with one too few.
static void shows_record(int from, int n_accepts) {
    struct neb_buf b = {0};
    struct inter_record r = {
        .round = 19, .n = 1, .eta = 1, .n_plans = MEMBERS, .n_accepts = (uint8_t)n_accepts};
    memcpy(r.job, job, sizeof job);
    r.entries[0] = (struct inter_entry){.member = OTHER, .bytes = BYTES, .clip = 1};
    memset(r.sig, (int)peers[r.leader], sizeof r.sig);
    for (int i = 0; i < n_accepts; i++) {
        r.accepts[i] = (struct inter_accept){.member = (uint8_t)(i + (i >= SELF)), .epoch = 5};
        memset(r.accepts[i].sig, (int)peers[r.accepts[i].member], INTER_SIG_BYTES);
    }
    neb_buf_u8(&b, MSG_COMMIT);
    inter_record_put(&b, &r);
    hear(from, false, &b);
    neb_buf_free(&b);
}

static uint32_t lag(void) {
    struct inter_job_status st;
    assert_true(inter_node_job_status(node, job, now, &st));
    return st.lag;
}

// No peer is blamed for this node's lag. Only a record proves that others are ahead, not a claim. A
// missing record counts as gone when every member ahead says so.
static void test_behind(void **state) {
    (void)state;
    says_gone(OTHER, 0); // it was not asked
    blames_nobody();
    step(&(struct inter_event){.kind = INTER_EV_PEER_UP, .peer = peers[OTHER]});
    step(&(struct inter_event){.kind = INTER_EV_PEER_UP, .peer = peers[THIRD]});
    says_gone(OTHER, 1000000);
    blames_nobody();
    assert_int_equal(lag(), 0);
    shows_record(OTHER, 2);
    blames(INTER_FAULT_DENIED, peers[OTHER]);
    assert_int_equal(lag(), 0);
    shows_record(OTHER, 3);
    assert_int_equal(lag(), 20);
    struct neb_buf b = {0};
    heartbeat_at(&b, 5, 20);
    hear(THIRD, false, &b); // THIRD is ahead as well, and may have it
    neb_buf_free(&b);
    says_gone(OTHER, 0);
    blames_nobody();
    says_gone(THIRD, 0);
    blames(INTER_FAULT_BEHIND, INTER_PEER_NONE);
}

// A member that claims to be ahead and does not answer delays this node only for a few seconds.
static void test_behind_without_answer(void **state) {
    (void)state;
    struct neb_buf b = {0};
    step(&(struct inter_event){.kind = INTER_EV_PEER_UP, .peer = peers[OTHER]});
    step(&(struct inter_event){.kind = INTER_EV_PEER_UP, .peer = peers[THIRD]});
    shows_record(OTHER, 3);
    for (int i = 0; i < 7; i++) {
        neb_buf_clear(&b);
        heartbeat_at(&b, 5, 20);
        hear(THIRD, false, &b);
        says_gone(OTHER, 20);
        if (i < 6)
            blames_nobody();
        now += NEB_S;
    }
    blames(INTER_FAULT_BEHIND, INTER_PEER_NONE);
    neb_buf_free(&b);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_manifests),      TEST(test_blobs),
        TEST(test_parameters),     TEST(test_parameters_at_a_witness),
        TEST(test_digests),        TEST(test_envelopes),
        TEST(test_forwarding),     TEST(test_empty_proofs),
        TEST(test_behind),         TEST(test_behind_without_answer),
        TEST(test_unasked_chunks), TEST(test_one_sender_after_a_mix)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
