// SPDX-License-Identifier: Apache-2.0
// What this site's operator lets jobs of others do here: HOME/policy.json. Without the file every job of a member on the
// list is admitted, as is every job submitted on this machine. With it, only what it says:
//
//     {"format": 1,
//      "members":   ["hub"],              who may submit; absent: every member
//      "data":      ["/data/nebula"],     every path of the job lies below one of these: corpora, initial models, teachers,
//                                         folders of labels (those that are not there yet, too)
//      "trainable": ["lora", "bitfit"],   full, lora, bitfit, last_layers; absent: any
//      "threads": 8, "ranks": 4,          at most, of this site's worker; threads of all its ranks together
//      "steps": 100000,                   at most, of a job
//      "parameters": 1000000000,          at most, of the models that this site's worker holds; embedding and output count where the job
//                                         says model.vocab, or a teacher's checkpoint does
//      "tokens_per_step": 1048576,        at most, of this site's cluster in a step (batch x accumulate x seq_len)
//      "memory": "64G",                   at most, of this site's worker, about, in the machine's memory
//      "device_memory": "20G",            likewise in each device's
//      "disk": "200G",                    at most, of what a job keeps here, about: checkpoints, snapshots, models, labels (updates:
//                                         nebula agent --blobs-max)
//      "devices": ["cpu", "cuda"],        where it may train; "device: auto" is either
//      "launchers": ["local"],            local, mpirun, slurm, attach; absent: any
//      "hours_without_progress": 168,     a job whose worker here makes no step for so long is
//                                         stopped with its checkpoint: it would hold devices,
//                                         memory and data for whatever it waits for. Absent: a
//                                         week, longer than an outage or a queue
//      "jobs": 4, "jobs_per_member": 1,   at most at a time, of all other members and of each
//
// and of what leaves this site of its text. Here what is absent is not what is unbounded:
//
//      "gates": ["private"],              trusted, robust, private; absent: any. The first two
//                                         show every member's updates to all others
//      "tokens_per_update": 65536,        at least, that an update rests on (agent_job_discloses).
//                                         Absent: AGENT_UPDATE_TOKENS, and four times the widest
//                                         layer's input: from an update of fewer tokens the words,
//                                         and of some dozens their order, can be computed
//      "row_counts": "coarse",            how exactly the job may count out this site's tokens
//                                         (sync.row_counts): exact, coarse, never. Absent: coarse,
//                                         for exact ones list the words of every update
//      "labels": true,                    a teacher's labels, or a generator's draws, for this
//                                         site's text may go to another one, which can read much
//                                         of the text from them. Absent: they may not
//      "push_text": true,                 the text itself may (rtd.push_text, distill.push_text).
//                                         Absent: it may not
//      "losses": "rounded",               that the submitter gets: exact, rounded (agent/daemon/disclose.h),
//                                         never. Absent: rounded
//      "loss_every": 100,                 rounded: steps behind one loss. Absent:
//                                         AGENT_DISCLOSED_STEPS, and as many as have AGENT_DISCLOSED_TOKENS
//      "attach": ["hub"]}                 whose jobs with `launcher: attach` may take a training
//                                         loop that waits here and has not named them
//                                         (agent/daemon/attach.h). Absent: nobody's
//
// So {"format": 1, "data": ["/data/nebula"]} is safe for text, as far as updates are
// (security/README.md). A site without the file has said nothing: no job is refused there, and
// losses are rounded.
//
// Sizes are numbers of bytes, or as --blobs-max takes them. What a job needs is reckoned as nebula plan does (job_needs.h); memory and
// devices of a trainer that attaches are the site's own affair.
//
// Unknown keys are refused, as is a file that is not this user's alone (0600, no link: sec_secret_read): a policy that is misread is worse
// than none. `nebula check --policy FILE` says what one admits, and with a job whether it is.
//
// Job specifications are signed by the member that submits them, over federation, job id (job_id.h)
// and canonical text; they may be passed on by other members, but only their signer can begin a job
// with them.
#ifndef AGENT_POLICY_H
#define AGENT_POLICY_H
#include "agent/daemon/disclose.h"
#include "agent/job/config.h"
#include "security/federation.h"
#include "security/sign.h"

enum {
    AGENT_POLICY_LIST = 16,
    // Four pages. What reconstructs sentences from gradients does so from some hundred tokens, or
    // from fewer than the model is wide.
    AGENT_UPDATE_TOKENS = 2048,
};

struct agent_policy {
    bool present;
    int n_members, n_data, n_attach; // -1: any; of attach none
    char members[AGENT_POLICY_LIST][SEC_NAME_MAX];
    char data[AGENT_POLICY_LIST][NEB_PATH_MAX];
    char attach[AGENT_POLICY_LIST][SEC_NAME_MAX];
    unsigned trainable;        // bit per enum intra_trainable_mode; 0: any
    unsigned devices;          // bit per enum agent_device, of cpu and cuda; 0: any
    unsigned gates, launchers; // likewise, of enum agent_gate, agent_launcher
    bool push_text, labels;
    enum agent_row_counts row_counts; // at most
    enum agent_losses losses;
    int64_t tokens_per_update, loss_every; // 0: as above
    double hours_without_progress;
    int64_t threads, ranks, steps, parameters, jobs, jobs_per_member; // 0: any
    int64_t tokens_per_step, memory, device_memory, disk;             // 0: any
};

// Jobs of other members that run at this site.
struct agent_policy_load {
    int jobs, of_member; // in all, and of the member that asks
};

// What holds of a job of others while it runs, of the policy that let it begin.
struct agent_terms {
    double update_tokens; // that an update has at least, if it has any
    double idle_s;        // without a step, until the job is stopped; 0: for ever
    struct agent_disclosed_rules told;
};

// Without a file: what a site that has said nothing admits.
struct agent_policy agent_policy_none(void);
// A missing file leaves out->present false. NEB_ERR_DENIED: open to others, of another user, or a link; NEB_ERR_FORMAT.
NEB_MUST_CHECK enum neb_status agent_policy_load(const char *home, struct agent_policy *out);
// The same of one file, which must be there: NEB_ERR_NOT_FOUND, not logged, else.
NEB_MUST_CHECK enum neb_status agent_policy_read(const char *path, struct agent_policy *out);
NEB_MUST_CHECK enum neb_status agent_policy_parse(const char *text, size_t len, const char *what,
                                                  struct agent_policy *out);
// Whether a job of member `from` may run here as cluster `self`, beside what runs. why: for both operators, one sentence.
NEB_MUST_CHECK bool agent_policy_admits(const struct agent_policy *p, const struct agent_job *job,
                                        int self, const char *from,
                                        const struct agent_policy_load *running, char *why,
                                        size_t cap);

// Of an admitted job.
void agent_policy_terms(const struct agent_policy *p, const struct agent_job *job, int self,
                        struct agent_terms *out);
// Whether a waiting training loop that has not named a job may be taken by one of this member's.
bool agent_policy_attaches(const struct agent_policy *p, const char *from);
// One line: what it admits.
void agent_policy_describe(const struct agent_policy *p, char *out, size_t cap);

#define AGENT_CONTEXT_JOB "nebula job specification v1"
// What is signed: federation, id, text. Replaces out.
NEB_MUST_CHECK enum neb_status
agent_job_signed_bytes(const uint8_t federation[SEC_FEDERATION_BYTES],
                       const uint8_t id[AGENT_JOB_ID_BYTES], const json_t *spec,
                       struct neb_buf *out);

#endif
