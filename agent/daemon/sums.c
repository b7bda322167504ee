// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/sums.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/daemon/daemon.h"
#include "inter/round/sums.h"
#include "security/locked.h"
#include "security/seal.h"
#include "security/sign.h"

#include <dirent.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

enum { DUE_MAX = 64, KEPT_ROUNDS = 1000 };
static const neb_ns patience = 30 * NEB_S, again = 5 * NEB_S;

struct agent_sums {
    struct agent_sums_config c;
    uint8_t n;
    struct inter_node_crypto crypto;
    struct sec_sum *sum;
    uint8_t (*keys)[SEC_SUM_KEY_BYTES]; // (n), locked memory
    struct inter_sums *rounds;
    char dir[NEB_PATH_MAX]; // folder of collected seeds
    struct {
        neb_ns at;
        uint32_t fragment, round;
    } due[DUE_MAX]; // rounds to deliver from `at` on: complete, or to be tried again
    size_t n_due;
    bool looks_up;
};

// ---- keys ----

static enum neb_status make_keys(struct agent_sums *s) {
    const uint8_t *own = sec_identity_public(s->c.identity)->curve;
    sec_sum_own_key(sec_identity_curve_secret(s->c.identity), s->c.job->id,
                    s->keys[s->c.job->self]);
    for (uint8_t k = 0; k < s->n; k++)
        if (k != s->c.job->self && s->c.job->peers[k] >= s->c.members->n)
            return neb_fail(NEB_ERR_NOT_FOUND,
                            "%s/sum.keys is gone, and so is the member \"%s\", whose key in it "
                            "cannot be made again; submit the job again without that member",
                            s->c.dir, s->c.job->job.clusters[k].name);
        else if (k != s->c.job->self)
            NEB_TRY(sec_sum_pair_key(sec_identity_curve_secret(s->c.identity), own,
                                     s->c.members->m[s->c.job->peers[k]].pub.curve, s->c.job->id,
                                     s->keys[k]));
    return NEB_OK;
}

// Reads the keys from the start of the job, or makes them at its start.
static enum neb_status take_keys(struct agent_sums *s) {
    char path[NEB_PATH_MAX];
    size_t len = 0, all = (size_t)s->n * SEC_SUM_KEY_BYTES;
    NEB_TRY(neb_path(path, sizeof path, s->c.dir, "sum.keys"));
    enum neb_status st = sec_secret_read(path, s->keys, all, &len);
    bool damaged = st == NEB_OK && len != all;
    if (st != NEB_ERR_NOT_FOUND && !damaged)
        return st;
    if (damaged)
        neb_warn("%s is damaged (%zu bytes, not %zu): it is made again", path, len, all);
    NEB_TRY(make_keys(s));
    NEB_TRY(neb_fs_mkdirs(s->c.dir, 0700));
    return sec_secret_write(path, s->keys, all);
}

const uint8_t *agent_sums_keys(const struct agent_sums *s, size_t *len) {
    *len = s ? (size_t)s->n * SEC_SUM_KEY_BYTES : 0;
    return s ? s->keys[0] : NULL;
}

// ---- callbacks of the protocol ----

static bool sign_as(void *user, const char *context, const void *msg, size_t len,
                    uint8_t sig[INTER_SIG_BYTES]) {
    const struct agent_sums *s = user;
    return sec_sign(s->c.identity, context, msg, len, sig) == NEB_OK;
}
// A member that restarts from an old checkpoint asks for seeds of old rounds. Their owners keep
// them with the signatures of that time, so previous keys are valid too.
static bool verify_as(void *user, uint32_t peer, const char *context, const void *msg, size_t len,
                      const uint8_t sig[INTER_SIG_BYTES]) {
    const struct agent_sums *s = user;
    return inter_service_verify_ever(*s->c.service, peer, context, msg, len, sig);
}

static void seeds_path(const struct agent_sums *s, uint32_t fragment, uint32_t round, char *out,
                       size_t cap) {
    if (snprintf(out, cap, "%s/%u.%u", s->dir, fragment, round) >= (int)cap)
        out[0] = 0;
}

static void on_send(void *user, uint8_t member, const void *p, size_t n) {
    const struct agent_sums *s = user;
    (void)!inter_service_send_telemetry(*s->c.service, s->c.job->peers[member], AGENT_MSG_SUMS, p,
                                        n);
}

static enum neb_status on_keep(void *user, const struct inter_record *r) {
    const struct agent_sums *s = user;
    return inter_ledger_put_reveal(inter_service_ledger(*s->c.service), r, (uint8_t)s->c.job->self);
}

