#include "inter/ledger.h"
#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "agent/base/sha256.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    PARTS_MAX = 64,
    MAP_EVERY = 16 /* chunks between two writes of an arriving blob's bitmap */
};

struct part { // an arriving blob
    bool open;
    struct inter_key key;
    int fd;
    uint32_t chunk_bytes, unsaved;
    struct inter_bitmap got;
};

struct inter_ledger {
    sqlite3 *db;
    char dir[NEB_PATH_MAX], blobs[NEB_PATH_MAX];
    struct part parts[PARTS_MAX];
};

static const char schema[] =
    "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA user_version=1;"
    "CREATE TABLE IF NOT EXISTS job(id BLOB PRIMARY KEY, spec TEXT NOT NULL, state TEXT NOT NULL) "
    "WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS manifest(job BLOB, fragment INT, round INT, member INT, attempt "
    "INT, body BLOB NOT NULL,"
    " PRIMARY KEY(job, fragment, round, member, attempt)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS vote(job BLOB, fragment INT, round INT, body BLOB NOT NULL, "
    "PRIMARY KEY(job, fragment, round)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS record(job BLOB, fragment INT, round INT, body BLOB NOT NULL, "
    "PRIMARY KEY(job, fragment, round)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS outbox(seq INTEGER PRIMARY KEY AUTOINCREMENT, peer TEXT NOT NULL, "
    "kind INT NOT NULL, body BLOB NOT NULL);"
    "CREATE TABLE IF NOT EXISTS inbox(peer TEXT PRIMARY KEY, seq INT NOT NULL) WITHOUT ROWID;";

static enum neb_status db_fail(struct inter_ledger *l, const char *what) {
    int code = sqlite3_errcode(l->db);
    enum neb_status st = code == SQLITE_FULL                               ? NEB_ERR_NOSPC
                         : code == SQLITE_CORRUPT || code == SQLITE_NOTADB ? NEB_ERR_CORRUPT
                                                                           : NEB_ERR_IO;
    return neb_fail(st, "ledger %s/ledger.db: cannot %s: %s", l->dir, what, sqlite3_errmsg(l->db));
}

enum neb_status inter_ledger_open(const char *dir, struct inter_ledger **out) {
    enum neb_status st = NEB_OK;
    char path[NEB_PATH_MAX];
    struct inter_ledger *l = calloc(1, sizeof *l);
    if (!l)
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening a ledger");
    snprintf(l->dir, sizeof l->dir, "%s", dir);
    NEB_TRY_GOTO(neb_path(l->blobs, sizeof l->blobs, dir, "blobs"), fail);
    NEB_TRY_GOTO(neb_fs_mkdirs(l->blobs, 0700), fail);
    NEB_TRY_GOTO(neb_path(path, sizeof path, dir, "ledger.db"), fail);
    if (sqlite3_open_v2(path, &l->db,
                        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                        NULL) != SQLITE_OK ||
        sqlite3_busy_timeout(l->db, 2000) != SQLITE_OK ||
        sqlite3_exec(l->db, schema, NULL, NULL, NULL) != SQLITE_OK) {
        st = db_fail(l, "open");
        goto fail;
    }
    *out = l;
    return NEB_OK;
fail:
    inter_ledger_close(&l);
    return st;
}

static void close_part(struct part *p) {
    if (p->open)
        close(p->fd);
    inter_bitmap_free(&p->got);
    *p = (struct part){0};
}

void inter_ledger_close(struct inter_ledger **lp) {
    if (!*lp)
        return;
    for (int i = 0; i < PARTS_MAX; i++)
        close_part(&(*lp)->parts[i]);
    sqlite3_close((*lp)->db);
    free(*lp);
    *lp = NULL;
}

// ---- statements -----------------------------------------------------------------------------------------------

