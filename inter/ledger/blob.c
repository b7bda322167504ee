// SPDX-License-Identifier: Apache-2.0
// Blobs of a ledger: stored complete, removed when no member needs them. part.c holds blobs that
// are still arriving.
//
// The database decides which files must be there (by manifests and chain.kept); files follow. A
// removal changes the database first. If it is interrupted, it can leave an extra file, which the
// next opening removes, but never a promise without its file.
#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "agent/base/sha256.h"
#include "inter/ledger/db.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

// ---- names --------------------------------------------------------------------------------------

static void blob_name(const struct inter_key *k, const char *suffix, char *out, size_t cap) {
    char job[2 * INTER_ID_BYTES + 1];
    neb_hex(k->job, INTER_ID_BYTES, job);
    snprintf(out, cap, "%s-f%u-r%08u-m%u-a%u%s", job, k->fragment, k->round, k->member, k->attempt,
             suffix);
}

enum neb_status inter_blob_path(const struct inter_ledger *l, const struct inter_key *k,
                                const char *suffix, char *out, size_t cap) {
    char name[160];
    blob_name(k, suffix, name, sizeof name);
    return neb_path(out, cap, l->blobs, name);
}

bool inter_blob_parse(const char *name, struct inter_key *k, const char **suffix) {
    char job[2 * INTER_ID_BYTES + 1], again[160];
    unsigned fragment, round, member, attempt;
    int end = 0;
    *k = (struct inter_key){0};
    _Static_assert(INTER_ID_BYTES == 32, "the width below");
    if (sscanf(name, "%64[0-9a-f]-f%9u-r%10u-m%3u-a%10u%n", job, &fragment, &round, &member,
               &attempt, &end) != 5 ||
        member >= NEB_MEMBERS_MAX || !neb_unhex(job, k->job, sizeof k->job))
        return false;
    k->fragment = fragment;
    k->round = round;
    k->member = (uint8_t)member;
    k->attempt = attempt;
    *suffix = name + end;
    blob_name(k, *suffix, again, sizeof again);
    return !strcmp(name, again);
}

// ---- files --------------------------------------------------------------------------------------

uint64_t inter_blob_bytes(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 ? (uint64_t)info.st_size : 0;
}

bool inter_blob_fits(const struct inter_ledger *l, uint64_t bytes, uint64_t reserve) {
    return !neb_fault("ledger.room") && neb_fs_fits(l->blobs, bytes + reserve);
}

enum neb_status inter_blob_remove(const char *path) {
    if (neb_fault("ledger.unlink"))
        return errno = EIO, neb_fail_errno("cannot remove %s", path);
    return neb_fs_remove(path);
}

enum neb_status inter_blob_discard(struct inter_ledger *l, const struct inter_key *k) {
    static const char *const suffixes[] = {".map", ".part", ".blob"};
    char path[NEB_PATH_MAX];
    inter_part_drop(l, k);
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        NEB_TRY(inter_blob_path(l, k, suffixes[i], path, sizeof path));
        uint64_t bytes = i == 2 ? inter_blob_bytes(path) : 0;
        NEB_TRY(inter_blob_remove(path));
        l->used -= bytes;
    }
    return NEB_OK;
}

enum neb_status inter_ledger_discard(struct inter_ledger *l, const struct inter_key *key) {
    return inter_blob_discard(l, key);
}

// Finds whether the database still promises an update's files.
static enum neb_status promised(struct inter_ledger *l, const struct inter_key *k, bool *out) {
    struct neb_buf b = {0};
    struct inter_chain c;
    enum neb_status st = inter_db_fetch(l, &b,
                                        "SELECT 1 FROM manifest WHERE job=? AND fragment=? AND "
                                        "round=? AND member=? AND attempt=?",
                                        "biiii", INTER_JOB(k->job), (int64_t)k->fragment,
                                        (int64_t)k->round, (int64_t)k->member, (int64_t)k->attempt);
    neb_buf_free(&b);
    *out = st == NEB_OK;
    if (st == NEB_OK) {
        st = inter_ledger_chain(l, k->job, k->fragment, &c);
        *out = st == NEB_ERR_NOT_FOUND || k->round >= c.kept;
    }
    return st == NEB_ERR_NOT_FOUND ? NEB_OK : st;
}

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

