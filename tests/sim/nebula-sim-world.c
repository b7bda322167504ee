// SPDX-License-Identifier: Apache-2.0
// Virtual time, links and faults.
//
// A link is a session between two hosts, like TCP and the layer above it: in order and without loss
// until it breaks. Messages in flight are then lost, and each side notices within 5 s, at its own
// time. A direction that is cut delivers nothing; if it heals before the break is noticed, its
// messages arrive late. In most seeds a session also loses, duplicates and reorders messages. TCP
// does not, but the round core must work even so.
#include "tests/sim/sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const neb_ns notice_at_most = 5 * NEB_S, tick_every = 200 * NEB_MS, chaos_until = 60 * NEB_S;

// ---- trace and failure ----

void sim_note(struct sim *s, const char *what, int64_t a, int64_t b, int64_t c, int64_t d,
              int64_t e) {
    struct sim_trace *t = &s->trace[s->n_trace++ % SIM_TRACE];
    *t = (struct sim_trace){s->now, what, {a, b, c, d, e}};
    if (s->o.trace)
        printf("%9.3f  %-20s %4lld %4lld %4lld %4lld %4lld\n", neb_seconds(t->at), what,
               (long long)a, (long long)b, (long long)c, (long long)d, (long long)e);
}

void sim_fail(struct sim *s, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s->r.why, sizeof s->r.why, fmt, ap);
    va_end(ap);
    s->r.failed = true;
    longjmp(s->on_fail, 1);
}

static void print_trace(const struct sim *s) {
    uint64_t from = s->n_trace > 60 ? s->n_trace - 60 : 0;
    for (uint64_t k = from; k < s->n_trace; k++) {
        const struct sim_trace *t = &s->trace[k % SIM_TRACE];
        fprintf(stderr, "  %9.3f  %-20s %4lld %4lld %4lld %4lld %4lld\n", neb_seconds(t->at),
                t->what, (long long)t->v[0], (long long)t->v[1], (long long)t->v[2],
                (long long)t->v[3], (long long)t->v[4]);
    }
}

// ---- the queue: a binary heap by time, then by order of posting ----

static bool sooner(const struct sim_event *a, const struct sim_event *b) {
    return a->at != b->at ? a->at < b->at : a->seq < b->seq;
}

static void push(struct sim *s, struct sim_event e) {
    if (s->n_heap == s->cap_heap) {
        s->cap_heap = s->cap_heap ? 2 * s->cap_heap : 256;
        if (!(s->heap = realloc(s->heap, s->cap_heap * sizeof *s->heap)))
            abort();
    }
    e.seq = s->seq++;
    size_t k = s->n_heap++;
    for (; k && sooner(&e, &s->heap[(k - 1) / 2]); k = (k - 1) / 2)
        s->heap[k] = s->heap[(k - 1) / 2];
    s->heap[k] = e;
}

static struct sim_event pop(struct sim *s) {
    struct sim_event top = s->heap[0], e = s->heap[--s->n_heap];
    size_t k = 0;
    for (size_t c; (c = 2 * k + 1) < s->n_heap; k = c) {
        if (c + 1 < s->n_heap && sooner(&s->heap[c + 1], &s->heap[c]))
            c++;
        if (!sooner(&s->heap[c], &e))
            break;
        s->heap[k] = s->heap[c];
    }
    s->heap[k] = e;
    return top;
}

void sim_post(struct sim *s, neb_ns after, enum sim_event_kind kind, uint8_t a, uint8_t b,
              uint32_t tag) {
    push(s, (struct sim_event){.at = s->now + after, .kind = kind, .a = a, .b = b, .tag = tag});
}

neb_ns sim_clock(const struct sim *s, const struct sim_host *h) {
    return s->now + s->now / 1000000 * h->clock_ppm + h->clock_offset;
}

static bool chance(struct sim *s, double p) { return p > 0 && neb_rng_unit(&s->rng) < p; }

static neb_ns between(struct sim *s, neb_ns low, neb_ns high) {
    return low + (neb_ns)neb_rng_below(&s->rng, (uint64_t)(high - low) + 1);
}

bool sim_point_hits(const struct sim *s, enum sim_fault_kind k, uint64_t index) {
    for (int i = 0; i < SIM_POINTS; i++)
        if (s->o.points[i].kind == k && s->o.points[i].index == index)
            return true;
    return false;
}

