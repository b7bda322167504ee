// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/snapshot.h"
#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "agent/exchange/exchange.h"
#include "intra/ckpt/checkpoint_array.h"
#include "kernels/exact.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct pin { // the checkpoint, and its two arrays that are given
    struct intra_ckpt *ckpt;
    struct intra_ckpt_array *body[2];
    bool falsified; // for tests: its first parameter is replaced by false_value
};

static const float false_value = 0.25f;

static enum neb_status read_body(void *user, int i, uint64_t at, void *dst, size_t n) {
    const struct pin *p = user;
    NEB_TRY(intra_ckpt_array_bytes(p->body[i], at, dst, n));
    if (p->falsified && i == 0 && at == 0 && n >= sizeof false_value)
        memcpy(dst, &false_value, sizeof false_value);
    return NEB_OK;
}

// For tests: what a Byzantine member gives. One parameter is false, in the digest too, while the
// member trains on with the true one. One fragment only. snapshot.damage: the digest stays.
static enum neb_status falsify_for_test(struct pin *p, struct inter_snapshot *s) {
    float first[2];
    p->falsified = neb_fault("snapshot.damage");
    if (!neb_fault("snapshot.lie"))
        return NEB_OK;
    for (int i = 0; i < 2; i++)
        NEB_TRY(intra_ckpt_array_bytes(p->body[i], 0, &first[i], sizeof first[i]));
    struct kern_digest was = kern_digest_part(&first[0], &first[1], 0, 1),
                       is = kern_digest_part(&false_value, &first[1], 0, 1);
    s->parts[0].digest[0] += is.lo - was.lo;
    s->parts[0].digest[1] += is.hi - was.hi;
    p->falsified = true;
    return NEB_OK;
}

static enum neb_status fill_snapshot(struct inter_ledger *l, struct pin *p,
                                     struct inter_snapshot *s, struct inter_snapshot_source *out) {
    const struct intra_ckpt *c = p->ckpt;
    const struct intra_ckpt_section *rounds = intra_ckpt_find(c, "sync.rounds");
    if (!rounds || rounds->dtype != INTRA_U64 || rounds->cols != EXCHANGE_ROUND_WORDS ||
        rounds->rows < 1 || rounds->rows > INTER_FRAGMENTS_MAX)
        return neb_fail(NEB_ERR_FORMAT, "%s does not contain the state of a federated job",
                        intra_ckpt_path(c));
    NEB_TRY(intra_ckpt_array_open(c, "outer.theta", 0, &p->body[0]));
    s->elements = intra_ckpt_array_len(p->body[0]);
    NEB_TRY(intra_ckpt_array_open(c, "outer.v", s->elements, &p->body[1]));
    s->fragments = (uint32_t)rounds->rows;
    for (uint32_t f = 0; f < s->fragments; f++) {
        uint64_t w[EXCHANGE_ROUND_WORDS];
        NEB_TRY(intra_ckpt_range(c, rounds, f * sizeof w, w, sizeof w));
        s->parts[f].round = (uint32_t)w[0];
        s->parts[f].version = (uint32_t)w[1];
        s->parts[f].digest[0] = w[2];
        s->parts[f].digest[1] = w[3];
        if (w[0])
            NEB_TRY(inter_ledger_get_commit(l, s->job, f, (uint32_t)w[0] - 1, &s->parts[f].last));
    }
    NEB_TRY(falsify_for_test(p, s));
    inter_snapshot_put(&out->header, s);
    NEB_TRY(neb_buf_check(&out->header));
    out->len[0] = out->len[1] = s->elements * sizeof(float);
    out->read = read_body;
    return NEB_OK;
}

struct agent_snapshot_search {
    pthread_t thread;
    atomic_bool ended;
    const struct neb_vault *vault;
    uint8_t job[INTER_ID_BYTES];
    char folder[NEB_PATH_MAX];
    struct intra_ckpt *found; // found and st belong to the thread until it has ended
    enum neb_status st;
};

static void *search(void *user) {
    struct agent_snapshot_search *s = user;
    s->st = intra_ckpt_open_latest_in(s->vault, s->folder, &s->found);
    atomic_store_explicit(&s->ended, true, memory_order_release);
    return NULL;
}

enum neb_status agent_snapshot_search(const struct neb_vault *vault,
                                      const uint8_t job[INTER_ID_BYTES], const char *dir,
                                      struct agent_snapshot_search **out) {
    char folder[NEB_PATH_MAX];
    NEB_TRY(neb_path(folder, sizeof folder, dir, "checkpoint"));
    if (!neb_fs_exists(folder))
        return NEB_ERR_NOT_FOUND;
    struct agent_snapshot_search *s = calloc(1, sizeof *s);
    if (!s)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a snapshot");
    s->vault = vault;
    memcpy(s->job, job, sizeof s->job);
    memcpy(s->folder, folder, sizeof s->folder);
    int rc = pthread_create(&s->thread, NULL, search, s);
    if (rc) {
        free(s);
        return neb_fail(NEB_ERR_LIMIT,
                        "cannot start a thread that searches for a snapshot in %s: %s", folder,
                        strerror(rc));
    }
    *out = s;
    return NEB_OK;
}

