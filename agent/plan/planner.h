// SPDX-License-Identifier: Apache-2.0
// What a job will do on given machines and links, and what would do better: joins intra/cost/cost.h (steps, memory) with
// inter/round/wan_cost.h (exchanges). `nebula plan` prints it; keys that say `auto` take their values from it.
//
// Mesh, micro-batch and recomputation are each cluster's own, chosen for its machines. The
// tokens of a step (batch x accumulate x seq_len) and what learns are never changed: they are what the user wants to train.
#ifndef AGENT_PLANNER_H
#define AGENT_PLANNER_H
#include "agent/job/config.h"
#include "agent/job/wan_spec.h"
#include "agent/plan/profile.h"
#include "inter/record/types.h"

enum { AGENT_PLANNER_CODECS = AGENT_PROFILE_CODECS + 1 }; // and the job's own

struct agent_site {        // what is known of a cluster's machines
    struct agent_wan link; // what it sends through; bits_s 0: as everybody's
    struct agent_profile profile;
    bool other;          // its profile is from a file
    bool assumed;        // nothing is known of its machine, and this one's profile stands for it
    double share;        // of the machine: 1, or 1/N with --local N
    double device_share; // of a device: 1, or less where clusters of --local share it; 0 is 1
    int32_t devices;     // of the machine's, that ranks are to be chosen for; 0: all
    // to be used whatever the job says; 0: as its cluster says, else as many as is fastest on the machine
    int32_t ranks;
    double step_s; // of a trainer that attaches, as its owner says; 0: not known
};

struct agent_planned {
    struct intra_cost_job job;
    struct intra_cost cost;
    bool fits;
    // A trainer attaches: its memory, its mesh and its micro-batches are its own, and not reckoned. Its seconds a step are the site's
    // step_s, else the slowest other cluster's (guessed), else not known (NAN).
    bool attached, guessed;
    int32_t
        no_mesh; // so many ranks were wanted, and no mesh of them divides the model and the sequences of a step; 0: one does
    bool no_device; // device: cuda, but nothing is known of one: reckoned with processors
    bool no_bf16;   // precision: bf16, but these processors have none: reckoned in fp32
    // On processors: its steps in fp32 are so many times as long as in bf16, whichever it is in; 0: not known
    double bf16_gain;
    double wait_s; // of an interval: for the slowest cluster and for updates
};

// What a cluster does with sync.tune: auto, half-way through the run.
struct agent_tuned {
    struct inter_plan plan;
    int32_t codec;     // index of it
    double steps;      // that it makes of an interval
    double wait_s;     // of an interval, as agent_planned.wait_s
    double sent_bytes; // of the run
};
struct agent_tuning {
    bool on;       // the job says sync.tune: auto
    bool possible; // or could, with this interval, overlap and codec
    double wall_s;
    struct agent_tuned of[AGENT_CLUSTERS_MAX];
};

struct agent_planner {
    struct agent_wan link; // the worst of any cluster's
    struct inter_wan_codec codecs[AGENT_PLANNER_CODECS];
    int32_t n_codecs, n; // clusters that train
    struct agent_planned clusters[AGENT_CLUSTERS_MAX];
    struct inter_wan_plan wan; // no exchanges: interval 0
    bool carried;              // by the link
    // With sync.tune: auto what becomes of that; without, what would. Exchanges every wan.interval steps to begin with.
    struct agent_tuning tuning;
    double wall_s;     // of the run, without start and final evaluation
    double sent_bytes; // of the run and the cluster that sends most, everything included
};

// free: enum agent_auto bits of what may be chosen; the rest is as the job says. vocab: of the corpus, where the job leaves it
// open. job is valid; sites[i] belongs to cluster i. NEB_ERR_INVALID: the vocabulary is not known.
NEB_MUST_CHECK enum neb_status agent_planner_run(const struct agent_job *job, int32_t vocab,
                                                 const struct agent_site *sites,
                                                 const struct agent_wan *link, uint32_t free,
                                                 struct agent_planner *out);
// Of a machine what a job may have: memory in bytes, that of a device; the share of it that a cluster's worker gets.
double agent_planner_memory(const struct agent_site *s);
double agent_planner_device_memory(const struct agent_site *s);
double agent_planner_share(const struct agent_cluster *c, const struct agent_site *s);
// On what the worker of cluster i trains, and in which type, so far as its machine is known: writes x->no_device, x->no_bf16 and in x->job
// device, type, outer_device; on devices share and ranks_a_host as well.
void agent_planner_place(const struct agent_job *job, int32_t i, const struct agent_site *s,
                         int32_t ranks, struct agent_planned *x);
// A cluster's own link, or everybody's; the worst of all clusters'.
struct agent_wan agent_planner_link(const struct agent_site *s, const struct agent_wan *all);
struct agent_wan agent_planner_worst(const struct agent_site *sites, int32_t n,
                                     const struct agent_wan *all);
struct inter_wan_path agent_planner_path(const struct agent_wan *link,
                                         const struct agent_site *sites, int32_t members);
