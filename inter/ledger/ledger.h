// SPDX-License-Identifier: Apache-2.0
// The ledger of one agent: what it promised and what was committed, on disk before anybody hears of it.
//
//     DIR/ledger.db     SQLite (WAL, synchronous FULL): jobs, manifests, votes, commits, messages to deliver
//     DIR/ledger.lock   held by the one process that writes
//     DIR/blobs/…       one file an update; .part and .map while it arrives
//
//     rounds of one fragment:
//       first ───────────── floor ───────── kept ─────────────────── next
//         │ records only      │ + manifests   │ + manifests and blobs   │ open: manifests, blobs, a vote
//         chain of records ───┴───────────────┴─────────────────────────┘
//
// Every put returns only when the data is durable, and a put that failed left nothing. Disk full: NEB_ERR_NOSPC, and
// nothing of what was there is lost. A second, different value under a key that was promised is refused with
// NEB_ERR_EXISTS; the same again is fine. A blob without a manifest was promised to nobody: the next opening removes it.
// Other errors: NEB_ERR_IO, NEB_ERR_CORRUPT (the database or a row is damaged: nebula ledger verify). Threads: one.
#ifndef INTER_LEDGER_H
#define INTER_LEDGER_H
#include "agent/base/fs.h"
#include "inter/round/transfer.h"

struct inter_ledger;
struct sec_seal_key;   // security/seal_key.h
struct inter_evidence; // inter/record/evidence.h
// Makes the folder and the ledger when there are none. NEB_ERR_STATE: another process writes it (waits 2 s for that one to
// end). NEB_ERR_UNSUPPORTED: made by another version of this program.
NEB_MUST_CHECK enum neb_status inter_ledger_open(const char *dir, struct inter_ledger **out);
// For looking only, also while an agent runs: takes no lock, changes no byte of database or blobs; every put fails.
// NEB_ERR_NOT_FOUND: no ledger there.
NEB_MUST_CHECK enum neb_status inter_ledger_open_readonly(const char *dir,
                                                          struct inter_ledger **out);
void inter_ledger_close(struct inter_ledger **l);
const char *inter_ledger_dir(const struct inter_ledger *l); // for messages
// From here on blobs are sealed, each for its job; those that are there in clear stay so and are read. key: borrowed until close;
// NULL: in clear. Records, manifests and votes are never sealed: signed, and the same at every member.
void inter_ledger_seal(struct inter_ledger *l, const struct sec_seal_key *key);

// NEB_ERR_EXISTS: another digest under this update key.
NEB_MUST_CHECK enum neb_status inter_ledger_put_manifest(struct inter_ledger *l,
                                                         const struct inter_manifest *m);
// As put_manifest, but another digest under the key gives way, with what is here of its blob: for a record that lists this one. The
// former manifest stays in the ledger as evidence: its member has signed both.
NEB_MUST_CHECK enum neb_status inter_ledger_replace_manifest(struct inter_ledger *l,
                                                             const struct inter_manifest *m);
// What had to give way under this key; NEB_ERR_NOT_FOUND (not logged): nothing.
NEB_MUST_CHECK enum neb_status inter_ledger_replaced(struct inter_ledger *l,
                                                     const struct inter_key *key,
                                                     struct inter_manifest *out);
// All that had to give way, of all jobs; fn must not write. NEB_ERR_CORRUPT: one does not parse.
typedef void inter_ledger_each_second(void *user, const struct inter_manifest *former);
NEB_MUST_CHECK enum neb_status inter_ledger_replaced_all(struct inter_ledger *l,
                                                         inter_ledger_each_second *fn, void *user);
// Evidence that a member has lied: the first of each member and job is kept. get: NEB_ERR_NOT_FOUND (not logged): there is none.
NEB_MUST_CHECK enum neb_status inter_ledger_put_evidence(struct inter_ledger *l,
                                                         const struct inter_evidence *e);
NEB_MUST_CHECK enum neb_status inter_ledger_evidence(struct inter_ledger *l,
                                                     const uint8_t job[INTER_ID_BYTES],
                                                     uint8_t member, struct inter_evidence *out);