// Arguments of a statement: 'b' blob (pointer, size_t), 'i' integer (int64_t), 't' text.
static sqlite3_stmt *prepare(struct inter_ledger *l, const char *sql, const char *types,
                             va_list ap) {
    sqlite3_stmt *s = NULL;
    if (sqlite3_prepare_v2(l->db, sql, -1, &s, NULL) != SQLITE_OK)
        return NULL;
    for (int i = 0; types[i]; i++) {
        if (types[i] == 'b') {
            const void *p = va_arg(ap, const void *);
            sqlite3_bind_blob64(s, i + 1, p, va_arg(ap, size_t), SQLITE_STATIC);
        } else if (types[i] == 'i') {
            sqlite3_bind_int64(s, i + 1, va_arg(ap, int64_t));
        } else {
            sqlite3_bind_text(s, i + 1, va_arg(ap, const char *), -1, SQLITE_STATIC);
        }
    }
    return s;
}

static enum neb_status run(struct inter_ledger *l, const char *what, const char *sql,
                           const char *types, ...) {
    va_list ap;
    va_start(ap, types);
    sqlite3_stmt *s = prepare(l, sql, types, ap);
    va_end(ap);
    int rc = s ? neb_fault("ledger.write") ? SQLITE_FULL : sqlite3_step(s) : SQLITE_ERROR;
    if (rc == SQLITE_FULL && sqlite3_errcode(l->db) != SQLITE_FULL) { // an injected fault
        sqlite3_finalize(s);
        return neb_fail(NEB_ERR_NOSPC, "ledger %s/ledger.db: cannot %s: disk full", l->dir, what);
    }
    enum neb_status st = rc == SQLITE_DONE || rc == SQLITE_ROW ? NEB_OK : db_fail(l, what);
    sqlite3_finalize(s);
    return st;
}

// First column of the first row, copied. NEB_ERR_NOT_FOUND (not logged) without a row.
static enum neb_status fetch(struct inter_ledger *l, struct neb_buf *out, const char *sql,
                             const char *types, ...) {
    va_list ap;
    va_start(ap, types);
    sqlite3_stmt *s = prepare(l, sql, types, ap);
    va_end(ap);
    int rc = s ? sqlite3_step(s) : SQLITE_ERROR;
    enum neb_status st = rc == SQLITE_DONE  ? NEB_ERR_NOT_FOUND
                         : rc == SQLITE_ROW ? NEB_OK
                                            : db_fail(l, "read");
    neb_buf_clear(out);
    if (st == NEB_OK) {
        neb_buf_add(out, sqlite3_column_blob(s, 0), (size_t)sqlite3_column_bytes(s, 0));
        st = neb_buf_check(out);
    }
    sqlite3_finalize(s);
    return st;
}

// ---- manifests, votes, commits --------------------------------------------------------------------------------

#define JOB(id) (const void *)(id), (size_t)INTER_ID_BYTES

enum neb_status inter_ledger_put_manifest(struct inter_ledger *l, const struct inter_manifest *m) {
    struct neb_buf b = {0};
    inter_manifest_put(&b, m);
    enum neb_status st = neb_buf_check(&b);
    if (st == NEB_OK)
        st = run(l, "store a manifest", "INSERT OR IGNORE INTO manifest VALUES(?,?,?,?,?,?)",
                 "biiiib", JOB(m->key.job), (int64_t)m->key.fragment, (int64_t)m->key.round,
                 (int64_t)m->key.member, (int64_t)m->key.attempt, (const void *)b.p, b.len);
    neb_buf_free(&b);
    return st;
}

static enum neb_status put_record(struct inter_ledger *l, const char *what, const char *sql,
                                  const struct inter_record *r) {
    struct neb_buf b = {0};
    inter_record_put(&b, r);
    enum neb_status st = neb_buf_check(&b);
    if (st == NEB_OK)
        st = run(l, what, sql, "biib", JOB(r->job), (int64_t)r->fragment, (int64_t)r->round,
                 (const void *)b.p, b.len);
    neb_buf_free(&b);
    return st;
}

