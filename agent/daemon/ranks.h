// SPDX-License-Identifier: Apache-2.0
// The ranks of a trainer, each with a connection of its own (drawn in agent/exchange/carrier.h):
// who they are, parts of updates that still wait for others, and which units belong to whom. Only
// the functions that take a struct daemon send anything.
//
// A rank presents the job's secret, the session of the attached rank 0, and its number; then it may
// hand over parts of updates, and ask for its part of a commit. A part that contains a unit of
// another rank is refused when the update is joined.
#ifndef AGENT_DAEMON_RANKS_H
#define AGENT_DAEMON_RANKS_H
#include "agent/base/bytes.h"
#include "agent/proc/ipc.h"

enum { AGENT_RANKS_MAX = 4096 };

struct agent_ranks;
// ranks: 2 to AGENT_RANKS_MAX. NEB_ERR_INVALID, NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status agent_ranks_create(int64_t ranks, int64_t session,
                                                  struct agent_ranks **out);
void agent_ranks_destroy(struct agent_ranks **r); // NULL-safe

// The owner of each unit, as rank 0 sends it: a little-endian u32 a unit, 0xffffffff: nobody. Until
// then, all updates are rank 0's. NEB_ERR_FORMAT.
// elements: of the job; they limit the bytes that are held.
NEB_MUST_CHECK enum neb_status agent_ranks_owners(struct agent_ranks *r, const void *p, size_t len,
                                                  uint64_t elements);
bool agent_ranks_carry(
    const struct agent_ranks *r); // true once the owners are known; r may be NULL

// This client is the rank from now on. False: *why.
NEB_MUST_CHECK bool agent_ranks_admit(struct agent_ranks *r, int64_t rank, int64_t session,
                                      const struct agent_ipc_client *from, const char **why);
// The number of the rank that this client is; 0: it is none.
int32_t agent_ranks_of(const struct agent_ranks *r, const struct agent_ipc_client *from);

// Takes the message with a rank's part of an update ("fragment", "round", "again", one part); rank
// 0: the one with everything else, too. A newer update of the fragment replaces an older one. Takes
// the part out of the message. NEB_ERR_FORMAT; NEB_ERR_LIMIT: too many bytes wait for other parts.
NEB_MUST_CHECK enum neb_status agent_ranks_put(struct agent_ranks *r, int32_t rank,
                                               struct agent_ipc_msg *m);
// If all parts of the fragment's update are here: *head is rank 0's message, *joined the update;
// the caller clears both. NEB_ERR_AGAIN: parts are missing. NEB_ERR_FORMAT: a rank's part has units
// that are not its own, or is malformed; all parts are dropped.
NEB_MUST_CHECK enum neb_status agent_ranks_join(struct agent_ranks *r, uint32_t fragment,
                                                struct agent_ipc_msg *head, struct neb_buf *joined);
// The part of a rank of n committed updates.
NEB_MUST_CHECK enum neb_status agent_ranks_cut(const struct agent_ranks *r, int32_t rank,
                                               const struct agent_ipc_part *updates, size_t n,
                                               struct neb_buf *parts);

struct daemon;
struct agent_jobrun;
// Rank 0 has attached: forgets the ranks of earlier trainers.
void daemon_ranks_begin(struct daemon *d, struct agent_jobrun *j, const struct agent_ipc_msg *m);
void daemon_ranks_end(struct agent_jobrun *j);
// Handles a message from a rank, or of a client that says it is one. A rank's other requests are
// refused. False: it is from neither.
NEB_MUST_CHECK bool daemon_ranks_message(struct daemon *d, const struct agent_ipc_client *from,
                                         const char *op, struct agent_ipc_msg *m);
// Rank 0's message of an update in parts.
void daemon_ranks_update(struct daemon *d, struct agent_jobrun *j, struct agent_ipc_msg *m);
// Sends the other ranks their parts of a commit, and replaces `updates` by rank 0's parts, which
// lie in own; the caller frees those. False: a rank cannot be reached now.
NEB_MUST_CHECK bool daemon_ranks_deliver(struct daemon *d, struct agent_jobrun *j, int64_t fragment,
                                         int64_t round, struct agent_ipc_part *updates, size_t n,
                                         struct neb_buf own[AGENT_IPC_PARTS_MAX]);
// True if one rank has asked for this commit, and only that rank gets it.
NEB_MUST_CHECK bool daemon_ranks_asked(struct daemon *d, struct agent_jobrun *j, int64_t fragment,
                                       int64_t round, const struct agent_ipc_part *updates,
                                       size_t n, bool whole);
void daemon_ranks_look(struct daemon *d, struct agent_jobrun *j); // once a second

#endif
