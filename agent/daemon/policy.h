// SPDX-License-Identifier: Apache-2.0
// What this site's operator lets jobs of other members do here: HOME/policy.json. Without the file
// every job of a member on the list is admitted, and losses are rounded; with the file, only what
// it allows. Jobs submitted on this machine are always admitted. security/README.md lists the keys;
// each is a field of struct agent_policy.
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
    int n_members, n_data, n_attach;               // -1: any; n_attach -1: none
    char members[AGENT_POLICY_LIST][SEC_NAME_MAX]; // who may submit
    // Every path of the job must be below one of these folders: corpora, initial models, teachers,
    // folders of labels (also those that do not exist yet).
    char data[AGENT_POLICY_LIST][NEB_PATH_MAX];
    // Whose jobs with `launcher: attach` may take a loop that waits here and has not named them.
    char attach[AGENT_POLICY_LIST][SEC_NAME_MAX];
    unsigned trainable; // bit per enum intra_trainable_mode; 0: any
    unsigned devices;   // bit per enum agent_device (cpu, cuda; "device: auto" needs both); 0: any
    unsigned gates, launchers; // bit per enum agent_gate, agent_launcher; 0: any
    // A teacher's labels or a generator's draws for this site's text, from which much of it can be
    // read, or the text itself, may go to another site.
    bool labels, push_text;
    // The most exact counts of this site's tokens that are allowed: exact ones list the words of
    // every update.
    enum agent_row_counts row_counts;
    enum agent_losses losses; // what the submitter gets (disclose.h)
    // Minimum of tokens behind an update; from fewer the words can be computed, and from some
    // dozens also their order. 0: AGENT_UPDATE_TOKENS, and four times the widest layer's input.
    int64_t tokens_per_update;
    int64_t loss_every; // steps behind one rounded loss; 0: as disclose.h says
    // A job without a step for so long is stopped with its checkpoint, because it would hold
    // devices, memory and data. A week is longer than an outage or a queue.
    double hours_without_progress;
    int64_t threads, ranks, steps, jobs, jobs_per_member; // maxima; threads: of all ranks; 0: any
    // Of all models that the worker holds; embedding and output count if the vocabulary is known.
    int64_t parameters;      // 0: any
    int64_t tokens_per_step; // of this cluster; 0: any
    // Estimates in bytes (job_needs.h), not for an attached trainer; disk: without updates
    // (--blobs-max); 0: any.
    int64_t memory, device_memory, disk;
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
