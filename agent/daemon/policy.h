// SPDX-License-Identifier: Apache-2.0
// What this site's operator lets jobs of other members do here: HOME/policy.json. Without the file
// every job of a member on the list is admitted; with the file, only what it allows. Jobs submitted
// on this machine are always admitted.
//
//     {"format": 1,
//      "members": ["hub"],               who may submit; absent: every member
//      "data": ["/data/nebula"],         every path of the job must be below one of these folders:
//                                        corpora, initial models, teachers, folders of labels
//                                        (also those that do not exist yet)
//      "trainable": ["lora", "bitfit"],  full, lora, bitfit, last_layers; absent: any
//      "threads": 8, "ranks": 4,         maximum for this site's worker; threads: of all ranks
//      "steps": 100000,                  maximum of a job
//      "parameters": 1000000000,         maximum of the models that this site's worker holds;
//                                        embedding and output count if the job sets model.vocab,
//                                        or a teacher's checkpoint does
//      "tokens_per_step": 1048576,       maximum of this site's cluster in a step (batch x
//                                        accumulate x seq_len)
//      "memory": "64G",                  estimated maximum of this site's worker
//      "device_memory": "20G",           the same for each device
//      "disk": "200G",                   estimated maximum of what a job keeps here: checkpoints,
//                                        snapshots, models, labels (for updates: nebula agent
//                                        --blobs-max)
//      "devices": ["cpu", "cuda"],       where it may train; "device: auto" needs both
//      "launchers": ["local"],           local, mpirun, slurm, attach; absent: any
//      "hours_without_progress": 168,    a job whose worker here makes no step for so long is
//                                        stopped with its checkpoint, because it would hold
//                                        devices, memory and data. Absent: a week, which is longer
//                                        than an outage or a queue
//      "jobs": 4, "jobs_per_member": 1,  maximum at a time, of all other members and of each
//
// And limits on what leaves this site of its text. Here an absent key is not unlimited:
//
//      "gates": ["private"],             trusted, robust, private; absent: any. The first two show
//                                        every member's updates to all others
//      "tokens_per_update": 65536,       minimum of tokens behind an update (agent_job_discloses).
//                                        Absent: AGENT_UPDATE_TOKENS, and four times the widest
//                                        layer's input. From an update with fewer tokens the words
//                                        can be computed, and from some dozens also their order
//      "row_counts": "coarse",           how exactly the job may count this site's tokens
//                                        (sync.row_counts): exact, coarse, never. Absent: coarse,
//                                        because exact counts list the words of every update
//      "labels": true,                   a teacher's labels, or a generator's draws, for this
//                                        site's text may go to another site, which can read much
//                                        of the text from them. Absent: they may not
//      "push_text": true,                the text itself may (rtd.push_text, distill.push_text).
//                                        Absent: it may not
//      "losses": "rounded",              what the submitter gets: exact, rounded
//                                        (agent/daemon/disclose.h), never. Absent: rounded
//      "loss_every": 100,                rounded: steps behind one loss. Absent:
//                                        AGENT_DISCLOSED_STEPS, and as many as have
//                                        AGENT_DISCLOSED_TOKENS
//      "attach": ["hub"]}                whose jobs with `launcher: attach` may take a training
//                                        loop that waits here and has not named them
//                                        (agent/daemon/attach.h). Absent: nobody's
//
// So {"format": 1, "data": ["/data/nebula"]} protects the text as far as updates can
// (security/README.md). Without the file no job is refused, and losses are rounded.
//
// Sizes are numbers of bytes, or text as for --blobs-max. The needs of a job are estimated as in
// nebula plan (job_needs.h). Memory and devices of an attached trainer are not limited.
//
// Unknown keys are refused, and so is a file that others can read or write (0600, no link:
// sec_secret_read): a misread policy is worse than none. `nebula check --policy FILE` shows what a
// policy admits, and with a job whether it admits that job.
//
// A job specification is signed by the member that submits it, over federation, job id
// (agent/job/id.h) and canonical text. Other members may pass it on, but only its signer can start
// a job with it.
#ifndef AGENT_POLICY_H
#define AGENT_POLICY_H
#include "agent/daemon/disclose.h"
#include "agent/job/config.h"
#include "security/members.h"
#include "security/sign.h"

enum {
    AGENT_POLICY_LIST = 16,
    // Four pages of text. Attacks reconstruct sentences from the gradients of some hundred tokens,
    // or of fewer tokens than the model is wide.
    AGENT_UPDATE_TOKENS = 2048,
};

struct agent_policy {
    bool present;
    int n_members, n_data, n_attach; // -1: any; n_attach -1: none
    char members[AGENT_POLICY_LIST][SEC_NAME_MAX];
    char data[AGENT_POLICY_LIST][NEB_PATH_MAX];
    char attach[AGENT_POLICY_LIST][SEC_NAME_MAX];
    unsigned trainable;        // bit per enum intra_trainable_mode; 0: any
    unsigned devices;          // bit per enum agent_device (cpu, cuda); 0: any
    unsigned gates, launchers; // bit per enum agent_gate, agent_launcher; 0: any
    bool push_text, labels;
    enum agent_row_counts row_counts; // the most exact one allowed
    enum agent_losses losses;
    int64_t tokens_per_update, loss_every; // 0: as described above
    double hours_without_progress;
    int64_t threads, ranks, steps, parameters, jobs, jobs_per_member; // 0: any
    int64_t tokens_per_step, memory, device_memory, disk;             // 0: any
};

// Number of other members' jobs that run at this site.
struct agent_policy_load {
    int jobs, of_member; // of all members, and of the member that asks
};

// The terms of the policy that admitted a job, which hold while it runs.
struct agent_terms {
    double update_tokens; // minimum of an update that has any
    double idle_s;        // time without a step until the job is stopped; 0: no limit
    struct agent_disclosed_rules told;
};

// The policy of a site without a file.
struct agent_policy agent_policy_none(void);
// A missing file leaves out->present false. NEB_ERR_DENIED: others can access the file, another
// user owns it, or it is a link; NEB_ERR_FORMAT.
NEB_MUST_CHECK enum neb_status agent_policy_load(const char *home, struct agent_policy *out);
// The same for a file that must exist: NEB_ERR_NOT_FOUND (not logged).
NEB_MUST_CHECK enum neb_status agent_policy_read(const char *path, struct agent_policy *out);
NEB_MUST_CHECK enum neb_status agent_policy_parse(const char *text, size_t len, const char *what,
                                                  struct agent_policy *out);
// True if a job of member `from` may run here as cluster `self`, next to the running ones. False:
// *why, one sentence for both operators.
NEB_MUST_CHECK bool agent_policy_admits(const struct agent_policy *p, const struct agent_job *job,
                                        int self, const char *from,
                                        const struct agent_policy_load *running, char *why,
                                        size_t cap);

// The terms of an admitted job.
void agent_policy_terms(const struct agent_policy *p, const struct agent_job *job, int self,
                        struct agent_terms *out);
// True if a job of this member may take a waiting training loop that has not named a job.
bool agent_policy_attaches(const struct agent_policy *p, const char *from);
// Describes on one line what the policy admits.
void agent_policy_describe(const struct agent_policy *p, char *out, size_t cap);

#define AGENT_CONTEXT_JOB "nebula job specification v1"
// The bytes to sign: federation, id, text. Replaces the contents of out.
NEB_MUST_CHECK enum neb_status
agent_job_signed_bytes(const uint8_t federation[SEC_FEDERATION_BYTES],
                       const uint8_t id[AGENT_JOB_ID_BYTES], const json_t *spec,
                       struct neb_buf *out);

#endif
