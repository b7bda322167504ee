// SPDX-License-Identifier: Apache-2.0
// The tensors of the loop: declared on every rank, registered where they are, compared between the
// ranks, and sorted into those that are exchanged and those that stay here.
#include "agent/base/log.h"
#include "agent/base/plain.h"
#include "agent/base/sha256.h"
#include "agent/exchange/manifest.h"
#include "agent/job/groups.h"
#include "agent/lib/state.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- declare ------------------------------------------------------------------------------------

static int by_name(const void *x, const void *y) {
    const struct lib_tensor *a = x, *b = y;
    return strcmp(a->name, b->name);
}

struct lib_tensor *lib_tensor_find(const struct nebula *n, const char *name) {
    for (int32_t i = 0; i < n->n_declared; i++)
        if (!strcmp(n->declared[i].name, name))
            return &n->declared[i];
    return NULL;
}

static void shape_text(int32_t dims, const int64_t *shape, char *out, size_t cap) {
    size_t len = (size_t)snprintf(out, cap, "(");
    for (int32_t k = 0; k < dims && len < cap; k++)
        len += (size_t)snprintf(out + len, cap - len, "%s%" PRId64, k ? ", " : "", shape[k]);
    if (len < cap)
        snprintf(out + len, cap - len, ")");
}

static int check_declared(const struct nebula *n, const struct nebula_tensor *t) {
    const int64_t most = (int64_t)1 << 48;
    int64_t size = 1;
    if (!memchr(t->name, 0, sizeof t->name) || !t->name[0] || !neb_is_plain(t->name))
        return lib_fail(NEBULA_ERR_INVALID,
                        "nebula_declare: tensor %d: a name has 1 to %d bytes of UTF-8 without "
                        "control characters",
                        n->n_declared, NEBULA_NAME_MAX);
    if (lib_tensor_find(n, t->name))
        return lib_fail(NEBULA_ERR_INVALID, "nebula_declare(%s): declared before", t->name);
    if (t->dims < 0 || t->dims > NEBULA_DIMS_MAX)
        return lib_fail(NEBULA_ERR_INVALID, "nebula_declare(%s): %d dimensions, but 0 to %d fit",
                        t->name, t->dims, NEBULA_DIMS_MAX);
    for (int32_t k = 0; k < t->dims; k++) {
        if (t->shape[k] < 1 || t->shape[k] > most / size)
            return lib_fail(NEBULA_ERR_INVALID,
                            "nebula_declare(%s): dimension %d has the size %" PRId64, t->name, k,
                            t->shape[k]);
        size *= t->shape[k];
    }
    if (!lib_copy_known(t->dtype, NEBULA_HOST))
        return lib_fail(NEBULA_ERR_INVALID,
                        "nebula_declare(%s): dtype %d: use float32, bfloat16 or float16", t->name,
                        t->dtype);
    return NEBULA_OK;
}

static int usable(const struct nebula *n, const char *call, const char *name) {
    int s = lib_usable(n, call);
    return s || (!n->begun && !n->loading)
               ? s
               : lib_fail(NEBULA_ERR_STATE, "%s(%s): called after nebula_begin", call, name);
}

int nebula_declare(struct nebula *n, const struct nebula_tensor *t) {
    LIB_POINT;
    if (!t || t->size != sizeof *t)
        return lib_fail(NEBULA_ERR_INVALID,
                        "nebula_declare: the tensor is NULL or its size is not set");
    int s = usable(n, "nebula_declare", t->name);
    if (s || (s = check_declared(n, t)))
        return s;
    size_t cap = (size_t)n->n_declared;
    if ((cap & (cap - 1)) == 0) { // full at powers of two
        struct lib_tensor *more = realloc(n->declared, (cap ? 2 * cap : 1) * sizeof *more);
        if (!more)
            return lib_fail(NEBULA_ERR_MEMORY, "nebula_declare(%s): out of memory", t->name);
        n->declared = more;
    }
    struct lib_tensor *x = &n->declared[n->n_declared++];
    *x = (struct lib_tensor){.dims = t->dims,
                             .dtype = t->dtype,
                             .buffer = t->buffer,
                             .trained = t->trained,
                             .fragment = -1};
    memcpy(x->name, t->name, sizeof x->name);
    memcpy(x->shape, t->shape, (size_t)t->dims * sizeof *x->shape);
    x->size = pieces_size(x->dims, x->shape);
    x->cols = x->dims < 2 ? x->size : x->size / x->shape[0];
    return NEBULA_OK;
}

// ---- register -----------------------------------------------------------------------------------

