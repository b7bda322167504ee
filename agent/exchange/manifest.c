// SPDX-License-Identifier: Apache-2.0
#include "agent/exchange/manifest.h"
#include "agent/base/plain.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

// More elements than any cluster holds, and far from the end of 64 bits.
static const int64_t ELEMENTS_MAX = (int64_t)1 << 48;

struct exchange_manifest {
    struct exchange_tensor *tensors; // (n)
    char *names;                     // of all tensors, one after the other
    int32_t n;
};

static int64_t rows_of(const struct exchange_tensor *t) { return t->dims < 2 ? 1 : t->shape[0]; }

static int64_t cols_of(const struct exchange_tensor *t) {
    int64_t cols = 1;
    for (int32_t d = t->dims < 2 ? 0 : 1; d < t->dims; d++)
        cols *= t->shape[d];
    return cols;
}

static int64_t units_of(const struct exchange_tensor *t) {
    int64_t cols = cols_of(t), rows_each = EXCHANGE_UNIT_MAX / cols;
    return rows_each ? (rows_of(t) + rows_each - 1) / rows_each
                     : rows_of(t) * ((cols + EXCHANGE_UNIT_MAX - 1) / EXCHANGE_UNIT_MAX);
}

// ---- creation -----------------------------------------------------------------------------------

static int by_name(const void *x, const void *y) {
    const struct exchange_tensor *a = x, *b = y;
    return strcmp(a->name, b->name); // compares unsigned bytes
}

static enum neb_status check(const struct exchange_tensor *t) {
    size_t len = strnlen(t->name, EXCHANGE_TENSOR_NAME_MAX + 1);
    const char *name = t->name;
    int64_t elements = 1;
    if (len == 0 || len > EXCHANGE_TENSOR_NAME_MAX || !neb_is_plain(name))
        return neb_fail(NEB_ERR_INVALID,
                        "tensor \"%.*s\": a name has 1 to %d bytes of UTF-8 without control "
                        "characters",
                        (int)len, name, EXCHANGE_TENSOR_NAME_MAX);
    if (t->dims < 0 || t->dims > EXCHANGE_DIMS_MAX)
        return neb_fail(NEB_ERR_INVALID, "tensor \"%s\" has %d dimensions; 0 to %d are possible",
                        name, t->dims, EXCHANGE_DIMS_MAX);
    if (t->group < 0 || t->group >= EXCHANGE_GROUPS_MAX)
        return neb_fail(NEB_ERR_INVALID, "tensor \"%s\" is in group %d; a job has at most %d", name,
                        t->group, EXCHANGE_GROUPS_MAX);
    for (int32_t d = 0; d < t->dims; d++) {
        if (t->shape[d] < 1)
            return neb_fail(NEB_ERR_INVALID, "tensor \"%s\": dimension %d has the size %" PRId64,
                            name, d, t->shape[d]);
        if (t->shape[d] > ELEMENTS_MAX / elements)
            return neb_fail(NEB_ERR_INVALID, "tensor \"%s\" has too many elements", name);
        elements *= t->shape[d];
    }
    return NEB_OK;
}

static enum neb_status check_all(const struct exchange_manifest *m) {
    int64_t units = 0, elements = 0;
    for (int32_t i = 0; i < m->n; i++) {
        const struct exchange_tensor *t = &m->tensors[i];
        if (i && strcmp(t[-1].name, t->name) == 0)
            return neb_fail(NEB_ERR_INVALID, "tensor \"%s\" is listed twice", t->name);
        units += t->frozen ? 0 : units_of(t);
        elements += rows_of(t) * cols_of(t);
        if (units > EXCHANGE_UNITS_MAX || elements > ELEMENTS_MAX)
            return neb_fail(NEB_ERR_LIMIT,
                            "the tensors up to \"%s\" have more than %d units or %" PRId64
                            " elements",
                            t->name, EXCHANGE_UNITS_MAX, ELEMENTS_MAX);
    }
    return NEB_OK;
}

