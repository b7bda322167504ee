// SPDX-License-Identifier: Apache-2.0
#include "inter/round/sums.h"
#include "agent/base/array.h"

#include <stdlib.h>
#include <string.h>

enum message { SUMS_WANT = 1, SUMS_SEEDS = 2 };
static const neb_ns ask_first = 300 * NEB_MS, ask_retry = NEB_S;
static const char reveal_context[] = "nebula reveal v1";

struct sum {
    uint32_t fragment, round;
    struct member_set set, have; // members in the sum; members whose reveal is here
    bool complete;
    uint8_t hash[INTER_SHA_BYTES]; // of the record
    struct sec_sum_head heads[NEB_MEMBERS_MAX];
    struct sec_sum_reveal reveals[NEB_MEMBERS_MAX];
    uint8_t sigs[NEB_MEMBERS_MAX][INTER_SIG_BYTES];
    struct sec_sum_seeds seeds;
    neb_ns ask_at, since;
    uint8_t asked; // last member asked for seeds of others
};

struct inter_sums {
    struct inter_sums_config c;
    struct sum **list; // (n)
    size_t n, cap;
    uint64_t faults;
    bool second; // a second record of a round was refused, and this was logged
    struct neb_buf out, body;
};

enum neb_status inter_sums_create(const struct inter_sums_config *c, struct inter_sums **out) {
    struct inter_sums *s = calloc(1, sizeof *s);
    if (!s)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for masked sums");
    NEB_ASSERT(c->n >= 3 && c->n <= NEB_MEMBERS_MAX && c->self < c->n);
    s->c = *c;
    *out = s;
    return NEB_OK;
}

static void drop(struct inter_sums *s, size_t i) {
    free(s->list[i]);
    s->list[i] = s->list[--s->n];
}

void inter_sums_destroy(struct inter_sums **sp) {
    struct inter_sums *s = *sp;
    if (!s)
        return;
    while (s->n)
        drop(s, s->n - 1);
    free(s->list);
    neb_buf_free(&s->out);
    neb_buf_free(&s->body);
    free(s);
    *sp = NULL;
}

static struct sum *find_sum(const struct inter_sums *s, uint32_t fragment, uint32_t round) {
    for (size_t i = 0; i < s->n; i++)
        if (s->list[i]->fragment == fragment && s->list[i]->round == round)
            return s->list[i];
    return NULL;
}

// ---- messages -----------------------------------------------------------------------------------

// | type u8 | job 32 | fragment u32 | round u32 | SEEDS: count u8, count x (reveal, signature) |
static void begin_message(struct inter_sums *s, enum message type, uint32_t fragment,
                          uint32_t round) {
    neb_buf_clear(&s->out);
    neb_buf_u8(&s->out, (uint8_t)type);
    neb_buf_add(&s->out, s->c.job, sizeof s->c.job);
    neb_buf_u32(&s->out, fragment);
    neb_buf_u32(&s->out, round);
}

static void put_seeds(struct inter_sums *s, const struct sum *x, struct member_set who) {
    begin_message(s, SUMS_SEEDS, x->fragment, x->round);
    neb_buf_u8(&s->out, (uint8_t)mset_count(who));
    for (uint8_t k = 0; mset_next(who, &k); k++) {
        sec_sum_reveal_put(&s->out, &x->reveals[k]);
        neb_buf_add(&s->out, x->sigs[k], INTER_SIG_BYTES);
    }
}

static void send_to(struct inter_sums *s, uint8_t member) {
    if (!s->out.oom)
        s->c.ops.send(s->c.ops.user, member, s->out.p, s->out.len);
}

static void send_all(struct inter_sums *s) {
    for (uint8_t k = 0; k < s->c.n; k++)
        if (k != s->c.self)
            send_to(s, k);
}

static void signed_body(struct inter_sums *s, const struct sum *x, const struct sec_sum_reveal *r) {
    neb_buf_clear(&s->body);
    neb_buf_add(&s->body, s->c.job, sizeof s->c.job);
    neb_buf_u32(&s->body, x->fragment);
    neb_buf_u32(&s->body, x->round);
    neb_buf_add(&s->body, x->hash, sizeof x->hash);
    sec_sum_reveal_put(&s->body, r);
}

// ---- sums ---------------------------------------------------------------------------------------

static struct member_set accepted(const struct inter_record *r) {
    struct member_set set = mset_none();
    for (uint8_t i = 0; i < r->n; i++)
        if (r->entries[i].verdict == INTER_ACCEPTED)
            mset_add(&set, r->entries[i].member);
    return set;
}

bool inter_sums_allowed(const struct inter_record *r, uint8_t n, uint8_t colluders) {
    return mset_count(accepted(r)) >= inter_sums_least(n, colluders);
}

