// SPDX-License-Identifier: Apache-2.0
// Imports a folder into a checkpoint. Everything that can be refused is refused before the first
// tensor is read.
#include "agent/base/log.h"
#include "intra/data/bpe.h"
#include "intra/data/tokenizer_files.h"
#include "intra/hf/hf.h"
#include "intra/hf/names.h"
#include "intra/read/folder.h"
#include "intra/read/json.h"
#include "intra/train/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// Elements checked at once; elements after which pages are given back; largest tokenizer.json.
enum { LOOK = 4096, DROP = 1 << 22, TOKENIZER_JSON_MAX = 64 << 20 };

struct importing {
    const struct intra_hf_import *i;
    struct intra_hf_imported *out;
    struct intra_st *base, *adapter; // adapter NULL: none
    struct intra_hf_names names, adapter_names;
    struct intra_model *m; // layout only
    uint64_t done, total;  // bytes
    struct intra_hf_aside_begin aside;
};

// ---- names and shapes ---------------------------------------------------------------------------

// The tensor in the files that becomes tensor t of the model; NULL: none.
static const struct intra_st_tensor *source(const struct importing *p, const struct intra_tensor *t,
                                            const struct intra_st **file) {
    bool lora = strstr(t->name, ".lora_") != NULL;
    *file = lora ? p->adapter : p->base;
    return intra_hf_names_find(lora ? &p->adapter_names : &p->names, t->name);
}

// A tensor that has no place explains more than one that is missing.
static enum neb_status missing(const struct importing *p, const char *name) {
    bool lora = strstr(name, ".lora_") != NULL;
    const struct intra_hf_names *names = lora ? &p->adapter_names : &p->names;
    const char *dir = lora ? p->i->adapter : p->i->dir,
               *config = lora ? "adapter_config.json" : "config.json";
    for (int32_t i = 0; i < names->n; i++)
        if (!intra_model_find(p->m, names->p[i].name))
            return neb_fail(NEB_ERR_FORMAT,
                            "%s: tensor '%s' is missing, and there is '%s', for which the model "
                            "has no place: check whether %s belongs to these weights",
                            dir, name, names->p[i].t->name, config);
    return neb_fail(NEB_ERR_FORMAT,
                    "%s: tensor '%s' is missing: check whether %s belongs to these weights", dir,
                    name, config);
}

static bool same_shape(const struct intra_st_tensor *f, const struct intra_tensor *t) {
    bool vector = f->rank == 1 && t->rows == 1 && f->shape[0] == (uint64_t)t->cols;
    return vector ||
           (f->rank == 2 && f->shape[0] == (uint64_t)t->rows && f->shape[1] == (uint64_t)t->cols);
}

static enum neb_status check_wanted(struct importing *p) {
    for (int32_t i = 0; i < p->m->n_tensors; i++) {
        const struct intra_tensor *t = &p->m->tensors[i];
        const struct intra_st *file;
        const struct intra_st_tensor *f = source(p, t, &file);
        if (!f)
            return missing(p, t->name);
        if (!same_shape(f, t))
            return neb_fail(
                NEB_ERR_FORMAT,
                "%s: tensor '%s' has %d dimensions (%" PRIu64 ", %" PRIu64
                "), but its config needs (%d, %d); check whether the two belong together",
                intra_st_file(file, f), f->name, f->rank, f->rank > 0 ? f->shape[0] : 0,
                f->rank > 1 ? f->shape[1] : 0, t->rows, t->cols);
        if (f->dtype > INTRA_ST_BF16)
            return intra_st_read(file, f, 0, 0, NULL); // logs why
        p->total += f->bytes;
        p->out->params += intra_tensor_size(t);
    }
    return NEB_OK;
}

// Some folders hold the output weight although it equals the embedding. If the two differ, "tied"
// is wrong.
static enum neb_status check_tied(const struct importing *p) {
    float a[LOOK], b[LOOK];
    const struct intra_st_tensor *head = intra_hf_names_find(&p->names, "lm_head.weight"),
                                 *embed = intra_hf_names_find(&p->names, p->m->embed->name);
    bool same = head->elements == embed->elements;
    for (uint64_t at = 0; same && at < head->elements; at += LOOK) {
        uint64_t n = head->elements - at < LOOK ? head->elements - at : LOOK;
        NEB_TRY(intra_st_read(p->base, head, at, n, a));
        NEB_TRY(intra_st_read(p->base, embed, at, n, b));
        same = memcmp(a, b, n * sizeof *a) == 0;
    }
    intra_st_drop(p->base, head);
    intra_st_drop(p->base, embed);
    return same ? NEB_OK
                : neb_fail(NEB_ERR_FORMAT,
                           "%s: lm_head.weight differs from the embedding, but config.json says "
                           "tie_word_embeddings: true; correct the one that is wrong",
                           p->i->dir);
}

