// SPDX-License-Identifier: Apache-2.0
// Which job it is. Its id is a digest, so nobody can give one id to two specifications:
//
//     id = SHA-256( context, federation, name of the member that submits it, shared text )
//
// The shared text is the canonical specification without places (agent_job_shared), with its nonce.
// Whoever hears of a job computes its id anew. Whatever members of a job exchange is bound to the
// whole id: keys of masked sums, manifests, records (so each chain of records begins with it),
// votes, what is revealed. Members with different texts are in different jobs, and end no round
// together.
//
// The name, not the key, of the submitter: keys are rotated while jobs run. Whose a job is its
// signature says (policy.h).
#ifndef AGENT_JOB_ID_H
#define AGENT_JOB_ID_H
#include "agent/job/config.h"
#include "security/federation.h"

NEB_MUST_CHECK enum neb_status agent_job_id(const uint8_t federation[SEC_FEDERATION_BYTES],
                                            const char *submitter, const json_t *spec,
                                            uint8_t id[AGENT_JOB_ID_BYTES]);
NEB_MUST_CHECK enum neb_status agent_job_draw_nonce(struct agent_job *job);

#endif
