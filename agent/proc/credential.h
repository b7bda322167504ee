// SPDX-License-Identifier: Apache-2.0
// What makes a process the worker of one job, and of no other.
//
//     agent ── pipe, the worker's standard input ──► worker               secret 32 | sealed u8 | the job's seal key | how to
//                                                                         reach the agent from another host, with keys for that
//     agent ── HOME/jobs/ID/trainer.key, 0600 ─────► attached trainer     secret 32
//     worker, trainer ── attach, with the secret ──► agent
//
// mpirun and srun carry a standard input over their network in clear. Their rank 0 gets none of
// this there, but a ticket that names its start, and asks for the rest in a file of the job's
// folder, which both hosts have:
//
//     agent ── worker.box: ticket ──► rank 0 ── its public key, made for this ──► agent ── all of the above, sealed to that key ──► rank 0
//
// Who listens on the launcher's network, or on the file system's, learns nothing that it can use;
// who answers in rank 0's place must write as the agent's user. The agent answers once: who comes
// second ends, and is started again with another ticket.
//
// A pipe leaves nothing on disk, in the environment or in `ps`. Secrets are made anew with every worker, lie in locked memory and are
// wiped. The seal key is the job's (security/seal_key.h): it opens nothing of another job's.
//
// This keeps apart what is said for jobs, not processes: a worker runs as the agent's user, which may give commands on another connection
// and read HOME (security/README.md, "What is not protected").
#ifndef AGENT_CREDENTIAL_H
#define AGENT_CREDENTIAL_H
#include "agent/base/clock.h"
#include "agent/base/fs.h"
#include "agent/base/status.h"
#include "agent/proc/ipc.h"
#include "inter/record/types.h"
#include "security/seal_key.h"
#include "security/vault.h"

enum { AGENT_SECRET_BYTES = 32 };

struct agent_credential;
// site: the key of the agent's files; NULL: they are in clear. NEB_ERR_NOMEM: no locked memory.
NEB_MUST_CHECK enum neb_status agent_credential_create(const struct sec_seal_key *site,
                                                       const uint8_t job[INTER_ID_BYTES],
                                                       struct agent_credential **out);
void agent_credential_destroy(struct agent_credential **c);
// In constant time. c NULL: false.
bool agent_credential_is(const struct agent_credential *c, const void *secret, size_t len);
// Where the agent listens for workers of other hosts, and its key; before the pipe. The worker's own keys were made with the secret.
void agent_credential_reach(struct agent_credential *c, const struct agent_ipc *s);
const struct agent_ipc_remote *agent_credential_remote(const struct agent_credential *c);

// The worker's side of the pipe. *fd: to read from, with all of it inside; the caller closes it.
NEB_MUST_CHECK enum neb_status agent_credential_pipe(const struct agent_credential *c, int *fd);
// The same for mpirun and srun: a ticket, and DIR/worker.box.
NEB_MUST_CHECK enum neb_status agent_credential_offer(struct agent_credential *c, const char *dir,
                                                      int *fd);
// Every 200 ms or so: answers rank 0 once it has asked. c NULL, or nothing to answer: NEB_OK.
// NEB_ERR_DENIED: another has asked.
NEB_MUST_CHECK enum neb_status agent_credential_answer(struct agent_credential *c, const char *dir);
// What a worker finds on `fd`; dir: the job's folder, for a ticket, whose answer is waited for.
// NEB_ERR_DENIED: nothing, or something else: no agent has started this process; or another process
// has asked in its place. NEB_ERR_TIMEOUT: no answer.
struct agent_credential_wait {
    neb_ns limit;
    void (*idle)(void *user); // NULL: none; called while it waits
    void *user;
};
NEB_MUST_CHECK enum neb_status agent_credential_read(int fd, const char *dir,
                                                     const struct agent_credential_wait *wait,
                                                     struct agent_credential **out);
// HOME/jobs/JOB, by the agent's socket. NEB_ERR_LIMIT.
NEB_MUST_CHECK enum neb_status agent_credential_folder(const char *socket_path, const char *job,
                                                       char out[NEB_PATH_MAX]);
const uint8_t *agent_credential_secret(const struct agent_credential *c); // (AGENT_SECRET_BYTES)
// The vault of the job's files; *out NULL: they are in clear. From then on the process takes no core dump.
// ranks: see agent_harden_keys.
NEB_MUST_CHECK enum neb_status agent_credential_vault(const struct agent_credential *c, bool ranks,
                                                      struct sec_vault **out);

// For an attached trainer: writes, or reads, trainer.key in the job's folder. One that is there is kept, so that a trainer outlives
// its agent. NEB_ERR_DENIED: a link, not ours or open to others.
NEB_MUST_CHECK enum neb_status agent_credential_leave(struct agent_credential *c, const char *dir);
// By the agent's socket and the job's id. NEB_ERR_NOT_FOUND (logged): no such job there waits for a trainer;
// NEB_ERR_FORMAT: not such a file.
NEB_MUST_CHECK enum neb_status agent_credential_find(const char *socket_path, const char *job,
                                                     struct agent_credential **out);
// The seal key as it goes to an attached trainer, over the agent's socket: 0 or SEC_SEAL_HANDED_BYTES bytes.
const uint8_t *agent_credential_seal(const struct agent_credential *c, size_t *len);
// The trainer's side of it. NEB_ERR_FORMAT: another number of bytes.
NEB_MUST_CHECK enum neb_status agent_credential_take_seal(struct agent_credential *c, const void *p,
                                                          size_t len);

#endif
