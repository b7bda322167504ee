// SPDX-License-Identifier: Apache-2.0
// Opens a ledger; stores manifests, votes, commits and jobs. chain.c has chains, blob.c and part.c
// blobs, outbox.c messages, verify.c checks.
#include "inter/ledger/ledger.h"
#include "agent/base/clock.h"
#include "agent/base/fault.h"
#include "inter/ledger/db.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

static const neb_ns lock_wait = 2 * NEB_S;

// record.seq: the order of commits over all fragments; blobs are dropped in this order. promise:
// the number of manifests and the hash of the vote of a round, so that inter_ledger_verify finds a
// lost row. saved: the newest checkpoint holds the rounds before `round` of each fragment. dropped:
// ids of removed jobs, oldest first.
static const char schema[] =
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value) WITHOUT ROWID;"
    "CREATE TABLE job(id BLOB PRIMARY KEY, spec TEXT NOT NULL, state TEXT NOT NULL) "
    "WITHOUT ROWID;"
    "CREATE TABLE manifest(job BLOB, fragment INT, round INT, member INT, attempt "
    "INT, body BLOB NOT NULL,"
    " PRIMARY KEY(job, fragment, round, member, attempt)) WITHOUT ROWID;"
    "CREATE TABLE vote(job BLOB, fragment INT, round INT, body BLOB NOT NULL,"
    " PRIMARY KEY(job, fragment, round)) WITHOUT ROWID;"
    "CREATE TABLE standing(job BLOB PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE record(seq INTEGER PRIMARY KEY AUTOINCREMENT, job BLOB NOT NULL,"
    " fragment INT NOT NULL, round INT NOT NULL, body BLOB NOT NULL, UNIQUE(job, fragment, round));"
    "CREATE TABLE chain(job BLOB, fragment INT, first INT NOT NULL, floor INT NOT "
    "NULL, kept INT NOT NULL, next INT NOT NULL, base BLOB NOT NULL, head BLOB NOT NULL,"
    " PRIMARY KEY(job, fragment)) WITHOUT ROWID;"
    "CREATE TABLE promise(job BLOB, fragment INT, round INT, manifests INT NOT NULL, vote BLOB,"
    " PRIMARY KEY(job, fragment, round)) WITHOUT ROWID;"
    "CREATE TABLE outbox(seq INTEGER PRIMARY KEY AUTOINCREMENT, peer TEXT NOT NULL, "
    "kind INT NOT NULL, body BLOB NOT NULL);"
    "CREATE TABLE inbox(id INTEGER PRIMARY KEY AUTOINCREMENT, peer TEXT NOT NULL,"
    " epoch INT NOT NULL, seq INT NOT NULL, UNIQUE(peer, epoch));"
    "CREATE TABLE saved(job BLOB, fragment INT, round INT NOT NULL, PRIMARY KEY(job, fragment))"
    " WITHOUT ROWID;"
    "CREATE TABLE dropped(seq INTEGER PRIMARY KEY AUTOINCREMENT, job BLOB NOT NULL UNIQUE,"
    " for_ever INT NOT NULL);";

// ---- opening ------------------------------------------------------------------------------------

// One writer per ledger: the sweep at opening would remove what another writer is about to promise.
static enum neb_status take_lock(struct inter_ledger *l) {
    char path[NEB_PATH_MAX];
    NEB_TRY(neb_path(path, sizeof path, l->dir, "ledger.lock"));
    l->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (l->lock < 0)
        return neb_fail_errno("cannot open %s", path);
    for (neb_ns end = neb_now() + lock_wait; flock(l->lock, LOCK_EX | LOCK_NB) != 0;) {
        if (errno == EINTR)
            continue;
        if (errno != EWOULDBLOCK)
            return neb_fail_errno("cannot lock %s", path);
        if (neb_now() >= end)
            return neb_fail(
                NEB_ERR_STATE,
                "ledger %s is in use by another agent; stop that agent, or give this one "
                "a home of its own",
                l->dir);
        neb_sleep(20 * NEB_MS);
    }
    return NEB_OK;
}

