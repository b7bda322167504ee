// SPDX-License-Identifier: Apache-2.0
// Exports a checkpoint into a folder. Sections pass through in pieces and are hashed as they are
// read, so a damaged checkpoint is noticed without reading it twice.
#include "agent/base/log.h"
#include "agent/base/sha256.h"
#include "intra/data/bpe.h"
#include "intra/data/tokenizer_files.h"
#include "intra/hf/hf.h"
#include "intra/read/json.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PIECE = 1 << 18 }; // elements

struct exporting {
    const struct intra_hf_export *e;
    struct intra_ckpt *ckpt;
    struct intra_model *m; // layout only
    struct intra_hf_config config;
    const struct intra_tensor **list; // (n) what is written, in order
    int32_t n;
    struct intra_st_writer *w;
    uint64_t done, total; // bytes of the checkpoint
    struct intra_hf_aside_begin aside;
};

static bool is_adapter(const struct intra_tensor *t) { return strstr(t->name, ".lora_") != NULL; }

// ---- what is written ----------------------------------------------------------------------------

static enum neb_status check_what(const struct exporting *x) {
    bool lora = x->m->trainable.mode == INTRA_TRAIN_LORA;
    if (!intra_model_continues(x->m))
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "%s is the generator of mode rtd, which does not predict the next token; "
                        "nebula eval --task probe measures its hidden states",
                        x->e->checkpoint);
    if (lora && x->e->what == INTRA_HF_MODEL)
        return neb_fail(
            NEB_ERR_STATE,
            "%s holds LoRA adapters: export them merged into the model (--merge-lora), or "
            "alone as a PEFT folder (--adapter)",
            x->e->checkpoint);
    if (!lora && x->e->what != INTRA_HF_MODEL)
        return neb_fail(NEB_ERR_STATE, "%s holds no LoRA adapters: export the model as it is",
                        x->e->checkpoint);
    return NEB_OK;
}

static enum neb_status make_list(struct exporting *x) {
    x->list = calloc((size_t)x->m->n_tensors, sizeof *x->list);
    if (!x->list)
        return neb_fail(NEB_ERR_NOMEM, "out of memory exporting %s", x->e->checkpoint);
    for (int32_t i = 0; i < x->m->n_tensors; i++) {
        const struct intra_tensor *t = &x->m->tensors[i];
        const struct intra_ckpt_section *s = intra_ckpt_find(x->ckpt, t->name);
        if (!s || s->dtype != INTRA_F32 || s->rows != (uint64_t)t->rows ||
            s->cols != (uint64_t)t->cols)
            return neb_fail(NEB_ERR_FORMAT, "%s: %s is missing or has another shape",
                            x->e->checkpoint, t->name);
        if (is_adapter(t) == (x->e->what == INTRA_HF_ADAPTER)) {
            x->list[x->n++] = t;
            x->total += s->bytes;
        }
    }
    return NEB_OK;
}

// a bias or gain: one dimension in their files
static bool is_vector(const struct intra_tensor *t) {
    size_t n = strlen(t->name);
    return (n > 5 && !strcmp(t->name + n - 5, ".bias")) ||
           (n > 11 && !strcmp(t->name + n - 11, "norm.weight"));
}

static enum neb_status open_writer(struct exporting *x) {
    char(*names)[INTRA_ST_NAME_MAX + 1] = calloc((size_t)x->n, sizeof *names);
    struct intra_st_spec *specs = calloc((size_t)x->n, sizeof *specs);
    bool adapter = x->e->what == INTRA_HF_ADAPTER;
    enum neb_status st = NEB_OK;
    if (!names || !specs)
        st = neb_fail(NEB_ERR_NOMEM, "out of memory exporting %s", x->e->checkpoint);
    for (int32_t i = 0; i < x->n && st == NEB_OK; i++) {
        const struct intra_tensor *t = x->list[i];
        snprintf(names[i], sizeof names[i], "%s%s", adapter ? INTRA_HF_PEFT_PREFIX : "", t->name);
        specs[i] = (struct intra_st_spec){
            names[i], is_vector(t) ? 1 : 2, {(uint64_t)t->rows, (uint64_t)t->cols}};
        if (specs[i].rank == 1)
            specs[i].shape[0] = (uint64_t)t->cols;
    }
    if (st == NEB_OK)
        st = intra_st_writer_create(x->aside.path, adapter ? "adapter_model" : "model", specs, x->n,
                                    x->e->dtype, adapter ? 0 : x->e->shard_bytes, &x->w);
    free(specs);
    free(names);
    return st;
}

// ---- values -------------------------------------------------------------------------------------

// Gives back the pages of a mapped file that were read.
static void drop_pages(const void *p, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)p, from = at / page * page;
    madvise((void *)from, at + bytes - from, MADV_DONTNEED);
}