// An extra tensor would change the model's answers, so it is refused.
static enum neb_status check_left_over(const struct importing *p) {
    // old folders hold this table, which follows from rope_theta
    static const char inv_freq[] = ".rotary_emb.inv_freq";
    for (int32_t i = 0; i < p->names.n; i++) {
        const struct intra_hf_named *f = &p->names.p[i];
        size_t n = strlen(f->name), k = sizeof inv_freq - 1;
        const struct intra_tensor *t = intra_model_find(p->m, f->name);
        if ((t && !strstr(t->name, ".lora_")) || (n > k && !strcmp(f->name + n - k, inv_freq)))
            continue;
        if (!strcmp(f->name, "lm_head.weight") && p->m->c.tied)
            NEB_TRY(check_tied(p));
        else
            return neb_fail(NEB_ERR_UNSUPPORTED,
                            "%s: this transformer has no place for tensor '%s'",
                            intra_st_file(p->base, f->t), f->t->name);
    }
    for (int32_t i = 0; i < p->adapter_names.n; i++) {
        const struct intra_hf_named *f = &p->adapter_names.p[i];
        if (!strstr(f->name, ".lora_"))
            return neb_fail(NEB_ERR_UNSUPPORTED,
                            "%s: '%s' is not an adapter: it replaces weights of the model; merge "
                            "the adapter into its model first",
                            p->i->adapter, f->t->name);
        if (!intra_model_find(p->m, f->name))
            return neb_fail(NEB_ERR_UNSUPPORTED,
                            "%s: adapter '%s' is on a layer that target_modules does not name",
                            p->i->adapter, f->t->name);
    }
    return NEB_OK;
}

// ---- values -------------------------------------------------------------------------------------

static enum neb_status check_finite(const struct intra_st *file, const struct intra_st_tensor *f,
                                    uint64_t at, const float *x, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return neb_fail(NEB_ERR_FORMAT,
                            "%s: tensor '%s' holds %g at element %" PRIu64
                            "; this model cannot be used",
                            intra_st_file(file, f), f->name, (double)x[i], at + i);
    return NEB_OK;
}

// F32 goes from the mapped file into the checkpoint unchanged. 16-bit types are converted in a
// buffer of the tensor's size.
static enum neb_status copy_tensor(struct importing *p, struct intra_ckpt_writer *w,
                                   const struct intra_tensor *t) {
    enum neb_status st = NEB_OK;
    const struct intra_st *file;
    const struct intra_st_tensor *f = source(p, t, &file);
    float look[LOOK], *all = NULL;
    if (f->dtype != INTRA_ST_F32 && !(all = malloc(f->elements * sizeof *all)))
        return neb_fail(NEB_ERR_NOMEM, "out of memory for tensor '%s' of %" PRIu64 " elements",
                        f->name, f->elements);
    for (uint64_t at = 0; at < f->elements; at += LOOK) {
        uint64_t n = f->elements - at < LOOK ? f->elements - at : LOOK;
        float *x = all ? all + at : look;
        NEB_TRY_GOTO(intra_st_read(file, f, at, n, x), out);
        NEB_TRY_GOTO(check_finite(file, f, at, x, n), out);
        if (all && at % DROP == 0) // the file's pages are not needed any more
            intra_st_drop(file, f);
    }
    st = intra_ckpt_add(w, t->name, INTRA_F32, (uint64_t)t->rows, (uint64_t)t->cols,
                        all ? all : intra_st_data(file, f));
    intra_st_drop(file, f);
    p->done += f->bytes;
    if (p->i->progress)
        p->i->progress(p->i->user, p->done, p->total);
out:
    free(all);
    return st;
}

static enum neb_status write_checkpoint(struct importing *p) {
    enum neb_status st = NEB_OK;
    char path[NEB_PATH_MAX];
    struct intra_ckpt_writer *w = NULL;
    // This model has no tensors, so only the description is written. The tensors follow one by one.
    const struct intra_model shell = {.c = p->m->c, .trainable = p->m->trainable};
    NEB_TRY(neb_path(path, sizeof path, p->aside.path, "model.ckpt"));
    NEB_TRY(intra_ckpt_create(path, &w));
    NEB_TRY_GOTO(intra_model_save(&shell, w), out);
    for (int32_t i = 0; i < p->m->n_tensors; i++)
        NEB_TRY_GOTO(copy_tensor(p, w, &p->m->tensors[i]), out);
    st = intra_ckpt_commit(w);
out:
    intra_ckpt_writer_destroy(&w);
    return st;
}