// All of it, by job and member; fn must not write. NEB_ERR_CORRUPT: one does not parse.
typedef void inter_ledger_each_evidence(void *user, const struct inter_evidence *e);
NEB_MUST_CHECK enum neb_status
inter_ledger_all_evidence(struct inter_ledger *l, inter_ledger_each_evidence *fn, void *user);
// What proves that a member has signed a job's id over a text that is not that id's
// (agent/daemon/misnamed.c): the first of each job and member. most: of that member, in all; 0: any
// number. *fresh: it was not there, and is.
NEB_MUST_CHECK enum neb_status inter_ledger_put_misnamed(struct inter_ledger *l,
                                                         const uint8_t job[INTER_ID_BYTES],
                                                         const char *member, const char *text,
                                                         size_t most, bool *fresh);
NEB_MUST_CHECK enum neb_status inter_ledger_was_misnamed(struct inter_ledger *l,
                                                         const uint8_t job[INTER_ID_BYTES],
                                                         const char *member, bool *out);
// All of it, by job and member; fn must not write.
typedef void inter_ledger_each_misnamed(void *user, const uint8_t job[INTER_ID_BYTES],
                                        const char *member, const char *text);
NEB_MUST_CHECK enum neb_status
inter_ledger_all_misnamed(struct inter_ledger *l, inter_ledger_each_misnamed *fn, void *user);
// One vote a (job, round, fragment). NEB_ERR_EXISTS: there is another one of this term or of a higher one.
NEB_MUST_CHECK enum neb_status inter_ledger_put_vote(struct inter_ledger *l,
                                                     const struct inter_record *r);
// NEB_ERR_EXISTS: another record is committed for the round. NEB_ERR_STATE: not the record after the last one of its
// fragment: another round than the next, or `previous` is not the last one's hash.
NEB_MUST_CHECK enum neb_status inter_ledger_put_commit(struct inter_ledger *l,
                                                       const struct inter_record *r);
// Masked sums (inter/round/sums.h): this member, `self`, reveals for r and for no other record of its
// round, ever. Before anything is said. NEB_ERR_EXISTS (not logged): it has revealed for another
// one.
NEB_MUST_CHECK enum neb_status inter_ledger_put_reveal(struct inter_ledger *l,
                                                       const struct inter_record *r, uint8_t self);
// After a snapshot: the fragment's chain begins anew at `round`, behind a record of this hash; everything of earlier rounds
// goes. NEB_ERR_STATE: the chain is beyond that round, or another history leads to it.
NEB_MUST_CHECK enum neb_status inter_ledger_begin_at(struct inter_ledger *l,
                                                     const uint8_t job[INTER_ID_BYTES],
                                                     uint32_t fragment, uint32_t round,
                                                     const uint8_t previous[INTER_SHA_BYTES]);
// As on a disk that was lost, of one job: its records, manifests, votes and blobs go, and `st` is what this node has promised from here on;
// all of it or nothing. What proves lies stays. Of a job that is not open.
NEB_MUST_CHECK enum neb_status inter_ledger_reset_job(struct inter_ledger *l,
                                                      const struct inter_standing *st);
// Removes a job that is not open: all that is said of it above but what proves lies, its blobs, and its row (inter_ledger_put_job). Its id
// stays known: the newest INTER_DROPPED_MAX, and those that are to be for ever, as another job must never have them.
enum { INTER_DROPPED_MAX = 1 << 17 };
NEB_MUST_CHECK enum neb_status
inter_ledger_drop_job(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES], bool for_ever);
NEB_MUST_CHECK enum neb_status
inter_ledger_was_dropped(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES], bool *out);
// These give NEB_ERR_NOT_FOUND (not logged) when there is none.
NEB_MUST_CHECK enum neb_status inter_ledger_get_commit(struct inter_ledger *l,
                                                       const uint8_t job[INTER_ID_BYTES],
                                                       uint32_t fragment, uint32_t round,
                                                       struct inter_record *out);
NEB_MUST_CHECK enum neb_status inter_ledger_last_commit(struct inter_ledger *l,
                                                        const uint8_t job[INTER_ID_BYTES],
                                                        uint32_t fragment,
                                                        struct inter_record *out);
