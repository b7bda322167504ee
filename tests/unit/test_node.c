// SPDX-License-Identifier: Apache-2.0
// Which members a node's rounds wait for, which members count as behind, and which chunks use a
// path's window.
#include "inter/record/weights.h"
#include "tests/unit/node_fixture.h"

// ---- members that a round waits for ----

// A masked sum needs all members but one: the round waits once two are missing.
static void test_waits_private(void **state) {
    (void)state;
    begin(0, 0, true);
    node->jobs[0].c.masked = true;
    pass(3, (const uint32_t[MEMBERS]){0}, all_follow);
    pass(6, (const uint32_t[MEMBERS]){0},
         (const uint8_t[]){0, JOINED | FOLLOWS, JOINED | FOLLOWS, JOINED | FOLLOWS, 0});
    assert_int_equal(mset_bits(status().waits), 0);
    pass(6, (const uint32_t[MEMBERS]){0},
         (const uint8_t[]){0, JOINED | FOLLOWS, JOINED | FOLLOWS, 0, 0});
    assert_int_equal(mset_bits(status().waits), 1 << 3 | 1 << 4);
    inter_node_job_revoked(node, job_id, mset_from_bits(1 << 4));
    assert_int_equal(mset_bits(status().waits), 1 << 3);
}

static void has_update(uint8_t m, uint8_t flags) {
    struct slot *t = &node->jobs[0].fragments[0].slots[m];
    t->known = true;
    t->m.flags = flags;
    t->holders = mset_from_bits(3);
    t->began = now;
}

// A member that is heard but sends no update counts as owing after a while, if a record needs its
// update.
static void test_owing(void **state) {
    (void)state;
    enum { TRUSTED, ALL, PRIVATE, LAST, KINDS };
    for (int kind = 0; kind < KINDS; kind++) {
        begin(0, 0, true);
        struct job *j = &node->jobs[0];
        j->leads = false;
        j->c.grace = 5 * NEB_S;
        j->c.commit_all = kind == ALL;
        j->c.masked = kind == PRIVATE;
        pass(9, (const uint32_t[MEMBERS]){0}, all_follow);
        assert_int_equal(mset_bits(status().owing), 0); // nobody has sent anything
        for (uint8_t m = 0; m < 3; m++)
            has_update(m, kind == LAST ? INTER_FINAL : 0);
        pass(4, (const uint32_t[MEMBERS]){0}, all_follow);
        assert_int_equal(mset_bits(status().owing), 0);
        pass(2, (const uint32_t[MEMBERS]){0}, all_follow);
        assert_int_equal(mset_bits(status().owing), kind == TRUSTED ? 0 : 1 << 3 | 1 << 4);
        inter_node_job_revoked(node, job_id, mset_from_bits(1 << 3));
        assert_int_equal(mset_bits(status().owing), kind == TRUSTED ? 0 : 1 << 4);
        has_update(4, 0);
        assert_int_equal(mset_bits(status().owing), 0);
    }
}

// The worker of a cluster has left, but its agent still votes. No round waits for its update,
// except with commit_all.
static void test_idle(void **state) {
    (void)state;
    enum { TRUSTED, ALL, PRIVATE, KINDS };
    const uint32_t terms[MEMBERS] = {0};
    const uint8_t idle[MEMBERS] = {0, JOINED | FOLLOWS, JOINED | FOLLOWS, JOINED | FOLLOWS,
                                   JOINED | FOLLOWS | IDLE};
    for (int kind = 0; kind < KINDS; kind++)
        for (int gone = 0; gone < 2; gone++) {
            begin(0, 0, true);
            struct job *j = &node->jobs[0];
            j->judges = true;
            j->c.grace = 5 * NEB_S;
            j->c.commit_all = kind == ALL;
            j->c.masked = kind == PRIVATE;
            pass(3, terms, gone ? idle : all_follow);
            for (uint8_t m = 0; m < 4; m++) {
                struct slot *t = &j->fragments[0].slots[m];
                has_update(m, INTER_FINAL);
                t->holders = mset_from_bits(gone ? 15 : 31);
                t->m.key = (struct inter_key){.member = m};
                memcpy(t->m.key.job, job_id, sizeof job_id);
            }
            pass(20, terms, gone ? idle : all_follow);
            bool proposes = gone && kind != ALL;
            assert_int_equal(j->fragments[0].voted, proposes);
            if (!proposes)
                assert_int_equal(mset_bits(status().owing), 1 << 4);
            assert_int_equal(mset_bits(status().idle), gone ? 1 << 4 : 0);
            assert_int_equal(mset_bits(status().waits), gone && kind == ALL ? 1 << 4 : 0);
        }
}

