// SPDX-License-Identifier: Apache-2.0
// libnebula: a training loop of any kind federates through the agent of its cluster.
//
//     your loop                       libnebula (in your process)                 nebula agent
//       │ nebula_attach ───────────────► which job, which model ◄─────────────────── job offered with `launcher: attach`
//       │ nebula_register (tensors) ───► checked: name, shape, dtype
//       │ nebula_begin ────────────────► global parameters into your tensors
//       │ ┌ one optimiser step
//       │ └ nebula_step ───────────────► due? read tensors, encode, submit ────────► to the other clusters
//       │       …                        committed? merge, write tensors ◄────────── from the other clusters
//       │ nebula_close ────────────────► result, final parameters ─────────────────► report of the job
//
// The outer optimiser, codec, error feedback, rebase and digests run in the library: it is the code of the built-in worker
// (worker_link.c, worker_sync.c, worker_ckpt.c), so both end with the same bits. When to submit, poll and settle an update
// follows the job's schedule inside nebula_step; the loop never waits for the WAN but where the job says so (sync.overlap).
//
// Threads: one thread at a time per handle. Processes: one handle a process; only the process that attached may use it
// (a fork may not). With several ranks, rank 0 attaches and the hooks move shards to and from it.
// Memory: 5 floats per parameter on the host (θ, v, u, θ_m at the send, a copy of yours in fp32). Without a checkpoint hook 5 more, and
// the updates that travel, for the copy of a checkpoint that is written while training goes on (unless the job says checkpoint.copy:
// false or checkpoint.every_steps: 0; with too little memory training waits for the disk, which the log says).
//
// Footguns, beside what the calls say:
//   start      nebula_begin replaces your parameters by those of the job. To start from your own:
//              `nebula import DIR --out CKPT`, and in the job `model: {init: CKPT}`.
//   model      q, k and v are three tensors. Nothing checks that rope_theta, its scaling, norm_eps
//              and masks agree with those of the other clusters.
//   precision  Register fp32 master weights. In bfloat16 small changes of a merge are rounded away.
//   optimiser  A merge does not change its state, and no checkpoint holds it: save it in the
//              checkpoint hook, and load it for the step that nebula_begin gives.
//   CUDA       Memory of any allocator. Pinned host memory is NEBULA_HOST.
//   frozen     Frozen parameters are neither sent nor set.
//
// ABI: NEBULA_API counts incompatible changes and is the SONAME's number. Structs begin with their size. Fields can be added at the end
// of nebula_step_stats and nebula_attach_options (hooks), which may be as short as they once were; of all others the size must be exactly
// the library's.
// Names outside NEBULA_/nebula_ are not exported.
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

enum nebula_status { // every call returns one; what exactly is wrong: nebula_last_error
    NEBULA_OK = 0,
    // an argument: NULL, unknown name, wrong shape or dtype, a closed handle
    NEBULA_ERR_INVALID = 1,
    // not in this order: register after begin, step before it; a second trainer; a forked process; an earlier call failed for good
    NEBULA_ERR_STATE = 2,
    NEBULA_ERR_VERSION = 3,   // header, library and agent are of different versions
    NEBULA_ERR_NOT_FOUND = 4, // no agent, or no such job within the timeout
    NEBULA_ERR_AGENT = 5,     // the agent refused, or sent what cannot be understood
    NEBULA_ERR_MEMORY = 6,
    NEBULA_ERR_IO = 7, // checkpoint folder, CUDA copy
    // this cluster was away for so long, or its parameters differ so, that it goes on with a state that the agent has fetched: close, attach
    // again (in the same process or another), and go on from the step and with the parameters that nebula_begin gives
    NEBULA_ERR_AGAIN = 8,
};

enum nebula_dtype { NEBULA_F32 = 0, NEBULA_BF16 = 1 };
enum nebula_place { NEBULA_HOST = 0, NEBULA_CUDA = 1 };
enum nebula_state {
    NEBULA_TRAIN = 0, // make the next step
    NEBULA_DONE = 1,  // all steps are made, the last exchange is merged: evaluate, close
    // the job was stopped and saved: close; attach again to go on after `nebula pretrain --resume` or `nebula resume`
    NEBULA_STOP = 2,
};

struct nebula; // a handle

