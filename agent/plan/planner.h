// SPDX-License-Identifier: Apache-2.0
// Predicts a job on given machines and links, and chooses better settings: joins intra/cost/cost.h
// (steps, memory) with inter/round/wan_cost.h (exchanges). `nebula plan` prints the result, and
// keys with the value `auto` are set from it.
//
// Each cluster has its own mesh, micro-batch and recomputation, chosen for its machines. The
// planner never changes the tokens of a step (batch x accumulate x seq_len) or what is trained: the
// user has chosen them.
#ifndef AGENT_PLANNER_H
#define AGENT_PLANNER_H
#include "agent/job/config.h"
#include "agent/job/wan_spec.h"
#include "agent/plan/profile.h"
#include "inter/record/types.h"

enum { AGENT_PLANNER_CODECS = CMP_PLANNED_MAX + 1 }; // and the job's own codec

struct agent_site {        // what is known of a cluster's machines
    struct agent_wan link; // the link it sends through; bits_s 0: the link common to all
    struct agent_profile profile;
    bool other;   // the profile comes from a file
    bool assumed; // its machine is not known; the profile of this machine stands for it
    double share; // share of the machine: 1, or 1/N with --local N
    // share of a device: below 1 if clusters of --local share it; 0 counts as 1
    double device_share;
    int32_t devices; // devices of the machine for which ranks are chosen; 0: all
    // Number of ranks that overrides the job; 0: the cluster's number, or the fastest one.
    int32_t ranks;
    double step_s; // seconds per step of an attached trainer, given by the user; 0: not known
};

struct agent_planned {
    struct intra_cost_job job;
    struct intra_cost cost;
    bool fits;
    // attached: a trainer attaches. Its memory, mesh and micro-batches are its own and are not
    // predicted. Its seconds per step are the site's step_s, or those of the slowest other cluster
    // (guessed), or NAN: not known.
    bool attached, guessed;
    // The wanted number of ranks, if no mesh of so many ranks divides the model and the sequences;
    // else 0.
    int32_t no_mesh;
    bool no_device; // device: cuda, but no device is known: predicted for processors
    bool no_bf16;   // precision: bf16, but these processors have none: predicted in fp32
    // On processors: time of a step in fp32 / time of a step in bf16; 0: not known.
    double bf16_gain;
    double wait_s; // per interval: waiting for the slowest cluster and for updates
};

// What a cluster does with sync.tune: auto, at the middle of the run.
struct agent_tuned {
    struct inter_plan plan;
    int32_t codec;     // index of the codec
    double steps;      // steps that it makes in an interval
    double wait_s;     // per interval, as agent_planned.wait_s
    double sent_bytes; // in the run
};
struct agent_tuning {
    bool on;       // the job says sync.tune: auto
    bool possible; // the job could say so with this interval, overlap and codec
    double wall_s;
    struct agent_tuned of[AGENT_CLUSTERS_MAX];
};

struct agent_planner {
    struct agent_wan link; // the worst link of all clusters
    struct inter_wan_codec codecs[AGENT_PLANNER_CODECS];
    double bits_most[AGENT_PLANNER_CODECS]; // bits per parameter for any values; 0: unknown
    int32_t n_codecs, n;                    // clusters that train
    struct agent_planned clusters[AGENT_CLUSTERS_MAX];
    struct inter_wan_plan wan; // interval 0: no exchanges
    bool carried;              // the link can carry it
    // The prediction with sync.tune: auto, whether the job says so or not. It begins with an
    // exchange every wan.interval steps.
    struct agent_tuning tuning;
    double wall_s;     // of the run, without start and final evaluation
    double sent_bytes; // in the run, by the cluster that sends most, with all overhead
};

// free: bits of enum agent_auto for the keys that may be chosen; all others stay as the job says.
// vocab: the corpus's vocabulary, used if the job sets none. The job is valid; sites[i] belongs to
// cluster i. NEB_ERR_INVALID: the vocabulary is not known.
NEB_MUST_CHECK enum neb_status agent_planner_run(const struct agent_job *job, int32_t vocab,
                                                 const struct agent_site *sites,
                                                 const struct agent_wan *link, uint32_t free,
                                                 struct agent_planner *out);
// What a job may use of a machine: bytes of memory, bytes of a device's memory, and the share of
// the machine for a cluster's worker.
double agent_planner_memory(const struct agent_site *s);
double agent_planner_device_memory(const struct agent_site *s);
// The mesh that the job names, each axis 1 or more.
struct intra_mesh_config agent_planner_mesh(const struct agent_cluster *c);
double agent_planner_share(const struct agent_cluster *c, const struct agent_site *s);
// Finds where the worker of cluster i trains and in which type, as far as its machine is known.
// Writes x->no_device, x->no_bf16 and in x->job device, type and outer_device; on devices also
// share and ranks_a_host.
void agent_planner_place(const struct agent_job *job, int32_t i, const struct agent_site *s,
                         int32_t ranks, struct agent_planned *x);
// A cluster's own link, or else the common one. _worst: the worst link of all clusters.
struct agent_wan agent_planner_link(const struct agent_site *s, const struct agent_wan *all);
struct agent_wan agent_planner_worst(const struct agent_site *sites, int32_t n,
                                     const struct agent_wan *all);
struct inter_wan_path agent_planner_path(const struct agent_wan *link,
                                         const struct agent_site *sites, int32_t members);
