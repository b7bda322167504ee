// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/ranks.h"
#include "agent/base/log.h"
#include "agent/daemon/state.h"
#include "compress/frame.h"
#include "compress/update.h"

#include <stdlib.h>
#include <string.h>

static const neb_ns overdue = 2 * NEB_S;
enum { TRIES_MAX = 3, RENEWALS_MAX = 10 };

struct gather { // an update of a fragment, part by part
    uint32_t round;
    int64_t again;
    int32_t have;                // number of parts that are here
    struct agent_ipc_msg **part; // (ranks) NULL: it is missing, or there is no update
    neb_ns head_at;              // when rank 0's message came last
    bool asked;                  // rank 0 was asked to have all parts sent again
    int tries;                   // how often rank 0's message came
};

struct agent_ranks {
    int32_t n;
    int64_t session;
    int32_t *owner; // (units) NULL: not known yet
    uint32_t units;
    uint64_t held, most; // bytes of all parts that wait, and their limit
    struct gather gather[INTER_FRAGMENTS_MAX];
    struct agent_rank {
        struct agent_ipc_client client; // len 0: it is not here
        uint64_t sent, taken;           // bytes of updates
    } * rank;                           // (n) of rank 0 only the bytes
    int32_t asks;                       // the rank that now asks for a commit; 0: none does
    int renewals;                       // in a row, because a rank could not be reached
    neb_ns renewed_at;
};

enum neb_status agent_ranks_create(int64_t ranks, int64_t session, struct agent_ranks **out) {
    if (ranks < 2 || ranks > AGENT_RANKS_MAX)
        return neb_fail(NEB_ERR_INVALID, "a trainer of %lld ranks: 2 to %d are possible",
                        (long long)ranks, AGENT_RANKS_MAX);
    struct agent_ranks *r = calloc(1, sizeof *r);
    if (r)
        r->rank = calloc((size_t)ranks, sizeof *r->rank);
    if (!r || !r->rank) {
        free(r);
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a trainer's ranks");
    }
    r->n = (int32_t)ranks;
    r->session = session;
    r->most = UINT32_MAX; // as for one update
    *out = r;
    return NEB_OK;
}

static void drop_part(struct agent_ranks *r, struct gather *g, int32_t rank) {
    struct agent_ipc_msg *m = g->part ? g->part[rank] : NULL;
    if (!m)
        return;
    r->held -= m->parts[0].len;
    g->have--;
    agent_ipc_msg_clear(m);
    free(m);
    g->part[rank] = NULL;
}

static void drop_all(struct agent_ranks *r, struct gather *g) {
    for (int32_t i = 0; g->part && i < r->n; i++)
        drop_part(r, g, i);
    free(g->part);
    *g = (struct gather){0};
}

void agent_ranks_destroy(struct agent_ranks **rp) {
    struct agent_ranks *r = *rp;
    if (!r)
        return;
    for (int f = 0; f < INTER_FRAGMENTS_MAX; f++)
        drop_all(r, &r->gather[f]);
    free(r->owner);
    free(r->rank);
    free(r);
    *rp = NULL;
}

enum neb_status agent_ranks_owners(struct agent_ranks *r, const void *p, size_t len,
                                   uint64_t elements) {
    enum { PER_ELEMENT = 16, PER_RANK = 1 << 20 }; // more than any codec needs
    struct neb_rd rd = neb_rd_make(p, len);
    uint32_t n = (uint32_t)(len / sizeof(uint32_t));
    if (!len || len % sizeof(uint32_t) || n > CMP_UNITS_MAX)
        return neb_fail(NEB_ERR_FORMAT, "the owners of units have %zu bytes", len);
    int32_t *owner = calloc(n, sizeof *owner);
    if (!owner)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the owners of %u units", n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t x = neb_rd_u32(&rd);
        if (x != UINT32_MAX && x >= (uint32_t)r->n) {
            free(owner);
            return neb_fail(NEB_ERR_FORMAT, "unit %u belongs to rank %u of %d", i, x, r->n);
        }
        owner[i] = x == UINT32_MAX ? -1 : (int32_t)x;
    }
    free(r->owner);
    r->owner = owner;
    r->units = n;
    r->most = PER_ELEMENT * elements + (uint64_t)r->n * PER_RANK;
    return NEB_OK;
}

