// SPDX-License-Identifier: Apache-2.0
// The table of all keys: those of a job, from keys.h, and those of a cluster. A help text is one
// short line. config_options.h says which files read the table.
#include "agent/job/config_options.h"
#include "inter/record/types.h"
#include "intra/model/rope.h"
#include "kernels/pool.h"

#include <stddef.h>

static const char *const model_names[] = {"built-in", "attached", NULL};
static const char *const init_names[] = {"seed", "from", "equal", NULL};
static const char *const mode_names[] = {"replicas", "rtd", "distill", NULL};
const char *const config_role_names[] = {"none",    "generator", "discriminator",
                                         "teacher", "student",   NULL};
static const char *const task_names[] = {"translate", "text", "instruct", NULL};
static const char *const source_names[] = {"corpus", "student", "teacher", NULL};
static const char *const align_names[] = {"same", "text", NULL};
static const char *const lost_names[] = {"wait", "alone", NULL};
static const char *const gate_names[] = {"trusted", "robust", "private", NULL};
static const char *const row_counts_names[] = {"coarse", "exact", NULL};
static const char *const scheme_names[] = {"federated", "synchronous", "none", NULL};
static const char *const schedule_names[] = {"cosine", "wsd", "constant", NULL};
static const char *const clip_names[] = {"none", "global_norm", "adagc", NULL};
static const char *const trainable_names[] = {"full", "lora", "bitfit", "last_layers", NULL};
static const char *const mask_names[] = {"causal", NULL};
static const char *const tune_names[] = {"fixed", "auto", NULL};
const char *const config_target_names[] = {"q", "k", "v", "o", "gate", "up", "down", NULL};

const char *const config_launcher_names[] = {"local", "mpirun", "slurm", "attach", NULL};
static const char *const device_names[] = {"auto", "cpu", "cuda", NULL};
static const char *const precision_names[] = {"auto", "fp32", "bf16", NULL};
static const char *const outer_state_names[] = {"auto", "device", "host", NULL};
static const char *const graphs_names[] = {"auto", "on", "off", NULL};

// Where a struct of keys.h is inside struct agent_job.
#define IN_JOB(field)       field
#define IN_SYNC(field)      sync.field
#define IN_SYNC_DP(field)   sync.dp.field
#define IN_SYNC_TUNE(field) sync.tune.field
#define IN_RTD(field)       rtd.field
#define IN_DISTILL(field)   distill.field
#define IN_OTHER(field)     field

#define AT(field) offsetof(struct agent_job, field), sizeof(((struct agent_job *)0)->field)