// ---- links ----

static struct sim_link *link_of(struct sim *s, uint8_t i, uint8_t j) {
    return i < j ? &s->links[i][j] : &s->links[j][i];
}

static bool is_open(struct sim *s, uint8_t from, uint8_t to) {
    return link_of(s, from, to)->open[from > to];
}

// Ends the session; each side notices within `patience`.
static void end_session(struct sim *s, uint8_t i, uint8_t j, neb_ns patience) {
    struct sim_link *l = link_of(s, i, j);
    if (!l->session)
        return;
    l->session = false;
    sim_post(s, patience ? between(s, 0, patience) : 0, SIM_NOTICE, i, j, l->number);
    sim_post(s, patience ? between(s, 0, patience) : 0, SIM_NOTICE, j, i, l->number);
}

static void try_connect(struct sim *s, uint8_t i, uint8_t j) {
    sim_post(s, between(s, 200 * NEB_MS, NEB_S), SIM_CONNECT, i, j, 0);
}

void sim_cut(struct sim *s, uint8_t i, uint8_t j, bool ij, bool ji) {
    struct sim_link *l = link_of(s, i, j);
    bool was = l->open[0] && l->open[1];
    l->open[i > j] = ij;
    l->open[j > i] = ji;
    if (ij && ji && !was && !l->session)
        try_connect(s, i, j);
    else if (was && !(ij && ji)) // noticed after 4 s without a sign of life, if still cut
        sim_post(s, 4 * NEB_S, SIM_NOTICE, i, j, l->number | 1u << 31);
}

static void tell_link(struct sim *s, uint8_t i, uint8_t j, bool up) {
    struct inter_event e = {.kind = up ? INTER_EV_PEER_UP : INTER_EV_PEER_DOWN, .peer = j};
    sim_host_step(s, i, &e);
    if (sim_lies(s, i)) {
        s->h[s->byzantine->twin].up[j] = up;
        sim_host_step(s, s->byzantine->twin, &e);
    }
}

static void on_connect(struct sim *s, uint8_t i, uint8_t j) {
    struct sim_link *l = link_of(s, i, j);
    struct sim_host *a = &s->h[i], *b = &s->h[j];
    if (l->session || !a->alive || !b->alive || !is_open(s, i, j) || !is_open(s, j, i))
        return;                 // opening the link or booting retries
    if (a->up[j] || b->up[i]) { // one side has not noticed the end of the last session
        try_connect(s, i, j);
        return;
    }
    l->session = true;
    l->number = (l->number + 1) & 0x7fffffff;
    memset(l->last, 0, sizeof l->last);
    a->up[j] = b->up[i] = true;
    sim_note(s, "connected", i, j, l->number, 0, 0);
    tell_link(s, i, j, true);
    tell_link(s, j, i, true);
}

static void on_notice(struct sim *s, uint8_t i, uint8_t j, uint32_t tag) {
    struct sim_link *l = link_of(s, i, j);
    if (tag >> 31) { // a silence: act only if the same session is still cut
        if (l->session && l->number == (tag & 0x7fffffff) &&
            !(is_open(s, i, j) && is_open(s, j, i)))
            end_session(s, i, j, NEB_S);
        return;
    }
    if (l->number != tag || !s->h[i].up[j])
        return;
    s->h[i].up[j] = false;
    sim_note(s, "disconnected", i, j, tag, 0, 0);
    tell_link(s, i, j, false);
    if (i < j || !s->h[j].up[i])
        try_connect(s, i, j);
}

static void deliver_later(struct sim *s, const struct sim_message *m, neb_ns after, bool in_order) {
    struct sim_link *l = link_of(s, m->from, m->to);
    neb_ns at = s->now + after, *last = &l->last[m->from > m->to][m->bulk];
    struct sim_message *copy = malloc(sizeof *m + m->len);
    if (!copy)
        abort();
    memcpy(copy, m, sizeof *m + m->len);
    if (in_order && at <= *last)
        at = *last + 1;
    *last = at > *last ? at : *last;
    push(s, (struct sim_event){.at = at, .kind = SIM_MESSAGE, .a = m->to, .m = copy});
}