// Of the newest attempt; key->attempt is not looked at.
NEB_MUST_CHECK enum neb_status inter_ledger_get_manifest(struct inter_ledger *l,
                                                         const struct inter_key *key,
                                                         struct inter_manifest *out);
// Of exactly this key.
NEB_MUST_CHECK enum neb_status inter_ledger_find_manifest(struct inter_ledger *l,
                                                          const struct inter_key *key,
                                                          struct inter_manifest *out);
NEB_MUST_CHECK enum neb_status inter_ledger_get_vote(struct inter_ledger *l,
                                                     const uint8_t job[INTER_ID_BYTES],
                                                     uint32_t fragment, uint32_t round,
                                                     struct inter_record *out);
// Whether the newest record of a fragment, or the vote of a round (NULL: there is none), is what was stored last: NEB_ERR_CORRUPT where a row was
// altered, or is gone.
NEB_MUST_CHECK enum neb_status inter_ledger_is_head(struct inter_ledger *l,
                                                    const uint8_t job[INTER_ID_BYTES],
                                                    uint32_t fragment,
                                                    const struct inter_record *newest);
NEB_MUST_CHECK enum neb_status inter_ledger_is_vote(struct inter_ledger *l,
                                                    const uint8_t job[INTER_ID_BYTES],
                                                    uint32_t fragment, uint32_t round,
                                                    const struct inter_record *vote);
// A manifest that was altered, and its update, were never here.
NEB_MUST_CHECK enum neb_status inter_ledger_forget_manifest(struct inter_ledger *l,
                                                            const struct inter_key *key);

// What this node promised of a job as a voter; NEB_ERR_NOT_FOUND (not logged) when nothing yet.
NEB_MUST_CHECK enum neb_status inter_ledger_put_standing(struct inter_ledger *l,
                                                         const struct inter_standing *s);
NEB_MUST_CHECK enum neb_status inter_ledger_get_standing(struct inter_ledger *l,
                                                         const uint8_t job[INTER_ID_BYTES],
                                                         struct inter_standing *out);

struct inter_chain { // one fragment's records, as drawn above: rounds
    uint8_t job[INTER_ID_BYTES];
    uint32_t fragment;
    uint32_t first, floor, kept, next;
    uint8_t base[INTER_SHA_BYTES], head[INTER_SHA_BYTES]; // `previous` of first and of next
};
// NEB_ERR_NOT_FOUND (not logged): nothing of this fragment yet. / All chains, by job and fragment; fn must not write.
NEB_MUST_CHECK enum neb_status inter_ledger_chain(struct inter_ledger *l,
                                                  const uint8_t job[INTER_ID_BYTES],
                                                  uint32_t fragment, struct inter_chain *out);
typedef void inter_ledger_each_chain(void *user, const struct inter_chain *c);
NEB_MUST_CHECK enum neb_status inter_ledger_chains(struct inter_ledger *l,
                                                   inter_ledger_each_chain *fn, void *user);

// Room that updates leave on the disk: what the ledger writes to go on (votes, commits, standings) is small, and a disk that is full for it
// ends the agent. 16 MiB hold some ten thousand of them, and SQLite's log of 4 MiB twice. A member's own update may take half of it: its job
// can end with an error, which is written too; so may the chunks of what was let in while there was more.
enum { INTER_LEDGER_RESERVE = 16 << 20, INTER_LEDGER_RESERVE_OWN = 8 << 20 };
// Whole blob at once (this node's own update), before its manifest. NEB_ERR_EXISTS: other bytes under this key. NEB_ERR_NOSPC.
NEB_MUST_CHECK enum neb_status
inter_ledger_put_blob(struct inter_ledger *l, const struct inter_key *key, const void *p, size_t n);
// A blob that arrives in chunks, after its manifest. got: filled with what an earlier run left on disk. One at a time of each member
// and fragment in the open round, and one of rounds that are committed: what else arrives of them
// goes, as does its file. NEB_ERR_LIMIT: more than eight jobs of the largest
// size have. NEB_ERR_NOSPC (not logged where it is for the reserve).
NEB_MUST_CHECK enum neb_status inter_ledger_part_open(struct inter_ledger *l,
                                                      const struct inter_manifest *m,
                                                      struct inter_bitmap *got);
