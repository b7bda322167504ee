// SPDX-License-Identifier: Apache-2.0
// libnebula: a training loop of any kind federates through the agent of its cluster.
//
//     your loop, on every rank    libnebula (in each process)          nebula agent
//       │ nebula_attach ────────► which job                 ◄─────────── a job with `launcher:
//       │ nebula_declare ───────► the tensors of the model               attach`
//       │ nebula_register ──────► the parts that this rank holds
//       │ nebula_begin ─────────► compares with the others; initial values into your tensors
//       │ ┌ one optimiser step
//       │ └ nebula_step ────────► due: read tensors, encode, submit ► to the other clusters
//       │       …                 committed: merge, write tensors ◄── from the other clusters
//       │ nebula_close ─────────► result ──────────────────────────► report of the job
//
// The library contains the built-in worker's code for outer optimiser, codec, error feedback,
// rebase and digests (agent/exchange/), so both end with the same bits. nebula_step submits, polls
// and merges by the schedule of the job. The loop waits for the WAN only where the job says so
// (sync.overlap).
//
// Ranks: every rank of the loop attaches, and makes the same calls in the same order. Only
// nebula_declare, nebula_register, nebula_tensor_at, nebula_count, nebula_step_count and
// nebula_state_get and _set are local. Rank 0 decides with the agent; the others serve it inside
// the same calls. Each rank has its own connection with the agent for the units that it owns: over
// the agent's socket, on another host over TCP (nebula agent --workers). Rank 0 runs on the agent's
// host. A failure on one rank is an error of the call on all ranks.
//
// Threads: one thread at a time may use a handle; hooks run on it. With tensors on a device the
// library has one thread of its own, which waits for the device. Processes: one handle per
// process; only the process that attached may use it (a fork may not).
//
// Memory: the elements that are exchanged are divided over the ranks, in units of at most 4 MiB. A
// rank takes 4 floats for each element of its share (θ, v, u, θ at the send), one more for each of
// its bfloat16 and float16 elements, some units of scratch (or a 64th of its share), and its parts
// of encoded updates: its own, and those of all clusters while it merges (nebula plan prints all of
// this). A rank that has only a part of a tensor never holds the whole tensor. Without a checkpoint
// hook a copy of a checkpoint doubles this, so that it is written while training continues
// (checkpoint.copy). With tensors on a device the four floats are in its memory, or with
// `outer_state: host` in pinned memory of the host. The device has two units of scratch (six if the
// state is pinned), units that are gathered (a 64th of the share) where the fp32 memory of the loop
// does not serve as it is, and the updates of a commit, unpacked. With the state in the device's
// memory the host has four floats too, but only while a checkpoint is written.
//
// Footguns, besides those that the calls describe:
//   start      nebula_begin replaces your parameters. A job with `model: attached` starts from
//              those of the cluster in `init: {from: CLUSTER}`, which are not sent to a loop that
//              has equal values; a job with a built-in model starts from its seed or from `model:
//              {init: CKPT}`.
//   model      Names, shapes and groups are compared between clusters; what your code computes with
//              them is not. Buffers count only if you declare them.
//   precision  float32 master weights are best. Behind bfloat16 and float16 tensors the exchange
//              keeps fp32 values, so that small changes of merges add up and are not lost.
//   optimiser  A merge does not change its state, and no checkpoint holds it: save it in the
//              checkpoint hook, and load it for the step that nebula_begin gives.
//   CUDA       Memory of any allocator works, on one device a rank; pinned host memory is
//              NEBULA_HOST. The exchange computes on the device if all tensors of all ranks are on
//              devices. Its state is there if it fits (the cluster's outer_state), else in pinned
//              memory of the host; the loop waits in neither case. If so much memory cannot be
//              pinned, processors compute, the log says so, and the loop waits for them. A stream
//              other than the default one is named by nebula_set_stream.
//   frozen     Frozen tensors (trained 0) are neither sent nor set, unless a group of the job names
//              them by a pattern other than "*". nebula_begin compares their values with those of
//              the other clusters that attach, as far as their parts are registered. They may
//              differ in a group with `exchange: never`.
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

#define NEBULA_API 2
#if defined __GNUC__
#define NEBULA_EXPORT __attribute__((visibility("default")))
#else
#define NEBULA_EXPORT
#endif

