// SPDX-License-Identifier: Apache-2.0
// The ledger of one agent: what it has promised and what was committed, on disk before any other
// agent hears of it.
//
//     DIR/ledger.db     SQLite (WAL, synchronous FULL): jobs, manifests, votes, commits, messages
//     DIR/ledger.lock   held by the one process that writes
//     DIR/blobs/…       one file per update; .part and .map while it arrives
//
//     rounds of one fragment:
//       first ───────────── floor ───────── kept ─────────────────── next
//         │ records only      │ + manifests   │ + manifests and blobs   │ open: + a vote
//         chain of records ───┴───────────────┴─────────────────────────┘
//
// Every put returns only when its data is durable, and a put that fails leaves nothing. Disk full:
// NEB_ERR_NOSPC, and nothing that was there is lost. NEB_ERR_EXISTS: a different value is stored
// under a promised key; storing the same value again is fine. Other errors: NEB_ERR_IO;
// NEB_ERR_CORRUPT (the database or a row is damaged: nebula ledger verify). A blob without a
// manifest is promised to nobody: the next opening removes it. Threads: one.
#ifndef INTER_LEDGER_H
#define INTER_LEDGER_H
#include "agent/base/fs.h"
#include "inter/round/transfer.h"

struct inter_ledger;
struct sec_seal_key;   // security/seal_key.h
struct inter_evidence; // inter/record/evidence.h
// Creates the folder and the ledger if there are none. NEB_ERR_STATE: another process writes the
// ledger (waits 2 s for that one to end). NEB_ERR_UNSUPPORTED: another version of this program made
// it.
NEB_MUST_CHECK enum neb_status inter_ledger_open(const char *dir, struct inter_ledger **out);
// Opens a ledger for reading, also while an agent runs: takes no lock, changes no byte of database
// or blobs; every put fails. NEB_ERR_NOT_FOUND: there is no ledger.
NEB_MUST_CHECK enum neb_status inter_ledger_open_readonly(const char *dir,
                                                          struct inter_ledger **out);
void inter_ledger_close(struct inter_ledger **l);
const char *inter_ledger_dir(const struct inter_ledger *l); // for messages
// From now on blobs are sealed, each for its job. Existing blobs in clear stay in clear and can
// still be read. key: borrowed until close; NULL: in clear. Records, manifests and votes are never
// sealed: they are signed, and every member has the same ones.
void inter_ledger_seal(struct inter_ledger *l, const struct sec_seal_key *key);

// NEB_ERR_EXISTS: another digest under this update key.
NEB_MUST_CHECK enum neb_status inter_ledger_put_manifest(struct inter_ledger *l,
                                                         const struct inter_manifest *m);
// Like put_manifest, for an update that a record lists: it replaces a manifest with another digest
// under the same key, and removes what is here of that manifest's blob. The ledger keeps the
// replaced manifest as evidence, because its member has signed both.
NEB_MUST_CHECK enum neb_status inter_ledger_replace_manifest(struct inter_ledger *l,
                                                             const struct inter_manifest *m);
// The replaced manifest of this key. NEB_ERR_NOT_FOUND (not logged): none.
NEB_MUST_CHECK enum neb_status inter_ledger_replaced(struct inter_ledger *l,
                                                     const struct inter_key *key,
                                                     struct inter_manifest *out);
// All replaced manifests, of all jobs; fn must not write. NEB_ERR_CORRUPT: one does not parse.
typedef void inter_ledger_each_second(void *user, const struct inter_manifest *former);
NEB_MUST_CHECK enum neb_status inter_ledger_replaced_all(struct inter_ledger *l,
                                                         inter_ledger_each_second *fn, void *user);
// Evidence of equivocation: the first of each member and job is kept. inter_ledger_evidence:
// NEB_ERR_NOT_FOUND (not logged): there is none.
NEB_MUST_CHECK enum neb_status inter_ledger_put_evidence(struct inter_ledger *l,
                                                         const struct inter_evidence *e);
NEB_MUST_CHECK enum neb_status inter_ledger_evidence(struct inter_ledger *l,
                                                     const uint8_t job[INTER_ID_BYTES],
                                                     uint8_t member, struct inter_evidence *out);
