// SPDX-License-Identifier: Apache-2.0
// Reads job files (YAML, or canonical JSON between agents) into one plain struct.
//
// One table holds a row for every key of a job (keys.h) and of a cluster (config_options.c): path,
// type, bounds, default, help. YAML files, `--set path=value`, JSON and the reference in
// configs/README.md all read this table, so all of them know the same keys. libyaml parses YAML.
// Every complaint is one line: file:line: key: what is wrong and what is allowed.
#ifndef AGENT_CONFIG_H
#define AGENT_CONFIG_H
#include "agent/base/member_set.h"
#include "agent/base/sha256.h"
#include "agent/job/groups.h"
#include "intra/train/trainer.h"

#include <jansson.h>
#include <stdio.h>

enum {
    AGENT_NAME_MAX = 63,
    AGENT_CLUSTERS_MAX = NEB_MEMBERS_MAX,
    AGENT_SOURCES_MAX = 16,
    AGENT_JOB_ID_BYTES = 32, // id.h
    AGENT_NONCE_BYTES = 16
};
#define AGENT_STEPS_MAX UINT64_C(1000000000000)
#define AGENT_SEED_MAX  UINT64_C(9000000000000000) // every JSON reader keeps it exact

enum agent_mode { AGENT_MODE_REPLICAS, AGENT_MODE_RTD, AGENT_MODE_DISTILL };
enum agent_scheme {
    AGENT_SCHEME_FEDERATED,   // H inner steps, then an exchange of updates
    AGENT_SCHEME_SYNCHRONOUS, // the reference: every cluster's batch in every step, in one process
    AGENT_SCHEME_NONE,        // every cluster trains alone
};

enum agent_role { // of a cluster in modes rtd and distill
    AGENT_ROLE_NONE,
    AGENT_ROLE_GENERATOR,     // rtd: masks and fills in
    AGENT_ROLE_DISCRIMINATOR, // rtd: finds the tokens that were filled in
    AGENT_ROLE_TEACHER,       // distill: makes labels
    AGENT_ROLE_STUDENT,       // distill: learns from the labels
};

enum agent_task {         // what a student learns from
    AGENT_TASK_TRANSLATE, // pairs: sees the whole source, learns the target
    AGENT_TASK_TEXT,      // windows of any text
    AGENT_TASK_INSTRUCT,  // pairs: reads from left to right, learns the second half
};
enum agent_text_source { // who wrote what a student learns
    AGENT_TEXT_CORPUS,   // the corpus's targets
    AGENT_TEXT_STUDENT,  // its own samples, which the teacher labels (on-policy)
    AGENT_TEXT_TEACHER,  // the teacher's answers to the prompts (sequence-level)
};
enum agent_align { AGENT_ALIGN_SAME, AGENT_ALIGN_TEXT }; // of the sides' vocabularies
enum agent_lost { AGENT_LOST_WAIT, AGENT_LOST_ALONE };   // a student without labels

enum agent_init {    // first parameters
    AGENT_INIT_SEED, // the built-in model's, made from the seed or read from init_from
    AGENT_INIT_FROM, // one cluster's trainer has them, the others fetch them
    AGENT_INIT_EQUAL // all trainers have the same ones; digests are compared
};

enum agent_gate {       // treatment of a well-formed, finite update
    AGENT_GATE_TRUSTED, // commit it as it is; flag an outlier
    // Clip norms to their median; leave out the extremes of each element (inter/record/robust.h).
    AGENT_GATE_ROBUST,
    AGENT_GATE_PRIVATE, // mask it: members read only the sum (agent/job/private.h)
};

// How much the row counts of an update (compress/update.h) reveal of a member's text, from least to
// most.
enum agent_row_counts { AGENT_ROWS_NEVER = -1, AGENT_ROWS_COARSE, AGENT_ROWS_EXACT };

struct agent_source {
    char name[AGENT_NAME_MAX + 1]; // a source of the corpus
    float weight;                  // relative share of the windows
};