enum nebula_status { // every call returns one; nebula_last_error has the details
    NEBULA_OK = 0,
    // an argument: NULL, unknown name, wrong shape or dtype, a closed handle; tensors that differ
    // between ranks or clusters
    NEBULA_ERR_INVALID = 1,
    // a wrong order (register after begin, step before it), a second trainer, a forked process, a
    // handle on which an earlier call failed, or ranks that make different calls
    NEBULA_ERR_STATE = 2,
    NEBULA_ERR_VERSION = 3,   // header, library and agent are of different versions
    NEBULA_ERR_NOT_FOUND = 4, // no agent, or no such job within the timeout
    NEBULA_ERR_AGENT = 5,     // the agent refused, or sent a malformed message
    NEBULA_ERR_MEMORY = 6,
    NEBULA_ERR_IO = 7, // checkpoint folder, CUDA copy, a hook, another rank has ended
    // The agent has fetched another state for this cluster, because it was away for long or its
    // parameters diverged. Close and attach again (in this process or another), and continue from
    // the step and the parameters that nebula_begin gives.
    NEBULA_ERR_AGAIN = 8,
};

enum nebula_dtype { NEBULA_F32 = 0, NEBULA_BF16 = 1, NEBULA_F16 = 2 };
enum nebula_place { NEBULA_HOST = 0, NEBULA_CUDA = 1 };
enum nebula_state {
    NEBULA_TRAIN = 0, // make the next step
    NEBULA_DONE = 1,  // all steps are made, the last exchange is merged: evaluate, close
    // The job was stopped and saved: close. Attach again to continue after `nebula pretrain
    // --resume` or `nebula resume`.
    NEBULA_STOP = 2,
};
enum { NEBULA_DIMS_MAX = 8, NEBULA_NAME_MAX = 255, NEBULA_NOT_YET = -1 };

struct nebula; // a handle
struct nebula_step_stats;

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

// Called on the calling thread inside collective calls. NULL: not needed. A hook must not call the
// library. A result other than 0 ends the call on all ranks with NEBULA_ERR_IO.
struct nebula_hooks {
    void *user;
    // On every rank. A checkpoint of this step exists in `dir`: save optimiser and data position
    // next to it. With this hook the call waits for the disk. Without it checkpoints are copied and
    // written while training continues (checkpoint.copy). All ranks have this hook or none.
    int (*checkpoint)(void *user, const char *dir, int64_t step);
    // Called on every rank while the library waits for the agent or for other clusters, before each
    // piece of the wait (at most 10 s). A signal does not end the wait: a language that handles
    // signals between its own instructions (Python: Ctrl-C) can do so here.
    int (*wait)(void *user);
    // Called on rank 0 for each step that was reported with `later`, in the order of the steps:
    // sets the fields of *out that were late. wait: waits until they are known; otherwise it may
    // return NEBULA_NOT_YET, and is asked again in the next call. The library waits for tokens
    // before an update is sent, and for all figures before a checkpoint and at the end.
    int (*figures)(void *user, int wait, struct nebula_step_stats *out);
};

struct nebula_attach_options {
    size_t size;       // sizeof(struct nebula_attach_options)
    int api;           // NEBULA_API
    const char *agent; // agent.sock or its home; NULL: $NEBULA_AGENT, $NEBULA_HOME, ~/.nebula
    // Name or id; NULL: $NEBULA_JOB, else the only job that waits for a trainer. A job that another
    // member submitted is offered only if `job` holds at least 16 digits of its id, if
    // $NEBULA_JOB_FROM names the submitter, or if policy.json lists it. Rank 0's options count.
    const char *job;
    double timeout_s; // how long to wait for the agent and the job; 0: 60
    int threads;      // of each rank, for codec and merge; 0: as the job says, else all processors
    const struct nebula_ranks *ranks; // copied; NULL: one rank
    struct nebula_hooks hooks;
};

// Attaches to the agent of this cluster. The agent must have a job in which this cluster has
// `launcher: attach`. Collective.
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

