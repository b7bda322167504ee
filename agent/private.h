// What a job with `sync.gate: private` may ask for, and what its integers stand for. Updates are masked sums of 16-bit integers on one
// scale that all members know before they mask: so everything that would need a member's own figures is out.
#ifndef AGENT_PRIVATE_H
#define AGENT_PRIVATE_H
#include "agent/config.h"

// of two each would learn the other's; from four on one may drop out
enum { AGENT_PRIVATE_MEMBERS = 3 };

// False: *key of the job cannot be had with this profile; text says why, and what to write.
bool agent_private_allows(const struct agent_job *j, const char **key, char *text, size_t cap);
// Clusters that a round needs: for its votes, and for its sum.
int agent_private_needs(const struct agent_job *j);
// What that means, in one sentence.
void agent_private_says(const struct agent_job *j, char *text, size_t cap);
// Whether enough clusters are left (but these, bit each) for a sum that can be read; of another profile: yes.
bool agent_private_has_enough(const struct agent_job *j, uint16_t gone);
// The largest change of a parameter that an update can hold: sync.private_range, or what Adam moves in an interval, lr x H.
float agent_private_range(const struct agent_job *j);

#endif
