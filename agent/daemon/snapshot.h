// SPDX-License-Identifier: Apache-2.0
// Snapshots of a job, as the agent gives and takes them (inter/service/snapshot.h moves the bytes).
//
// given:  the newest checkpoint of the worker, kept open: it stays readable after its removal
// taken:  DIR/snapshot.part  arrives; complete: ──► DIR/snapshot.new, and the ledger's chains
//                                                    begin at its records
//         DIR/snapshot.new   the others confirm it ──► DIR/snapshot.bin (judge.h)
//         DIR/snapshot.bin   the worker adopts the fragments in which it is ahead, writes a
//                            checkpoint, and removes it
#ifndef AGENT_SNAPSHOT_H
#define AGENT_SNAPSHOT_H
#include "agent/exchange/snapshot_file.h"
#include "inter/service/service.h"

#include <jansson.h>

// A thread that searches for the newest intact checkpoint. It reads and checks all of it, which
// takes seconds per gigabyte. dir: of the job. vault: opens sealed checkpoints; it must outlive the
// search and the source made of it. NEB_ERR_NOT_FOUND (not logged): there is no checkpoint yet.
struct agent_snapshot_search;
NEB_MUST_CHECK enum neb_status agent_snapshot_search(const struct neb_vault *vault,
                                                     const uint8_t job[INTER_ID_BYTES],
                                                     const char *dir,
                                                     struct agent_snapshot_search **out);
bool agent_snapshot_search_is(const struct agent_snapshot_search *s,
                              const uint8_t job[INTER_ID_BYTES]);
bool agent_snapshot_search_ended(const struct agent_snapshot_search *s);
// Waits for the thread.
void agent_snapshot_search_destroy(struct agent_snapshot_search **s);
// Makes a source of the checkpoint that was found, with the ledger's commit record at which each
// fragment of it ends. Destroys the search. NEB_ERR_NOT_FOUND: nothing was found.
NEB_MUST_CHECK enum neb_status agent_snapshot_open_take(struct agent_snapshot_search **s,
                                                        struct inter_ledger *l,
                                                        struct inter_snapshot_source *out);
void agent_snapshot_close(struct inter_snapshot_source *s);
// DIR/snapshot.part has arrived: checks what can be checked before the worker reads it, and renames
// it to DIR/snapshot.new. Earlier snapshots are removed. On an error the part is removed.
NEB_MUST_CHECK enum neb_status agent_snapshot_accept(const struct neb_vault *vault, const char *dir,
                                                     uint64_t header_bytes);
// The others confirm DIR/snapshot.new: renames it to DIR/snapshot.bin.
NEB_MUST_CHECK enum neb_status agent_snapshot_confirm(const char *dir);
// The others do not confirm it, or its giver is unknown: removes it. all: removes snapshot.bin too.
NEB_MUST_CHECK enum neb_status agent_snapshot_drop(const char *dir, bool all);
// The header of snapshot.new, or else of snapshot.bin; the caller frees it. NEB_ERR_NOT_FOUND (not
// logged): there is neither.
NEB_MUST_CHECK enum neb_status agent_snapshot_taken(const struct neb_vault *vault, const char *dir,
                                                    struct inter_snapshot **out);
// The functions below use DIR/snapshot.new, or else DIR/snapshot.bin.
//
// Installs the snapshot in the ledger, if there is one, before the job is opened with `c`. *taken:
// a bit per fragment in which it is ahead; 0 without one. A witness then needs the file no longer:
// it is removed.
NEB_MUST_CHECK enum neb_status agent_snapshot_install(const struct neb_vault *vault,
                                                      struct inter_service *s,
                                                      const struct inter_job_config *c,
                                                      const char *dir, bool witness,
                                                      uint64_t *taken);
// True if the snapshot brings the worker past a round of the fragment whose updates are gone, to a
// round from which on the ledger has them.
bool agent_snapshot_passes(const struct neb_vault *vault, struct inter_ledger *l, const char *dir,
                           uint32_t fragment, uint32_t round);
// If there is a checkpoint: removes a snapshot that is ahead in nothing. True: removed.
bool agent_snapshot_useless(const char *dir);
// Bytes of the updates of one round of all members except `self`, by the snapshot's records; 0:
// unknown.
uint64_t agent_snapshot_round_bytes(const struct neb_vault *vault, const char *dir, int self);
json_t *agent_snapshot_mask(uint64_t taken, int fragments); // for the worker: an array of booleans

#endif