static const struct intra_tensor *adapter_of(const struct exporting *x,
                                             const struct intra_tensor *t, const char *which) {
    char name[128];
    size_t n = strlen(t->name), k = strlen(".weight");
    if (n < k || strcmp(t->name + n - k, ".weight"))
        return NULL;
    snprintf(name, sizeof name, "%.*s.lora_%s.weight", (int)(n - k), t->name, which);
    return intra_model_find(x->m, name);
}

// Checks the digest of a small section that is used whole (adapters).
static enum neb_status verified(const struct exporting *x, const struct intra_tensor *t,
                                const float **out) {
    uint8_t got[32];
    const struct intra_ckpt_section *s = intra_ckpt_find(x->ckpt, t->name);
    if (!(*out = intra_ckpt_data(x->ckpt, s)))
        return NEB_ERR_IO;
    neb_sha256(*out, s->bytes, got);
    return memcmp(got, s->sha256, sizeof got) ? neb_fail(NEB_ERR_CORRUPT,
                                                         "checkpoint %s: section '%s': the digest "
                                                         "does not match; use an older checkpoint",
                                                         x->e->checkpoint, s->name)
                                              : NEB_OK;
}

// Turns rows [row, row + rows) of W, in buf, into those of W + alpha / r * B A.
static void merge_rows(const struct exporting *x, const struct intra_tensor *t, const float *a,
                       const float *b, int32_t row, int32_t rows, float *buf) {
    struct kern *K = x->e->K;
    int rank = x->m->trainable.lora_rank;
    K->ops->gemm(K, &(struct kern_gemm){.m = rows,
                                        .n = t->cols,
                                        .k = rank,
                                        .alpha = x->m->trainable.lora_alpha / (float)rank,
                                        .a = b + (size_t)row * (size_t)rank,
                                        .lda = rank,
                                        .b = a,
                                        .ldb = t->cols,
                                        .beta = 1,
                                        .c = buf,
                                        .ldc = t->cols});
}

static enum neb_status copy_tensor(struct exporting *x, const struct intra_tensor *t) {
    enum neb_status st = NEB_OK;
    const struct intra_ckpt_section *s = intra_ckpt_find(x->ckpt, t->name);
    const struct intra_tensor *ta = adapter_of(x, t, "A"), *tb = adapter_of(x, t, "B");
    // of a sealed file only one piece at a time is in memory
    bool mapped = !intra_ckpt_sealed(x->ckpt);
    const float *w = mapped ? intra_ckpt_data(x->ckpt, s) : NULL, *a = NULL, *b = NULL;
    int32_t step = PIECE / t->cols > 0 ? PIECE / t->cols : 1;
    struct neb_sha256 *sha = NULL;
    float *buf = NULL;
    uint8_t got[32];
    NEB_TRY_GOTO(neb_sha256_create(&sha), out);
    if (ta) {
        NEB_TRY_GOTO(verified(x, ta, &a), out);
        NEB_TRY_GOTO(verified(x, tb, &b), out);
    }
    if ((ta || !mapped) && !(buf = malloc(sizeof *buf * (size_t)step * (size_t)t->cols))) {
        st = neb_fail(NEB_ERR_NOMEM, "out of memory exporting %s", t->name);
        goto out;
    }
    for (int32_t row = 0; row < t->rows; row += step) {
        int32_t rows = t->rows - row < step ? t->rows - row : step;
        size_t at = (size_t)row * (size_t)t->cols, n = (size_t)rows * (size_t)t->cols;
        if (buf)
            NEB_TRY_GOTO(intra_ckpt_range(x->ckpt, s, at * sizeof *buf, buf, n * sizeof *buf), out);
        neb_sha256_add(sha, buf ? buf : w + at, n * sizeof *w);
        if (ta)
            merge_rows(x, t, a, b, row, rows, buf);
        NEB_TRY_GOTO(intra_st_writer_add(x->w, buf ? buf : w + at, n), out);
        if (mapped)
            drop_pages(w + at, n * sizeof *w);
    }
    neb_sha256_finish(sha, got);
    if (memcmp(got, s->sha256, sizeof got))
        st = neb_fail(
            NEB_ERR_CORRUPT,
            "checkpoint %s: section '%s': the digest does not match; use an older checkpoint",
            x->e->checkpoint, s->name);
    x->done += s->bytes;
    if (x->e->progress)
        x->e->progress(x->e->user, x->done, x->total);
out:
    free(buf);
    neb_sha256_destroy(&sha);
    return st;
}

// ---- the files beside the weights ---------------------------------------------------------------