static enum neb_status copy(const struct exchange_tensor *tensors, struct exchange_manifest *m) {
    size_t bytes = 0;
    for (int32_t i = 0; i < m->n; i++) {
        NEB_TRY(check(&tensors[i]));
        bytes += strlen(tensors[i].name) + 1;
    }
    m->tensors = calloc((size_t)m->n + 1, sizeof *m->tensors);
    m->names = malloc(bytes + 1);
    if (!m->tensors || !m->names)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %d tensors", m->n);
    char *to = m->names;
    for (int32_t i = 0; i < m->n; i++) {
        size_t len = strlen(tensors[i].name) + 1;
        m->tensors[i] = tensors[i];
        m->tensors[i].name = memcpy(to, tensors[i].name, len);
        to += len;
    }
    qsort(m->tensors, (size_t)m->n, sizeof *m->tensors, by_name);
    return check_all(m);
}

enum neb_status exchange_manifest_create(const struct exchange_tensor *tensors, int32_t n,
                                         struct exchange_manifest **out) {
    if (n < 1 || n > EXCHANGE_TENSORS_MAX)
        return neb_fail(NEB_ERR_LIMIT, "%d tensors: 1 to %d are possible", n, EXCHANGE_TENSORS_MAX);
    struct exchange_manifest *m = calloc(1, sizeof *m);
    if (!m)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %d tensors", n);
    m->n = n;
    enum neb_status st = copy(tensors, m);
    if (st != NEB_OK)
        exchange_manifest_destroy(&m);
    *out = m;
    return st;
}

void exchange_manifest_destroy(struct exchange_manifest **mp) {
    if (*mp) {
        free((*mp)->tensors);
        free((*mp)->names);
        free(*mp);
    }
    *mp = NULL;
}

const struct exchange_tensor *exchange_manifest_tensors(const struct exchange_manifest *m,
                                                        int32_t *n) {
    *n = m->n;
    return m->tensors;
}

// ---- text ---------------------------------------------------------------------------------------

static void put(struct neb_buf *b, const char *text) { neb_buf_add(b, text, strlen(text)); }

static void put_number(struct neb_buf *b, int64_t x) {
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, x);
    put(b, text);
}

// As JSON. A name can contain only these two characters that JSON must escape.
static void put_name(struct neb_buf *b, const char *name) {
    neb_buf_u8(b, '"');
    for (; *name; name++) {
        if (*name == '"' || *name == '\\')
            neb_buf_u8(b, '\\');
        neb_buf_u8(b, (uint8_t)*name);
    }
    neb_buf_u8(b, '"');
}

static void put_digest(struct neb_buf *b, const uint64_t digest[2]) {
    char text[64];
    snprintf(text, sizeof text, ",\"frozen\":\"%016" PRIx64 "%016" PRIx64 "\"", digest[0],
             digest[1]);
    put(b, text);
}

enum neb_status exchange_manifest_write(const struct exchange_manifest *m, struct neb_buf *out) {
    size_t start = out->len;
    put(out, "{\"tensors\":[");
    for (int32_t i = 0; i < m->n; i++) {
        const struct exchange_tensor *t = &m->tensors[i];
        put(out, i ? ",{\"name\":" : "{\"name\":");
        put_name(out, t->name);
        put(out, ",\"shape\":[");
        for (int32_t d = 0; d < t->dims; d++) {
            put(out, d ? "," : "");
            put_number(out, t->shape[d]);
        }
        put(out, "],\"group\":");
        put_number(out, t->group);
        put(out, t->buffer ? ",\"buffer\":true" : "");
        if (t->frozen)
            put_digest(out, t->digest);
        put(out, "}");
    }
    put(out, "]}");
    NEB_TRY(neb_buf_check(out));
    return out->len - start <= EXCHANGE_MANIFEST_MAX
               ? NEB_OK
               : neb_fail(NEB_ERR_LIMIT,
                          "the list of %d tensors has %zu bytes; at most %d are "
                          "possible",
                          m->n, out->len - start, EXCHANGE_MANIFEST_MAX);
}

// Only the text that put_digest writes passes the comparison with the canonical text.
static bool get_digest(const json_t *v, struct exchange_tensor *t) {
    const char *hex = json_string_value(v);
    t->frozen = v != NULL;
    return !v || (hex && strlen(hex) == 32 &&
                  sscanf(hex, "%16" SCNx64 "%16" SCNx64, &t->digest[0], &t->digest[1]) == 2);
}

