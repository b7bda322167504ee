// SPDX-License-Identifier: Apache-2.0
// nebula import and nebula export: Hugging Face folders in and out.
#include "agent/base/log.h"
#include "agent/cli/cmd_options.h"
#include "agent/job/model_init.h"
#include "agent/proc/seal.h"
#include "agent/show/progress.h"
#include "intra/data/tokenizer_files.h"
#include "intra/hf/hf.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEY_SEAL = 1000 };

struct options {
    const char *seal_key;
    const char *from, *to, *adapter, *like, *tokenizer;
    int32_t max_seq;
    enum intra_st_dtype dtype;
    uint64_t shard_bytes;
    enum intra_hf_what what;
    bool json;
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
    struct intra_hf_import i = {.dir = o->from,
                                .adapter = o->adapter,
                                .out = o->to,
                                .max_seq = o->max_seq,
                                .progress = show_progress,
                                .user = &show};
    enum neb_status st = intra_hf_import(&i, &r);
    end_show(&show);
    NEB_TRY(st);
    const struct intra_model_config *m = &r.config.model;
    double s = neb_seconds(neb_now() - show.start);
    if (o->json) {
        json_t *line = json_pack("{s:s,s:s,s:I,s:i,s:i,s:i,s:i,s:b,s:i,s:f}", "checkpoint", o->to,
                                 "model_type", arch_names[r.config.arch], "params",
                                 (json_int_t)r.params, "vocab", m->vocab, "d_model", m->d_model,
                                 "n_layers", m->n_layers, "max_seq", m->max_seq, "tokenizer",
                                 r.tokenizer, "lora_rank", r.trainable.lora_rank, "seconds", s);
        char *text = line ? json_dumps(line, 0) : NULL;
        puts(text ? text : "{}");
        free(text);
        json_decref(line);
        return NEB_OK;
    }
    printf("%s: %s, %.4g M parameters, %d layers of width %d, vocabulary %d, up to %d tokens\n",
           o->to, arch_names[r.config.arch], (double)r.params / 1e6, m->n_layers, m->d_model,
           m->vocab, m->max_seq);
    if (r.config.window && m->max_seq == r.config.window)
        printf("  beyond %d tokens the model uses a sliding window, which is not supported\n",
               r.config.window);
    if (r.trainable.mode == INTRA_TRAIN_LORA)
        printf("  with LoRA adapters of rank %d\n", r.trainable.lora_rank);
    return NEB_OK;
}

// ---- export -------------------------------------------------------------------------------------

static void folder_of(const char *checkpoint, char out[NEB_PATH_MAX]) {
    const char *slash = strrchr(checkpoint, '/');
    snprintf(out, NEB_PATH_MAX, "%.*s", slash ? (int)(slash - checkpoint) : 1,
             slash ? checkpoint : ".");
}

// The folder that import has left beside the checkpoint file; NULL: there is none.
static const char *like_beside(const char *checkpoint, char out[NEB_PATH_MAX]) {
    char dir[NEB_PATH_MAX], config[NEB_PATH_MAX];
    folder_of(checkpoint, dir);
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
    folder_of(checkpoint, dir);
    NEB_TRY(named ? intra_tokenizer_resolve(named, out, NEB_PATH_MAX)
                  : intra_tokenizer_in(dir, out, NEB_PATH_MAX));
    *found = named || neb_fs_exists(out) ? out : NULL;
    return NEB_OK;
}

static enum neb_status export(const struct options *o) {
    char file[NEB_PATH_MAX], like[NEB_PATH_MAX], tokenizer[NEB_PATH_MAX];
    struct show show = start_show();
    struct intra_hf_exported r;
    enum neb_status st = NEB_OK;
    struct sec_vault *vault = NULL;
    NEB_TRY(agent_seal_option(o->seal_key, &vault));
    NEB_TRY_GOTO(agent_checkpoint_file(sec_vault_of(vault), o->from, file, sizeof file), out);
    struct intra_hf_export e = {.checkpoint = file,
                                .vault = sec_vault_of(vault),
                                .dir = o->to,
                                .like = o->like ? o->like : like_beside(file, like),
                                .what = o->what,
                                .dtype = o->dtype,
                                .shard_bytes = o->shard_bytes,
                                .progress = show_progress,
                                .user = &show};
    NEB_TRY_GOTO(vocabulary_of(o->tokenizer, file, tokenizer, &e.tokenizer), out);
    if (o->what == INTRA_HF_MERGED) NEB_TRY_GOTO(kern_cpu_create(0, &e.K), out);
    st = intra_hf_export(&e, &r);
    kern_destroy(&e.K);
    end_show(&show);
    out : sec_vault_destroy(&vault);
    NEB_TRY(st);
    double s = neb_seconds(neb_now() - show.start);
    if (o->json) printf("{\"params\": %llu, \"files\": %d, \"dtype\": \"%s\", \"seconds\": %.3f}\n",
                        (unsigned long long)r.params, r.shards, intra_st_dtype_name(o->dtype), s);
    else printf("%s: %.4g M parameters as %s in %d file%s\n", o->to, (double)r.params / 1e6,
                intra_st_dtype_name(o->dtype), r.shards, r.shards == 1 ? "" : "s");
    return NEB_OK;
}

