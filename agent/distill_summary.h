// What a run of mode distill leaves behind: its part of summary.json, and the models.
#ifndef AGENT_DISTILL_SUMMARY_H
#define AGENT_DISTILL_SUMMARY_H
#include "agent/config.h"

// Paths of the distill section made absolute, before the job is handed to agents with other working folders.
NEB_MUST_CHECK enum neb_status agent_distill_paths(struct agent_job *job);
// "quality" of summary.json, from the clusters' reports (new reference, NULL when out of memory).
json_t *agent_distill_summary(const struct agent_job *job, json_t *const *reports, int n);
void agent_distill_print(const json_t *quality, FILE *out);
// The first student as OUT/checkpoint/model.ckpt, others as NAME.ckpt, a teacher that learned as teacher.ckpt. dirs: of the
// job in each agent's home, empty where it is not here.
NEB_MUST_CHECK enum neb_status agent_distill_export(const struct agent_job *job,
                                                    char (*dirs)[NEB_PATH_MAX], const char *out);

#endif
