// SPDX-License-Identifier: Apache-2.0
// Bytes that this process has moved: read, hashed, copied, written, received. Whoever waits for something long asks whether they grow,
// since what makes progress does not fail by the clock.
//
// What moves them lies beneath every layer (files, digests, connections), and who wants to hear of it above all of them. So a thread has
// one listener, in place of an argument through every call between: the worker's thread tells its agent, a rank's the other ranks, that it
// is at work. A thread that has none is only counted.
#ifndef NEB_MOVED_H
#define NEB_MOVED_H
#include "agent/base/clock.h"

enum {
    NEB_MOVED_PIECE = 4 << 20
}; // bytes of what is large that are moved between two calls of neb_moved_add

uint64_t neb_moved(void); // by all threads, so far
// Counts, and calls the listener of this thread. 0: only that, of who has seen others move some.
void neb_moved_add(uint64_t bytes);
// Called often: it looks at the clock itself. NULL: none. A listener is not called from within itself.
typedef void neb_moved_listener(void *user);
void neb_moved_listen(neb_moved_listener *listener, void *user);

// Something long about one file, which says how far it is: nothing in the first seconds, then a line of the log every few. Zeroed: says
// nothing yet, and counts all the same. One thread at a time.
struct neb_moving {
    const char *what, *path; // "verifying", the file; borrowed
    uint64_t total, done;
    neb_ns start, said; // start 0: with the first bytes
};
void neb_moving_add(struct neb_moving *m, uint64_t bytes);

#endif
