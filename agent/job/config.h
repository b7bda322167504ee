// SPDX-License-Identifier: Apache-2.0
// Job files: YAML, or canonical JSON between agents, into one plain struct.
//
// One table (config_options.c) holds a row an option: path, type, bounds, default, help. YAML files, `--set path=value`, JSON and the
// reference in configs/README.md all go through it, so that a key cannot be known to one and not to another. YAML is parsed by
// libyaml. Every complaint is one line: file:line: key: what is wrong and what is allowed.
#ifndef AGENT_CONFIG_H
#define AGENT_CONFIG_H
#include "agent/base/sha256.h"
#include "intra/train/trainer.h"

#include <jansson.h>
#include <stdio.h>

enum {
    AGENT_NAME_MAX = 63,
    AGENT_CLUSTERS_MAX = 16,
    AGENT_SOURCES_MAX = 16,
    AGENT_JOB_ID_BYTES = 32, // job_id.h
    AGENT_NONCE_BYTES = 16
};
#define AGENT_STEPS_MAX UINT64_C(1000000000000)
#define AGENT_SEED_MAX  UINT64_C(9000000000000000) // a whole number in JSON, whoever reads it

enum agent_mode { AGENT_MODE_REPLICAS, AGENT_MODE_RTD, AGENT_MODE_DISTILL };
enum agent_scheme {
    AGENT_SCHEME_FEDERATED,   // H inner steps, then an exchange of updates
    AGENT_SCHEME_SYNCHRONOUS, // the reference: every cluster's batch in every step, in one process
    AGENT_SCHEME_NONE,        // every cluster trains alone
};

enum agent_role { // of a cluster, where a mode has several
    AGENT_ROLE_NONE,
    AGENT_ROLE_GENERATOR,     // rtd: masks and fills in
    AGENT_ROLE_DISCRIMINATOR, // rtd: tells what was filled in
    AGENT_ROLE_TEACHER,       // distill: labels
    AGENT_ROLE_STUDENT,       // distill: learns from them
};

enum agent_lost { AGENT_LOST_WAIT, AGENT_LOST_ALONE }; // what a student does without labels

enum agent_gate {       // what becomes of an update that is well-formed and finite
    AGENT_GATE_TRUSTED, // committed as it is; one that stands out is flagged
    AGENT_GATE_ROBUST, // norms are clipped to their median, extremes of each element left out (inter/record/robust.h)
    AGENT_GATE_PRIVATE, // masked: only the sum can be read (agent/job/private.h)
};

// What of its text a member tells by the row counts of its updates (compress/update.h), from
// nothing on.
enum agent_row_counts { AGENT_ROWS_NEVER = -1, AGENT_ROWS_COARSE, AGENT_ROWS_EXACT };

struct agent_source {
    char name[AGENT_NAME_MAX + 1]; // a source of the corpus
    float weight;                  // share of windows, relative
};

enum agent_launcher {
    AGENT_LAUNCHER_LOCAL, // all ranks on the agent's machine, without MPI
    // Where mpirun finds hosts: the Slurm allocation, a host file. Rank 0 is on the agent's host, or on another one with --workers.
    AGENT_LAUNCHER_MPIRUN,
    // A job step of the allocation that the agent runs in; with --workers, of an agent that is in none, an allocation of its own.
    AGENT_LAUNCHER_SLURM,
    AGENT_LAUNCHER_ATTACH, // none is started: the agent waits for a trainer that attaches (libnebula.h)
};

enum agent_device {    // where a cluster's worker trains
    AGENT_DEVICE_AUTO, // CUDA where the kernels load and every rank has a device, else the processors
    AGENT_DEVICE_CPU,
    AGENT_DEVICE_CUDA,
};
enum agent_precision {    // of activations and products; master parameters are fp32 always
    AGENT_PRECISION_AUTO, // bf16 on CUDA, fp32 on processors
    AGENT_PRECISION_FP32,
    AGENT_PRECISION_BF16, // on processors: of products only
};

