// SPDX-License-Identifier: Apache-2.0
// Counts the bytes that this process has read, hashed, copied, written or received. Code that waits
// for slow work checks this count: work that makes progress must not fail by a timeout.
//
// The code that moves bytes lies below every layer; the code that waits for it lies above. An
// argument in every call between them would connect the two. Instead, each thread may set one
// listener. The listener of a worker sends a sign of progress to the agent, and the listener of a
// rank sends it to the other ranks. Bytes of a thread without a listener are only counted.
#ifndef NEB_MOVED_H
#define NEB_MOVED_H
#include "agent/base/clock.h"

enum { NEB_MOVED_PIECE = 4 << 20 }; // work on large data calls neb_moved_add after this many bytes

uint64_t neb_moved(void); // bytes of all threads so far
// Counts bytes and calls the listener of this thread. 0 only calls the listener, to report progress
// of other threads.
void neb_moved_add(uint64_t bytes);
// Sets the listener of this thread; NULL: none. It is called often, so it must check the clock
// itself. A call of neb_moved_add inside the listener does not call it again.
typedef void neb_moved_listener(void *user);
void neb_moved_listen(neb_moved_listener *listener, void *user);

// Progress of long work on one file. Logs nothing in the first seconds, then a line every ten
// seconds. With `what` NULL it only counts. For one thread at a time.
struct neb_moving {
    const char *what, *path; // such as "verifying", and the file; borrowed
    uint64_t total, done;
    neb_ns start, said; // start 0: set at the first bytes
};
void neb_moving_add(struct neb_moving *m, uint64_t bytes);

#endif