static int check_piece(const struct lib_tensor *t, const struct nebula_piece *p) {
    char shape[NEBULA_DIMS_MAX * 22 + 4];
    shape_text(t->dims, t->shape, shape, sizeof shape);
    for (int32_t k = 0; k < t->dims; k++)
        if (p->offset[k] < 0 || p->extent[k] < 0 || p->offset[k] > t->shape[k] ||
            p->extent[k] > t->shape[k] - p->offset[k] || p->stride[k] < 0)
            return lib_fail(NEBULA_ERR_INVALID,
                            "nebula_register(%s): dimension %d: %" PRId64 " elements from %" PRId64
                            " on, with stride %" PRId64 ", but the shape is %s",
                            t->name, k, p->extent[k], p->offset[k], p->stride[k], shape);
    if (p->dtype != t->dtype)
        return lib_fail(NEBULA_ERR_INVALID,
                        "nebula_register(%s): dtype %d, but the tensor is declared with dtype %d",
                        t->name, p->dtype, t->dtype);
    if (!lib_copy_known(p->dtype, p->place))
        return lib_fail(NEBULA_ERR_INVALID, "nebula_register(%s): place %d: use the host or CUDA",
                        t->name, p->place);
    return NEBULA_OK;
}

static struct lib_piece piece_of(const struct lib_tensor *t, const struct nebula_piece *p) {
    struct lib_piece x = {.place = p->place, .data = p->data, .dense = true};
    bool any = false;
    int64_t behind = 1;
    for (int32_t k = 0; k < t->dims; k++)
        any = any || p->stride[k];
    for (int32_t k = t->dims - 1; k >= 0; k--) {
        x.box.at[k] = p->offset[k];
        x.box.n[k] = p->extent[k];
        x.stride[k] = any ? p->stride[k] : behind;
        x.dense = x.dense && (x.stride[k] == behind || p->extent[k] == 1);
        behind *= p->extent[k];
    }
    return x;
}

// Tells the user once that 16-bit tensors cost memory for fp32 values.
static void warn_16(struct nebula *n, const char *name) {
    if (n->told_16)
        return;
    n->told_16 = true;
    neb_info("%s has 16 bits. The exchange keeps fp32 values behind it, one more float for each "
             "of its elements",
             name);
}

int nebula_register(struct nebula *n, const struct nebula_piece *p) {
    LIB_POINT;
    if (!p || p->size != sizeof *p || !p->name)
        return lib_fail(NEBULA_ERR_INVALID, "nebula_register: the piece %s",
                        !p        ? "is NULL"
                        : p->name ? "has no size"
                                  : "has no name");
    int s = usable(n, "nebula_register", p->name);
    if (s)
        return s;
    struct lib_tensor *t = lib_tensor_find(n, p->name);
    if (!t)
        return lib_fail(NEBULA_ERR_INVALID, "nebula_register: no tensor \"%s\" is declared",
                        p->name);
    if ((s = check_piece(t, p)))
        return s;
    struct lib_piece x = piece_of(t, p);
    if (t->dims && !pieces_size(t->dims, x.box.n)) // empty
        return NEBULA_OK;
    if (!p->data)
        return lib_fail(NEBULA_ERR_INVALID, "nebula_register(%s): data is NULL", t->name);
    for (size_t k = 0; k < t->n_pieces; k++)
        if (pieces_overlap(t->dims, &t->pieces[k].box, &x.box)) {
            char at[NEBULA_DIMS_MAX * 22 + 4];
            int64_t c[NEBULA_DIMS_MAX] = {0};
            for (int32_t d = 0; d < t->dims; d++)
                c[d] = x.box.at[d] > t->pieces[k].box.at[d] ? x.box.at[d] : t->pieces[k].box.at[d];
            shape_text(t->dims, c, at, sizeof at);
            return lib_fail(NEBULA_ERR_INVALID,
                            "nebula_register(%s): element %s is already registered on this rank",
                            t->name, at);
        }
    if (p->place == NEBULA_CUDA &&
        (s = lib_pass(lib_device_take(n, t->name, p->data))) != NEBULA_OK)
        return s;
    struct lib_piece *more = realloc(t->pieces, (t->n_pieces + 1) * sizeof *more);
    if (!more)
        return lib_fail(NEBULA_ERR_MEMORY, "nebula_register(%s): out of memory", t->name);
    t->pieces = more;
    t->pieces[t->n_pieces++] = x;
    if (t->dtype != NEBULA_F32)
        warn_16(n, t->name);
    return NEBULA_OK;
}

