// SPDX-License-Identifier: Apache-2.0
// The id of a job. It is a digest, so no two specifications can have the same id:
//
//     id = SHA-256( context, federation, name of the submitting member, shared text )
//
// The shared text is the canonical specification without places (agent_job_shared), with its nonce.
// Every receiver of a job computes the id itself. Everything that members of a job exchange is
// bound to the whole id: keys of masked sums, manifests, records (each chain of records begins with
// the id), votes, revealed seeds. So members with different texts are in different jobs and cannot
// complete a round together.
//
// The id contains the submitter's name and not its key, because keys are rotated while jobs run.
// The signature proves who submitted the job (policy.h).
#ifndef AGENT_JOB_ID_H
#define AGENT_JOB_ID_H
#include "agent/job/config.h"
#include "security/members.h"

NEB_MUST_CHECK enum neb_status agent_job_id(const uint8_t federation[SEC_FEDERATION_BYTES],
                                            const char *submitter, const json_t *spec,
                                            uint8_t id[AGENT_JOB_ID_BYTES]);
NEB_MUST_CHECK enum neb_status agent_job_draw_nonce(struct agent_job *job);

#endif