// ---- command lines ------------------------------------------------------------------------------

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    struct options *o = state->input;
    switch (key) {
    case 'o': o->to = arg; return 0;
    case 'a': o->adapter = arg; return 0;
    case 'l': o->like = arg; return 0;
    case 'v': o->tokenizer = arg; return 0;
    case 'j': o->json = true; return 0;
    case 'm': o->what = INTRA_HF_MERGED; return 0;
    case 'A': o->what = INTRA_HF_ADAPTER; return 0;
    case KEY_SEAL: o->seal_key = arg; return 0;
    case 's': o->max_seq = (int32_t)agent_option_whole(state, key, arg, 1, 1 << 20); return 0;
    case 'd':
        if (strcmp(arg, "bf16") && strcmp(arg, "fp32"))
            argp_error(state, "--dtype: expected bf16 or fp32");
        o->dtype = arg[0] == 'b' ? INTRA_ST_BF16 : INTRA_ST_F32;
        return 0;
    case 'S': // units as in transformers' max_shard_size
        o->shard_bytes = agent_option_size(state, key, arg, 0, UINT64_C(1) << 60);
        return 0;
    case ARGP_KEY_ARG:
        if (!o->from)
            o->from = arg;
        else if (!o->to)
            o->to = arg;
        else
            argp_usage(state);
        return 0;
    case ARGP_KEY_END:
        if (!o->from || !o->to)
            argp_usage(state);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

int cmd_import(int argc, char **argv) {
    static const struct argp_option table[] = {
        {"out", 'o', "CKPT", 0, "folder to make: the checkpoint (required)", 0},
        {"adapter", 'a', "DIR", 0, "PEFT folder with LoRA adapters to import too", 0},
        {"max-seq", 's', "N", 0, "longest sequence (default: from config.json)", 0},
        {"json", 'j', NULL, 0, "result as a JSON object", 0},
        {0}};
    static const struct argp argp = {
        .options = table,
        .parser = parse_option,
        .args_doc = "DIR --out CKPT",
        .doc = "Makes a checkpoint from a Hugging Face folder: Llama, Mistral, Qwen2, SmolLM in "
               "safetensors.\vStart a job from it with `model: {init: CKPT}`."};
    struct options o = {0};
    if (agent_options_parse(&argp, argc, argv, &o) != 0)
        return AGENT_EXIT_USAGE;
    return agent_exit_of(import(&o));
}

int cmd_export(int argc, char **argv) {
    static const struct argp_option table[] = {
        {"dtype", 'd', "TYPE", 0, "bf16 or fp32 (default)", 0},
        {"shard-size", 'S', "SIZE", 0, "size of the largest file (default 5G; 0: one file)", 0},
        {"like", 'l', "DIR", 0,
         "Hugging Face folder of the same model: its config.json and tokenizer files are copied "
         "(default: CKPT/hf, which import leaves)",
         0},
        {"tokenizer", 'v', "FILE", 0,
         "vocabulary, or a folder with one (default: the one beside the checkpoint)", 0},
        {"merge-lora", 'm', NULL, 0, "add LoRA adapters to the weights they adapt", 0},
        {"seal-key", KEY_SEAL, "FILE", 0, "key of a sealed checkpoint", 0},
        {"adapter", 'A', NULL, 0, "only the LoRA adapters, as a PEFT folder", 0},
        {"json", 'j', NULL, 0, "result as a JSON object", 0},
        {0}};
    static const struct argp argp = {.options = table,
                                     .parser = parse_option,
                                     .args_doc = "CKPT DIR",
                                     .doc = "Makes a Hugging Face folder from a checkpoint."};
    struct options o = {.shard_bytes = 5000000000u};
    if (agent_options_parse(&argp, argc, argv, &o) != 0)
        return AGENT_EXIT_USAGE;
    return agent_exit_of(export(&o));
}
