// SPDX-License-Identifier: Apache-2.0
// nebula eval and nebula generate: what a checkpoint has learned.
#include "agent/base/log.h"
#include "agent/base/number.h"
#include "agent/base/plain.h"
#include "agent/cli/cmd_options.h"
#include "agent/job/json.h"
#include "agent/job/model_init.h"
#include "agent/proc/seal.h"
#include "agent/show/corpus_note.h"
#include "agent/train/eval_translate.h"
#include "intra/data/data.h"
#include "intra/data/tokenizer.h"
#include "intra/data/tokenizer_files.h"
#include "intra/model/translate.h"
#include "intra/train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EVAL_SEQ_MAX = 4096, KEY_SEAL = 1000 };

struct options {
    const char *checkpoint, *corpus, *prompt, *tokenizer, *ids, *task, *out, *seal_key;
    int beam, windows, tokens, top_k, threads, seq_len;
    float temperature;
    uint64_t seed;
    bool json, merge, logits;
};

static enum neb_status load_model(const struct options *o, const struct neb_vault *vault,
                                  struct intra_model **m) {
    char file[NEB_PATH_MAX];
    struct intra_ckpt *c = NULL;
    NEB_TRY(agent_checkpoint_file(vault, o->checkpoint, file, sizeof file));
    NEB_TRY(intra_ckpt_open_in(vault, file, true, &c));
    enum neb_status st = intra_model_load(c, m);
    intra_ckpt_close(&c);
    return st;
}

// The logits of a masked language model are useful for comparisons; a discriminator has none.
static enum neb_status fits(const struct options *o, const struct intra_model *m) {
    if (intra_model_continues(m) || (o->logits && m->c.head == INTRA_HEAD_LM))
        return NEB_OK;
    return neb_fail(NEB_ERR_UNSUPPORTED,
                    "%s is the %s of mode rtd, which predicts no next token (nebula eval --task "
                    "probe measures its hidden states)",
                    o->checkpoint, m->c.head == INTRA_HEAD_LM ? "generator" : "discriminator");
}

static enum neb_status load(const struct options *o, struct kern **K, struct intra_model **m) {
    struct sec_vault *vault = NULL;
    neb_log_set_level(NEB_LOG_ERROR);
    NEB_TRY(agent_seal_option(o->seal_key, &vault));
    enum neb_status st = load_model(o, sec_vault_of(vault), m);
    sec_vault_destroy(&vault);
    NEB_TRY(st);
    NEB_TRY(fits(o, *m));
    NEB_TRY(kern_cpu_create(o->threads, K));
    if (o->merge)
        intra_lora_merge(*K, *m);
    return NEB_OK;
}

static enum neb_status eval_source(const struct options *o, struct intra_device *passes,
                                   const struct intra_corpus *c, int32_t T, int32_t source,
                                   double *mean, int64_t *count) {
    int32_t x[EVAL_SEQ_MAX], y[EVAL_SEQ_MAX];
    uint64_t have = intra_corpus_windows(c, source, INTRA_VALID, T);
    uint64_t n = o->windows && (uint64_t)o->windows < have ? (uint64_t)o->windows : have;
    double sum = 0, loss;
    int64_t k;
    *count = 0;
    for (uint64_t i = 0; i < n; i++) {
        intra_corpus_window(c, source, INTRA_VALID, T, i * have / n, x, y);
        NEB_TRY(intra_device_pass(passes,
                                  &(struct intra_batch){.tokens = x, .targets = y, .B = 1, .T = T},
                                  0, &loss, &k));
        sum += loss;
        *count += k;
    }
    *mean = *count ? sum / (double)*count : 0;
    return isfinite(*mean) ? NEB_OK
                           : neb_fail(NEB_ERR_STATE,
                                      "%s: the loss on %s is not a finite number: the model has "
                                      "diverged; take an older checkpoint",
                                      o->checkpoint, intra_corpus_source_name(c, source));
}

static void print_loss(bool json, const char *kind, const char *source, double loss) {
    double perplexity = exp(loss); // may be infinite for a very bad model
    if (!json) {
        printf("%-12s loss %.4f nats per token, perplexity %.2f\n", source, loss, perplexity);
        return;
    }
    json_t *line = json_pack("{s:s,s:s,s:o,s:o}", "kind", kind, "source", source, "loss",
                             agent_json_number(loss), "perplexity", agent_json_number(perplexity));
    agent_json_print(line, 0);
    json_decref(line);
}