static enum neb_status fetch_int(struct inter_ledger *l, const char *sql, int64_t *out) {
    sqlite3_stmt *s = NULL;
    bool row = false;
    *out = 0;
    NEB_TRY(inter_db_prepare(l, &s, sql, ""));
    enum neb_status st = inter_db_next(l, s, &row);
    if (row)
        *out = sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    return st == NEB_OK && !row ? NEB_ERR_NOT_FOUND : st;
}

static enum neb_status check_version(struct inter_ledger *l, bool *empty) {
    int64_t version, tables;
    NEB_TRY(fetch_int(l, "SELECT count(*) FROM sqlite_schema", &tables));
    NEB_TRY(fetch_int(l, "PRAGMA user_version", &version));
    *empty = version == 0 && tables == 0;
    if (!*empty && version != INTER_LEDGER_VERSION)
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "ledger %s/ledger.db has format %lld, this program reads %d; end its jobs "
                        "with the program that made it, then move the file away",
                        l->dir, (long long)version, INTER_LEDGER_VERSION);
    return NEB_OK;
}

// Creates tables, epoch and version together, or nothing.
static enum neb_status make_tables(struct inter_ledger *l) {
    uint64_t epoch = 0;
    char set_version[40];
    snprintf(set_version, sizeof set_version, "PRAGMA user_version=%d", INTER_LEDGER_VERSION);
    while (epoch == 0)
        if (getrandom(&epoch, sizeof epoch, 0) != (ssize_t)sizeof epoch && errno != EINTR)
            return neb_fail_errno("cannot get random bytes");
    NEB_TRY(inter_db_begin(l));
    enum neb_status st = sqlite3_exec(l->db, schema, NULL, NULL, NULL) == SQLITE_OK
                             ? NEB_OK
                             : inter_db_fail(l, "make tables");
    if (st == NEB_OK)
        st = inter_db_run(l, "store the epoch", "INSERT INTO meta VALUES('epoch', ?)", "i",
                          (int64_t)epoch);
    if (st == NEB_OK)
        st = inter_db_run(l, "store the version", set_version, "");
    return inter_db_end(l, st);
}