enum agent_outer_state { // where θ, v, the residual and the arithmetic of the exchange are
    AGENT_OUTER_AUTO,    // where the cluster trains, if it fits there
    AGENT_OUTER_DEVICE,
    AGENT_OUTER_HOST,
};

enum agent_graphs {    // of parts of a step on a device (intra/device/device.h): the same bits
    AGENT_GRAPHS_AUTO, // where they are faster
    AGENT_GRAPHS_ON,
    AGENT_GRAPHS_OFF,
};

enum agent_recompute {      // of a cluster
    AGENT_RECOMPUTE_AS_JOB, // as the key recompute says
    AGENT_RECOMPUTE_ON,
    AGENT_RECOMPUTE_OFF,
};

struct agent_cluster {
    char name[AGENT_NAME_MAX + 1]; // the agent's name in the federation
    bool witness;                  // votes, but trains nothing and holds no updates
    enum agent_role role;
    // The planner says before the job travels; until then role is AGENT_ROLE_NONE.
    bool role_auto;
    // What the cluster's machine does, as nebula plan --profile printed it there; for the planner, never travels. "": not said
    char profile[NEB_PATH_MAX];
    // Of the worker; 0: all processors, shared out with --local. Ranks on one machine share them; with launcher mpirun
    // they are those of each rank.
    int32_t threads;
    struct intra_mesh_config mesh; // ranks of the worker; 0 counts as 1
    bool mesh_auto; // to be filled in by the planner (planner.h) before the job travels
    // With mesh_auto and a launcher of several hosts: how many ranks there are, for the planner; never travels, as the mesh says it then. 0: not said
    int32_t ranks;
    enum agent_launcher launcher;
    enum agent_device device;
    enum agent_precision precision;
    enum agent_outer_state outer_state;
    enum agent_graphs cuda_graphs;
    // What of a step fits into this cluster's memory at a time: the same sequences in other micro-batches. 0: as data.batch and recompute say
    int32_t batch;
    enum agent_recompute recompute;
    struct { // of the job file, for complaints; 0: not there; never travels
        int32_t device, precision, outer_state, cuda_graphs;
    } line;
    char corpus[NEB_PATH_MAX]; // overrides data.corpus where the site keeps it elsewhere
    int32_t n_sources;         // 0: all sources of the corpus, by size
    struct agent_source sources[AGENT_SOURCES_MAX];
};

static inline int agent_cluster_ranks(const struct agent_cluster *c) {
    return (c->mesh.dp > 1 ? c->mesh.dp : 1) * (c->mesh.pp > 1 ? c->mesh.pp : 1) *
           (c->mesh.tp > 1 ? c->mesh.tp : 1);
}
// Whether agent_local_start deals GPUs to the cluster's agent, where there are several: as many as it has ranks, those that fewest have.
static inline bool agent_local_deals(const struct agent_cluster *c) {
    return c->device != AGENT_DEVICE_CPU && c->launcher == AGENT_LAUNCHER_LOCAL && !c->witness;
}

enum agent_tune_mode {
    AGENT_TUNE_FIXED, // as the job says, bit for bit the same run again
    AGENT_TUNE_AUTO,  // follows the link (agent/job/tune.h)
};

struct agent_sync {
    enum agent_scheme scheme;
    int32_t interval;                    // H inner steps
    int32_t early_interval, early_steps; // a shorter H for the first steps; 0 steps: none
    int32_t fragments;                   // P
    int32_t overlap;                     // τ inner steps
    char codec[32];
    float error_feedback; // β
    float anticipate;     // ρ is this over the clusters that exchange
    float blend;          // α; 0: rebase
    float eta, mu;        // outer learning rate and momentum
    bool row_weights;
    enum agent_row_counts row_counts; // coarse or exact
    float kappa;
    int32_t merge_after; // S missed intervals until a merge round
    bool commit_all;     // never commit without every cluster
    enum agent_gate gate;
    float private_range;       // 0: agent_private_range
    int32_t private_colluders; // f: members that may lie together, and put together what they see
    struct {
        float clip;  // length of an update; 0: no differential privacy
        float noise; // deviation of the noise in a sum, over clip
        float delta;
    } dp;
    char link[64]; // RATE:DELAY[:LOSS] between clusters, for the planner; "": not said
    struct agent_tune {
        int mode;                          // enum agent_tune_mode
        bool codec, overlap, interval;     // what auto may change
        bool balance;                      // auto: slow clusters make fewer steps
        int finest, coarsest;              // levels (inter/record/tune.h) - 1
        int32_t overlap_max, interval_max; // 0: half of H; twice H
        float error_max;
    } tune;
    float grace_s; // how long a slow cluster is waited for once two updates are ready
};

