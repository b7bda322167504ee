// What a run leaves behind: summary.json, and the table that a person reads.
#ifndef AGENT_REPORT_H
#define AGENT_REPORT_H
#include "agent/config.h"

// summary.json of the contract from the clusters' reports (in the job's order). New reference; NULL when out of memory.
json_t *agent_summary_make(const struct agent_job *job, json_t *const *reports, int n, double wall_s);
NEB_MUST_CHECK enum neb_status agent_summary_write(const char *dir, const json_t *summary);
void agent_summary_print(FILE *out, const json_t *summary);

#endif
