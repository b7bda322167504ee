// The ledger of one agent: what it promised and what was committed, on disk before anybody hears of it.
//
//     DIR/ledger.db     SQLite (WAL, synchronous FULL): jobs, manifests, votes, commits, messages to deliver
//     DIR/blobs/…       one file an update; .part and .map while it arrives
//
// Every put returns only when the data is durable. Disk full: NEB_ERR_NOSPC, and nothing of what was there is lost.
// Threads: one.
#ifndef INTER_LEDGER_H
#define INTER_LEDGER_H
#include "agent/base/fs.h"
#include "inter/transfer.h"

struct inter_ledger;
NEB_MUST_CHECK enum neb_status inter_ledger_open(const char *dir, struct inter_ledger **out);
void inter_ledger_close(struct inter_ledger **l);

NEB_MUST_CHECK enum neb_status inter_ledger_put_manifest(struct inter_ledger *l,
                                                         const struct inter_manifest *m);
NEB_MUST_CHECK enum neb_status inter_ledger_put_vote(struct inter_ledger *l,
                                                     const struct inter_record *r);
NEB_MUST_CHECK enum neb_status inter_ledger_put_commit(struct inter_ledger *l,
                                                       const struct inter_record *r);
// NEB_ERR_NOT_FOUND (not logged) when there is none.
NEB_MUST_CHECK enum neb_status inter_ledger_get_commit(struct inter_ledger *l,
                                                       const uint8_t job[INTER_ID_BYTES],
                                                       uint32_t fragment, uint32_t round,
                                                       struct inter_record *out);
NEB_MUST_CHECK enum neb_status inter_ledger_last_commit(struct inter_ledger *l,
                                                        const uint8_t job[INTER_ID_BYTES],
                                                        uint32_t fragment,
                                                        struct inter_record *out);
NEB_MUST_CHECK enum neb_status inter_ledger_get_manifest(struct inter_ledger *l,
                                                         const struct inter_key *key,
                                                         struct inter_manifest *out);
NEB_MUST_CHECK enum neb_status inter_ledger_get_vote(struct inter_ledger *l,
                                                     const uint8_t job[INTER_ID_BYTES],
                                                     uint32_t fragment, uint32_t round,
                                                     struct inter_record *out);
// Walks the chain of a job's records; NEB_ERR_CORRUPT names the round where it breaks. *n: records seen.
NEB_MUST_CHECK enum neb_status inter_ledger_verify(struct inter_ledger *l,
                                                   const uint8_t job[INTER_ID_BYTES],
                                                   uint32_t fragment, uint32_t *n);

// Whole blob at once (this node's own update).
NEB_MUST_CHECK enum neb_status
inter_ledger_put_blob(struct inter_ledger *l, const struct inter_key *key, const void *p, size_t n);
// A blob that arrives in chunks. got: filled with what an earlier run left on disk.
NEB_MUST_CHECK enum neb_status inter_ledger_part_open(struct inter_ledger *l,
                                                      const struct inter_manifest *m,
                                                      struct inter_bitmap *got);
NEB_MUST_CHECK enum neb_status inter_ledger_part_write(struct inter_ledger *l,
                                                       const struct inter_key *key, uint64_t offset,
                                                       const void *p, size_t n);
// Verifies SHA-256, syncs, renames. NEB_ERR_CORRUPT: not the manifest's blob; the part is emptied.
NEB_MUST_CHECK enum neb_status inter_ledger_part_finish(struct inter_ledger *l,
                                                        const struct inter_manifest *m);
bool inter_ledger_has_blob(struct inter_ledger *l, const struct inter_key *key);
NEB_MUST_CHECK enum neb_status
inter_ledger_map_blob(struct inter_ledger *l, const struct inter_key *key, struct neb_map *out);
// Drops blobs of a fragment's rounds below `round` (records stay).
NEB_MUST_CHECK enum neb_status inter_ledger_prune(struct inter_ledger *l,
                                                  const uint8_t job[INTER_ID_BYTES],
                                                  uint32_t fragment, uint32_t round);

// Jobs that this agent takes part in: spec and state as text.
NEB_MUST_CHECK enum neb_status inter_ledger_put_job(struct inter_ledger *l,
                                                    const uint8_t id[INTER_ID_BYTES],
                                                    const char *spec, const char *state);
typedef void inter_ledger_job(void *user, const uint8_t id[INTER_ID_BYTES], const char *spec,
                              const char *state);
NEB_MUST_CHECK enum neb_status inter_ledger_jobs(struct inter_ledger *l, inter_ledger_job *fn,
                                                 void *user);

// Messages that must arrive: kept until acknowledged; a receiver remembers the last number it took from each peer.
NEB_MUST_CHECK enum neb_status inter_ledger_post(struct inter_ledger *l, const char *peer,
                                                 uint32_t kind, const void *p, size_t n,
                                                 uint64_t *seq);
NEB_MUST_CHECK enum neb_status inter_ledger_posted(struct inter_ledger *l, const char *peer,
                                                   uint64_t seq); // acknowledged up to seq
typedef void inter_ledger_message(void *user, uint64_t seq, uint32_t kind, const uint8_t *p,
                                  size_t n);
NEB_MUST_CHECK enum neb_status inter_ledger_pending(struct inter_ledger *l, const char *peer,
                                                    inter_ledger_message *fn, void *user);
NEB_MUST_CHECK enum neb_status inter_ledger_taken(struct inter_ledger *l, const char *peer,
                                                  uint64_t *seq); // last taken
NEB_MUST_CHECK enum neb_status inter_ledger_take(struct inter_ledger *l, const char *peer,
                                                 uint64_t seq);

#endif
