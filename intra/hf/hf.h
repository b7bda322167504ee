// SPDX-License-Identifier: Apache-2.0
// Imports and exports Hugging Face folders tensor by tensor. Neither direction holds a model in
// memory, only its largest tensor.
//
//     DIR                                       CKPT (a folder)
//     config.json                    import     model.ckpt   parameters in fp32, canonical order
//     model*.safetensors (+ index)  ────────►   tokenizer.*  DIR's vocabulary, if supported
//     tokenizer.model, tokenizer.json  ◄──────  hf/          config.json, tokenizer files, copied
//     …                              export
//
// Our tensors have the names and layouts of Llama and Qwen2 folders, and rotary positions pair (i,
// i + D/2) as theirs do, so only the type of values changes. tests/golden/test_hf.c compares with
// logits that transformers computed. LoRA adapters pass as PEFT folders: adapter_config.json and
// adapter_model.safetensors, with names that begin with "base_model.model.". Prefixes that other
// wrappers leave are removed (names.h). Vocabularies: intra/data/tokenizer_files.h.
//
// Output appears as a whole or not at all: it is made in a folder beside its place, then renamed.
#ifndef INTRA_HF_H
#define INTRA_HF_H
#include "intra/ckpt/checkpoint.h"
#include "intra/ckpt/safetensors.h"
#include "intra/hf/config.h"
#include "intra/hf/tokenizer.h"

// Called now and then. done and total: bytes read.
typedef void intra_hf_progress(void *user, uint64_t done, uint64_t total);

struct intra_hf_import {
    const char *dir;     // the source folder
    const char *adapter; // PEFT folder to include; NULL: none
    const char *out;     // CKPT; must not exist
    int32_t max_seq;     // longest sequence; 0: as the folder says
    intra_hf_progress *progress;
    void *user;
};
struct intra_hf_imported {
    struct intra_hf_config config; // model.max_seq: that of the checkpoint
    struct intra_trainable trainable;
    uint64_t params; // including adapters
    bool tokenizer;  // the checkpoint has a vocabulary
};
// NEB_ERR_EXISTS: out exists. NEB_ERR_DENIED, NEB_ERR_INVALID: a path leads out of its folder, or
// is not a file (intra/read/folder.h). NEB_ERR_UNSUPPORTED: another kind of model, tensor type or
// adapter, or dir holds an adapter and i->adapter is NULL. NEB_ERR_FORMAT: a file is malformed, or
// a tensor is missing, superfluous or of another shape, or holds NaN or infinity.
NEB_MUST_CHECK enum neb_status intra_hf_import(const struct intra_hf_import *i,
                                               struct intra_hf_imported *out);

enum intra_hf_what {
    INTRA_HF_MODEL,   // a checkpoint without adapters
    INTRA_HF_MERGED,  // adapters added to the weights that they adapt
    INTRA_HF_ADAPTER, // only the adapters, as a PEFT folder
};
struct intra_hf_export {
    const char *checkpoint; // a file
    // opens a sealed checkpoint; NULL: the checkpoint must be in clear
    const struct neb_vault *vault;
    const char *dir; // the new folder; must not exist
    // A Hugging Face folder whose config.json and tokenizer files are copied; NULL: none.
    const char *like;
    const char *tokenizer; // vocabulary (tokenizer_files.h) to copy if `like` has none; NULL: none
    enum intra_hf_what what;
    enum intra_st_dtype dtype; // INTRA_ST_F32 or INTRA_ST_BF16
    uint64_t shard_bytes;      // 0: one file
    struct kern *K;            // for INTRA_HF_MERGED
    intra_hf_progress *progress;
    void *user;
};
struct intra_hf_exported {
    uint64_t params;
    int32_t shards;
};
// NEB_ERR_EXISTS: dir exists. NEB_ERR_STATE: `what` does not fit the checkpoint. NEB_ERR_INVALID:
// `like` is another model, or its vocabulary differs from `tokenizer`. NEB_ERR_CORRUPT: the digest
// of a section does not match.
NEB_MUST_CHECK enum neb_status intra_hf_export(const struct intra_hf_export *e,
                                               struct intra_hf_exported *out);

// Names and shapes of the model in a checkpoint, without its parameters. Free it with
// intra_model_destroy().
NEB_MUST_CHECK enum neb_status intra_hf_layout(const struct intra_ckpt *c,
                                               struct intra_model **out);

// ---- parts of import and export, for their files and tests --------------------------------------

#define INTRA_HF_PEFT_PREFIX "base_model.model."
// Parses adapter_config.json of a PEFT folder, for a model of n_layers layers. Anything but plain
// LoRA on the linear layers of all blocks (targets.h) is refused by name. use_rslora becomes part
// of alpha.
NEB_MUST_CHECK enum neb_status intra_hf_peft_parse(const char *text, size_t len, const char *file,
                                                   int32_t n_layers, struct intra_trainable *out);
NEB_MUST_CHECK enum neb_status intra_hf_peft_read(const char *dir, int32_t n_layers,
                                                  struct intra_trainable *out);
// Returns a new reference; NULL: out of memory. base: path of the base model, or NULL.
json_t *intra_hf_peft_json(const struct intra_trainable *t, const char *base);

// Copies the configuration and tokenizer files that `from` has into `to`, unchanged.
NEB_MUST_CHECK enum neb_status intra_hf_copy_files(const char *from, const char *to);
// *same: both files (small) hold the same bytes. An error if one cannot be read; *same is false
// then.
NEB_MUST_CHECK enum neb_status intra_hf_same_file(const char *a, const char *b, bool *same);
// Writes DIR/NAME, indented. Takes the reference, also on failure.
NEB_MUST_CHECK enum neb_status intra_hf_write_json(const char *dir, const char *name, json_t *take);
// A folder that one process makes beside its final place.
struct intra_hf_aside_begin {
    char dir[NEB_PATH_MAX]; // its final path
    char path[NEB_PATH_MAX];
    int lock; // -1: not begun
};
// Makes a->path, empty. NEB_ERR_EXISTS: DIR exists, or one of the sources (NULL: none) lies in
// a->path. NEB_ERR_AGAIN: another process is making DIR.
NEB_MUST_CHECK enum neb_status intra_hf_aside_begin(const char *dir, const char *const sources[3],
                                                    struct intra_hf_aside_begin *a);
// Renames a->path to DIR, durably. If something appeared at DIR meanwhile, it stays, and the call
// fails.
NEB_MUST_CHECK enum neb_status intra_hf_aside_commit(const struct intra_hf_aside_begin *a);
// Ends the work, also if it did not begin. failed: removes a->path.
void intra_hf_aside_end(struct intra_hf_aside_begin *a, bool failed);

#endif