// Called inside nebula_attach (wait alone), nebula_begin, nebula_step, nebula_checkpoint and nebula_close on the calling thread; NULL where
// not needed. None may call the library. A result other than 0 ends the call with NEBULA_ERR_IO.
struct nebula_hooks {
    void *user;
    // The library is about to read (write == 0) or has written (write == 1) every registered range of tensors
    // [first, first + n) of the canonical order: gather shards to, or scatter them from, the registered memory.
    int (*move)(void *user, int write, int32_t first, int32_t n);
    // A checkpoint of this step exists in `dir`: a good moment to save optimiser and data position beside it. With this hook the
    // call waits for the disk; without it checkpoints are copied aside and written while training goes on (checkpoint.copy).
    int (*checkpoint)(void *user, const char *dir, int64_t step);
    // The library waits, for the agent or for other clusters: called before each piece of that, of at most 10 s. The waits go on after a
    // signal; a caller whose language handles signals between its own instructions (Python: Ctrl-C) does so here.
    int (*wait)(void *user);
};

struct nebula_attach_options {
    size_t size;       // sizeof(struct nebula_attach_options)
    int api;           // NEBULA_API
    const char *agent; // agent.sock or its home; NULL: $NEBULA_AGENT, $NEBULA_HOME, ~/.nebula
    // name or id; NULL: $NEBULA_JOB, else the only one that waits for a trainer. Of another
    // member's jobs it is given only those that it names by 16 digits of the id or more, or whose
    // submitter $NEBULA_JOB_FROM names, or policy.json lists
    const char *job;
    double timeout_s; // to wait for the agent and the job; 0: 60
    int threads;      // for codec and merge; 0: the job's, else all processors
    struct nebula_hooks hooks;
};

// Attaches to the agent of this cluster, which must have a job whose cluster has `launcher: attach`.
// RETURN  NEBULA_OK and *out, to be closed.
// ERRORS  NEBULA_ERR_VERSION: header or agent of another version. NEBULA_ERR_NOT_FOUND: no agent answers, or no such job,
//         for timeout_s. NEBULA_ERR_STATE: another trainer that still runs is attached (its pid is named).
// EXAMPLE struct nebula_attach_options o = {.size = sizeof o, .api = NEBULA_API};
//         struct nebula *n;
//         if (nebula_attach(&o, &n) != NEBULA_OK) { fputs(nebula_last_error(), stderr); return 1; }
NEBULA_EXPORT int nebula_attach(const struct nebula_attach_options *o, struct nebula **out);

struct nebula_tensor {  // what the job exchanges, in canonical order
    size_t size;        // set it before the call
    char name[96];      // as in Hugging Face's Llama and Qwen2 layouts
    int32_t rows, cols; // a vector has one row
    int32_t fragment;
};
// RETURN  NEBULA_OK and *out of tensor i.
// ERRORS  NEBULA_ERR_INVALID: i is not in [0, nebula_info.tensors), or the size is not set.
// EXAMPLE struct nebula_tensor t = {.size = sizeof t};
//         for (int32_t i = 0; nebula_tensor_at(n, i, &t) == NEBULA_OK; i++) puts(t.name);
NEBULA_EXPORT int nebula_tensor_at(struct nebula *n, int32_t i, struct nebula_tensor *out);

// Of NEBULA_BF16 the first one is warned of: an exchange's small changes are rounded away there.
// Registers memory for rows [row0, row0 + rows) of a tensor: contiguous, row-major, rows x cols elements. It is borrowed
// until the handle is closed, and must not move. Every row of every tensor must be registered exactly once before
// nebula_begin; one call a tensor where it is not sharded.
// ERRORS  NEBULA_ERR_INVALID: the job has no such tensor, cols differ, rows are outside it or registered already, data is
//         NULL, unknown dtype or place; NEBULA_CUDA, but data is not a device's memory. NEBULA_ERR_STATE: after nebula_begin.
//         NEBULA_ERR_IO: NEBULA_CUDA, but there is no CUDA driver, or it does not give the device. NEBULA_ERR_MEMORY.
// EXAMPLE nebula_register(n, "model.norm.weight", 0, 1, 64, NEBULA_F32, NEBULA_HOST, weights);
NEBULA_EXPORT int nebula_register(struct nebula *n, const char *name, int32_t row0, int32_t rows,
                                  int32_t cols, int dtype, int place, void *data);

// Writes the parameters to start from into the registered memory: the job's (seed or init_from) at step 0, or those of the
// newest checkpoint. nebula_info says from which step to go on.
// ERRORS  NEBULA_ERR_INVALID: rows that are not registered (the first is named). NEBULA_ERR_STATE: called twice.
//         NEBULA_ERR_IO: a checkpoint exists but cannot be used. NEBULA_ERR_AGAIN.
NEBULA_EXPORT int nebula_begin(struct nebula *n);

// Token ids of a batch (input, and what is predicted; negative targets are skipped): rows of embedding and output are
// averaged between clusters by how often each was seen. Optional; without it rows are averaged by all tokens.
// ERRORS  NEBULA_ERR_INVALID: an id outside the vocabulary (nothing is counted then).
NEBULA_EXPORT int nebula_count(struct nebula *n, const int32_t *inputs, const int32_t *targets,
                               size_t count);

