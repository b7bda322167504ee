// SPDX-License-Identifier: Apache-2.0
// The inside of the emulated NCCL (nccl.c) and of the part of CUDA's runtime under it (nccl_runtime.c), and what tests tell them to
// do wrong.
//
// A stream is a list of operations; the first of each runs, as far as it gets, whenever this process asks anything of either library:
// there are no threads of its own. An operation that needs other ranks looks into memory shared with them.
#ifndef EMU_NCCL_EMU_H
#define EMU_NCCL_EMU_H
#include <cuda_runtime_api.h>
#include <stdbool.h>

struct emu_nccl {
    int in_progress; // for so many looks at a communicator's state, every call on it is in progress
    long fail_at;    // which call of either library fails, from 1; 0: none
    long error_at;   // which look at a state tells of an asynchronous error, from 1; 0: none
    const char *hang; // the NCCL call whose work never ends, by name; NULL: none
    // Counted, for tests to begin anew from 0.
    long calls, looks;
    const char *failed; // the name of the call that failed
    int live; // communicators, streams, events and device buffers that are not given back yet
};
extern struct emu_nccl emu_nccl;

// Both libraries may be called from any thread, one at a time: the first line of each of their functions. A function that waits for what a
// test does meanwhile lets others in.
void emu_enter(void);
void emu_leave(void);
#define EMU_ALONE                                                                                  \
    __attribute__((cleanup(emu_leave_at_end), unused)) const char emu_alone = (emu_enter(), 0)
static inline void emu_leave_at_end(const char *alone) {
    (void)alone;
    emu_leave();
}

// Whether this call is the one to fail. Every function of either library that can fail begins with one of the two.
bool emu_fails(const char *call);
// The same for one that is called until something has happened. How often depends on the machine, so only the first of each kind (a bit
// of its own) since the last other call counts.
bool emu_poll_fails(const char *call, unsigned kind);
// Whether this look at a state is the one to tell of an error; likewise, of the looks since the last other call the first two count.
bool emu_look_fails(void);

struct emu_op {
    struct emu_op *next;
    bool (*run)(struct emu_op *op); // as far as it gets: true when done
    const void *of;                 // the communicator that can give it up; NULL: always runs
};
// Takes op, which was malloc'ed.
void emu_stream_push(cudaStream_t s, struct emu_op *op);
void emu_streams_run(void);
// Operations of this communicator end where they are.
void emu_streams_give_up(const void *of);
bool emu_streams_have(const void *of);

#endif