struct nebula_tensor {
    size_t size;    // set it before the call
    char name[256]; // UTF-8
    // 0 dimensions: a scalar. With a built-in model, names and shapes are those of Hugging Face's
    // layouts of Llama and Qwen2.
    int32_t dims;
    int64_t shape[NEBULA_DIMS_MAX]; // of the whole tensor, whatever part of it a rank holds
    int dtype;                      // of all its pieces, on all ranks
    // buffer: not trained by gradients, but to be exchanged (running means). trained: an optimiser
    // changes it.
    int32_t buffer, trained;
    int32_t group, fragment; // set by nebula_tensor_at; -1: before nebula_begin
};
// Declares a whole tensor of the loop's model. Every rank declares all of them, once each (tied
// tensors are one), in any order.
// ERRORS  NEBULA_ERR_INVALID: a name that is empty, too long, not UTF-8 or declared before; a shape
//         or dtype that is not possible. NEBULA_ERR_STATE: after nebula_begin.
// EXAMPLE struct nebula_tensor t = {.size = sizeof t, .name = "wte.weight", .dims = 2,
//                                   .shape = {50257, 768}, .trained = 1};
//         nebula_declare(n, &t);
NEBULA_EXPORT int nebula_declare(struct nebula *n, const struct nebula_tensor *t);

// Describes tensor i of those that are exchanged, sorted by the bytes of their names. For a job
// with a built-in model it also answers before nebula_begin: then with the tensors of the job.
// RETURN  NEBULA_OK and *out.
// ERRORS  NEBULA_ERR_INVALID: there is no tensor i, or the size is not set.
// EXAMPLE struct nebula_tensor t = {.size = sizeof t};
//         for (int32_t i = 0; nebula_tensor_at(n, i, &t) == NEBULA_OK; i++)
//             puts(t.name);
NEBULA_EXPORT int nebula_tensor_at(struct nebula *n, int32_t i, struct nebula_tensor *out);

// A rectangle of a declared tensor in the memory of this rank: element (i, j, …) of the piece is
// element (offset[0] + i, offset[1] + j, …) of the tensor, at data + i·stride[0] + j·stride[1] + …
struct nebula_piece {
    size_t size; // sizeof(struct nebula_piece)
    const char *name;
    int64_t offset[NEBULA_DIMS_MAX], extent[NEBULA_DIMS_MAX];
    int64_t stride[NEBULA_DIMS_MAX]; // in elements, not negative; all 0: row-major without gaps
    int dtype, place;                // enum nebula_dtype, enum nebula_place
    void *data;                      // may be NULL if an extent is 0
};
// Registers a part of a tensor. A rank may register several parts of a tensor, and empty ones. The
// memory is borrowed until the handle is closed, and must not move. The same elements on several
// ranks are replicas: the loop keeps them equal. Parts of a tensor that is not exchanged need not
// be registered.
// ERRORS  NEBULA_ERR_INVALID: no such tensor; the piece lies outside of it, or overlaps another one
//         of this rank; data is NULL; another dtype than declared; unknown place; NEBULA_CUDA, but
//         data is not the memory of a device, or is on another device than this rank's other
//         tensors. NEBULA_ERR_STATE: after nebula_begin. NEBULA_ERR_IO: NEBULA_CUDA, but this build
//         has no kernels for CUDA, there is no driver, or the device cannot be opened.
//         NEBULA_ERR_MEMORY.
// EXAMPLE struct nebula_piece p = {.size = sizeof p, .name = "wte.weight", .extent = {50257, 768},
//                                  .data = weights};
//         nebula_register(n, &p);
NEBULA_EXPORT int nebula_register(struct nebula *n, const struct nebula_piece *p);

// The stream (cudaStream_t) on which this rank's loop changes and uses its CUDA tensors; NULL: the
// default stream, which is also what counts without this call. The library works on a stream of its
// own: it reads what the loop's stream has written before a call, and the loop's stream waits for
// what a call writes. The host waits for neither. Local; it holds until the next call.
// EXAMPLE nebula_set_stream(n, stream);
NEBULA_EXPORT int nebula_set_stream(struct nebula *n, void *stream);

// Compares the tensors of all ranks and of all clusters, and writes the initial parameters into the
// registered memory: those of the job at step 0, or those of the newest checkpoint. nebula_info has
// the step to continue from. Collective.
// ERRORS  NEBULA_ERR_INVALID: the ranks declare different tensors; an element is on no rank (the
//         text names tensor and index); a trained tensor is neither exchanged nor in a group with
//         `exchange: never`; the tensors differ from those of another cluster (the text has both).
//         NEBULA_ERR_STATE: called twice. NEBULA_ERR_IO: a checkpoint exists but cannot be used.
//         NEBULA_ERR_AGAIN.
NEBULA_EXPORT int nebula_begin(struct nebula *n);