static enum neb_status sweep_one(struct inter_ledger *l, const char *name) {
    char path[NEB_PATH_MAX];
    struct inter_key k;
    const char *suffix;
    bool keep, blob;
    NEB_TRY(neb_path(path, sizeof path, l->blobs, name));
    if (!inter_blob_parse(name, &k, &suffix))
        return NEB_OK; // not the name of a blob file
    if (ends_with(suffix, ".tmp"))
        return inter_blob_remove(path);
    blob = !strcmp(suffix, ".blob");
    NEB_TRY(promised(l, &k, &keep));
    if (keep && !blob)
        keep = !inter_ledger_has_blob(l, &k); // it has arrived: these files are left over
    if (!keep) {
        inter_part_drop(l, &k);
        return inter_blob_remove(path);
    }
    l->used += blob ? inter_blob_bytes(path) : 0;
    return NEB_OK;
}

enum neb_status inter_blob_sweep(struct inter_ledger *l) {
    enum neb_status st = NEB_OK;
    DIR *d = opendir(l->blobs);
    if (!d)
        return neb_fail_errno("cannot open folder %s", l->blobs);
    l->used = 0;
    for (size_t i = 0; i < l->n_parts; i++)
        l->used += l->parts[i].open ? l->parts[i].bytes : 0;
    for (struct dirent *e; st == NEB_OK && (errno = 0, e = readdir(d));)
        st = sweep_one(l, e->d_name);
    closedir(d);
    return st;
}

// ---- complete blobs -----------------------------------------------------------------------------

static enum neb_status second_digest(const struct inter_ledger *l, const struct inter_key *k) {
    return neb_fail(
        NEB_ERR_EXISTS,
        "ledger %s: round %u, fragment %u: the update of member %u has other bytes than the stored "
        "one; they are refused",
        l->dir, k->round, k->fragment, k->member);
}

static enum neb_status write_blob(struct inter_ledger *l, const struct inter_key *key,
                                  const char *path, const void *p, size_t n) {
    enum neb_status st = NEB_OK;
    struct neb_fs_writer *w = NULL;
    NEB_TRY(neb_fs_writer_open(path, 0600, &w));
    NEB_TRY_GOTO(sec_vault_seal_writer(l->seal, key->job, w), out);
    NEB_TRY_GOTO(neb_fs_writer_add(w, p, n), out);
    st = neb_fs_writer_commit(w);
out:
    neb_fs_writer_destroy(&w);
    return st;
}

enum neb_status inter_ledger_put_blob(struct inter_ledger *l, const struct inter_key *key,
                                      const void *p, size_t n) {
    char path[NEB_PATH_MAX];
    uint8_t sha[INTER_SHA_BYTES];
    struct inter_manifest m;
    struct neb_map old;
    NEB_TRY(inter_blob_path(l, key, ".blob", path, sizeof path));
    if (neb_fs_exists(path)) {
        NEB_TRY(sec_vault_map(l->seal, path, &old));
        bool same = old.len == n && (n == 0 || !memcmp(old.p, p, n));
        neb_map_close(&old);
        return same ? neb_fs_sync_dir(l->blobs) : second_digest(l, key);
    }
    enum neb_status st = inter_ledger_get_manifest(l, key, &m);
    if (st == NEB_OK && m.key.attempt == key->attempt) { // promised, but its file is lost
        neb_sha256(p, n, sha);
        if (memcmp(sha, m.sha256, sizeof sha))
            return second_digest(l, key);
    } else if (st != NEB_OK && st != NEB_ERR_NOT_FOUND) {
        return st;
    }
    NEB_TRY(inter_blob_make_room(l, n));
    if (!inter_blob_fits(l, n, INTER_LEDGER_RESERVE_OWN))
        return neb_fail(
            NEB_ERR_NOSPC,
            "ledger %s: an update of %zu bytes would leave less than %d MiB free on its disk",
            l->dir, n, INTER_LEDGER_RESERVE_OWN >> 20);
    NEB_TRY(inter_blob_discard(l, key)); // the chunks that other members had sent
    st = write_blob(l, key, path, p, n);
    l->used += inter_blob_bytes(path);
    return st;
}

bool inter_ledger_has_blob(struct inter_ledger *l, const struct inter_key *key) {
    char path[NEB_PATH_MAX];
    return inter_blob_path(l, key, ".blob", path, sizeof path) == NEB_OK && neb_fs_exists(path);
}

