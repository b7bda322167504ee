// SPDX-License-Identifier: Apache-2.0
// `nebula bench`: one measurement per line, beside a ceiling measured in the same call, so that a
// figure from a busy or slow machine can still be judged. As JSON or as a table row:
//
//     {"bench": "codec", "case": "int4 encode t1", "value": 1.9, "unit": "GB/s", "limit": 11.2,
//      "limit_is": "memcpy", "ratio": 0.17}
#ifndef AGENT_BENCH_H
#define AGENT_BENCH_H
#include "agent/base/fs.h"
#include "kernels/exact.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// limit_is: what the ceiling is ("memcpy", "sgemm"). limit 0: no ceiling is known, and limit,
// limit_is and ratio are left out.
void bench_line(bool json, const char *bench, const char *case_, double value, const char *unit,
                double limit, const char *limit_is);

struct bench_field { // a further number in a line
    const char *name;
    double value;
};
// Processor time of all threads of this process: it leaves out what other programs use.
double bench_cpu_seconds(void);
double bench_thread_seconds(void);        // the same of the calling thread
void bench_sort(double *v, size_t n);     // ascending, in place
double bench_median(double *v, size_t n); // sorts v; n is at least 1
// Makes a new folder for files: in dir, which is made if needed, or (dir NULL) in $TMPDIR or /tmp.
// On failure out is "".
NEB_MUST_CHECK enum neb_status bench_folder(const char *dir, char out[NEB_PATH_MAX]);
void bench_folder_remove(const char *path); // "": does nothing; a failure is a warning

void bench_line_with(bool json, const char *bench, const char *case_, double value,
                     const char *unit, double limit, const char *limit_is,
                     const struct bench_field *more, size_t n_more);

// ---- codec --------------------------------------------------------------------------------------

// `nebula bench codec`: speed, size and error of each codec on synthetic pseudo-gradients.

enum { BENCH_CODEC_PARAMS = 50 << 20 };

// Measures `params` elements (0: BENCH_CODEC_PARAMS) in units, with one thread and with all
// (threads 0: as many as this process may use). Values are heavy-tailed: 1e-3·z·|z|, z normal,
// seeded. Needs 12 bytes per element. Lines of a codec; each takes turns with its limit in slices
// of one unit per thread:
//
//     feedback + quantise   θ, θ_m and e read; e and codes written, not packed
//     feedback + encode     the same with the entropy stage
//     decode + outer step   a frame read; θ and v read and written
//     read + outer step     the same without the entropy stage
//         (these four: GB/s of all these bytes, beside memcpy counted both ways; not fp32, bf16)
//     encode, decode        a frame of an array, and back
//         (GB/s of fp32, beside memcpy; decode of top-k: beside zeroing the array)
//
// Times are processor time of the threads; limit is the speed of the task over the median of the
// ratios. All lines have bits_per_param and rel_error = ‖x − D(C(x))‖ / ‖x‖. Lines of top-k have
// socket_bits_per_param: the same bytes on an encrypted link over loopback (bench_socket_bytes;
// absent if there is no link).
//
// input: the file of an update, whose elements are used (a ledger's .blob; from a run with `codec:
// fp32` it holds the true pseudo-gradients); NULL: synthetic. codec: only this one; NULL: a list of
// usual ones.
NEB_MUST_CHECK enum neb_status bench_codec(bool json, size_t params, int threads, const char *input,
                                           const char *codec);

// ---- round --------------------------------------------------------------------------------------

// `nebula bench round`: a full exchange of two members in one process, and where its time goes.

enum { BENCH_ROUND_PARAMS = 16 << 20 };

// Takes seeded synthetic parameters (params; 0: BENCH_ROUND_PARAMS; 20 bytes each) through one
// member's part of a round: encode the progress with error feedback; check the other's update as
// the gate does; unpack and check both; then, strip by strip, weighted sum, outer step, residual,
// rebase and digest.
//
// A line per stage, and one for the whole: GB/s of all bytes that the stage must read and write
// (fp32 arrays and frames, each once), beside memcpy counted alike in the same call; its
// milliseconds (processor time over threads) and its share of the round.
//
// Then the protection (agent/bench/security.h), at 1 Gbit/s in chunks for a round trip of 20 ms: a
// line per stage with its processor time and the part that the round waits for; one for all
// together ("added", beside "target"); and two by the clock: one way, each member on its own
// processors, and both ways, two members sharing these. Here a round is compute, store and
// transfer. A round of a job also has round trips and inner steps, so "added" is smaller there.
//
// *digest: of the new parameters; depends only on params and codec, never on threads.
NEB_MUST_CHECK enum neb_status bench_round(bool json, size_t params, int threads, const char *codec,
                                           struct kern_digest *digest);