bool agent_ranks_carry(const struct agent_ranks *r) { return r && r->owner; }

bool agent_ranks_admit(struct agent_ranks *r, int64_t rank, int64_t session,
                       const struct agent_ipc_client *from, const char **why) {
    *why = "this job's trainer has one rank, or has not attached yet";
    if (!r)
        return false;
    *why = session != r->session ? "another trainer is attached now" : "no such rank";
    if (session != r->session || rank < 1 || rank >= r->n)
        return false;
    r->rank[rank].client = *from;
    return true;
}

int32_t agent_ranks_of(const struct agent_ranks *r, const struct agent_ipc_client *from) {
    for (int32_t i = 1; r && i < r->n; i++)
        if (agent_ipc_same(&r->rank[i].client, from))
            return i;
    return 0;
}

// ---- parts of an update -------------------------------------------------------------------------

// The fragment's update with this round and count, which replaces an older one. NULL: it is older
// than the present one, or there is no memory.
static struct gather *gather_of(struct agent_ranks *r, int64_t f, int64_t round, int64_t again) {
    struct gather *g = &r->gather[f];
    bool older = g->part && (round < g->round || (round == g->round && again < g->again));
    if (older)
        return NULL;
    if (g->part && (round > g->round || again > g->again))
        drop_all(r, g);
    if (!g->part)
        g->part = calloc((size_t)r->n, sizeof *g->part);
    g->round = (uint32_t)round;
    g->again = again;
    return g->part ? g : NULL;
}

enum neb_status agent_ranks_put(struct agent_ranks *r, int32_t rank, struct agent_ipc_msg *m) {
    int64_t f = agent_ipc_int(m, "fragment", -1), round = agent_ipc_int(m, "round", -1),
            again = agent_ipc_int(m, "again", -1);
    if (f < 0 || f >= INTER_FRAGMENTS_MAX || round < 0 || round > UINT32_MAX || again < 0 ||
        m->n_parts != 1)
        return neb_fail(NEB_ERR_FORMAT, "rank %d sent a malformed part of an update", rank);
    struct gather *g = gather_of(r, f, round, again);
    if (!g)
        return NEB_OK; // a late part of an update that was replaced
    drop_part(r, g, rank);
    if (r->held + m->parts[0].len > r->most) // the owners may have come later, and lowered `most`
        return neb_fail(NEB_ERR_LIMIT, "the parts of the ranks' updates exceed %llu bytes",
                        (unsigned long long)r->most);
    struct agent_ipc_msg *kept = calloc(1, sizeof *kept);
    if (!kept)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a part of an update");
    agent_ipc_msg_take_parts(kept, m);
    kept->head = json_incref(m->head);
    g->part[rank] = kept;
    g->have++;
    r->held += kept->parts[0].len;
    r->rank[rank].sent += kept->parts[0].len;
    if (rank == 0) {
        g->head_at = neb_now();
        g->asked = false;
        g->tries++;
    }
    return NEB_OK;
}

static enum neb_status join(const struct agent_ranks *r, const struct gather *g,
                            struct neb_buf *out) {
    struct cmp_update_piece *all = calloc((size_t)r->n, sizeof *all);
    enum neb_status st = all ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory for an update");
    for (int32_t i = 0; i < r->n && st == NEB_OK; i++) {
        const struct agent_ipc_part *p = &g->part[i]->parts[0];
        all[i] = (struct cmp_update_piece){p->p, p->len};
        st = cmp_update_owned(p->p, p->len, r->owner, r->units, i);
        if (st != NEB_OK)
            st = neb_fail(st, "the part of rank %d, of %zu bytes, is damaged", i, p->len);
    }
    if (st == NEB_OK)
        st = cmp_update_join(all, (size_t)r->n, out);
    free(all);
    return st;
}