// Delivered later, outside of the call that completed the round or failed. If the list is full, the
// worker's own request brings the round.
static void note_due(struct agent_sums *s, uint32_t fragment, uint32_t round, neb_ns at) {
    if (s->n_due == DUE_MAX)
        return;
    s->due[s->n_due].at = at;
    s->due[s->n_due].fragment = fragment;
    s->due[s->n_due++].round = round;
}

static void on_ready(void *user, uint32_t fragment, uint32_t round, const void *p, size_t n) {
    struct agent_sums *s = user;
    char path[NEB_PATH_MAX];
    seeds_path(s, fragment, round, path, sizeof path);
    if (!neb_fs_exists(path) && neb_fs_write(path, p, n, 0600) != NEB_OK)
        neb_warn(
            "the seeds of round %u could not be stored; after a restart they are requested again",
            round);
    note_due(s, fragment, round, 0);
}

static void on_look_up(void *user, uint8_t member, uint32_t fragment, uint32_t round) {
    struct agent_sums *s = user;
    char path[NEB_PATH_MAX];
    struct neb_buf kept = {0};
    seeds_path(s, fragment, round, path, sizeof path);
    s->looks_up = true;
    if (fragment >= (uint32_t)agent_job_fragments(&s->c.job->job))
        neb_debug("a fragment that another member asks for is not of this job");
    else if (neb_fs_exists(path) && neb_fs_read(path, INTER_SUMS_MESSAGE_MAX, &kept) == NEB_OK)
        on_send(s, member, kept.p, kept.len);
    else if (inter_service_deliver(*s->c.service, s->c.job->id, fragment, round) != NEB_OK)
        neb_debug("a round that another member asks for could not be read");
    s->looks_up = false;
    neb_buf_free(&kept);
}

bool agent_sums_looks_up(const struct agent_sums *s) { return s->looks_up; }

// A delivery calls agent_sums_commit, so it must not run inside another call of this file.
static void deliver_due(struct agent_sums *s) {
    for (size_t i = s->n_due; i-- > 0;) { // new entries go to the end
        uint32_t fragment = s->due[i].fragment, round = s->due[i].round;
        if (s->due[i].at > neb_now())
            continue;
        s->due[i] = s->due[--s->n_due];
        enum neb_status st = inter_service_deliver(*s->c.service, s->c.job->id, fragment, round);
        if (st != NEB_OK && st != NEB_ERR_NOT_FOUND)
            neb_warn("the commit of round %u could not be read", round);
    }
}

void agent_sums_rekey(struct agent_sums *s, const struct sec_identity *identity) {
    s->c.identity = identity;
}

// ---- creation and destruction ----

enum neb_status agent_sums_open(const struct agent_sums_config *c, struct agent_sums **out) {
    struct agent_sums *s = calloc(1, sizeof *s);
    enum neb_status st;
    if (!s)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for masked sums");
    s->c = *c;
    s->c.dir = NULL;
    s->n = (uint8_t)c->job->job.n_clusters;
    s->crypto = (struct inter_node_crypto){s, sign_as, verify_as};
    s->keys = sec_locked_alloc((size_t)s->n * SEC_SUM_KEY_BYTES);
    if (!s->keys) {
        st = neb_fail(NEB_ERR_NOMEM, "out of memory for the keys of masked sums");
        goto fail;
    }
    sodium_memzero(s->keys, (size_t)s->n * SEC_SUM_KEY_BYTES);
    s->c.dir = c->dir;
    NEB_TRY_GOTO(take_keys(s), fail);
    s->c.dir = NULL; // it belongs to the caller
    NEB_TRY_GOTO(neb_path(s->dir, sizeof s->dir, c->dir, "sums"), fail);
    NEB_TRY_GOTO(neb_fs_mkdirs(s->dir, 0700), fail);
    NEB_TRY_GOTO(sec_sum_create(s->n, (uint8_t)c->job->self,
                                (const uint8_t(*)[SEC_SUM_KEY_BYTES])s->keys, &s->sum),
                 fail);
    struct inter_sums_config rounds = {.n = s->n,
                                       .self = (uint8_t)c->job->self,
                                       .colluders = (uint8_t)c->job->job.sync.private_colluders,
                                       .crypto = &s->crypto,
                                       .sum = s->sum,
                                       .ops = {s, on_send, on_keep, on_ready, on_look_up}};
    memcpy(rounds.job, c->job->id, sizeof rounds.job);
    memcpy(rounds.peers, c->job->peers, s->n * sizeof *rounds.peers);
    NEB_TRY_GOTO(inter_sums_create(&rounds, &s->rounds), fail);
    *out = s;
    return NEB_OK;
fail:
    agent_sums_close(&s);
    return st;
}