// All evidence, by job and member; fn must not write. NEB_ERR_CORRUPT: one does not parse.
typedef void inter_ledger_each_evidence(void *user, const struct inter_evidence *e);
NEB_MUST_CHECK enum neb_status
inter_ledger_all_evidence(struct inter_ledger *l, inter_ledger_each_evidence *fn, void *user);
// Proof that a member has signed a job's id over a text that has another id
// (agent/daemon/misnamed.c): the first of each job and member is kept. most: limit for this member
// over all jobs; 0: no limit. *fresh: it was stored now.
NEB_MUST_CHECK enum neb_status inter_ledger_put_misnamed(struct inter_ledger *l,
                                                         const uint8_t job[INTER_ID_BYTES],
                                                         const char *member, const char *text,
                                                         size_t most, bool *fresh);
NEB_MUST_CHECK enum neb_status inter_ledger_was_misnamed(struct inter_ledger *l,
                                                         const uint8_t job[INTER_ID_BYTES],
                                                         const char *member, bool *out);
// All such proofs, by job and member; fn must not write.
typedef void inter_ledger_each_misnamed(void *user, const uint8_t job[INTER_ID_BYTES],
                                        const char *member, const char *text);
NEB_MUST_CHECK enum neb_status
inter_ledger_all_misnamed(struct inter_ledger *l, inter_ledger_each_misnamed *fn, void *user);
// One vote per (job, round, fragment). NEB_ERR_EXISTS: another vote of this or a higher term is
// stored.
NEB_MUST_CHECK enum neb_status inter_ledger_put_vote(struct inter_ledger *l,
                                                     const struct inter_record *r);
// NEB_ERR_EXISTS: another record is committed for the round. NEB_ERR_STATE: not the next record of
// its fragment: another round than the next, or `previous` is not the hash of the last one.
NEB_MUST_CHECK enum neb_status inter_ledger_put_commit(struct inter_ledger *l,
                                                       const struct inter_record *r);
// Masked sums (inter/round/sums.h): this member, `self`, reveals seeds for r and for no other
// record of its round, ever. Call it before anything is revealed. NEB_ERR_EXISTS (not logged): the
// member has revealed for another one.
NEB_MUST_CHECK enum neb_status inter_ledger_put_reveal(struct inter_ledger *l,
                                                       const struct inter_record *r, uint8_t self);
// After a snapshot: the fragment's chain restarts at `round`, after a record with this hash.
// Everything of earlier rounds is removed. NEB_ERR_STATE: the chain is beyond that round, or
// another history leads to it.
NEB_MUST_CHECK enum neb_status inter_ledger_begin_at(struct inter_ledger *l,
                                                     const uint8_t job[INTER_ID_BYTES],
                                                     uint32_t fragment, uint32_t round,
                                                     const uint8_t previous[INTER_SHA_BYTES]);
// Puts one job into the state that it has after the loss of the disk: removes its records,
// manifests, votes and blobs, and stores `st` as the node's promise; all or nothing. Evidence
// stays. The job must not be open.
NEB_MUST_CHECK enum neb_status inter_ledger_reset_job(struct inter_ledger *l,
                                                      const struct inter_standing *st);
// Removes a job that is not open, with its records, manifests, votes, blobs and row
// (inter_ledger_put_job). Evidence stays. No other job may get its id, so the id stays known: for
// ever if for_ever, else while it is among the newest INTER_DROPPED_MAX.
enum { INTER_DROPPED_MAX = 1 << 17 };
NEB_MUST_CHECK enum neb_status
inter_ledger_drop_job(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES], bool for_ever);
NEB_MUST_CHECK enum neb_status
inter_ledger_was_dropped(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES], bool *out);
// NEB_ERR_NOT_FOUND (not logged): there is none.
NEB_MUST_CHECK enum neb_status inter_ledger_get_commit(struct inter_ledger *l,
                                                       const uint8_t job[INTER_ID_BYTES],
                                                       uint32_t fragment, uint32_t round,
                                                       struct inter_record *out);