static const uint8_t other_id[INTER_ID_BYTES] = {8};

// A member's lag is known from the round in its last heartbeat. Rounds committed since then do not
// count.
static void test_catching_up(void **state) {
    (void)state;
    begin(0, 0, true);
    uint32_t *round = &node_find_job(node, job_id)->fragments[0].round;
    heartbeat(1, 0, JOINED | FOLLOWS);
    *round = 20;
    assert_false(inter_node_catching_up(node, job_id, now));
    heartbeat(1, 0, JOINED | FOLLOWS);
    assert_true(inter_node_catching_up(node, job_id, now));
    heartbeat_at(1, 0, JOINED | FOLLOWS, 18);
    assert_false(inter_node_catching_up(node, job_id, now));
    heartbeat_at(1, 0, JOINED | FOLLOWS, 17);
    assert_true(inter_node_catching_up(node, job_id, now));
    heartbeat_at(1, 0, JOINED | FOLLOWS, UINT32_MAX);
    assert_false(inter_node_catching_up(node, job_id, now));
}

// After a pause longer than the silence limit, no member counts as silent before its messages are
// read.
static void test_after_a_pause(void **state) {
    (void)state;
    begin(0, 0, true);
    struct job *j = node_find_job(node, job_id);
    pass(3, (const uint32_t[]){0, 0, 0, 0, 0}, all_follow);
    j->fragments[0].round = 20;
    j->fragments[0].ready_since = now - NEB_S;
    heartbeat(1, 0, JOINED | FOLLOWS); // member 1 is behind
    now += 30 * NEB_S;
    step(&(struct inter_event){.kind = INTER_EV_TICK});
    assert_true(inter_node_catching_up(node, job_id, now));
    assert_true(status().leads && !asked);
    assert_in_range(now - j->fragments[0].ready_since, 1, 3 * NEB_S);
    pass(4, (const uint32_t[MEMBERS]){0}, (const uint8_t[MEMBERS]){0});
    assert_true(inter_node_catching_up(node, job_id, now));
    pass(4, (const uint32_t[MEMBERS]){0}, (const uint8_t[MEMBERS]){0});
    assert_false(inter_node_catching_up(node, job_id, now));
}

// Submits an update of this member; member 1 reports that it has none of its chunks.
static void offer(const uint8_t id[INTER_ID_BYTES]) {
    struct inter_manifest m = {.key = {.member = 0},
                               .bytes = 8 << 20, // more than the window of an unknown path
                               .chunk_bytes = INTER_CHUNK_MIN,
                               .tokens = 1,
                               .steps = 1,
                               .step = 1};
    uint32_t bits = (inter_chunks(m.bytes, m.chunk_bytes) + 7) / 8;
    struct neb_buf b = {0};
    memcpy(m.key.job, id, sizeof m.key.job);
    step(&(struct inter_event){.kind = INTER_EV_SUBMIT, .manifest = &m, .norm = 1});
    neb_buf_u8(&b, MSG_STATE);
    inter_key_put(&b, &m.key);
    neb_buf_add(&b, m.sha256, STATE_DIGEST);
    neb_buf_u64(&b, EPOCH);
    neb_buf_u8(&b, INTER_HOLD_PART);
    neb_buf_u32(&b, bits);
    for (uint32_t i = 0; i < bits; i++)
        neb_buf_u8(&b, 0);
    neb_buf_u32(&b, 0);
    neb_buf_u8(&b, 0);
    message(1, &b);
}

// A second job, between the same two members.
static void open_other(void) {
    struct inter_job_config c = {.n_members = 2,
                                 .peers = {0, 1},
                                 .fragments = 1,
                                 .epoch = EPOCH,
                                 .merge_after = 3,
                                 .eta = 1,
                                 .tune = {.start_interval = 10}};
    memcpy(c.id, other_id, sizeof other_id);
    OK(inter_node_job_open(node, &c));
}

