// SPDX-License-Identifier: Apache-2.0
// Memory for keys. It is guarded, left out of core dumps, wiped when freed (sodium_malloc), and
// locked, so that it is not written to swap. Each piece takes whole pages of RLIMIT_MEMLOCK. If the
// limit is used up, work continues without locking: a key that might be swapped is better than no
// agent. A warning says so once per process, and so do `nebula status --json` (keys_locked) and
// nebula doctor.
//
// Threads: all calls are thread-safe.
#ifndef SEC_LOCKED_H
#define SEC_LOCKED_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Raises the soft limit of locked memory to the hard one. sec_seal_init and sec_init call it.
void sec_locked_init(void);
// Allocates n bytes of undefined content, which end at the end of a page. Free with sodium_free.
// NULL (not logged): out of memory.
void *sec_locked_alloc(size_t n);
// Warns, once per process, that other code (OpenSSL) could not lock memory. why: errno, or 0.
void sec_locked_failed(int why);
// True if all that this process asked for so far is locked.
bool sec_locked_all(void);
// True if this process can lock this many more bytes. It tries, and unlocks them again.
bool sec_locked_room(size_t bytes);
// Bytes that this process may lock in all, from RLIMIT_MEMLOCK; -1: no limit. A process with
// CAP_IPC_LOCK has no limit, whatever this returns.
int64_t sec_locked_limit(void);

#endif