bool agent_snapshot_search_is(const struct agent_snapshot_search *s,
                              const uint8_t job[INTER_ID_BYTES]) {
    return !memcmp(s->job, job, sizeof s->job);
}

bool agent_snapshot_search_ended(const struct agent_snapshot_search *s) {
    return atomic_load_explicit(&s->ended, memory_order_acquire);
}

void agent_snapshot_search_destroy(struct agent_snapshot_search **sp) {
    if (!*sp)
        return;
    pthread_join((*sp)->thread, NULL);
    if ((*sp)->found)
        intra_ckpt_close(&(*sp)->found);
    free(*sp);
    *sp = NULL;
}

enum neb_status agent_snapshot_open_take(struct agent_snapshot_search **sp, struct inter_ledger *l,
                                         struct inter_snapshot_source *out) {
    struct agent_snapshot_search *from = *sp;
    *out = (struct inter_snapshot_source){0};
    pthread_join(from->thread, NULL);
    struct inter_snapshot *s = calloc(1, sizeof *s);
    struct pin *p = calloc(1, sizeof *p);
    enum neb_status st =
        s && p ? from->st : neb_fail(NEB_ERR_NOMEM, "out of memory for a snapshot");
    if (st == NEB_OK) {
        p->ckpt = from->found;
        from->found = NULL;
        memcpy(s->job, from->job, sizeof s->job);
        st = fill_snapshot(l, p, s, out);
    }
    if (from->found)
        intra_ckpt_close(&from->found);
    free(s);
    free(from);
    *sp = NULL;
    out->pin = p;
    if (st != NEB_OK)
        agent_snapshot_close(out);
    return st;
}

void agent_snapshot_close(struct inter_snapshot_source *s) {
    struct pin *p = s->pin;
    neb_buf_free(&s->header);
    for (int i = 0; p && i < 2; i++)
        intra_ckpt_array_close(&p->body[i]);
    if (p)
        intra_ckpt_close(&p->ckpt);
    free(p);
    *s = (struct inter_snapshot_source){0};
}

static enum neb_status read_header(const struct neb_vault *vault, const char *path,
                                   uint64_t *header, struct inter_snapshot **out) {
    struct neb_file *f = NULL;
    NEB_TRY(neb_file_open(path, vault, &f));
    enum neb_status st = agent_snapshot_header(f, path, header, out);
    neb_file_close(&f);
    return st;
}

// The path of snapshot.new if it exists, else of snapshot.bin.
static enum neb_status find_file(const char *dir, char path[NEB_PATH_MAX]) {
    NEB_TRY(neb_path(path, NEB_PATH_MAX, dir, "snapshot.new"));
    return neb_fs_exists(path) ? NEB_OK : neb_path(path, NEB_PATH_MAX, dir, "snapshot.bin");
}

static enum neb_status rename_in(const char *dir, const char *from, const char *to) {
    char was[NEB_PATH_MAX], is[NEB_PATH_MAX];
    NEB_TRY(neb_path(was, sizeof was, dir, from));
    NEB_TRY(neb_path(is, sizeof is, dir, to));
    return rename(was, is) == 0 ? neb_fs_sync_dir(dir) : neb_fail_errno("cannot rename %s", was);
}

enum neb_status agent_snapshot_accept(const struct neb_vault *vault, const char *dir,
                                      uint64_t header_bytes) {
    char part[NEB_PATH_MAX];
    struct inter_snapshot *s = NULL;
    uint64_t header = 0;
    NEB_TRY(neb_path(part, sizeof part, dir, "snapshot.part"));
    enum neb_status st = read_header(vault, part, &header, &s);
    if (st == NEB_OK && header != header_bytes)
        st = neb_fail(NEB_ERR_FORMAT, "%s has a header of %llu bytes, but %llu were announced",
                      part, (unsigned long long)header, (unsigned long long)header_bytes);
    free(s);
    if (st != NEB_OK) {
        (void)!neb_fs_remove(part);
        return st;
    }
    NEB_TRY(agent_snapshot_drop(dir, true));
    return rename_in(dir, "snapshot.part", "snapshot.new");
}

enum neb_status agent_snapshot_confirm(const char *dir) {
    return rename_in(dir, "snapshot.new", "snapshot.bin");
}

enum neb_status agent_snapshot_drop(const char *dir, bool all) {
    char path[NEB_PATH_MAX];
    NEB_TRY(neb_path(path, sizeof path, dir, "snapshot.new"));
    NEB_TRY(neb_fs_remove(path));
    NEB_TRY(neb_path(path, sizeof path, dir, "snapshot.bin"));
    return all ? neb_fs_remove(path) : NEB_OK;
}