struct agent_shape { // of the model of a generator or teacher; 0: as in the job's model
    int32_t n_layers, d_model, n_heads, d_ff;
};

struct agent_distill_config { // mode distill (distill.h)
    float lambda, temperature;
    int32_t k;                  // labels a position; 0: all logits, in one process only
    int32_t k_min, k_max;       // where the link decides (label_rate.h); 0: k
    int32_t ahead;              // steps that the teacher may be ahead
    char teacher[NEB_PATH_MAX]; // its checkpoint; empty: it begins with nothing, and learns
    bool learn;                 // the teacher trains on the same batches
    enum agent_lost when_lost;
    bool pushed;      // the student sends its text; else both read the same shards
    bool federate;    // students are one model, by rounds (sync) among themselves
    bool relay;       // the first student passes the labels on to the others
    float patience_s; // without labels until the student says so, and does as when_lost says
    char cache[NEB_PATH_MAX]; // folder of received labels; empty: none
    int32_t beam;             // of the translations that are measured at the end
    struct agent_shape shape; // of a teacher without checkpoint
};

struct agent_rtd_config { // mode rtd (rtd.h)
    float mask_rate, lambda;
    bool push_text; // the text travels too; else both sides read the same shards
    int32_t generator_steps, discriminator_steps; // ratio
    int32_t ahead;                                // batches that the generator may be ahead
    int32_t share_embeddings; // events between two exchanges (rtd_share.h); 0: none
    struct agent_shape shape; // of the generator
};

// Keys that say `auto`: the planner (planner.h) fills them in before the job travels; until then they hold a default.
enum agent_auto {
    AGENT_AUTO_BATCH = 1, // data.accumulate then counts sequences
    AGENT_AUTO_RECOMPUTE = 2,
    AGENT_AUTO_INTERVAL = 4,
    AGENT_AUTO_OVERLAP = 8,
    AGENT_AUTO_CODEC = 16,
    AGENT_AUTO_MESH = 32, // every cluster's; in a job each has its own
};

enum { AGENT_KEYS_MAX = 256 }; // options that a job has at most

struct agent_job {
    uint32_t autos; // enum agent_auto; never travels
    // Where the job file has each key (by its row in the table of options), and clusters, for complaints about what does not fit together; 0: it
    // does not have it. They never travel.
    uint16_t lines[AGENT_KEYS_MAX], clusters_line;
    bool given[AGENT_KEYS_MAX]; // likewise: by the file or --set
    char name[AGENT_NAME_MAX + 1];
    // Drawn when a run begins: two runs of one job file are two jobs. Hexadecimal; "": not drawn
    char nonce[2 * AGENT_NONCE_BYTES + 1];
    enum agent_mode mode;
    int64_t seed;
    int64_t steps;
    struct intra_model_config model; // vocab 0: the corpus's
    char model_init[NEB_PATH_MAX];   // checkpoint that gives shape and parameters (model_init.h)
    struct intra_trainable trainable;
    struct intra_optim_config optim;
    char corpus[NEB_PATH_MAX];
    char tokenizer_sha256[2 * NEB_SHA256_BYTES + 1]; // hexadecimal; "": whatever each corpus has
    int32_t seq_len, batch, accumulate;
    bool recompute;
    char init_from[NEB_PATH_MAX];
    char init_sha256[2 * NEB_SHA256_BYTES +
                     1]; // of its parameters, hexadecimal; "": whatever it has at each site
    struct agent_sync sync;
    struct agent_rtd_config rtd;
    struct agent_distill_config distill;
    char rate_limit[128];     // of what every cluster sends (inter/link/rate_limit.h); "": none
    int32_t eval_windows;     // per source; 0: the whole held-out split
    int32_t eval_every;       // inner steps; 0: only at the end
    int32_t checkpoint_every; // inner steps, 0: only when stopping and at the end
    int32_t checkpoint_keep;
    bool checkpoint_copy; // written while training goes on (intra/ckpt/checkpoint_async.h)
    int32_t log_every;    // inner steps a metrics line
    float hang_after_s;   // silence until a worker counts as hanging (worker_heartbeat); 0: never
    int32_t n_clusters;
    struct agent_cluster clusters[AGENT_CLUSTERS_MAX];
};