// ---- the same on all ranks ----------------------------------------------------------------------

// One line per tensor, sorted, with what must be equal on all ranks.
static enum neb_status write_list(const struct nebula *n, struct neb_buf *out) {
    for (int32_t i = 0; i < n->n_declared; i++) {
        const struct lib_tensor *t = &n->declared[i];
        char line[NEBULA_NAME_MAX + 256], shape[NEBULA_DIMS_MAX * 22 + 4];
        static const char *const types[] = {"float32", "bfloat16", "float16"};
        shape_text(t->dims, t->shape, shape, sizeof shape);
        int len = snprintf(line, sizeof line, "%s %s %s%s%s\n", t->name, shape, types[t->dtype],
                           t->buffer ? ", buffer" : "", t->trained ? "" : ", frozen");
        neb_buf_add(out, line, (size_t)len);
    }
    return neb_buf_check(out);
}

static enum neb_status broadcast_buf(struct nebula *n, struct neb_buf *b, int root) {
    struct intra_comm *w = n->world;
    uint64_t len = b->len;
    enum neb_status st = NEB_OK;
    NEB_TRY(w->ops->broadcast(w, &len, sizeof len, root));
    if (n->rank != root) {
        neb_buf_clear(b);
        st = neb_buf_reserve(b, len);
        b->len = st == NEB_OK ? len : 0;
    }
    NEB_TRY(intra_comm_agree(n->world, st));
    return len ? w->ops->broadcast(w, b->p, len, root) : NEB_OK;
}

static size_t line_len(const struct neb_buf *b, size_t at) {
    const char *end = at < b->len ? memchr(b->p + at, '\n', b->len - at) : NULL;
    return end ? (size_t)(end - ((const char *)b->p + at)) : 0;
}

static enum neb_status compare_lists(const struct nebula *n, const struct neb_buf *mine,
                                     const struct neb_buf *first) {
    for (size_t at = 0; at < mine->len || at < first->len;) {
        size_t a = line_len(first, at), b = line_len(mine, at);
        if (a != b || memcmp(first->p + at, mine->p + at, a) != 0)
            return neb_fail(NEB_ERR_INVALID,
                            "the ranks declare different tensors: rank 0 has %.*s, rank %d has "
                            "%.*s",
                            a ? (int)a : 7, a ? (const char *)first->p + at : "no more", n->rank,
                            b ? (int)b : 7, b ? (const char *)mine->p + at : "no more");
        at += a + 1;
    }
    return NEB_OK;
}

static enum neb_status same_on_ranks(struct nebula *n) {
    struct neb_buf mine = {0}, first = {0};
    uint64_t sum[2] = {0};
    uint8_t sha[NEB_SHA256_BYTES];
    if (n->ranks == 1)
        return NEB_OK;
    enum neb_status st = write_list(n, &mine);
    neb_sha256(mine.p, mine.len, sha);
    NEB_TRY_GOTO(intra_comm_agree(n->world, st), out);
    memcpy(&sum[0], sha, sizeof sum[0]);
    sum[1] = ~sum[0];
    NEB_TRY_GOTO(n->world->ops->all_reduce(n->world, sum, 2, INTRA_COMM_U64, INTRA_COMM_MAX), out);
    if (sum[0] == ~sum[1])
        goto out;
    if (n->rank == 0)
        neb_buf_add(&first, mine.p, mine.len);
    NEB_TRY_GOTO(intra_comm_agree(n->world, neb_buf_check(&first)), out);
    NEB_TRY_GOTO(broadcast_buf(n, &first, 0), out);
    st = intra_comm_agree(n->world, compare_lists(n, &mine, &first));
out:
    neb_buf_free(&mine);
    neb_buf_free(&first);
    return st;
}

// ---- which are exchanged ------------------------------------------------------------------------

static bool named(const struct agent_job *j, int32_t group) {
    return strcmp(agent_job_group(j, group)->match, "*") != 0;
}

// A coarse codec, a rate or momentum can make a running variance negative.
static enum neb_status buffer_is_averaged(const struct nebula *n, const struct lib_tensor *t) {
    const struct agent_group *g = agent_job_group(&n->x.job, t->group);
    const struct agent_sync *s = &n->x.job.sync;
    const char *codec = g->codec[0] ? g->codec : s->codec;
    float eta = isnan(g->eta) ? s->eta : g->eta, mu = isnan(g->mu) ? s->mu : g->mu;
    bool fine = !strcmp(codec, "bf16") || !strcmp(codec, "fp32");
    return !n->model && fine && eta == 1 && mu == 0
               ? NEB_OK
               : neb_fail(NEB_ERR_INVALID,
                          "buffer %s is averaged only with `model: attached` and in a group with "
                          "codec bf16 or fp32, eta 1 and mu 0, such as {match: \"%s\", codec: "
                          "bf16, eta: 1, mu: 0}; or name it in a group with `exchange: never`",
                          t->name, t->name);
}

