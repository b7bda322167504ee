// SPDX-License-Identifier: Apache-2.0
// Messages that say only what their receiver cannot compute.
//
// SHORT is a proposal. A receiver that has the manifests of all listed updates can compute most of
// the record's value from them and the previous record.
//
//     SHORT   | type u8 | job, TAG_BYTES of its id | fragment | round | term | listed members |
//             | epoch u64 | hash of the value, CHECK_BYTES of it | differences | signature |
//             | the leader's accept: signature |
//
//     differences   | number of expected bytes | length | other bytes | … to the end of the value
//
// UPDATE is an update of one chunk, from its owner, with the manifest. It is a bulk message.
//
//     UPDATE  | type u8 | job, TAG_BYTES of its id | fragment | round | attempt u32 | chunk size |
//             | tokens | step | steps | missed | flags u8 | digest of θ and v u64 u64 |
//             | goodput | round trip | step time | error f32 | codec level u8 | full u8 |
//             | signature | SHA-256 of the bytes, 8 bytes of it | bytes |
//
// AGREE is an ACCEPT in a job of two members, for the record that its leader proposed last.
//
//     AGREE   | type u8 | job, TAG_BYTES of its id | fragment | round | term |
//             | hash of the value, CHECK_BYTES of it | epoch u64 | signature |
//
// Fields without a type are varints (7 bits a byte). The epoch is that of the leader's ledger, also
// in its accept. The hash shows whether both sides have the same value. If not, because a member
// signed two updates, the receiver asks for the full proposal (PULL, answered by PROPOSE).
// Signatures cover the full messages, not the short ones.
#include "agent/base/sha256.h"
#include "inter/record/weights.h"
#include "inter/round/node_state.h"

#include <string.h>

enum { CHECK_BYTES = 8 };

struct job *node_job_of_tag(struct inter_node *n, const uint8_t tag[TAG_BYTES]) {
    for (int i = 0; i < JOBS_MAX; i++)
        if (n->jobs[i].open && !memcmp(n->jobs[i].c.id, tag, TAG_BYTES))
            return &n->jobs[i];
    return NULL;
}

// ---- updates ------------------------------------------------------------------------------------

void node_put_pushed(struct neb_buf *b, const struct inter_manifest *m) {
    neb_buf_add(b, m->key.job, TAG_BYTES);
    neb_buf_varint(b, m->key.fragment);
    neb_buf_varint(b, m->key.round);
    neb_buf_u32(b, m->key.attempt);
    neb_buf_varint(b, m->chunk_bytes);
    neb_buf_varint(b, m->tokens);
    neb_buf_varint(b, m->step);
    neb_buf_varint(b, m->steps);
    neb_buf_varint(b, m->missed);
    neb_buf_u8(b, m->flags);
    neb_buf_u64(b, m->digest[0]);
    neb_buf_u64(b, m->digest[1]);
    neb_buf_varint(b, m->measure.goodput_kbps);
    neb_buf_varint(b, m->measure.rtt_us);
    neb_buf_varint(b, m->measure.step_us);
    neb_buf_f32(b, m->measure.error);
    neb_buf_u8(b, cmp_level_number(m->measure.codec));
    neb_buf_u8(b, m->measure.full);
    neb_buf_add(b, m->sig, sizeof m->sig);
}

static uint32_t number32(struct neb_rd *r) {
    uint64_t x = neb_rd_varint(r);
    r->bad = r->bad || x > UINT32_MAX;
    return (uint32_t)x;
}

static bool get_fields(struct neb_rd *r, struct inter_manifest *m) {
    m->key.fragment = number32(r);
    m->key.round = number32(r);
    m->key.attempt = neb_rd_u32(r);
    m->chunk_bytes = number32(r);
    m->tokens = neb_rd_varint(r);
    m->step = neb_rd_varint(r);
    m->steps = number32(r);
    m->missed = number32(r);
    m->flags = neb_rd_u8(r);
    m->digest[0] = neb_rd_u64(r);
    m->digest[1] = neb_rd_u64(r);
    m->measure.goodput_kbps = number32(r);
    m->measure.rtt_us = number32(r);
    m->measure.step_us = number32(r);
    m->measure.error = neb_rd_f32(r);
    bool known = inter_level_get(r, &m->measure.codec);
    uint8_t full = neb_rd_u8(r);
    m->measure.full = full == 1;
    neb_rd_copy(r, m->sig, sizeof m->sig);
    return !r->bad && known && full <= 1;
}

