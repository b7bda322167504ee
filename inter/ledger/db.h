// SPDX-License-Identifier: Apache-2.0
// What the parts of the ledger share: the handle, statements, transactions, names of blob files. For inter/ledger/*.c
// only; inter_db_private is for the other database, inter/stream/spool.c, too.
#ifndef INTER_LEDGER_DB_H
#define INTER_LEDGER_DB_H
#include "inter/ledger/ledger.h"
#include "security/seal_chunks.h"
#include "security/vault.h"

#include <sqlite3.h>

enum {
    INTER_LEDGER_VERSION = 5, // of the tables; PRAGMA user_version
    // blobs that arrive at once: one of each member and fragment of as many jobs as a node has open
    INTER_LEDGER_ARRIVING_MAX = 8 * INTER_FRAGMENTS_MAX * INTER_MEMBERS_MAX,
};

struct inter_part {    // an arriving blob
    bool open, hashed; // hashed: inter_ledger_part_hashed
    bool again;        // of a round that is committed
    struct inter_key key;
    int fd;           // -1: closed for others, until it is used again
    uint64_t touched; // when, by inter_ledger.touches
    uint32_t bytes, chunk_bytes, unsaved;
    struct inter_bitmap got;
    struct sec_chunks *seal; // NULL: in clear
};

struct inter_ledger {
    sqlite3 *db;
    int lock; // descriptor of ledger.lock, held while open for writing; -1: read-only
    uint64_t epoch;
    const struct sec_seal_key *seal; // NULL: blobs are written in clear
    uint64_t cap, used; // bytes of blobs: most (0: no limit), and those here or arriving
    struct inter_dropped dropped;
    char dir[NEB_PATH_MAX], blobs[NEB_PATH_MAX];
    struct inter_part *parts; // (n_parts), owned; in use where `open`
    size_t n_parts;
    uint64_t touches;
    struct neb_buf sealed; // a chunk of a part on its way, with its seal
};

#define INTER_JOB(id) (const void *)(id), (size_t)INTER_ID_BYTES

// Logs what SQLite says and maps it: full disk NEB_ERR_NOSPC, damaged file NEB_ERR_CORRUPT, else NEB_ERR_IO.
NEB_MUST_CHECK enum neb_status inter_db_fail(const struct inter_ledger *l, const char *what);
// SQLite would make the file readable for all; its -wal and -shm take the mode over. What an earlier version left open is closed.
NEB_MUST_CHECK enum neb_status inter_db_private(const char *path);
// types, a letter an argument: 'b' blob (const void *, size_t), 'i' integer (int64_t), 't' text. They are borrowed until the
// statement is finalised.
NEB_MUST_CHECK enum neb_status inter_db_prepare(struct inter_ledger *l, sqlite3_stmt **out,
                                                const char *sql, const char *types, ...);
// *row: there is one more.
NEB_MUST_CHECK enum neb_status inter_db_next(struct inter_ledger *l, sqlite3_stmt *s, bool *row);
NEB_MUST_CHECK enum neb_status inter_db_run(struct inter_ledger *l, const char *what,
                                            const char *sql, const char *types, ...);
// First column of the first row, copied. NEB_ERR_NOT_FOUND (not logged) without a row.
NEB_MUST_CHECK enum neb_status inter_db_fetch(struct inter_ledger *l, struct neb_buf *out,
                                              const char *sql, const char *types, ...);
NEB_MUST_CHECK enum neb_status inter_db_begin(struct inter_ledger *l);
// Commits when st is NEB_OK, else rolls back and returns st. Nothing of a transaction that failed is there.
NEB_MUST_CHECK enum neb_status inter_db_end(struct inter_ledger *l, enum neb_status st);

NEB_MUST_CHECK enum neb_status inter_chain_put(struct inter_ledger *l, const struct inter_chain *c);
// False: no room for so many bytes beside `reserve` (INTER_LEDGER_RESERVE). Also where the disk does not say.
bool inter_blob_fits(const struct inter_ledger *l, uint64_t bytes, uint64_t reserve);
// Deletes a fragment's manifests and votes of rounds below `round`, within a transaction.
NEB_MUST_CHECK enum neb_status inter_db_forget(struct inter_ledger *l,
                                               const uint8_t job[INTER_ID_BYTES], uint32_t fragment,
                                               uint32_t round);

// Within a transaction, of a job whose id is taken for ever.
NEB_MUST_CHECK enum neb_status inter_db_forget_reveals(struct inter_ledger *l,
                                                       const uint8_t job[INTER_ID_BYTES]);

// Blob files: BLOBS/JOB-fF-rROUND-mM-aA.{blob,part,map}; another suffix .tmp while one is written.
NEB_MUST_CHECK enum neb_status inter_blob_path(const struct inter_ledger *l,
                                               const struct inter_key *k, const char *suffix,
                                               char *out, size_t cap);
// The key in a file name and its suffix; false: no such name.
bool inter_blob_parse(const char *name, struct inter_key *k, const char **suffix);
// At opening: removes what no manifest promises and what was given up (below `kept`), and counts the rest.
NEB_MUST_CHECK enum neb_status inter_blob_sweep(struct inter_ledger *l);
// Drops the oldest committed rounds until `more` bytes fit under the cap, or nothing is left to drop.
NEB_MUST_CHECK enum neb_status inter_blob_make_room(struct inter_ledger *l, uint64_t more);
void inter_part_close(struct inter_part *p);
// Gives up an arriving blob; its files stay. No effect without one.
void inter_part_drop(struct inter_ledger *l, const struct inter_key *k);
// Removes all files of one update, arriving or here.
NEB_MUST_CHECK enum neb_status inter_blob_discard(struct inter_ledger *l,
                                                  const struct inter_key *k);
uint64_t inter_blob_bytes(const char *path); // of a file; 0: none
NEB_MUST_CHECK enum neb_status inter_blob_remove(const char *path);

#endif
