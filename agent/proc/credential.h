// SPDX-License-Identifier: Apache-2.0
// The credentials that make a process the worker of one job, and of no other.
//
//     agent ── pipe: the worker's standard input ──► worker            secret 32 | sealed u8 |
//                                                                      the job's seal key |
//                                                                      how to reach the agent
//                                                                      from another host, keys
//     agent ── HOME/jobs/ID/trainer.key, 0600 ─────► attached trainer  secret 32
//     worker, trainer ── attach, with the secret ──► agent
//
// mpirun and srun carry a standard input over their network in clear. So their rank 0 gets only a
// ticket there, which identifies its start. It asks for the rest through a file in the job's
// folder, which both hosts share:
//
//     agent ── worker.box: ticket ──► rank 0
//     rank 0 ── a fresh public key ──► agent
//     agent ── all of the above, sealed to that key ──► rank 0
//
// A listener on the network of the launcher or of the file system learns nothing that it can use.
// To answer in rank 0's place, an attacker must write as the agent's user. The agent answers once:
// a second asker fails, and the agent starts rank 0 again with another ticket.
//
// A pipe leaves nothing on disk, in the environment or in `ps`. Each worker gets new secrets. They
// lie in locked memory and are wiped. The seal key is the job's (security/seal_key.h): it opens no
// files of other jobs.
//
// Credentials separate jobs, not processes. A worker runs as the agent's user, who can send
// commands on another connection and read HOME (security/README.md, "What is not protected").
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
// site: the key that seals the agent's files; NULL: they are in clear. NEB_ERR_NOMEM: no locked
// memory.
NEB_MUST_CHECK enum neb_status agent_credential_create(const struct sec_seal_key *site,
                                                       const uint8_t job[INTER_ID_BYTES],
                                                       struct agent_credential **out);
void agent_credential_destroy(struct agent_credential **c);
// Compares in constant time. c NULL: false.
bool agent_credential_is(const struct agent_credential *c, const void *secret, size_t len);
// Adds the agent's endpoint and key for workers on other hosts; call before agent_credential_pipe.
// The worker's own keys exist since create.
void agent_credential_reach(struct agent_credential *c, const struct agent_ipc *s);
const struct agent_ipc_remote *agent_credential_remote(const struct agent_credential *c);

// Puts the credentials into a pipe. *fd: its read end, which the caller closes.
NEB_MUST_CHECK enum neb_status agent_credential_pipe(const struct agent_credential *c, int *fd);
// The same for mpirun and srun: puts a ticket into the pipe and writes DIR/worker.box.
NEB_MUST_CHECK enum neb_status agent_credential_offer(struct agent_credential *c, const char *dir,
                                                      int *fd);
// Call about every 200 ms: answers rank 0 once it has asked. NEB_OK if c is NULL or there is
// nothing to answer. NEB_ERR_DENIED: another process has asked.
NEB_MUST_CHECK enum neb_status agent_credential_answer(struct agent_credential *c, const char *dir);
// Reads the credentials of a worker from `fd`. For a ticket it waits for the agent's answer in
// `dir`, the job's folder. NEB_ERR_DENIED: no credentials (no agent started this process), or
// another process asked first. NEB_ERR_TIMEOUT: no answer.
struct agent_credential_wait {
    neb_ns limit;
    void (*idle)(void *user); // called while waiting; NULL: none
    void *user;
};
NEB_MUST_CHECK enum neb_status agent_credential_read(int fd, const char *dir,
                                                     const struct agent_credential_wait *wait,
                                                     struct agent_credential **out);
// HOME/jobs/JOB, from the path of the agent's socket. NEB_ERR_LIMIT: too long.
NEB_MUST_CHECK enum neb_status agent_credential_folder(const char *socket_path, const char *job,
                                                       char out[NEB_PATH_MAX]);
const uint8_t *agent_credential_secret(const struct agent_credential *c); // (AGENT_SECRET_BYTES)
// The vault of the job's files; *out NULL: they are in clear. With a vault the process makes no
// more core dumps. ranks: see agent_harden_keys.
NEB_MUST_CHECK enum neb_status agent_credential_vault(const struct agent_credential *c, bool ranks,
                                                      struct sec_vault **out);

// For an attached trainer: reads trainer.key of the job's folder, or writes a new one. An existing
// key stays, so that a trainer can outlive its agent. NEB_ERR_DENIED: the file is a link, belongs
// to another user, or is open to others.
NEB_MUST_CHECK enum neb_status agent_credential_leave(struct agent_credential *c, const char *dir);
// Finds a trainer's credentials by the path of the agent's socket and the job's id.
// NEB_ERR_NOT_FOUND (logged): no such job waits for a trainer. NEB_ERR_FORMAT: the file is not a
// trainer's key.
NEB_MUST_CHECK enum neb_status agent_credential_find(const char *socket_path, const char *job,
                                                     struct agent_credential **out);
// What an attached trainer lacks (seal key, keys and address for its ranks on other hosts), which
// the agent sends over its socket. The receiver wipes it.
const void *agent_credential_bytes(const struct agent_credential *c, size_t *len);
// Takes these bytes. NEB_ERR_FORMAT: they are not credentials of this trainer.
NEB_MUST_CHECK enum neb_status agent_credential_take(struct agent_credential *c, const void *p,
                                                     size_t len);
// For tests: the seal key. *len: 0 or SEC_SEAL_HANDED_BYTES.
const uint8_t *agent_credential_seal(const struct agent_credential *c, size_t *len);

// Rank 0 of an attached trainer hands its credentials to the other ranks, over the loop's own
// process group. A listener there learns nothing (drawn in security/seal_key.h).
enum { AGENT_CREDENTIAL_PUBLIC = 32, AGENT_CREDENTIAL_BOX = 512 };
// The other rank: makes a key pair for one use.
struct agent_credential_asker; // in locked memory
NEB_MUST_CHECK enum neb_status agent_credential_ask(struct agent_credential_asker **out,
                                                    uint8_t public[AGENT_CREDENTIAL_PUBLIC]);
// Rank 0. NEB_ERR_DENIED: not a public key.
NEB_MUST_CHECK enum neb_status agent_credential_give(const struct agent_credential *c,
                                                     const uint8_t public[AGENT_CREDENTIAL_PUBLIC],
                                                     uint8_t box[AGENT_CREDENTIAL_BOX]);
// The other rank; destroys the asker. NEB_ERR_DENIED: the box was changed, or is for another rank.
NEB_MUST_CHECK enum neb_status agent_credential_given(struct agent_credential_asker **asker,
                                                      const uint8_t box[AGENT_CREDENTIAL_BOX],
                                                      struct agent_credential **out);

#endif
