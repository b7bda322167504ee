// SPDX-License-Identifier: Apache-2.0
// The table of all keys: those of a job, from keys.h, and those of a cluster. A help text is one
// short line. config_options.h says which files read the table.
#include "agent/job/config_options.h"
#include "inter/record/types.h"
#include "intra/model/rope.h"
#include "kernels/pool.h"

#include <stddef.h>

static const char *const mode_names[] = {"replicas", "rtd", "distill", NULL};
const char *const config_role_names[] = {"none",    "generator", "discriminator",
                                         "teacher", "student",   NULL};
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

// In the order in which a cluster's JSON has them. The name comes first: complaints about a cluster
// as a whole use its line.
const struct config_cluster_option config_cluster_options[] = {
    {{"clusters.name", T_NAME, AT(name), 0, 0, NULL, NULL, "name of the cluster's agent"},
     CONFIG_SHARED,
     CONFIG_ALWAYS},
    {{"clusters.witness", T_BOOL, AT(witness), 0, 0, "false", NULL,
      "the cluster only votes; it does not train"},
     CONFIG_SHARED,
     CONFIG_ALWAYS},
    {{"clusters.threads", T_INT32, AT(threads), 0, KERN_POOL_THREADS_MAX, "0", NULL,
      "threads of the worker (mpirun, slurm: of each rank); 0: all processors"},
     CONFIG_PLACE,
     CONFIG_ALWAYS},
    {{"clusters.corpus", T_PATH, AT(corpus), 0, 0, "", NULL,
      "corpus of this cluster, instead of data.corpus"},
     CONFIG_SHARED,
     CONFIG_ALWAYS},
    {{"clusters.sources", T_SOURCES, AT(sources), 0, 0, "", NULL,
      "weights of corpus sources, at most 16; none: all sources, by size"},
     CONFIG_SHARED,
     CONFIG_ALWAYS},
    {{"clusters.role", T_ROLE, AT(role), 0, 0, "", config_role_names,
      "role in modes rtd and distill; auto: the planner chooses"},
     CONFIG_SHARED,
     CONFIG_IF_SET},
    {{"clusters.mesh", T_MESH, AT(mesh), 0, 0, "", NULL,
      "ranks of the worker; auto: the planner chooses; mode replicas"},
     CONFIG_PLACE,
     CONFIG_IF_MESH},
    {{"clusters.mesh.dp", T_INT32, AT(mesh.dp), 1, MESH_AXIS_MAX, "1", NULL,
      "data parallel; divides batch x accumulate"},
     CONFIG_PLACE,
     CONFIG_NEVER},
    {{"clusters.mesh.pp", T_INT32, AT(mesh.pp), 1, MESH_AXIS_MAX, "1", NULL,
      "pipeline parallel; divides model.n_layers"},
     CONFIG_PLACE,
     CONFIG_NEVER},
    {{"clusters.mesh.tp", T_INT32, AT(mesh.tp), 1, MESH_AXIS_MAX, "1", NULL,
      "tensor parallel; divides heads and d_ff"},
     CONFIG_PLACE,
     CONFIG_NEVER},
    {{"clusters.ranks", T_INT32, AT(ranks), 1, MESH_RANKS_MAX, "", NULL,
      "number of ranks for `mesh: auto` with mpirun or slurm"},
     CONFIG_PLACE,
     CONFIG_NEVER},
    // attach is another trainer, so it is shared (config_shared.c)
    {{"clusters.launcher", T_ENUM, AT(launcher), 0, 0, "local", config_launcher_names,
      "what starts the ranks; attach: your own training loop (`nebula help attach`)"},
     CONFIG_PLACE,
     CONFIG_IF_MESH},
    {{"clusters.device", T_ENUM, AT(device), 0, 0, "auto", device_names,
      "auto: CUDA if every rank has a device"},
     CONFIG_PLACE,
     CONFIG_IF_SET},
    {{"clusters.precision", T_ENUM, AT(precision), 0, 0, "auto", precision_names,
      "type of activations and products; auto: bf16 on CUDA, else fp32"},
     CONFIG_PLACE_OPEN,
     CONFIG_IF_SET},
    {{"clusters.outer_state", T_ENUM, AT(outer_state), 0, 0, "auto", outer_state_names,
      "memory of the exchange's state; auto: the device if it fits there"},
     CONFIG_SHARED,
     CONFIG_IF_SET},
    {{"clusters.cuda_graphs", T_ENUM, AT(cuda_graphs), 0, 0, "auto", graphs_names,
      "record and replay passes; auto: if it is faster; same bits"},
     CONFIG_PLACE,
     CONFIG_IF_SET},
    {{"clusters.batch", T_INT32, AT(batch), 1, CONFIG_BATCH_MAX, "", NULL,
      "micro-batch of this cluster, instead of data.batch"},
     CONFIG_PLACE_OPEN,
     CONFIG_IF_SET},
    {{"clusters.recompute", T_SWITCH, AT(recompute), 0, 0, "", NULL,
      "recompute of this cluster, instead of the job's"},
     CONFIG_PLACE,
     CONFIG_IF_SET},
    {{"clusters.profile", T_PATH, AT(profile), 0, 0, "", NULL,
      "for the planner: output of `nebula plan --profile` on that cluster"},
     CONFIG_SHARED,
     CONFIG_NEVER},
};
const int config_n_cluster_options =
    sizeof config_cluster_options / sizeof config_cluster_options[0];
_Static_assert(sizeof config_cluster_options / sizeof config_cluster_options[0] <=
                   AGENT_CLUSTER_KEYS_MAX,
               "raise AGENT_CLUSTER_KEYS_MAX");
