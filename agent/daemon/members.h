// SPDX-License-Identifier: Apache-2.0
// The members that the agent works with: members.json of a pair (nebula peer add), or the CA-signed
// list of a federation, which wins if both exist. On a hub this also runs the enrolment endpoint.
//
// One descriptor becomes readable when there is something to do: a request at the endpoint, or a
// changed list file (written by the endpoint, nebula revoke, nebula peer, or a copy of a new list).
#ifndef AGENT_MEMBERS_H
#define AGENT_MEMBERS_H
#include "security/identity.h"
#include "security/members.h"
#include "security/sign.h"

struct agent_members;

// NEB_ERR_NOT_FOUND: there is no list. NEB_ERR_DENIED: the signed list does not hold this member
// (any more), or was rolled back. identity is borrowed.
NEB_MUST_CHECK enum neb_status agent_members_open(const char *home,
                                                  const struct sec_identity *identity,
                                                  struct agent_members **out);
void agent_members_destroy(struct agent_members **m);
// The list in use. A call that reports `changed` overwrites it.
const struct sec_members *agent_members_list(const struct agent_members *m);
int agent_members_fd(const struct agent_members *m); // -1: there is never anything to do

struct agent_members_change {
    bool changed; // there is a newer list
    bool revoked; // and it lacks a member or its keys
    bool refused; // what was read is not a list of this federation, or is older, or forked
    bool forked;  // the CA signed lists that contradict each other: nothing may continue
    bool settled; // refused, because of a fork that was known when the agent started
    char rotated[SEC_NAME_MAX]; // the one member whose keys were rotated; "": none or several
};
// Reads the list again (SIGHUP). If the new one is refused, the present one stays in use.
void agent_members_reload(struct agent_members *m, struct agent_members_change *out);
// The same with signed bytes from another member, which are stored first.
void agent_members_apply(struct agent_members *m, const uint8_t *p, size_t len,
                         struct agent_members_change *out);
// True if the member was invited as a witness: it trains in no job.
bool agent_members_only_votes(const struct agent_members *m, const char *name);
const struct sec_federation *agent_members_federation(const struct agent_members *m); // or NULL
// On a hub: requests that its enrolment has refused since the agent started or got new keys.
uint64_t agent_members_refused(const struct agent_members *m);
// How to make a cluster of this name a member, for a message: a hub's invitation, nebula peer add
// without a hub, or the name of a member that was probably meant.
const char *agent_members_advice(const struct agent_members *m, const char *name, char *out,
                                 size_t cap);
// The signing key that a removed member had when it was last on the list. False: unknown, as in a
// pair without a CA.
bool agent_members_previous_key(const struct agent_members *m, const char *name,
                                uint8_t sign[SEC_KEY_BYTES]);
// True if one of the member's previous keys, from any version of the list, signed this.
bool agent_members_signed_before(const struct agent_members *m, const char *name,
                                 const char *context, const void *msg, size_t len,
                                 const uint8_t sig[SEC_SIGN_BYTES]);
// True if the present holder of this name signed it: with its present key, or with one that it gave
// up by rotation. False for a previous holder that was taken off the list, and for a rotation that
// this member did not see because it missed list versions.
bool agent_members_signed_as_now(const struct agent_members *m, const char *name,
                                 const char *context, const void *msg, size_t len,
                                 const uint8_t sig[SEC_SIGN_BYTES]);
// True if it is on the list without a vote: of two, the one that `nebula promote` gave up.
bool agent_members_without_vote(const struct agent_members *m, const char *name);
// The address of the hub's enrolment endpoint; false: unknown.
bool agent_members_hub(const struct agent_members *m, char out[SEC_ENDPOINT_MAX]);
// True if the list holds this member with exactly these keys.
bool agent_members_holds(const struct agent_members *m, const struct sec_public *p);
// This member's keys have been rotated: borrows the new identity instead of the previous one. On a
// hub, enrolment continues with it.
void agent_members_rekey(struct agent_members *m, const struct sec_identity *identity);
// Does what is due without waiting; reloads a changed file.
NEB_MUST_CHECK enum neb_status agent_members_step(struct agent_members *m,
                                                  struct agent_members_change *out);

#endif
