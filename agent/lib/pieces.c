// SPDX-License-Identifier: Apache-2.0
#include "agent/lib/pieces.h"
#include "agent/base/array.h"

#include <stdlib.h>
#include <string.h>

enum neb_status pieces_add(struct pieces_boxes *b, const struct pieces_box *box) {
    struct pieces_box *more = neb_array_more(b->p, b->len, &b->cap, 1, sizeof *more);
    if (!more)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %zu parts of a tensor", b->len + 1);
    b->p = more;
    b->p[b->len++] = *box;
    return NEB_OK;
}

void pieces_free(struct pieces_boxes *b) {
    free(b->p);
    *b = (struct pieces_boxes){0};
}

int64_t pieces_size(int32_t dims, const int64_t *n) {
    int64_t size = 1;
    for (int32_t k = 0; k < dims; k++)
        size *= n[k];
    return size;
}

bool pieces_overlap(int32_t dims, const struct pieces_box *a, const struct pieces_box *b) {
    for (int32_t k = 0; k < dims; k++)
        if (!a->n[k] || !b->n[k] || a->at[k] >= b->at[k] + b->n[k] ||
            b->at[k] >= a->at[k] + a->n[k])
            return false;
    return true;
}

// Adds a without b: in each dimension in turn, cuts off what lies before and behind b.
static enum neb_status cut(int32_t dims, struct pieces_box a, const struct pieces_box *b,
                           struct pieces_boxes *out) {
    for (int32_t k = 0; k < dims; k++) {
        int64_t end = a.at[k] + a.n[k], b_end = b->at[k] + b->n[k];
        struct pieces_box part = a;
        if (a.at[k] < b->at[k]) {
            part.n[k] = b->at[k] - a.at[k];
            NEB_TRY(pieces_add(out, &part));
        }
        if (b_end < end) {
            part.at[k] = b_end;
            part.n[k] = end - b_end;
            NEB_TRY(pieces_add(out, &part));
        }
        a.at[k] = a.at[k] < b->at[k] ? b->at[k] : a.at[k];
        a.n[k] = (end < b_end ? end : b_end) - a.at[k];
    }
    return NEB_OK;
}

enum neb_status pieces_subtract(int32_t dims, struct pieces_boxes *from,
                                const struct pieces_boxes *without) {
    for (size_t w = 0; w < without->len; w++) {
        struct pieces_boxes left = {0};
        enum neb_status st = NEB_OK;
        for (size_t i = 0; i < from->len && st == NEB_OK; i++)
            st = pieces_overlap(dims, &from->p[i], &without->p[w])
                     ? cut(dims, from->p[i], &without->p[w], &left)
                     : pieces_add(&left, &from->p[i]);
        pieces_free(from);
        *from = left;
        NEB_TRY(st);
    }
    return NEB_OK;
}

static int64_t index_of(int32_t dims, const int64_t *shape, const int64_t *at) {
    int64_t i = 0;
    for (int32_t k = 0; k < dims; k++)
        i = i * shape[k] + at[k];
    return i;
}

int64_t pieces_first(int32_t dims, const int64_t *shape, const struct pieces_boxes *b) {
    int64_t first = -1;
    for (size_t i = 0; i < b->len; i++) {
        int64_t at = index_of(dims, shape, b->p[i].at);
        if (pieces_size(dims, b->p[i].n) && (first < 0 || at < first))
            first = at;
    }
    return first;
}

// Elements of the box before element i of the tensor.
static int64_t before(int32_t dims, const int64_t *shape, const struct pieces_box *box, int64_t i) {
    int64_t sum = 0, of_tensor = pieces_size(dims, shape), of_box = pieces_size(dims, box->n);
    if (!of_box || i >= of_tensor)
        return i <= 0 ? 0 : of_box;
    for (int32_t k = 0; k < dims; k++) { // whole slices of dimension k before the one with i
        of_tensor /= shape[k];
        of_box /= box->n[k];
        int64_t c = i / of_tensor - box->at[k];
        i %= of_tensor;
        if (c < 0)
            return sum;
        if (c >= box->n[k])
            return sum + box->n[k] * of_box;
        sum += c * of_box;
    }
    return sum;
}