const struct config_option config_options[] = {
#define KEY(where, declaration, field, path, type, min, max, preset, names, help)                  \
    {path, type, AT(IN_##where(field)), min, max, preset, names, help},
#include "agent/job/keys.h"
};
const int config_n_options = sizeof config_options / sizeof config_options[0];
_Static_assert(sizeof config_options / sizeof config_options[0] <= CONFIG_OPTIONS_MAX,
               "raise CONFIG_OPTIONS_MAX");

#undef AT
#define AT(field) offsetof(struct agent_cluster, field), sizeof(((struct agent_cluster *)0)->field)

// The rows are in the order of a cluster's JSON. The name comes first: complaints about a cluster
// as a whole use its line.
#define KEY(path, type, field, min, max, preset, names, place, in_json, help)                      \
    {{"clusters." path, type, AT(field), min, max, preset, names, help},                           \
     CONFIG_##place,                                                                               \
     CONFIG_##in_json},
const struct config_cluster_option config_cluster_options[] = {
    // clang-format off
    KEY("name", T_NAME, name, 0, 0, NULL, NULL, SHARED, ALWAYS,
        "name of the cluster's agent")
    KEY("witness", T_BOOL, witness, 0, 0, "false", NULL, SHARED, ALWAYS,
        "the cluster only votes; it does not train")
    KEY("threads", T_INT32, threads, 0, KERN_POOL_THREADS_MAX, "0", NULL, PLACE, ALWAYS,
        "threads of the worker (mpirun, slurm: of each rank); 0: all processors")
    KEY("corpus", T_PATH, corpus, 0, 0, "", NULL, SHARED, ALWAYS,
        "corpus of this cluster, instead of data.corpus")
    KEY("sources", T_SOURCES, sources, 0, 0, "", NULL, SHARED, ALWAYS,
        "weights of corpus sources, at most 16; none: all sources, by size")
    KEY("role", T_ROLE, role, 0, 0, "", config_role_names, SHARED, IF_SET,
        "role in modes rtd and distill; auto: the planner chooses")
    KEY("init", T_PATH, init, 0, 0, "", NULL, SHARED, IF_SET,
        "checkpoint of this teacher, instead of distill.teacher.init")
    KEY("weight", T_FLOAT, weight, 0, 1e6, "", NULL, SHARED, IF_SET,
        "weight of this teacher's labels among those of all teachers; none: 1")
    KEY("mesh", T_MESH, mesh, 0, 0, "", NULL, PLACE, IF_MESH,
        "ranks of the worker; auto: the planner chooses; mode replicas")
    KEY("mesh.dp", T_INT32, mesh.dp, 1, MESH_AXIS_MAX, "1", NULL, PLACE, NEVER,
        "data parallel; divides batch x accumulate")
    KEY("mesh.pp", T_INT32, mesh.pp, 1, MESH_AXIS_MAX, "1", NULL, PLACE, NEVER,
        "pipeline parallel; divides model.n_layers")
    KEY("mesh.tp", T_INT32, mesh.tp, 1, MESH_AXIS_MAX, "1", NULL, PLACE, NEVER,
        "tensor parallel; divides heads and d_ff")
    KEY("ranks", T_INT32, ranks, 1, MESH_RANKS_MAX, "", NULL, PLACE, NEVER,
        "number of ranks for `mesh: auto` with mpirun or slurm")
    // attach is another trainer, so it is shared (config_shared.c)
    KEY("launcher", T_ENUM, launcher, 0, 0, "local", config_launcher_names, PLACE, IF_MESH,
        "what starts the ranks; attach: your own training loop (`nebula help attach`)")
    KEY("device", T_ENUM, device, 0, 0, "auto", device_names, PLACE, IF_SET,
        "auto: CUDA if every rank has a device")
    KEY("precision", T_ENUM, precision, 0, 0, "auto", precision_names, PLACE_OPEN, IF_SET,
        "type of activations and products; auto: bf16 on CUDA, else fp32")
    KEY("outer_state", T_ENUM, outer_state, 0, 0, "auto", outer_state_names, SHARED, IF_SET,
        "memory of the exchange's state; auto: the device if it fits there")
    KEY("cuda_graphs", T_ENUM, cuda_graphs, 0, 0, "auto", graphs_names, PLACE, IF_SET,
        "record and replay passes; auto: if it is faster; same bits")
    KEY("batch", T_INT32, batch, 1, CONFIG_BATCH_MAX, "", NULL, PLACE_OPEN, IF_SET,
        "micro-batch of this cluster, instead of data.batch")
    KEY("recompute", T_SWITCH, recompute, 0, 0, "", NULL, PLACE, IF_SET,
        "recompute of this cluster, instead of the job's")
    KEY("profile", T_PATH, profile, 0, 0, "", NULL, SHARED, NEVER,
        "for the planner: output of `nebula plan --profile` on that cluster")
    // clang-format on
};
const int config_n_cluster_options =
    sizeof config_cluster_options / sizeof config_cluster_options[0];
_Static_assert(sizeof config_cluster_options / sizeof config_cluster_options[0] <=
                   AGENT_CLUSTER_KEYS_MAX,
               "raise AGENT_CLUSTER_KEYS_MAX");

#undef AT
#define AT(field) offsetof(struct agent_group, field), sizeof(((struct agent_group *)0)->field)

const struct config_option config_group_options[] = {
    // clang-format off
    {"groups.match", T_STRING, AT(match), 0, 0, NULL, NULL,
     "pattern for names of tensors, with `*`, `?`, `[a-z]`; the first that matches counts"},
    {"groups.exchange", T_EXCHANGE, AT(exchange), 0, 0, "every", NULL,
     "every: all clusters average; never: each keeps its own; owner: all take that cluster's"},
    {"groups.codec", T_CODEC, AT(codec), 0, 0, "", NULL, "instead of sync.codec"},
    {"groups.eta", T_FLOAT, AT(eta), 0, 10, "", NULL, "instead of sync.outer.lr"},
    {"groups.mu", T_FLOAT, AT(mu), 0, 0.999, "", NULL, "instead of sync.outer.momentum"},
    {"groups.fragments", T_INT32, AT(fragments), 1, INTER_FRAGMENTS_MAX, "", NULL,
     "parts of this group, instead of sync.fragments; at most 64 in all groups"},
    // clang-format on
};
const int config_n_group_options = sizeof config_group_options / sizeof config_group_options[0];
