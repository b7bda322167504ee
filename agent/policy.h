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
//      "push_text": true,                 text of this site may go to another one (rtd.push_text, distill.push_text); absent: it may not
//      "jobs": 4, "jobs_per_member": 1}   at most at a time, of all other members and of each
//
// Sizes are numbers of bytes, or as --blobs-max takes them. What a job needs is reckoned as nebula plan does (job_needs.h); memory and
// devices of a trainer that attaches are the site's own affair.
//
// Unknown keys are refused, as is a file that is not this user's alone (0600, no link: sec_secret_read): a policy that is misread is worse
// than none.
//
// Job specifications are signed by the member that submits them, over federation, job id (job_id.h) and canonical text; they may be
// passed on by other members, but only their signer can begin a job with them.
#ifndef AGENT_POLICY_H
#define AGENT_POLICY_H
#include "agent/config.h"
#include "security/federation.h"
#include "security/sign.h"

enum { AGENT_POLICY_LIST = 16 };

struct agent_policy {
    bool present;
    int n_members, n_data; // -1: any
    char members[AGENT_POLICY_LIST][SEC_NAME_MAX];
    char data[AGENT_POLICY_LIST][NEB_PATH_MAX];
    unsigned trainable; // bit per enum intra_trainable_mode; 0: any
    unsigned devices;   // bit per enum agent_device, of cpu and cuda; 0: any
    bool push_text;
    int64_t threads, ranks, steps, parameters, jobs, jobs_per_member; // 0: any
    int64_t tokens_per_step, memory, device_memory, disk;             // 0: any
};

// Jobs of other members that run at this site.
struct agent_policy_load {
    int jobs, of_member; // in all, and of the member that asks
};

// A missing file leaves out->present false. NEB_ERR_DENIED: open to others, of another user, or a link; NEB_ERR_FORMAT.
NEB_MUST_CHECK enum neb_status agent_policy_load(const char *home, struct agent_policy *out);
NEB_MUST_CHECK enum neb_status agent_policy_parse(const char *text, size_t len, const char *what,
                                                  struct agent_policy *out);
// Whether a job of member `from` may run here as cluster `self`, beside what runs. why: for both operators, one sentence.
NEB_MUST_CHECK bool agent_policy_admits(const struct agent_policy *p, const struct agent_job *job,
                                        int self, const char *from,
                                        const struct agent_policy_load *running, char *why,
                                        size_t cap);

#define AGENT_CONTEXT_JOB "nebula job specification v1"
// What is signed: federation, id, text. Replaces out.
NEB_MUST_CHECK enum neb_status
agent_job_signed_bytes(const uint8_t federation[SEC_FEDERATION_BYTES],
                       const uint8_t id[AGENT_JOB_ID_BYTES], const json_t *spec,
                       struct neb_buf *out);

#endif