NEB_MUST_CHECK enum neb_status inter_ledger_last_commit(struct inter_ledger *l,
                                                        const uint8_t job[INTER_ID_BYTES],
                                                        uint32_t fragment,
                                                        struct inter_record *out);
// The manifest of the newest attempt; key->attempt is ignored.
NEB_MUST_CHECK enum neb_status inter_ledger_get_manifest(struct inter_ledger *l,
                                                         const struct inter_key *key,
                                                         struct inter_manifest *out);
// The manifest of exactly this key.
NEB_MUST_CHECK enum neb_status inter_ledger_find_manifest(struct inter_ledger *l,
                                                          const struct inter_key *key,
                                                          struct inter_manifest *out);
NEB_MUST_CHECK enum neb_status inter_ledger_get_vote(struct inter_ledger *l,
                                                     const uint8_t job[INTER_ID_BYTES],
                                                     uint32_t fragment, uint32_t round,
                                                     struct inter_record *out);
// Checks that the newest record of a fragment, or the vote of a round, is the one stored last;
// NULL: there is none. NEB_ERR_CORRUPT: a row was altered or is gone.
NEB_MUST_CHECK enum neb_status inter_ledger_is_head(struct inter_ledger *l,
                                                    const uint8_t job[INTER_ID_BYTES],
                                                    uint32_t fragment,
                                                    const struct inter_record *newest);
NEB_MUST_CHECK enum neb_status inter_ledger_is_vote(struct inter_ledger *l,
                                                    const uint8_t job[INTER_ID_BYTES],
                                                    uint32_t fragment, uint32_t round,
                                                    const struct inter_record *vote);
// Removes an altered manifest and its update, as if they had never been here.
NEB_MUST_CHECK enum neb_status inter_ledger_forget_manifest(struct inter_ledger *l,
                                                            const struct inter_key *key);

// What this node has promised for a job as a voter. get: NEB_ERR_NOT_FOUND (not logged): nothing.
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
// inter_ledger_chain: NEB_ERR_NOT_FOUND (not logged): nothing of this fragment yet.
// inter_ledger_chains: all chains, by job and fragment; fn must not write.
NEB_MUST_CHECK enum neb_status inter_ledger_chain(struct inter_ledger *l,
                                                  const uint8_t job[INTER_ID_BYTES],
                                                  uint32_t fragment, struct inter_chain *out);
typedef void inter_ledger_each_chain(void *user, const struct inter_chain *c);
NEB_MUST_CHECK enum neb_status inter_ledger_chains(struct inter_ledger *l,
                                                   inter_ledger_each_chain *fn, void *user);

// Disk space that updates leave free. What the ledger writes to continue (votes, commits,
// standings) is small, but a disk without space for it ends the agent. 16 MiB hold some ten
// thousand such writes and twice SQLite's log of 4 MiB. A member's own update may use half of it:
// the rest is enough to store that the job ended with an error. Chunks of a blob that was admitted
// while there was space may use half of it too.
enum { INTER_LEDGER_RESERVE = 16 << 20, INTER_LEDGER_RESERVE_OWN = 8 << 20 };
// Stores a complete blob (this node's own update), before its manifest. NEB_ERR_EXISTS: other bytes
// under this key. NEB_ERR_NOSPC.
NEB_MUST_CHECK enum neb_status
inter_ledger_put_blob(struct inter_ledger *l, const struct inter_key *key, const void *p, size_t n);
// Opens a blob that arrives in chunks, after its manifest. got: gets the chunks that an earlier run
// left on disk. A member has at most one arriving blob per fragment in the open round, and one in
// committed rounds; this call removes an earlier one with its file. NEB_ERR_LIMIT: as many blobs
// arrive as eight jobs of the largest size can have. NEB_ERR_NOSPC (not logged if only the reserve
// is left).
NEB_MUST_CHECK enum neb_status inter_ledger_part_open(struct inter_ledger *l,
                                                      const struct inter_manifest *m,
                                                      struct inter_bitmap *got);
// part_write and part_finish: NEB_ERR_NOT_FOUND (not logged): nothing arrives under this key.
NEB_MUST_CHECK enum neb_status inter_ledger_part_write(struct inter_ledger *l,
                                                       const struct inter_key *key, uint64_t offset,
                                                       const void *p, size_t n);