int64_t pieces_count(int32_t dims, const int64_t *shape, const struct pieces_box *box,
                     int64_t begin, int64_t end) {
    return before(dims, shape, box, end) - before(dims, shape, box, begin);
}

// ---- walking ------------------------------------------------------------------------------------

struct walk { // a box as `outer` loops over `rows` runs of `len` elements
    int32_t loops;
    int64_t n[PIECES_DIMS_MAX], pitch[PIECES_DIMS_MAX]; // of each loop, outermost first
    int64_t at, len;
};

// Dimensions that the box covers completely belong to the run of the dimension before them.
static struct walk walk_of(int32_t dims, const int64_t *shape, const struct pieces_box *box) {
    struct walk w = {.at = index_of(dims, shape, box->at), .len = 1};
    int32_t k = dims;
    while (k > 0 && box->n[k - 1] == shape[k - 1])
        w.len *= shape[--k];
    int64_t pitch = w.len;
    if (k > 0) {
        w.len *= box->n[--k];
        pitch *= shape[k];
    }
    w.loops = k;
    for (; k > 0; k--) {
        w.n[k - 1] = box->n[k - 1];
        w.pitch[k - 1] = pitch;
        pitch *= shape[k - 1];
    }
    return w;
}

// Runs [first, first + runs) of the innermost loop that begins at `at`, cut to [begin, end): at
// most a cut run, whole runs, and a cut run.
static enum neb_status emit(const struct walk *w, int64_t at, int64_t runs, int64_t pitch,
                            int64_t begin, int64_t end, pieces_each *each, void *user) {
    int64_t from = begin <= at + w->len - 1 ? 0 : (begin - at - w->len) / pitch + 1;
    int64_t to = end <= at ? 0 : (end - at - 1) / pitch + 1; // runs that begin before end
    to = to < runs ? to : runs;
    while (from < to) {
        int64_t a = at + from * pitch, z = a + w->len, n = 1;
        int64_t first = a > begin ? a : begin, last = z < end ? z : end;
        if (first == a && last == z) { // with the whole runs that follow
            n = (end - z) / pitch + 1;
            n = n < to - from ? n : to - from;
        }
        NEB_TRY(each(user, &(struct pieces_block){first, last - first, n, pitch}));
        from += n;
    }
    return NEB_OK;
}

enum neb_status pieces_walk(int32_t dims, const int64_t *shape, const struct pieces_box *box,
                            int64_t begin, int64_t end, pieces_each *each, void *user) {
    int64_t index[PIECES_DIMS_MAX] = {0};
    if (!pieces_size(dims, box->n) || begin >= end)
        return NEB_OK;
    struct walk w = walk_of(dims, shape, box);
    int32_t inner = w.loops - 1;
    int64_t at = w.at;
    if (w.loops == 0)
        return emit(&w, at, 1, w.len, begin, end, each, user);
    // begins with the first slice that reaches `begin`
    for (int32_t k = 0; k < inner; k++) {
        int64_t skip = (begin - at) / w.pitch[k];
        index[k] = begin <= at ? 0 : skip < w.n[k] ? skip : w.n[k] - 1;
        at += index[k] * w.pitch[k];
    }
    for (;;) {
        if (at >= end)
            return NEB_OK;
        NEB_TRY(emit(&w, at, w.n[inner], w.pitch[inner], begin, end, each, user));
        int32_t k = inner;
        while (k > 0 && index[k - 1] + 1 == w.n[k - 1]) {
            at -= index[k - 1] * w.pitch[k - 1];
            index[--k] = 0;
        }
        if (k == 0)
            return NEB_OK;
        index[k - 1]++;
        at += w.pitch[k - 1];
    }
}

// ---- who sends what -----------------------------------------------------------------------------

enum neb_status pieces_sent(int32_t dims, const struct pieces_boxes *held, int from, int owner,
                            struct pieces_boxes *out) {
    enum neb_status st = NEB_OK;
    for (size_t i = 0; i < held[from].len && st == NEB_OK; i++)
        if (pieces_size(dims, held[from].p[i].n))
            st = pieces_add(out, &held[from].p[i]);
    if (st == NEB_OK)
        st = pieces_subtract(dims, out, &held[owner]);
    for (int r = 0; r < from && st == NEB_OK; r++)
        if (r != owner)
            st = pieces_subtract(dims, out, &held[r]);
    return st;
}