// True if the manifest has the ranges that every manifest has.
static bool valid(struct neb_buf *room, const struct inter_manifest *m) {
    struct inter_manifest again;
    neb_buf_clear(room);
    inter_manifest_put(room, m);
    struct neb_rd r = neb_rd_make(room->p, room->len);
    return !room->oom && inter_manifest_get(&r, &again) && neb_rd_done(&r);
}

bool inter_node_is_update(uint8_t type) { return type == MSG_UPDATE; }

bool node_get_pushed(struct step *s, struct neb_rd *r, struct job **j, struct inter_manifest *m,
                     const uint8_t **data) {
    uint8_t tag[TAG_BYTES];
    *m = (struct inter_manifest){0};
    neb_rd_copy(r, tag, sizeof tag);
    *j = node_job_of_tag(s->n, tag);
    if (!get_fields(r, m))
        return false;
    uint64_t check = neb_rd_u64(r);
    size_t len = neb_rd_left(r);
    *data = neb_rd_view(r, len);
    int from = *j ? node_member(*j, s->from) : -1;
    if (r->bad || from < 0) { // or the job is not open here
        *j = NULL;
        return !r->bad;
    }
    memcpy(m->key.job, (*j)->c.id, sizeof m->key.job);
    m->key.member = (uint8_t)from;
    m->bytes = len <= INTER_BLOB_MAX ? (uint32_t)len : 0;
    neb_sha256(*data, len, m->sha256);
    struct neb_rd head = neb_rd_make(m->sha256, sizeof m->sha256);
    if (neb_rd_u64(&head) != check) {
        node_fault(s, INTER_FAULT_CORRUPT); // it comes again
        *j = NULL;
        return true;
    }
    return valid(&s->n->scratch, m) && inter_chunks(m->bytes, m->chunk_bytes) == 1;
}

// ---- proposals ----------------------------------------------------------------------------------

void node_expect(const struct job *j, const struct fragment *g, struct member_set listed,
                 struct inter_record *r) {
    *r = (struct inter_record){.round = g->round,
                               .fragment = node_index(j, g),
                               .eta = inter_job_eta(&j->c, node_index(j, g)),
                               .mu = inter_job_mu(&j->c, node_index(j, g)),
                               .n_plans = j->c.n_members};
    memcpy(r->job, j->c.id, sizeof r->job);
    memcpy(r->previous, g->previous, sizeof r->previous);
    for (uint8_t m = 0; m < j->c.n_members; m++) {
        r->cursors[m] = g->cursors[m]; // plans are the leader's: all zero here
        if (!mset_has(listed, m))
            continue;
        const struct slot *t = &g->slots[m];
        struct inter_entry *e = &r->entries[r->n++];
        *e = (struct inter_entry){.member = m,
                                  .flags = t->m.flags,
                                  .verdict = INTER_ACCEPTED,
                                  .attempt = t->m.key.attempt,
                                  .bytes = t->m.bytes,
                                  .tokens = t->m.tokens,
                                  .digest = {t->m.digest[0], t->m.digest[1]},
                                  .clip = 1};
        memcpy(e->sha256, t->m.sha256, sizeof t->m.sha256);
        // A restarted run may send at an earlier step than its previous incarnation did.
        if (t->m.step > r->cursors[m])
            r->cursors[m] = t->m.step;
        // By its own report, or by the records: a member that caught up may have sent too late
        // since.
        if (t->m.missed > j->c.merge_after || g->round - g->absences[m].base > j->c.merge_after)
            r->flags |= INTER_MERGE;
    }
}

static struct member_set listed_by(const struct inter_record *r) {
    struct member_set s = mset_none();
    for (uint8_t i = 0; i < r->n; i++)
        mset_add(&s, r->entries[i].member);
    return s;
}

// The bytes of the value that both sides expect. False: out of memory.
static bool expected_value(const struct job *j, const struct fragment *g, struct member_set listed,
                           struct neb_buf *out) {
    struct inter_record r;
    node_expect(j, g, listed, &r);
    inter_weights_fill(&r, g->absences);
    inter_record_put_value(out, &r);
    return !out->oom;
}

