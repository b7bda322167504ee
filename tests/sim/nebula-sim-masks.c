// SPDX-License-Identifier: Apache-2.0
// Masked sums: computes what a Byzantine member can read from all messages that it ever sees.
//
// Every member has the real inter/sums and security/secure_sum; messages cross the simulated links,
// and the notes of revealed sets are on the simulated disk. The Byzantine member sees every masked
// update and every seed that any honest member sends to anybody. It has the keys of all colluders.
//
// With the masks that it does not know, a masked update of member m in one round is
//
//     q_m + b_m + Σ ± s_mj    b_m:  unknown until m reveals it, or all others reveal their shares
//                             s_mj: unknown between two honest members until one reveals it
//
// A combination of updates can be read if all unknown masks cancel. At most one combination may be
// readable, and it must be the sum of two or more honest members. Each seed is a column of a
// matrix; each update with a known b is a row (the b of other updates never cancels). Coefficients
// are counted modulo 2: a combination modulo 2^16, divided by its largest common power of two, is
// also a combination modulo 2. So the test misses nothing.
#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

#include "inter/round/sums.h"
#include "tests/sum_mask.h"

enum { ROWS_MAX = 64, INTEGERS = 4 * SIM_WORDS };
static const uint8_t job_id[INTER_ID_BYTES] = {1};

struct update {           // handed out by its member
    bool here, own_known; // own_known: its member revealed b
    bool drained; // no training stands behind it: the integers are zeros, and everybody knows them
    struct member_set shares; // members that revealed their shares of b
    uint8_t sha[INTER_SHA_BYTES];
    struct sec_sum_head head;
    struct neb_buf bytes;
};
struct round { // of one fragment
    struct update updates[NEB_MEMBERS_MAX][SIM_ATTEMPTS];
    struct member_set pairs[NEB_MEMBERS_MAX]; // revealed seeds, by other member
    // sets for which a member revealed; none: it has not revealed yet
    struct member_set sets[NEB_MEMBERS_MAX];
};
struct view { // of one host
    struct sim *s;
    uint8_t host;
    struct inter_node_crypto crypto;
    struct inter_sums *sums;
};
struct sim_masks {
    struct member_set colluders; // the Byzantine member among them
    struct sec_sum *keys[NEB_MEMBERS_MAX];
    struct view views[NEB_MEMBERS_MAX + 1];
    struct round *rounds[SIM_FRAGMENTS][SIM_ROUNDS];
};

static struct round *round_of(struct sim *s, uint32_t f, uint32_t n) {
    struct round **r = &s->masks->rounds[f][n];
    if (!*r && !(*r = calloc(1, sizeof **r)))
        abort();
    return *r;
}

static struct update *find(struct round *r, uint8_t member, const uint8_t sha[INTER_SHA_BYTES]) {
    for (int a = 0; a < SIM_ATTEMPTS; a++)
        if (r->updates[member][a].here && !memcmp(r->updates[member][a].sha, sha, INTER_SHA_BYTES))
            return &r->updates[member][a];
    return NULL;
}

// ---- what the Byzantine member sees ----

void sim_masks_handed_out(struct sim *s, const struct inter_manifest *m, const int64_t *words) {
    int16_t q[INTEGERS];
    const uint8_t *body;
    if (!s->masks)
        return;
    struct round *r = round_of(s, m->key.fragment, m->key.round);
    if (find(r, m->key.member, m->sha256))
        return;
    struct update *u = NULL;
    for (int a = 0; a < SIM_ATTEMPTS && !u; a++)
        u = r->updates[m->key.member][a].here ? NULL : &r->updates[m->key.member][a];
    if (!u)
        sim_fail(s, "member %u hands out more than %d updates of round %u", m->key.member,
                 SIM_ATTEMPTS, m->key.round);
    for (int i = 0; i < INTEGERS; i++) {
        int64_t w = words[i % SIM_WORDS];
        for (int k = i / SIM_WORDS; k > 0; k--)
            w /= 1000;
        q[i] = (int16_t)(w % 1000);
    }
    u->here = true;
    u->drained = !m->tokens;
    memcpy(u->sha, m->sha256, sizeof u->sha);
    if (sum_mask(s->masks->keys[m->key.member], m->key.fragment, m->key.round, q, INTEGERS,
                 &u->bytes) != NEB_OK ||
        sec_sum_open(u->bytes.p, u->bytes.len, &u->head, &body) != NEB_OK)
        abort();
}