static enum neb_status open_db(struct inter_ledger *l, const char *path, int flags) {
    if (sqlite3_open_v2(path, &l->db, flags | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK ||
        sqlite3_busy_timeout(l->db, 2000) != SQLITE_OK)
        return inter_db_fail(l, "open");
    return NEB_OK;
}

static enum neb_status read_epoch(struct inter_ledger *l) {
    int64_t epoch;
    enum neb_status st = fetch_int(l, "SELECT value FROM meta WHERE key='epoch'", &epoch);
    if (st == NEB_ERR_NOT_FOUND)
        st = neb_fail(NEB_ERR_CORRUPT, "ledger %s/ledger.db has no epoch", l->dir);
    l->epoch = (uint64_t)epoch;
    return st;
}

static enum neb_status create(const char *dir, struct inter_ledger **out, char *path, size_t cap) {
    struct inter_ledger *l = calloc(1, sizeof *l);
    if (!l)
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening a ledger");
    *out = l;
    l->lock = -1;
    if (snprintf(l->dir, sizeof l->dir, "%s", dir) >= (int)sizeof l->dir)
        return neb_fail(NEB_ERR_LIMIT, "path too long: %s", dir);
    NEB_TRY(neb_path(l->blobs, sizeof l->blobs, dir, "blobs"));
    return neb_path(path, cap, dir, "ledger.db");
}

enum neb_status inter_ledger_open(const char *dir, struct inter_ledger **out) {
    static const char pragmas[] = "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
                                  "PRAGMA trusted_schema=OFF; PRAGMA cell_size_check=ON;";
    enum neb_status st;
    char path[NEB_PATH_MAX];
    bool empty;
    struct inter_ledger *l = NULL;
    NEB_TRY_GOTO(create(dir, &l, path, sizeof path), fail);
    NEB_TRY_GOTO(neb_fs_mkdirs(l->blobs, 0700), fail);
    NEB_TRY_GOTO(take_lock(l), fail);
    NEB_TRY_GOTO(inter_db_private(path), fail);
    NEB_TRY_GOTO(open_db(l, path, SQLITE_OPEN_READWRITE), fail);
    if (sqlite3_exec(l->db, pragmas, NULL, NULL, NULL) != SQLITE_OK) {
        st = inter_db_fail(l, "open");
        goto fail;
    }
    NEB_TRY_GOTO(check_version(l, &empty), fail);
    if (empty) {
        NEB_TRY_GOTO(make_tables(l), fail);
        NEB_TRY_GOTO(neb_fs_sync_dir(dir), fail);
    }
    NEB_TRY_GOTO(read_epoch(l), fail);
    NEB_TRY_GOTO(inter_blob_sweep(l), fail);
    *out = l;
    return NEB_OK;
fail:
    inter_ledger_close(&l);
    return st;
}

// Opens a database whose log is empty, as an agent leaves it when it ends normally. Even a reader
// makes SQLite write files beside a database, unless SQLite is told that no other process uses it.
// The URI holds all other characters of the path in hexadecimal.
static enum neb_status open_still(struct inter_ledger *l, const char *path) {
    static const char hex[] = "0123456789ABCDEF", option[] = "?immutable=1";
    char uri[3 * NEB_PATH_MAX + 32] = "file:";
    size_t n = strlen(uri);
    while (path[0] == '/' && path[1] == '/') // two slashes would begin the name of a host
        path++;
    for (const unsigned char *p = (const unsigned char *)path; *p; p++)
        if (isalnum(*p) || strchr("/-._~", *p)) {
            uri[n++] = (char)*p;
        } else {
            uri[n++] = '%';
            uri[n++] = hex[*p >> 4];
            uri[n++] = hex[*p & 15];
        }
    memcpy(uri + n, option, sizeof option);
    return open_db(l, uri, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI);
}

// True for a backup on a read-only disk, or in the folder of another user.
static bool is_still(const char *dir, const char *path) {
    char log[NEB_PATH_MAX + 8];
    snprintf(log, sizeof log, "%s-wal", path);
    return access(dir, W_OK) != 0 && !neb_fs_exists(log);
}

enum neb_status inter_ledger_open_readonly(const char *dir, struct inter_ledger **out) {
    enum neb_status st;
    char path[NEB_PATH_MAX];
    bool empty = false;
    struct inter_ledger *l = NULL;
    NEB_TRY_GOTO(create(dir, &l, path, sizeof path), fail);
    if (!neb_fs_exists(path)) {
        st =
            neb_fail(NEB_ERR_NOT_FOUND,
                     "no ledger in %s: give the home of an agent that has run (its --home; default "
                     "~/.nebula)",
                     dir);
        goto fail;
    }
    NEB_TRY_GOTO(is_still(dir, path) ? open_still(l, path) : open_db(l, path, SQLITE_OPEN_READONLY),
                 fail);
    NEB_TRY_GOTO(check_version(l, &empty), fail);
    if (empty) {
        st = neb_fail(NEB_ERR_CORRUPT, "ledger %s is empty: its agent never finished opening it",
                      path);
        goto fail;
    }
    NEB_TRY_GOTO(read_epoch(l), fail);
    *out = l;
    return NEB_OK;
fail:
    inter_ledger_close(&l);
    return st;
}

void inter_ledger_seal(struct inter_ledger *l, const struct sec_seal_key *key) { l->seal = key; }

const char *inter_ledger_dir(const struct inter_ledger *l) { return l->dir; }

void inter_ledger_close(struct inter_ledger **lp) {
    struct inter_ledger *l = *lp;
    if (!l)
        return;
    for (size_t i = 0; i < l->n_parts; i++)
        inter_part_close(&l->parts[i]);
    free(l->parts);
    neb_buf_free(&l->sealed);
    sqlite3_close(l->db);
    if (l->lock >= 0)
        close(l->lock);
    free(l);
    *lp = NULL;
}

// ---- manifests ----------------------------------------------------------------------------------

static enum neb_status parse_manifest(struct inter_ledger *l, const struct neb_buf *b,
                                      struct inter_manifest *out) {
    struct neb_rd r = neb_rd_make(b->p, b->len);
    if (inter_manifest_get(&r, out) && neb_rd_done(&r))
        return NEB_OK;
    return neb_fail(
        NEB_ERR_CORRUPT,
        "ledger %s/ledger.db: a manifest does not parse; nebula ledger verify names the row",
        l->dir);
}

enum neb_status inter_ledger_put_manifest(struct inter_ledger *l, const struct inter_manifest *m) {
    const struct inter_key *k = &m->key;
    struct inter_manifest old;
    struct neb_buf b = {0};
    NEB_TRY(inter_db_begin(l));
    enum neb_status st = inter_db_fetch(l, &b,
                                        "SELECT body FROM manifest WHERE job=? AND fragment=? AND "
                                        "round=? AND member=? AND attempt=?",
                                        "biiii", INTER_JOB(k->job), (int64_t)k->fragment,
                                        (int64_t)k->round, (int64_t)k->member, (int64_t)k->attempt);
    if (st == NEB_OK) {
        st = parse_manifest(l, &b, &old);
        if (st == NEB_OK && memcmp(old.sha256, m->sha256, sizeof old.sha256))
            st = neb_fail(
                NEB_ERR_EXISTS,
                "ledger %s: round %u, fragment %u: a second digest of member %u is refused", l->dir,
                k->round, k->fragment, k->member);
    } else if (st == NEB_ERR_NOT_FOUND) {
        neb_buf_clear(&b);
        inter_manifest_put(&b, m);
        st = neb_buf_check(&b);
        if (st == NEB_OK)
            st = inter_db_run(l, "store a manifest", "INSERT INTO manifest VALUES(?,?,?,?,?,?)",
                              "biiiib", INTER_JOB(k->job), (int64_t)k->fragment, (int64_t)k->round,
                              (int64_t)k->member, (int64_t)k->attempt, (const void *)b.p, b.len);
        if (st == NEB_OK)
            st = inter_db_run(l, "count a manifest",
                              "INSERT INTO promise VALUES(?,?,?,1,NULL) ON CONFLICT DO UPDATE SET "
                              "manifests=manifests+1",
                              "bii", INTER_JOB(k->job), (int64_t)k->fragment, (int64_t)k->round);
    }
    neb_buf_free(&b);
    return inter_db_end(l, st);
}

enum neb_status inter_ledger_forget_manifest(struct inter_ledger *l, const struct inter_key *k) {
    NEB_TRY(inter_db_begin(l));
    enum neb_status st = inter_db_run(l, "forget a manifest",
                                      "DELETE FROM manifest WHERE job=? AND fragment=? AND "
                                      "round=? AND member=? AND attempt=?",
                                      "biiii", INTER_JOB(k->job), (int64_t)k->fragment,
                                      (int64_t)k->round, (int64_t)k->member, (int64_t)k->attempt);
    if (st == NEB_OK)
        st = inter_db_run(l, "count a manifest",
                          "UPDATE promise SET manifests=manifests-1 WHERE job=? AND fragment=? AND "
                          "round=?",
                          "bii", INTER_JOB(k->job), (int64_t)k->fragment, (int64_t)k->round);
    NEB_TRY(inter_db_end(l, st));
    return inter_blob_discard(l, k);
}

enum neb_status inter_ledger_get_manifest(struct inter_ledger *l, const struct inter_key *k,
                                          struct inter_manifest *out) {
    struct neb_buf b = {0};
    enum neb_status st = inter_db_fetch(l, &b,
                                        "SELECT body FROM manifest WHERE job=? AND fragment=? AND "
                                        "round=? AND member=? ORDER BY attempt DESC LIMIT 1",
                                        "biii", INTER_JOB(k->job), (int64_t)k->fragment,
                                        (int64_t)k->round, (int64_t)k->member);
    if (st == NEB_OK)
        st = parse_manifest(l, &b, out);
    neb_buf_free(&b);
    return st;
}

enum neb_status inter_ledger_find_manifest(struct inter_ledger *l, const struct inter_key *k,
                                           struct inter_manifest *out) {
    struct neb_buf b = {0};
    enum neb_status st = inter_db_fetch(l, &b,
                                        "SELECT body FROM manifest WHERE job=? AND fragment=? AND "
                                        "round=? AND member=? AND attempt=?",
                                        "biiii", INTER_JOB(k->job), (int64_t)k->fragment,
                                        (int64_t)k->round, (int64_t)k->member, (int64_t)k->attempt);
    if (st == NEB_OK)
        st = parse_manifest(l, &b, out);
    neb_buf_free(&b);
    return st;
}

// ---- votes and commits --------------------------------------------------------------------------

static enum neb_status parse_record(struct inter_ledger *l, const struct neb_buf *b,
                                    struct inter_record *out) {
    struct neb_rd r = neb_rd_make(b->p, b->len);
    if (inter_record_get(&r, out) && neb_rd_done(&r))
        return NEB_OK;
    return neb_fail(
        NEB_ERR_CORRUPT,
        "ledger %s/ledger.db: a record does not parse; nebula ledger verify names the row", l->dir);
}

static bool same_record(const struct inter_record *a, const struct inter_record *b) {
    uint8_t x[INTER_SHA_BYTES], y[INTER_SHA_BYTES];
    inter_record_hash(a, x);
    inter_record_hash(b, y);
    return !memcmp(x, y, sizeof x);
}

static enum neb_status get_record(struct inter_ledger *l, const char *sql,
                                  const uint8_t job[INTER_ID_BYTES], uint32_t fragment,
                                  uint32_t round, struct inter_record *out) {
    struct neb_buf b = {0};
    enum neb_status st =
        inter_db_fetch(l, &b, sql, "bii", INTER_JOB(job), (int64_t)fragment, (int64_t)round);
    if (st == NEB_OK)
        st = parse_record(l, &b, out);
    neb_buf_free(&b);
    return st;
}

static enum neb_status put_record(struct inter_ledger *l, const char *what, const char *sql,
                                  const struct inter_record *r) {
    struct neb_buf b = {0};
    inter_record_put(&b, r);
    enum neb_status st = neb_buf_check(&b);
    if (st == NEB_OK)
        st = inter_db_run(l, what, sql, "biib", INTER_JOB(r->job), (int64_t)r->fragment,
                          (int64_t)r->round, (const void *)b.p, b.len);
    neb_buf_free(&b);
    return st;
}

enum neb_status inter_ledger_get_commit(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES],
                                        uint32_t fragment, uint32_t round,
                                        struct inter_record *out) {
    return get_record(l, "SELECT body FROM record WHERE job=? AND fragment=? AND round=?", job,
                      fragment, round, out);
}