// This and part_finish: NEB_ERR_NOT_FOUND (not logged) where nothing arrives under this key.
NEB_MUST_CHECK enum neb_status inter_ledger_part_write(struct inter_ledger *l,
                                                       const struct inter_key *key, uint64_t offset,
                                                       const void *p, size_t n);
// Whether chunk i of an arriving blob is here; and its bytes, inter_chunk_length of them, from the disk. NEB_ERR_CORRUPT: they are not
// what was written.
bool inter_ledger_part_has(struct inter_ledger *l, const struct inter_key *key, uint32_t i);
NEB_MUST_CHECK enum neb_status inter_ledger_part_read(struct inter_ledger *l,
                                                      const struct inter_key *key, uint32_t i,
                                                      uint8_t *out);
// The caller has found the manifest's digest over the bytes as they were written, in this run, or read back: they need not be read
// once more to be hashed.
void inter_ledger_part_hashed(struct inter_ledger *l, const struct inter_manifest *m);
// Verifies SHA-256, syncs, renames. NEB_ERR_CORRUPT: not the manifest's blob; the part is emptied. NEB_ERR_IO: the disk's fault.
NEB_MUST_CHECK enum neb_status inter_ledger_part_finish(struct inter_ledger *l,
                                                        const struct inter_manifest *m);
// All of an update's bytes go; its manifest stays.
NEB_MUST_CHECK enum neb_status inter_ledger_discard(struct inter_ledger *l,
                                                    const struct inter_key *key);
// What has arrived of a blob goes: it cannot be kept. Of none that is whole.
NEB_MUST_CHECK enum neb_status inter_ledger_part_discard(struct inter_ledger *l,
                                                         const struct inter_key *key);
// Nothing of the job arrives for now; what has is kept on disk.
void inter_ledger_parts_close(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES]);
bool inter_ledger_has_blob(struct inter_ledger *l, const struct inter_key *key);
// The same, and its file is no shorter than the manifest says: one that was cut is as one that is
// gone. Its digest is another matter.
bool inter_ledger_holds(struct inter_ledger *l, const struct inter_manifest *m);
// Where that file lies, for messages.
NEB_MUST_CHECK enum neb_status inter_ledger_blob_path(const struct inter_ledger *l,
                                                      const struct inter_key *key, char *out,
                                                      size_t cap);
// In clear, whole; a sealed one is opened into memory. NEB_ERR_DENIED: sealed with another key, or no key is here.
NEB_MUST_CHECK enum neb_status
inter_ledger_map_blob(struct inter_ledger *l, const struct inter_key *key, struct neb_map *out);
// The same, and all of it has been read: NEB_ERR_CORRUPT also where the disk does not give it back.
NEB_MUST_CHECK enum neb_status
inter_ledger_read_blob(struct inter_ledger *l, const struct inter_key *key, struct neb_map *out);

// ---- retention: records stay for ever, blobs do not

// Drops blobs (whole or arriving), manifests and votes of a fragment's committed rounds below `round`. Open rounds stay.
NEB_MUST_CHECK enum neb_status inter_ledger_prune(struct inter_ledger *l,
                                                  const uint8_t job[INTER_ID_BYTES],
                                                  uint32_t fragment, uint32_t round);
// Most bytes of all blobs; 0: no limit. Beyond it blobs of the oldest commits go, whole rounds at a time; never those of an
// open round, of a fragment's newest commit, or of a round that no checkpoint of this member holds yet (inter_ledger_saved), so that the
// ledger may stay above the cap.
NEB_MUST_CHECK enum neb_status inter_ledger_set_cap(struct inter_ledger *l, uint64_t bytes);
// The newest checkpoint of this member's worker holds, of fragment f < n, all commits before rounds[f]. Kept across openings. Until this is
// said of a fragment the cap takes nothing of it.
NEB_MUST_CHECK enum neb_status inter_ledger_saved(struct inter_ledger *l,
                                                  const uint8_t job[INTER_ID_BYTES],
                                                  const uint32_t *rounds, uint32_t n);