enum neb_status inter_ledger_put_vote(struct inter_ledger *l, const struct inter_record *r) {
    return put_record(l, "store a vote", "INSERT OR IGNORE INTO vote VALUES(?,?,?,?)", r);
}

enum neb_status inter_ledger_put_commit(struct inter_ledger *l, const struct inter_record *r) {
    return put_record(l, "store a commit", "INSERT OR IGNORE INTO record VALUES(?,?,?,?)", r);
}

static enum neb_status parse_record(struct inter_ledger *l, struct neb_buf *b,
                                    struct inter_record *out) {
    struct neb_rd r = neb_rd_make(b->p, b->len);
    bool good = inter_record_get(&r, out) && neb_rd_done(&r);
    neb_buf_free(b);
    return good ? NEB_OK
                : neb_fail(NEB_ERR_CORRUPT, "ledger %s/ledger.db: a record does not parse", l->dir);
}

enum neb_status inter_ledger_get_commit(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES],
                                        uint32_t fragment, uint32_t round,
                                        struct inter_record *out) {
    struct neb_buf b = {0};
    enum neb_status st =
        fetch(l, &b, "SELECT body FROM record WHERE job=? AND fragment=? AND round=?", "bii",
              JOB(job), (int64_t)fragment, (int64_t)round);
    if (st == NEB_OK)
        return parse_record(l, &b, out);
    neb_buf_free(&b);
    return st;
}

enum neb_status inter_ledger_last_commit(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES],
                                         uint32_t fragment, struct inter_record *out) {
    struct neb_buf b = {0};
    enum neb_status st = fetch(
        l, &b, "SELECT body FROM record WHERE job=? AND fragment=? ORDER BY round DESC LIMIT 1",
        "bi", JOB(job), (int64_t)fragment);
    if (st == NEB_OK)
        return parse_record(l, &b, out);
    neb_buf_free(&b);
    return st;
}

enum neb_status inter_ledger_get_vote(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES],
                                      uint32_t fragment, uint32_t round, struct inter_record *out) {
    struct neb_buf b = {0};
    enum neb_status st =
        fetch(l, &b, "SELECT body FROM vote WHERE job=? AND fragment=? AND round=?", "bii",
              JOB(job), (int64_t)fragment, (int64_t)round);
    if (st == NEB_OK)
        return parse_record(l, &b, out);
    neb_buf_free(&b);
    return st;
}

enum neb_status inter_ledger_get_manifest(struct inter_ledger *l, const struct inter_key *k,
                                          struct inter_manifest *out) {
    struct neb_buf b = {0};
    enum neb_status st =
        fetch(l, &b,
              "SELECT body FROM manifest WHERE job=? AND fragment=? AND round=? AND member=? ORDER "
              "BY attempt DESC",
              "biii", JOB(k->job), (int64_t)k->fragment, (int64_t)k->round, (int64_t)k->member);
    if (st == NEB_OK) {
        struct neb_rd r = neb_rd_make(b.p, b.len);
        if (!inter_manifest_get(&r, out) || !neb_rd_done(&r))
            st =
                neb_fail(NEB_ERR_CORRUPT, "ledger %s/ledger.db: a manifest does not parse", l->dir);
    }
    neb_buf_free(&b);
    return st;
}

enum neb_status inter_ledger_verify(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES],
                                    uint32_t fragment, uint32_t *n) {
    uint8_t previous[INTER_SHA_BYTES] = {0};
    struct inter_record r, last;
    *n = 0;
    enum neb_status st = inter_ledger_last_commit(l, job, fragment, &last);
    if (st == NEB_ERR_NOT_FOUND)
        return NEB_OK;
    NEB_TRY(st);
    for (uint32_t round = 0; round <= last.round; round++) {
        if (inter_ledger_get_commit(l, job, fragment, round, &r) != NEB_OK ||
            memcmp(r.previous, previous, sizeof previous))
            return neb_fail(NEB_ERR_CORRUPT,
                            "ledger %s: the chain of fragment %u breaks at round %u", l->dir,
                            fragment, round);
        inter_record_hash(&r, previous);
        ++*n;
    }
    return NEB_OK;
}

