// SPDX-License-Identifier: Apache-2.0
// Who the agent works with: members.json of a pair (nebula peer add), or the CA-signed list of a
// federation, which wins where both are there. On a hub this also runs the enrolment endpoint.
//
// One descriptor is readable when there is something to do: a stranger at the endpoint, or a changed
// list file (written by the endpoint, by nebula revoke, by whoever distributes lists, or by nebula peer).
#ifndef AGENT_MEMBERS_H
#define AGENT_MEMBERS_H
#include "security/federation.h"
#include "security/identity.h"
#include "security/members.h"
#include "security/sign.h"

struct agent_members;

// NEB_ERR_NOT_FOUND: no list at all; NEB_ERR_DENIED: the signed list does not hold this member (any
// more), or was rolled back. identity is borrowed.
NEB_MUST_CHECK enum neb_status agent_members_open(const char *home,
                                                  const struct sec_identity *identity,
                                                  struct agent_members **out);
void agent_members_destroy(struct agent_members **m);
// The list in use; a call that reports `changed` has written into it.
const struct sec_members *agent_members_list(const struct agent_members *m);
int agent_members_fd(const struct agent_members *m); // -1: never anything to do

struct agent_members_change {
    bool changed; // there is a newer list
    bool revoked; // and a member or its keys are gone from it
    bool refused; // what was read is no list of this federation, or an older one, or forked
    bool forked;  // the CA has signed lists that do not follow from each other: nothing may go on
    bool settled; // refused: of a fork that was known when the agent started
    char rotated[SEC_NAME_MAX]; // whose keys were replaced by rotation, and nobody else's; or empty
};
// Reads the list again (SIGHUP). One that is refused leaves the present one in use.
void agent_members_reload(struct agent_members *m, struct agent_members_change *out);
// The same with signed bytes from another member, which are stored first.
void agent_members_apply(struct agent_members *m, const uint8_t *p, size_t len,
                         struct agent_members_change *out);
// Whether the member was invited as a witness: it trains in no job.
bool agent_members_only_votes(const struct agent_members *m, const char *name);
const struct sec_federation *agent_members_federation(const struct agent_members *m); // or NULL
// Of a hub: what its enrolment has refused since the agent began, or was given new keys.
uint64_t agent_members_refused(const struct agent_members *m);
// What makes a cluster of this name a member, for a message: an invitation of the hub, or nebula peer add where there is no hub; or which
// member's name is meant.
const char *agent_members_advice(const struct agent_members *m, const char *name, char *out,
                                 size_t cap);
// The signing key that a member had when it was on the list last. False: not known, as in a pair without a CA.
bool agent_members_previous_key(const struct agent_members *m, const char *name,
                                uint8_t sign[SEC_KEY_BYTES]);
// Whether one of the keys that it had before, on any version of the list, signed this.
bool agent_members_signed_before(const struct agent_members *m, const char *name,
                                 const char *context, const void *msg, size_t len,
                                 const uint8_t sig[SEC_SIGN_BYTES]);
// Whether the one who has this name now signed it: with its present key, or with one that it gave up by a rotation. Not so a former holder
// of the name, who was taken off the list; nor one whose rotation this member did not see happen, between other versions that it missed.
bool agent_members_signed_as_now(const struct agent_members *m, const char *name,
                                 const char *context, const void *msg, size_t len,
                                 const uint8_t sig[SEC_SIGN_BYTES]);
// On the list, but without a vote: of two, the one that `nebula promote` gave up.
bool agent_members_without_vote(const struct agent_members *m, const char *name);
// Where the hub's enrolment endpoint is; false: not known.
bool agent_members_hub(const struct agent_members *m, char out[SEC_ENDPOINT_MAX]);
// The list holds this member with exactly these keys.
bool agent_members_holds(const struct agent_members *m, const struct sec_public *p);
// This member's keys have been rotated; identity is borrowed from now on, in place of the former one.
// Enrolment, where this is the hub, goes on with them.
void agent_members_rekey(struct agent_members *m, const struct sec_identity *identity);
// Does what is due without waiting; reloads when the file changed.
NEB_MUST_CHECK enum neb_status agent_members_step(struct agent_members *m,
                                                  struct agent_members_change *out);

#endif
