// SPDX-License-Identifier: Apache-2.0
// libnebula: a training loop of any kind federates through the agent of its cluster.
//
//     your loop                 libnebula (in your process)           nebula agent
//       │ nebula_attach ────────► which job, which model ◄─────────── a job with `launcher: attach`
//       │ nebula_register ──────► checks name, shape, dtype
//       │ nebula_begin ─────────► global parameters into your tensors
//       │ ┌ one optimiser step
//       │ └ nebula_step ────────► due: read tensors, encode, submit ► to the other clusters
//       │       …                 committed: merge, write tensors ◄── from the other clusters
//       │ nebula_close ─────────► result, final parameters ─────────► report of the job
//
// The library contains the built-in worker's code for outer optimiser, codec, error feedback,
// rebase and digests (agent/exchange/), so both end with the same bits. nebula_step submits, polls
// and merges by the schedule of the job. The loop waits for the WAN only where the job says so
// (sync.overlap).
//
// Threads: one thread at a time may use a handle. Processes: one handle per process; only the
// process that attached may use it (a fork may not). With several ranks, rank 0 attaches, and the
// hooks move shards to and from it.
//
// Memory: 5 floats per parameter on the host (θ, v, u, θ_m at the send, an fp32 copy of yours).
// Without a checkpoint hook, 5 more floats and the updates in flight, for the copy of a checkpoint
// that is written while training continues. There is no copy with checkpoint.copy: false or
// checkpoint.every_steps: 0. With too little memory training waits for the disk, and the log says
// so.
//
// Footguns, besides those that the calls describe:
//   start      nebula_begin replaces your parameters by those of the job. To start from your own:
//              `nebula import DIR --out CKPT`, and in the job `model: {init: CKPT}`.
//   model      q, k and v are three tensors. Nothing checks that rope_theta, its scaling, norm_eps
//              and masks agree with those of the other clusters.
//   precision  Register fp32 master weights. In bfloat16 small changes of a merge are rounded away.
//   optimiser  A merge does not change its state, and no checkpoint holds it: save it in the
//              checkpoint hook, and load it for the step that nebula_begin gives.
//   CUDA       Memory of any allocator works. Pinned host memory is NEBULA_HOST.
//   frozen     Frozen parameters are neither sent nor set.
//
// ABI: NEBULA_API counts incompatible changes and is the number of the SONAME. Structs begin with
// their size. nebula_step_stats and nebula_attach_options (its hooks) may grow at the end, and
// shorter, older ones stay valid. All other structs must have exactly the library's size. Names
// outside NEBULA_/nebula_ are not exported.
#ifndef NEBULA_LIBNEBULA_H
#define NEBULA_LIBNEBULA_H
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NEBULA_API 1
#if defined __GNUC__
#define NEBULA_EXPORT __attribute__((visibility("default")))
#else
#define NEBULA_EXPORT
#endif

enum nebula_status { // every call returns one; nebula_last_error has the details
    NEBULA_OK = 0,
    // an argument: NULL, unknown name, wrong shape or dtype, a closed handle
    NEBULA_ERR_INVALID = 1,
    // a wrong order (register after begin, step before it), a second trainer, a forked process, or
    // a handle on which an earlier call failed
    NEBULA_ERR_STATE = 2,
    NEBULA_ERR_VERSION = 3,   // header, library and agent are of different versions
    NEBULA_ERR_NOT_FOUND = 4, // no agent, or no such job within the timeout
    NEBULA_ERR_AGENT = 5,     // the agent refused, or sent a malformed message
    NEBULA_ERR_MEMORY = 6,
    NEBULA_ERR_IO = 7, // checkpoint folder, CUDA copy, a hook
    // The agent has fetched another state for this cluster, because it was away for long or its
    // parameters diverged. Close and attach again (in this process or another), and continue from
    // the step and the parameters that nebula_begin gives.
    NEBULA_ERR_AGAIN = 8,
};

enum nebula_dtype { NEBULA_F32 = 0, NEBULA_BF16 = 1 };
enum nebula_place { NEBULA_HOST = 0, NEBULA_CUDA = 1 };
enum nebula_state {
    NEBULA_TRAIN = 0, // make the next step
    NEBULA_DONE = 1,  // all steps are made, the last exchange is merged: evaluate, close
    // The job was stopped and saved: close. Attach again to continue after `nebula pretrain
    // --resume` or `nebula resume`.
    NEBULA_STOP = 2,
};

struct nebula; // a handle

// The ranks of the loop, over a process group of its own. The hooks are called inside collective
// calls of the library, on the calling thread, with host memory. Messages between two ranks keep
// their order. send may wait until the receiver calls recv. 0: done; other values end the call on
// this rank with NEBULA_ERR_IO, and the handle can only be closed. A hook must fail within seconds
// when the other rank has ended, and must not fail because that rank is busy for minutes.
struct nebula_ranks {
    size_t size; // sizeof(struct nebula_ranks)
    int rank, ranks;
    void *user;
    int (*send)(void *user, const void *data, uint64_t bytes, int to);
    int (*recv)(void *user, void *data, uint64_t bytes, int from);
};

