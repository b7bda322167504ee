// SPDX-License-Identifier: Apache-2.0
// nebula plan of a job with `model: attached`: the exchange alone, since the loops make the steps.
#include "agent/cli/groups.h"
#include "agent/cli/plan_print.h"
#include "agent/job/json.h"
#include "agent/show/progress.h"
#include "kernels/pool.h"

struct attached {
    const struct agent_job *job;
    const struct plan_machines *machines;
    struct agent_groups_view groups;
    int32_t others;
    double link, send_s;                // bits a second; of an exchange to all others
    uint64_t bytes[AGENT_CLUSTERS_MAX]; // of a rank of each cluster
    struct agent_groups_device device[AGENT_CLUSTERS_MAX];
};

static int32_t ranks_of(const struct attached *a, int32_t cluster) {
    return a->machines->sites[cluster].ranks > 0 ? a->machines->sites[cluster].ranks : 1;
}

// A masked sum needs the whole update on rank 0.
static bool is_single(const struct attached *a) { return a->job->sync.gate == AGENT_GATE_PRIVATE; }

// The ranks over which the state and the frames are divided.
static int32_t sharers(const struct attached *a, int32_t cluster) {
    return is_single(a) ? 1 : ranks_of(a, cluster);
}

static void print_device(const struct attached *a, int32_t i) {
    char b[32], c[32], d[32];
    const struct agent_groups_device *x = &a->device[i];
    printf(
        "            if its tensors are on CUDA devices: %s of a device's memory%s, %s of frames "
        "while it merges, and %s to gather 16-bit or cut tensors\n",
        agent_human_bytes((double)x->state, b, sizeof b),
        a->job->clusters[i].outer_state == AGENT_OUTER_HOST
            ? " (what it takes on the host is pinned)"
            : "",
        agent_human_bytes((double)x->frames, c, sizeof c),
        agent_human_bytes((double)x->gathered, d, sizeof d));
}

static void print(const struct attached *a) {
    char b[32], c[32];
    const struct agent_job *job = a->job;
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
    for (int32_t i = 0; i < agent_job_training(job); i++) {
        double frames = agent_groups_frame_bytes(job, &a->groups, sharers(a, i));
        printf("  memory    %s: libnebula takes %s on %s of %d rank%s%s, and %s of frames while it "
               "exchanges\n",
               job->clusters[i].name, agent_human_bytes((double)a->bytes[i], b, sizeof b),
               is_single(a) ? "rank 0" : "each", ranks_of(a, i), ranks_of(a, i) == 1 ? "" : "s",
               is_single(a) ? " (gate private)" : "", agent_human_bytes(frames, c, sizeof c));
        if (!is_single(a))
            print_device(a, i);
    }
}

static void print_json(const struct attached *a) {
    json_t *o = json_pack("{s:s, s:o}", "job", a->job->name, "groups",
                          agent_groups_json(a->job, &a->groups)),
           *memory = json_object();
    for (int32_t i = 0; i < agent_job_training(a->job); i++)
        json_object_set_new(memory, a->job->clusters[i].name,
                            json_pack("{s:i, s:I, s:f, s:I, s:I, s:I}", "ranks", ranks_of(a, i),
                                      "rank_bytes", (json_int_t)a->bytes[i], "frame_bytes",
                                      agent_groups_frame_bytes(a->job, &a->groups, sharers(a, i)),
                                      "device_bytes", (json_int_t)a->device[i].state,
                                      "device_gather_bytes", (json_int_t)a->device[i].gathered,
                                      "device_frame_bytes", (json_int_t)a->device[i].frames));
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
    for (int32_t i = 0; i < agent_job_training(job) && a.groups.sized; i++) {
        int32_t threads = job->clusters[i].threads;
        threads = threads ? threads : kern_pool_processors();
        NEB_TRY(agent_groups_rank_bytes(job, tensors, sharers(&a, i), threads, &a.bytes[i]));
        NEB_TRY(agent_groups_device_bytes(job, tensors, &a.groups, i, sharers(&a, i), threads,
                                          &a.device[i]));
    }
    (json ? print_json : print)(&a);
    return NEB_OK;
}
