// SPDX-License-Identifier: Apache-2.0
// Writing, element by element. Sizes are known beforehand, so a shard's header is made when the
// shard begins.
#include "intra/ckpt/safetensors.h"
#include "kernels/half.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 4096 }; // elements converted at a time

struct intra_st_writer {
    char dir[NEB_PATH_MAX], stem[31];
    const struct intra_st_spec *specs; // a copy
    char (*names)[INTRA_ST_NAME_MAX + 1];
    int32_t *shard; // (n) the shard of each tensor
    int32_t n, n_shards;
    enum intra_st_dtype dtype;
    int32_t at;                 // tensor in progress
    uint64_t done, total_bytes; // elements of it; bytes of all tensors
    struct neb_fs_writer *file; // shard in progress; NULL between two
    enum neb_status failed;     // the first failure stays
};

static uint64_t elements(const struct intra_st_spec *s) {
    uint64_t n = 1;
    for (int32_t i = 0; i < s->rank; i++)
        n *= s->shape[i];
    return n;
}

// Greedy, in order: a shard ends when the next tensor does not fit.
static void plan_shards(struct intra_st_writer *w, uint64_t limit) {
    uint64_t used = 0;
    w->n_shards = 1;
    for (int32_t i = 0; i < w->n; i++) {
        uint64_t bytes = elements(&w->specs[i]) * intra_st_dtype_bytes(w->dtype);
        if (limit && used && used + bytes > limit) {
            w->n_shards++;
            used = 0;
        }
        w->shard[i] = w->n_shards - 1;
        used += bytes;
        w->total_bytes += bytes;
    }
}

enum neb_status intra_st_writer_create(const char *dir, const char *stem,
                                       const struct intra_st_spec *specs, int32_t n,
                                       enum intra_st_dtype dtype, uint64_t shard_bytes,
                                       struct intra_st_writer **out) {
    NEB_ASSERT((dtype == INTRA_ST_F32 || dtype == INTRA_ST_BF16) && n > 0 &&
               n <= INTRA_ST_TENSORS_MAX && strlen(stem) < sizeof(*out)->stem);
    struct intra_st_writer *w = calloc(1, sizeof *w);
    struct intra_st_spec *copy = w ? calloc((size_t)n, sizeof *copy) : NULL;
    if (w) {
        w->specs = copy;
        w->names = calloc((size_t)n, sizeof *w->names);
        w->shard = calloc((size_t)n, sizeof *w->shard);
    }
    if (!w || !copy || !w->names || !w->shard) {
        intra_st_writer_destroy(&w);
        return neb_fail(NEB_ERR_NOMEM, "out of memory writing %s", dir);
    }
    snprintf(w->dir, sizeof w->dir, "%s", dir);
    snprintf(w->stem, sizeof w->stem, "%s", stem);
    for (int32_t i = 0; i < n; i++) {
        NEB_ASSERT(specs[i].rank >= 0 && specs[i].rank <= 2 && *specs[i].name &&
                   strlen(specs[i].name) <= INTRA_ST_NAME_MAX);
        memcpy(w->names[i], specs[i].name, strlen(specs[i].name) + 1);
        copy[i] = specs[i];
        copy[i].name = w->names[i];
    }
    w->n = n;
    w->dtype = dtype;
    plan_shards(w, shard_bytes);
    *out = w;
    return NEB_OK;
}

void intra_st_writer_destroy(struct intra_st_writer **wp) {
    struct intra_st_writer *w = *wp;
    if (w) {
        neb_fs_writer_destroy(&w->file);
        free((void *)(uintptr_t)w->specs);
        free(w->names);
        free(w->shard);
    }
    free(w);
    *wp = NULL;
}

int32_t intra_st_writer_shards(const struct intra_st_writer *w) { return w->n_shards; }

static void shard_name(const struct intra_st_writer *w, int32_t shard, char *out, size_t cap) {
    if (w->n_shards == 1)
        snprintf(out, cap, "%s.safetensors", w->stem);
    else
        snprintf(out, cap, "%s-%05" PRId32 "-of-%05" PRId32 ".safetensors", w->stem, shard + 1,
                 w->n_shards);
}

static json_t *header_json(const struct intra_st_writer *w, int32_t shard) {
    uint64_t at = 0;
    // transformers requires it
    json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    for (int32_t i = 0; i < w->n; i++) {
        const struct intra_st_spec *s = &w->specs[i];
        uint64_t bytes = elements(s) * intra_st_dtype_bytes(w->dtype);
        if (w->shard[i] != shard)
            continue;
        json_t *shape = json_array();
        for (int32_t k = 0; k < s->rank; k++)
            json_array_append_new(shape, json_integer((json_int_t)s->shape[k]));
        json_object_set_new(root, s->name,
                            json_pack("{s:s,s:o,s:[I,I]}", "dtype", intra_st_dtype_name(w->dtype),
                                      "shape", shape, "data_offsets", (json_int_t)at,
                                      (json_int_t)(at + bytes)));
        at += bytes;
    }
    return root;
}

