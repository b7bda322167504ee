// SPDX-License-Identifier: Apache-2.0
// One rank: every collective is complete at once. Messages to itself are kept until they are
// received, so that code for any number of pipeline stages also runs with one.
#include "intra/ranks/comm.h"

#include <stdlib.h>
#include <string.h>

struct message {
    struct message *next;
    size_t bytes;
    int tag;
    unsigned char data[];
};

struct self {
    struct message *first, **end; // in the order of sending
};

static enum neb_status all_reduce(struct intra_comm *c, void *x, size_t n, enum intra_comm_type t,
                                  enum intra_comm_op op) {
    (void)c, (void)x, (void)n, (void)t, (void)op;
    return NEB_OK;
}

static enum neb_status reduce(struct intra_comm *c, float *x, size_t n, int root) {
    (void)c, (void)x, (void)n;
    NEB_ASSERT(root == 0);
    return NEB_OK;
}

static enum neb_status in_place(struct intra_comm *c, float *x, size_t n) {
    (void)c, (void)x, (void)n;
    return NEB_OK;
}

static enum neb_status broadcast(struct intra_comm *c, void *x, size_t bytes, int root) {
    (void)c, (void)x, (void)bytes;
    NEB_ASSERT(root == 0);
    return NEB_OK;
}

static enum neb_status send(struct intra_comm *c, const void *x, size_t bytes, int to, int tag,
                            struct intra_comm_send *s) {
    struct self *self = c->ctx;
    NEB_ASSERT(to == 0);
    struct message *m = malloc(sizeof *m + bytes);
    if (!m)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a message of %zu bytes", bytes);
    *m = (struct message){.bytes = bytes, .tag = tag};
    if (bytes)
        memcpy(m->data, x, bytes);
    *self->end = m;
    self->end = &m->next;
    s->handle = NULL;
    return NEB_OK;
}

static enum neb_status wait_send(struct intra_comm *c, struct intra_comm_send *s) {
    (void)c;
    s->handle = NULL;
    return NEB_OK;
}

static enum neb_status recv(struct intra_comm *c, void *x, size_t bytes, int from, int tag) {
    struct self *self = c->ctx;
    NEB_ASSERT(from == 0);
    for (struct message **at = &self->first; *at; at = &(*at)->next) {
        struct message *m = *at;
        if (m->tag != tag)
            continue;
        if (m->bytes != bytes)
            return neb_fail(NEB_ERR_IO, "message with tag %d has %zu bytes, %zu were expected", tag,
                            m->bytes, bytes);
        if (bytes)
            memcpy(x, m->data, bytes);
        *at = m->next;
        if (!*at)
            self->end = at;
        free(m);
        return NEB_OK;
    }
    return neb_fail(NEB_ERR_IO,
                    "no message with tag %d was sent to this rank, so it would wait forever", tag);
}

static enum neb_status poll(struct intra_comm *c, int from, int tag, bool *ready) {
    const struct self *self = c->ctx;
    NEB_ASSERT(from == 0);
    *ready = false;
    for (const struct message *m = self->first; m && !*ready; m = m->next)
        *ready = m->tag == tag;
    return NEB_OK;
}

static enum neb_status barrier(struct intra_comm *c) {
    (void)c;
    return NEB_OK;
}

static enum neb_status split(struct intra_comm *c, int color, int key, struct intra_comm **out) {
    (void)c, (void)key;
    NEB_ASSERT(color >= 0);
    return intra_comm_self(out);
}

static void destroy(struct intra_comm *c) {
    struct self *self = c->ctx;
    for (struct message *m = self->first, *next; m; m = next) {
        next = m->next;
        free(m);
    }
    intra_comm_free(c);
}

static const struct intra_comm_ops self_ops = {
    .name = "self",
    .all_reduce = all_reduce,
    .reduce = reduce,
    .reduce_scatter = in_place,
    .all_gather = in_place,
    .broadcast = broadcast,
    .send = send,
    .wait = wait_send,
    .recv = recv,
    .poll = poll,
    .barrier = barrier,
    .split = split,
    .destroy = destroy,
};

enum neb_status intra_comm_self(struct intra_comm **out) {
    NEB_TRY(intra_comm_make(&self_ops, sizeof(struct self), 0, 1, out));
    struct self *self = (*out)->ctx;
    self->end = &self->first;
    return NEB_OK;
}
