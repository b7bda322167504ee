// SPDX-License-Identifier: Apache-2.0
// Reading. intra_st_open() checks everything about a file, in the order of the format, before any
// tensor is read.
#include "intra/ckpt/safetensors.h"
#include "kernels/half.h"
#include "intra/read/folder.h"
#include "intra/read/json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PREFIX_BYTES = 8 };

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {{"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F64", 8},     {"I64", 8},
              {"U64", 8}, {"I32", 4}, {"U32", 4},  {"I16", 2},     {"U16", 2},
              {"I8", 1},  {"U8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
enum { N_DTYPES = sizeof dtypes / sizeof dtypes[0] };

const char *intra_st_dtype_name(enum intra_st_dtype t) { return dtypes[t].name; }
size_t intra_st_dtype_bytes(enum intra_st_dtype t) { return dtypes[t].bytes; }

struct shard {
    char path[NEB_PATH_MAX];
    struct neb_map map;
};

struct intra_st {
    struct shard *shards; // (n_shards)
    int32_t n_shards;
    struct intra_st_tensor *tensors; // (n) sorted by name
    int32_t n;
};

// ---- one file -----------------------------------------------------------------------------------

__attribute__((format(printf, 3, 4))) static enum neb_status
malformed(const char *path, const char *name, const char *fmt, ...) {
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return neb_fail(NEB_ERR_FORMAT, "%s: %s%s%s%s", path, name ? "tensor '" : "", name ? name : "",
                    name ? "': " : "", text);
}

static enum neb_status header_length(const struct shard *s, uint64_t *n) {
    static const char lfs[] = "version https://git-lfs";
    struct neb_rd r = neb_rd_make(s->map.p, s->map.len);
    *n = neb_rd_u64(&r);
    if (s->map.len >= sizeof lfs - 1 && !memcmp(s->map.p, lfs, sizeof lfs - 1))
        return neb_fail(NEB_ERR_FORMAT,
                        "%s is a Git LFS pointer, not the weights: fetch them with git lfs pull",
                        s->path);
    if (r.bad)
        return malformed(s->path, NULL,
                         "%zu bytes are too few for a safetensors file: fetch it again",
                         s->map.len);
    if (*n > INTRA_ST_HEADER_MAX)
        return neb_fail(NEB_ERR_LIMIT,
                        "%s: the header has %" PRIu64
                        " bytes, the limit is %d: this is not a safetensors file, or it must be "
                        "split into shards",
                        s->path, *n, INTRA_ST_HEADER_MAX);
    if (*n < 2 || *n > s->map.len - PREFIX_BYTES)
        return malformed(
            s->path, NULL,
            "the header has %" PRIu64
            " bytes, but the file has %zu: it was cut short, or is not a safetensors file",
            *n, s->map.len);
    return NEB_OK;
}

static bool get_u64(const json_t *v, uint64_t *out) {
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return false;
    *out = (uint64_t)json_integer_value(v);
    return true;
}

static enum neb_status parse_shape(const struct shard *s, const json_t *shape,
                                   struct intra_st_tensor *t) {
    size_t rank = json_array_size(shape);
    if (!json_is_array(shape) || rank > INTRA_ST_RANK_MAX)
        return malformed(s->path, t->name, "shape is not a list of at most %d sizes",
                         INTRA_ST_RANK_MAX);
    t->rank = (int32_t)rank;
    t->elements = 1;
    for (size_t i = 0; i < rank; i++) {
        if (!get_u64(json_array_get(shape, i), &t->shape[i]))
            return malformed(s->path, t->name, "size %zu of its shape is not a whole number >= 0",
                             i);
        if (t->shape[i] && t->elements > UINT64_MAX / t->shape[i])
            return malformed(s->path, t->name, "its shape overflows 64 bits");
        t->elements *= t->shape[i];
    }
    t->bytes = t->elements * dtypes[t->dtype].bytes;
    return t->elements > UINT64_MAX / dtypes[t->dtype].bytes
               ? malformed(s->path, t->name, "its size overflows 64 bits")
               : NEB_OK;
}

static enum neb_status parse_tensor(const struct shard *s, const char *name, const json_t *v,
                                    uint64_t data_at, struct intra_st_tensor *t) {
    uint64_t begin, end, space = s->map.len - data_at;
    size_t len = strlen(name);
    if (!len || len > INTRA_ST_NAME_MAX)
        return neb_fail(NEB_ERR_LIMIT,
                        "%s: a tensor's name has %zu bytes; 1 to %d are allowed: rename it",
                        s->path, len, INTRA_ST_NAME_MAX);
    memcpy(t->name, name, len + 1);
    const char *dtype = json_string_value(json_object_get(v, "dtype"));
    int d = 0;
    while (dtype && d < N_DTYPES && strcmp(dtypes[d].name, dtype))
        d++;
    if (!dtype || d == N_DTYPES)
        return malformed(s->path, name, "dtype %.20s is unknown", dtype ? dtype : "(none)");
    t->dtype = (enum intra_st_dtype)d;
    NEB_TRY(parse_shape(s, json_object_get(v, "shape"), t));
    const json_t *offsets = json_object_get(v, "data_offsets");
    if (json_array_size(offsets) != 2 || !get_u64(json_array_get(offsets, 0), &begin) ||
        !get_u64(json_array_get(offsets, 1), &end))
        return malformed(s->path, name, "data_offsets is not [begin, end]");
    if (begin > end || end > space)
        return malformed(s->path, name,
                         "data_offsets [%" PRIu64 ", %" PRIu64 ") are outside the %" PRIu64
                         " bytes after the header%s",
                         begin, end, space,
                         begin > end ? "" : ": the file was cut short, fetch it again");
    if (end - begin != t->bytes)
        return malformed(s->path, name,
                         "%" PRIu64 " bytes of data, but dtype and shape need %" PRIu64,
                         end - begin, t->bytes);
    if (begin % dtypes[d].bytes)
        return malformed(s->path, name, "begins at %" PRIu64 ", not a multiple of its %zu bytes",
                         begin, dtypes[d].bytes);
    t->at = data_at + begin;
    return NEB_OK;
}

static int by_place(const void *a, const void *b) {
    const struct intra_st_tensor *x = a, *y = b;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; // an empty one before its neighbour
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct intra_st_tensor *)a)->name,
                  ((const struct intra_st_tensor *)b)->name);
}

