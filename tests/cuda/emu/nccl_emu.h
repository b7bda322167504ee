// SPDX-License-Identifier: Apache-2.0
// Internals of the emulated NCCL (nccl.c) and of its part of CUDA's runtime (nccl_runtime.c), and
// the faults that tests inject.
//
// A stream is a list of operations. Its first operation makes progress whenever this process calls
// either library: there are no threads. An operation that needs other ranks reads memory shared
// with them.
#ifndef EMU_NCCL_EMU_H
#define EMU_NCCL_EMU_H
#include <cuda_runtime_api.h>
#include <stdbool.h>

struct emu_nccl {
    int in_progress;  // every call stays in progress for this many looks at the state
    long fail_at;     // the call of either library that fails, from 1; 0: none
    long error_at;    // the look at a state that returns an asynchronous error, from 1; 0: none
    const char *hang; // name of the NCCL call whose work never ends, or NULL
    // Counters; tests reset them to 0.
    long calls, looks;
    const char *failed; // the name of the call that failed
    int live;           // communicators, streams, events and device buffers not freed yet
};
extern struct emu_nccl emu_nccl;

// Any thread may call either library, one at a time: each function takes this lock first. A
// function that waits for an action of the test releases it.
void emu_enter(void);
void emu_leave(void);
#define EMU_ALONE                                                                                  \
    __attribute__((cleanup(emu_leave_at_end), unused)) const char emu_alone = (emu_enter(), 0)
static inline void emu_leave_at_end(const char *alone) {
    (void)alone;
    emu_leave();
}

// True if this call must fail. Every fallible function of either library begins with this or the
// next one.
bool emu_fails(const char *call);
// The same for a polling function. The number of its calls depends on the machine. So it counts
// only once between two other calls; each kind has its own bit.
bool emu_poll_fails(const char *call, unsigned kind);
// True if this look at a state must return an error. Only the first two looks after another call
// count.
bool emu_look_fails(void);

struct emu_op {
    struct emu_op *next;
    bool (*run)(struct emu_op *op); // makes progress; true when done
    const void *of;                 // the communicator that can abort it; NULL: always runs
};
// Takes ownership of op, which was malloc'ed.
void emu_stream_push(cudaStream_t s, struct emu_op *op);
void emu_streams_run(void);
// Ends the operations of this communicator unfinished.
void emu_streams_give_up(const void *of);
bool emu_streams_have(const void *of);

#endif