static enum neb_status eval(const struct options *o) {
    struct kern *K = NULL;
    struct intra_model *m = NULL;
    struct intra_device *passes = NULL;
    struct intra_corpus *c = NULL;
    enum neb_status st = NEB_OK;
    double sum = 0;
    int counted = 0;
    NEB_TRY_GOTO(load(o, &K, &m), out);
    NEB_TRY_GOTO(intra_corpus_open(o->corpus, false, &c), out);
    if (intra_corpus_vocab(c) > m->c.vocab) {
        st = neb_fail(NEB_ERR_INVALID,
                      "the corpus has %d pieces and the model %d: it is not the model's vocabulary",
                      intra_corpus_vocab(c), m->c.vocab);
        goto out;
    }
    if (o->seq_len > m->c.max_seq || o->seq_len > EVAL_SEQ_MAX) {
        st = neb_fail(NEB_ERR_INVALID, "--seq-len %d: the model takes at most %d tokens, eval %d",
                      o->seq_len, m->c.max_seq, EVAL_SEQ_MAX);
        goto out;
    }
    int32_t T = o->seq_len ? o->seq_len : m->c.max_seq < EVAL_SEQ_MAX ? m->c.max_seq : EVAL_SEQ_MAX;
    NEB_TRY_GOTO(intra_device_on_host(K, m, 1, T, false, false, &passes), out);
    for (int32_t i = 0; i < intra_corpus_sources(c); i++) {
        double mean;
        int64_t count;
        NEB_TRY_GOTO(eval_source(o, passes, c, T, i, &mean, &count), out);
        if (!count)
            continue;
        print_loss(o->json, "source", intra_corpus_source_name(c, i), mean);
        sum += mean;
        counted++;
    }
    if (!counted)
        st = neb_fail(NEB_ERR_INVALID, "%s has no held-out windows of %d tokens", o->corpus, T);
    else
        print_loss(o->json, "summary", "mean", sum / counted);
out:
    intra_device_destroy(&passes);
    intra_corpus_close(&c);
    intra_model_destroy(&m);
    kern_destroy(&K);
    return st;
}

// Reads the id at *p and moves *p behind it. False: there is no id.
static bool next_id(const char **p, uint64_t max, int32_t *out) {
    char digits[16];
    uint64_t v;
    size_t n = strcspn(*p, " ,");
    if (n >= sizeof digits)
        return false;
    memcpy(digits, *p, n);
    digits[n] = 0;
    if (!neb_number_whole(digits, 0, max, &v))
        return false;
    *out = (int32_t)v;
    *p += n;
    return true;
}

static bool are_ids(const char *text) {
    const char *p = text + strspn(text, " ,");
    bool any = *p;
    for (int32_t id; *p; p += strspn(p, " ,"))
        if (!next_id(&p, INT32_MAX, &id))
            return false;
    return any;
}

// Reads "1 2 3" into *ids (n), with room for `more`. Each id must be in the vocabulary.
static enum neb_status parse_ids(const char *text, int32_t vocab, size_t more, int32_t **ids,
                                 size_t *n) {
    size_t cap = strlen(text) / 2 + 1;
    *n = 0;
    if (!(*ids = calloc(cap + more, sizeof **ids)))
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %zu tokens", cap + more);
    for (const char *p = text + strspn(text, " ,"); *p; p += strspn(p, " ,")) {
        if (!next_id(&p, (uint64_t)vocab - 1, &(*ids)[*n]))
            return neb_fail(NEB_ERR_INVALID,
                            "--ids: \"%.20s\" does not begin with a token id from 0 to %d", p,
                            vocab - 1);
        ++*n;
    }
    return *n ? NEB_OK : neb_fail(NEB_ERR_INVALID, "--ids: at least one token id is needed");
}