// Tensors fill the space from the header to the end of the file: unclaimed bytes could hold
// anything.
static enum neb_status check_places(const struct shard *s, struct intra_st_tensor *t, int32_t n,
                                    uint64_t data_at) {
    uint64_t at = data_at;
    qsort(t, (size_t)n, sizeof *t, by_place);
    for (int32_t i = 0; i < n; i++) {
        if (t[i].at < at)
            return malformed(s->path, t[i].name, "overlaps tensor '%s'", t[i - 1].name);
        if (t[i].at > at)
            return malformed(s->path, t[i].name, "%" PRIu64 " bytes before it belong to no tensor",
                             t[i].at - at);
        at += t[i].bytes;
    }
    if (at != s->map.len)
        return malformed(s->path, NULL, "%" PRIu64 " bytes at the end belong to no tensor",
                         (uint64_t)s->map.len - at);
    qsort(t, (size_t)n, sizeof *t, by_name);
    return NEB_OK;
}

static enum neb_status check_metadata(const struct shard *s, const json_t *v) {
    const char *key;
    json_t *text;
    bool good = json_is_object(v);
    json_object_foreach((json_t *)(uintptr_t)v, key, text) good = good && json_is_string(text);
    return good ? NEB_OK : malformed(s->path, NULL, "__metadata__ is not an object of strings");
}