enum agent_launcher {
    AGENT_LAUNCHER_LOCAL, // all ranks on the agent's machine, without MPI
    // On the hosts that mpirun finds: a Slurm allocation, a host file. With --workers rank 0 may
    // run on another host than the agent.
    AGENT_LAUNCHER_MPIRUN,
    // As a step of the allocation in which the agent runs. An agent outside of any allocation, with
    // --workers, asks for a new one.
    AGENT_LAUNCHER_SLURM,
    AGENT_LAUNCHER_ATTACH, // starts nothing: a trainer attaches to the agent (libnebula.h)
};

enum agent_device {    // where a cluster's worker trains
    AGENT_DEVICE_AUTO, // CUDA if the kernels load and every rank has a device
    AGENT_DEVICE_CPU,
    AGENT_DEVICE_CUDA,
};
enum agent_precision {    // of activations and products; master parameters are fp32
    AGENT_PRECISION_AUTO, // bf16 on CUDA, fp32 on processors
    AGENT_PRECISION_FP32,
    AGENT_PRECISION_BF16, // on processors only the products are bf16
};

enum agent_outer_state { // where θ, v and the residual are
    AGENT_OUTER_AUTO,    // the device that trains, if the state fits there
    AGENT_OUTER_DEVICE,
    AGENT_OUTER_HOST,
};

enum agent_graphs {    // CUDA graphs (intra/model/device.h); results have the same bits
    AGENT_GRAPHS_AUTO, // if they are faster
    AGENT_GRAPHS_ON,
    AGENT_GRAPHS_OFF,
};

enum agent_recompute {      // of a cluster
    AGENT_RECOMPUTE_AS_JOB, // the job's recompute holds
    AGENT_RECOMPUTE_ON,
    AGENT_RECOMPUTE_OFF,
};

struct agent_cluster {
    char name[AGENT_NAME_MAX + 1]; // the agent's name in the federation
    bool witness;                  // votes; it trains nothing and holds no updates
    enum agent_role role;
    // The planner chooses the role before the job is sent; until then role is AGENT_ROLE_NONE.
    bool role_auto;
    // File with the output of nebula plan --profile on that cluster; "": none. Never sent.
    char profile[NEB_PATH_MAX];
    // Threads of the worker, which its ranks divide; with launcher mpirun or slurm, threads of each
    // rank. 0: all processors (with --local the clusters divide them).
    int32_t threads;
    struct intra_mesh_config mesh; // ranks of the worker; 0 counts as 1
    bool mesh_auto; // the planner (plan/planner.h) chooses the mesh before the job is sent
    // With mesh_auto and launcher mpirun or slurm: the number of ranks; 0: not given. Never sent,
    // because the mesh that the planner chose has the number.
    int32_t ranks;
    enum agent_launcher launcher;
    enum agent_device device;
    enum agent_precision precision;
    enum agent_outer_state outer_state;
    enum agent_graphs cuda_graphs;
    // Micro-batch of this cluster, instead of data.batch. 0: data.batch
    int32_t batch;
    enum agent_recompute recompute;
    char corpus[NEB_PATH_MAX]; // instead of data.corpus; "": none
    char init[NEB_PATH_MAX];   // teacher: instead of distill.teacher.init; "": none
    float weight;              // teacher: of its labels, beside those of others; 0: 1
    int32_t n_sources;         // 0: all sources of the corpus, by size
    struct agent_source sources[AGENT_SOURCES_MAX];
};

static inline int agent_cluster_ranks(const struct agent_cluster *c) {
    return (c->mesh.dp > 1 ? c->mesh.dp : 1) * (c->mesh.pp > 1 ? c->mesh.pp : 1) *
           (c->mesh.tp > 1 ? c->mesh.tp : 1);
}
// True if agent_local_start() gives the cluster's agent its own GPUs, one for each rank.
static inline bool agent_local_deals(const struct agent_cluster *c) {
    return c->device != AGENT_DEVICE_CPU && c->launcher == AGENT_LAUNCHER_LOCAL && !c->witness;
}