// ---- blobs ----------------------------------------------------------------------------------------------------

static enum neb_status blob_path(const struct inter_ledger *l, const struct inter_key *k,
                                 const char *suffix, char *out, size_t cap) {
    char job[2 * INTER_ID_BYTES + 1], name[160];
    neb_hex(k->job, INTER_ID_BYTES, job);
    snprintf(name, sizeof name, "%s-f%u-r%08u-m%u-a%u%s", job, k->fragment, k->round, k->member,
             k->attempt, suffix);
    return neb_path(out, cap, l->blobs, name);
}

enum neb_status inter_ledger_put_blob(struct inter_ledger *l, const struct inter_key *key,
                                      const void *p, size_t n) {
    char path[NEB_PATH_MAX];
    NEB_TRY(blob_path(l, key, ".blob", path, sizeof path));
    return neb_fs_write(path, p, n, 0600);
}

bool inter_ledger_has_blob(struct inter_ledger *l, const struct inter_key *key) {
    char path[NEB_PATH_MAX];
    return blob_path(l, key, ".blob", path, sizeof path) == NEB_OK && neb_fs_exists(path);
}

enum neb_status inter_ledger_map_blob(struct inter_ledger *l, const struct inter_key *key,
                                      struct neb_map *out) {
    char path[NEB_PATH_MAX];
    NEB_TRY(blob_path(l, key, ".blob", path, sizeof path));
    return neb_map_open(path, out);
}

static struct part *find_part(struct inter_ledger *l, const struct inter_key *k) {
    for (int i = 0; i < PARTS_MAX; i++)
        if (l->parts[i].open && inter_key_equal(&l->parts[i].key, k))
            return &l->parts[i];
    return NULL;
}

enum neb_status inter_ledger_part_open(struct inter_ledger *l, const struct inter_manifest *m,
                                       struct inter_bitmap *got) {
    char path[NEB_PATH_MAX], map[NEB_PATH_MAX];
    struct part *p = NULL;
    struct neb_buf b = {0};
    if (find_part(l, &m->key))
        return NEB_OK;
    for (int i = 0; i < PARTS_MAX && !p; i++)
        p = l->parts[i].open ? NULL : &l->parts[i];
    if (!p)
        return neb_fail(NEB_ERR_LIMIT, "ledger %s: more than %d blobs arrive at once", l->dir,
                        PARTS_MAX);
    NEB_TRY(blob_path(l, &m->key, ".part", path, sizeof path));
    NEB_TRY(blob_path(l, &m->key, ".map", map, sizeof map));
    NEB_TRY(inter_bitmap_init(&p->got, inter_chunks(m->bytes, m->chunk_bytes)));
    p->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (p->fd < 0) {
        inter_bitmap_free(&p->got);
        return neb_fail_errno("cannot create %s", path);
    }
    p->open = true;
    p->key = m->key;
    p->chunk_bytes = m->chunk_bytes;
    // What an earlier run had received: only a hint, the digest of the whole decides in the end.
    if (neb_fs_exists(map) && neb_fs_read(map, INTER_CHUNKS_MAX, &b) == NEB_OK &&
        inter_bitmap_merge(&p->got, b.p, b.len))
        (void)inter_bitmap_merge(got, b.p, b.len);
    neb_buf_free(&b);
    return NEB_OK;
}

static enum neb_status save_map(struct inter_ledger *l, struct part *p) {
    char map[NEB_PATH_MAX];
    NEB_TRY(blob_path(l, &p->key, ".map", map, sizeof map));
    p->unsaved = 0;
    if (fdatasync(p->fd) != 0)
        return neb_fail_errno("cannot sync an arriving blob");
    return neb_fs_write(map, p->got.bits, (p->got.n + 7) / 8, 0600);
}