static enum neb_status parse_root(const struct shard *s, const json_t *root, uint64_t data_at,
                                  struct intra_st_tensor **out, int32_t *n) {
    const char *name;
    json_t *v;
    size_t keys = json_object_size(root);
    if (!json_is_object(root))
        return malformed(s->path, NULL, "the header is not a JSON object");
    if (keys > INTRA_ST_TENSORS_MAX)
        return neb_fail(NEB_ERR_LIMIT, "%s: %zu tensors; the limit is %d", s->path, keys,
                        INTRA_ST_TENSORS_MAX);
    struct intra_st_tensor *t = calloc(keys + 1, sizeof *t);
    if (!t)
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", s->path);
    *out = t;
    json_object_foreach((json_t *)(uintptr_t)root, name, v) {
        if (!strcmp(name, "__metadata__"))
            NEB_TRY(check_metadata(s, v));
        else
            NEB_TRY(parse_tensor(s, name, v, data_at, &t[(*n)++]));
    }
    return check_places(s, t, *n, data_at);
}

// *out (n) sorted by name. The caller frees it and closes the map, also after a failure.
static enum neb_status open_shard(const char *path, struct shard *s, struct intra_st_tensor **out,
                                  int32_t *n) {
    uint64_t len;
    json_error_t e;
    snprintf(s->path, sizeof s->path, "%s", path);
    NEB_TRY(neb_map_open(path, &s->map));
    NEB_TRY(header_length(s, &len));
    if (s->map.p[PREFIX_BYTES] != '{')
        return malformed(s->path, NULL, "the header does not begin with '{'");
    // The format forbids a name that occurs twice; JSON does not.
    json_t *root =
        json_loadb((const char *)s->map.p + PREFIX_BYTES, len, JSON_REJECT_DUPLICATES, &e);
    if (!root)
        return malformed(s->path, NULL, "header, byte %d: %.120s", e.position, e.text);
    enum neb_status st = parse_root(s, root, PREFIX_BYTES + len, out, n);
    json_decref(root);
    return st;
}

enum neb_status intra_st_open(const char *path, struct intra_st **out) {
    enum neb_status st = NEB_ERR_NOMEM;
    struct intra_st *s = calloc(1, sizeof *s);
    if (!s || !(s->shards = calloc(1, sizeof *s->shards))) {
        st = neb_fail(st, "out of memory opening %s", path);
        goto fail;
    }
    s->n_shards = 1;
    NEB_TRY_GOTO(open_shard(path, &s->shards[0], &s->tensors, &s->n), fail);
    *out = s;
    return NEB_OK;
fail:
    intra_st_close(&s);
    return st;
}

void intra_st_close(struct intra_st **sp) {
    struct intra_st *s = *sp;
    for (int32_t i = 0; s && s->shards && i < s->n_shards; i++)
        neb_map_close(&s->shards[i].map);
    if (s) {
        free(s->shards);
        free(s->tensors);
    }
    free(s);
    *sp = NULL;
}

// ---- a folder -----------------------------------------------------------------------------------

// A name from the index becomes a path, so it must not leave the folder.
static bool plain_file_name(const char *name) {
    static const char end[] = ".safetensors";
    size_t n = strlen(name), k = sizeof end - 1;
    return n > k && n <= 255 && name[0] != '.' && !strchr(name, '/') && !strchr(name, '\\') &&
           !strcmp(name + n - k, end);
}

static enum neb_status shard_of(struct intra_st *s, const char *index, const char *dir,
                                const char *file, int32_t *out) {
    char path[NEB_PATH_MAX];
    bool there;
    if (!file || !plain_file_name(file))
        return neb_fail(NEB_ERR_DENIED,
                        "%s: \"%.80s\" is not the plain name of a .safetensors file in this "
                        "folder; do not trust the source of this index",
                        index, file ? file : "(not text)");
    NEB_TRY(neb_path(path, sizeof path, dir, file));
    for (*out = 0; *out < s->n_shards; ++*out)
        if (!strcmp(s->shards[*out].path, path))
            return NEB_OK;
    NEB_TRY(intra_folder_file(dir, file, path, sizeof path, &there));
    if (!there)
        return neb_fail(NEB_ERR_NOT_FOUND, "%s is missing, but %s names it: fetch it", path, index);
    if (s->n_shards == INTRA_ST_SHARDS_MAX)
        return neb_fail(NEB_ERR_LIMIT, "%s: more than %d shards", index, INTRA_ST_SHARDS_MAX);
    struct shard *more = realloc(s->shards, (size_t)(s->n_shards + 1) * sizeof *more);
    if (!more)
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", index);
    s->shards = more;
    more[s->n_shards] = (struct shard){0};
    snprintf(more[s->n_shards].path, sizeof more->path, "%s", path);
    s->n_shards++;
    return NEB_OK;
}