enum agent_tune_mode {
    AGENT_TUNE_FIXED, // the job's values; a second run has the same bits
    AGENT_TUNE_AUTO,  // follows the link (agent/job/tune.h)
};

// keys.h has the fields of the next structs. KEY_FIELD(A, B, declaration) is the declaration if A
// and B are the same word, else nothing.
#define KEY_SECOND(a, b, ...)        b
#define KEY_PICK(...)                KEY_SECOND(__VA_ARGS__)
#define KEY_FIELD(a, b, declaration) KEY_PICK(KEY_SAME_##a##_##b declaration, , )
#define KEY_SAME_JOB_JOB             ~,
#define KEY_SAME_SYNC_SYNC           ~,
#define KEY_SAME_SYNC_DP_SYNC_DP     ~,
#define KEY_SAME_SYNC_TUNE_SYNC_TUNE ~,
#define KEY_SAME_RTD_RTD             ~,
#define KEY_SAME_DISTILL_DISTILL     ~,

struct agent_sync {
#define KEY(where, declaration, ...) KEY_FIELD(SYNC, where, declaration;)
#include "agent/job/keys.h"
    struct {
#define KEY(where, declaration, ...) KEY_FIELD(SYNC_DP, where, declaration;)
#include "agent/job/keys.h"
    } dp;
    struct agent_tune {
#define KEY(where, declaration, ...) KEY_FIELD(SYNC_TUNE, where, declaration;)
#include "agent/job/keys.h"
    } tune;
};

struct agent_shape { // model of a generator or teacher; 0: as the job's model
    int32_t n_layers, d_model, n_heads, d_ff;
};

struct agent_distill_config { // mode distill (distill.h)
    struct agent_shape shape; // of a teacher without checkpoint
#define KEY(where, declaration, ...) KEY_FIELD(DISTILL, where, declaration;)
#include "agent/job/keys.h"
};

struct agent_rtd_config {     // mode rtd (rtd.h)
    struct agent_shape shape; // of the generator
#define KEY(where, declaration, ...) KEY_FIELD(RTD, where, declaration;)
#include "agent/job/keys.h"
};

// Keys with the value `auto`. The planner (plan/planner.h) chooses their values before the job is
// sent; until then they hold a default.
enum agent_auto {
    AGENT_AUTO_BATCH = 1, // data.accumulate then counts sequences
    AGENT_AUTO_RECOMPUTE = 2,
    AGENT_AUTO_INTERVAL = 4,
    AGENT_AUTO_OVERLAP = 8,
    AGENT_AUTO_CODEC = 16,
    AGENT_AUTO_MESH = 32, // only inside the planner; a job has mesh_auto
};

enum { AGENT_KEYS_MAX = 256, AGENT_CLUSTER_KEYS_MAX = 24 }; // rows of the table: job, cluster

struct agent_job {
    uint32_t autos; // enum agent_auto; never sent
    // The line of each key in the job file, by its row in the table; 0: the file does not have the
    // key. Complaints name these lines. They are never sent.
    uint16_t lines[AGENT_KEYS_MAX], clusters_line;
    uint16_t cluster_lines[AGENT_CLUSTERS_MAX][AGENT_CLUSTER_KEYS_MAX];
    uint16_t groups_line, group_lines[AGENT_GROUPS_MAX];
    bool given[AGENT_KEYS_MAX]; // by the file or --set; never sent
    // Random hexadecimal, drawn when a run begins: two runs of one file are two jobs. "": none yet
    char nonce[2 * AGENT_NONCE_BYTES + 1];
    struct intra_model_config model;
    struct intra_trainable trainable;
    struct intra_optim_config optim;
    struct agent_sync sync;
    struct agent_rtd_config rtd;
    struct agent_distill_config distill;
#define KEY(where, declaration, ...) KEY_FIELD(JOB, where, declaration;)
#include "agent/job/keys.h"
    int32_t n_clusters;
    struct agent_cluster clusters[AGENT_CLUSTERS_MAX];
    int32_t n_groups; // of the job file; groups.h has all of them
    struct agent_group groups[AGENT_GROUPS_MAX];
};

