// SPDX-License-Identifier: Apache-2.0
// nebula import and nebula export: Hugging Face folders in and out.
#include "agent/base/log.h"
#include "agent/cli/cmd_options.h"
#include "agent/job/json.h"
#include "agent/job/model_init.h"
#include "agent/proc/seal.h"
#include "agent/show/progress.h"
#include "intra/data/tokenizer_files.h"
#include "intra/hf/hf.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct options {
    struct agent_options common; // its arguments: from, to
    const char *out, *adapter, *like, *tokenizer, *dtype;
    int max_seq;
    uint64_t shard_bytes;
    bool merge, only_adapter;
};

struct show { // a small folder is done before anything is shown
    bool terminal, shown;
    neb_ns start, last;
};

static void show_progress(void *user, uint64_t done, uint64_t total) {
    struct show *s = user;
    neb_ns now = neb_now();
    char a[32], b[32], left[32];
    if (now - s->last < (s->terminal ? NEB_S / 5 : 5 * NEB_S) || !done)
        return;
    s->last = now;
    s->shown = true;
    agent_human_time(neb_seconds(now - s->start) * (double)(total - done) / (double)done, left,
                     sizeof left);
    fprintf(stderr, "%s%3.0f%%  %s of %s  %s left %s", s->terminal ? "\r" : "",
            100.0 * (double)done / (double)total, agent_human_bytes((double)done, a, sizeof a),
            agent_human_bytes((double)total, b, sizeof b), left, s->terminal ? "" : "\n");
}

static struct show start_show(void) {
    neb_ns now = neb_now();
    return (struct show){.terminal = isatty(STDERR_FILENO), .start = now, .last = now};
}

static void end_show(const struct show *s) {
    if (s->shown && s->terminal)
        fputc('\n', stderr);
}

// ---- import -------------------------------------------------------------------------------------

static const char *const arch_names[] = {"llama", "mistral", "qwen2"};

static enum neb_status import(const struct options *o) {
    struct show show = start_show();
    struct intra_hf_imported r;
    struct intra_hf_import i = {.dir = o->common.args[0],
                                .adapter = o->adapter,
                                .out = o->out,
                                .max_seq = o->max_seq,
                                .progress = show_progress,
                                .user = &show};
    enum neb_status st = intra_hf_import(&i, &r);
    end_show(&show);
    NEB_TRY(st);
    const struct intra_model_config *m = &r.config.model;
    double s = neb_seconds(neb_now() - show.start);
    if (o->common.json) {
        json_t *line = json_pack("{s:s,s:s,s:I,s:i,s:i,s:i,s:i,s:b,s:i,s:f}", "checkpoint", o->out,
                                 "model_type", arch_names[r.config.arch], "params",
                                 (json_int_t)r.params, "vocab", m->vocab, "d_model", m->d_model,
                                 "n_layers", m->n_layers, "max_seq", m->max_seq, "tokenizer",
                                 r.tokenizer, "lora_rank", r.trainable.lora_rank, "seconds", s);
        agent_json_print(line, 0);
        json_decref(line);
        return NEB_OK;
    }
    printf("%s: %s, %.4g M parameters, %d layers of width %d, vocabulary %d, up to %d tokens\n",
           o->out, arch_names[r.config.arch], (double)r.params / 1e6, m->n_layers, m->d_model,
           m->vocab, m->max_seq);
    if (r.config.window && m->max_seq == r.config.window)
        printf("  beyond %d tokens the model uses a sliding window, which is not supported\n",
               r.config.window);
    if (r.trainable.mode == INTRA_TRAIN_LORA)
        printf("  with LoRA adapters of rank %d\n", r.trainable.lora_rank);
    return NEB_OK;
}

// ---- export -------------------------------------------------------------------------------------

// The folder that import has left beside the checkpoint file; NULL: there is none.
static const char *like_beside(const char *checkpoint, char out[NEB_PATH_MAX]) {
    char dir[NEB_PATH_MAX], config[NEB_PATH_MAX];
    neb_path_folder(dir, sizeof dir, checkpoint);
    return neb_path(out, NEB_PATH_MAX, dir, "hf") == NEB_OK &&
                   neb_path(config, sizeof config, out, "config.json") == NEB_OK &&
                   neb_fs_exists(config)
               ? out
               : NULL;
}

// The vocabulary that the user named, or the one beside the checkpoint file; NULL: there is none.
static enum neb_status vocabulary_of(const char *named, const char *checkpoint,
                                     char out[NEB_PATH_MAX], const char **found) {
    char dir[NEB_PATH_MAX];
    neb_path_folder(dir, sizeof dir, checkpoint);
    NEB_TRY(named ? intra_tokenizer_resolve(named, out, NEB_PATH_MAX)
                  : intra_tokenizer_in(dir, out, NEB_PATH_MAX));
    *found = named || neb_fs_exists(out) ? out : NULL;
    return NEB_OK;
}