bool inter_ledger_holds(struct inter_ledger *l, const struct inter_manifest *m) {
    char path[NEB_PATH_MAX];
    return inter_blob_path(l, &m->key, ".blob", path, sizeof path) == NEB_OK &&
           neb_fs_exists(path) && inter_blob_bytes(path) >= m->bytes;
}

enum neb_status inter_ledger_blob_path(const struct inter_ledger *l, const struct inter_key *key,
                                       char *out, size_t cap) {
    return inter_blob_path(l, key, ".blob", out, cap);
}

enum neb_status inter_ledger_map_blob(struct inter_ledger *l, const struct inter_key *key,
                                      struct neb_map *out) {
    char path[NEB_PATH_MAX];
    NEB_TRY(inter_blob_path(l, key, ".blob", path, sizeof path));
    return sec_vault_map(l->seal, path, out);
}

// Reads the raw file first: a page that cannot be read would end the process when the map is used.
static enum neb_status can_be_read(const char *path) {
    struct neb_map m;
    NEB_TRY(neb_map_open(path, &m));
    enum neb_status st = neb_map_read(&m, path) == NEB_OK ? NEB_OK : NEB_ERR_CORRUPT;
    neb_map_close(&m);
    return st;
}

enum neb_status inter_ledger_read_blob(struct inter_ledger *l, const struct inter_key *key,
                                       struct neb_map *out) {
    char path[NEB_PATH_MAX];
    *out = (struct neb_map){0};
    NEB_TRY(inter_blob_path(l, key, ".blob", path, sizeof path));
    NEB_TRY(can_be_read(path));
    return sec_vault_map(l->seal, path, out);
}

// ---- a second digest under one key --------------------------------------------------------------

// Created at first use: most ledgers never have one.
static const char evidence[] =
    "CREATE TABLE IF NOT EXISTS second(job BLOB, fragment INT, round INT, member INT, attempt INT,"
    " body BLOB NOT NULL, PRIMARY KEY(job, fragment, round, member, attempt, body)) WITHOUT ROWID";
static const char keep_former[] = "INSERT OR IGNORE INTO second SELECT * FROM manifest WHERE job=? "
                                  "AND fragment=? AND round=? AND "
                                  "member=? AND attempt=?";
static const char put_other[] =
    "UPDATE manifest SET body=? WHERE job=? AND fragment=? AND round=? AND member=? AND attempt=?";

static enum neb_status exchange(struct inter_ledger *l, const struct inter_manifest *m) {
    const struct inter_key *k = &m->key;
    struct neb_buf b = {0};
    inter_manifest_put(&b, m);
    enum neb_status st = neb_buf_check(&b);
    if (st == NEB_OK)
        st = inter_db_run(l, "make a table", evidence, "");
    if (st == NEB_OK)
        st = inter_db_run(l, "keep a manifest as evidence", keep_former, "biiii", INTER_JOB(k->job),
                          (int64_t)k->fragment, (int64_t)k->round, (int64_t)k->member,
                          (int64_t)k->attempt);
    if (st == NEB_OK)
        st = inter_db_run(l, "exchange a manifest", put_other, "bbiiii", (const void *)b.p, b.len,
                          INTER_JOB(k->job), (int64_t)k->fragment, (int64_t)k->round,
                          (int64_t)k->member, (int64_t)k->attempt);
    neb_buf_free(&b);
    return st;
}

enum neb_status inter_ledger_replace_manifest(struct inter_ledger *l,
                                              const struct inter_manifest *m) {
    const struct inter_key *k = &m->key;
    struct inter_manifest old;
    enum neb_status st = inter_ledger_find_manifest(l, k, &old);
    if (st == NEB_ERR_NOT_FOUND ||
        (st == NEB_OK && !memcmp(old.sha256, m->sha256, sizeof old.sha256)))
        return inter_ledger_put_manifest(l, m);
    NEB_TRY(st);
    neb_log(NEB_LOG_ERROR,
            "member %u has signed two updates for round %u of fragment %u under one key; the one "
            "that the others list counts, the other one is kept as evidence",
            k->member, k->round, k->fragment);
    // Files first: an interruption leaves the key without a blob, never with another's blob.
    NEB_TRY(inter_blob_discard(l, k));
    NEB_TRY(inter_db_begin(l));
    return inter_db_end(l, exchange(l, m));
}

