// SPDX-License-Identifier: Apache-2.0
// nebula generate: texts that a checkpoint continues.
#include "agent/base/log.h"
#include "agent/base/plain.h"
#include "agent/cli/place.h"
#include "intra/data/tokenizer.h"
#include "intra/data/tokenizer_files.h"
#include "intra/train/decode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options {
    struct agent_options common; // its argument: the checkpoint
    struct agent_place place;
    const char *prompt, *prompts, *tokenizer, *ids;
    int tokens, top_k;
    double temperature;
    uint64_t seed;
    bool merge;
};

// Several prompts, one after the other in `tokens`.
struct texts {
    int32_t *tokens, *out; // out: (n, most)
    struct intra_prompt *all;
    int32_t n, most, longest; // longest: tokens of a prompt
};

static enum neb_status add_prompt(struct texts *x, int32_t *ids, size_t n, const char *what) {
    if (!n || n > 1 << 20)
        return neb_fail(NEB_ERR_INVALID, "%s gives %zu tokens; at least one is needed", what, n);
    struct intra_prompt *all = realloc(x->all, ((size_t)x->n + 1) * sizeof *all);
    if (!all)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %d prompts", x->n + 1);
    x->all = all;
    x->all[x->n++] = (struct intra_prompt){.tokens = ids, .n = (int32_t)n};
    x->longest = (int32_t)n > x->longest ? (int32_t)n : x->longest;
    return NEB_OK;
}

static void free_texts(struct texts *x) {
    for (int32_t i = 0; i < x->n; i++)
        free((int32_t *)(uintptr_t)x->all[i].tokens);
    free(x->all);
    free(x->out);
}

static enum neb_status tokenize(struct intra_tokenizer *t, const char *text, const char *what,
                                struct texts *x) {
    int32_t *ids = NULL;
    size_t n = 0;
    NEB_TRY(intra_tokenizer_encode(t, text, strlen(text), &ids, &n));
    enum neb_status st = add_prompt(x, ids, n, what);
    if (st != NEB_OK)
        free(ids);
    return st;
}

// Each line of the file is a prompt.
static enum neb_status read_prompts(struct intra_tokenizer *t, const char *path, struct texts *x) {
    char *line = NULL, what[64];
    size_t cap = 0;
    enum neb_status st = NEB_OK;
    FILE *f = strcmp(path, "-") ? fopen(path, "r") : stdin;
    if (!f)
        return neb_fail_errno("cannot read %s", path);
    for (ssize_t n; st == NEB_OK && (n = getline(&line, &cap, f)) >= 0;) {
        line[n > 0 && line[n - 1] == '\n' ? n - 1 : n] = 0;
        snprintf(what, sizeof what, "line %d of --prompts", x->n + 1);
        st = tokenize(t, line, what, x);
    }
    free(line);
    if (f != stdin)
        fclose(f);
    return st == NEB_OK && !x->n ? neb_fail(NEB_ERR_INVALID, "%s holds no prompt", path) : st;
}

static enum neb_status continue_all(const struct options *o, struct agent_decoder *d,
                                    struct texts *x, int32_t eos) {
    struct intra_decode_config c = {.temperature = (float)o->temperature,
                                    .top_k = o->top_k,
                                    .seed = o->seed,
                                    .eos = eos,
                                    .slides = true};
    int64_t window = (int64_t)x->longest + o->tokens;
    window = window < d->model.max_seq ? window : d->model.max_seq;
    x->out = calloc((size_t)x->n * (size_t)o->tokens + 1, sizeof *x->out);
    if (!x->out)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %d tokens", o->tokens);
    for (int32_t i = 0; i < x->n; i++) {
        x->all[i].out = x->out + (size_t)i * (size_t)o->tokens;
        x->all[i].most = o->tokens;
    }
    NEB_TRY(agent_decoder_make(d, (int32_t)window, x->n, intra_decode_soft_k(&c)));
    return intra_decode(d->group, &c, x->all, x->n);
}

// Tokens in, tokens out: for models whose tokenizer is not supported.
static enum neb_status generate_ids(const struct options *o, struct agent_decoder *d,
                                    struct texts *x) {
    int32_t *ids = NULL;
    size_t n = 0;
    enum neb_status st = agent_ids_parse(o->ids, d->model.vocab, &ids, &n);
    if (st == NEB_OK)
        st = add_prompt(x, ids, n, "--ids");
    if (st != NEB_OK) {
        free(ids);
        return st;
    }
    NEB_TRY(continue_all(o, d, x, -1));
    for (size_t i = 0; i < n; i++)
        printf("%s%d", i ? " " : "", ids[i]);
    for (int32_t i = 0; i < x->all[0].got; i++)
        printf(" %d", x->all[0].out[i]);
    putchar('\n');
    return NEB_OK;
}

static enum neb_status print_text(struct intra_tokenizer *t, const struct intra_prompt *p) {
    char *text = NULL;
    size_t n = (size_t)p->n + (size_t)p->got;
    int32_t *all = calloc(n, sizeof *all);
    if (!all)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %zu tokens", n);
    memcpy(all, p->tokens, (size_t)p->n * sizeof *all);
    memcpy(all + p->n, p->out, (size_t)p->got * sizeof *all);
    enum neb_status st = intra_tokenizer_decode(t, all, n, &text);
    if (st == NEB_OK) {
        neb_plain_text(text, strlen(text), true); // a vocabulary may contain control characters
        puts(text);
    }
    free(text);
    free(all);
    return st;
}