enum neb_status agent_ranks_join(struct agent_ranks *r, uint32_t fragment,
                                 struct agent_ipc_msg *head, struct neb_buf *joined) {
    struct gather *g = fragment < INTER_FRAGMENTS_MAX ? &r->gather[fragment] : NULL;
    *head = (struct agent_ipc_msg){0};
    *joined = (struct neb_buf){0};
    if (!g || !g->part || g->have < r->n || !r->owner)
        return NEB_ERR_AGAIN;
    enum neb_status st = join(r, g, joined);
    if (st == NEB_OK)
        head->head = json_incref(g->part[0]->head);
    else
        neb_buf_free(joined);
    drop_all(r, g);
    return st;
}

enum neb_status agent_ranks_cut(const struct agent_ranks *r, int32_t rank,
                                const struct agent_ipc_part *updates, size_t n,
                                struct neb_buf *parts) {
    for (size_t i = 0; i < n; i++) {
        neb_buf_clear(&parts[i]);
        NEB_TRY(cmp_update_cut(updates[i].p, updates[i].len, r->owner, r->units, rank, &parts[i]));
    }
    return NEB_OK;
}

// ---- a job's ranks ------------------------------------------------------------------------------

void daemon_ranks_end(struct agent_jobrun *j) {
    const struct agent_ranks *r = j->ranks;
    uint64_t sent = 0, taken = 0;
    for (int32_t i = 1; r && i < r->n; i++) {
        sent += r->rank[i].sent;
        taken += r->rank[i].taken;
    }
    if (r && (sent || taken))
        neb_info("job %s: rank 0 of the trainer sent %llu bytes of updates and got %llu; the other "
                 "%d ranks sent %llu and got %llu, on their own connections",
                 j->job.name, (unsigned long long)r->rank[0].sent,
                 (unsigned long long)r->rank[0].taken, r->n - 1, (unsigned long long)sent,
                 (unsigned long long)taken);
    agent_ranks_destroy(&j->ranks);
}

void daemon_ranks_begin(struct daemon *d, struct agent_jobrun *j, const struct agent_ipc_msg *m) {
    int64_t ranks = agent_ipc_int(m, "ranks", 1);
    daemon_ranks_end(j);
    if (ranks > 1 && agent_ranks_create(ranks, agent_ipc_int(m, "session", 0), &j->ranks) != NEB_OK)
        daemon_report_fault(d, j, "the ranks of the trainer cannot be served");
}

// Rank 0 hears of it, and all ranks end.
static void give_up(struct daemon *d, struct agent_jobrun *j, const char *text) {
    daemon_report_fault(d, j, text);
    daemon_send(d, &j->worker.client, json_pack("{s:s,s:s}", "ev", "ranks", "text", text));
}

static void give_up_parts(struct daemon *d, struct agent_jobrun *j) {
    char text[1200], why[1024];
    neb_last_error(why, sizeof why);
    snprintf(text, sizeof text, "the ranks of the trainer sent parts that make no update: %s", why);
    give_up(d, j, text);
}

// Submits the update if all of its parts are here.
static void try_join(struct daemon *d, struct agent_jobrun *j, int64_t f) {
    struct agent_ipc_msg head;
    struct neb_buf joined;
    enum neb_status st = agent_ranks_join(j->ranks, (uint32_t)f, &head, &joined);
    if (st == NEB_ERR_AGAIN)
        return;
    if (st == NEB_OK) {
        head.n_parts = 1;
        head.parts[0] = (struct agent_ipc_part){joined.p, joined.len};
        daemon_on_update(d, j, &head);
        head.n_parts = 0; // its bytes are joined's
    } else
        give_up_parts(d, j);
    agent_ipc_msg_clear(&head);
    neb_buf_free(&joined);
}