void sim_transmit(struct sim *s, uint8_t from, uint8_t to, bool bulk, const uint8_t *p, size_t n,
                  const uint8_t *q, size_t m) {
    union {
        struct sim_message head;
        uint8_t room[sizeof(struct sim_message) + SIM_BLOB + (1 << 16)];
    } u;
    struct sim_message *x = &u.head;
    uint8_t brain = from;
    if (sim_lies(s, from))
        from = s->byzantine->who;
    struct sim_link *l = link_of(s, from, to);
    if (!l->session || !s->h[from].up[to] || n + m > SIM_BLOB + (1 << 16))
        return;
    *x = (struct sim_message){.from = from,
                              .to = to,
                              .bulk = bulk,
                              .session = l->number,
                              .boot = s->h[to].boot,
                              .len = n + m};
    memcpy(x->bytes, p, n);
    if (m)
        memcpy(x->bytes + n, q, m);
    if (sim_lies(s, from) && !sim_byzantine_says(s, brain, to, x->bytes, &x->len))
        return;
    if (sim_byzantine_silences(s, from, to))
        return;
    uint64_t index = s->r.messages++;
    if (sim_point_hits(s, SIM_CUT_AT_MESSAGE, index)) {
        end_session(s, from, to, 2 * NEB_S);
        return;
    }
    if (sim_point_hits(s, SIM_CRASH_AT_MESSAGE, index)) {
        sim_crash(s, to, 2 * NEB_S);
        return;
    }
    bool lost = sim_point_hits(s, SIM_DROP_MESSAGE, index) || chance(s, s->loss);
    neb_ns after = s->o.chaos ? between(s, 20 * NEB_MS, 120 * NEB_MS) : 40 * NEB_MS;
    after += l->slow;
    after += bulk ? 10 * NEB_MS : 0;
    if (s->o.trace)
        sim_note(s, lost ? "lost" : "message", from, to, x->bytes[0], (int64_t)x->len,
                 (int64_t)index);
    if (lost)
        return;
    // no cipher would let this pass; the check of the chunk must refuse it
    if (bulk && chance(s, s->loss))
        x->bytes[x->len - 1] ^= 1;
    bool late = sim_point_hits(s, SIM_DELAY_MESSAGE, index);
    deliver_later(s, x, late ? 7 * NEB_S : after, !late && !chance(s, s->swap));
    if (sim_point_hits(s, SIM_DOUBLE_MESSAGE, index) || chance(s, s->twice))
        deliver_later(s, x, 2 * after, false);
}

static void isolate(struct sim *s, uint8_t i) {
    sim_note(s, "isolated", i, 0, 0, 0, 0);
    for (uint8_t j = 0; j < s->o.members; j++)
        if (j != i)
            sim_cut(s, i, j, false, false);
}

// Injects a fault right after a message of a certain type has arrived.
static void spring(struct sim *s, const struct sim_message *m) {
    if (!s->ambush.type || m->bytes[0] != s->ambush.type || s->ambush.skip--)
        return;
    s->ambush.type = 0;
    sim_note(s, "ambush", m->bytes[0], m->from, m->to, s->ambush.what, 0);
    switch (s->ambush.what) {
    case SIM_CRASH_SENDER: sim_crash(s, m->from, between(s, 0, 12 * NEB_S)); break;
    case SIM_CRASH_RECEIVER: sim_crash(s, m->to, between(s, 0, 12 * NEB_S)); break;
    case SIM_ISOLATE_SENDER: isolate(s, m->from); break;
    case SIM_ISOLATE_RECEIVER: isolate(s, m->to); break;
    }
}

static void on_message(struct sim *s, struct sim_message *m) {
    struct sim_link *l = link_of(s, m->from, m->to);
    if (!s->h[m->to].alive)
        return;
    // received in the old session, but handled much later
    if (!l->session || l->number != m->session) {
        if (s->h[m->to].boot != m->boot || !(m->stale || chance(s, s->stale)))
            return;
        if (!m->stale) {
            m->stale = true;
            deliver_later(s, m, between(s, 0, 15 * NEB_S), false);
            return;
        }
    } else if (!is_open(s, m->from, m->to)) { // the transport retries
        deliver_later(s, m, 200 * NEB_MS, true);
        return;
    }
    if (sim_lies(s, m->to))
        sim_byzantine_hears(s, m);
    else if (m->bytes[0] == SIM_SUMS)
        sim_masks_message(s, m->to, m->from, m->bytes + 1, m->len - 1);
    else
        sim_host_step(s, m->to,
                      &(struct inter_event){.kind = INTER_EV_MESSAGE,
                                            .peer = m->from,
                                            .bulk = m->bulk,
                                            .data = m->bytes,
                                            .len = m->len});
    spring(s, m);
}