enum neb_status inter_ledger_replaced(struct inter_ledger *l, const struct inter_key *k,
                                      struct inter_manifest *out) {
    struct neb_buf b = {0};
    enum neb_status st =
        inter_db_fetch(l, &b, "SELECT 1 FROM sqlite_schema WHERE name='second'", "");
    if (st == NEB_OK)
        st = inter_db_fetch(l, &b,
                            "SELECT body FROM second WHERE job=? AND fragment=? AND round=? AND "
                            "member=? AND attempt=?",
                            "biiii", INTER_JOB(k->job), (int64_t)k->fragment, (int64_t)k->round,
                            (int64_t)k->member, (int64_t)k->attempt);
    struct neb_rd r = neb_rd_make(b.p, b.len);
    if (st == NEB_OK && !inter_manifest_get(&r, out))
        st = neb_fail(NEB_ERR_CORRUPT, "ledger %s: stored evidence does not parse", l->dir);
    neb_buf_free(&b);
    return st;
}

enum neb_status inter_ledger_replaced_all(struct inter_ledger *l, inter_ledger_each_second *fn,
                                          void *user) {
    sqlite3_stmt *s = NULL;
    struct inter_manifest m;
    struct neb_buf b = {0};
    bool row = false;
    enum neb_status st =
        inter_db_fetch(l, &b, "SELECT 1 FROM sqlite_schema WHERE name='second'", "");
    neb_buf_free(&b);
    if (st != NEB_OK)
        return st == NEB_ERR_NOT_FOUND ? NEB_OK : st;
    NEB_TRY(inter_db_prepare(l, &s, "SELECT body FROM second", ""));
    while ((st = inter_db_next(l, s, &row)) == NEB_OK && row) {
        struct neb_rd r =
            neb_rd_make(sqlite3_column_blob(s, 0), (size_t)sqlite3_column_bytes(s, 0));
        if (!inter_manifest_get(&r, &m) || !neb_rd_done(&r)) {
            st = neb_fail(NEB_ERR_CORRUPT, "ledger %s: stored evidence does not parse", l->dir);
            break;
        }
        fn(user, &m);
    }
    sqlite3_finalize(s);
    return st;
}

// ---- retention ----------------------------------------------------------------------------------

// Keys of a fragment's updates in rounds [from, to).
static enum neb_status keys_between(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES],
                                    uint32_t fragment, uint32_t from, uint32_t to,
                                    struct neb_buf *out) {
    sqlite3_stmt *s = NULL;
    bool row = false;
    NEB_TRY(inter_db_prepare(l, &s,
                             "SELECT round, member, attempt FROM manifest WHERE job=? AND "
                             "fragment=? AND round>=? AND round<?",
                             "biii", INTER_JOB(job), (int64_t)fragment, (int64_t)from,
                             (int64_t)to));
    enum neb_status st;
    while ((st = inter_db_next(l, s, &row)) == NEB_OK && row) {
        struct inter_key k = {.round = (uint32_t)sqlite3_column_int64(s, 0),
                              .fragment = fragment,
                              .member = (uint8_t)sqlite3_column_int(s, 1),
                              .attempt = (uint32_t)sqlite3_column_int64(s, 2)};
        memcpy(k.job, job, sizeof k.job);
        neb_buf_add(out, &k, sizeof k);
    }
    sqlite3_finalize(s);
    return st == NEB_OK ? neb_buf_check(out) : st;
}

static enum neb_status remove_updates(struct inter_ledger *l, const struct neb_buf *keys) {
    enum neb_status st = NEB_OK;
    for (size_t at = 0; at < keys->len && st == NEB_OK; at += sizeof(struct inter_key)) {
        struct inter_key k;
        memcpy(&k, keys->p + at, sizeof k);
        st = inter_blob_discard(l, &k);
    }
    return st;
}

static enum neb_status forget_below(struct inter_ledger *l, const struct inter_chain *c,
                                    uint32_t round) {
    NEB_TRY(inter_db_run(l, "raise the floor",
                         "UPDATE chain SET floor=?3, kept=max(kept, ?3) WHERE job=?1 AND "
                         "fragment=?2",
                         "bii", INTER_JOB(c->job), (int64_t)c->fragment, (int64_t)round));
    return inter_db_forget(l, c->job, c->fragment, round);
}

