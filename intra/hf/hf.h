// SPDX-License-Identifier: Apache-2.0
// Hugging Face folders in and out, tensor by tensor: neither way holds a model in memory, only its
// largest tensor.
//
//     DIR                                         CKPT (a folder)
//     config.json                    import       model.ckpt         parameters in fp32, canonical order (model.h)
//     model*.safetensors (+ index)  ────────►     tokenizer.*        DIR's vocabulary, of a kind that is known (tokenizer_files.h)
//     tokenizer.model, tokenizer.json  ◄────────  hf/                config.json and tokenizer files as they came
//     …                              export
//
// Our tensors carry the names and layouts of Llama and Qwen2 folders, and rotary positions pair (i,
// i + D/2) as theirs do, so values pass unchanged but for their type; tests/golden/test_hf.c holds
// logits that transformers computed. LoRA adapters pass as PEFT folders: adapter_config.json and
// adapter_model.safetensors, names with "base_model.model." in front. Other prefixes that wrappers
// leave are taken off (hf_names.h).
//
// What is written appears whole or not at all: it is made in a folder beside its place and renamed.
#ifndef INTRA_HF_H
#define INTRA_HF_H
#include "intra/ckpt/checkpoint.h"
#include "intra/ckpt/safetensors.h"
#include "intra/hf/config.h"
#include "intra/hf/tokenizer.h"

// Called now and then; done and total in bytes of what is read.
typedef void intra_hf_progress(void *user, uint64_t done, uint64_t total);

struct intra_hf_import {
    const char *dir;     // the folder
    const char *adapter; // PEFT folder to take along, NULL: none
    const char *out;     // CKPT, must not exist
    int32_t max_seq;     // longest sequence; 0: what the folder says
    intra_hf_progress *progress;
    void *user;
};
struct intra_hf_imported {
    struct intra_hf_config config; // model.max_seq is what the checkpoint got
    struct intra_trainable trainable;
    uint64_t params; // adapters included
    bool tokenizer;  // the checkpoint has a vocabulary
};
// NEB_ERR_EXISTS: out is there; NEB_ERR_DENIED, NEB_ERR_INVALID: a file leads out of its folder, or
// is none (folder.h); NEB_ERR_UNSUPPORTED: another kind of model, tensor type or adapter, or an
// adapter in dir that is not to be taken along; NEB_ERR_FORMAT: a file is malformed, a tensor
// missing, of another shape, left over, or holds NaN or infinity.
NEB_MUST_CHECK enum neb_status intra_hf_import(const struct intra_hf_import *i,
                                               struct intra_hf_imported *out);

enum intra_hf_what {
    INTRA_HF_MODEL,   // a checkpoint without adapters
    INTRA_HF_MERGED,  // adapters added to the weights they adapt
    INTRA_HF_ADAPTER, // the adapters alone, as a PEFT folder
};
struct intra_hf_export {
    const char *checkpoint;        // file
    const struct neb_vault *vault; // opens it when it is sealed; NULL: only one in clear
    const char *dir;               // the new folder, must not exist
    // Hugging Face folder whose config.json and tokenizer files to copy, NULL: none
    const char *like;
    const char
        *tokenizer; // vocabulary (tokenizer_files.h) to copy when `like` has none, NULL: none
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
// NEB_ERR_EXISTS: dir is there; NEB_ERR_STATE: `what` does not fit the checkpoint; NEB_ERR_INVALID:
// `like` is another model, or has another vocabulary than `tokenizer`; NEB_ERR_CORRUPT: a section's
// digest does not match.
NEB_MUST_CHECK enum neb_status intra_hf_export(const struct intra_hf_export *e,
                                               struct intra_hf_exported *out);

// Names and shapes of the model in a checkpoint, without its parameters. Ends with
// intra_model_destroy().
NEB_MUST_CHECK enum neb_status intra_hf_layout(const struct intra_ckpt *c,
                                               struct intra_model **out);

// ---- parts of both, for their files and tests ---------------------------------------------------

#define INTRA_HF_PEFT_PREFIX "base_model.model."
// adapter_config.json of a PEFT folder, for a model of so many layers. Anything but plain LoRA on
// the linear layers of all blocks (hf_targets.h) is refused by name. use_rslora is taken into
// alpha.
NEB_MUST_CHECK enum neb_status intra_hf_peft_parse(const char *text, size_t len, const char *file,
                                                   int32_t n_layers, struct intra_trainable *out);
NEB_MUST_CHECK enum neb_status intra_hf_peft_read(const char *dir, int32_t n_layers,
                                                  struct intra_trainable *out);
// New reference; NULL: out of memory. base: where the base model is, or NULL.
json_t *intra_hf_peft_json(const struct intra_trainable *t, const char *base);

// The configuration and tokenizer files that are copied as they are, ended by NULL.
extern const char *const intra_hf_files[];
// Copies those of intra_hf_files that `from` has into `to`, and its
// additional_chat_templates/*.jinja.
NEB_MUST_CHECK enum neb_status intra_hf_copy_files(const char *from, const char *to);
// *same: two small files hold the same bytes. An error where one cannot be read: *same is false
// then.
NEB_MUST_CHECK enum neb_status intra_hf_same_file(const char *a, const char *b, bool *same);
// DIR/NAME, indented; takes the reference, also when it fails.
NEB_MUST_CHECK enum neb_status intra_hf_write_json(const char *dir, const char *name, json_t *take);
// A folder that is made aside, by one process at a time.
struct intra_hf_aside_begin {
    char dir[NEB_PATH_MAX]; // what it becomes
    char path[NEB_PATH_MAX];
    int lock; // -1: not begun
};
// a->path is there, and empty. NEB_ERR_EXISTS: DIR is there, or one of the sources (NULL: none)
// lies in a->path; NEB_ERR_AGAIN: another process makes DIR.
NEB_MUST_CHECK enum neb_status intra_hf_aside_begin(const char *dir, const char *const sources[3],
                                                    struct intra_hf_aside_begin *a);
// a->path becomes DIR, durably. What came to be at DIR meanwhile stays, and is the error.
NEB_MUST_CHECK enum neb_status intra_hf_aside_commit(const struct intra_hf_aside_begin *a);
// The end of it, also where it was not begun. failed: removes what was made.
void intra_hf_aside_end(struct intra_hf_aside_begin *a, bool failed);

#endif