static bool get_tensor(const json_t *v, struct exchange_tensor *t) {
    const json_t *shape = json_object_get(v, "shape"), *group = json_object_get(v, "group");
    size_t dims = json_array_size(shape);
    t->name = json_string_value(json_object_get(v, "name"));
    t->buffer = json_is_true(json_object_get(v, "buffer"));
    t->dims = (int32_t)dims;
    json_int_t g = json_integer_value(group);
    t->group = (int32_t)g;
    bool good = t->name && json_is_array(shape) && dims <= EXCHANGE_DIMS_MAX &&
                json_is_integer(group) && g >= 0 && g < EXCHANGE_GROUPS_MAX &&
                get_digest(json_object_get(v, "frozen"), t);
    for (size_t d = 0; good && d < dims; d++) {
        good = json_is_integer(json_array_get(shape, d));
        t->shape[d] = json_integer_value(json_array_get(shape, d));
    }
    return good;
}

static enum neb_status from_json(const json_t *root, struct exchange_manifest **out) {
    const json_t *list = json_object_get(root, "tensors");
    size_t n = json_array_size(list);
    if (n < 1 || n > EXCHANGE_TENSORS_MAX)
        return neb_fail(NEB_ERR_FORMAT, "the list of tensors has %zu entries; 1 to %d are possible",
                        n, EXCHANGE_TENSORS_MAX);
    struct exchange_tensor *t = calloc(n, sizeof *t);
    enum neb_status st = t ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory for %zu tensors", n);
    for (size_t i = 0; i < n && st == NEB_OK; i++)
        if (!get_tensor(json_array_get(list, i), &t[i]))
            st = neb_fail(NEB_ERR_FORMAT, "the list of tensors: entry %zu is malformed", i);
    if (st == NEB_OK)
        st = exchange_manifest_create(t, (int32_t)n, out);
    free(t);
    return st;
}

enum neb_status exchange_manifest_read(const void *text, size_t len,
                                       struct exchange_manifest **out) {
    struct neb_buf again = {0};
    *out = NULL;
    if (len > EXCHANGE_MANIFEST_MAX)
        return neb_fail(NEB_ERR_FORMAT, "a list of tensors of %zu bytes; at most %d are possible",
                        len, EXCHANGE_MANIFEST_MAX);
    json_t *root = json_loadb(text, len, 0, NULL);
    enum neb_status st =
        root ? from_json(root, out) : neb_fail(NEB_ERR_FORMAT, "the list of tensors is not JSON");
    json_decref(root);
    if (st == NEB_OK)
        st = exchange_manifest_write(*out, &again);
    if (st == NEB_OK && (again.len != len || memcmp(again.p, text, len) != 0))
        st = neb_fail(NEB_ERR_FORMAT, "the list of tensors is not in canonical form");
    neb_buf_free(&again);
    if (st != NEB_OK)
        exchange_manifest_destroy(out);
    return st;
}

enum neb_status exchange_manifest_sha(const struct exchange_manifest *m,
                                      uint8_t sha[NEB_SHA256_BYTES]) {
    struct neb_buf text = {0};
    enum neb_status st = exchange_manifest_write(m, &text);
    if (st == NEB_OK)
        neb_sha256(text.p, text.len, sha);
    neb_buf_free(&text);
    return st;
}

// ---- comparison ---------------------------------------------------------------------------------

// As "2×768 in group 0".
static void describe(const struct exchange_tensor *t, char *out, size_t cap) {
    size_t at = 0;
    out[0] = '\0';
    for (int32_t d = 0; d < t->dims && at < cap; d++)
        at += (size_t)snprintf(out + at, cap - at, "%s%" PRId64, d ? "×" : "", t->shape[d]);
    if (at < cap)
        at += (size_t)snprintf(out + at, cap - at, "%s in group %d%s", t->dims ? "" : "a scalar",
                               t->group, t->buffer ? ", a buffer" : "");
    if (t->frozen && at < cap)
        snprintf(out + at, cap - at, ", frozen, with digest %016" PRIx64 "%016" PRIx64,
                 t->digest[0], t->digest[1]);
}