void agent_sums_close(struct agent_sums **sp) {
    struct agent_sums *s = *sp;
    if (!s)
        return;
    inter_sums_destroy(&s->rounds);
    sec_sum_destroy(&s->sum);
    sodium_free(s->keys);
    free(s);
    *sp = NULL;
}

// ---- rounds ----

bool agent_sums_commit(struct agent_sums *s, const struct inter_record *r,
                       const struct neb_map *blobs, json_t **seeds) {
    struct inter_sums_blob views[NEB_MEMBERS_MAX];
    struct sec_sum_seeds all;
    struct neb_buf kept = {0};
    char path[NEB_PATH_MAX], hex[2 * SEC_SUM_SEEDS_MAX + 1];
    for (uint8_t i = 0; i < r->n; i++) {
        if (r->entries[i].verdict == INTER_ACCEPTED && !blobs[i].p)
            return false; // the update is gone
        views[i] = (struct inter_sums_blob){blobs[i].p, blobs[i].len};
    }
    seeds_path(s, r->fragment, r->round, path, sizeof path);
    if (neb_fs_exists(path) && neb_fs_read(path, INTER_SUMS_MESSAGE_MAX, &kept) != NEB_OK)
        neb_buf_clear(&kept);
    enum neb_status st = inter_sums_commit(s->rounds, neb_now(), r, views, kept.p, kept.len);
    if (st == NEB_ERR_NOSPC || st == NEB_ERR_IO || st == NEB_ERR_NOMEM)
        note_due(s, r->fragment, r->round, neb_now() + again);
    if (st != NEB_OK && st != NEB_ERR_DENIED) // a denial has been logged where it was found
        neb_warn("round %u of fragment %u: its masked sum cannot be read", r->round, r->fragment);
    neb_buf_free(&kept);
    if (!inter_sums_seeds(s->rounds, r->fragment, r->round, &all))
        return false;
    struct neb_buf b = {0};
    sec_sum_seeds_put(&b, &all);
    neb_hex(b.p, b.len, hex);
    neb_buf_free(&b);
    *seeds = json_string(hex);
    return true;
}

bool agent_sums_about(const uint8_t *p, size_t n, uint8_t job[AGENT_JOB_ID_BYTES]) {
    if (n < 1 + AGENT_JOB_ID_BYTES)
        return false;
    memcpy(job, p + 1, AGENT_JOB_ID_BYTES);
    return true;
}

void agent_sums_message(struct agent_sums *s, uint32_t peer, const uint8_t *p, size_t n) {
    for (uint8_t k = 0; k < s->n; k++)
        if (k != s->c.job->self && s->c.job->peers[k] == peer)
            inter_sums_message(s->rounds, neb_now(), k, p, n);
    deliver_due(s);
}

bool agent_sums_tick(struct agent_sums *s) {
    inter_sums_tick(s->rounds, neb_now());
    deliver_due(s);
    neb_ns since = inter_sums_waits(s->rounds);
    return since && neb_now() - since > patience;
}

uint64_t agent_sums_refused(const struct agent_sums *s) {
    return s ? inter_sums_faults(s->rounds) : 0;
}

void agent_sums_prune(struct agent_sums *s, uint32_t fragment, uint32_t below_round) {
    inter_sums_forget(s->rounds, fragment, below_round);
    DIR *dir = opendir(s->dir);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char path[NEB_PATH_MAX], *end = NULL, *last = NULL;
        unsigned long f = strtoul(e->d_name, &end, 10), r = 0;
        bool named = end != e->d_name && *end == '.';
        if (named)
            r = strtoul(end + 1, &last, 10);
        if (named && last != end + 1 && !*last && f == fragment && r + KEPT_ROUNDS < below_round &&
            neb_path(path, sizeof path, s->dir, e->d_name) == NEB_OK &&
            neb_fs_remove(path) != NEB_OK)
            neb_warn("%s could not be removed", path);
    }
    if (dir)
        closedir(dir);
}

bool agent_sums_admits(const struct agent_sums *s, const struct inter_manifest *m, const uint8_t *p,
                       size_t n) {
    struct sec_sum_head h;
    const uint8_t *body;
    return sec_sum_open(p, n, &h, &body) == NEB_OK && h.n == s->n && h.member == m->key.member &&
           h.fragment == m->key.fragment && h.round == m->key.round &&
           sec_sum_agrees(s->sum, &h) == NEB_OK;
}
