// SPDX-License-Identifier: Apache-2.0
// The status codes that every fallible function returns.
//
// The function that detects a failure logs its detail once (neb_fail). Callers only pass the code
// on (NEB_TRY). A peer on the network gets a code and no detail.
#ifndef NEB_STATUS_H
#define NEB_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

enum neb_status {
    NEB_OK = 0,
    NEB_ERR_INVALID, // a value of the caller or user is out of range, of the wrong type or unknown
    NEB_ERR_IO,      // the operating system failed: read, write, socket
    NEB_ERR_NOMEM,   // allocation failed
    NEB_ERR_FORMAT,  // external bytes do not follow their format
    NEB_ERR_CORRUPT, // the format is right but the digest does not match
    NEB_ERR_NOT_FOUND,   // no such file, member, tensor, key
    NEB_ERR_EXISTS,      // already exists and must not be replaced
    NEB_ERR_DENIED,      // a signature, key or permission forbids it
    NEB_ERR_TIMEOUT,     // the time limit passed
    NEB_ERR_AGAIN,       // not now: queue full or nothing to read; try later
    NEB_ERR_STATE,       // not possible in the current state
    NEB_ERR_UNSUPPORTED, // valid, but not available in this build or on this machine
    NEB_ERR_INTERRUPTED, // stopped on request (signal)
    NEB_ERR_LIMIT,       // over a limit that protects this process
    NEB_ERR_NOSPC,       // disk full or over quota
};

#define NEB_MUST_CHECK __attribute__((warn_unused_result))

// Short English name of a status: "corrupt data", "disk full". Never NULL.
const char *neb_status_name(enum neb_status s);

// Logs one error line (printf format) and returns `s`:
//     return neb_fail(NEB_ERR_FORMAT, "%s: frame %u: bad magic", path, i);
// A message says what is wrong, where, and what to do if there is something to do.
enum neb_status neb_fail(enum neb_status s, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

// Like neb_fail, with the text of errno appended. ENOSPC, EDQUOT, ENOMEM, ENOENT, EEXIST, EACCES
// and EPERM give their own status; all others give NEB_ERR_IO.
enum neb_status neb_fail_errno(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#define NEB_TRY(expr)                                                                              \
    do {                                                                                           \
        enum neb_status neb_try_status_ = (expr);                                                  \
        if (neb_try_status_ != NEB_OK)                                                             \
            return neb_try_status_;                                                                \
    } while (0)

// For functions with one cleanup label. Needs a local `enum neb_status st`.
#define NEB_TRY_GOTO(expr, label)                                                                  \
    do {                                                                                           \
        st = (expr);                                                                               \
        if (st != NEB_OK)                                                                          \
            goto label;                                                                            \
    } while (0)

// Checks an invariant of our own code, in release builds too. Never use it on bytes from a peer or
// a file.
#define NEB_ASSERT(cond)                                                                           \
    do {                                                                                           \
        if (__builtin_expect(!(cond), 0))                                                          \
            neb_assert_failed(#cond, __FILE__, __LINE__, __func__);                                \
    } while (0)
__attribute__((noreturn)) void neb_assert_failed(const char *cond, const char *file, int line,
                                                 const char *func);

#ifdef __cplusplus
}
#endif

#endif