// Defaults, then the file. NEB_ERR_INVALID or NEB_ERR_FORMAT after one logged line.
NEB_MUST_CHECK enum neb_status agent_job_load(const char *path, struct agent_job *out);
// The same from memory; `file` names it in complaints. For tests and fuzzing.
NEB_MUST_CHECK enum neb_status agent_job_parse(const char *text, size_t len, const char *file,
                                               struct agent_job *out);
// "sync.interval=10", with the checks and messages of the file.
NEB_MUST_CHECK enum neb_status agent_job_set(struct agent_job *job, const char *assignment);
// What no single key can tell: head sizes, offsets, clusters.
NEB_MUST_CHECK enum neb_status agent_job_validate(const struct agent_job *job, const char *file);
// Warns of keys that were given and do nothing in this job (of a file: one that came as JSON has all keys).
void agent_job_warn_idle(const struct agent_job *job, const char *file);
// Whether the job file or --set gives this key, or a key of this section.
bool agent_job_gives(const struct agent_job *job, const char *path);
const char *agent_role_name(enum agent_role role);
// Index of the first cluster with this role; -1: none.
int agent_job_role(const struct agent_job *job, enum agent_role role);
// The corpus that a cluster trains on: its own, or the job's.
const char *agent_job_corpus(const struct agent_job *job, int cluster);
// Clusters whose updates make the rounds; 1 where there are none.
int32_t agent_job_exchanging(const struct agent_job *job);
int32_t
agent_job_training(const struct agent_job *job); // clusters that are no witnesses; these come first
// Whether a cluster may train on a device, if it is told to or has one: not where both sides of rtd or distill are one process
// (sync.scheme: synchronous), the reference, which is on processors.
bool agent_job_takes_devices(const struct agent_job *job);
// Tokens of one inner step of a cluster at most: those that the job says, and of trainers that attach, whose batches are their own,
// AGENT_FOREIGN_TOKENS times as many. No member's weight in a round is taken beyond them.
enum { AGENT_FOREIGN_TOKENS = 8 };
uint64_t agent_job_step_tokens(const struct agent_job *job);
// What the site that runs cluster `self` reads and writes for the job, beside its own folder: every value of an option that is a path,
// but those that only other clusters look at. Returns how many.
enum { AGENT_JOB_PATHS_MAX = 8 + AGENT_CLUSTERS_MAX };
int agent_job_paths(const struct agent_job *job, int self, const char *paths[AGENT_JOB_PATHS_MAX]);
// Canonical JSON (new reference, NULL when out of memory) and back; unknown keys are refused.
json_t *agent_job_to_json(const struct agent_job *job);
NEB_MUST_CHECK enum neb_status agent_job_from_json(const json_t *json, struct agent_job *out);
// The specification without what one cluster may have otherwise (config_options.h: places): what
// all sites of the job share. New reference; NULL: out of memory.
json_t *agent_job_shared(const json_t *spec);
// The first key of that in which two specifications differ, such as "clusters.sources", or "the
// order of clusters.sources"; NULL: none does, and one may take the other's place when a run is
// resumed.
const char *agent_job_differs(const json_t *a, const json_t *b);
// Prints the table as Markdown: the reference of all keys.
void agent_job_reference(FILE *out);

#endif