// Pads the header with spaces to a multiple of 8 bytes, so that data are aligned in the file.
static enum neb_status begin_shard(struct intra_st_writer *w, int32_t shard) {
    char name[64], path[NEB_PATH_MAX];
    struct neb_buf head = {0};
    shard_name(w, shard, name, sizeof name);
    NEB_TRY(neb_path(path, sizeof path, w->dir, name));
    NEB_TRY(neb_fs_writer_open(path, 0644, &w->file));
    json_t *root = header_json(w, shard);
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (!text)
        return neb_fail(NEB_ERR_NOMEM, "out of memory writing %s", path);
    size_t len = strlen(text), padded = (len + 7) / 8 * 8;
    neb_buf_u64(&head, padded);
    neb_buf_add(&head, text, len);
    neb_buf_add(&head, "       ", padded - len);
    free(text);
    enum neb_status st = neb_buf_check(&head);
    if (st == NEB_OK && padded > INTRA_ST_HEADER_MAX)
        st = neb_fail(NEB_ERR_LIMIT, "%s: the header would have %zu bytes; choose smaller shards",
                      path, padded);
    if (st == NEB_OK)
        st = neb_fs_writer_add(w->file, head.p, head.len);
    neb_buf_free(&head);
    return st;
}

static enum neb_status finish_shard(struct intra_st_writer *w) {
    NEB_TRY(neb_fs_writer_commit(w->file));
    neb_fs_writer_destroy(&w->file);
    return NEB_OK;
}

// Steps over complete tensors, and over tensors without elements; opens and closes shards on the
// way.
static enum neb_status advance(struct intra_st_writer *w) {
    while (w->at < w->n) {
        if (!w->file)
            NEB_TRY(begin_shard(w, w->shard[w->at]));
        if (w->done < elements(&w->specs[w->at]))
            return NEB_OK;
        w->done = 0;
        w->at++;
        if (w->at == w->n || w->shard[w->at] != w->shard[w->at - 1])
            NEB_TRY(finish_shard(w));
    }
    return NEB_OK;
}

static enum neb_status put(struct intra_st_writer *w, const float *src, uint64_t n) {
    uint8_t half[2 * CHUNK];
    if (w->dtype == INTRA_ST_F32)
        return neb_fs_writer_add(w->file, src, n * sizeof *src);
    for (uint64_t at = 0; at < n; at += CHUNK) {
        size_t k = n - at < CHUNK ? n - at : CHUNK;
        for (size_t i = 0; i < k; i++) {
            uint16_t b = kern_bf16_of_f32(src[at + i]);
            half[2 * i] = (uint8_t)b;
            half[2 * i + 1] = (uint8_t)(b >> 8);
        }
        NEB_TRY(neb_fs_writer_add(w->file, half, 2 * k));
    }
    return NEB_OK;
}

enum neb_status intra_st_writer_add(struct intra_st_writer *w, const float *src, uint64_t n) {
    NEB_TRY(w->failed);
    w->failed = advance(w);
    NEB_TRY(w->failed);
    NEB_ASSERT(n == 0 || (w->at < w->n && n <= elements(&w->specs[w->at]) - w->done));
    if (n)
        w->failed = put(w, src, n);
    w->done += n;
    return w->failed;
}

static enum neb_status write_index(const struct intra_st_writer *w) {
    char name[96], path[NEB_PATH_MAX];
    json_t *map = json_object();
    for (int32_t i = 0; i < w->n; i++) {
        shard_name(w, w->shard[i], name, sizeof name);
        json_object_set_new(map, w->specs[i].name, json_string(name));
    }
    json_t *root = json_pack("{s:{s:I},s:o}", "metadata", "total_size", (json_int_t)w->total_bytes,
                             "weight_map", map);
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    snprintf(name, sizeof name, "%s.safetensors.index.json", w->stem);
    enum neb_status st = neb_path(path, sizeof path, w->dir, name);
    if (st == NEB_OK)
        st = text ? neb_fs_write(path, text, strlen(text), 0644)
                  : neb_fail(NEB_ERR_NOMEM, "out of memory writing %s", path);
    free(text);
    json_decref(root);
    return st;
}

enum neb_status intra_st_writer_commit(struct intra_st_writer *w) {
    NEB_TRY(w->failed);
    NEB_TRY(advance(w));
    NEB_ASSERT(w->at == w->n);
    return w->n_shards > 1 ? write_index(w) : NEB_OK;
}