// ---- faults ----

void sim_crash(struct sim *s, uint8_t i, neb_ns down_for) {
    if (!s->h[i].alive)
        return;
    sim_note(s, "crash", i, down_for / NEB_S, 0, 0, 0);
    sim_host_stop(s, i);
    if (sim_lies(s, i))
        sim_host_stop(s, s->byzantine->twin);
    for (uint8_t j = 0; j < s->o.members; j++)
        if (j != i) {
            end_session(s, i, j, notice_at_most);
            s->h[i].up[j] = false;
        }
    sim_post(s, down_for, SIM_BOOT, i, 0, 0);
}

static void boot(struct sim *s, uint8_t i) {
    if (s->h[i].alive)
        return;
    if (sim_lies(s, i) && s->byzantine->gone)
        return;
    s->h[i].busy_until = 0;
    // not earlier, because a crash may happen inside the node's own step
    inter_node_destroy(&s->h[i].node);
    sim_host_boot(s, i);
    if (sim_lies(s, i)) { // both brains share one ledger epoch
        struct sim_host *twin = &s->h[s->byzantine->twin];
        twin->disk.epoch = s->h[i].disk.epoch;
        inter_node_destroy(&twin->node);
        sim_host_boot(s, s->byzantine->twin);
    }
    for (uint8_t j = 0; j < s->o.members; j++)
        if (j != i)
            try_connect(s, i, j);
}

// Cuts a random part of the hosts from the rest, sometimes in one direction only.
static void partition(struct sim *s) {
    struct member_set side = mset_from_bits(neb_rng_below(&s->rng, 1u << s->o.members));
    uint64_t way = neb_rng_below(&s->rng, 3);
    sim_note(s, "partition", (int64_t)mset_bits(side), (int64_t)way, 0, 0, 0);
    for (uint8_t i = 0; i < s->o.members; i++)
        for (uint8_t j = 0; j < s->o.members; j++)
            if (i != j && mset_has(side, i) && !mset_has(side, j))
                sim_cut(s, i, j, way == 1, way == 2);
}

static void heal(struct sim *s) {
    sim_note(s, "heal", 0, 0, 0, 0, 0);
    for (uint8_t i = 0; i < s->o.members; i++)
        for (uint8_t j = (uint8_t)(i + 1); j < s->o.members; j++) {
            if (sim_byzantine_divides(s, i, j))
                continue;
            sim_cut(s, i, j, true, true);
            s->links[i][j].slow = 0;
        }
}

// True if disk i has the only complete copy of an update that the record lists.
static bool last_copy(const struct sim *s, const struct inter_record *r, uint8_t i) {
    for (uint8_t k = 0; k < r->n; k++) {
        int others = 0;
        for (uint8_t j = 0; j < s->o.members; j++) {
            const struct sim_blob *b = sim_disk_blob(s->h[j].disk.rounds[r->fragment][r->round],
                                                     r->entries[k].member, r->entries[k].attempt);
            others += j != i && b && b->whole;
        }
        // a checkpoint that includes the update counts as a copy
        for (uint8_t j = 0; j < s->o.members; j++)
            others += j != i && !s->h[j].witness && s->h[j].disk.has_checkpoint &&
                      s->h[j].disk.checkpoint.frags[r->fragment].round > r->round;
        if (!others && r->entries[k].verdict == INTER_ACCEPTED)
            return true;
    }
    return false;
}