// Prints a line of V numbers per position, for comparisons with other implementations.
static enum neb_status print_logits(const struct options *o) {
    struct kern *K = NULL;
    struct intra_model *m = NULL;
    struct intra_device *passes = NULL;
    int32_t *ids = NULL;
    float *logits = NULL;
    size_t n;
    enum neb_status st = NEB_OK;
    NEB_TRY_GOTO(load(o, &K, &m), out);
    NEB_TRY_GOTO(parse_ids(o->ids, m->c.vocab, 0, &ids, &n), out);
    if (n > (size_t)m->c.max_seq) {
        st = neb_fail(NEB_ERR_INVALID, "--ids: %zu tokens, the model takes at most %d", n,
                      m->c.max_seq);
        goto out;
    }
    NEB_TRY_GOTO(intra_device_on_host(K, m, 1, (int)n, false, false, &passes), out);
    if (!(logits = malloc(sizeof *logits * (size_t)m->c.vocab))) {
        st = neb_fail(NEB_ERR_NOMEM, "out of memory for %d logits", m->c.vocab);
        goto out;
    }
    NEB_TRY_GOTO(intra_device_pass(passes,
                                   &(struct intra_batch){.tokens = ids, .B = 1, .T = (int)n}, 0,
                                   NULL, NULL),
                 out);
    for (size_t t = 0; t < n; t++) {
        intra_device_logits(passes, (int)t, 1, logits);
        for (int32_t v = 0; v < m->c.vocab; v++)
            printf("%s%.9g", v ? " " : "", (double)logits[v]);
        putchar('\n');
    }
out:
    free(logits);
    free(ids);
    intra_device_destroy(&passes);
    intra_model_destroy(&m);
    kern_destroy(&K);
    return st;
}

// Tokens in, tokens out: for models whose tokenizer is not supported.
static enum neb_status generate_ids(const struct options *o) {
    struct kern *K = NULL;
    struct intra_model *m = NULL;
    int32_t *ids = NULL;
    size_t n;
    int total = 0;
    struct intra_sampling s = {
        .temperature = o->temperature, .top_k = o->top_k, .seed = o->seed, .eos = -1};
    enum neb_status st = NEB_OK;
    NEB_TRY_GOTO(load(o, &K, &m), out);
    NEB_TRY_GOTO(parse_ids(o->ids, m->c.vocab, (size_t)o->tokens, &ids, &n), out);
    NEB_TRY_GOTO(intra_generate(K, m, &s, ids, (int)n, (int)n + o->tokens, &total), out);
    for (int i = 0; i < total; i++)
        printf("%s%d", i ? " " : "", ids[i]);
    putchar('\n');
out:
    free(ids);
    intra_model_destroy(&m);
    kern_destroy(&K);
    return st;
}

static enum neb_status generate(const struct options *o) {
    struct kern *K = NULL;
    struct intra_model *m = NULL;
    struct intra_tokenizer *t = NULL;
    int32_t *ids = NULL, *all = NULL;
    char tokenizer[NEB_PATH_MAX], *text = NULL;
    size_t n = 0;
    int total = 0;
    enum neb_status st = NEB_OK;
    NEB_TRY(o->tokenizer ? intra_tokenizer_resolve(o->tokenizer, tokenizer, sizeof tokenizer)
                         : intra_tokenizer_in(o->checkpoint, tokenizer, sizeof tokenizer));
    // first: without a checkpoint, a missing tokenizer is no news
    NEB_TRY_GOTO(load(o, &K, &m), out);
    if (!o->tokenizer && !neb_fs_exists(tokenizer)) {
        st = neb_fail(NEB_ERR_NOT_FOUND,
                      "there is no %s: name the model's vocabulary, a tokenizer.model or a "
                      "tokenizer.json (--tokenizer), or give token ids (--ids)",
                      tokenizer);
        goto out;
    }
    NEB_TRY_GOTO(intra_tokenizer_open(tokenizer, &t), out);
    NEB_TRY_GOTO(intra_tokenizer_encode(t, o->prompt, strlen(o->prompt), &ids, &n), out);
    if (!n || n > 1 << 20) {
        st = neb_fail(NEB_ERR_INVALID, "--prompt gives %zu tokens; at least one is needed", n);
        goto out;
    }
    if (!(all = calloc(n + (size_t)o->tokens, sizeof *all))) {
        st = neb_fail(NEB_ERR_NOMEM, "out of memory");
        goto out;
    }
    memcpy(all, ids, n * sizeof *all);
    for (size_t i = 0; i < n; i++)
        if (all[i] >= m->c.vocab) {
            st = neb_fail(NEB_ERR_INVALID, "%s is not the vocabulary of this model", tokenizer);
            goto out;
        }
    struct intra_sampling s = {.temperature = o->temperature,
                               .top_k = o->top_k,
                               .seed = o->seed,
                               .eos = intra_tokenizer_eos(t)};
    NEB_TRY_GOTO(intra_generate(K, m, &s, all, (int)n, (int)n + o->tokens, &total), out);
    NEB_TRY_GOTO(intra_tokenizer_decode(t, all, (size_t)total, &text), out);
    neb_plain_text(text, strlen(text), true); // a vocabulary may contain control characters
    puts(text);
out:
    free(text);
    free(all);
    free(ids);
    intra_tokenizer_close(&t);
    intra_model_destroy(&m);
    kern_destroy(&K);
    return st;
}