// The update to which this share of its owner belongs.
static void note_share(struct sim *s, struct round *r, const struct sec_sum_reveal *x, uint8_t k,
                       const struct sec_sum_head *given) {
    struct sec_sum_head heads[NEB_MEMBERS_MAX];
    struct sec_sum_reveal is;
    memcpy(heads, given, sizeof heads);
    for (int a = 0; a < SIM_ATTEMPTS; a++) {
        struct update *u = &r->updates[k][a];
        if (!u->here)
            continue;
        heads[k] = u->head;
        if (sec_sum_reveal(s->masks->keys[x->member], x->set, heads, &is) == NEB_OK &&
            !memcmp(is.shares[k], x->shares[k], sizeof is.shares[k]))
            mset_add(&u->shares, x->member);
    }
}

static void note_reveal(struct sim *s, uint32_t f, uint32_t n, const struct sec_sum_reveal *x) {
    struct round *r = round_of(s, f, n);
    struct sec_sum_head heads[NEB_MEMBERS_MAX] = {{0}};
    for (uint8_t k = 0; k < s->o.members; k++)
        for (int a = 0; a < SIM_ATTEMPTS && mset_has(x->set, k); a++)
            if (r->updates[k][a].here)
                heads[k] = r->updates[k][a].head;
    for (uint8_t k = 0; k < s->o.members; k++) {
        if (mset_has(x->set, k) && k != x->member)
            note_share(s, r, x, k, heads);
        if (!mset_has(x->set, k) && mset_has(x->set, x->member)) {
            mset_add(&r->pairs[k], x->member);
            mset_add(&r->pairs[x->member], k);
        }
    }
    for (int a = 0; a < SIM_ATTEMPTS && mset_has(x->set, x->member); a++) {
        struct update *u = &r->updates[x->member][a];
        heads[x->member] = u->head;
        u->own_known = u->own_known || (u->here && sec_sum_reveal_fits(x, heads));
    }
}

// ---- what it can read ----

struct row {
    uint64_t masks[2]; // unknown pair seeds
    uint64_t of;       // rows that are summed here
    uint8_t member;
    bool drained;
};

static int column(uint8_t a, uint8_t b) {
    return a < b ? b * (b - 1) / 2 + a : a * (a - 1) / 2 + b;
}

static size_t rows_of(const struct sim *s, const struct round *r, struct row rows[ROWS_MAX]) {
    struct member_set all = mset_first((int)s->o.members), they = s->masks->colluders;
    size_t n = 0;
    for (uint8_t m = 0; m < s->o.members; m++)
        for (int a = 0; a < SIM_ATTEMPTS && !mset_has(they, m); a++) {
            const struct update *u = &r->updates[m][a];
            struct member_set shares = mset_with(mset_union(u->shares, they), m);
            if (!u->here || !(u->own_known || mset_equal(shares, all)))
                continue;
            if (n == ROWS_MAX)
                abort();
            rows[n] = (struct row){.of = 1ull << n, .member = m, .drained = u->drained};
            for (uint8_t k = 0; k < s->o.members; k++)
                if (k != m && !mset_has(mset_union(they, r->pairs[m]), k))
                    rows[n].masks[column(m, k) / 64] |= 1ull << column(m, k) % 64;
            n++;
        }
    return n;
}

// Finds the combinations without an unknown mask (of) and returns how many of them are linearly
// independent.
static size_t readable(struct row *rows, size_t n, uint64_t of[ROWS_MAX]) {
    size_t done = 0, found = 0;
    for (int c = 0; c < NEB_MEMBERS_MAX * (NEB_MEMBERS_MAX - 1) / 2; c++) {
        size_t at = done;
        while (at < n && !(rows[at].masks[c / 64] >> c % 64 & 1))
            at++;
        if (at == n)
            continue;
        struct row x = rows[at];
        rows[at] = rows[done];
        rows[done++] = x;
        for (size_t k = done; k < n; k++)
            if (rows[k].masks[c / 64] >> c % 64 & 1) {
                rows[k].masks[0] ^= x.masks[0];
                rows[k].masks[1] ^= x.masks[1];
                rows[k].of ^= x.of;
            }
    }
    for (size_t k = done; k < n; k++)
        of[found++] = rows[k].of;
    return found;
}

static void check(struct sim *s, uint32_t f, uint32_t n) {
    struct row rows[ROWS_MAX] = {{.member = 0}}, some[ROWS_MAX];
    uint64_t of[ROWS_MAX];
    size_t all = rows_of(s, round_of(s, f, n), rows), k = 0;
    struct member_set in = mset_none();
    for (uint8_t m = 0; m < s->o.members; m++, k = 0) {
        for (size_t i = 0; i < all; i++)
            if (rows[i].member == m)
                some[k++] = rows[i];
        if (k && readable(some, k, of))
            sim_fail(
                s,
                "colluders %#llx can read the update of member %u alone in round %u of fragment %u",
                (unsigned long long)mset_bits(s->masks->colluders), m, n, f);
    }
    memcpy(some, rows, sizeof some);
    size_t found = readable(some, all, of);
    for (size_t i = 0; found && i < all; i++)
        if (of[0] >> i & 1 && !rows[i].drained)
            mset_add(&in, rows[i].member);
    if (found > 1 || (found && mset_count(in) < 2))
        sim_fail(
            s, "colluders %#llx can read %zu sums of round %u of fragment %u, one of members %#llx",
            (unsigned long long)mset_bits(s->masks->colluders), found, n, f,
            (unsigned long long)mset_bits(in));
}

