// SPDX-License-Identifier: Apache-2.0
// A libnebula without an agent, for tests of the Python package. nebula_begin writes into every
// registered element its index in the tensor (row-major), nebula_step doubles all elements, and
// element 0 of a tensor that holds 13 fails the step. Each call of all ranks ends with a message
// around the ring. The state is one array for each tensor, in parts of two ranks.
#include "agent/lib/libnebula.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX = 256 };
struct nebula {
    struct nebula_ranks ranks;
    struct nebula_hooks hooks;
    struct nebula_tensor tensors[MAX];
    struct nebula_piece pieces[MAX];
    int32_t n_tensors, n_pieces;
    int64_t step;
    float loaded;
    uint32_t late[8];
    int n_late;
};
double fake_loss[8], fake_lr[8]; // as the hook told them
uint64_t fake_tokens;
int fake_told;
static char text[512] = "";

static int fail(int status, const char *what, const char *name) {
    snprintf(text, sizeof text, "%s %s", what, name);
    return status;
}

const char *nebula_last_error(void) { return text; }

const char *nebula_version(int *api) {
    if (api)
        *api = NEBULA_API;
    return "fake";
}

static int64_t size_of(const int64_t *extent, int32_t dims) {
    int64_t n = 1;
    for (int32_t d = 0; d < dims; d++)
        n *= extent[d];
    return n;
}

static struct nebula_tensor *find(struct nebula *n, const char *name) {
    for (int32_t i = 0; i < n->n_tensors; i++)
        if (strcmp(n->tensors[i].name, name) == 0)
            return &n->tensors[i];
    return NULL;
}

static float get(const void *p, int dtype) {
    float value = 0;
    if (dtype == NEBULA_F32)
        memcpy(&value, p, 4);
    else if (dtype == NEBULA_BF16)
        memcpy((char *)&value + 2, p, 2);
    else
        value = (float)*(const _Float16 *)p;
    return value;
}

static void set(void *p, int dtype, float value) {
    if (dtype == NEBULA_F32)
        memcpy(p, &value, 4);
    else if (dtype == NEBULA_BF16)
        memcpy(p, (char *)&value + 2, 2);
    else
        *(_Float16 *)p = (_Float16)value;
}

// Calls f for each element of each piece: its memory, dtype, and index in the whole tensor.
static void each(struct nebula *n, void (*f)(void *, int, int64_t)) {
    for (int32_t i = 0; i < n->n_pieces; i++) {
        struct nebula_piece *p = &n->pieces[i];
        struct nebula_tensor *t = find(n, p->name);
        for (int64_t k = 0; k < size_of(p->extent, t->dims); k++) {
            int64_t rest = k, at = 0, index = 0, unit = 1;
            for (int32_t d = t->dims - 1; d >= 0; d--) {
                int64_t x = rest % p->extent[d];
                rest /= p->extent[d];
                at += x * p->stride[d];
                index += (p->offset[d] + x) * unit;
                unit *= t->shape[d];
            }
            f((char *)p->data + at * (p->dtype == NEBULA_F32 ? 4 : 2), p->dtype, index);
        }
    }
}

static void number(void *p, int dtype, int64_t index) { set(p, dtype, (float)index); }
static void twice(void *p, int dtype, int64_t index) {
    (void)index;
    set(p, dtype, 2 * get(p, dtype));
}

static int ring(struct nebula *n) {
    int token = 1, next = (n->ranks.rank + 1) % n->ranks.ranks;
    int before = (n->ranks.rank + n->ranks.ranks - 1) % n->ranks.ranks;
    if (n->hooks.wait && n->hooks.wait(n->hooks.user))
        return fail(NEBULA_ERR_IO, "the wait hook", "failed");
    if (n->ranks.ranks < 2)
        return NEBULA_OK;
    if (n->ranks.rank && n->ranks.recv(n->ranks.user, &token, sizeof token, before))
        return fail(NEBULA_ERR_IO, "a rank", "has ended");
    if (n->ranks.send(n->ranks.user, &token, sizeof token, next))
        return fail(NEBULA_ERR_IO, "a rank", "has ended");
    if (!n->ranks.rank && n->ranks.recv(n->ranks.user, &token, sizeof token, before))
        return fail(NEBULA_ERR_IO, "a rank", "has ended");
    return NEBULA_OK;
}

int nebula_attach(const struct nebula_attach_options *o, struct nebula **out) {
    if (o->size != sizeof *o || o->api != NEBULA_API)
        return fail(NEBULA_ERR_VERSION, "options of another", "size");
    if (o->job && strcmp(o->job, "none") == 0)
        return fail(NEBULA_ERR_NOT_FOUND, "there is no job", o->job);
    *out = calloc(1, sizeof **out);
    (*out)->hooks = o->hooks;
    (*out)->ranks.ranks = 1;
    if (o->ranks)
        (*out)->ranks = *o->ranks;
    return ring(*out);
}

int nebula_declare(struct nebula *n, const struct nebula_tensor *t) {
    if (t->size != sizeof *t || find(n, t->name))
        return fail(NEBULA_ERR_INVALID, "declared twice:", t->name);
    n->tensors[n->n_tensors++] = *t;
    return NEBULA_OK;
}

// $FAKE_TENSOR: what a job with a built-in model exchanges.
int nebula_tensor_at(struct nebula *n, int32_t i, struct nebula_tensor *out) {
    const char *name = getenv("FAKE_TENSOR");
    if (n->n_tensors == 0 && name && i == 0) {
        snprintf(out->name, sizeof out->name, "%s", name);
        return NEBULA_OK;
    }
    if (i >= n->n_tensors)
        return fail(NEBULA_ERR_INVALID, "no such", "tensor");
    *out = n->tensors[i];
    return NEBULA_OK;
}