// The entries of the index, by name. Only the name and the shard of each tensor are set.
struct listed {
    struct intra_st_tensor *t; // (n)
    int32_t n;
};

static enum neb_status list_index(struct intra_st *s, const char *index, const char *dir,
                                  const json_t *map, struct listed *out) {
    const char *name;
    json_t *file;
    size_t keys = json_object_size(map);
    if (!json_is_object(map) || !keys || keys > INTRA_ST_TENSORS_MAX)
        return neb_fail(NEB_ERR_FORMAT, "%s: weight_map must list 1 to %d tensors with their files",
                        index, INTRA_ST_TENSORS_MAX);
    if (!(out->t = calloc(keys, sizeof *out->t)))
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", index);
    json_object_foreach((json_t *)(uintptr_t)map, name, file) {
        struct intra_st_tensor *t = &out->t[out->n];
        if (strlen(name) > INTRA_ST_NAME_MAX)
            return neb_fail(NEB_ERR_LIMIT, "%s: a tensor's name is longer than %d bytes", index,
                            INTRA_ST_NAME_MAX);
        memcpy(t->name, name, strlen(name) + 1);
        NEB_TRY(shard_of(s, index, dir, json_string_value(file), &t->shard));
        out->n++;
    }
    return NEB_OK;
}

// Adds all tensors of shard k, also those that the index does not name: transformers loads them
// too.
static enum neb_status add_shard(struct intra_st *s, int32_t k, const char *index) {
    struct intra_st_tensor *t = NULL, *all = NULL;
    int32_t n = 0;
    char path[NEB_PATH_MAX];
    memcpy(path, s->shards[k].path, sizeof path);
    enum neb_status st = open_shard(path, &s->shards[k], &t, &n);
    if (st == NEB_OK && n > INTRA_ST_TENSORS_MAX - s->n)
        st = neb_fail(NEB_ERR_LIMIT, "%s: more than %d tensors", index, INTRA_ST_TENSORS_MAX);
    if (st == NEB_OK && !(all = realloc(s->tensors, (size_t)(s->n + n + 1) * sizeof *all)))
        st = neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", index);
    s->tensors = all ? all : s->tensors;
    for (int32_t i = 0; i < n && st == NEB_OK; i++) {
        t[i].shard = k;
        s->tensors[s->n++] = t[i];
    }
    free(t);
    return st;
}

static enum neb_status check_index(const struct intra_st *s, const char *index,
                                   const struct listed *l) {
    for (int32_t i = 1; i < s->n; i++)
        if (!strcmp(s->tensors[i - 1].name, s->tensors[i].name))
            return neb_fail(NEB_ERR_FORMAT, "%s: tensor '%s' is in %s and in %s", index,
                            s->tensors[i].name, s->shards[s->tensors[i - 1].shard].path,
                            s->shards[s->tensors[i].shard].path);
    for (int32_t i = 0; i < l->n; i++) {
        const struct intra_st_tensor *t = intra_st_find(s, l->t[i].name);
        if (!t || t->shard != l->t[i].shard)
            return neb_fail(NEB_ERR_FORMAT, "%s: tensor '%s' is not in %s, as the index says",
                            index, l->t[i].name, s->shards[l->t[i].shard].path);
    }
    return NEB_OK;
}