static enum neb_status generate_text(const struct options *o, struct agent_decoder *d,
                                     const char *tokenizer, struct texts *x) {
    struct intra_tokenizer *t = NULL;
    enum neb_status st = NEB_OK;
    if (!o->tokenizer && !neb_fs_exists(tokenizer))
        return neb_fail(NEB_ERR_NOT_FOUND,
                        "there is no %s: name the model's vocabulary, a tokenizer.model or a "
                        "tokenizer.json (--tokenizer), or give token ids (--ids)",
                        tokenizer);
    NEB_TRY_GOTO(intra_tokenizer_open(tokenizer, &t), out);
    NEB_TRY_GOTO(
        o->prompts ? read_prompts(t, o->prompts, x) : tokenize(t, o->prompt, "--prompt", x), out);
    for (int32_t i = 0; i < x->n; i++)
        for (int32_t j = 0; j < x->all[i].n; j++)
            if (x->all[i].tokens[j] >= d->model.vocab) {
                st = neb_fail(NEB_ERR_INVALID, "%s is not the vocabulary of this model", tokenizer);
                goto out;
            }
    NEB_TRY_GOTO(continue_all(o, d, x, intra_tokenizer_eos(t)), out);
    for (int32_t i = 0; i < x->n && st == NEB_OK; i++)
        st = print_text(t, &x->all[i]);
out:
    intra_tokenizer_close(&t);
    return st;
}

static enum neb_status generate(const struct options *o) {
    struct agent_decoder d = {0};
    struct agent_placed place = {0};
    struct texts x = {0};
    char tokenizer[NEB_PATH_MAX] = "";
    enum neb_status st = NEB_OK;
    neb_log_set_level(NEB_LOG_ERROR);
    if (!o->ids)
        NEB_TRY(o->tokenizer ? intra_tokenizer_resolve(o->tokenizer, tokenizer, sizeof tokenizer)
                             : intra_tokenizer_in(o->common.args[0], tokenizer, sizeof tokenizer));
    // first: without a checkpoint, a missing tokenizer is no news
    NEB_TRY_GOTO(agent_place_take(&o->common, &o->place, o->merge, &place), out);
    NEB_TRY_GOTO(agent_decoder_open(&d, &place.o), out);
    if (!agent_decoder_follows(&d))
        st = o->ids ? generate_ids(o, &d, &x) : generate_text(o, &d, tokenizer, &x);
out:
    agent_decoder_close(&d);
    sec_vault_destroy(&place.vault);
    free_texts(&x);
    return st;
}

static const char *check_generate(const void *options) {
    const struct options *o = options;
    return !!o->prompt + !!o->ids + !!o->prompts != 1
               ? "give one of --prompt TEXT, --prompts FILE and --ids IDS"
               : NULL;
}

static int run_generate(void *options) {
    const struct options *o = options;
    enum neb_status st = agent_place_ranks(&o->place);
    return agent_exit_of(st == NEB_OK ? generate(o) : st);
}

static const struct agent_option generate_table[] = {
    OPT_TEXT("prompt", 'p', "TEXT", "text to continue", AT(prompt)),
    OPT_TEXT("prompts", 'f', "FILE",
             "file with a text in each line, all to continue (-: standard input)", AT(prompts)),
    OPT_CHECKED("ids", 'i', "IDS", "token ids to continue; prints ids and needs no tokenizer",
                AT(ids), agent_ids_are, "a list of token ids with blanks between them"),
    OPT_INT("tokens", 'n', "N", "number of tokens to add (default 64)", AT(tokens), 0, 100000),
    OPT_REAL("temperature", 't', "T", "0: always the most likely token (default 0.8)",
             AT(temperature), 0, 1000),
    OPT_INT("top-k", 'k', "K", "choose from the K most likely tokens (default 40; 0: from all)",
            AT(top_k), 0, KERN_SOFT_K_MAX),
    AGENT_PLACE_OPTIONS,
    OPT_WHOLE("seed", 's', "S", "seed of the choice", AT(seed), 0, UINT64_MAX),
    OPT_TEXT("tokenizer", 'v', "FILE", "vocabulary, or a folder with one (default: CHECKPOINT)",
             AT(tokenizer)),
    OPT_FLAG("merge-lora", 'm', "merge adapters first", AT(merge)),
    OPT_SEAL_KEY("key of a sealed checkpoint"),
    OPT_END};

const struct agent_command cmd_generate = {
    .name = "generate",
    .summary = "continue a text with a checkpoint",
    .options = generate_table,
    .arguments = "CHECKPOINT",
    .doc = "Continues a text.",
    .least = 1,
    .missing = "give a checkpoint",
    .check = check_generate,
    .size = sizeof(struct options),
    .preset =
        &(const struct options){
            .tokens = 64, .temperature = 0.8, .top_k = 40, .seed = 1, .place = AGENT_PLACE_HERE},
    .run = run_generate};