// Called on the calling thread inside nebula_attach (wait only), nebula_begin, nebula_step,
// nebula_checkpoint and nebula_close. NULL: not needed. A hook must not call the library. A result
// other than 0 ends the call with NEBULA_ERR_IO.
struct nebula_hooks {
    void *user;
    // The library is about to read (write == 0) or has written (write == 1) every registered range
    // of tensors [first, first + n) in canonical order: gather shards into the registered memory,
    // or scatter them from it.
    int (*move)(void *user, int write, int32_t first, int32_t n);
    // A checkpoint of this step exists in `dir`: save optimiser and data position next to it. With
    // this hook the call waits for the disk. Without it checkpoints are copied and written while
    // training continues (checkpoint.copy).
    int (*checkpoint)(void *user, const char *dir, int64_t step);
    // The library waits for the agent or for other clusters. It calls this before each piece of a
    // wait, of at most 10 s. A signal does not end the wait: a language that handles signals
    // between its own instructions (Python: Ctrl-C) can do so here.
    int (*wait)(void *user);
};

struct nebula_attach_options {
    size_t size;       // sizeof(struct nebula_attach_options)
    int api;           // NEBULA_API
    const char *agent; // agent.sock or its home; NULL: $NEBULA_AGENT, $NEBULA_HOME, ~/.nebula
    // Name or id; NULL: $NEBULA_JOB, else the only job that waits for a trainer. A job that another
    // member submitted is offered only if `job` holds at least 16 digits of its id, if
    // $NEBULA_JOB_FROM names the submitter, or if policy.json lists it.
    const char *job;
    double timeout_s; // how long to wait for the agent and the job; 0: 60
    int threads;      // for codec and merge; 0: as the job says, else all processors
    struct nebula_hooks hooks;
};

// Attaches to the agent of this cluster. It must have a job in which this cluster has `launcher:
// attach`.
// RETURN  NEBULA_OK and *out, which the caller closes.
// ERRORS  NEBULA_ERR_VERSION: the header or the agent is of another version. NEBULA_ERR_NOT_FOUND:
//         no agent answers, or there is no such job, for timeout_s. NEBULA_ERR_STATE: another
//         running trainer is attached (the text has its pid).
// EXAMPLE struct nebula_attach_options o = {.size = sizeof o, .api = NEBULA_API};
//         struct nebula *n;
//         if (nebula_attach(&o, &n) != NEBULA_OK) {
//             fputs(nebula_last_error(), stderr);
//             return 1;
//         }
NEBULA_EXPORT int nebula_attach(const struct nebula_attach_options *o, struct nebula **out);

struct nebula_tensor {  // a tensor that the job exchanges
    size_t size;        // set it before the call
    char name[96];      // as in the Llama and Qwen2 layouts of Hugging Face
    int32_t rows, cols; // a vector has one row
    int32_t fragment;
};
// Describes tensor i in canonical order.
// RETURN  NEBULA_OK and *out.
// ERRORS  NEBULA_ERR_INVALID: i is not in [0, nebula_info.tensors), or the size is not set.
// EXAMPLE struct nebula_tensor t = {.size = sizeof t};
//         for (int32_t i = 0; nebula_tensor_at(n, i, &t) == NEBULA_OK; i++)
//             puts(t.name);
NEBULA_EXPORT int nebula_tensor_at(struct nebula *n, int32_t i, struct nebula_tensor *out);

// Registers memory for rows [row0, row0 + rows) of a tensor: contiguous, row-major, rows x cols
// elements. It is borrowed until the handle is closed, and must not move. Before nebula_begin every
// row of every tensor must be registered exactly once: with one call per tensor if it is not
// sharded. The first NEBULA_BF16 range logs a warning: bfloat16 rounds small changes away.
// ERRORS  NEBULA_ERR_INVALID: the job has no such tensor; cols differ; rows are outside it or
//         already registered; data is NULL; unknown dtype or place; NEBULA_CUDA, but data is not
//         the memory of a device. NEBULA_ERR_STATE: after nebula_begin. NEBULA_ERR_IO: NEBULA_CUDA,
//         but there is no CUDA driver, or it does not open the device. NEBULA_ERR_MEMORY.
// EXAMPLE nebula_register(n, "model.norm.weight", 0, 1, 64, NEBULA_F32, NEBULA_HOST, weights);
NEBULA_EXPORT int nebula_register(struct nebula *n, const char *name, int32_t row0, int32_t rows,
                                  int32_t cols, int dtype, int place, void *data);

// Writes the initial parameters into the registered memory: those of the job (seed or init_from) at
// step 0, or those of the newest checkpoint. nebula_info has the step to continue from.
// ERRORS  NEBULA_ERR_INVALID: some rows are not registered (the text names the first tensor).
//         NEBULA_ERR_STATE: called twice. NEBULA_ERR_IO: a checkpoint exists but cannot be used.
//         NEBULA_ERR_AGAIN.
NEBULA_EXPORT int nebula_begin(struct nebula *n);