// Reads every message that a host sends to anybody.
static void overhear(struct sim *s, uint8_t i, const uint8_t *p, size_t len) {
    enum { SEEDS = 2 };
    struct neb_rd r = neb_rd_make(p, len);
    struct sec_sum_reveal x;
    uint8_t id[INTER_ID_BYTES], type = neb_rd_u8(&r), me = s->h[i].id;
    neb_rd_copy(&r, id, sizeof id);
    uint32_t f = neb_rd_u32(&r), n = neb_rd_u32(&r);
    if (type != SEEDS || sim_lies(s, i) || mset_has(s->masks->colluders, me))
        return;
    for (uint8_t k = neb_rd_u8(&r); k > 0; k--) {
        if (!sec_sum_reveal_get(&r, &x) || !neb_rd_view(&r, INTER_SIG_BYTES))
            sim_fail(s, "host %u sends malformed seeds", i);
        if (x.member != me)
            continue; // already seen when its owner sent them
        const struct sim_reveal *kept = &s->h[i].disk.reveals[f][n];
        struct round *round = round_of(s, f, n);
        if (!kept->known || !mset_equal(kept->set, x.set))
            sim_fail(s, "host %u reveals for members %#llx before the note of it is on its disk", i,
                     (unsigned long long)mset_bits(x.set));
        if (!mset_empty(round->sets[me]) && !mset_equal(round->sets[me], x.set) &&
            !s->h[i].previous_incarnation)
            sim_fail(s, "host %u reveals for members %#llx, and revealed for %#llx before", i,
                     (unsigned long long)mset_bits(x.set),
                     (unsigned long long)mset_bits(round->sets[me]));
        round->sets[me] = x.set;
        note_reveal(s, f, n, &x);
        check(s, f, n);
    }
}

// ---- callbacks of inter/sums ----

static void on_send(void *user, uint8_t member, const void *p, size_t n) {
    const struct view *v = user;
    static const uint8_t type = SIM_SUMS;
    if (!v->s->h[v->host].alive)
        return;
    overhear(v->s, v->host, p, n);
    sim_transmit(v->s, v->host, member, false, &type, 1, p, n);
}

static enum neb_status on_keep(void *user, const struct inter_record *r) {
    const struct view *v = user;
    return sim_host_keeps(v->s, v->host, r);
}

static void on_ready(void *user, uint32_t fragment, uint32_t round, const void *p, size_t n) {
    (void)user, (void)fragment, (void)round, (void)p, (void)n;
}

static void on_look_up(void *user, uint8_t member, uint32_t f, uint32_t n) {
    const struct view *v = user;
    (void)member;
    const struct sim_round *r =
        f < v->s->o.fragments && n < SIM_ROUNDS ? v->s->h[v->host].disk.rounds[f][n] : NULL;
    if (r && r->committed)
        sim_masks_commit(v->s, v->host, &r->commit);
}

void sim_masks_commit(struct sim *s, uint8_t i, const struct inter_record *r) {
    struct inter_sums_blob blobs[NEB_MEMBERS_MAX] = {{0}};
    if (!s->masks || !s->masks->views[i].sums || !s->h[i].alive ||
        !inter_sums_readable(r, (uint8_t)s->o.members, (uint8_t)s->o.colluders))
        return;
    struct round *round = round_of(s, r->fragment, r->round);
    for (uint8_t k = 0; k < r->n; k++) {
        const struct update *u = find(round, r->entries[k].member, r->entries[k].sha256);
        if (u)
            blobs[k] = (struct inter_sums_blob){u->bytes.p, u->bytes.len};
        else if (r->entries[k].verdict == INTER_ACCEPTED)
            return; // nobody has handed it out
    }
    enum neb_status st =
        inter_sums_commit(s->masks->views[i].sums, sim_clock(s, &s->h[i]), r, blobs, NULL, 0);
    if (st != NEB_OK && s->h[i].alive && !sim_lies(s, i))
        sim_fail(s, "host %u cannot open the sum of round %u: %s", i, r->round,
                 neb_status_name(st));
}