static void put_differences(struct neb_buf *b, const struct neb_buf *a, const struct neb_buf *to) {
    for (size_t at = 0; at < to->len;) {
        size_t same = 0, other = 0;
        while (at + same < to->len && a->p[at + same] == to->p[at + same])
            same++;
        neb_buf_varint(b, same);
        at += same;
        while (at + other < to->len && a->p[at + other] != to->p[at + other])
            other++;
        if (at < to->len) {
            neb_buf_varint(b, other);
            neb_buf_add(b, to->p + at, other);
        }
        at += other;
    }
}

static bool take_differences(struct neb_rd *r, struct neb_buf *value) {
    for (size_t at = 0; at < value->len && !r->bad;) {
        uint64_t same = neb_rd_varint(r);
        if (same > value->len - at)
            return false;
        at += same;
        uint64_t other = at < value->len ? neb_rd_varint(r) : 0;
        if (other > value->len - at || (!other && at < value->len))
            return false;
        neb_rd_copy(r, value->p + at, other);
        at += other;
    }
    return !r->bad;
}

// True if the member can have the manifest of every listed update, as they are here.
static bool knows_all(const struct job *j, const struct fragment *g, const struct inter_record *r,
                      uint8_t m) {
    for (uint8_t i = 0; i < r->n; i++) {
        uint8_t k = r->entries[i].member;
        const struct slot *t = &g->slots[k];
        if (!t->known || !node_lists(r, &t->m) || t->m.key.round != r->round ||
            (k != m && !mset_has(t->holders, m) && !mset_has(t->refusers, m)))
            return false;
    }
    return r->n_accepts == 1 && r->accepts[0].epoch == j->standing.epoch && !r->n_promises;
}

bool node_send_short(struct step *s, struct job *j, const struct inter_record *r, uint8_t to) {
    const struct fragment *g = &j->fragments[r->fragment];
    struct neb_buf a = {0}, value = {0};
    uint8_t hash[INTER_SHA_BYTES];
    inter_record_put_value(&value, r);
    bool good = knows_all(j, g, r, to) && expected_value(j, g, listed_by(r), &a) && !value.oom &&
                a.len == value.len;
    if (good) {
        struct neb_buf *b = node_begin(s, MSG_SHORT);
        inter_record_hash(r, hash);
        neb_buf_add(b, j->c.id, TAG_BYTES);
        neb_buf_varint(b, r->fragment);
        neb_buf_varint(b, r->round);
        neb_buf_varint(b, r->term);
        mset_write(b, listed_by(r));
        neb_buf_u64(b, j->standing.epoch);
        neb_buf_add(b, hash, CHECK_BYTES);
        put_differences(b, &a, &value);
        neb_buf_add(b, r->sig, sizeof r->sig);
        neb_buf_add(b, r->accepts[0].sig, sizeof r->accepts[0].sig);
        node_send(s, j, to);
    }
    neb_buf_free(&a);
    neb_buf_free(&value);
    return good;
}

// Makes the record of a value. False: malformed.
static bool record_of(const struct neb_buf *value, uint32_t term, uint8_t leader, uint64_t epoch,
                      uint8_t sigs[2][INTER_SIG_BYTES], struct inter_record *out) {
    struct neb_buf b = {0};
    neb_buf_u32(&b, term);
    neb_buf_u8(&b, leader);
    neb_buf_add(&b, value->p, value->len);
    neb_buf_add(&b, sigs[0], INTER_SIG_BYTES);
    neb_buf_u8(&b, 1);
    neb_buf_u8(&b, leader);
    neb_buf_u64(&b, epoch);
    neb_buf_add(&b, sigs[1], INTER_SIG_BYTES);
    struct neb_rd r = neb_rd_make(b.p, b.len);
    bool good = !b.oom && inter_record_get(&r, out) && neb_rd_done(&r);
    neb_buf_free(&b);
    return good;
}