// Makes transformers 5 read our SentencePiece vocabulary with TokenizersBackend. Its LlamaTokenizer
// rebuilds the vocabulary as BPE, and its SentencePieceBackend does not join bytes.
// TokenizersBackend gives other ids only for text that spells a special token or (unigram) the
// piece of a byte.
static enum neb_status write_sentencepiece_config(const struct exporting *x,
                                                  const struct intra_hf_special *ids) {
    json_t *o =
        json_pack("{s:s,s:b,s:b,s:b,s:i}", "tokenizer_class", "TokenizersBackend", "add_bos_token",
                  0, "add_eos_token", 0, "legacy", 1, "model_max_length", x->m->c.max_seq);
    const struct {
        const char *key, *text;
    } tokens[] = {
        {"bos_token", ids->bos_text}, {"eos_token", ids->eos_text}, {"unk_token", ids->unk_text}};
    for (size_t i = 0; i < 3; i++)
        json_object_set_new(o, tokens[i].key,
                            *tokens[i].text ? json_string(tokens[i].text) : json_null());
    if (x->config.arch == INTRA_HF_QWEN2)
        neb_warn("transformers' AutoTokenizer reads every qwen2 folder as byte-level BPE, but this "
                 "vocabulary is SentencePiece: load it with "
                 "transformers.TokenizersBackend.from_pretrained");
    return intra_hf_write_json(x->aside.path, "tokenizer_config.json", o);
}

// A tokenizer.json is in their format: it is copied, with its tokenizer_config.json.
static enum neb_status special_of(const char *file, bool json, struct intra_hf_special *ids) {
    struct intra_bpe *b = NULL;
    if (!json)
        return intra_hf_special_ids(file, ids);
    NEB_TRY(intra_bpe_open(file, &b));
    ids->vocab = intra_bpe_vocab(b);
    ids->bos = intra_bpe_bos(b);
    ids->eos = intra_bpe_eos(b);
    intra_bpe_close(&b);
    return NEB_OK;
}

static enum neb_status write_tokenizer(const struct exporting *x, struct intra_hf_special *ids) {
    const char *file = x->e->tokenizer;
    *ids = (struct intra_hf_special){.bos = -1, .eos = -1, .unk = -1, .pad = -1};
    if (!file) {
        neb_warn("there is no tokenizer.model and no tokenizer.json: the folder holds only the "
                 "model, and its users must get the vocabulary elsewhere");
        return NEB_OK;
    }
    bool json = intra_tokenizer_is_json(file);
    NEB_TRY(special_of(file, json, ids));
    if (ids->vocab > x->m->c.vocab)
        return neb_fail(NEB_ERR_INVALID,
                        "%s has %d pieces, but the model has %d: it is not the model's vocabulary",
                        file, ids->vocab, x->m->c.vocab);
    NEB_TRY(intra_tokenizer_copy(file, x->aside.path));
    return json ? NEB_OK : write_sentencepiece_config(x, ids);
}

static bool has_tokenizer(const struct exporting *x) {
    static const char *const names[] = {"tokenizer.model", "tokenizer.json", "vocab.json"};
    char path[NEB_PATH_MAX];
    bool found = false;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        found = found || (neb_path(path, sizeof path, x->aside.path, names[i]) == NEB_OK &&
                          neb_fs_exists(path));
    return found;
}

// A model must not be exported with a vocabulary that it was not trained on.
static enum neb_status check_tokenizer(const struct exporting *x) {
    char theirs[NEB_PATH_MAX];
    bool same = true;
    if (!x->e->tokenizer)
        return NEB_OK;
    const char *name =
        intra_tokenizer_is_json(x->e->tokenizer) ? INTRA_TOKENIZER_JSON : INTRA_TOKENIZER_MODEL;
    NEB_TRY(neb_path(theirs, sizeof theirs, x->aside.path, name));
    if (neb_fs_exists(theirs))
        NEB_TRY(intra_hf_same_file(x->e->tokenizer, theirs, &same));
    return same ? NEB_OK
                : neb_fail(NEB_ERR_INVALID,
                           "%s has another %s than %s. The model was trained with the latter: "
                           "export without that folder",
                           x->e->like, name, x->e->tokenizer);
}