// True if all members vote and no update is on disk i alone. The federation must survive the loss
// of one disk, but not of a second one before the first has recovered.
static bool may_lose_disk(const struct sim *s, uint8_t i) {
    if (s->byzantine &&
        // otherwise the Byzantine member may be the only one that knows what was on the disk
        !s->o.masked)
        return false;
    // the new disk would not know that the worker has ended, and would get a new worker
    if (s->h[i].idle)
        return false;
    for (uint8_t j = 0; j < s->o.members; j++)
        for (uint32_t f = 0; f < s->o.fragments; f++)
            for (uint32_t n = 0; n <= s->oracle->top[f] && n < SIM_ROUNDS; n++) {
                const struct sim_round *r = s->h[j].disk.rounds[f][n];
                if (r && ((r->voted && last_copy(s, &r->vote, i)) ||
                          (r->committed && last_copy(s, &r->commit, i))))
                    return false;
                for (uint8_t m = 0; r && s->o.rot && m < s->o.members; m++)
                    for (int k = 0; k < SIM_ATTEMPTS; k++)
                        if (r->blobs[m][k].rotten && !r->blobs[m][k].whole)
                            return false; // others may count it as a copy
            }
    for (uint8_t j = 0; j < s->o.members; j++)
        if (!s->h[j].disk.has_standing || !s->h[j].disk.standing.joined ||
            !mset_empty(s->h[j].disk.standing.renewed) || s->h[j].needs_state)
            return false;
    return !s->h[i].needs_state;
}

static uint8_t leader_or(const struct sim *s, uint8_t otherwise) {
    struct inter_job_status st;
    const uint8_t id[INTER_ID_BYTES] = {1};
    for (uint8_t i = 0; i < s->o.members; i++)
        if (s->h[i].alive && !sim_lies(s, i) &&
            inter_node_job_status(s->h[i].node, id, sim_clock(s, &s->h[i]), &st) && st.leads)
            return i;
    return otherwise;
}

static void one_fault(struct sim *s) {
    uint8_t n = (uint8_t)s->o.members, i = (uint8_t)neb_rng_below(&s->rng, n);
    if (s->hunts && neb_rng_below(&s->rng, 2))
        i = leader_or(s, i);
    uint8_t j = (uint8_t)((i + 1 + neb_rng_below(&s->rng, n - 1u)) % n);
    switch (neb_rng_below(&s->rng, s->byzantine ? 20 : 18)) {
    case 14:
    case 15:
    case 16: // message types of the round core; votes, commits and promises are preferred
        s->ambush.type = (uint8_t)(neb_rng_below(&s->rng, 2)
                                       ? 1 + neb_rng_below(&s->rng, 13)
                                       : (uint8_t[]){4, 5, 6, 10, 11}[neb_rng_below(&s->rng, 5)]);
        s->ambush.skip = (uint32_t)neb_rng_below(&s->rng, 4);
        s->ambush.what = (int)neb_rng_below(&s->rng, 4);
        break;
    case 17: isolate(s, i); break;
    case 0: sim_crash(s, i, between(s, 0, 15 * NEB_S)); break;
    case 1:
    case 2: s->h[i].crash_in = 1 + neb_rng_below(&s->rng, 12); break;
    case 3: sim_cut(s, i, j, false, false); break;
    case 4: sim_cut(s, i, j, neb_rng_below(&s->rng, 2), true); break;
    case 5: partition(s); break;
    case 6:
    case 7:
    case 8: heal(s); break;
    case 9: link_of(s, i, j)->slow = between(s, 0, 3 * NEB_S); break;
    case 10: // kills only the worker
        if (s->h[i].worker_alive) {
            sim_note(s, "worker killed", i, 0, 0, 0, 0);
            s->h[i].worker_alive = false;
            s->h[i].worker_boot++;
            sim_post(s, between(s, 0, 5 * NEB_S), SIM_BOOT_WORKER, i, 0, s->h[i].boot);
        }
        break;
    case 18:
    case 19: sim_byzantine_shuffle(s); break;
    case 11: s->h[i].step_time = between(s, 20 * NEB_MS, 600 * NEB_MS); break;
    case 12:
        sim_note(s, "leave", i, 0, 0, 0, 0);
        sim_host_step(s, i, &(struct inter_event){.kind = INTER_EV_LEAVE, .key = {.job = {1}}});
        sim_crash(s, i, between(s, NEB_S, 10 * NEB_S));
        break;
    default:
        if (may_lose_disk(s, i) && neb_rng_below(&s->rng, 3) == 0) {
            sim_crash(s, i, between(s, 0, 10 * NEB_S));
            sim_disk_lose(s, i);
        }
    }
}

