// SPDX-License-Identifier: Apache-2.0
// The memory and the queue of processors, for the backends kern_ref_create and kern_cpu_create:
// copies run at once, and there is nothing to wait for.
#ifndef KERN_HOST_H
#define KERN_HOST_H
#include "kernels/kern.h"

enum neb_status kern_host_alloc(struct kern *K, size_t bytes, void **out);
void kern_host_release(struct kern *K, void *p);
size_t kern_host_free_bytes(struct kern *K);
void kern_host_copy(struct kern *K, void *dst, const void *src, size_t bytes);
void kern_host_zero(struct kern *K, void *p, size_t bytes);
void kern_host_mark(struct kern *K, int slot); // and wait
double kern_host_elapsed_ms(struct kern *K, int from, int to);
enum neb_status kern_host_finish(struct kern *K);
void *kern_host_queue(struct kern *K);
// Graphs: there is nothing to record.
void kern_host_record(struct kern *K);
enum neb_status kern_host_record_end(struct kern *K, struct kern_graph **out,
                                     char why[KERN_WHY_MAX]);
void kern_host_replay(struct kern *K, const struct kern_graph *g);
void kern_host_forget(struct kern *K, struct kern_graph **g);

// Slots of struct kern_ops.
#define KERN_HOST_MEMORY                                                                           \
    .alloc = kern_host_alloc, .release = kern_host_release, .alloc_pinned = kern_host_alloc,       \
    .release_pinned = kern_host_release, .free_bytes = kern_host_free_bytes,                       \
    .upload = kern_host_copy, .download = kern_host_copy, .copy = kern_host_copy,                  \
    .zero = kern_host_zero, .mark = kern_host_mark, .wait = kern_host_mark,                        \
    .elapsed_ms = kern_host_elapsed_ms, .finish = kern_host_finish, .queue = kern_host_queue,      \
    .record = kern_host_record, .record_end = kern_host_record_end, .replay = kern_host_replay,    \
    .forget = kern_host_forget

// Sets all fields but pool and ctx.
void kern_host_init(struct kern *K, const struct kern_ops *ops);

#endif