// The job's model with nothing left open. vocab: as in agent_planner_run.
struct intra_model_config agent_planner_model(const struct agent_job *job, int32_t vocab);
// What an exchange by a codec takes the workers of a cluster: its busiest owner's part, and the way of parameters and frames between ranks.
// bytes: of a whole update.
struct inter_wan_work agent_planner_work(const struct agent_planned *x, const struct agent_site *s,
                                         const struct agent_cluster *c,
                                         const struct inter_wan_codec *codec, double bytes,
                                         int32_t members);
// Codec k of p with the rates that a site has measured of it; what only this machine has measured stands for all.
struct inter_wan_codec agent_planner_codec(const struct agent_planner *p,
                                           const struct agent_site *s, int32_t k);
// Writes p->tuning; p->wan says what begins. load: of the job.
void agent_planner_tune(const struct agent_job *job, const struct agent_site *sites,
                        const struct inter_wan_load *load, struct agent_planner *p);
// The second half of agent_planner_run: exchanges of out->n clusters whose steps are planned.
NEB_MUST_CHECK enum neb_status agent_planner_exchanges(const struct agent_job *job, int32_t vocab,
                                                       const struct agent_site *sites,
                                                       uint32_t free, struct agent_planner *out);
// Whether the job may have what its keys that say auto were given. NEB_ERR_INVALID: no mesh; NEB_ERR_LIMIT: not enough memory (where a site's
// machine is assumed that is only said in the log), or as below. Of trainers that attach nothing is asked but their seconds a step.
NEB_MUST_CHECK enum neb_status agent_planner_judge(const struct agent_job *job,
                                                   const struct agent_site *sites,
                                                   const struct agent_planner *p);
// Its last part. NEB_ERR_LIMIT: what they were given hangs on seconds a step or devices that nothing is known of.
NEB_MUST_CHECK enum neb_status agent_planner_known(const struct agent_job *job,
                                                   const struct agent_site *sites,
                                                   const struct agent_planner *p);
// The same of roles: all machines of clusters that have one or may get it are compared. NEB_ERR_LIMIT: nothing is known of a device of one.
NEB_MUST_CHECK enum neb_status agent_planner_roles_known(const struct agent_job *job,
                                                         const struct agent_site *sites);
// More ranks on a host than it has devices, and they must have one each.
bool agent_planner_wants_devices(const struct agent_planned *x, const struct agent_site *s);
// What the first cluster whose steps are planned does: the job's micro-batches are its.
const struct intra_cost_job *agent_planner_first(const struct agent_planner *p);
// Writes what was chosen into the job (meshes of clusters with mesh_auto only, or all with AGENT_AUTO_MESH in free).
void agent_planner_apply(const struct agent_planner *p, uint32_t free, struct agent_job *job);

// What is known of the job's machines: of those whose `other` is set it stands; else the profile that the job names, else this
// machine, or its share with --local N, measured when it is needed. *kept: before, and not now.
NEB_MUST_CHECK enum neb_status agent_planner_sites(const struct agent_job *job, int local,
                                                   bool measure, struct agent_site *sites,
                                                   bool *kept);
// With --local: which share of a device each cluster has, as agent_local_start deals them out, and how many are there for the ranks of those
// whose mesh is free. Part of agent_planner_sites, with free as job->autos.
void agent_planner_deal(const struct agent_job *job, uint32_t free, struct agent_site *sites);
// Roles that say auto. NEB_ERR_INVALID: not all machines are known; NEB_ERR_LIMIT: nothing fits.
NEB_MUST_CHECK enum neb_status agent_planner_roles_resolve(struct agent_job *job, int local);
// The links between the job's clusters, as the agent of `home` has measured them on what it sent: the lowest goodput, the longest round
// trip. NEB_ERR_NOT_FOUND (not logged): no agent answers there, or it has sent nothing to one of them yet.
NEB_MUST_CHECK enum neb_status agent_planner_measured(const char *home, const struct agent_job *job,
                                                      struct agent_wan *out);
// All that a command needs: which keys say auto, how machines and link are known. link "": sync.link, else the loopback of
// --local, else what the agent of `home` has measured. NEB_ERR_INVALID: exchanges are to be chosen and nothing is known of the link.
NEB_MUST_CHECK enum neb_status agent_planner_resolve(struct agent_job *job, int local,
                                                     const char *link, const char *home);
bool agent_planner_is_open(const struct agent_job *job); // something in it says auto
// What says auto in the job of a run that goes on takes what was chosen when it began: link and machine are measured anew, and another
// choice would be another job. What the two do not agree on otherwise still says auto.
void agent_planner_take(const struct agent_job *chosen, struct agent_job *job);
// Vocabulary of the first corpus that is on this machine; 0: none is.
NEB_MUST_CHECK enum neb_status agent_planner_vocab(const struct agent_job *job, int32_t *vocab);

// Which cluster should stream (teacher of distill, generator of rtd) and which learn from it: the one whose choice makes the
// slower side fastest. seconds_*[i]: of a step on cluster i. fits_*: memory. Others than *out learn. false: no choice fits.
// serves: the stream is made anew for every learner (a teacher), not once for all (a generator).
bool agent_planner_roles(int32_t n, const double *seconds_stream, const bool *fits_stream,
                         const double *seconds_learn, const bool *fits_learn, bool serves,
                         int32_t *out, double *step_s);

#endif