// Says that one optimiser step over `tokens` tokens was made (at most eight times what the job's data.batch, accumulate and seq_len come to:
// tokens are this cluster's weight), and does what is due: reads and submits, merges and writes.
// After the last step it returns only when the last exchange is merged. Tensors may have changed after it. With sync.tune: auto a slow
// cluster leaves out steps: nebula_info.step then rises by more than one.
// RETURN  NEBULA_OK and *state, an enum nebula_state.
// ERRORS  NEBULA_ERR_INVALID: more tokens (nothing was done). NEBULA_ERR_STATE: before nebula_begin, or after DONE or STOP. NEBULA_ERR_AGAIN: close, and attach again. NEBULA_ERR_IO: a hook or a copy failed; the handle
//         can only be closed. An agent that is gone is no error: training goes on, and the library attaches again.
NEBULA_EXPORT int nebula_step(struct nebula *n, uint64_t tokens, double loss, int *state);

#define NEBULA_UNKNOWN ((double)NAN)

// of one optimiser step; NEBULA_UNKNOWN is null in metrics.jsonl and missing on the page
struct nebula_step_stats {
    size_t size;      // sizeof(struct nebula_step_stats)
    uint64_t tokens;  // of all ranks
    double loss;      // training loss, nats a token
    double lr;        // learning rate of the step
    double grad_norm; // before clipping
    double eval_loss; // on held-out text, where the caller has just measured it
};
#define NEBULA_STEP_STATS_INIT                                                                     \
    {                                                                                              \
        sizeof(struct nebula_step_stats), 0, NEBULA_UNKNOWN, NEBULA_UNKNOWN, NEBULA_UNKNOWN,       \
            NEBULA_UNKNOWN                                                                         \
    }

// nebula_step with all that is known of the step. Fields behind the caller's size are unknown.
// ERRORS  as nebula_step; NEBULA_ERR_INVALID: stats is NULL; NEBULA_ERR_VERSION: its size is none that this library knows.
// EXAMPLE struct nebula_step_stats s = NEBULA_STEP_STATS_INIT;
//         s.tokens = 4096, s.loss = loss, s.lr = lr;
//         if (nebula_step_with(n, &s, &state) != NEBULA_OK) { fputs(nebula_last_error(), stderr); return 1; }
NEBULA_EXPORT int nebula_step_with(struct nebula *n, const struct nebula_step_stats *stats,
                                   int *state);

// Steps made, with those left out: nebula_info.step, at no cost (that computes a digest of all parameters). 0 where n is NULL.
NEBULA_EXPORT int64_t nebula_step_count(const struct nebula *n);

// Writes a checkpoint, and returns when it is on disk (besides those of checkpoint.every_steps). ERRORS NEBULA_ERR_STATE, NEBULA_ERR_IO.
NEBULA_EXPORT int nebula_checkpoint(struct nebula *n);

struct nebula_info {
    size_t size; // set it before the call
    int32_t tensors, fragments, cluster, clusters, vocab, seq_len, batch, accumulate;
    int64_t step, steps;            // made, and to make
    uint64_t rounds, payload_bytes; // merged, and submitted
    double stall_s, sync_s;         // waited for commits, spent encoding and merging
    int others;                     // other clusters that can be heard now
    char dir[1024], corpus[1024];   // the job's folder; its corpus as this cluster has it
    // of the global parameters now (params_digest): equal on all clusters after the same round
    char digest[33];
};
// ERRORS  NEBULA_ERR_INVALID: out is NULL, or its size is not set. NEBULA_ERR_IO: the digest cannot be computed; nebula_last_error has no
//         text for this.
NEBULA_EXPORT int nebula_info_get(struct nebula *n, struct nebula_info *out);

// Ends. After DONE or STOP: saves, reports to the agent (eval_loss: NaN when there is none) and writes the final model.
// Before: detaches; the agent waits for the next trainer, which goes on from the newest checkpoint. *n becomes NULL; the
// handle is gone whatever is returned. NULL-safe.
// ERRORS  NEBULA_ERR_STATE: called by a fork of the process that attached. NEBULA_ERR_IO: checkpoint or final model was not written, or a
//         hook failed.
NEBULA_EXPORT int nebula_close(struct nebula **n, double eval_loss);

// What was wrong with the last call of this thread that failed: one line, never NULL.
NEBULA_EXPORT const char *nebula_last_error(void);
// Version of the library, such as "0.2.0", and its NEBULA_API.
NEBULA_EXPORT const char *nebula_version(int *api);

#ifdef __cplusplus
}
#endif

#endif