// A host is busy or stopped: it handles later events afterwards, in order. Its links stay up.
static void stall(struct sim *s) {
    uint8_t i = (uint8_t)neb_rng_below(&s->rng, s->o.members);
    if (s->hunts && neb_rng_below(&s->rng, 2))
        i = leader_or(s, i);
    neb_ns lasts = between(s, 200 * NEB_MS, 15 * NEB_S);
    if (!s->h[i].alive || s->h[i].busy_until > s->now)
        return;
    sim_note(s, "stalls", i, lasts / NEB_MS, 0, 0, 0);
    s->h[i].busy_until = s->now + lasts;
}

static bool waits(struct sim *s, const struct sim_event *e) {
    neb_ns until = 0;
    switch (e->kind) {
    case SIM_CONNECT: until = s->h[e->b].busy_until; // fall through
    case SIM_TICK:
    case SIM_WORK:
    case SIM_MESSAGE:
    case SIM_NOTICE:
    case SIM_BOOT_WORKER:
    case SIM_SNAPSHOT: until = until > s->h[e->a].busy_until ? until : s->h[e->a].busy_until; break;
    case SIM_BOOT:
    case SIM_ROT:
    case SIM_CHAOS: break;
    }
    if (until <= s->now)
        return false;
    struct sim_event later = *e;
    later.at = until;
    push(s, later);
    return true;
}

static void on_chaos(struct sim *s) {
    if (s->now < chaos_until && !s->split.on) {
        if (s->stalls && chance(s, 0.3))
            stall(s);
        if (s->byzantine && s->byzantine->siege && s->now >= s->byzantine->siege)
            sim_byzantine_shuffle(s);
        else
            one_fault(s);
        sim_post(s, between(s, 100 * NEB_MS, 5 * NEB_S), SIM_CHAOS, 0, 0, 0);
        return;
    }
    s->ambush.type = 0;
    if (s->byzantine && !s->split.on)
        sim_byzantine_revoked(s);
    else if (s->byzantine)
        s->byzantine->divided = 0; // the two sides hear each other again
    s->calm = true;                // from here on every worker must finish
    heal(s);
    s->loss = s->twice = s->swap = s->stale = 0;
    for (uint8_t i = 0; i < s->o.members; i++) {
        s->h[i].crash_in = 0;
        s->h[i].step_time = 50 * NEB_MS;
    }
}

// ---- a run ----

static void handle(struct sim *s, const struct sim_event *e) {
    struct sim_host *h = &s->h[e->a];
    switch (e->kind) {
    case SIM_TICK:
        if (!h->alive || h->boot != e->tag)
            return;
        sim_host_step(s, e->a, &(struct inter_event){.kind = INTER_EV_TICK, .peer = e->a});
        sim_masks_tick(s, e->a);
        sim_post(s, tick_every, SIM_TICK, e->a, 0, e->tag);
        return;
    case SIM_WORK:
        if (h->alive && h->worker_alive && h->worker_boot == e->tag)
            sim_work(s, e->a);
        return;
    case SIM_MESSAGE: on_message(s, e->m); return;
    case SIM_CONNECT: on_connect(s, e->a, e->b); return;
    case SIM_NOTICE: on_notice(s, e->a, e->b, e->tag); return;
    case SIM_BOOT: boot(s, e->a); return;
    case SIM_BOOT_WORKER:
        if (h->alive && h->boot == e->tag && !h->worker_alive)
            sim_worker_boot(s, e->a);
        return;
    case SIM_SNAPSHOT:
        if (h->alive && h->boot == e->tag)
            sim_snapshot(s, e->a);
        return;
    case SIM_CHAOS: on_chaos(s); return;
    case SIM_ROT:
        if (!s->calm) {
            sim_disk_rots(s);
            sim_post(s, between(s, 50 * NEB_MS, 2 * NEB_S), SIM_ROT, 0, 0, 0);
        }
        return;
    }
}

static bool all_finished(const struct sim *s) {
    for (uint8_t i = 0; i < s->o.members; i++)
        if (!s->h[i].witness && !s->h[i].idle && !sim_lies(s, i) &&
            (!s->h[i].finished || !s->h[i].alive))
            return false;
    return true;
}