// part_has: true if chunk i of an arriving blob is here. part_read: reads that chunk from the disk,
// inter_chunk_length bytes. NEB_ERR_CORRUPT: they are not what was written.
bool inter_ledger_part_has(struct inter_ledger *l, const struct inter_key *key, uint32_t i);
NEB_MUST_CHECK enum neb_status inter_ledger_part_read(struct inter_ledger *l,
                                                      const struct inter_key *key, uint32_t i,
                                                      uint8_t *out);
// Notes that the caller has hashed the bytes, as they were written in this run or read back, and
// found the manifest's digest. part_finish does not hash them again.
void inter_ledger_part_hashed(struct inter_ledger *l, const struct inter_manifest *m);
// Verifies SHA-256, syncs, renames. NEB_ERR_CORRUPT: not the manifest's blob; the part is emptied.
// NEB_ERR_IO: the disk failed.
NEB_MUST_CHECK enum neb_status inter_ledger_part_finish(struct inter_ledger *l,
                                                        const struct inter_manifest *m);
// Removes all bytes of an update; its manifest stays.
NEB_MUST_CHECK enum neb_status inter_ledger_discard(struct inter_ledger *l,
                                                    const struct inter_key *key);
// Removes what has arrived of a blob, because it cannot be kept. Does nothing to a complete blob.
NEB_MUST_CHECK enum neb_status inter_ledger_part_discard(struct inter_ledger *l,
                                                         const struct inter_key *key);
// Closes the arriving blobs of a job. What has arrived stays on disk.
void inter_ledger_parts_close(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES]);
bool inter_ledger_has_blob(struct inter_ledger *l, const struct inter_key *key);
// True if the blob is here and its file is not shorter than the manifest says. A truncated file
// counts as lost. The digest is not checked.
bool inter_ledger_holds(struct inter_ledger *l, const struct inter_manifest *m);
// Path of that file, for messages.
NEB_MUST_CHECK enum neb_status inter_ledger_blob_path(const struct inter_ledger *l,
                                                      const struct inter_key *key, char *out,
                                                      size_t cap);
// Maps a complete blob in clear; a sealed one is opened into memory. NEB_ERR_DENIED: sealed with
// another key, or there is no key here.
NEB_MUST_CHECK enum neb_status
inter_ledger_map_blob(struct inter_ledger *l, const struct inter_key *key, struct neb_map *out);
// The same, but reads all of it first: NEB_ERR_CORRUPT also if the disk cannot return the bytes.
NEB_MUST_CHECK enum neb_status
inter_ledger_read_blob(struct inter_ledger *l, const struct inter_key *key, struct neb_map *out);

// ---- retention: records stay for ever, blobs do not ---------------------------------------------

// Removes blobs (complete or arriving), manifests and votes of a fragment's committed rounds below
// `round`. Open rounds stay.
NEB_MUST_CHECK enum neb_status inter_ledger_prune(struct inter_ledger *l,
                                                  const uint8_t job[INTER_ID_BYTES],
                                                  uint32_t fragment, uint32_t round);
// Limit for the bytes of all blobs; 0: none. Above it the blobs of the oldest commits are removed,
// one round at a time. Blobs stay if they are of an open round, of a fragment's newest commit, or
// of a round that no checkpoint of this member holds yet (inter_ledger_saved). So the ledger may
// exceed the limit.
NEB_MUST_CHECK enum neb_status inter_ledger_set_cap(struct inter_ledger *l, uint64_t bytes);
// The newest checkpoint of this member's worker holds, for each fragment f < n, all commits before
// rounds[f]. Stored for later openings. Before the first call for a fragment, the cap removes
// nothing of it.
NEB_MUST_CHECK enum neb_status inter_ledger_saved(struct inter_ledger *l,
                                                  const uint8_t job[INTER_ID_BYTES],
                                                  const uint32_t *rounds, uint32_t n);