// The job's model with all sizes set. vocab: as in agent_planner_run.
struct intra_model_config agent_planner_model(const struct agent_job *job, int32_t vocab);
// The time that the workers of a cluster need for an exchange with a codec: for the part of the
// busiest owner, and for the transfer of parameters and frames between ranks. bytes: of a whole
// update.
struct inter_wan_work agent_planner_work(const struct agent_planned *x, const struct agent_site *s,
                                         const struct agent_cluster *c,
                                         const struct inter_wan_codec *codec, double bytes,
                                         int32_t members);
// Codec k of p with the rates that the site's profile has for it. The job's own codec has the rates
// of this machine for all sites.
struct inter_wan_codec agent_planner_codec(const struct agent_planner *p,
                                           const struct agent_site *s, int32_t k);
// Writes p->tuning; p->wan has the first settings. load: the job's load.
void agent_planner_tune(const struct agent_job *job, const struct agent_site *sites,
                        const struct inter_wan_load *load, struct agent_planner *p);
// The second half of agent_planner_run: the exchanges of out->n clusters whose steps are planned.
NEB_MUST_CHECK enum neb_status agent_planner_exchanges(const struct agent_job *job, int32_t vocab,
                                                       const struct agent_site *sites,
                                                       uint32_t free, struct agent_planner *out);
// Checks that the job may use the values chosen for `auto`. NEB_ERR_INVALID: no mesh.
// NEB_ERR_LIMIT: not enough memory (only a warning if the site's machine is assumed), or as
// agent_planner_known. Attached trainers are only checked for known seconds per step.
NEB_MUST_CHECK enum neb_status agent_planner_judge(const struct agent_job *job,
                                                   const struct agent_site *sites,
                                                   const struct agent_planner *p);
// The last part of agent_planner_judge. NEB_ERR_LIMIT: a choice depends on seconds per step or
// devices that are not known.
NEB_MUST_CHECK enum neb_status agent_planner_known(const struct agent_job *job,
                                                   const struct agent_site *sites,
                                                   const struct agent_planner *p);
// The same for roles, for which the machines of all clusters are compared. NEB_ERR_LIMIT: nothing
// is known of a cluster's devices.
NEB_MUST_CHECK enum neb_status agent_planner_roles_known(const struct agent_job *job,
                                                         const struct agent_site *sites);
// True if every rank must have its own device and a host has fewer devices than ranks.
bool agent_planner_wants_devices(const struct agent_planned *x, const struct agent_site *s);
// The choice of the first cluster whose steps are planned. The job's micro-batches are taken from
// it.
const struct intra_cost_job *agent_planner_first(const struct agent_planner *p);
// Writes the choices into the job. Meshes: all with AGENT_AUTO_MESH in `free`, else those of
// clusters with mesh_auto.
void agent_planner_apply(const struct agent_planner *p, uint32_t free, struct agent_job *job);

// Fills sites[] with what is known of the job's machines. A site with `other` set stays. Any other
// site gets the profile that the job names, or else this machine (with --local N a share of it),
// which is measured if needed. *kept: an earlier profile of this machine was used.
NEB_MUST_CHECK enum neb_status agent_planner_sites(const struct agent_job *job, int local,
                                                   bool measure, struct agent_site *sites,
                                                   bool *kept);
// With --local: the share of a device that each cluster has, as agent_local_start deals devices
// out, and the number of devices for the ranks of clusters with a free mesh. Part of
// agent_planner_sites, with job->autos as `free`.
void agent_planner_deal(const struct agent_job *job, uint32_t free, struct agent_site *sites);
// Chooses the roles that say auto. NEB_ERR_INVALID: not all machines are known; NEB_ERR_LIMIT:
// nothing fits.
NEB_MUST_CHECK enum neb_status agent_planner_roles_resolve(struct agent_job *job, int local);
// The links between the job's clusters as the agent of `home` has measured them: the lowest goodput
// and the longest round trip. NEB_ERR_NOT_FOUND (not logged): no agent answers there, or it has not
// yet measured one of the links.
NEB_MUST_CHECK enum neb_status agent_planner_measured(const char *home, const struct agent_job *job,
                                                      struct agent_wan *out);
// Sets all keys that say auto. The link is the first of these that is known: `link`, sync.link,
// with --local the loopback, the link that the agent of `home` has measured. NEB_ERR_INVALID:
// exchanges must be chosen, and no link is known.
NEB_MUST_CHECK enum neb_status agent_planner_resolve(struct agent_job *job, int local,
                                                     const char *link, const char *home);
bool agent_planner_is_open(const struct agent_job *job); // true if a key of the job says auto
// For a run that continues: keys that say auto take the values chosen at its start. New
// measurements could choose other values, and that would be another job. If settings on which a key
// depends differ between the two jobs, the key still says auto.
void agent_planner_take(const struct agent_job *chosen, struct agent_job *job);
// The vocabulary of the first corpus on this machine; 0: there is none.
NEB_MUST_CHECK enum neb_status agent_planner_vocab(const struct agent_job *job, int32_t *vocab);

// Chooses the cluster that streams (the teacher of distill, the generator of rtd); the others
// learn. Its choice makes the slower side as fast as possible. seconds_*[i]: of a step on cluster
// i. fits_*: it fits into memory. serves: the stream is made once per learner (teacher), not once
// for all (generator). False: no choice fits.
bool agent_planner_roles(int32_t n, const double *seconds_stream, const bool *fits_stream,
                         const double *seconds_learn, const bool *fits_learn, bool serves,
                         int32_t *out, double *step_s);

#endif