// ---- checkpoint ---------------------------------------------------------------------------------

// `nebula bench checkpoint`: how long training stands still for one checkpoint.

enum { BENCH_CHECKPOINT_PARAMS = 8 << 20 };

// Writes the state of `params` parameters (0: BENCH_CHECKPOINT_PARAMS), 28 bytes each as a worker
// has, to a new folder in dir (NULL: $TMPDIR), which is removed at the end. Twice: while training
// waits, and copied aside and then written by a thread (intra/ckpt/checkpoint_async.h), in turn.
//
// Lines have the median of several runs: both stalls in ms (that of the copy beside a memcpy of the
// same bytes by one thread), and the time until the copied state is on disk.
NEB_MUST_CHECK enum neb_status bench_checkpoint(bool json, size_t params, int threads,
                                                const char *dir);

// ---- data ---------------------------------------------------------------------------------------

// `nebula bench data`: the cost of drawing windows of a corpus from memory and from the disk, and
// of skipping draws.

// Uses a corpus of 64 Mi tokens in 256 shards, in a new folder in dir (NULL: $TMPDIR), which is
// removed at the end. Lines: windows of 1024 in memory (GB/s of what is filled, beside a memcpy by
// one thread); requesting one ahead; windows on disk, drawn at once and drawn 50 ms after a
// request; skipped draws of a mixture.
NEB_MUST_CHECK enum neb_status bench_data(bool json, const char *dir);

// ---- seal ---------------------------------------------------------------------------------------

// `nebula bench seal`: the cost of sealing files, beside the same work in clear in the same call.

enum { BENCH_SEAL_PARAMS = 32 << 20 };

// First the sealed stream alone, in memory, beside memcpy. Then a checkpoint of `params` fp32
// values (0: BENCH_SEAL_PARAMS) in $TMPDIR (or /tmp), written with fsync and read back, in clear
// and sealed. All in GB/s.
NEB_MUST_CHECK enum neb_status bench_seal(bool json, size_t params);

// ---- kernels ------------------------------------------------------------------------------------

// `nebula bench kernels`: each op of the CPU backend at a model's shapes (width 256, sequence 256,
// 2,048 tokens). Products stand beside the machine's sgemm peak, memory-bound ops beside memcpy,
// both measured in the same call with the same threads.

// n_threads as in kern_pool_create. Takes a few seconds and about 250 MB.
NEB_MUST_CHECK enum neb_status bench_kernels(int n_threads, bool json);

// ---- link ---------------------------------------------------------------------------------------

// `nebula bench link`: goodput of encrypted bulk data over an emulated WAN, beside the rate of that
// WAN.
//
//     parent ── wanlink run --wan … ──┬── site 0: nebula bench link --end 0
//                                     │           receives chunks, acknowledges each
//                                     └── site 1: nebula bench link --end 1
//                                                 sends as much as the window allows
//
// Link, window and estimate are those of an agent, without a disk. Only the last two thirds of the
// time count, so the search for the number of stripes is left out.

struct bench_link_options {
    const char *wan;        // RATE:DELAY[:LOSS]; NULL: loopback
    const char *congestion; // NULL: the agent's choice
    unsigned stripes;       // bulk connections; 0: self-tuning
    double seconds;         // of sending; 0: 30
    int end;                // 0, 1: run one end, of `dir`; -1: start both
    const char *dir;
    bool json;
};
// NEB_ERR_STATE: no WAN can be emulated here (namespaces need root), or an end failed.
NEB_MUST_CHECK enum neb_status bench_link(const struct bench_link_options *o);

// ---- bytes on a socket --------------------------------------------------------------------------

// Bytes on the socket for a payload sent in chunks over an encrypted link, counted by TCP.

// Sends `payload` incompressible bytes from one member to another over loopback, in this process:
// in chunks of chunk_bytes with the header of an update's chunk, all acknowledged. *sent: bytes on
// the sender's sockets since the link was up. Takes seconds. NEB_ERR_TIMEOUT: the link did not come
// up or stood still; NEB_ERR_IO: no port or folder.
NEB_MUST_CHECK enum neb_status bench_socket_bytes(size_t payload, uint32_t chunk_bytes,
                                                  uint64_t *sent);

#endif