// Counts the token ids of a batch: inputs, and targets (negative ones are skipped). The average
// of a row of embedding or output then weights each cluster by how often it saw the row. For jobs
// with a built-in model only. Each rank counts its own batch. Optional; without it all rows have
// the weight of all tokens.
// ERRORS  NEBULA_ERR_INVALID: an id is outside the vocabulary (nothing is counted then), or the
//         job has no vocabulary.
NEBULA_EXPORT int nebula_count(struct nebula *n, const int32_t *inputs, const int32_t *targets,
                               size_t count);

// Reports one optimiser step over `tokens` tokens, and does what is due: reads and submits, merges
// and writes. Tensors may have changed when it returns. After the last step it returns only when
// the last exchange is merged. tokens is the weight of this cluster: it may be at most
// data.step_tokens, or with a built-in model eight times the job's data.batch x accumulate x
// seq_len. With sync.tune: auto a slow cluster leaves out steps: then nebula_info.step rises by
// more than one. Collective; the values of rank 0 count, and *state is the same on all ranks.
// RETURN  NEBULA_OK and *state, an enum nebula_state.
// ERRORS  NEBULA_ERR_INVALID: too many tokens (nothing was done); a value that is not finite (the
//         text names tensor, index and rank). NEBULA_ERR_STATE: before nebula_begin, or after DONE
//         or STOP. NEBULA_ERR_AGAIN: close, and attach again. NEBULA_ERR_IO: a hook or a copy
//         failed, or a rank has ended; the handle can only be closed. An agent that is gone is no
//         error: training continues, and the library attaches again.
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
    // Figures that are not known yet, because a device computes them, come from the hook `figures`:
    // so the loop need not wait for its device.
    uint32_t later; // enum nebula_later
};
enum nebula_later { NEBULA_LATER = 1, NEBULA_LATER_TOKENS = 2 }; // the doubles; the tokens
#define NEBULA_STEP_STATS_INIT                                                                     \
    {                                                                                              \
        sizeof(struct nebula_step_stats), 0, NEBULA_UNKNOWN, NEBULA_UNKNOWN, NEBULA_UNKNOWN,       \
            NEBULA_UNKNOWN, 0                                                                      \
    }

// nebula_step with more figures of the step. Fields after the caller's size count as unknown.
// ERRORS  as nebula_step. NEBULA_ERR_INVALID: stats is NULL, or figures come later and there is no
//         hook for them. Tokens that come later and are too many are an error of a later call.
//         NEBULA_ERR_VERSION: this library does not know a struct of this size.
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
// disk. Collective.
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
// Writes the same figures to *out on all ranks. Collective.
// ERRORS  NEBULA_ERR_INVALID: out is NULL, or its size is not set. NEBULA_ERR_IO: the digest cannot
//         be computed.
NEBULA_EXPORT int nebula_info_get(struct nebula *n, struct nebula_info *out);

// The state of the exchange, for checkpoints that the loop writes itself: every element is on one
// rank, so that ranks save in parallel, and another number of ranks can load. Parts of arrays of
// float32 have one dimension; the part of type bytes is on rank 0, and its length may change. All
// parts are clear text, also where the agent seals its checkpoints: your code has to protect them.
//
//     save   nebula_state_count; nebula_state_at, nebula_state_get of each part
//     load   after nebula_register, before nebula_begin: nebula_state_count; nebula_state_at,
//            nebula_state_set of each part. nebula_begin then continues from it.
enum { NEBULA_STATE_F32 = 0, NEBULA_STATE_BYTES = 1 };
struct nebula_state_part {
    size_t size;    // set it before the call
    char name[320]; // of the array: "theta/NAME", "momentum/NAME", … of a tensor; or "exchange"
    int type;
    int64_t total, offset, count; // elements of the whole array; of this part: first, and number
};
// Number of parts that this rank holds now. Collective.
NEBULA_EXPORT int nebula_state_count(struct nebula *n, int32_t *out);
NEBULA_EXPORT int nebula_state_at(struct nebula *n, int32_t i, struct nebula_state_part *out);
// Copies part i to data, which has room for its count. Only until the next collective call.
NEBULA_EXPORT int nebula_state_get(struct nebula *n, int32_t i, void *data);
// Sets part i. count: that of the part; for bytes, the number of bytes in data.
// ERRORS  NEBULA_ERR_STATE: after nebula_begin.
NEBULA_EXPORT int nebula_state_set(struct nebula *n, int32_t i, const void *data, int64_t count);