enum neb_status inter_ledger_last_commit(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES],
                                         uint32_t fragment, struct inter_record *out) {
    return get_record(
        l,
        "SELECT body FROM record WHERE job=? AND fragment=? AND round<=? ORDER BY round DESC "
        "LIMIT 1",
        job, fragment, UINT32_MAX, out);
}

enum neb_status inter_ledger_get_vote(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES],
                                      uint32_t fragment, uint32_t round, struct inter_record *out) {
    return get_record(l, "SELECT body FROM vote WHERE job=? AND fragment=? AND round=?", job,
                      fragment, round, out);
}

static enum neb_status replace_vote(struct inter_ledger *l, const struct inter_record *r) {
    uint8_t hash[INTER_SHA_BYTES];
    inter_record_hash(r, hash);
    NEB_TRY(put_record(l, "store a vote", "INSERT OR REPLACE INTO vote VALUES(?,?,?,?)", r));
    return inter_db_run(l, "note a vote",
                        "INSERT INTO promise VALUES(?,?,?,0,?) ON CONFLICT DO UPDATE SET "
                        "vote=excluded.vote",
                        "biib", INTER_JOB(r->job), (int64_t)r->fragment, (int64_t)r->round,
                        (const void *)hash, sizeof hash);
}

enum neb_status inter_ledger_put_vote(struct inter_ledger *l, const struct inter_record *r) {
    struct inter_record old;
    NEB_TRY(inter_db_begin(l));
    enum neb_status st = inter_ledger_get_vote(l, r->job, r->fragment, r->round, &old);
    bool replace = st == NEB_ERR_NOT_FOUND || (st == NEB_OK && r->term > old.term);
    if (replace)
        st = replace_vote(l, r);
    else if (st == NEB_OK && !same_record(&old, r))
        st = neb_fail(
            NEB_ERR_EXISTS,
            "ledger %s: a second vote for round %u of fragment %u is refused: it is of term "
            "%u, and this node has voted in term %u",
            l->dir, r->round, r->fragment, r->term, old.term);
    return inter_db_end(l, st);
}