// Sends chunks as the service does. A rate limit blocks job_id. Returns how many chunks of the
// other job were sent.
static int carry_out(void) {
    struct inter_event failed[256];
    size_t n = 0;
    int left = 0;
    for (size_t k = 0; k <= n; k++) {
        for (size_t i = 0; i < actions.n; i++) {
            const struct inter_action *a = &actions.list[i];
            if (a->kind != INTER_ACT_SEND_CHUNK)
                continue;
            left += memcmp(a->key.job, job_id, sizeof job_id) != 0;
            assert_true(n < sizeof failed / sizeof *failed);
            if (!memcmp(a->key.job, job_id, sizeof job_id))
                failed[n++] = (struct inter_event){.kind = INTER_EV_SEND_FAILED,
                                                   .peer = a->peer,
                                                   .key = a->key,
                                                   .chunk = a->chunk,
                                                   .ok = true};
        }
        if (k < n)
            step(&failed[k]);
    }
    return left;
}

// Chunks that a job's own rate limit holds back take no window from another job on the path.
static void test_held_by_rate_limit(void **state) {
    (void)state;
    int left = 0;
    begin(0, 0, true);
    open_other();
    step(&(struct inter_event){.kind = INTER_EV_PEER_UP, .peer = 1});
    offer(job_id);
    left += carry_out();
    offer(other_id);
    for (int i = 0; i < 10; i++) {
        left += carry_out();
        now += NEB_S / 5;
        step(&(struct inter_event){.kind = INTER_EV_TICK});
    }
    assert_true(left > 4);
}

// A connection broke but the link is up: its chunks, and only these, are resent in the same step.
static void test_connection_lost(void **state) {
    (void)state;
    enum { MOST = (8 << 20) / INTER_CHUNK_MIN };
    static uint32_t odd[MOST];
    size_t n = 0, again = 0;
    begin(0, 0, true);
    step(&(struct inter_event){.kind = INTER_EV_PEER_UP, .peer = 1});
    offer(job_id);
    for (size_t i = 0; i < actions.n; i++) {
        const struct inter_action *a = &actions.list[i];
        if (a->kind != INTER_ACT_SEND_CHUNK)
            continue;
        inter_node_sent_on(node, 1, &a->key, a->chunk, 4 + a->chunk % 2);
        if (a->chunk % 2)
            odd[n++] = a->chunk;
    }
    assert_true(n > 4);
    step(&(struct inter_event){.kind = INTER_EV_CONN_LOST, .peer = 0, .way = 5}); // of another peer
    // the lost connection is one of a stream
    step(&(struct inter_event){.kind = INTER_EV_CONN_LOST, .peer = 1, .way = 9});
    for (size_t i = 0; i < actions.n; i++)
        assert_int_not_equal(actions.list[i].kind, INTER_ACT_SEND_CHUNK);
    step(&(struct inter_event){.kind = INTER_EV_CONN_LOST, .peer = 1, .way = 5});
    for (size_t i = 0; i < actions.n; i++)
        if (actions.list[i].kind == INTER_ACT_SEND_CHUNK) {
            assert_true(again < n);
            assert_int_equal(actions.list[i].chunk, odd[again++]);
        }
    assert_int_equal(again, n);
    struct inter_path_stats t;
    inter_node_path(node, 1, &t);
    assert_int_equal(t.payload_resent, n * node_find_job(node, job_id)->serves[0].m.chunk_bytes);
    step(&(struct inter_event){.kind = INTER_EV_CONN_LOST, .peer = 1, .way = 5});
    for (size_t i = 0; i < actions.n; i++) // the resent chunks have no known connection
        assert_int_not_equal(actions.list[i].kind, INTER_ACT_SEND_CHUNK);
}

// Appends the chunks of the last step to left, and counts them per job.
static void sent_since(struct inter_action left[], size_t *n, size_t most, int of[2]) {
    for (size_t i = 0; i < actions.n; i++)
        if (actions.list[i].kind == INTER_ACT_SEND_CHUNK) {
            assert_true(*n < most);
            left[(*n)++] = actions.list[i];
            of[memcmp(actions.list[i].key.job, job_id, sizeof job_id) != 0]++;
        }
}

