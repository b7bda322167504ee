// SPDX-License-Identifier: Apache-2.0
// Memory for keys: guarded, left out of core dumps and wiped when it is freed (sodium_malloc), and locked, so that it is not
// written to swap. Locking takes a part of RLIMIT_MEMLOCK for each piece, whole pages. Where that is used up, work goes on, as ssh-agent and
// WireGuard's tools do: a key that might be swapped is better than no agent. But it is said, once a process, with what to do; `nebula status
// --json` (keys_locked) and nebula doctor say it too.
//
// Threads: all calls are thread-safe.
#ifndef SEC_LOCKED_H
#define SEC_LOCKED_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Raises the soft limit of locked memory to the hard one. sec_seal_init and sec_init have done it.
void sec_locked_init(void);
// n bytes of no known content; its end is the end of a page. Freed by sodium_free. NULL: out of memory, not logged.
void *sec_locked_alloc(size_t n);
// Others that lock memory (OpenSSL) could not: says so, once a process. why: errno, or 0.
void sec_locked_failed(int why);
// All that this process asked for so far is locked.
bool sec_locked_all(void);
// Whether this process could lock so many bytes more. It tries.
bool sec_locked_room(size_t bytes);
// Bytes that it may lock in all, of RLIMIT_MEMLOCK; -1: no limit. A process with CAP_IPC_LOCK has none, whatever is said here.
int64_t sec_locked_limit(void);

#endif