static enum neb_status open_index(struct intra_st *s, const char *index, const char *dir) {
    struct listed l = {0};
    json_t *root;
    enum neb_status st = intra_json_read(index, INTRA_ST_HEADER_MAX, &root);
    if (st == NEB_OK)
        st = list_index(s, index, dir, json_object_get(root, "weight_map"), &l);
    for (int32_t k = 0; k < s->n_shards && st == NEB_OK; k++)
        st = add_shard(s, k, index);
    if (s->n)
        qsort(s->tensors, (size_t)s->n, sizeof *s->tensors, by_name);
    if (st == NEB_OK)
        st = check_index(s, index, &l);
    free(l.t);
    json_decref(root);
    return st;
}

enum neb_status intra_st_open_dir(const char *dir, const char *stem, struct intra_st **out) {
    char file[64], path[NEB_PATH_MAX];
    bool there;
    snprintf(file, sizeof file, "%.30s.safetensors", stem);
    NEB_TRY(intra_folder_file(dir, file, path, sizeof path, &there));
    if (there)
        return intra_st_open(path, out);
    snprintf(file, sizeof file, "%.30s.safetensors.index.json", stem);
    NEB_TRY(intra_folder_file(dir, file, path, sizeof path, &there));
    if (!there)
        return neb_fail(NEB_ERR_NOT_FOUND,
                        "%s holds neither %.30s.safetensors nor %s; save weights of other formats "
                        "as safetensors first (with save_pretrained)",
                        dir, stem, file);
    struct intra_st *s = calloc(1, sizeof *s);
    if (!s)
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", dir);
    enum neb_status st = open_index(s, path, dir);
    if (st != NEB_OK)
        intra_st_close(&s);
    *out = s;
    return st;
}

// ---- tensors ------------------------------------------------------------------------------------

int32_t intra_st_count(const struct intra_st *s) { return s->n; }
const struct intra_st_tensor *intra_st_at(const struct intra_st *s, int32_t i) {
    return &s->tensors[i];
}
const char *intra_st_file(const struct intra_st *s, const struct intra_st_tensor *t) {
    return s->shards[t->shard].path;
}

static int name_of(const void *key, const void *t) {
    return strcmp(key, ((const struct intra_st_tensor *)t)->name);
}
const struct intra_st_tensor *intra_st_find(const struct intra_st *s, const char *name) {
    return s->n ? bsearch(name, s->tensors, (size_t)s->n, sizeof *s->tensors, name_of) : NULL;
}

enum neb_status intra_st_read(const struct intra_st *s, const struct intra_st_tensor *t,
                              uint64_t first, uint64_t n, float *dst) {
    NEB_ASSERT(first <= t->elements && n <= t->elements - first);
    if (t->dtype > INTRA_ST_BF16)
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "%s: tensor '%s' is of type %s; F32, F16 and BF16 can be read: save the "
                        "model in one of them (quantised models: dequantise first)",
                        intra_st_file(s, t), t->name, dtypes[t->dtype].name);
    const uint8_t *p = s->shards[t->shard].map.p + t->at + first * dtypes[t->dtype].bytes;
    if (t->dtype == INTRA_ST_F32) {
        if (n)
            memcpy(dst, p, n * sizeof *dst);
        return NEB_OK;
    }
    for (uint64_t i = 0; i < n; i++) {
        uint16_t bits = (uint16_t)(p[2 * i] | p[2 * i + 1] << 8);
        dst[i] = t->dtype == INTRA_ST_F16 ? kern_f32_of_f16(bits) : kern_f32_of_bf16(bits);
    }
    return NEB_OK;
}

const void *intra_st_data(const struct intra_st *s, const struct intra_st_tensor *t) {
    return s->shards[t->shard].map.p + t->at;
}

void intra_st_drop(const struct intra_st *s, const struct intra_st_tensor *t) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), from = t->at / page * page;
    const struct neb_map *map = &s->shards[t->shard].map;
    if (t->bytes)
        madvise((void *)(uintptr_t)(map->p + from), t->at + t->bytes - from, MADV_DONTNEED);
}