static enum neb_status choose(struct nebula *n, struct lib_tensor *t, bool *exchanged) {
    const struct agent_job *j = &n->x.job;
    t->group = agent_job_group_of(j, t->name);
    bool never = agent_job_group(j, t->group)->exchange == AGENT_GROUP_NEVER;
    *exchanged = !never && (t->trained || t->buffer || named(j, t->group));
    if (t->buffer && !never)
        NEB_TRY(buffer_is_averaged(n, t));
    if (!n->model)
        return NEB_OK;
    const struct intra_tensor *m = intra_model_find(n->model, t->name);
    bool in = m && m->trainable;
    if (in && (t->size / t->cols != m->rows || t->cols != m->cols)) {
        char shape[NEBULA_DIMS_MAX * 22 + 4];
        shape_text(t->dims, t->shape, shape, sizeof shape);
        return neb_fail(NEB_ERR_INVALID, "tensor %s has the shape %s, but the job's has (%d, %d)",
                        t->name, shape, m->rows, m->cols);
    }
    if (!in && t->trained && !never)
        return neb_fail(NEB_ERR_INVALID,
                        "tensor %s is trained, but the job's model does not exchange it. Freeze "
                        "it, name it in a group with `exchange: never`, or use `model: attached`",
                        t->name);
    t->model = m;
    *exchanged = in; // units of a `never` group too: the built-in trainer lists them
    return NEB_OK;
}

// Every tensor of a built-in model must be declared.
static enum neb_status model_is_declared(const struct nebula *n) {
    for (int32_t i = 0; n->model && i < n->model->n_tensors; i++) {
        const struct intra_tensor *m = &n->model->tensors[i];
        if (m->trainable && !lib_tensor_find(n, m->name))
            return neb_fail(NEB_ERR_INVALID,
                            "the job exchanges tensor %s, but the loop does not declare it",
                            m->name);
    }
    return NEB_OK;
}

// A frozen base under trained adapters. A group with `exchange: never` may differ.
static bool must_be_equal(const struct nebula *n, const struct lib_tensor *t) {
    const struct agent_group *g = agent_job_group(&n->x.job, t->group);
    return !t->trained && !t->buffer && g->exchange != AGENT_GROUP_NEVER;
}

static enum neb_status find_exchanged(struct nebula *n) {
    size_t all = (size_t)n->n_declared + 1;
    if (!(n->tensors = calloc(all, sizeof(struct lib_tensor *))))
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %zu tensors", all);
    NEB_TRY(model_is_declared(n));
    for (int32_t i = 0; i < n->n_declared; i++) {
        struct lib_tensor *t = &n->declared[i];
        bool exchanged = false;
        NEB_TRY(choose(n, t, &exchanged));
        t->frozen = !exchanged && must_be_equal(n, t);
        if (exchanged)
            n->tensors[n->n_tensors++] = t;
    }
    for (int32_t i = 0; i < n->n_declared; i++)
        if (n->declared[i].frozen)
            n->tensors[n->n_tensors + n->n_frozen++] = &n->declared[i];
    return n->n_tensors ? NEB_OK
                        : neb_fail(NEB_ERR_INVALID,
                                   "no tensor is exchanged: all %d that the loop declares are "
                                   "frozen or in groups with `exchange: never`",
                                   n->n_declared);
}

// ---- what each rank holds -----------------------------------------------------------------------

static enum neb_status write_held(const struct nebula *n, struct neb_buf *out) {
    for (int32_t i = 0; i < n->n_tensors + n->n_frozen; i++) {
        const struct lib_tensor *t = n->tensors[i];
        neb_buf_u64(out, t->n_pieces);
        for (size_t k = 0; k < t->n_pieces; k++)
            for (int32_t d = 0; d < t->dims; d++) {
                neb_buf_i64(out, t->pieces[k].box.at[d]);
                neb_buf_i64(out, t->pieces[k].box.n[d]);
            }
    }
    return neb_buf_check(out);
}

