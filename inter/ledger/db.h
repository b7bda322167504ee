// SPDX-License-Identifier: Apache-2.0
// Shared by the files of the ledger: handle, statements, transactions, names of blob files. Only
// inter/ledger/*.c use it; inter/stream/spool.c uses inter_db_private for its own database.
#ifndef INTER_LEDGER_DB_H
#define INTER_LEDGER_DB_H
#include "inter/ledger/ledger.h"
#include "security/seal_chunks.h"
#include "security/vault.h"

#include <sqlite3.h>

enum {
    INTER_LEDGER_VERSION = 5, // of the tables; PRAGMA user_version
    // Limit of blobs that arrive at the same time: one per member and fragment, over all jobs of a
    // node.
    INTER_LEDGER_ARRIVING_MAX = 8 * INTER_FRAGMENTS_MAX * NEB_MEMBERS_MAX,
};

struct inter_part {    // an arriving blob
    bool open, hashed; // hashed: inter_ledger_part_hashed
    bool again;        // of a committed round
    struct inter_key key;
    int fd;           // -1: closed until the next use, because too many were open
    uint64_t touched; // last use, by inter_ledger.touches
    uint32_t bytes, chunk_bytes, unsaved;
    struct inter_bitmap got;
    struct sec_chunks *seal; // NULL: in clear
};

struct inter_ledger {
    sqlite3 *db;
    int lock; // descriptor of ledger.lock, held while open for writing; -1: read-only
    uint64_t epoch;
    const struct sec_seal_key *seal; // NULL: blobs are written in clear
    uint64_t cap, used;              // bytes of blobs: limit (0: none), and those here or arriving
    struct inter_dropped dropped;
    char dir[NEB_PATH_MAX], blobs[NEB_PATH_MAX];
    struct inter_part *parts; // (n_parts) owned; in use if `open`
    size_t n_parts;
    uint64_t touches;
    struct neb_buf sealed; // scratch: one chunk of a part with its seal
};

#define INTER_JOB(id) (const void *)(id), (size_t)INTER_ID_BYTES

// Logs SQLite's message and maps its code: full disk NEB_ERR_NOSPC, damaged file NEB_ERR_CORRUPT,
// otherwise NEB_ERR_IO.
NEB_MUST_CHECK enum neb_status inter_db_fail(const struct inter_ledger *l, const char *what);
// SQLite would create the file readable for all users, and its -wal and -shm files get the same
// mode. Makes all three private, existing ones too.
NEB_MUST_CHECK enum neb_status inter_db_private(const char *path);
// types: one letter per argument, 'b' blob (const void *, size_t), 'i' integer (int64_t), 't' text.
// Arguments are borrowed until the statement is finalised.
NEB_MUST_CHECK enum neb_status inter_db_prepare(struct inter_ledger *l, sqlite3_stmt **out,
                                                const char *sql, const char *types, ...);
// *row: true if there is one more row.
NEB_MUST_CHECK enum neb_status inter_db_next(struct inter_ledger *l, sqlite3_stmt *s, bool *row);
NEB_MUST_CHECK enum neb_status inter_db_run(struct inter_ledger *l, const char *what,
                                            const char *sql, const char *types, ...);
// Copies the first column of the first row. NEB_ERR_NOT_FOUND (not logged): no row.
NEB_MUST_CHECK enum neb_status inter_db_fetch(struct inter_ledger *l, struct neb_buf *out,
                                              const char *sql, const char *types, ...);
NEB_MUST_CHECK enum neb_status inter_db_begin(struct inter_ledger *l);
// Commits if st is NEB_OK, otherwise rolls back and returns st. A failed transaction leaves
// nothing.
NEB_MUST_CHECK enum neb_status inter_db_end(struct inter_ledger *l, enum neb_status st);

NEB_MUST_CHECK enum neb_status inter_chain_put(struct inter_ledger *l, const struct inter_chain *c);
// False: no room for so many bytes besides `reserve` (INTER_LEDGER_RESERVE). Also true if the free
// space is not known.
bool inter_blob_fits(const struct inter_ledger *l, uint64_t bytes, uint64_t reserve);
// Deletes a fragment's manifests, votes and promises of rounds below `round`. Call it within a
// transaction.
NEB_MUST_CHECK enum neb_status inter_db_forget(struct inter_ledger *l,
                                               const uint8_t job[INTER_ID_BYTES], uint32_t fragment,
                                               uint32_t round);

// For a job whose id is never used again. Call it within a transaction.
NEB_MUST_CHECK enum neb_status inter_db_forget_reveals(struct inter_ledger *l,
                                                       const uint8_t job[INTER_ID_BYTES]);

// Blob files: BLOBS/JOB-fF-rROUND-mM-aA.{blob,part,map}; another suffix .tmp during the write.
NEB_MUST_CHECK enum neb_status inter_blob_path(const struct inter_ledger *l,
                                               const struct inter_key *k, const char *suffix,
                                               char *out, size_t cap);
// Takes the key and the suffix from a file name. False: not the name of a blob file.
bool inter_blob_parse(const char *name, struct inter_key *k, const char **suffix);
// At opening: removes files that no manifest promises or that were dropped (below `kept`), and
// counts the bytes of the rest.
NEB_MUST_CHECK enum neb_status inter_blob_sweep(struct inter_ledger *l);
// Drops the oldest committed rounds until `more` bytes fit under the cap, if it can.
NEB_MUST_CHECK enum neb_status inter_blob_make_room(struct inter_ledger *l, uint64_t more);
void inter_part_close(struct inter_part *p);
// Closes an arriving blob; its files stay. Does nothing if there is none.
void inter_part_drop(struct inter_ledger *l, const struct inter_key *k);
// Removes all files of an update, arriving or complete.
NEB_MUST_CHECK enum neb_status inter_blob_discard(struct inter_ledger *l,
                                                  const struct inter_key *k);
uint64_t inter_blob_bytes(const char *path); // of a file; 0: no file
NEB_MUST_CHECK enum neb_status inter_blob_remove(const char *path);

#endif