static enum neb_status translate(const struct options *o) {
    char file[NEB_PATH_MAX];
    neb_log_set_level(NEB_LOG_ERROR);
    struct sec_vault *vault = NULL;
    NEB_TRY(agent_seal_option(o->seal_key, &vault));
    enum neb_status st =
        agent_checkpoint_file(sec_vault_of(vault), o->checkpoint, file, sizeof file);
    struct agent_eval_translate t = {.checkpoint = file,
                                     .seq_len = o->seq_len,
                                     .vault = sec_vault_of(vault),
                                     .corpus = o->corpus,
                                     .out = o->out,
                                     .beam = o->beam,
                                     .windows = o->windows,
                                     .threads = o->threads,
                                     .merge = o->merge,
                                     .json = o->json};
    if (st == NEB_OK)
        st = agent_eval_translate(&t);
    sec_vault_destroy(&vault);
    return st;
}

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    struct options *o = state->input;
    switch (key) {
    case 'c': o->corpus = arg; return 0;
    case 'p': o->prompt = arg; return 0;
    case 'w': o->windows = (int)agent_option_whole(state, key, arg, 0, INT32_MAX); return 0;
    case 'n': o->tokens = (int)agent_option_whole(state, key, arg, 0, 100000); return 0;
    case 'k': o->top_k = (int)agent_option_whole(state, key, arg, 0, INT32_MAX); return 0;
    case 't': o->temperature = (float)agent_option_real(state, key, arg, 0, 1000); return 0;
    case 's': o->seed = agent_option_whole(state, key, arg, 0, UINT64_MAX); return 0;
    case 'v': o->tokenizer = arg; return 0;
    case 'i':
        if (!are_ids(arg))
            agent_option_refuse(state, key, arg, "a list of token ids with blanks between them");
        o->ids = arg;
        return 0;
    case 'T': o->seq_len = (int)agent_option_whole(state, key, arg, 1, EVAL_SEQ_MAX); return 0;
    case 'l': o->logits = true; return 0;
    case 'a': o->task = arg; return 0;
    case 'b': o->beam = (int)agent_option_whole(state, key, arg, 1, INTRA_BEAM_MAX); return 0;
    case 'o': o->out = arg; return 0;
    case 'j': o->json = true; return 0;
    case 'm': o->merge = true; return 0;
    case KEY_SEAL: o->seal_key = arg; return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num)
            argp_usage(state);
        o->checkpoint = arg;
        return 0;
    case ARGP_KEY_END:
        if (!o->checkpoint)
            argp_error(state, "give a checkpoint");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

// True if the task is probe, which has its own options.
static bool is_probe(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        bool apart = !strcmp(argv[i], "--task") || !strcmp(argv[i], "-a");
        if (!strcmp(argv[i], "--task=probe") || !strcmp(argv[i], "-aprobe") ||
            (apart && i + 1 < argc && !strcmp(argv[i + 1], "probe")))
            return true;
    }
    return false;
}