// True if a synchronous run makes an outer step that changes anything.
static inline bool agent_job_steps_alone(const struct agent_job *j) {
    return j->sync.scheme == AGENT_SCHEME_SYNCHRONOUS && (j->sync.eta != 1 || j->sync.mu > 0);
}

// Reads a job file over the defaults. NEB_ERR_INVALID or NEB_ERR_FORMAT, after one logged line.
NEB_MUST_CHECK enum neb_status agent_job_load(const char *path, struct agent_job *out);
// The same from memory, for tests and fuzzing; complaints call it `file`.
NEB_MUST_CHECK enum neb_status agent_job_parse(const char *text, size_t len, const char *file,
                                               struct agent_job *out);
// assignment: "sync.interval=10". Checks and complaints are those of a file.
NEB_MUST_CHECK enum neb_status agent_job_set(struct agent_job *job, const char *assignment);
// Checks whether the values fit each other. NEB_ERR_INVALID, after one logged line.
NEB_MUST_CHECK enum neb_status agent_job_validate(const struct agent_job *job, const char *file);
// Warns of keys that were given and do nothing in this job. Only for a job from a file, because
// JSON has all keys.
void agent_job_warn_idle(const struct agent_job *job, const char *file);
// True if the job file or --set gives this key, or a key of this section.
bool agent_job_gives(const struct agent_job *job, const char *path);
const char *agent_role_name(enum agent_role role);
// Index of the first cluster with this role; -1: none.
int agent_job_role(const struct agent_job *job, enum agent_role role);
// The corpus that a cluster trains on: its own, or the job's.
const char *agent_job_corpus(const struct agent_job *job, int cluster);
// Number of clusters whose updates go into the rounds; 1 if there are no rounds.
int32_t agent_job_exchanging(const struct agent_job *job);
// Number of clusters that are not witnesses; they come first in the list.
int32_t agent_job_training(const struct agent_job *job);
// The cluster whose parameters the others fetch before their first step; -1: none.
int agent_job_init_cluster(const struct agent_job *job);
// True if clusters may train on devices. Modes rtd and distill with sync.scheme: synchronous run in
// one process, on processors.
bool agent_job_takes_devices(const struct agent_job *job);
// Most tokens of one inner step of a cluster. It bounds the weight of a member in a round. Trainers
// that attach choose their batches, so a job with one has AGENT_FOREIGN_TOKENS times as many. With
// `model: attached` it is data.step_tokens.
enum { AGENT_FOREIGN_TOKENS = 8 };
uint64_t agent_job_step_tokens(const struct agent_job *job);
// The files and folders that the site of cluster `self` reads or writes for the job, besides the
// job's own folder: the value of every key that is a path and that this cluster uses. Returns their
// number.
enum { AGENT_JOB_PATHS_MAX = 8 + AGENT_CLUSTERS_MAX };
int agent_job_paths(const struct agent_job *job, int self, const char *paths[AGENT_JOB_PATHS_MAX]);
// Canonical JSON (a new reference; NULL: out of memory), and back. The way back refuses unknown
// keys.
json_t *agent_job_to_json(const struct agent_job *job);
NEB_MUST_CHECK enum neb_status agent_job_from_json(const json_t *json, struct agent_job *out);
// The part of a specification that all sites of the job share. It lacks the keys that may differ
// from run to run (config_options.h: enum config_place). A new reference; NULL: out of memory.
json_t *agent_job_shared(const json_t *spec);
// The first key in which the shared parts of two specifications differ: "clusters.sources", or "the
// order of clusters.sources". NULL: no key differs, and a resumed run may use either specification.
const char *agent_job_differs(const json_t *a, const json_t *b);
// Prints the table of all keys as Markdown, a section for each group of keys.
void agent_job_reference(FILE *out);

#endif