int nebula_register(struct nebula *n, const struct nebula_piece *p) {
    struct nebula_tensor *t = find(n, p->name);
    if (p->size != sizeof *p || !t)
        return fail(NEBULA_ERR_INVALID, "not declared:", p->name);
    n->pieces[n->n_pieces] = *p;
    n->pieces[n->n_pieces++].name = t->name;
    return NEBULA_OK;
}

void *fake_stream;
int fake_place;
int nebula_set_stream(struct nebula *n, void *stream) {
    fake_stream = stream;
    fake_place = n->pieces[0].place;
    return NEBULA_OK;
}

int nebula_begin(struct nebula *n) {
    each(n, number);
    return ring(n);
}

int nebula_count(struct nebula *n, const int32_t *inputs, const int32_t *targets, size_t count) {
    (void)n, (void)targets;
    for (size_t i = 0; i < count; i++)
        if (inputs[i] >= 512)
            return fail(NEBULA_ERR_INVALID, "an id is", "outside the vocabulary");
    return NEBULA_OK;
}

static int figures(struct nebula *n, int wait) {
    while (n->n_late) {
        struct nebula_step_stats s = NEBULA_STEP_STATS_INIT;
        int answer = n->hooks.figures(n->hooks.user, wait, &s);
        if (answer)
            return wait || answer != NEBULA_NOT_YET;
        fake_tokens += s.tokens;
        fake_lr[fake_told] = s.lr;
        fake_loss[fake_told++] = s.loss;
        memmove(n->late, n->late + 1, (size_t)--n->n_late * sizeof *n->late);
    }
    return 0;
}

int nebula_step_with(struct nebula *n, const struct nebula_step_stats *stats, int *state) {
    for (int32_t i = 0; i < n->n_pieces; i++)
        if (size_of(n->pieces[i].extent, 1) && get(n->pieces[i].data, n->pieces[i].dtype) == 13)
            return fail(NEBULA_ERR_INVALID, "a value is not finite in", n->pieces[i].name);
    if (stats->tokens > 1024)
        return fail(NEBULA_ERR_INVALID, "too many", "tokens");
    each(n, twice);
    n->step++;
    if (stats->later)
        n->late[n->n_late++] = stats->later;
    if (figures(n, n->step == 3))
        return fail(NEBULA_ERR_IO, "the figures hook", "failed");
    *state = n->step < 3 ? NEBULA_TRAIN : NEBULA_DONE;
    if (n->hooks.checkpoint && n->hooks.checkpoint(n->hooks.user, "folder", n->step))
        return fail(NEBULA_ERR_IO, "the checkpoint hook", "failed");
    return ring(n);
}

int64_t nebula_step_count(const struct nebula *n) { return n->step; }
int nebula_checkpoint(struct nebula *n) { return ring(n); }

int nebula_info_get(struct nebula *n, struct nebula_info *out) {
    out->tensors = n->n_tensors;
    out->step = n->step;
    out->steps = 3;
    snprintf(out->digest, sizeof out->digest, "%g", (double)n->loaded);
    return ring(n);
}

int nebula_state_count(struct nebula *n, int32_t *out) {
    *out = n->n_tensors + (n->ranks.rank == 0);
    return ring(n);
}

// Rank 0 of two has the first third of an array.
int nebula_state_at(struct nebula *n, int32_t i, struct nebula_state_part *out) {
    if (i == n->n_tensors) {
        snprintf(out->name, sizeof out->name, "exchange");
        out->type = NEBULA_STATE_BYTES;
        out->total = out->count = 5;
        return NEBULA_OK;
    }
    snprintf(out->name, sizeof out->name, "theta/%s", n->tensors[i].name);
    out->type = NEBULA_STATE_F32;
    out->total = size_of(n->tensors[i].shape, n->tensors[i].dims);
    int64_t cut = out->total / 3;
    out->offset = n->ranks.rank ? cut : 0;
    out->count = n->ranks.ranks == 1 ? out->total : n->ranks.rank ? out->total - cut : cut;
    return NEBULA_OK;
}

int nebula_state_get(struct nebula *n, int32_t i, void *data) {
    struct nebula_state_part p = {.size = sizeof p};
    (void)nebula_state_at(n, i, &p);
    if (p.type == NEBULA_STATE_BYTES)
        memcpy(data, "bytes", 5);
    for (int64_t k = 0; p.type == NEBULA_STATE_F32 && k < p.count; k++)
        ((float *)data)[k] = (float)(p.offset + k);
    return NEBULA_OK;
}

int nebula_state_set(struct nebula *n, int32_t i, const void *data, int64_t count) {
    struct nebula_state_part p = {.size = sizeof p};
    (void)nebula_state_at(n, i, &p);
    if (count != p.count || (p.type == NEBULA_STATE_BYTES && memcmp(data, "bytes", 5)))
        return fail(NEBULA_ERR_INVALID, "a wrong part", p.name);
    for (int64_t k = 0; p.type == NEBULA_STATE_F32 && k < count; k++)
        if (((const float *)data)[k] != (float)(p.offset + k))
            return fail(NEBULA_ERR_INVALID, "a wrong value in", p.name);
    n->loaded++;
    return NEBULA_OK;
}

int nebula_close(struct nebula **n, double eval_loss) {
    (void)eval_loss;
    free(*n);
    *n = NULL;
    return NEBULA_OK;
}
