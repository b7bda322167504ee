// SPDX-License-Identifier: Apache-2.0
// What a job with `sync.gate: private` may ask for, and the scale of its integers. Updates are
// masked sums of 16-bit integers. All members know the common scale before they mask, so no key may
// make it depend on a member's own data.
#ifndef AGENT_PRIVATE_H
#define AGENT_PRIVATE_H
#include "agent/job/config.h"
#include "security/privacy.h"

// Of two members, each would learn the other's update. With four members or more, one may drop out.
enum { AGENT_PRIVATE_MEMBERS = 3 };

// False: this gate forbids or needs the job key *key; `text` gives the reason and the remedy.
bool agent_private_allows(const struct agent_job *j, const char **key, char *text, size_t cap);
// The number of clusters that a round needs, for its votes and its sum.
int agent_private_needs(const struct agent_job *j);
// Describes that in one sentence.
void agent_private_says(const struct agent_job *j, char *text, size_t cap);
// True if enough clusters remain for a readable sum without those in `gone`.
// Always true with another gate.
bool agent_private_has_enough(const struct agent_job *j, struct member_set gone);
// The number of members that may collude.
uint8_t agent_private_colluders(const struct agent_job *j);

// Differential privacy (security/privacy.h), if the job asks for it.
static inline bool agent_private_noised(const struct agent_job *j) { return j->sync.dp.clip > 0; }
NEB_MUST_CHECK bool agent_private_noise(const struct agent_job *j, struct sec_privacy *out);
// The value of one integer step, for a valid job.
float agent_private_scale(const struct agent_job *j);
// ε after this many releases (one fragment's sum each), and a sentence about it for people. NAN and
// "" if the job does not ask for differential privacy.
enum { AGENT_PRIVATE_TEXT = 512 };
double agent_private_epsilon(const struct agent_job *j, int64_t releases,
                             char text[AGENT_PRIVATE_TEXT]);

#endif