static void put(struct daemon *d, struct agent_jobrun *j, int32_t rank, struct agent_ipc_msg *m) {
    int64_t f = agent_ipc_int(m, "fragment", -1);
    if (agent_ranks_put(j->ranks, rank, m) == NEB_OK)
        try_join(d, j, f);
    else // this part never comes: no rank may wait for the update
        give_up_parts(d, j);
}

void daemon_ranks_update(struct daemon *d, struct agent_jobrun *j, struct agent_ipc_msg *m) {
    if (agent_ranks_carry(j->ranks))
        put(d, j, 0, m);
    else
        neb_warn("an update in parts was dropped: the ranks of job %s are not known", j->job.name);
}

static bool send_parts(struct daemon *d, struct agent_jobrun *j, int32_t rank, int64_t f,
                       int64_t round, const struct agent_ipc_part *updates, size_t n) {
    struct neb_buf bufs[AGENT_IPC_PARTS_MAX] = {{0}};
    struct agent_ipc_part parts[AGENT_IPC_PARTS_MAX];
    struct agent_rank *to = &j->ranks->rank[rank];
    bool sent = to->client.len && agent_ranks_cut(j->ranks, rank, updates, n, bufs) == NEB_OK;
    for (size_t i = 0; i < n; i++)
        parts[i] = (struct agent_ipc_part){bufs[i].p, bufs[i].len};
    sent = sent && agent_ipc_send(d->ipc, &to->client,
                                  json_pack("{s:s,s:I,s:I}", "ev", "frames", "fragment",
                                            (json_int_t)f, "round", (json_int_t)round),
                                  parts, n) == NEB_OK;
    for (size_t i = 0; i < n; i++) {
        to->taken += sent ? bufs[i].len : 0;
        neb_buf_free(&bufs[i]);
    }
    return sent;
}

// A rank cannot be reached: its connection may be a new one. Rank 0 has all of them say who they
// are, or hears that one is lost.
static void renew(struct daemon *d, struct agent_jobrun *j, int32_t rank) {
    struct agent_ranks *r = j->ranks;
    char text[160];
    neb_ns now = neb_now();
    if (now - r->renewed_at < overdue)
        return;
    r->renewed_at = now;
    if (++r->renewals < RENEWALS_MAX) {
        daemon_send(d, &j->worker.client, json_pack("{s:s}", "ev", "renew"));
        return;
    }
    snprintf(text, sizeof text,
             "rank %d of the trainer has no connection with the agent, which has a commit for it",
             rank);
    give_up(d, j, text);
}

bool daemon_ranks_deliver(struct daemon *d, struct agent_jobrun *j, int64_t fragment, int64_t round,
                          struct agent_ipc_part *updates, size_t n,
                          struct neb_buf own[AGENT_IPC_PARTS_MAX]) {
    struct agent_ranks *r = j->ranks;
    if (!agent_ranks_carry(r) || !n)
        return true;
    for (int32_t i = 1; i < r->n; i++)
        if (!send_parts(d, j, i, fragment, round, updates, n)) {
            renew(d, j, i);
            return false;
        }
    r->renewals = 0;
    if (agent_ranks_cut(r, 0, updates, n, own) != NEB_OK)
        return false;
    for (size_t i = 0; i < n; i++) {
        updates[i] = (struct agent_ipc_part){own[i].p, own[i].len};
        r->rank[0].taken += own[i].len;
    }
    return true;
}

bool daemon_ranks_asked(struct daemon *d, struct agent_jobrun *j, int64_t fragment, int64_t round,
                        const struct agent_ipc_part *updates, size_t n, bool whole) {
    int32_t rank = j->ranks ? j->ranks->asks : 0;
    if (rank && n && whole && agent_ranks_carry(j->ranks) &&
        !send_parts(d, j, rank, fragment, round, updates, n))
        neb_debug("rank %d is gone", rank);
    return rank != 0;
}