static bool same(const struct exchange_tensor *a, const struct exchange_tensor *b) {
    return a->dims == b->dims && a->group == b->group && a->buffer == b->buffer &&
           a->frozen == b->frozen && memcmp(a->digest, b->digest, sizeof a->digest) == 0 &&
           memcmp(a->shape, b->shape, (size_t)a->dims * sizeof *a->shape) == 0;
}

bool exchange_manifest_differ(const struct exchange_manifest *a, const char *cluster_a,
                              const struct exchange_manifest *b, const char *cluster_b, char *text,
                              size_t cap) {
    enum { EACH = 256 };
    char of_a[EACH] = "no such tensor", of_b[EACH] = "no such tensor";
    int32_t i = 0;
    while (i < a->n && i < b->n && strcmp(a->tensors[i].name, b->tensors[i].name) == 0 &&
           same(&a->tensors[i], &b->tensors[i]))
        i++;
    if (i == a->n && i == b->n)
        return false;
    const struct exchange_tensor *t = i < a->n ? &a->tensors[i] : NULL,
                                 *u = i < b->n ? &b->tensors[i] : NULL;
    int order = !t ? 1 : !u ? -1 : strcmp(t->name, u->name);
    if (order <= 0)
        describe(t, of_a, sizeof of_a);
    if (order >= 0)
        describe(u, of_b, sizeof of_b);
    snprintf(text, cap, "tensor \"%s\": cluster %s has %s, cluster %s has %s",
             order <= 0 ? t->name : u->name, cluster_a, of_a, cluster_b, of_b);
    return true;
}

// ---- sizes and units ----------------------------------------------------------------------------

enum neb_status exchange_manifest_sizes(const struct exchange_manifest *m,
                                        struct exchange_group_size *sizes, int32_t groups) {
    memset(sizes, 0, (size_t)groups * sizeof *sizes);
    for (int32_t i = 0; i < m->n; i++) {
        const struct exchange_tensor *t = &m->tensors[i];
        if (t->group >= groups)
            return neb_fail(NEB_ERR_INVALID, "tensor \"%s\" is in group %d, but the job has %d",
                            t->name, t->group, groups);
        sizes[t->group].tensors += !t->frozen;
        sizes[t->group].parameters += t->frozen ? 0 : (uint64_t)(rows_of(t) * cols_of(t));
    }
    return NEB_OK;
}

static bool has_units(const struct exchange_tensor *t, uint64_t never) {
    return !t->frozen && !(never >> t->group & 1);
}

static int32_t cut(const struct exchange_tensor *t, int32_t index, struct agent_unit *out) {
    int64_t rows = rows_of(t), cols = cols_of(t), most = EXCHANGE_UNIT_MAX;
    int64_t tall = cols <= most ? most / cols : 1, wide = cols <= most ? cols : most;
    int32_t n = 0;
    for (int64_t r = 0; r < rows; r += tall)
        for (int64_t c = 0; c < cols; c += wide)
            out[n++] = (struct agent_unit){.tensor = t->name,
                                           .row0 = r,
                                           .col0 = c,
                                           .rows = (uint32_t)(rows - r < tall ? rows - r : tall),
                                           .cols = (uint32_t)(cols - c < wide ? cols - c : wide),
                                           .group = index,
                                           .counter = {-1, -1}};
    return n;
}

enum neb_status exchange_manifest_units(const struct exchange_manifest *m, uint64_t never,
                                        struct agent_unit **out, int32_t *n) {
    int64_t all = 0;
    *n = 0;
    for (int32_t i = 0; i < m->n; i++)
        all += has_units(&m->tensors[i], never) ? units_of(&m->tensors[i]) : 0;
    if (!(*out = calloc((size_t)all + 1, sizeof **out)))
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %" PRId64 " units", all);
    for (int32_t i = 0; i < m->n; i++)
        if (has_units(&m->tensors[i], never))
            *n += cut(&m->tensors[i], i, *out + *n);
    NEB_ASSERT(*n == all);
    return NEB_OK;
}
