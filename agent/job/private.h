// SPDX-License-Identifier: Apache-2.0
// What a job with `sync.gate: private` may ask for, and what its integers stand for. Updates are masked sums of 16-bit integers on one
// scale that all members know before they mask: so everything that would need a member's own figures is out.
#ifndef AGENT_PRIVATE_H
#define AGENT_PRIVATE_H
#include "agent/job/config.h"
#include "security/privacy.h"

// of two each would learn the other's; from four on one may drop out
enum { AGENT_PRIVATE_MEMBERS = 3 };

// False: *key of the job cannot be had with this profile, or without it; text says why, and what to write.
bool agent_private_allows(const struct agent_job *j, const char **key, char *text, size_t cap);
// Clusters that a round needs: for its votes, and for its sum.
int agent_private_needs(const struct agent_job *j);
// What that means, in one sentence.
void agent_private_says(const struct agent_job *j, char *text, size_t cap);
// Whether enough clusters are left (but these, bit each) for a sum that can be read; of another profile: yes.
bool agent_private_has_enough(const struct agent_job *j, uint16_t gone);
// The largest change of a parameter that an update can hold: sync.private_range, or what Adam moves in an interval, lr x H.
float agent_private_range(const struct agent_job *j);

// How many members may tell all they know to each other, and how many a sum has at least.
uint8_t agent_private_colluders(const struct agent_job *j);
uint8_t agent_private_least(const struct agent_job *j);

// Differential privacy (security/privacy.h), where the job asks for it.
static inline bool agent_private_noised(const struct agent_job *j) { return j->sync.dp.clip > 0; }
NEB_MUST_CHECK bool agent_private_noise(const struct agent_job *j, struct sec_privacy *out);
// What an integer stands for; of a valid job.
float agent_private_scale(const struct agent_job *j);
// ε after so many releases, a fragment's sum each; and a sentence about it, for people. NAN and "" where the job does not ask for it.
enum { AGENT_PRIVATE_TEXT = 512 };
double agent_private_epsilon(const struct agent_job *j, int64_t releases,
                             char text[AGENT_PRIVATE_TEXT]);

#endif