enum neb_status inter_ledger_part_write(struct inter_ledger *l, const struct inter_key *key,
                                        uint64_t offset, const void *data, size_t n) {
    struct part *p = find_part(l, key);
    const uint8_t *at = data;
    NEB_ASSERT(p);
    for (size_t done = 0; done < n;) {
        ssize_t k = neb_fault("ledger.blob")
                        ? (errno = ENOSPC, -1)
                        : pwrite(p->fd, at + done, n - done, (off_t)(offset + done));
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return neb_fail_errno("ledger %s: cannot write an arriving update", l->dir);
        done += (size_t)k;
    }
    inter_bitmap_set(&p->got, (uint32_t)(offset / p->chunk_bytes));
    return ++p->unsaved >= MAP_EVERY ? save_map(l, p) : NEB_OK;
}

enum neb_status inter_ledger_part_finish(struct inter_ledger *l, const struct inter_manifest *m) {
    char path[NEB_PATH_MAX], part[NEB_PATH_MAX], map[NEB_PATH_MAX];
    struct part *p = find_part(l, &m->key);
    struct neb_map bytes;
    uint8_t sha[INTER_SHA_BYTES];
    NEB_ASSERT(p);
    NEB_TRY(blob_path(l, &m->key, ".blob", path, sizeof path));
    NEB_TRY(blob_path(l, &m->key, ".part", part, sizeof part));
    NEB_TRY(blob_path(l, &m->key, ".map", map, sizeof map));
    if (fsync(p->fd) != 0)
        return neb_fail_errno("cannot sync %s", part);
    NEB_TRY(neb_map_open(part, &bytes));
    neb_sha256(bytes.p, bytes.len, sha);
    bool good = bytes.len == m->bytes && !memcmp(sha, m->sha256, sizeof sha);
    neb_map_close(&bytes);
    if (!good) {
        memset(p->got.bits, 0, (p->got.n + 7) / 8);
        p->got.set = 0;
        if (ftruncate(p->fd, 0) != 0)
            return neb_fail_errno("cannot empty %s", part);
        NEB_TRY(neb_fs_remove(map));
        return neb_fail(
            NEB_ERR_CORRUPT,
            "an update of member %u for round %u arrived damaged; it will be sent again",
            m->key.member, m->key.round);
    }
    if (rename(part, path) != 0)
        return neb_fail_errno("cannot rename %s", part);
    NEB_TRY(neb_fs_sync_dir(l->blobs));
    close_part(p);
    return neb_fs_remove(map);
}

enum neb_status inter_ledger_prune(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES],
                                   uint32_t fragment, uint32_t round) {
    sqlite3_stmt *s = NULL;
    enum neb_status st = NEB_OK;
    if (sqlite3_prepare_v2(
            l->db,
            "SELECT round, member, attempt FROM manifest WHERE job=? AND fragment=? AND round<?",
            -1, &s, NULL) != SQLITE_OK)
        return db_fail(l, "read manifests");
    sqlite3_bind_blob(s, 1, job, INTER_ID_BYTES, SQLITE_STATIC);
    sqlite3_bind_int64(s, 2, fragment);
    sqlite3_bind_int64(s, 3, round);
    while (st == NEB_OK && sqlite3_step(s) == SQLITE_ROW) {
        char path[NEB_PATH_MAX];
        struct inter_key k = {.round = (uint32_t)sqlite3_column_int64(s, 0),
                              .fragment = fragment,
                              .member = (uint8_t)sqlite3_column_int(s, 1),
                              .attempt = (uint32_t)sqlite3_column_int64(s, 2)};
        memcpy(k.job, job, sizeof k.job);
        st = blob_path(l, &k, ".blob", path, sizeof path);
        if (st == NEB_OK)
            st = neb_fs_remove(path);
    }
    sqlite3_finalize(s);
    if (st != NEB_OK)
        return st;
    NEB_TRY(run(l, "prune manifests", "DELETE FROM manifest WHERE job=? AND fragment=? AND round<?",
                "bii", JOB(job), (int64_t)fragment, (int64_t)round));
    return run(l, "prune votes", "DELETE FROM vote WHERE job=? AND fragment=? AND round<?", "bii",
               JOB(job), (int64_t)fragment, (int64_t)round);
}