enum neb_status inter_ledger_put_standing(struct inter_ledger *l, const struct inter_standing *st) {
    struct neb_buf b = {0};
    inter_standing_put(&b, st);
    enum neb_status rc = neb_buf_check(&b);
    if (rc == NEB_OK)
        rc = inter_db_run(l, "store a standing", "INSERT OR REPLACE INTO standing VALUES(?,?)",
                          "bb", INTER_JOB(st->job), (const void *)b.p, b.len);
    neb_buf_free(&b);
    return rc;
}

enum neb_status inter_ledger_get_standing(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES],
                                          struct inter_standing *out) {
    struct neb_buf b = {0};
    enum neb_status st =
        inter_db_fetch(l, &b, "SELECT body FROM standing WHERE job=?", "b", INTER_JOB(job));
    if (st == NEB_OK) {
        struct neb_rd r = neb_rd_make(b.p, b.len);
        if (!inter_standing_get(&r, out))
            st = neb_fail(NEB_ERR_CORRUPT, "ledger %s: the stored promise of a job is damaged",
                          l->dir);
    }
    neb_buf_free(&b);
    return st;
}

// A chain grows at its end only.
static enum neb_status follows(struct inter_ledger *l, const struct inter_record *r,
                               struct inter_chain *c) {
    enum neb_status st = inter_ledger_chain(l, r->job, r->fragment, c);
    if (st == NEB_ERR_NOT_FOUND) {
        *c = (struct inter_chain){.fragment = r->fragment};
        memcpy(c->job, r->job, sizeof c->job);
        st = NEB_OK;
    }
    NEB_TRY(st);
    if (r->round != c->next)
        return neb_fail(NEB_ERR_STATE,
                        "ledger %s: a commit of round %u is refused: fragment %u is at round %u",
                        l->dir, r->round, r->fragment, c->next);
    if (memcmp(r->previous, c->head, sizeof c->head))
        return neb_fail(NEB_ERR_STATE,
                        "ledger %s: the commit of round %u, fragment %u does not follow from the "
                        "previous one here",
                        l->dir, r->round, r->fragment);
    return NEB_OK;
}