void node_on_short(struct step *s, struct neb_rd *r) {
    uint8_t tag[TAG_BYTES], check[CHECK_BYTES], sigs[2][INTER_SIG_BYTES], hash[INTER_SHA_BYTES];
    neb_rd_copy(r, tag, sizeof tag);
    uint64_t f = neb_rd_varint(r), round = neb_rd_varint(r), term = neb_rd_varint(r);
    struct member_set listed = mset_read(r);
    uint64_t epoch = neb_rd_u64(r);
    neb_rd_copy(r, check, sizeof check);
    if (r->bad || f >= INTER_FRAGMENTS_MAX || round > UINT32_MAX || term > INTER_TERM_MAX) {
        node_fault(s, INTER_FAULT_MALFORMED);
        return;
    }
    struct job *j = node_job_of_tag(s->n, tag);
    struct fragment *g = node_find_fragment(j, (uint32_t)f);
    int from = j ? node_member(j, s->from) : -1;
    if (!g || from < 0)
        return;
    if (round < g->round) {
        node_answer_old(s, j, (uint32_t)round, (uint32_t)f);
        return;
    }
    bool known = round == g->round;
    for (uint8_t m = 0; mset_next(listed, &m); m++)
        known = known && m < j->c.n_members && g->slots[m].known;
    struct neb_buf value = {0};
    struct inter_record c;
    if (known && expected_value(j, g, listed, &value)) {
        if (!take_differences(r, &value))
            r->bad = true;
        neb_rd_copy(r, sigs[0], sizeof sigs[0]);
        neb_rd_copy(r, sigs[1], sizeof sigs[1]);
        known = neb_rd_done(r) && record_of(&value, (uint32_t)term, (uint8_t)from, epoch, sigs, &c);
        if (known) {
            inter_record_hash(&c, hash);
            known = !memcmp(hash, check, sizeof check);
        }
    }
    neb_buf_free(&value);
    if (known)
        node_take_proposal(s, &c, epoch, NULL, 0);
    else
        node_send_pull(s, j, g, (uint8_t)from); // the answer is the proposal in full
}

// ---- accepts ------------------------------------------------------------------------------------

void node_send_agree(struct step *s, struct job *j, const struct fragment *g,
                     const struct inter_accept *a) {
    struct neb_buf *b = node_begin(s, MSG_AGREE);
    neb_buf_add(b, j->c.id, TAG_BYTES);
    neb_buf_varint(b, g->vote.fragment);
    neb_buf_varint(b, g->vote.round);
    neb_buf_varint(b, g->vote.term);
    neb_buf_add(b, g->vote_hash, CHECK_BYTES);
    neb_buf_u64(b, a->epoch);
    neb_buf_add(b, a->sig, sizeof a->sig);
    node_send(s, j, g->vote.leader);
}

// Makes the ACCEPT that the member signed. The signature shows whether it is the same.
void node_on_agree(struct step *s, struct neb_rd *r) {
    uint8_t tag[TAG_BYTES], check[CHECK_BYTES], sig[INTER_SIG_BYTES];
    struct neb_buf b = {0};
    neb_rd_copy(r, tag, sizeof tag);
    uint32_t f = number32(r), round = number32(r), term = number32(r);
    neb_rd_copy(r, check, sizeof check);
    uint64_t epoch = neb_rd_u64(r);
    neb_rd_copy(r, sig, sizeof sig);
    if (!neb_rd_done(r) || f >= INTER_FRAGMENTS_MAX) {
        node_fault(s, INTER_FAULT_MALFORMED);
        return;
    }
    struct job *j = node_job_of_tag(s->n, tag);
    const struct fragment *g = node_find_fragment(j, f);
    if (!g)
        return;
    bool same = g->voted && !memcmp(g->vote_hash, check, sizeof check);
    if (round == g->round && !same) {
        node_fault(s, INTER_FAULT_REPLAY);
        return;
    }
    struct inter_record v = {.round = round, .fragment = f, .term = term};
    memcpy(v.job, j->c.id, sizeof v.job);
    neb_buf_u8(&b, MSG_ACCEPT);
    inter_accept_put_body(&b, &v, g->vote_hash, epoch);
    neb_buf_add(&b, sig, sizeof sig);
    struct neb_rd whole = neb_rd_make(b.p, b.oom ? 0 : b.len);
    if (neb_rd_u8(&whole) == MSG_ACCEPT)
        node_on_accept(s, &whole);
    neb_buf_free(&b);
}