enum neb_status agent_snapshot_taken(const struct neb_vault *vault, const char *dir,
                                     struct inter_snapshot **out) {
    char path[NEB_PATH_MAX];
    uint64_t header;
    NEB_TRY(find_file(dir, path));
    return neb_fs_exists(path) ? read_header(vault, path, &header, out) : NEB_ERR_NOT_FOUND;
}

uint64_t agent_snapshot_round_bytes(const struct neb_vault *vault, const char *dir, int self) {
    struct inter_snapshot *s = NULL;
    uint64_t bytes = 0;
    if (agent_snapshot_taken(vault, dir, &s) != NEB_OK)
        return 0;
    for (uint32_t f = 0; f < s->fragments; f++)
        for (uint8_t i = 0; s->parts[f].round && i < s->parts[f].last.n; i++)
            if (s->parts[f].last.entries[i].member != self)
                bytes += s->parts[f].last.entries[i].bytes;
    free(s);
    return bytes;
}

// Without a checkpoint the worker takes all fragments from the snapshot: the ledger must have all
// later updates.
static enum neb_status reaches(struct inter_ledger *l, const struct inter_snapshot *s) {
    for (uint32_t f = 0; f < s->fragments; f++) {
        uint32_t floor;
        NEB_TRY(inter_ledger_floor(l, s->job, f, &floor));
        if (s->parts[f].round < floor)
            return neb_fail(NEB_ERR_STATE,
                            "the snapshot is at round %u of fragment %u, but the updates from "
                            "there to round %u are gone",
                            s->parts[f].round, f, floor);
    }
    return NEB_OK;
}

// A damaged snapshot is treated like a missing one: the others give another. If only the key is
// wrong, the file stays.
static bool is_damaged(enum neb_status st) { return st == NEB_ERR_FORMAT || st == NEB_ERR_CORRUPT; }

static enum neb_status put_away(const char *path) {
    neb_warn("%s is damaged: it is removed, and the other members are asked for what is not here",
             path);
    return neb_fs_remove(path);
}

enum neb_status agent_snapshot_install(const struct neb_vault *vault, struct inter_service *service,
                                       const struct inter_job_config *c, const char *dir,
                                       bool witness, uint64_t *taken) {
    char bin[NEB_PATH_MAX], folder[NEB_PATH_MAX];
    struct inter_snapshot *s = NULL;
    uint64_t header;
    *taken = 0;
    NEB_TRY(find_file(dir, bin));
    NEB_TRY(neb_path(folder, sizeof folder, dir, "checkpoint"));
    if (!neb_fs_exists(bin))
        return NEB_OK;
    enum neb_status st = read_header(vault, bin, &header, &s);
    if (is_damaged(st))
        return put_away(bin);
    NEB_TRY(st);
    if (memcmp(s->job, c->id, sizeof s->job) || s->fragments != c->fragments)
        st = neb_fail(NEB_ERR_FORMAT, "%s is of another job", bin);
    if (st == NEB_OK)
        st = inter_service_snapshot_install(service, c, s, taken);
    if (is_damaged(st) || st == NEB_ERR_DENIED) { // its records do not prove themselves
        free(s);
        return put_away(bin);
    }
    if (st == NEB_OK && !witness && !neb_fs_exists(folder))
        st = reaches(inter_service_ledger(service), s);
    free(s);
    if (st != NEB_OK || witness)
        (void)!neb_fs_remove(bin);
    return st;
}

bool agent_snapshot_passes(const struct neb_vault *vault, struct inter_ledger *l, const char *dir,
                           uint32_t fragment, uint32_t round) {
    struct inter_snapshot *s = NULL;
    uint32_t floor;
    if (agent_snapshot_taken(vault, dir, &s) != NEB_OK)
        return false;
    bool passes = fragment < s->fragments && s->parts[fragment].round > round &&
                  inter_ledger_floor(l, s->job, fragment, &floor) == NEB_OK &&
                  s->parts[fragment].round >= floor;
    free(s);
    return passes;
}

bool agent_snapshot_useless(const char *dir) {
    char bin[NEB_PATH_MAX], folder[NEB_PATH_MAX];
    if (find_file(dir, bin) != NEB_OK ||
        neb_path(folder, sizeof folder, dir, "checkpoint") != NEB_OK || !neb_fs_exists(folder))
        return false;
    return neb_fs_remove(bin) == NEB_OK;
}

json_t *agent_snapshot_mask(uint64_t taken, int fragments) {
    json_t *a = json_array();
    for (int f = 0; f < fragments; f++)
        json_array_append_new(a, json_boolean(taken >> f & 1));
    return a;
}