enum neb_status inter_ledger_put_commit(struct inter_ledger *l, const struct inter_record *r) {
    struct inter_record old;
    struct inter_chain c;
    NEB_TRY(inter_db_begin(l));
    enum neb_status st = inter_ledger_get_commit(l, r->job, r->fragment, r->round, &old);
    if (st == NEB_OK) {
        if (!same_record(&old, r))
            st = neb_fail(NEB_ERR_EXISTS,
                          "ledger %s: a second record for round %u of fragment %u is refused: the "
                          "round is committed",
                          l->dir, r->round, r->fragment);
        return inter_db_end(l, st);
    }
    if (st == NEB_ERR_NOT_FOUND)
        st = follows(l, r, &c);
    if (st == NEB_OK)
        st = put_record(l, "store a commit",
                        "INSERT INTO record(job, fragment, round, body) VALUES(?,?,?,?)", r);
    if (st == NEB_OK) {
        c.next = r->round + 1;
        inter_record_hash(r, c.head);
        st = inter_chain_put(l, &c);
    }
    NEB_TRY(inter_db_end(l, st));
    return inter_blob_make_room(l, 0); // the previous newest commit may be dropped now
}

// ---- jobs ---------------------------------------------------------------------------------------

enum neb_status inter_ledger_put_job(struct inter_ledger *l, const uint8_t id[INTER_ID_BYTES],
                                     const char *spec, const char *state) {
    return inter_db_run(
        l, "store a job",
        "INSERT INTO job VALUES(?,?,?) ON CONFLICT(id) DO UPDATE SET spec=excluded.spec, "
        "state=excluded.state",
        "btt", INTER_JOB(id), spec, state);
}

enum neb_status inter_ledger_jobs(struct inter_ledger *l, inter_ledger_job *fn, void *user) {
    sqlite3_stmt *s = NULL;
    bool row = false;
    NEB_TRY(inter_db_prepare(l, &s, "SELECT id, spec, state FROM job", ""));
    enum neb_status st;
    while ((st = inter_db_next(l, s, &row)) == NEB_OK && row)
        if (sqlite3_column_bytes(s, 0) == INTER_ID_BYTES)
            fn(user, sqlite3_column_blob(s, 0), (const char *)sqlite3_column_text(s, 1),
               (const char *)sqlite3_column_text(s, 2));
    sqlite3_finalize(s);
    return st;
}