// Closes the handle. After DONE or STOP it saves and reports to the agent (eval_loss: NaN if there
// is none); after DONE it also writes the final model. Before DONE or STOP it only detaches: the
// agent waits for the next trainer, which continues from the newest checkpoint. *n becomes NULL,
// and the handle is gone, also on failure. NULL-safe. Collective, but after a failure each rank may
// call it alone.
// ERRORS  NEBULA_ERR_STATE: called by a fork of the process that attached. NEBULA_ERR_IO: the
//         checkpoint or the final model was not written, or a hook failed. The submitter is told,
//         and the job waits for a loop that attaches again.
NEBULA_EXPORT int nebula_close(struct nebula **n, double eval_loss);

// ---- sides of mode distill ----------------------------------------------------------------------
//
// A program takes the place of a teacher or a student (`launcher: attach`, `push_text: true`). The
// student has the text, and asks for labels of each step; the teacher answers in the same order.
//
//     student                                        teacher
//       nebula_side_ask (text of step s) ── text ──►   nebula_side_next
//       nebula_side_next ◄────────────── labels ────   nebula_side_put
//       learns, then nebula_side_learned
//
// Either side may be the built-in one. What a teacher has put, and what a student has asked for, is
// on the disk of its agent when the call returns, so a program that is killed or whose agent
// restarts opens the side again and goes on: a teacher with the first batch without labels, a
// student with the step that it says. A call with bad values fails with NEBULA_ERR_INVALID, changes
// nothing and may be repeated. One thread at a time uses a side; only one rank opens it.
enum nebula_role { NEBULA_TEACHER = 1, NEBULA_STUDENT };
struct nebula_side;
struct nebula_side_options {
    size_t size;
    // SHA-256 of the vocabulary, as the other side computes it (Python: vocabulary_digest), in 64
    // digits. NULL: the job's tokenizer_sha256. The sides compare it.
    const char *vocabulary;
    int64_t step; // student: its next step; 0 without a checkpoint
};
struct nebula_side_info {
    size_t size; // set it before the call
    int role;    // enum nebula_role
    int32_t vocab, seq_len, accumulate;
    int32_t tokens;   // most of a micro-batch, padding to its longest sequence included
    int32_t k, k_max; // labels per position: the job's choice, the most
    int32_t ahead;    // steps that a student may ask ahead
    float lambda, temperature;
    int64_t step, steps; // student: its next step
};
// The text of one step, and for a student its labels. The arrays belong to the side, until its next
// call.
struct nebula_text {
    size_t size; // set it before the call
    int64_t step;
    int32_t student;         // cluster of the student
    int32_t sequences, rows; // sequences; tokens with a label
    // A sequence has length ids. The first `prefix` of them are given, the others are targets: each
    // has one row of labels, which the model predicts at the position before it.
    const int32_t *lengths, *prefixes; // (sequences)
    const int32_t *ids;                // the sequences, one after the other
    // Student: (rows, k), most likely first, and (rows) the probability of all other tokens. Of
    // several teachers: the mixture of theirs, by weight. k 0: the labels belong to samples of an
    // earlier process that differ from these; learn nothing from them.
    int32_t k;
    const int32_t *label_ids;
    const float *label_logprobs, *label_tails;
};
// Opens the side of the job that n is attached to. Takes n: *n becomes NULL, also on failure.
// ERRORS  NEBULA_ERR_STATE: the cluster is no teacher or student. NEBULA_ERR_INVALID: vocabulary.
NEBULA_EXPORT int nebula_side_open(struct nebula **n, const struct nebula_side_options *o,
                                   struct nebula_side **out);
NEBULA_EXPORT int nebula_side_info_get(const struct nebula_side *s, struct nebula_side_info *out);
// Waits for the next text (teacher) or the labels of the next step (student), at most timeout_s
// (0: for ever). The teacher gets the same text again until it has put its labels.
// RETURN  *state as from nebula_step; *out is set for NEBULA_TRAIN.
// ERRORS  NEBULA_ERR_NOT_FOUND: nothing has come for timeout_s. NEBULA_ERR_AGAIN: the agent was
//         restarted: close the side and open it again. NEBULA_ERR_STATE: a student that has not
//         asked. NEBULA_ERR_INVALID: the other side has another vocabulary; the text has both
//         digests, and the job ends with it.
NEBULA_EXPORT int nebula_side_next(struct nebula_side *s, double timeout_s, struct nebula_text *out,
                                   int *state);