static void set_up(struct sim *s) {
    s->rng = neb_rng_make(s->o.seed, 0x51);
    s->now = NEB_S;
    s->interval = 10;
    s->overlap = s->o.chaos ? (int64_t)neb_rng_below(&s->rng, 5) : 2;
    if (s->o.chaos && !s->o.orderly && neb_rng_below(&s->rng, 3)) {
        s->loss = neb_rng_unit(&s->rng) * 0.03;
        s->twice = neb_rng_unit(&s->rng) * 0.03;
        s->swap = neb_rng_unit(&s->rng) * 0.1;
        s->stale = neb_rng_unit(&s->rng) * 0.3;
    }
    for (uint8_t i = 0; i < s->o.members; i++) {
        struct sim_host *h = &s->h[i];
        h->id = i;
        h->witness = i >= s->o.members - s->o.witnesses;
        h->step_time = s->o.chaos ? between(s, 50 * NEB_MS, 300 * NEB_MS) : 50 * NEB_MS;
        h->clock_offset = s->o.chaos ? between(s, 0, 100 * NEB_S) : 0;
        h->clock_ppm = s->o.chaos ? (int32_t)between(s, -50000, 50000) : 0;
        if (s->o.pace)
            h->step_time = between(s, NEB_MS, 20 * NEB_MS);
        for (uint8_t j = (uint8_t)(i + 1); j < s->o.members; j++) {
            s->links[i][j].open[0] = s->links[i][j].open[1] = true;
            if (s->o.pace && chance(s, 0.4))
                s->links[i][j].slow = between(s, 200 * NEB_MS, 500 * NEB_MS);
        }
    }
    if (s->o.byzantine)
        sim_byzantine_set_up(s);
    if (s->o.masked)
        sim_masks_set_up(s);
    s->hunts = s->o.chaos && neb_rng_below(&s->rng, 3) == 0;
    s->stalls = s->o.chaos && !s->byzantine && neb_mix64(s->o.seed + 99) % 4 == 0;
    for (uint8_t i = 0; i < s->o.members; i++)
        boot(s, i);
    if (s->o.chaos)
        sim_post(s, NEB_S, SIM_CHAOS, 0, 0, 0);
    if (s->o.rot)
        sim_post(s, NEB_S, SIM_ROT, 0, 0, 0);
}

void sim_run(const struct sim_options *o, struct sim_result *out) {
    struct sim *s = calloc(1, sizeof *s);
    const neb_ns limit = (o->chaos ? chaos_until : 0) + 240 * NEB_S;
    if (!s)
        abort();
    s->oracle = sim_oracle();
    s->o = *o;
    if (!setjmp(s->on_fail)) {
        set_up(s);
        while (s->n_heap && s->now < limit && !all_finished(s) && !sim_check_split(s) &&
               !(s->byzantine && sim_byzantine_needed(s))) {
            struct sim_event e = pop(s);
            s->now = e.at;
            if (waits(s, &e))
                continue;
            handle(s, &e);
            free(e.m);
        }
        sim_check_end(s);
    } else {
        fprintf(
            stderr,
            "\nviolation: %s\n%s%sseed %llu, %u members (%u witnesses), %u rounds, %u fragments",
            s->r.why, s->o.masked ? "masked, " : "", s->byzantine ? "with a byzantine: " : "",
            (unsigned long long)o->seed, o->members, o->witnesses, o->rounds, o->fragments);
        for (int i = 0; i < SIM_POINTS; i++)
            if (o->points[i].kind)
                fprintf(stderr, ", fault %d at %llu", (int)o->points[i].kind,
                        (unsigned long long)o->points[i].index);
        fprintf(stderr, "; last events (virtual s, what, host, ...):\n");
        print_trace(s);
        sim_dump(s);
    }
    s->r.seconds = neb_seconds(s->now);
    *out = s->r;
    while (s->n_heap)
        free(s->heap[--s->n_heap].m);
    free(s->heap);
    for (uint8_t i = 0; i < o->members + (s->byzantine != NULL); i++)
        sim_host_free(&s->h[i]);
    sim_masks_free(s);
    free(s->byzantine);
    free(s);
}