static enum neb_status export(const struct options *o) {
    char file[NEB_PATH_MAX], like[NEB_PATH_MAX], tokenizer[NEB_PATH_MAX];
    const char *to = o->common.args[1];
    bool bf16 = o->dtype && !strcmp(o->dtype, "bf16");
    struct show show = start_show();
    struct intra_hf_exported r;
    enum neb_status st = NEB_OK;
    struct sec_vault *vault = NULL;
    NEB_TRY(agent_seal_option(o->common.seal_key, &vault));
    NEB_TRY_GOTO(agent_checkpoint_file(sec_vault_of(vault), o->common.args[0], file, sizeof file),
                 out);
    struct intra_hf_export e = {.checkpoint = file,
                                .vault = sec_vault_of(vault),
                                .dir = to,
                                .like = o->like ? o->like : like_beside(file, like),
                                .what = o->only_adapter ? INTRA_HF_ADAPTER
                                        : o->merge      ? INTRA_HF_MERGED
                                                        : INTRA_HF_MODEL,
                                .dtype = bf16 ? INTRA_ST_BF16 : INTRA_ST_F32,
                                .shard_bytes = o->shard_bytes,
                                .progress = show_progress,
                                .user = &show};
    NEB_TRY_GOTO(vocabulary_of(o->tokenizer, file, tokenizer, &e.tokenizer), out);
    if (e.what == INTRA_HF_MERGED) NEB_TRY_GOTO(kern_cpu_create(0, &e.K), out);
    st = intra_hf_export(&e, &r);
    kern_destroy(&e.K);
    end_show(&show);
    out : sec_vault_destroy(&vault);
    NEB_TRY(st);
    double s = neb_seconds(neb_now() - show.start);
    if (o->common.json)
        printf("{\"params\": %llu, \"files\": %d, \"dtype\": \"%s\", \"seconds\": %.3f}\n",
               (unsigned long long)r.params, r.shards, intra_st_dtype_name(e.dtype), s);
    else printf("%s: %.4g M parameters as %s in %d file%s\n", to, (double)r.params / 1e6,
                intra_st_dtype_name(e.dtype), r.shards, r.shards == 1 ? "" : "s");
    return NEB_OK;
}

// ---- command lines ------------------------------------------------------------------------------

static const char *check_import(const void *options) {
    return ((const struct options *)options)->out ? NULL : "give --out CKPT, the folder to make";
}

static int run_import(void *options) { return agent_exit_of(import(options)); }

static const struct agent_option import_table[] = {
    OPT_TEXT("out", 'o', "CKPT", "folder to make: the checkpoint (required)", AT(out)),
    OPT_TEXT("adapter", 'a', "DIR", "PEFT folder with LoRA adapters to import too", AT(adapter)),
    OPT_INT("max-seq", 's', "N", "longest sequence (default: from config.json)", AT(max_seq), 1,
            1 << 20),
    OPT_JSON("result as a JSON object"), OPT_END};

const struct agent_command cmd_import = {
    .name = "import",
    .summary = "make a checkpoint from a Hugging Face folder",
    .options = import_table,
    .arguments = "DIR --out CKPT",
    .doc = "Makes a checkpoint from a Hugging Face folder: Llama, Mistral, Qwen2, SmolLM in "
           "safetensors.\vStart a job from it with `model: {init: CKPT}`.",
    .least = 1,
    .check = check_import,
    .size = sizeof(struct options),
    .run = run_import};

static int run_export(void *options) { return agent_exit_of(export(options)); }

static const struct agent_option export_table[] = {
    OPT_CHECKED("dtype", 'd', "TYPE", "bf16 or fp32 (default)", AT(dtype), agent_option_is_type,
                "bf16 or fp32"),
    // units as in max_shard_size of transformers
    OPT_SIZE("shard-size", 'S', "SIZE", "size of the largest file (default 5G; 0: one file)",
             AT(shard_bytes), 0, UINT64_C(1) << 60),
    OPT_TEXT(
        "like", 'l', "DIR",
        "Hugging Face folder of the same model: its config.json and tokenizer files are copied "
        "(default: CKPT/hf, which import leaves)",
        AT(like)),
    OPT_TEXT("tokenizer", 'v', "FILE",
             "vocabulary, or a folder with one (default: the one beside the checkpoint)",
             AT(tokenizer)),
    OPT_FLAG("merge-lora", 'm', "add LoRA adapters to the weights they adapt", AT(merge)),
    OPT_SEAL_KEY("key of a sealed checkpoint"),
    OPT_FLAG("adapter", 'A', "only the LoRA adapters, as a PEFT folder", AT(only_adapter)),
    OPT_JSON("result as a JSON object"), OPT_END};

const struct agent_command cmd_export = {.name = "export",
                                         .summary = "make a Hugging Face folder from a checkpoint",
                                         .options = export_table,
                                         .arguments = "CKPT DIR",
                                         .doc = "Makes a Hugging Face folder from a checkpoint.",
                                         .least = 2,
                                         .size = sizeof(struct options),
                                         .preset =
                                             &(const struct options){.shard_bytes = 5000000000u},
                                         .run = run_export};