// ---- the folder ---------------------------------------------------------------------------------

// transformers adds an adapter that lies beside the weights to them.
static enum neb_status check_own_adapter(const struct intra_hf_import *i) {
    char path[NEB_PATH_MAX];
    bool there;
    NEB_TRY(intra_folder_file(i->dir, "adapter_config.json", path, sizeof path, &there));
    return i->adapter || !there
               ? NEB_OK
               : neb_fail(NEB_ERR_UNSUPPORTED,
                          "%s: transformers would add the adapter in this folder to the model; "
                          "include it with --adapter %s, or move adapter_config.json away to "
                          "import the model without it",
                          path, i->dir);
}

static enum neb_status open_all(struct importing *p) {
    const struct intra_hf_import *i = p->i;
    struct intra_hf_config *c = &p->out->config;
    NEB_TRY(intra_hf_config_read(i->dir, c));
    NEB_TRY(check_own_adapter(i));
    if (i->max_seq && c->window && i->max_seq > c->window)
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "%s: sequences of %d tokens would need sliding-window attention beyond %d; "
                        "import the model for sequences up to that length",
                        i->dir, i->max_seq, c->window);
    if (i->max_seq)
        c->model.max_seq = i->max_seq;
    p->out->trainable = (struct intra_trainable){.mode = INTRA_TRAIN_FULL};
    if (i->adapter)
        NEB_TRY(intra_hf_peft_read(i->adapter, c->model.n_layers, &p->out->trainable));
    NEB_TRY(intra_model_layout(&c->model, &p->out->trainable, &p->m));
    NEB_TRY(intra_st_open_dir(i->dir, "model", &p->base));
    if (i->adapter)
        NEB_TRY(intra_st_open_dir(i->adapter, "adapter_model", &p->adapter));
    NEB_TRY(intra_hf_names_make(p->base, p->m, &p->names));
    NEB_TRY(intra_hf_names_make(p->adapter, p->m, &p->adapter_names));
    NEB_TRY(check_wanted(p));
    return check_left_over(p);
}

// *out: a new reference; NULL: no such file.
static enum neb_status small_json(const char *dir, const char *name, json_t **out) {
    char path[NEB_PATH_MAX];
    bool there;
    *out = NULL;
    NEB_TRY(intra_folder_file(dir, name, path, sizeof path, &there));
    return there ? intra_json_read(path, TOKENIZER_JSON_MAX, out) : NEB_OK;
}

// The tokens with ids of `pieces` or more: their number, and the text of the first.
struct added {
    int32_t pieces, n;
    char first[64];
};

static void count_added(struct added *a, json_int_t id, const char *text) {
    if (id < a->pieces || !text)
        return;
    if (!a->n++)
        snprintf(a->first, sizeof a->first, "%s", text);
}

// Three generations of transformers wrote the added tokens to three files; the first file that has
// any counts.
static enum neb_status list_added(const char *dir, struct added *a) {
    const char *key;
    json_t *v, *o, *list;
    size_t i;
    NEB_TRY(small_json(dir, "tokenizer.json", &o));
    list = json_object_get(o, "added_tokens");
    json_array_foreach(list, i, v) count_added(a, json_integer_value(json_object_get(v, "id")),
                                               json_string_value(json_object_get(v, "content")));
    json_decref(o);
    if (a->n)
        return NEB_OK;
    NEB_TRY(small_json(dir, "tokenizer_config.json", &o));
    list = json_object_get(o, "added_tokens_decoder");
    json_object_foreach(list, key, v)
        count_added(a, strtoll(key, NULL, 10), json_string_value(json_object_get(v, "content")));
    json_decref(o);
    if (a->n)
        return NEB_OK;
    NEB_TRY(small_json(dir, "added_tokens.json", &o));
    json_object_foreach(o, key, v) count_added(a, json_integer_value(v), key);
    json_decref(o);
    return NEB_OK;
}