// Two jobs are on one path. The first one has filled the window and always has more to send. The
// later one still gets its share of the acknowledged window.
static void test_shares_a_path(void **state) {
    (void)state;
    enum { MOST = 2 * (8 << 20) / INTER_CHUNK_MIN };
    static struct inter_action left[MOST];
    for (int first = 0; first < 2; first++) {
        size_t n = 0, acked = 0;
        int of[2] = {0};
        begin_of(2, 0, 0, 0, true);
        open_other();
        step(&(struct inter_event){.kind = INTER_EV_PEER_UP, .peer = 1});
        offer(first ? other_id : job_id);
        sent_since(left, &n, MOST, of);
        size_t window = n;
        assert_true(window > 16);
        offer(first ? job_id : other_id);
        sent_since(left, &n, MOST, of);
        assert_int_equal(n, window);
        for (; acked < 4 * window; acked++) {
            struct neb_buf b = {0};
            now += 10 * NEB_MS;
            neb_buf_u8(&b, MSG_ACK);
            inter_key_put(&b, &left[acked].key);
            neb_buf_u32(&b, left[acked].chunk);
            message(1, &b);
            sent_since(left, &n, MOST, of);
            if (acked == 2 * window)
                of[0] = of[1] = 0;
        }
        assert_true(of[0] + of[1] > (int)window);
        assert_true(5 * of[0] > 2 * (of[0] + of[1]) && 5 * of[1] > 2 * (of[0] + of[1]));
    }
}

// An update that missed its round no longer uses the path. An update that the record accepts is
// still sent.
static void test_late_update(void **state) {
    (void)state;
    enum { MOST = 4 * (8 << 20) / INTER_CHUNK_MIN };
    static struct inter_action left[MOST];
    enum { LISTED, REJECTED, OTHERS, KINDS };
    for (int kind = 0; kind < KINDS; kind++) {
        size_t n = 0;
        int of[2] = {0};
        begin(0, 0, true);
        open_other();
        step(&(struct inter_event){.kind = INTER_EV_PEER_UP, .peer = 1});
        offer(job_id);
        sent_since(left, &n, MOST, of);
        assert_true(of[0] > 0);
        const struct inter_manifest *own = &node_find_job(node, job_id)->fragments[0].slots[0].m;
        struct inter_record r = {.n = 1, .eta = 1, .n_plans = MEMBERS};
        struct neb_buf b = {0};
        memcpy(r.job, job_id, sizeof r.job);
        r.entries[0] =
            (struct inter_entry){.member = kind == OTHERS,
                                 .bytes = own->bytes,
                                 .tokens = own->tokens,
                                 .attempt = own->key.attempt,
                                 .verdict = kind == REJECTED ? INTER_REJECTED : INTER_ACCEPTED,
                                 .clip = 1};
        for (; r.n_accepts < MEMBERS; r.n_accepts++)
            r.accepts[r.n_accepts] = (struct inter_accept){.member = r.n_accepts, .epoch = EPOCH};
        inter_weights_fill(&r, node_find_job(node, job_id)->fragments[0].absences);
        neb_buf_u8(&b, MSG_COMMIT);
        inter_record_put(&b, &r);
        message(1, &b);
        // OTHERS: the update that the record accepts has not arrived
        assert_int_equal(node_find_job(node, job_id)->fragments[0].round, kind != OTHERS);
        of[0] = of[1] = 0;
        offer(other_id);
        sent_since(left, &n, MOST, of);
        assert_int_equal(of[1] > 0, kind != LISTED);
        for (int i = 0; i < 5 * 35; i++) { // chunks in flight expire
            now += NEB_S / 5;
            step(&(struct inter_event){.kind = INTER_EV_TICK});
            sent_since(left, &n, MOST, of);
        }
        assert_int_equal(of[0] > 0, kind == LISTED);
    }
}

