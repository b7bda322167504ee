// SPDX-License-Identifier: Apache-2.0
// Snapshots of a job, as the agent gives and takes them (inter/service/snapshot.h moves the bytes).
//
//     given:  the newest checkpoint of the job's worker, mapped: a removed generation stays readable while it is pinned
//     taken:  DIR/snapshot.part  arrives            ──► DIR/snapshot.new, the ledger's chains begin at its records
//             DIR/snapshot.new   whole, on disk     ──► DIR/snapshot.bin, once the others bear it out (agent/daemon/snapshot_proof.h)
//             DIR/snapshot.bin                      ──► the worker takes over what it is ahead in, writes a checkpoint, removes it
#ifndef AGENT_SNAPSHOT_H
#define AGENT_SNAPSHOT_H
#include "agent/exchange/snapshot_file.h"
#include "inter/service/service.h"

#include <jansson.h>

// The newest checkpoint that is whole, looked for by a thread: all of it is read and checked, which takes seconds a gigabyte.
// dir: of the job; vault: opens what is sealed in it, for as long as this or the source made of it is there. NEB_ERR_NOT_FOUND
// (not logged): no checkpoint yet.
struct agent_snapshot_search;
NEB_MUST_CHECK enum neb_status agent_snapshot_search(const struct neb_vault *vault,
                                                     const uint8_t job[INTER_ID_BYTES],
                                                     const char *dir,
                                                     struct agent_snapshot_search **out);
bool agent_snapshot_search_is(const struct agent_snapshot_search *s,
                              const uint8_t job[INTER_ID_BYTES]);
bool agent_snapshot_search_ended(const struct agent_snapshot_search *s);
// Waits for the thread, where it has not ended.
void agent_snapshot_search_destroy(struct agent_snapshot_search **s);
// What was found, with the commit records of the ledger that it ends with. The search is gone after it. NEB_ERR_NOT_FOUND: nothing.
NEB_MUST_CHECK enum neb_status agent_snapshot_open_take(struct agent_snapshot_search **s,
                                                        struct inter_ledger *l,
                                                        struct inter_snapshot_source *out);
void agent_snapshot_close(struct inter_snapshot_source *s);
// DIR/snapshot.part has arrived: checks what can be checked before the worker reads it, and makes it DIR/snapshot.new, in the place of any
// that came before. After an error the part is gone.
NEB_MUST_CHECK enum neb_status agent_snapshot_accept(const struct neb_vault *vault, const char *dir,
                                                     uint64_t header_bytes);
// DIR/snapshot.new is what the others have: it becomes DIR/snapshot.bin.
NEB_MUST_CHECK enum neb_status agent_snapshot_confirm(const char *dir);
// Or it is not, or nobody knows any more who gave it: gone. all: snapshot.bin too.
NEB_MUST_CHECK enum neb_status agent_snapshot_drop(const char *dir, bool all);
// The header of the newer one of both; freed by the caller. NEB_ERR_NOT_FOUND (not logged): there is none.
NEB_MUST_CHECK enum neb_status agent_snapshot_taken(const struct neb_vault *vault, const char *dir,
                                                    struct inter_snapshot **out);
// What is said of DIR/snapshot.bin from here on is said of the newer one of both.
// Installs DIR/snapshot.bin, if there is one, in the ledger; before the job is opened with `c`. *taken: fragments that it is ahead
// in, bit each; 0 without one. A witness needs it no longer then: removed.
NEB_MUST_CHECK enum neb_status agent_snapshot_install(const struct neb_vault *vault,
                                                      struct inter_service *s,
                                                      const struct inter_job_config *c,
                                                      const char *dir, bool witness,
                                                      uint64_t *taken);
// Whether DIR/snapshot.bin brings the worker past a round of the fragment whose updates are gone, to where the ledger has them.
bool agent_snapshot_passes(const struct neb_vault *vault, struct inter_ledger *l, const char *dir,
                           uint32_t fragment, uint32_t round);
// A snapshot that is ahead in nothing, beside a checkpoint: removes it, and says so.
bool agent_snapshot_useless(const char *dir);
// Bytes of one round's updates of all members but `self`, by the records of DIR/snapshot.bin; 0: it cannot be told.
uint64_t agent_snapshot_round_bytes(const struct neb_vault *vault, const char *dir, int self);
json_t *agent_snapshot_mask(uint64_t taken, int fragments); // for the worker: an array of booleans

#endif