// Chat templates use such tokens; this program would split their text into many ordinary pieces.
static void warn_of_added(const struct importing *p, int32_t pieces) {
    struct added a = {.pieces = pieces};
    if (list_added(p->i->dir, &a) != NEB_OK)
        neb_warn("%s: cannot tell whether it adds tokens to its tokenizer.model (see above)",
                 p->i->dir);
    if (a.n)
        neb_warn("%s adds %d token%s to its tokenizer.model ('%s'%s): the model knows them, but "
                 "this program tokenises text without them",
                 p->i->dir, a.n, a.n == 1 ? "" : "s", a.first, a.n == 1 ? "" : ", ...");
}

static enum neb_status check_vocabulary(const struct importing *p, const char *file, int32_t pieces,
                                        int32_t eos) {
    if (pieces > p->m->c.vocab)
        return neb_fail(NEB_ERR_FORMAT,
                        "%s has %d pieces, but the model has %d: it is not this model's "
                        "vocabulary; remove it to import only the weights",
                        file, pieces, p->m->c.vocab);
    if (p->out->config.eos >= 0 && eos != p->out->config.eos)
        neb_warn("%s ends documents with id %d, the model's configuration with %d: this program "
                 "uses the former",
                 file, eos, p->out->config.eos);
    return NEB_OK;
}

static enum neb_status copy_sentencepiece(const struct importing *p, const char *file) {
    struct intra_hf_special special;
    enum neb_status st = intra_hf_special_ids(file, &special);
    if (st != NEB_OK)
        return neb_fail(st,
                        "%s is not a SentencePiece vocabulary (see above): remove it to import "
                        "only the weights",
                        file);
    NEB_TRY(intra_tokenizer_copy(file, p->aside.path));
    NEB_TRY(check_vocabulary(p, file, special.vocab, special.eos));
    warn_of_added(p, special.vocab);
    return NEB_OK;
}

// A tokenizer.json of another kind is skipped with a warning; a damaged one is an error.
static enum neb_status copy_bpe(struct importing *p, const char *file) {
    struct intra_bpe *b = NULL;
    enum neb_status st = intra_bpe_open(file, &b);
    if (st == NEB_ERR_UNSUPPORTED) {
        p->out->tokenizer = false;
        neb_warn("%s is of an unsupported kind (see above): the weights are imported, but you must "
                 "tokenise text and build corpora from tokens with another program",
                 file);
        return NEB_OK;
    }
    if (st != NEB_OK)
        return neb_fail(st, "%s cannot be used (see above): remove it to import only the weights",
                        file);
    int32_t pieces = intra_bpe_vocab(b), eos = intra_bpe_eos(b);
    intra_bpe_close(&b);
    NEB_TRY(check_vocabulary(p, file, pieces, eos));
    return intra_tokenizer_copy(file, p->aside.path);
}

static enum neb_status copy_files(struct importing *p) {
    char hf[NEB_PATH_MAX], from[NEB_PATH_MAX];
    NEB_TRY(neb_path(hf, sizeof hf, p->aside.path, "hf"));
    NEB_TRY(neb_fs_mkdirs(hf, 0755));
    NEB_TRY(intra_hf_copy_files(p->i->dir, hf));
    NEB_TRY(intra_tokenizer_in(p->i->dir, from, sizeof from));
    p->out->tokenizer = neb_fs_exists(from);
    if (p->out->tokenizer)
        return intra_tokenizer_is_json(from) ? copy_bpe(p, from) : copy_sentencepiece(p, from);
    neb_warn("%s has neither a tokenizer.model nor a tokenizer.json: the weights are imported, but "
             "you must tokenise text and build corpora from tokens with another program",
             p->i->dir);
    return NEB_OK;
}

enum neb_status intra_hf_import(const struct intra_hf_import *i, struct intra_hf_imported *out) {
    enum neb_status st = NEB_OK;
    struct importing p = {.i = i, .out = out, .aside = {.lock = -1}};
    const char *sources[3] = {i->dir, i->adapter};
    *out = (struct intra_hf_imported){0};
    NEB_TRY_GOTO(open_all(&p), out);
    NEB_TRY_GOTO(intra_hf_aside_begin(i->out, sources, &p.aside), out);
    st = copy_files(&p);
    if (st == NEB_OK)
        st = write_checkpoint(&p);
    if (st == NEB_OK)
        st = intra_hf_aside_commit(&p.aside);
out:
    intra_hf_aside_end(&p.aside, st != NEB_OK);
    intra_hf_names_free(&p.names);
    intra_hf_names_free(&p.adapter_names);
    intra_st_close(&p.adapter);
    intra_st_close(&p.base);
    intra_model_destroy(&p.m);
    return st;
}