// The size of chunks suits the fastest path, but a chunk takes at most a second on the slowest path
// that is up.
static void test_chunk_bytes(void **state) {
    (void)state;
    begin(0, 0, true);
    node->paths[1].estimate = (struct inter_estimate){.goodput_bps = 1e9, .rtt = 300 * NEB_MS};
    assert_int_equal(inter_node_chunk_bytes(node, 16 << 20), 1 << 20);
    node->paths[2].estimate = (struct inter_estimate){.goodput_bps = 250e3, .rtt = 300 * NEB_MS};
    assert_int_equal(inter_node_chunk_bytes(node, 16 << 20), 16 << 10);
    assert_true(inter_chunks(INTER_BLOB_MAX, inter_node_chunk_bytes(node, INTER_BLOB_MAX)) <=
                INTER_CHUNKS_MAX);
    node->paths[2].up = false;
    assert_int_equal(inter_node_chunk_bytes(node, 16 << 20), 1 << 20);
}

static void gone(uint32_t attempt) { // member 0 reports this attempt GONE
    struct inter_manifest m = update(0, attempt, 0);
    say_gone(0, &m);
    for (int i = 0; i < 40; i++) {
        now += NEB_S / 5;
        step(&(struct inter_event){.kind = INTER_EV_TICK});
    }
}

// A peer that has moved on says GONE for any attempt. This says nothing about the attempt that the
// record lists, even if it arrives after the record. So this node is not behind.
static void test_gone_of_any_attempt(void **state) {
    (void)state;
    begin_of(2, 0, 1, 0, true);
    struct fragment *g = &node_find_job(node, job_id)->fragments[0];
    g->decided = true;
    g->decision.n = 1;
    g->decision.entries[0] = (struct inter_entry){.attempt = 5, .verdict = INTER_ACCEPTED};
    gone(ANY_ATTEMPT);
    assert_int_equal(faults[INTER_FAULT_BEHIND], 0);
    gone(5);
    assert_int_equal(faults[INTER_FAULT_BEHIND], 1);
}

// Of each member, a peer fetches one update of past rounds at a time: a new request ends the older
// transfer.
static void test_one_transfer_per_member(void **state) {
    (void)state;
    begin_of(3, 0, 1, 0, true);
    struct job *j = node_find_job(node, job_id);
    j->fragments[0].round = 100;
    for (uint32_t i = 0; i < 100; i++) {
        struct inter_manifest m = {.key = {.round = i, .member = (uint8_t)(i % 3)},
                                   .bytes = 1 << 10,
                                   .chunk_bytes = INTER_CHUNK_MIN};
        memcpy(m.key.job, job_id, sizeof job_id);
        for (uint8_t to = 0; to < 3; to += 2)
            step(&(struct inter_event){
                .kind = INTER_EV_SERVE, .peer = to, .key = m.key, .manifest = &m});
    }
    assert_int_equal(j->n_serves, 2 * 3);
    for (size_t i = 0; i < j->n_serves; i++)
        assert_in_range(j->serves[i].m.key.round, 97, 99);
}

// ---- what a witness votes for ----

static void tells(uint8_t m) { // member m announces its update
    struct inter_manifest u = update(m, 1, 0);
    say_manifest(m, &u);
}

static void holds(uint8_t from, uint8_t m, enum inter_holding h) {
    struct inter_manifest u = update(m, 1, 0);
    say_holding(from, &u, h);
}

// Member 0 leads and proposes the updates of the first n, with this verdict on member 1's. Returns
// whether this node votes for it.
static bool votes_for(uint8_t n, enum inter_verdict of_1) {
    struct job *j = node_find_job(node, job_id);
    struct inter_record r = {
        .n = n, .eta = 1, .n_plans = j->c.n_members, .n_accepts = 1, .accepts = {{.epoch = EPOCH}}};
    struct neb_buf b = {0};
    memcpy(r.job, job_id, sizeof r.job);
    for (uint8_t m = 0; m < n; m++)
        r.entries[m] = (struct inter_entry){.member = m,
                                            .attempt = 1,
                                            .bytes = 100,
                                            .verdict = (uint8_t)(m == 1 ? of_1 : INTER_ACCEPTED),
                                            .clip = 1};
    inter_weights_fill(&r, j->fragments[0].absences);
    neb_buf_u8(&b, MSG_PROPOSE);
    inter_record_put(&b, &r);
    neb_buf_u64(&b, EPOCH);
    neb_buf_u8(&b, n);
    for (uint8_t m = 0; m < n; m++) {
        struct inter_manifest u = update(m, 1, 0);
        inter_manifest_put(&b, &u);
    }
    message(0, &b);
    return j->fragments[0].voted;
}