int cmd_eval(int argc, char **argv) {
    static const struct argp_option table[] = {
        {"corpus", 'c', "DIR", 0,
         "corpus whose held-out text is scored (default: that of the checkpoint's run)", 0},
        {"windows", 'w', "N", 0, "windows per source (default: all)", 0},
        {"seq-len", 'T', "N", 0,
         "tokens per window (default: the model's longest, at most 4096); with --task translate: "
         "of a source and its translation (default 1024)",
         0},
        {"task", 'a', "TASK", 0,
         "a task instead of the loss. translate: translates the test pairs of the corpus and "
         "prints chrF. probe: a linear probe on hidden states, with its own options (nebula eval "
         "--task=probe --help)",
         0},
        {"beam", 'b', "N", 0, "translate: width of the beam (default 1: greedy)", 0},
        {"out", 'o', "DIR", 0,
         "translate: folder for hypotheses.txt, references.txt and sources.txt", 0},
        {"logits", 'l', NULL, 0, "print only the logits of --ids, one line per position", 0},
        {"ids", 'i', "IDS", 0, "token ids, for example \"1 2 3\"", 0},
        {"merge-lora", 'm', NULL, 0, "merge adapters first", 0},
        {"seal-key", KEY_SEAL, "FILE", 0, "key of a sealed checkpoint", 0},
        {"json", 'j', NULL, 0, "one JSON object per line", 0},
        {0}};
    static const struct argp argp = {.options = table,
                                     .parser = parse_option,
                                     .args_doc = "CHECKPOINT",
                                     .doc = "Prints the held-out loss of a checkpoint for each "
                                            "source, or its result in a task (--task)."};
    struct options o = {.beam = 1};
    char corpus[NEB_PATH_MAX];
    if (is_probe(argc, argv))
        return cmd_eval_probe(argc, argv);
    if (agent_options_parse(&argp, argc, argv, &o) != 0)
        return AGENT_EXIT_USAGE;
    if (o.logits && !o.ids) {
        fputs("nebula eval: --logits needs --ids IDS\n", stderr);
        return AGENT_EXIT_USAGE;
    }
    if (o.task && (strcmp(o.task, "translate") || o.logits)) {
        fputs("nebula eval: --task: expected translate or probe\n", stderr);
        return AGENT_EXIT_USAGE;
    }
    if (!o.task && (o.beam != 1 || o.out)) {
        fputs("nebula eval: --beam and --out need --task translate\n", stderr);
        return AGENT_EXIT_USAGE;
    }
    if (!o.logits && !o.corpus) {
        if (!neb_fs_exists(o.checkpoint)) // not a wrong command line, as with --corpus
            return agent_json_exit(
                o.json, agent_exit_of(neb_fail(NEB_ERR_NOT_FOUND, "there is no %s", o.checkpoint)));
        if (agent_corpus_note_read(o.checkpoint, corpus, sizeof corpus) != NEB_OK)
            return agent_json_exit(o.json, AGENT_EXIT_USAGE);
        o.corpus = corpus;
    }
    if (o.task)
        return agent_json_exit(o.json, agent_exit_of(translate(&o)));
    return agent_json_exit(o.json, agent_exit_of(o.logits ? print_logits(&o) : eval(&o)));
}

int cmd_generate(int argc, char **argv) {
    static const struct argp_option table[] = {
        {"prompt", 'p', "TEXT", 0, "text to continue", 0},
        {"ids", 'i', "IDS", 0, "token ids to continue; prints ids and needs no tokenizer", 0},
        {"tokens", 'n', "N", 0, "number of tokens to add (default 64)", 0},
        {"temperature", 't', "T", 0, "0: always the most likely token (default 0.8)", 0},
        {"top-k", 'k', "K", 0, "choose from the K most likely tokens (default 40)", 0},
        {"seed", 's', "S", 0, "seed of the choice", 0},
        {"tokenizer", 'v', "FILE", 0, "vocabulary, or a folder with one (default: CHECKPOINT)", 0},
        {"merge-lora", 'm', NULL, 0, "merge adapters first", 0},
        {"seal-key", KEY_SEAL, "FILE", 0, "key of a sealed checkpoint", 0},
        {0}};
    static const struct argp argp = {.options = table,
                                     .parser = parse_option,
                                     .args_doc = "CHECKPOINT",
                                     .doc = "Continues a text."};
    struct options o = {.tokens = 64, .temperature = 0.8f, .top_k = 40, .seed = 1};
    if (agent_options_parse(&argp, argc, argv, &o) != 0)
        return AGENT_EXIT_USAGE;
    if (!o.prompt == !o.ids) {
        fputs("nebula generate: give --prompt TEXT or --ids IDS\n", stderr);
        return AGENT_EXIT_USAGE;
    }
    return agent_exit_of(o.ids ? generate_ids(&o) : generate(&o));
}
