// SPDX-License-Identifier: Apache-2.0
// nebula plan of a job with `model: attached`: the exchange alone, since the loops make the steps.
#include "agent/cli/groups.h"
#include "agent/cli/plan_print.h"
#include "agent/job/json.h"
#include "agent/show/progress.h"

struct attached {
    const struct agent_job *job;
    const struct plan_machines *machines;
    struct agent_groups_view groups;
    int32_t others;
    double link, send_s; // bits a second; of an exchange to all others
};

static int32_t ranks_of(const struct attached *a, int32_t cluster) {
    return a->machines->sites[cluster].ranks > 0 ? a->machines->sites[cluster].ranks : 1;
}

static void print(const struct attached *a) {
    char b[32], c[32];
    printf("job %s: the attached loops make the steps; this is the exchange alone\n", a->job->name);
    agent_groups_print(a->job, &a->groups);
    if (!a->groups.sized) {
        printf(
            "  sizes     not known: give --tensors HOME/jobs/ID/tensors.json of an agent to which "
            "a loop has attached\n");
        return;
    }
    printf("  exchange  %s to each of %d others: %.3g s at %s/s%s\n",
           agent_human_bytes(a->groups.bytes, b, sizeof b), a->others, a->send_s,
           agent_human_bytes(a->link / 8, c, sizeof c), a->machines->assumed ? " (assumed)" : "");
    for (int32_t i = 0; i < agent_job_training(a->job); i++)
        printf("  memory    %s: libnebula takes %s on %s of %d rank%s%s, beside one unit and the "
               "frames\n",
               a->job->clusters[i].name,
               agent_human_bytes(agent_groups_rank_bytes(&a->groups, ranks_of(a, i)), b, sizeof b),
               a->groups.single ? "rank 0" : "each", ranks_of(a, i), ranks_of(a, i) == 1 ? "" : "s",
               a->groups.single ? " (gate private)" : "");
}

static void print_json(const struct attached *a) {
    json_t *o = json_pack("{s:s, s:o}", "job", a->job->name, "groups",
                          agent_groups_json(a->job, &a->groups)),
           *memory = json_object();
    for (int32_t i = 0; i < agent_job_training(a->job); i++)
        json_object_set_new(memory, a->job->clusters[i].name,
                            json_pack("{s:i, s:f}", "ranks", ranks_of(a, i), "rank_bytes",
                                      agent_groups_rank_bytes(&a->groups, ranks_of(a, i))));
    if (a->groups.sized) {
        json_object_set_new(o, "exchange_bytes", json_integer((json_int_t)a->groups.bytes));
        json_object_set_new(o, "send_s", json_real(a->send_s));
        json_object_set(o, "memory", memory);
    }
    json_decref(memory);
    agent_json_print(o, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(o);
}

enum neb_status plan_attached(const struct agent_job *job, const struct plan_machines *m,
                              const char *tensors, bool json) {
    static struct attached a; // large
    a = (struct attached){.job = job, .machines = m, .others = agent_job_exchanging(job) - 1};
    a.link = m->link.bits_s > 0 ? m->link.bits_s : m->sites[0].link.bits_s;
    NEB_TRY(agent_groups_view(job, tensors, &a.groups));
    a.send_s = a.link > 0 ? a.groups.bytes * 8 * a.others / a.link : 0;
    (json ? print_json : print)(&a);
    return NEB_OK;
}