bool inter_sums_readable(const struct inter_record *r, uint8_t n, uint8_t colluders) {
    int fresh = 0;
    for (uint8_t i = 0; i < r->n; i++)
        fresh += r->entries[i].verdict == INTER_ACCEPTED && r->entries[i].tokens > 0;
    return inter_sums_allowed(r, n, colluders) && fresh >= colluders + 2;
}

static void check_complete(struct inter_sums *s, struct sum *x) {
    if (x->complete ||
        sec_sum_gather(s->c.n, x->set, x->heads, x->reveals, x->have, &x->seeds) != NEB_OK)
        return;
    x->complete = true;
    put_seeds(s, x, x->have);
    if (!s->out.oom)
        s->c.ops.ready(s->c.ops.user, x->fragment, x->round, s->out.p, s->out.len);
}

// Takes one reveal with its signature. False: malformed, forged, or of another record.
static bool take_reveal(struct inter_sums *s, struct sum *x, struct neb_rd *in) {
    struct sec_sum_reveal r;
    uint8_t sig[INTER_SIG_BYTES];
    bool good = sec_sum_reveal_get(in, &r);
    neb_rd_copy(in, sig, sizeof sig);
    if (!good || in->bad || r.n != s->c.n) {
        in->bad = true;
        return false;
    }
    if (mset_has(x->have, r.member))
        return true;
    signed_body(s, x, &r);
    if (!mset_equal(r.set, x->set) || !sec_sum_reveal_fits(&r, x->heads) ||
        (r.member != s->c.self &&
         !s->c.crypto->verify(s->c.crypto->user, s->c.peers[r.member], reveal_context, s->body.p,
                              s->body.len, sig))) {
        s->faults++;
        return false;
    }
    x->reveals[r.member] = r;
    memcpy(x->sigs[r.member], sig, sizeof sig);
    mset_add(&x->have, r.member);
    return true;
}

static void take_all(struct inter_sums *s, struct sum *x, struct neb_rd *in) {
    uint8_t count = neb_rd_u8(in);
    for (uint8_t i = 0; i < count && !in->bad; i++)
        (void)take_reveal(s, x, in);
    if (!neb_rd_done(in))
        s->faults++;
    check_complete(s, x);
}

static enum neb_status read_heads(const struct inter_sums *s, const struct inter_record *r,
                                  const struct inter_sums_blob *blobs, struct sum *x) {
    const uint8_t *body;
    for (uint8_t i = 0; i < r->n; i++) {
        uint8_t m = r->entries[i].member;
        if (r->entries[i].verdict != INTER_ACCEPTED)
            continue;
        struct sec_sum_head *h = &x->heads[m];
        NEB_TRY(sec_sum_open(blobs[i].p, blobs[i].len, h, &body));
        if (h->n != s->c.n || h->member != m || h->fragment != r->fragment ||
            h->round != r->round || h->count != x->heads[mset_lowest(x->set)].count)
            return neb_fail(
                NEB_ERR_FORMAT,
                "round %u: the masked update of member %u does not fit those of the others",
                r->round, m);
    }
    return NEB_OK;
}

// A second set of a round would expose the update of any member that is in only one of the two.
static enum neb_status keep(struct inter_sums *s, const struct inter_record *r) {
    enum neb_status st = s->c.ops.keep(s->c.ops.user, r);
    bool said = s->second;
    s->second = s->second || st == NEB_ERR_EXISTS;
    return st == NEB_ERR_EXISTS && said ? NEB_ERR_DENIED
           : st == NEB_ERR_EXISTS
               ? neb_fail(NEB_ERR_DENIED,
                          "round %u of fragment %u: seeds were revealed for another record of this "
                          "round; none are revealed for this one",
                          r->round, r->fragment)
               : st;
}

static enum neb_status reveal_own(struct inter_sums *s, struct sum *x) {
    struct sec_sum_reveal *r = &x->reveals[s->c.self];
    NEB_TRY(sec_sum_reveal(s->c.sum, x->set, x->heads, r));
    signed_body(s, x, r);
    NEB_TRY(neb_buf_check(&s->body));
    if (!s->c.crypto->sign(s->c.crypto->user, reveal_context, s->body.p, s->body.len,
                           x->sigs[s->c.self]))
        return neb_fail(NEB_ERR_DENIED, "cannot sign the seeds of a masked sum");
    x->have = mset_of(s->c.self);
    return NEB_OK;
}