struct
    inter_dropped { // for the cap, since the ledger was opened: older checkpoints, and members that are behind, may have needed them
    uint64_t rounds, bytes;
};
void inter_ledger_dropped(const struct inter_ledger *l, struct inter_dropped *out);
// Bytes of blobs, here or arriving; 0 for a read-only ledger, which does not count them.
uint64_t inter_ledger_used(const struct inter_ledger *l);
// Lowest round whose blobs can still be served; 0 for a fragment without commits. A member further behind must rejoin by
// snapshot.
NEB_MUST_CHECK enum neb_status inter_ledger_floor(struct inter_ledger *l,
                                                  const uint8_t job[INTER_ID_BYTES],
                                                  uint32_t fragment, uint32_t *round);

// ---- jobs that this agent takes part in: spec and state as text

// Replaces what is there under the id. / All of them; the texts are valid during the call.
NEB_MUST_CHECK enum neb_status inter_ledger_put_job(struct inter_ledger *l,
                                                    const uint8_t id[INTER_ID_BYTES],
                                                    const char *spec, const char *state);
typedef void inter_ledger_job(void *user, const uint8_t id[INTER_ID_BYTES], const char *spec,
                              const char *state);
NEB_MUST_CHECK enum neb_status inter_ledger_jobs(struct inter_ledger *l, inter_ledger_job *fn,
                                                 void *user);

// ---- messages that must arrive: kept until acknowledged; a receiver remembers the last number it took from each peer
//
// Numbers rise within one ledger. A ledger that was lost and made anew starts again at 1, so a number means something only
// together with the epoch of the ledger that gave it.

uint64_t inter_ledger_epoch(const struct inter_ledger *l); // random, made with the ledger; not 0
// *previous: number of the message to this peer that waits before it; 0: none does. NEB_ERR_LIMIT (not logged): so many messages, or bytes,
// wait already that it would be more than `most` (NULL: no limit) says of this peer, or of all.
struct inter_outbox_limit {
    uint64_t messages, bytes, messages_all, bytes_all;
};
NEB_MUST_CHECK enum neb_status inter_ledger_post(struct inter_ledger *l, const char *peer,
                                                 uint32_t kind, const void *p, size_t n,
                                                 const struct inter_outbox_limit *most,
                                                 uint64_t *seq, uint64_t *previous);
NEB_MUST_CHECK enum neb_status inter_ledger_posted(struct inter_ledger *l, const char *peer,
                                                   uint64_t seq); // acknowledged up to seq
// Takes back messages to this peer of this very kind and body that it has not acknowledged; it may have taken them all the same.
NEB_MUST_CHECK enum neb_status inter_ledger_unpost(struct inter_ledger *l, const char *peer,
                                                   uint32_t kind, const void *p, size_t n);
// Drops what waits for peers that are not listed: nobody will acknowledge it, and it is not for whoever gets their name later.
typedef bool inter_ledger_listed(void *user, const char *peer);
NEB_MUST_CHECK enum neb_status inter_ledger_outbox_sweep(struct inter_ledger *l,
                                                         inter_ledger_listed *listed, void *user);
// False: no more.
typedef bool inter_ledger_message(void *user, uint64_t seq, uint32_t kind, const uint8_t *p,
                                  size_t n);
// What this peer has not acknowledged, by number.
NEB_MUST_CHECK enum neb_status inter_ledger_pending(struct inter_ledger *l, const char *peer,
                                                    inter_ledger_message *fn, void *user);
// Last number taken of a peer's ledger of this epoch; 0: none.
NEB_MUST_CHECK enum neb_status inter_ledger_taken(struct inter_ledger *l, const char *peer,
                                                  uint64_t epoch, uint64_t *seq);
// Never goes back. Of each peer the 16 newest epochs are remembered.
NEB_MUST_CHECK enum neb_status inter_ledger_take(struct inter_ledger *l, const char *peer,
                                                 uint64_t epoch, uint64_t seq);
typedef void inter_ledger_each_peer(void *user, const char *peer, uint64_t messages,
                                    uint64_t bytes);
// How many messages wait for each peer, and their bytes; peers that none waits for are left out.
NEB_MUST_CHECK enum neb_status inter_ledger_outbox(struct inter_ledger *l,
                                                   inter_ledger_each_peer *fn, void *user);

#endif