// Counts the token ids of a batch: inputs, and targets (negative ones are skipped). Clusters then
// average the rows of embedding and output by how often each of them saw a row. Optional; without
// it rows are averaged by all tokens.
// ERRORS  NEBULA_ERR_INVALID: an id is outside the vocabulary (nothing is counted then).
NEBULA_EXPORT int nebula_count(struct nebula *n, const int32_t *inputs, const int32_t *targets,
                               size_t count);

// Reports one optimiser step over `tokens` tokens, and does what is due: reads and submits, merges
// and writes. Tensors may have changed when it returns. After the last step it returns only when
// the last exchange is merged. tokens is the weight of this cluster: it may be at most eight times
// the job's data.batch x accumulate x seq_len. With sync.tune: auto a slow cluster leaves out
// steps: then nebula_info.step rises by more than one.
// RETURN  NEBULA_OK and *state, an enum nebula_state.
// ERRORS  NEBULA_ERR_INVALID: too many tokens (nothing was done). NEBULA_ERR_STATE: before
//         nebula_begin, or after DONE or STOP. NEBULA_ERR_AGAIN: close, and attach again.
//         NEBULA_ERR_IO: a hook or a copy failed; the handle can only be closed. An agent that is
//         gone is no error: training continues, and the library attaches again.
NEBULA_EXPORT int nebula_step(struct nebula *n, uint64_t tokens, double loss, int *state);

#define NEBULA_UNKNOWN ((double)NAN)

// One optimiser step. NEBULA_UNKNOWN becomes null in metrics.jsonl and is missing on the page.
struct nebula_step_stats {
    size_t size;      // sizeof(struct nebula_step_stats)
    uint64_t tokens;  // of all ranks
    double loss;      // training loss, nats per token
    double lr;        // learning rate of the step
    double grad_norm; // before clipping
    double eval_loss; // on held-out text, if the caller has just measured it
};
#define NEBULA_STEP_STATS_INIT                                                                     \
    {                                                                                              \
        sizeof(struct nebula_step_stats), 0, NEBULA_UNKNOWN, NEBULA_UNKNOWN, NEBULA_UNKNOWN,       \
            NEBULA_UNKNOWN                                                                         \
    }

// nebula_step with more figures of the step. Fields after the caller's size count as unknown.
// ERRORS  as nebula_step. NEBULA_ERR_INVALID: stats is NULL. NEBULA_ERR_VERSION: this library does
//         not know a struct of this size.
// EXAMPLE struct nebula_step_stats s = NEBULA_STEP_STATS_INIT;
//         s.tokens = 4096, s.loss = loss, s.lr = lr;
//         if (nebula_step_with(n, &s, &state) != NEBULA_OK) {
//             fputs(nebula_last_error(), stderr);
//             return 1;
//         }
NEBULA_EXPORT int nebula_step_with(struct nebula *n, const struct nebula_step_stats *stats,
                                   int *state);

// Number of steps made, including those left out. Same as nebula_info.step, but without the digest
// that nebula_info computes. 0 if n is NULL.
NEBULA_EXPORT int64_t nebula_step_count(const struct nebula *n);

// Writes a checkpoint in addition to those of checkpoint.every_steps, and returns when it is on
// disk.
// ERRORS  NEBULA_ERR_STATE, NEBULA_ERR_IO.
NEBULA_EXPORT int nebula_checkpoint(struct nebula *n);

struct nebula_info {
    size_t size; // set it before the call
    int32_t tensors, fragments, cluster, clusters, vocab, seq_len, batch, accumulate;
    int64_t step, steps;            // made, and in total
    uint64_t rounds, payload_bytes; // merged, and submitted
    double stall_s, sync_s;         // time waiting for commits; time encoding and merging
    int others;                     // other clusters that are reachable now
    char dir[1024], corpus[1024];   // the job's folder; the path of the corpus on this cluster
    // Of the global parameters now (params_digest): equal on all clusters after the same round.
    char digest[33];
};
// ERRORS  NEBULA_ERR_INVALID: out is NULL, or its size is not set. NEBULA_ERR_IO: the digest cannot
//         be computed; nebula_last_error has no text for this.
NEBULA_EXPORT int nebula_info_get(struct nebula *n, struct nebula_info *out);

// Closes the handle. After DONE or STOP it saves and reports to the agent (eval_loss: NaN if there
// is none); after DONE it also writes the final model. Before that it detaches: the agent waits for
// the next trainer, which continues from the newest checkpoint. *n becomes NULL, and the handle is
// gone, also on failure. NULL-safe.
// ERRORS  NEBULA_ERR_STATE: called by a fork of the process that attached. NEBULA_ERR_IO: the
//         checkpoint or the final model was not written, or a hook failed.
NEBULA_EXPORT int nebula_close(struct nebula **n, double eval_loss);

// Details of the last failed call of this thread: one line, never NULL.
NEBULA_EXPORT const char *nebula_last_error(void);
// Version of the library, such as "0.2.0". api (may be NULL) receives its NEBULA_API.
NEBULA_EXPORT const char *nebula_version(int *api);

#ifdef __cplusplus
}
#endif

#endif