// There are two data members and a witness, so two are a majority. The witness does not reject an
// update only because the leader says so. It does not commit the leader's own update alone either.
static void test_witness(void **state) {
    (void)state;
    enum { WITNESS = 2, BY_WITNESS = 1 << WITNESS };
    begin_of(3, BY_WITNESS, WITNESS, 0, true);
    assert_false(votes_for(1, INTER_ACCEPTED));
    assert_int_equal(faults[INTER_FAULT_DENIED], 1);
    assert_false(votes_for(2, INTER_REJECTED)); // nothing was heard about member 1's update
    tells(0);
    tells(1);
    assert_false(votes_for(2, INTER_REJECTED));
    holds(0, 1, INTER_HOLD_REFUSED);
    assert_false(votes_for(2, INTER_REJECTED)); // only the leader refused it
    assert_false(node_find_job(node, job_id)->fragments[0].waits);
    holds(1, 1, INTER_HOLD_REFUSED); // its owner refused it too
    assert_false(votes_for(2, INTER_ACCEPTED));
    assert_true(votes_for(2, INTER_REJECTED));
    // nobody is blamed for facts that were not known yet
    assert_int_equal(faults[INTER_FAULT_DENIED], 1);
    begin_of(3, BY_WITNESS, WITNESS, 0, true);
    assert_true(votes_for(2, INTER_ACCEPTED));
    // With three data members, both other members must have refused it, or its owner.
    begin_of(4, 1 << 3, 3, 0, true);
    tells(1);
    holds(0, 1, INTER_HOLD_REFUSED);
    assert_false(votes_for(3, INTER_REJECTED));
    holds(2, 1, INTER_HOLD_REFUSED);
    assert_true(votes_for(3, INTER_REJECTED));
    // The owner was removed and will never refuse it.
    for (int gone = 0; gone < 2; gone++) {
        begin_of(4, 1 << 3, 3, 0, true);
        tells(1);
        holds(0, 1, INTER_HOLD_REFUSED);
        if (gone)
            inter_node_job_revoked(node, job_id, mset_from_bits(1 << 1));
        assert_int_equal(votes_for(3, INTER_REJECTED), gone);
    }
}

// A member whose own gate refuses its update reports that to all, the witness too. As leader it
// rejects the update once another member refuses it.
static void test_own_update_refused(void **state) {
    (void)state;
    for (int bad = 0; bad < 2; bad++) {
        struct inter_manifest u = update(0, 1, 0);
        begin_of(3, 1 << 2, 0, 0, true);
        struct fragment *g = &node_find_job(node, job_id)->fragments[0];
        step(&(struct inter_event){.kind = INTER_EV_SUBMIT, .manifest = &u, .norm = 1});
        if (bad)
            inter_node_own_bad(node, &u.key);
        int said = 0;
        now += NEB_S; // its state was sent only a moment ago
        step(&(struct inter_event){.kind = INTER_EV_TICK});
        for (size_t i = 0; i < actions.n; i++) {
            const struct inter_action *a = &actions.list[i];
            const uint8_t *p = actions.bytes.p + a->at;
            enum { HOLDING = 1 + INTER_ID_BYTES + 13 + STATE_DIGEST + 8 };
            said += a->kind == INTER_ACT_SEND && p[0] == MSG_STATE && a->peer == 2 &&
                    p[HOLDING] == INTER_HOLD_REFUSED;
        }
        assert_int_equal(said, bad);
        holds(1, 0, INTER_HOLD_REFUSED);
        assert_int_equal(node_is_refused(node_find_job(node, job_id), &g->slots[0], 0), bad);
    }
}

