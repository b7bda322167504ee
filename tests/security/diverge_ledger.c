// SPDX-License-Identifier: Apache-2.0
// For test_diverged.sh: makes one member's ledger diverge, as if the leader had equivocated to this
// member alone. The last record of fragment 0 becomes another one with the same round and term. The
// leader signs it, and both vote for it, with the keys in their homes.
//
//     diverge_ledger HOME HOME_OF_MEMBER_0 HOME_OF_MEMBER_1 …
//
// Exit status 2: nothing is changed, because member 0 does not lead the record, or because the
// record of the others holds this member's vote, so this member would equivocate too.
#include "inter/ledger/ledger.h"
#include "security/identity.h"
#include "security/sign.h"

#include <sqlite3.h>
#include <string.h>

static struct inter_record last;
static bool found;

static void remember(void *user, const struct inter_chain *c) {
    if (c->fragment == 0)
        found = inter_ledger_last_commit(user, c->job, 0, &last) == NEB_OK;
}

static enum neb_status vote(struct sec_identity *id, uint8_t member, uint64_t epoch) {
    struct inter_accept *a = &last.accepts[last.n_accepts++];
    struct neb_buf b = {0};
    uint8_t hash[INTER_SHA_BYTES];
    *a = (struct inter_accept){.member = member, .epoch = epoch};
    inter_record_hash(&last, hash);
    inter_accept_put_body(&b, &last, hash, epoch);
    enum neb_status st = sec_sign(id, SEC_CONTEXT_ACCEPT, b.p, b.len, a->sig);
    neb_buf_free(&b);
    return st;
}

static enum neb_status sign(struct sec_identity *leader) {
    struct neb_buf b = {0};
    inter_record_put_body(&b, &last);
    enum neb_status st = sec_sign(leader, SEC_CONTEXT_RECORD, b.p, b.len, last.sig);
    neb_buf_free(&b);
    return st;
}

static bool run(sqlite3 *db, const char *sql, const void *blob, size_t n) {
    sqlite3_stmt *s = NULL;
    bool good = sqlite3_prepare_v2(db, sql, -1, &s, NULL) == SQLITE_OK &&
                sqlite3_bind_blob(s, 1, last.job, sizeof last.job, SQLITE_STATIC) == SQLITE_OK &&
                sqlite3_bind_int64(s, 2, last.round) == SQLITE_OK &&
                (!blob || sqlite3_bind_blob(s, 3, blob, (int)n, SQLITE_STATIC) == SQLITE_OK) &&
                sqlite3_step(s) == SQLITE_DONE;
    sqlite3_finalize(s);
    return good;
}

// Stores the record and the end of the chain, and removes votes for what follows from the previous
// record.
static bool store(const char *home) {
    char path[NEB_PATH_MAX];
    sqlite3 *db = NULL;
    struct neb_buf b = {0};
    uint8_t head[INTER_SHA_BYTES];
    inter_record_put(&b, &last);
    inter_record_hash(&last, head);
    bool good =
        neb_path(path, sizeof path, home, "ledger.db") == NEB_OK &&
        sqlite3_open(path, &db) == SQLITE_OK &&
        run(db, "UPDATE record SET body=?3 WHERE job=?1 AND fragment=0 AND round=?2", b.p, b.len) &&
        run(db, "UPDATE chain SET head=?3 WHERE job=?1 AND fragment=0 AND next=?2+1", head,
            sizeof head) &&
        run(db, "DELETE FROM vote WHERE job=?1 AND round>=?2", NULL, 0) &&
        run(db, "UPDATE promise SET vote=NULL WHERE job=?1 AND round>=?2", NULL, 0);
    sqlite3_close(db);
    neb_buf_free(&b);
    return good;
}

int main(int argc, char **argv) {
    struct inter_ledger *l = NULL;
    struct inter_standing standing;
    struct sec_identity *self = NULL, *leader = NULL;
    int me = -1;
    uint64_t epoch = 0;
    for (int i = 2; i < argc; i++)
        me = strcmp(argv[1], argv[i]) ? me : i - 2;
    if (me <= 0 || sec_init() != NEB_OK || inter_ledger_open_readonly(argv[1], &l) != NEB_OK ||
        inter_ledger_chains(l, remember, l) != NEB_OK || !found ||
        inter_ledger_get_standing(l, last.job, &standing) != NEB_OK)
        return 1;
    inter_ledger_close(&l);
    if (last.leader != 0)
        return 2;
    for (uint8_t i = 0; i < last.n_accepts; i++) {
        if (last.accepts[i].member == me)
            return 2;
        epoch = last.accepts[i].member == last.leader ? last.accepts[i].epoch : epoch;
    }
    if (!epoch || sec_identity_load(argv[1], &self) != NEB_OK ||
        sec_identity_load(argv[2], &leader) != NEB_OK)
        return 1;
    last.plans[me].interval++; // a value that the leader may choose
    last.n_accepts = 0;
    // ascending by member
    if (vote(leader, 0, epoch) != NEB_OK || vote(self, (uint8_t)me, standing.epoch) != NEB_OK ||
        sign(leader) != NEB_OK || !store(argv[1]))
        return 1;
    sec_identity_destroy(&self);
    sec_identity_destroy(&leader);
    return 0;
}
