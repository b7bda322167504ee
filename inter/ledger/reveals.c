// SPDX-License-Identifier: Apache-2.0
// The record of each round for which this member has revealed seeds of masked sums
// (inter/round/sums.h). A row stays as long as the job's id is known, because a round has the same
// masks again if the job's rounds restart.
#include "inter/ledger/db.h"

#include <string.h>

// Created at first use: most ledgers have no masked sums.
static const char make[] =
    "CREATE TABLE IF NOT EXISTS reveal(job BLOB, fragment INT, round INT, record BLOB NOT NULL, "
    "attempt INT, sha BLOB, PRIMARY KEY(job, fragment, round)) WITHOUT ROWID";

enum neb_status inter_ledger_put_reveal(struct inter_ledger *l, const struct inter_record *r,
                                        uint8_t self) {
    uint8_t hash[INTER_SHA_BYTES];
    struct neb_buf b = {0};
    const struct inter_entry *own = NULL;
    for (uint8_t i = 0; i < r->n; i++)
        if (r->entries[i].member == self)
            own = &r->entries[i];
    inter_record_hash(r, hash);
    NEB_TRY(inter_db_run(l, "make a table", make, ""));
    // Durable when it returns (synchronous FULL). The first record stands.
    NEB_TRY(inter_db_run(
        l, "note what is revealed", "INSERT OR IGNORE INTO reveal VALUES(?,?,?,?,?,?)", "biibib",
        INTER_JOB(r->job), (int64_t)r->fragment, (int64_t)r->round, (const void *)hash, sizeof hash,
        (int64_t)(own ? own->attempt : 0), (const void *)(own ? own->sha256 : NULL),
        own ? sizeof own->sha256 : (size_t)0));
    NEB_TRY(inter_db_fetch(l, &b,
                           "SELECT record FROM reveal WHERE job=? AND fragment=? AND round=?",
                           "bii", INTER_JOB(r->job), (int64_t)r->fragment, (int64_t)r->round));
    bool same = b.len == sizeof hash && !memcmp(b.p, hash, sizeof hash);
    neb_buf_free(&b);
    return same ? NEB_OK : NEB_ERR_EXISTS;
}

enum neb_status inter_db_forget_reveals(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES]) {
    NEB_TRY(inter_db_run(l, "make a table", make, ""));
    return inter_db_run(l, "forget what was revealed", "DELETE FROM reveal WHERE job=?", "b",
                        INTER_JOB(job));
}