// Teacher: the labels of the text of nebula_side_next, whose step and student it names. ids,
// logprobs: (rows, k), most likely first, natural logarithms at the job's temperature. The rest of
// each row's mass is that of all other tokens.
// ERRORS  NEBULA_ERR_INVALID: another step or student, other rows, k above k_max, an id that is
//         outside the vocabulary or twice in a row, a log-probability that is positive, NaN or
//         larger than the one before it, or a row whose probabilities sum to more than 1.
NEBULA_EXPORT int nebula_side_put(struct nebula_side *s, int64_t step, int32_t student,
                                  int64_t rows, int32_t k, const int32_t *ids,
                                  const float *logprobs);
// Teacher: names the model that makes the labels, such as its name and a digest (1 to 255 bytes of
// UTF-8). The first name of a job is kept with the job's files. A later one that differs, also of
// another process, ends the job with both names, because labels of two models must not mix.
// ERRORS  NEBULA_ERR_INVALID: the name differs (the side can only be closed), or is no such text.
NEBULA_EXPORT int nebula_side_model(struct nebula_side *s, const char *model);
// Teacher, with distill.align: text, after nebula_side_put: how many rows of this text could be
// mapped from the teacher's vocabulary to the student's. The job reports their share.
// ERRORS  NEBULA_ERR_STATE: the job does not say distill.align: text. NEBULA_ERR_INVALID: more rows
//         than were put.
NEBULA_EXPORT int nebula_side_mapped(struct nebula_side *s, int64_t rows);
// 1 if this side writes the targets of a step itself (distill.source): a teacher calls
// nebula_side_answer before nebula_side_put; a student asks for labels of its own samples, and
// after a restart of the same ones. Such samples are learned by KL alone. Else 0.
NEBULA_EXPORT int nebula_side_writes(const struct nebula_side *s, int64_t step);
// Teacher: replaces the targets of the text of nebula_side_next by its answers, one to each prompt
// (the first `prefix` ids of each sequence), with the id of the end if the answer has ended. ids:
// the answers, one after the other. An answer that is longer than its micro-batch has room for is
// cut. *out: the text that nebula_side_put labels.
// ERRORS  NEBULA_ERR_STATE: not a step to answer, or answered already. NEBULA_ERR_INVALID: not one
//         answer a prompt, an empty one, or an id outside the vocabulary.
NEBULA_EXPORT int nebula_side_answer(struct nebula_side *s, int64_t step, int32_t sequences,
                                     const int32_t *lengths, const int32_t *ids,
                                     struct nebula_text *out);
// Student: asks for the labels of the step after the last one that was asked for.
// ERRORS  NEBULA_ERR_STATE: more than `ahead` steps without labels; learn first. NEBULA_ERR_AGAIN:
//         the agent was restarted.
//         NEBULA_ERR_INVALID: fewer sequences than accumulate, a sequence longer than seq_len + 1,
//         without target or prefix, more tokens in a micro-batch than `tokens` (micro-batch a of n
//         takes the sequences from S a / n to S (a + 1) / n), or an id outside the vocabulary.
NEBULA_EXPORT int nebula_side_ask(struct nebula_side *s, int32_t sequences, const int32_t *lengths,
                                  const int32_t *prefixes, const int32_t *ids);
// Student: the step of the labels from nebula_side_next is over. *state as from nebula_step.
NEBULA_EXPORT int nebula_side_learned(struct nebula_side *s, double loss, uint64_t tokens,
                                      int *state);
// Student: its checkpoint after the last learned step is on disk, so no older labels are needed.
NEBULA_EXPORT int nebula_side_saved(struct nebula_side *s);
// As nebula_close: reports if the job is done or stopped, else detaches. A teacher that is done
// waits until the students have saved all labels.
NEBULA_EXPORT int nebula_side_close(struct nebula_side **s, double eval_loss);
// Closes the side and ends the job at all clusters, with `why` as its error: for what no other
// program would mend. `nebula resume` continues it.
NEBULA_EXPORT int nebula_side_fail(struct nebula_side **s, const char *why);

// Details of the last failed call of this thread: one line, never NULL.
NEBULA_EXPORT const char *nebula_last_error(void);
// Version of the library, such as "0.2.0". api (may be NULL) receives its NEBULA_API.
NEBULA_EXPORT const char *nebula_version(int *api);

#ifdef __cplusplus
}
#endif

#endif