// Copies config.json of `like` and changes only the number type.
static enum neb_status copy_config(const struct exporting *x, const char *from, const char *dtype) {
    static const char *const keys[] = {"dtype", "torch_dtype"};
    char to[NEB_PATH_MAX], value[32];
    struct neb_buf text = {0}, next = {0};
    enum neb_status st = NEB_OK;
    json_t *root = NULL;
    bool said = false;
    snprintf(value, sizeof value, "\"%s\"", dtype);
    NEB_TRY_GOTO(neb_path(to, sizeof to, x->aside.path, "config.json"), out);
    NEB_TRY_GOTO(neb_fs_read(from, INTRA_HF_JSON_MAX, &text), out);
    NEB_TRY_GOTO(intra_json_parse((const char *)text.p, text.len, from, &root), out);
    for (int i = 0; i < 2; i++) {
        if (!json_object_get(root, keys[i]) && (i == 0 || said))
            continue;
        NEB_TRY_GOTO(intra_json_set((const char *)text.p, text.len, from, keys[i], value, &next),
                     out);
        struct neb_buf was = text;
        text = next;
        next = was;
        said = true;
    }
    st = neb_fs_write(to, text.p, text.len, 0644);
out:
    json_decref(root);
    neb_buf_free(&text);
    neb_buf_free(&next);
    return st;
}

static enum neb_status write_config_like(struct exporting *x, const char *dtype) {
    char path[NEB_PATH_MAX];
    NEB_TRY(intra_hf_config_read(x->e->like, &x->config));
    NEB_TRY(neb_path(path, sizeof path, x->e->like, "config.json"));
    NEB_TRY(intra_hf_config_same(&x->config, &x->m->c, path));
    NEB_TRY(intra_hf_copy_files(x->e->like, x->aside.path));
    NEB_TRY(check_tokenizer(x));
    if (!has_tokenizer(x)) {
        struct intra_hf_special ids;
        NEB_TRY(write_tokenizer(x, &ids));
    }
    return copy_config(x, path, dtype);
}

// The folder of the adapter's base model, if it holds the weights, for users of the adapter.
static const char *base_of(const struct exporting *x, char out[NEB_PATH_MAX]) {
    static const char *const weights[] = {"model.safetensors", "model.safetensors.index.json"};
    for (size_t i = 0; x->e->like && i < sizeof weights / sizeof *weights; i++)
        if (neb_path(out, NEB_PATH_MAX, x->e->like, weights[i]) == NEB_OK && neb_fs_exists(out)) {
            snprintf(out, NEB_PATH_MAX, "%s", x->e->like);
            return neb_path_absolute(out, NEB_PATH_MAX, "--like") == NEB_OK ? out : NULL;
        }
    return NULL;
}

static enum neb_status write_config(struct exporting *x) {
    char base[NEB_PATH_MAX];
    const char *dtype = x->e->dtype == INTRA_ST_F32 ? "float32" : "bfloat16";
    struct intra_hf_special ids;
    if (x->e->what == INTRA_HF_ADAPTER)
        return intra_hf_write_json(x->aside.path, "adapter_config.json",
                                   intra_hf_peft_json(&x->m->trainable, base_of(x, base)));
    if (x->e->like)
        return write_config_like(x, dtype);
    NEB_TRY(intra_hf_config_of_model(&x->m->c, &x->config));
    NEB_TRY(write_tokenizer(x, &ids));
    x->config.bos = ids.bos;
    x->config.eos = ids.eos;
    return intra_hf_write_json(x->aside.path, "config.json",
                               intra_hf_config_json(&x->config, dtype));
}

// ---- the folder ---------------------------------------------------------------------------------

static enum neb_status write_folder(struct exporting *x) {
    NEB_TRY(write_config(x));
    NEB_TRY(open_writer(x));
    for (int32_t i = 0; i < x->n; i++)
        NEB_TRY(copy_tensor(x, x->list[i]));
    NEB_TRY(intra_st_writer_commit(x->w));
    return intra_hf_aside_commit(&x->aside);
}

enum neb_status intra_hf_export(const struct intra_hf_export *e, struct intra_hf_exported *out) {
    enum neb_status st = NEB_OK;
    struct exporting x = {.e = e, .aside = {.lock = -1}};
    const char *sources[3] = {e->checkpoint, e->like, e->tokenizer};
    *out = (struct intra_hf_exported){0};
    NEB_TRY_GOTO(intra_ckpt_open_in(e->vault, e->checkpoint, false, &x.ckpt), out);
    NEB_TRY_GOTO(intra_hf_layout(x.ckpt, &x.m), out);
    NEB_TRY_GOTO(check_what(&x), out);
    NEB_TRY_GOTO(make_list(&x), out);
    NEB_TRY_GOTO(intra_hf_aside_begin(e->dir, sources, &x.aside), out);
    st = write_folder(&x);
    for (int32_t i = 0; i < x.n; i++)
        out->params += intra_tensor_size(x.list[i]);
    out->shards = x.w ? intra_st_writer_shards(x.w) : 0;
out:
    intra_st_writer_destroy(&x.w);
    intra_hf_aside_end(&x.aside, st != NEB_OK);
    free(x.list);
    intra_model_destroy(&x.m);
    intra_ckpt_close(&x.ckpt);
    return st;
}