void sim_masks_message(struct sim *s, uint8_t i, uint8_t from, const uint8_t *p, size_t n) {
    if (s->masks && s->masks->views[i].sums && s->h[i].alive)
        inter_sums_message(s->masks->views[i].sums, sim_clock(s, &s->h[i]), from, p, n);
}

void sim_masks_tick(struct sim *s, uint8_t i) {
    if (s->masks && s->masks->views[i].sums && s->h[i].alive)
        inter_sums_tick(s->masks->views[i].sums, sim_clock(s, &s->h[i]));
}

// The Byzantine member asks a random member again for the seeds of a random round.
void sim_masks_asked(struct sim *s) {
    enum { WANT = 1 };
    struct neb_buf b = {0};
    uint8_t to = (uint8_t)neb_rng_below(&s->rng, s->o.members);
    uint32_t f = (uint32_t)neb_rng_below(&s->rng, s->o.fragments),
             n = (uint32_t)neb_rng_below(&s->rng, s->oracle->top[f] + 1);
    neb_buf_u8(&b, WANT);
    neb_buf_add(&b, job_id, sizeof job_id);
    neb_buf_u32(&b, f);
    neb_buf_u32(&b, n);
    if (!sim_lies(s, to))
        sim_masks_message(s, to, s->byzantine->who, b.p, b.len);
    neb_buf_free(&b);
}

// ---- start and stop ----

void sim_masks_boot(struct sim *s, uint8_t i) {
    if (!s->masks)
        return;
    struct view *v = &s->masks->views[i];
    struct inter_sums_config c = {.n = (uint8_t)s->o.members,
                                  .self = s->h[i].id,
                                  .colluders = (uint8_t)s->o.colluders,
                                  .crypto = &v->crypto,
                                  .sum = s->masks->keys[s->h[i].id],
                                  .ops = {v, on_send, on_keep, on_ready, on_look_up}};
    *v = (struct view){s, i, sim_host_crypto(&s->h[i]), v->sums};
    inter_sums_destroy(&v->sums);
    memcpy(c.job, job_id, sizeof job_id);
    for (uint8_t m = 0; m < s->o.members; m++)
        c.peers[m] = m;
    if (inter_sums_create(&c, &v->sums) != NEB_OK)
        abort();
    // The worker restarts from the checkpoint and asks for the later rounds.
    for (uint32_t f = 0; f < s->o.fragments; f++)
        for (uint32_t n = s->h[i].disk.checkpoint.frags[f].round;
             n < SIM_ROUNDS && s->h[i].disk.rounds[f][n] && s->h[i].disk.rounds[f][n]->committed;
             n++)
            sim_masks_commit(s, i, &s->h[i].disk.rounds[f][n]->commit);
}

void sim_masks_set_up(struct sim *s) {
    struct sim_masks *k = s->masks = calloc(1, sizeof *k);
    uint8_t keys[NEB_MEMBERS_MAX][SEC_SUM_KEY_BYTES];
    if (!k)
        abort();
    for (uint8_t m = 0; m < s->o.members; m++) {
        memset(keys, 0, sizeof keys);
        for (uint8_t j = 0; j < s->o.members; j++) {
            uint64_t z = neb_mix64(s->o.seed ^ (uint64_t)(column(m, j) + 1) << 40);
            memcpy(keys[j], &z, m != j ? sizeof z : 0);
        }
        if (sec_sum_create((uint8_t)s->o.members, m, (const uint8_t(*)[SEC_SUM_KEY_BYTES])keys,
                           &k->keys[m]) != NEB_OK)
            abort();
    }
    k->colluders = s->byzantine ? mset_of(s->byzantine->who) : mset_none();
    while (s->byzantine && mset_count(k->colluders) < (int)s->o.colluders)
        mset_add(&k->colluders, (int)neb_rng_below(&s->rng, s->o.members));
}

void sim_masks_free(struct sim *s) {
    struct sim_masks *k = s->masks;
    if (!k)
        return;
    for (int f = 0; f < SIM_FRAGMENTS; f++)
        for (int n = 0; n < SIM_ROUNDS; n++) {
            for (int m = 0; m < NEB_MEMBERS_MAX && k->rounds[f][n]; m++)
                for (int a = 0; a < SIM_ATTEMPTS; a++)
                    neb_buf_free(&k->rounds[f][n]->updates[m][a].bytes);
            free(k->rounds[f][n]);
        }
    for (int m = 0; m < NEB_MEMBERS_MAX; m++)
        sec_sum_destroy(&k->keys[m]);
    for (int i = 0; i <= NEB_MEMBERS_MAX; i++)
        inter_sums_destroy(&k->views[i].sums);
    free(k);
    s->masks = NULL;
}