enum neb_status inter_ledger_prune(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES],
                                   uint32_t fragment, uint32_t round) {
    struct inter_chain c;
    struct neb_buf keys = {0};
    enum neb_status st = inter_ledger_chain(l, job, fragment, &c);
    if (st == NEB_ERR_NOT_FOUND)
        return NEB_OK; // nothing is committed yet
    NEB_TRY(st);
    if (round > c.next)
        round = c.next;
    if (round <= c.floor)
        return NEB_OK;
    NEB_TRY_GOTO(keys_between(l, job, fragment, 0, round, &keys), out);
    NEB_TRY_GOTO(inter_db_begin(l), out);
    NEB_TRY_GOTO(inter_db_end(l, forget_below(l, &c, round)), out);
    st = remove_updates(l, &keys);
out:
    neb_buf_free(&keys);
    return st;
}

enum neb_status inter_ledger_saved(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES],
                                   const uint32_t *rounds, uint32_t n) {
    NEB_TRY(inter_db_begin(l));
    enum neb_status st = NEB_OK;
    for (uint32_t f = 0; f < n && st == NEB_OK; f++)
        st = inter_db_run(l, "keep what a checkpoint holds",
                          "INSERT OR REPLACE INTO saved VALUES(?,?,?)", "bii", INTER_JOB(job),
                          (int64_t)f, (int64_t)rounds[f]);
    return inter_db_end(l, st);
}

// Finds the round that was committed longest ago and still has its blobs. It skips the newest round
// of a fragment, and rounds that a worker needs after a restart.
static enum neb_status oldest(struct inter_ledger *l, struct inter_key *out) {
    sqlite3_stmt *s = NULL;
    bool row = false;
    NEB_TRY(inter_db_prepare(l, &s,
                             "SELECT c.job, c.fragment, c.kept FROM chain c JOIN record r ON "
                             "r.job=c.job AND r.fragment=c.fragment AND r.round=c.kept JOIN saved "
                             "s ON s.job=c.job AND s.fragment=c.fragment WHERE c.kept < s.round "
                             "AND c.kept+1 < c.next ORDER BY r.seq LIMIT 1",
                             ""));
    enum neb_status st = inter_db_next(l, s, &row);
    if (st == NEB_OK && (!row || sqlite3_column_bytes(s, 0) != INTER_ID_BYTES))
        st = NEB_ERR_NOT_FOUND;
    if (st == NEB_OK) {
        memcpy(out->job, sqlite3_column_blob(s, 0), sizeof out->job);
        out->fragment = (uint32_t)sqlite3_column_int64(s, 1);
        out->round = (uint32_t)sqlite3_column_int64(s, 2);
    }
    sqlite3_finalize(s);
    return st;
}

enum neb_status inter_blob_make_room(struct inter_ledger *l, uint64_t more) {
    enum neb_status st = NEB_OK;
    struct neb_buf keys = {0};
    struct inter_key k = {0};
    while (st == NEB_OK && l->cap && l->used + more > l->cap && (st = oldest(l, &k)) == NEB_OK) {
        uint64_t before = l->used;
        neb_buf_clear(&keys);
        NEB_TRY_GOTO(keys_between(l, k.job, k.fragment, k.round, k.round + 1, &keys), out);
        NEB_TRY_GOTO(inter_db_run(l, "drop a round",
                                  "UPDATE chain SET kept=? WHERE job=? AND fragment=?", "ibi",
                                  (int64_t)k.round + 1, INTER_JOB(k.job), (int64_t)k.fragment),
                     out);
        st = remove_updates(l, &keys);
        l->dropped.rounds++;
        l->dropped.bytes += before - l->used;
        neb_debug("ledger: blobs of round %u, fragment %u are dropped because of the cap", k.round,
                  k.fragment);
    }
out:
    neb_buf_free(&keys);
    return st == NEB_ERR_NOT_FOUND ? NEB_OK : st;
}

enum neb_status inter_ledger_set_cap(struct inter_ledger *l, uint64_t bytes) {
    l->cap = bytes;
    return inter_blob_make_room(l, 0);
}

void inter_ledger_dropped(const struct inter_ledger *l, struct inter_dropped *out) {
    *out = l->dropped;
}

uint64_t inter_ledger_used(const struct inter_ledger *l) { return l->used; }