enum neb_status inter_sums_commit(struct inter_sums *s, neb_ns now, const struct inter_record *r,
                                  const struct inter_sums_blob *blobs, const void *kept,
                                  size_t kept_len) {
    enum neb_status st = NEB_OK;
    if (find_sum(s, r->fragment, r->round))
        return NEB_OK;
    if (!inter_sums_readable(r, s->c.n, s->c.colluders))
        return neb_fail(
            NEB_ERR_DENIED,
            "round %u: no seeds are revealed for a sum of %d of %u members: too few are "
            "in it, or too few of them have trained",
            r->round, mset_count(accepted(r)), s->c.n);
    size_t oldest = 0; // the oldest complete sum: its seeds can be asked for again
    while (s->n == INTER_SUMS_OPEN_MAX && oldest < s->n && !s->list[oldest]->complete)
        oldest++;
    if (oldest == INTER_SUMS_OPEN_MAX)
        return neb_fail(NEB_ERR_LIMIT, "%d masked sums wait for seeds; there can be no more",
                        INTER_SUMS_OPEN_MAX);
    if (s->n == INTER_SUMS_OPEN_MAX)
        drop(s, oldest);
    struct sum **list = neb_array_more(s->list, s->n, &s->cap, 16, sizeof *list);
    if (!list)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for masked sums");
    s->list = list;
    struct sum *x = calloc(1, sizeof *x);
    if (!x)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a masked sum");
    x->fragment = r->fragment;
    x->round = r->round;
    x->set = accepted(r);
    x->ask_at = now + ask_first;
    x->since = now;
    inter_record_hash(r, x->hash);
    NEB_TRY_GOTO(read_heads(s, r, blobs, x), fail);
    NEB_TRY_GOTO(keep(s, r), fail);
    NEB_TRY_GOTO(reveal_own(s, x), fail);
    s->list[s->n++] = x;
    put_seeds(s, x, x->have);
    send_all(s);
    struct neb_rd in = neb_rd_make(kept, kept ? kept_len : 0);
    if (kept_len && neb_rd_view(&in, 1 + INTER_ID_BYTES + 8))
        take_all(s, x, &in);
    return NEB_OK;
fail:
    free(x);
    return st;
}

void inter_sums_message(struct inter_sums *s, neb_ns now, uint8_t member, const void *p, size_t n) {
    struct neb_rd in = neb_rd_make(p, n);
    uint8_t type = neb_rd_u8(&in), job[INTER_ID_BYTES];
    neb_rd_copy(&in, job, sizeof job);
    uint32_t fragment = neb_rd_u32(&in), round = neb_rd_u32(&in);
    (void)now;
    if (in.bad || n > INTER_SUMS_MESSAGE_MAX || memcmp(job, s->c.job, sizeof job) ||
        member >= s->c.n || (type != SUMS_WANT && type != SUMS_SEEDS) ||
        (type == SUMS_WANT && neb_rd_left(&in))) {
        s->faults++;
        return;
    }
    if (!find_sum(s, fragment, round) && type == SUMS_WANT)
        s->c.ops.look_up(s->c.ops.user, member, fragment, round);
    struct sum *x = find_sum(s, fragment, round);
    if (!x)
        return; // seeds before the record: they are asked for later
    if (type == SUMS_SEEDS) {
        take_all(s, x, &in);
        return;
    }
    put_seeds(s, x, x->have);
    send_to(s, member);
}

void inter_sums_tick(struct inter_sums *s, neb_ns now) {
    for (size_t i = 0; i < s->n; i++) {
        struct sum *x = s->list[i];
        if (x->complete || now < x->ask_at)
            continue;
        x->ask_at = now + ask_retry;
        begin_message(s, SUMS_WANT, x->fragment, x->round);
        x->asked = (uint8_t)((x->asked + 1) % s->c.n);
        // members whose seeds are missing, and one that may hold them
        for (uint8_t k = 0; k < s->c.n; k++)
            if (k != s->c.self && (!mset_has(x->have, k) || k == x->asked))
                send_to(s, k);
    }
}

bool inter_sums_seeds(const struct inter_sums *s, uint32_t fragment, uint32_t round,
                      struct sec_sum_seeds *out) {
    const struct sum *x = find_sum(s, fragment, round);
    if (!x || !x->complete)
        return false;
    *out = x->seeds;
    return true;
}

neb_ns inter_sums_waits(const struct inter_sums *s) {
    neb_ns since = 0;
    for (size_t i = 0; i < s->n; i++)
        if (!s->list[i]->complete && (!since || s->list[i]->since < since))
            since = s->list[i]->since;
    return since;
}

void inter_sums_forget(struct inter_sums *s, uint32_t fragment, uint32_t below_round) {
    for (size_t i = s->n; i-- > 0;)
        if (s->list[i]->fragment == fragment && s->list[i]->round < below_round)
            drop(s, i);
}

uint64_t inter_sums_faults(const struct inter_sums *s) { return s->faults; }