// Member 1 died before it refused its own bad update. A rejection may wait for that refusal, if
// there is a witness and nobody else refused. Then the leader proposes a record without the update.
static void test_leaves_out_unrejectable(void **state) {
    (void)state;
    enum { ALONE, OWNER_TOO, BOTH, LEFT, WITHOUT_WITNESS, KINDS };
    for (int kind = 0; kind < KINDS; kind++) {
        begin_of(4, kind == WITHOUT_WITNESS ? 0 : 1 << 3, 0, 0, true);
        struct fragment *g = &node_find_job(node, job_id)->fragments[0];
        struct inter_manifest own = update(0, 1, 0);
        step(&(struct inter_event){.kind = INTER_EV_SUBMIT, .manifest = &own, .norm = 1});
        holds(2, 0, INTER_HOLD_COMPLETE);
        tells(1);
        tells(2);
        assert_false(g->voted);
        g->slots[1].refused = true;
        g->slots[1].refusers =
            mset_from_bits(1 | (kind == OWNER_TOO ? 1 << 1 : 0) | (kind == BOTH ? 1 << 2 : 0));
        g->slots[2].whole = true;
        g->slots[2].holders = mset_from_bits(1 << 0);
        if (kind == LEFT)
            inter_node_job_revoked(node, job_id, mset_from_bits(1 << 1));
        holds(2, 2, INTER_HOLD_COMPLETE);
        assert_true(g->voted); // for its own proposal
        assert_int_equal(g->vote.n, kind == ALONE ? 2 : 3);
        for (uint8_t i = 0; i < g->vote.n; i++)
            assert_int_equal(g->vote.entries[i].verdict,
                             g->vote.entries[i].member == 1 ? INTER_REJECTED : INTER_ACCEPTED);
    }
}

// With two members, the other member's verdict on an update counts, not the owner's.
// A fragment with a rule: its records have its own rates, and with an owner only the owner's
// updates rest on tokens.
static void test_rules(void **state) {
    (void)state;
    begin(0, 1, true);
    struct job *j = node_find_job(node, job_id);
    struct inter_record r = {.eta = 1, .n_plans = MEMBERS};
    j->c.step_tokens = 100;
    assert_true(node_follows(j, &j->fragments[0], &r));
    assert_true(node_weight_possible(j, &j->fragments[0], 0, 10, 100));
    j->c.rules[0] = (struct inter_fragment_rule){
        .own = true, .eta = 0.5f, .mu = 0.25f, .owned = true, .owner = 1};
    assert_false(node_follows(j, &j->fragments[0], &r));
    r.eta = 0.5f;
    assert_false(node_follows(j, &j->fragments[0], &r));
    r.mu = 0.25f;
    assert_true(node_follows(j, &j->fragments[0], &r));
    assert_false(node_weight_possible(j, &j->fragments[0], 0, 10, 100));
    assert_true(node_weight_possible(j, &j->fragments[0], 0, 10, 0));
    assert_true(node_weight_possible(j, &j->fragments[0], 1, 10, 100));
}

static void test_two_members_own_refused(void **state) {
    (void)state;
    begin_of(2, 0, 0, 0, true);
    struct fragment *g = &node_find_job(node, job_id)->fragments[0];
    struct inter_manifest own = update(0, 1, 0);
    tells(1);
    g->slots[1].whole = true;
    g->slots[1].holders = mset_from_bits(3);
    holds(1, 1, INTER_HOLD_REFUSED);
    step(&(struct inter_event){.kind = INTER_EV_SUBMIT, .manifest = &own, .norm = 1});
    holds(1, 0, INTER_HOLD_COMPLETE);
    assert_true(g->voted);
    assert_int_equal(g->vote.n, 2);
    assert_int_equal(g->vote.entries[1].verdict, INTER_ACCEPTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_waits_private),
                                       cmocka_unit_test(test_owing),
                                       cmocka_unit_test(test_idle),
                                       cmocka_unit_test(test_catching_up),
                                       cmocka_unit_test(test_after_a_pause),
                                       cmocka_unit_test(test_connection_lost),
                                       cmocka_unit_test(test_held_by_rate_limit),
                                       cmocka_unit_test(test_shares_a_path),
                                       cmocka_unit_test(test_chunk_bytes),
                                       cmocka_unit_test(test_gone_of_any_attempt),
                                       cmocka_unit_test(test_one_transfer_per_member),
                                       cmocka_unit_test(test_late_update),
                                       cmocka_unit_test(test_witness),
                                       cmocka_unit_test(test_own_update_refused),
                                       cmocka_unit_test(test_rules),
                                       cmocka_unit_test(test_two_members_own_refused),
                                       cmocka_unit_test(test_leaves_out_unrejectable)};
    return cmocka_run_group_tests(tests, NULL, done);
}