static void on_take(struct daemon *d, struct agent_jobrun *j, int32_t rank,
                    const struct agent_ipc_msg *m) {
    int64_t f = agent_ipc_int(m, "fragment", -1), round = agent_ipc_int(m, "round", -1);
    if (!j->federated || f < 0 || f >= agent_job_fragments(&j->job) || round < 0 ||
        round > UINT32_MAX)
        return;
    j->ranks->asks = rank;
    if (inter_service_deliver(d->service, j->id, (uint32_t)f, (uint32_t)round) != NEB_OK)
        neb_warn("the commit of round %lld, which rank %d asked for, could not be read",
                 (long long)round, rank);
    if (j->ranks)
        j->ranks->asks = 0;
}

static void on_rank(struct daemon *d, const struct agent_ipc_client *from,
                    const struct agent_ipc_msg *m) {
    struct agent_jobrun *j = daemon_job(d, agent_ipc_str(m, "job", NULL));
    int64_t rank = agent_ipc_int(m, "rank", 0);
    const char *why = "no such job";
    char text[512];
    bool known = j && !agent_job_ended(j->state) && m->n_parts == 1 &&
                 agent_credential_is(j->worker.credential, m->parts[0].p, m->parts[0].len);
    if (!known) {
        daemon_count_stranger(d, "a local process without the credentials of a job's worker tried "
                                 "to attach as a rank of it");
        why = "not the credentials of this job's trainer";
    } else if (!agent_ipc_speaks_ours(m, "trainer's libnebula", text, sizeof text)) {
        why = text;
        known = false;
    } else
        known = agent_ranks_admit(j->ranks, rank, agent_ipc_int(m, "session", 0), from, &why);
    if (known && from->remote) {
        agent_ipc_remote_welcome(d->ipc, from);
        neb_info("job %s: rank %lld runs on another host, %s", j->job.name, (long long)rank,
                 from->address);
    }
    daemon_answer(d, from, known, known ? "" : why);
}

bool daemon_ranks_message(struct daemon *d, const struct agent_ipc_client *from, const char *op,
                          struct agent_ipc_msg *m) {
    if (!strcmp(op, "rank")) {
        on_rank(d, from, m);
        return true;
    }
    EACH_JOB (d, j) {
        int32_t rank = agent_ranks_of(j->ranks, from);
        if (!rank)
            continue;
        if (!strcmp(op, "part"))
            put(d, j, rank, m);
        else if (!strcmp(op, "take"))
            on_take(d, j, rank, m);
        else { // it may come from another host, so it gives no commands
            daemon_count_stranger(d, "a rank of a trainer made a request that a rank may not make");
            daemon_answer(d, from, false, "not allowed on this connection");
        }
        return true;
    }
    return false;
}

// Asks rank 0 for what is overdue. After some times without success its trainer hears of it, and
// ends.
void daemon_ranks_look(struct daemon *d, struct agent_jobrun *j) {
    char text[200];
    for (int32_t f = 0; j->ranks && f < INTER_FRAGMENTS_MAX; f++) {
        struct gather *g = &j->ranks->gather[f];
        if (!g->part || !g->part[0] || g->asked || neb_now() - g->head_at < overdue)
            continue;
        g->asked = true;
        if (g->tries < TRIES_MAX) {
            daemon_send(d, &j->worker.client,
                        json_pack("{s:s,s:i,s:I}", "ev", "resubmit", "fragment", f, "round",
                                  (json_int_t)g->round));
            continue;
        }
        int32_t missing = 1;
        while (missing < j->ranks->n - 1 && g->part[missing])
            missing++;
        snprintf(text, sizeof text,
                 "rank %d's part of the update of round %u does not reach the agent: its "
                 "connection is lost",
                 missing, g->round);
        give_up(d, j, text);
    }
}