// What was removed for the cap since the opening. Older checkpoints and members that are behind may
// have needed it.
struct inter_dropped {
    uint64_t rounds, bytes;
};
void inter_ledger_dropped(const struct inter_ledger *l, struct inter_dropped *out);
// Bytes of blobs, complete or arriving; 0 for a read-only ledger, which does not count them.
uint64_t inter_ledger_used(const struct inter_ledger *l);
// Lowest round whose blobs can still be served; 0: no commits yet. A member further behind must
// rejoin by snapshot.
NEB_MUST_CHECK enum neb_status inter_ledger_floor(struct inter_ledger *l,
                                                  const uint8_t job[INTER_ID_BYTES],
                                                  uint32_t fragment, uint32_t *round);

// ---- jobs that this agent takes part in: spec and state as text ---------------------------------

// put_job replaces what is stored under the id. jobs: the texts are valid during the call of fn.
NEB_MUST_CHECK enum neb_status inter_ledger_put_job(struct inter_ledger *l,
                                                    const uint8_t id[INTER_ID_BYTES],
                                                    const char *spec, const char *state);
typedef void inter_ledger_job(void *user, const uint8_t id[INTER_ID_BYTES], const char *spec,
                              const char *state);
NEB_MUST_CHECK enum neb_status inter_ledger_jobs(struct inter_ledger *l, inter_ledger_job *fn,
                                                 void *user);

// ---- messages that must arrive ------------------------------------------------------------------
//
// They are kept until acknowledged. A receiver remembers the last number that it took from each
// peer. Numbers rise within one ledger. A new ledger starts again at 1, so a number has a meaning
// only together with the epoch of its ledger.

uint64_t inter_ledger_epoch(const struct inter_ledger *l); // random, made with the ledger; not 0
// *previous: number of the message to this peer that waits before it; 0: none. NEB_ERR_LIMIT (not
// logged): more messages or bytes would wait than `most` allows (NULL: no limit) for this peer or
// for all peers.
struct inter_outbox_limit {
    uint64_t messages, bytes, messages_all, bytes_all;
};
NEB_MUST_CHECK enum neb_status inter_ledger_post(struct inter_ledger *l, const char *peer,
                                                 uint32_t kind, const void *p, size_t n,
                                                 const struct inter_outbox_limit *most,
                                                 uint64_t *seq, uint64_t *previous);
// The peer has acknowledged all messages up to seq.
NEB_MUST_CHECK enum neb_status inter_ledger_posted(struct inter_ledger *l, const char *peer,
                                                   uint64_t seq);
// Takes back unacknowledged messages of this kind and body to this peer. The peer may have received
// them all the same.
NEB_MUST_CHECK enum neb_status inter_ledger_unpost(struct inter_ledger *l, const char *peer,
                                                   uint32_t kind, const void *p, size_t n);
// Drops messages that wait for peers that are not listed: nobody will acknowledge them, and they
// are not for a later member of the same name.
typedef bool inter_ledger_listed(void *user, const char *peer);
NEB_MUST_CHECK enum neb_status inter_ledger_outbox_sweep(struct inter_ledger *l,
                                                         inter_ledger_listed *listed, void *user);
// False: no more.
typedef bool inter_ledger_message(void *user, uint64_t seq, uint32_t kind, const uint8_t *p,
                                  size_t n);
// What this peer has not acknowledged, by number.
NEB_MUST_CHECK enum neb_status inter_ledger_pending(struct inter_ledger *l, const char *peer,
                                                    inter_ledger_message *fn, void *user);
// Last number taken from the peer's ledger of this epoch; 0: none.
NEB_MUST_CHECK enum neb_status inter_ledger_taken(struct inter_ledger *l, const char *peer,
                                                  uint64_t epoch, uint64_t *seq);
// Never decreases. The 16 newest epochs of each peer are remembered.
NEB_MUST_CHECK enum neb_status inter_ledger_take(struct inter_ledger *l, const char *peer,
                                                 uint64_t epoch, uint64_t seq);
typedef void inter_ledger_each_peer(void *user, const char *peer, uint64_t messages,
                                    uint64_t bytes);
// Messages that wait for each peer, and their bytes. Peers for which none waits are left out.
NEB_MUST_CHECK enum neb_status inter_ledger_outbox(struct inter_ledger *l,
                                                   inter_ledger_each_peer *fn, void *user);

#endif