// ---- jobs and messages ----------------------------------------------------------------------------------------

enum neb_status inter_ledger_put_job(struct inter_ledger *l, const uint8_t id[INTER_ID_BYTES],
                                     const char *spec, const char *state) {
    return run(l, "store a job",
               "INSERT INTO job VALUES(?,?,?) ON CONFLICT(id) DO UPDATE SET spec=excluded.spec, "
               "state=excluded.state",
               "btt", JOB(id), spec, state);
}

enum neb_status inter_ledger_jobs(struct inter_ledger *l, inter_ledger_job *fn, void *user) {
    sqlite3_stmt *s = NULL;
    if (sqlite3_prepare_v2(l->db, "SELECT id, spec, state FROM job", -1, &s, NULL) != SQLITE_OK)
        return db_fail(l, "read jobs");
    while (sqlite3_step(s) == SQLITE_ROW)
        if (sqlite3_column_bytes(s, 0) == INTER_ID_BYTES)
            fn(user, sqlite3_column_blob(s, 0), (const char *)sqlite3_column_text(s, 1),
               (const char *)sqlite3_column_text(s, 2));
    sqlite3_finalize(s);
    return NEB_OK;
}

enum neb_status inter_ledger_post(struct inter_ledger *l, const char *peer, uint32_t kind,
                                  const void *p, size_t n, uint64_t *seq) {
    NEB_TRY(run(l, "store a message", "INSERT INTO outbox(peer, kind, body) VALUES(?,?,?)", "tib",
                peer, (int64_t)kind, p, n));
    *seq = (uint64_t)sqlite3_last_insert_rowid(l->db);
    return NEB_OK;
}

enum neb_status inter_ledger_posted(struct inter_ledger *l, const char *peer, uint64_t seq) {
    return run(l, "remove a message", "DELETE FROM outbox WHERE peer=? AND seq<=?", "ti", peer,
               (int64_t)seq);
}

enum neb_status inter_ledger_pending(struct inter_ledger *l, const char *peer,
                                     inter_ledger_message *fn, void *user) {
    sqlite3_stmt *s = NULL;
    if (sqlite3_prepare_v2(l->db, "SELECT seq, kind, body FROM outbox WHERE peer=? ORDER BY seq",
                           -1, &s, NULL) != SQLITE_OK)
        return db_fail(l, "read messages");
    sqlite3_bind_text(s, 1, peer, -1, SQLITE_STATIC);
    while (sqlite3_step(s) == SQLITE_ROW)
        fn(user, (uint64_t)sqlite3_column_int64(s, 0), (uint32_t)sqlite3_column_int64(s, 1),
           sqlite3_column_blob(s, 2), (size_t)sqlite3_column_bytes(s, 2));
    sqlite3_finalize(s);
    return NEB_OK;
}

enum neb_status inter_ledger_taken(struct inter_ledger *l, const char *peer, uint64_t *seq) {
    struct neb_buf b = {0};
    *seq = 0;
    enum neb_status st =
        fetch(l, &b, "SELECT CAST(seq AS TEXT) FROM inbox WHERE peer=?", "t", peer);
    if (st == NEB_OK) {
        neb_buf_u8(&b, 0);
        *seq = strtoull((const char *)b.p, NULL, 10);
    }
    neb_buf_free(&b);
    return st == NEB_ERR_NOT_FOUND ? NEB_OK : st;
}

enum neb_status inter_ledger_take(struct inter_ledger *l, const char *peer, uint64_t seq) {
    return run(l, "store a receipt",
               "INSERT INTO inbox VALUES(?,?) ON CONFLICT(peer) DO UPDATE SET seq=excluded.seq",
               "ti", peer, (int64_t)seq);
}