// The bytes come from another rank of this loop, which may run another version.
static enum neb_status read_held(struct nebula *n, const struct neb_buf *in, int rank) {
    struct neb_rd r = neb_rd_make(in->p, in->len);
    for (int32_t i = 0; i < n->n_tensors + n->n_frozen; i++) {
        struct lib_tensor *t = n->tensors[i];
        uint64_t pieces = neb_rd_u64(&r);
        for (uint64_t k = 0; k < pieces && !r.bad; k++) {
            struct pieces_box b = {0};
            for (int32_t d = 0; d < t->dims; d++) {
                b.at[d] = neb_rd_i64(&r);
                b.n[d] = neb_rd_i64(&r);
                if (b.at[d] < 0 || b.n[d] < 0 || b.at[d] > t->shape[d] ||
                    b.n[d] > t->shape[d] - b.at[d])
                    return neb_fail(NEB_ERR_FORMAT, "rank %d sent a part of %s that is outside",
                                    rank, t->name);
            }
            NEB_TRY(pieces_add(&t->held[rank], &b));
        }
    }
    return neb_rd_done(&r)
               ? NEB_OK
               : neb_fail(NEB_ERR_FORMAT, "rank %d sent a malformed list of parts", rank);
}

static enum neb_status share_held(struct nebula *n) {
    for (int r = 0; r < n->ranks; r++) {
        struct neb_buf b = {0};
        enum neb_status st = r == n->rank ? write_held(n, &b) : NEB_OK;
        st = intra_comm_agree(n->world, st);
        if (st == NEB_OK && n->ranks > 1)
            st = broadcast_buf(n, &b, r);
        if (st == NEB_OK)
            st = intra_comm_agree(n->world, read_held(n, &b, r));
        neb_buf_free(&b);
        NEB_TRY(st);
    }
    return NEB_OK;
}

// Every element is on some rank.
static enum neb_status covered(const struct nebula *n) {
    for (int32_t i = 0; i < n->n_tensors; i++) {
        const struct lib_tensor *t = n->tensors[i];
        struct pieces_box all = {0};
        struct pieces_boxes left = {0};
        char at[NEBULA_DIMS_MAX * 22 + 4];
        int64_t c[NEBULA_DIMS_MAX] = {0};
        memcpy(all.n, t->shape, sizeof all.n);
        enum neb_status st = pieces_add(&left, &all);
        for (int r = 0; r < n->ranks && st == NEB_OK && left.len; r++)
            st = t->dims || !t->held[r].len ? pieces_subtract(t->dims, &left, &t->held[r])
                                            : (left.len = 0, NEB_OK);
        int64_t first = st == NEB_OK ? pieces_first(t->dims, t->shape, &left) : -1;
        pieces_free(&left);
        NEB_TRY(st);
        if (first < 0)
            continue;
        for (int32_t k = t->dims - 1; k >= 0; k--) {
            c[k] = first % t->shape[k];
            first /= t->shape[k];
        }
        shape_text(t->dims, c, at, sizeof at);
        return neb_fail(NEB_ERR_INVALID, "tensor %s: element %s is registered on none of %d ranks",
                        t->name, at, n->ranks);
    }
    return NEB_OK;
}

enum neb_status lib_tensors_settle(struct nebula *n) {
    if (n->n_declared)
        qsort(n->declared, (size_t)n->n_declared, sizeof *n->declared, by_name);
    NEB_TRY(same_on_ranks(n));
    NEB_TRY(intra_comm_agree(n->world, find_exchanged(n)));
    enum neb_status st = NEB_OK;
    for (int32_t i = 0; i < n->n_tensors + n->n_frozen && st == NEB_OK; i++) {
        struct lib_tensor *t = n->tensors[i];
        t->held = calloc((size_t)n->ranks, sizeof *t->held);
        t->peers = calloc((size_t)n->ranks, sizeof *t->peers);
        if (!t->held || !t->peers)
            st = neb_fail(NEB_ERR_NOMEM, "out of memory for %d tensors", n->n_tensors);
    }
    NEB_TRY(intra_comm_agree(n->world, st));
    NEB_TRY(share_held(n));
    return intra_comm_agree(n->world, covered(n));
}

void lib_tensors_destroy(struct nebula *n) {
    for (int32_t i = 0; i < n->n_declared; i++) {
        struct lib_tensor *t = &n->declared[i];
        for (int r = 0; r < n->ranks; r++) {
            if (t->held)
                pieces_free(&t->held[r]);
            if (t->peers) {
                pieces_free(&t->peers[r].give);
                pieces_free(&t->peers[r].take);
            }
        }
        free(t->held);
        free(t->peers);
        free(t->pieces);
    }
    free(n->declared);
    free(n->tensors);
}
