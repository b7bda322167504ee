#include "agent/config.h"
#include "agent/base/sha256.h"
#include "agent/wan_spec.h"
#include "compress/codec.h"
#include "inter/robust.h"
#include "inter/rate_limit.h"
#include "inter/tune.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum option_type {
    T_INT32,
    T_INT64,
    T_FLOAT,
    T_BOOL,
    T_STRING,
    T_NAME,
    T_ENUM,
    T_CODEC,
    T_TARGETS,
    T_FREEZE
};

struct option {
    const char *path;
    enum option_type type;
    size_t at, size; // where in struct agent_job; size of strings
    double min, max;
    const char *preset;       // default; NULL: must be given
    const char *const *names; // of an enum, NULL-terminated
    const char *help;
};

static const char *const mode_names[] = {"replicas", "rtd", "distill", NULL};
static const char *const role_names[] = {"none",    "generator", "discriminator",
                                         "teacher", "student",   NULL};
static const char *const lost_names[] = {"wait", "alone", NULL};
static const char *const gate_names[] = {"trusted", "robust", NULL};
static const char *const scheme_names[] = {"federated", "synchronous", "none", NULL};
static const char *const schedule_names[] = {"cosine", "wsd", "constant", NULL};
static const char *const clip_names[] = {"none", "global_norm", "adagc", NULL};
static const char *const trainable_names[] = {"full", "lora", "bitfit", "last_layers", NULL};
static const char *const mask_names[] = {"causal", NULL};
static const char *const tune_names[] = {"fixed", "auto", NULL};
static const char *const rung_names[] = {"int8", "int4", "int3", "int2", "topk:256/4096", "topk:64/4096", NULL};
static const char *const target_names[] = {"q", "k", "v", "o", "gate", "up", "down", NULL};

#define AT(field) offsetof(struct agent_job, field), sizeof(((struct agent_job *)0)->field)

static const struct option options[] = {
    {"job", T_NAME, AT(name), 0, 0, NULL, NULL, "name of the job"},
    {"mode", T_ENUM, AT(mode), 0, 0, "replicas", mode_names,
     "replicas: the same model on every cluster; rtd: a generator and a discriminator; "
     "distill: a teacher and students that translate"},
    {"seed", T_INT64, AT(seed), 0, 9e15, "1", NULL, "of initial parameters and data order"},
    {"steps", T_INT64, AT(steps), 1, 1e12, NULL, NULL, "inner steps of every cluster"},
    {"model.init", T_STRING, AT(model_init), 0, 0, "", NULL,
     "checkpoint for shape and parameters: file or folder, as nebula import makes"},
    {"model.vocab", T_INT32, AT(model.vocab), 0, 1 << 24, "0", NULL, "0: that of the corpus"},
    {"model.n_layers", T_INT32, AT(model.n_layers), 1, 1024, NULL, NULL, "blocks"},
    {"model.d_model", T_INT32, AT(model.d_model), 2, 65536, NULL, NULL, "width"},
    {"model.n_heads", T_INT32, AT(model.n_heads), 1, 1024, NULL, NULL, "query heads"},
    {"model.n_kv_heads", T_INT32, AT(model.n_kv_heads), 0, 1024, "0", NULL,
     "key/value heads; 0: n_heads"},
    {"model.head_dim", T_INT32, AT(model.head_dim), 0, 256, "0", NULL, "0: d_model / n_heads"},
    {"model.d_ff", T_INT32, AT(model.d_ff), 1, 1 << 20, NULL, NULL,
     "width of the feed-forward layer"},
    {"model.tied", T_BOOL, AT(model.tied), 0, 0, "true", NULL, "output weight is the embedding"},
    {"model.qkv_bias", T_BOOL, AT(model.qkv_bias), 0, 0, "false", NULL,
     "bias on query, key, value"},
    {"model.rope_theta", T_FLOAT, AT(model.rope_theta), 1, 1e9, "10000", NULL,
     "base of the rotary positions"},
    {"model.norm_eps", T_FLOAT, AT(model.norm_eps), 1e-12, 0.1, "1e-5", NULL, "of RMSNorm"},
    {"model.mask", T_ENUM, AT(model.mask), 0, 0, "causal", mask_names, "what a position sees"},
    {"data.corpus", T_STRING, AT(corpus), 0, 0, NULL, NULL, "folder made by nebula data build"},
    {"data.seq_len", T_INT32, AT(seq_len), 1, 1 << 20, NULL, NULL, "tokens of a sequence"},
    {"data.batch", T_INT32, AT(batch), 1, 65536, NULL, NULL, "sequences of a micro-batch"},
    {"data.accumulate", T_INT32, AT(accumulate), 1, 65536, "1", NULL, "micro-batches of a step"},
    {"optim.lr", T_FLOAT, AT(optim.schedule.lr), 1e-9, 10, NULL, NULL,
     "peak learning rate of AdamW"},
    {"optim.warmup", T_INT64, AT(optim.schedule.warmup), 0, 1e12, "0", NULL,
     "steps of linear warm-up"},
    {"optim.schedule", T_ENUM, AT(optim.schedule.kind), 0, 0, "cosine", schedule_names,
     "after the warm-up"},
    {"optim.min_lr_ratio", T_FLOAT, AT(optim.schedule.min_ratio), 0, 1, "0.1", NULL,
     "last learning rate / peak"},
    {"optim.decay_fraction", T_FLOAT, AT(optim.schedule.decay_fraction), 0, 1, "0.2", NULL,
     "wsd: share of steps that decays"},
    {"optim.beta1", T_FLOAT, AT(optim.beta1), 0, 0.99999, "0.9", NULL,
     "AdamW: decay of the mean of gradients"},
    {"optim.beta2", T_FLOAT, AT(optim.beta2), 0, 0.99999, "0.95", NULL,
     "AdamW: decay of the mean of their squares"},
    {"optim.eps", T_FLOAT, AT(optim.eps), 1e-20, 1, "1e-8", NULL, "AdamW: added to the root"},
    {"optim.weight_decay", T_FLOAT, AT(optim.weight_decay), 0, 10, "0.1", NULL, "on matrices"},
    {"optim.clip.kind", T_ENUM, AT(optim.clip.kind), 0, 0, "global_norm", clip_names,
     "adagc: per tensor (arXiv 2502.11034)"},
    {"optim.clip.max_norm", T_FLOAT, AT(optim.clip.max_norm), 0, 1e9, "1", NULL,
     "global norm; 0: no limit"},
    {"optim.clip.ratio", T_FLOAT, AT(optim.clip.ratio), 1, 100, "1.04", NULL, "adagc"},
    {"optim.clip.beta", T_FLOAT, AT(optim.clip.beta), 0, 1, "0.99", NULL, "adagc"},
    {"optim.clip.warmup", T_INT64, AT(optim.clip.warmup), 0, 1e12, "100", NULL,
     "adagc: steps of global clipping first"},
    {"recompute", T_BOOL, AT(recompute), 0, 0, "false", NULL,
     "keep block inputs only, compute activations again"},
    {"init_from", T_STRING, AT(init_from), 0, 0, "", NULL,
     "checkpoint whose parameters to start from"},
    {"trainable.mode", T_ENUM, AT(trainable.mode), 0, 0, "full", trainable_names,
     "what learns and is exchanged; `trainable: full` is short for it"},
    {"trainable.rank", T_INT32, AT(trainable.lora_rank), 0, 1024, "0", NULL, "lora"},
    {"trainable.alpha", T_FLOAT, AT(trainable.lora_alpha), 0, 1e6, "16", NULL,
     "lora: adapters are scaled by alpha / rank"},
    {"trainable.targets", T_TARGETS, AT(trainable.lora_targets), 0, 0, "[q, v]", NULL,
     "lora: of q, k, v, o, gate, up, down"},
    {"trainable.n", T_INT32, AT(trainable.last_layers), 0, 1024, "0", NULL,
     "last_layers: how many"},
    {"trainable.freeze", T_FREEZE, AT(trainable.freeze_embeddings), 0, 0, "[]", NULL,
     "[embeddings]"},
    {"sync.scheme", T_ENUM, AT(sync.scheme), 0, 0, "federated", scheme_names,
     "synchronous: the reference, in one process"},
    {"sync.interval", T_INT32, AT(sync.interval), 1, 1e9, "30", NULL,
     "H: inner steps between exchanges"},
    {"sync.early_interval", T_INT32, AT(sync.early_interval), 1, 1e9, "10", NULL,
     "H of the first early_steps steps"},
    {"sync.early_steps", T_INT32, AT(sync.early_steps), 0, 1e9, "0", NULL,
     "a multiple of early_interval; 0: one interval throughout"},
    {"sync.fragments", T_INT32, AT(sync.fragments), 1, 64, "1", NULL,
     "P: parts of the model that travel in turn"},
    {"sync.overlap", T_INT32, AT(sync.overlap), 0, 1e9, "0", NULL,
     "τ: inner steps while an update travels"},
    {"sync.codec", T_CODEC, AT(sync.codec), 0, 0, "int4", NULL,
     "fp32, bf16, int8, int4[:BLOCK], int3, int2, topk[:K/CHUNK]"},
    {"sync.error_feedback", T_FLOAT, AT(sync.error_feedback), 0, 1, "1", NULL,
     "β: decay of what could not be sent"},
    {"sync.outer.lr", T_FLOAT, AT(sync.eta), 0, 10, "0.9", NULL, "η"},
    {"sync.outer.momentum", T_FLOAT, AT(sync.mu), 0, 0.999, "0.6", NULL, "μ (Nesterov)"},
    {"sync.row_weights", T_BOOL, AT(sync.row_weights), 0, 0, "true", NULL,
     "rows of embedding and output by the tokens seen of them"},
    {"sync.kappa", T_FLOAT, AT(sync.kappa), 1e-6, 1e6, "0.1", NULL,
     "tokens that every row is worth unseen"},
    {"sync.merge_after", T_INT32, AT(sync.merge_after), 1, 1e6, "4", NULL,
     "S: missed intervals until a merge round"},
    {"sync.commit_all", T_BOOL, AT(sync.commit_all), 0, 0, "false", NULL,
     "never commit a round without every cluster's update"},
    {"sync.gate", T_ENUM, AT(sync.gate), 0, 0, "trusted", gate_names,
     "profile of the update gate: trusted or, with five clusters or more, robust"},
    {"sync.link", T_STRING, AT(sync.link), 0, 0, "", NULL,
     "RATE:DELAY[:LOSS] between clusters (100mbit:80ms:0.1%), for nebula plan and `auto`"},
    {"sync.grace_s", T_FLOAT, AT(sync.grace_s), 0, 1e6, "60", NULL,
     "seconds that a slow cluster is waited for once two updates are ready"},
    {"sync.tune.mode", T_ENUM, AT(sync.tune.mode), 0, 0, "fixed", tune_names,
     "auto: codec, overlap and interval follow the measured link; `sync.tune: auto` is short for it"},
    {"sync.tune.codec", T_BOOL, AT(sync.tune.codec), 0, 0, "true", NULL, "auto may change the codec"},
    {"sync.tune.overlap", T_BOOL, AT(sync.tune.overlap), 0, 0, "true", NULL, "auto may raise τ"},
    {"sync.tune.interval", T_BOOL, AT(sync.tune.interval), 0, 0, "false", NULL, "auto may raise H"},
    {"sync.tune.finest", T_ENUM, AT(sync.tune.finest), 0, 0, "int4", rung_names, "bound of the codec"},
    {"sync.tune.coarsest", T_ENUM, AT(sync.tune.coarsest), 0, 0, "topk:64/4096", rung_names,
     "bound of the codec; a sparse one only where the rounds left touch every element four times"},
    {"sync.tune.overlap_max", T_INT32, AT(sync.tune.overlap_max), 0, 1e9, "0", NULL,
     "bound of τ; 0: half of sync.interval"},
    {"sync.tune.interval_max", T_INT32, AT(sync.tune.interval_max), 0, 1e9, "0", NULL,
     "bound of H; 0: twice sync.interval"},
    {"sync.tune.error_max", T_FLOAT, AT(sync.tune.error_max), 0.01, 10, "0.65", NULL,
     "relative error up to which a dense codec may be chosen"},
    {"wan.rate_limit", T_STRING, AT(rate_limit), 0, 0, "", NULL,
     "what a cluster sends at most, also by local time: 20mbit; 100mbit 08:00-18:00=20mbit"},
    {"rtd.mask_rate", T_FLOAT, AT(rtd.mask_rate), 0.001, 0.9, "0.15", NULL,
     "share of tokens that is masked"},
    {"rtd.lambda", T_FLOAT, AT(rtd.lambda), 1e-6, 1e6, "1", NULL,
     "λ: weight of the detection loss (gradients are clipped after it)"},
    {"rtd.push_text", T_BOOL, AT(rtd.push_text), 0, 0, "false", NULL,
     "the generator sends the text too; else both read the same shards"},
    {"rtd.generator_steps", T_INT32, AT(rtd.generator_steps), 1, 1000, "1", NULL,
     "ratio of steps, with discriminator_steps; `steps` counts those of the side that makes more"},
    {"rtd.discriminator_steps", T_INT32, AT(rtd.discriminator_steps), 1, 1000, "1", NULL, "see generator_steps"},
    {"rtd.ahead", T_INT32, AT(rtd.ahead), 1, 1024, "16", NULL,
     "batches that the generator may be ahead of the discriminator"},
    {"rtd.generator.n_layers", T_INT32, AT(rtd.n_layers), 0, 1024, "0", NULL, "0: model.n_layers, and so on"},
    {"rtd.generator.d_model", T_INT32, AT(rtd.d_model), 0, 65536, "0", NULL, "width of the generator"},
    {"rtd.generator.n_heads", T_INT32, AT(rtd.n_heads), 0, 1024, "0", NULL, "its heads"},
    {"rtd.generator.d_ff", T_INT32, AT(rtd.d_ff), 0, 1 << 20, "0", NULL, "its feed-forward width"},
    {"distill.lambda", T_FLOAT, AT(distill.lambda), 0, 1, "0.5", NULL,
     "λ: (1 - λ) cross-entropy + λ T² KL to the teacher"},
    {"distill.temperature", T_FLOAT, AT(distill.temperature), 0.1, 20, "1", NULL, "T"},
    {"distill.k", T_INT32, AT(distill.k), 0, 64, "8", NULL,
     "labels a position, the most likely; 0: all logits, only with sync.scheme synchronous"},
    {"distill.k_min", T_INT32, AT(distill.k_min), 0, 64, "0", NULL,
     "fewest labels a position on a slow link; 0: distill.k"},
    {"distill.k_max", T_INT32, AT(distill.k_max), 0, 64, "0", NULL,
     "most labels a position on a fast link; 0: distill.k"},
    {"distill.ahead", T_INT32, AT(distill.ahead), 1, 1024, "16", NULL,
     "steps that the teacher may be ahead of a student"},
    {"distill.teacher.init", T_STRING, AT(distill.teacher), 0, 0, "", NULL,
     "checkpoint of the teacher; none: it begins with nothing, and must learn"},
    {"distill.teacher.learn", T_BOOL, AT(distill.learn), 0, 0, "false", NULL,
     "the teacher trains on the batches that it labels"},
    {"distill.teacher.n_layers", T_INT32, AT(distill.n_layers), 0, 1024, "0", NULL,
     "of a teacher without checkpoint; 0: model.n_layers, and so on"},
    {"distill.teacher.d_model", T_INT32, AT(distill.d_model), 0, 65536, "0", NULL, "its width"},
    {"distill.teacher.n_heads", T_INT32, AT(distill.n_heads), 0, 1024, "0", NULL, "its heads"},
    {"distill.teacher.d_ff", T_INT32, AT(distill.d_ff), 0, 1 << 20, "0", NULL,
     "its feed-forward width"},
    {"distill.when_lost", T_ENUM, AT(distill.when_lost), 0, 0, "wait", lost_names,
     "a student without labels: wait for the teacher, or go on with cross-entropy"},
    {"distill.push_text", T_BOOL, AT(distill.pushed), 0, 0, "false", NULL,
     "students send their text, and the teacher needs no shards of it; else both read the same shards"},
    {"distill.relay", T_BOOL, AT(distill.relay), 0, 0, "false", NULL,
     "the teacher's labels cross once, to the first student, which passes them on to the others; all students then learn from "
     "the same batches, each from its own start"},
    {"distill.patience_s", T_FLOAT, AT(distill.patience_s), 0, 1e6, "30", NULL,
     "seconds without labels until then"},
    {"distill.cache", T_STRING, AT(distill.cache), 0, 0, "", NULL,
     "folder where students keep labels; a job without teacher learns from it"},
    {"distill.beam", T_INT32, AT(distill.beam), 1, 16, "1", NULL,
     "beam of the translations that are measured at the end; 1: greedy"},
    {"eval.windows", T_INT32, AT(eval_windows), 0, 1e9, "64", NULL,
     "held-out windows a source at the end; 0: all"},
    {"checkpoint.every_steps", T_INT32, AT(checkpoint_every), 0, 1e9, "0", NULL,
     "0: only when stopped and at the end"},
    {"checkpoint.keep", T_INT32, AT(checkpoint_keep), 1, 16, "2", NULL, "generations"},
    {"log_every", T_INT32, AT(log_every), 1, 1e9, "10", NULL, "inner steps a line of metrics"},
};
enum { N_OPTIONS = sizeof options / sizeof options[0] };

static const char cluster_keys[] = "name, role, witness, threads, corpus, sources, mesh, launcher, device, "
                                   "precision";
static const char *const launcher_names[] = {"local", "mpirun", "slurm", "attach", NULL};
static const char *const device_names[] = {"auto", "cpu", "cuda", NULL};
static const char *const precision_names[] = {"auto", "fp32", "bf16", NULL};
enum { MESH_AXIS_MAX = 1024, MESH_RANKS_MAX = 1024 };

// ---- values ---------------------------------------------------------------------------------------------------

// One complaint: "job.yaml:12: model.n_heads: ..."
#define COMPLAIN(where, path, ...) complain(where, path, __VA_ARGS__)
__attribute__((format(printf, 3, 4))) static enum neb_status
complain(const char *where, const char *path, const char *fmt, ...) {
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return neb_fail(NEB_ERR_INVALID, "%s: %s: %s", where, path, text);
}

static void join(char *out, size_t cap, const char *const *names) {
    size_t n = 0;
    out[0] = 0;
    for (; *names && n + 1 < cap; names++)
        n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? ", " : "", *names);
}

static int index_of(const char *const *names, const char *text) {
    for (int i = 0; names[i]; i++)
        if (!strcmp(names[i], text))
            return i;
    return -1;
}

static enum neb_status set_number(struct agent_job *job, const struct option *o, const char *text,
                                  const char *where) {
    char *end = NULL;
    bool whole = o->type != T_FLOAT;
    errno = 0;
    double v = whole ? (double)strtoll(text, &end, 10) : strtod(text, &end);
    if (!*text || *end || errno || !isfinite(v))
        return COMPLAIN(where, o->path, "\"%s\" is not %s", text,
                        whole ? "an integer" : "a number");
    // A float is compared as one: 0.999 as fp32 is a little above 0.999, and must come back through JSON.
    bool below = whole ? v < o->min : (float)v < (float)o->min,
         above = whole ? v > o->max : (float)v > (float)o->max;
    if (below || above)
        return COMPLAIN(where, o->path, "%s is not in %g..%g", text, o->min, o->max);
    char *p = (char *)job + o->at;
    if (o->type == T_INT32)
        memcpy(p, &(int32_t){(int32_t)v}, sizeof(int32_t));
    else if (o->type == T_INT64)
        memcpy(p, &(int64_t){strtoll(text, NULL, 10)}, sizeof(int64_t));
    else
        memcpy(p, &(float){(float)v}, sizeof(float));
    return NEB_OK;
}

static enum neb_status set_text(char *p, size_t size, const char *path, const char *text,
                                const char *where, bool name) {
    if (strlen(text) >= size)
        return COMPLAIN(where, path, "longer than %zu bytes", size - 1);
    if (name &&
        (!*text ||
         strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") !=
             strlen(text)))
        return COMPLAIN(where, path, "\"%s\" is not a name (letters, digits, '-', '_', '.')", text);
    json_t *utf8 = json_string(text); // it must be able to travel
    if (!utf8)
        return COMPLAIN(where, path, "is not UTF-8 text");
    json_decref(utf8);
    memset(p, 0, size);
    memcpy(p, text, strlen(text));
    return NEB_OK;
}

// Keys that the planner can fill in.
static uint32_t auto_bit(const struct option *o) {
    static const struct {
        const char *path;
        enum agent_auto bit;
    } can[] = {{"data.batch", AGENT_AUTO_BATCH},
               {"recompute", AGENT_AUTO_RECOMPUTE},
               {"sync.interval", AGENT_AUTO_INTERVAL},
               {"sync.overlap", AGENT_AUTO_OVERLAP},
               {"sync.codec", AGENT_AUTO_CODEC}};
    for (size_t i = 0; i < sizeof can / sizeof *can; i++)
        if (!strcmp(o->path, can[i].path))
            return can[i].bit;
    return 0;
}

// A scalar option. Lists (targets, freeze) come as their items one by one, see set_item.
static enum neb_status set_plain(struct agent_job *job, const struct option *o, const char *text,
                                 const char *where) {
    char *p = (char *)job + o->at, allowed[256];
    struct cmp_codec codec;
    switch (o->type) {
    case T_INT32:
    case T_INT64:
    case T_FLOAT: return set_number(job, o, text, where);
    case T_BOOL:
        if (strcmp(text, "true") && strcmp(text, "false"))
            return COMPLAIN(where, o->path, "\"%s\" is neither true nor false", text);
        *(bool *)(void *)p = text[0] == 't';
        return NEB_OK;
    case T_STRING: return set_text(p, o->size, o->path, text, where, false);
    case T_NAME: return set_text(p, o->size, o->path, text, where, true);
    case T_CODEC:
        if (cmp_codec_parse(text, &codec) != NEB_OK)
            return COMPLAIN(where, o->path, "\"%s\" is not one of: %s", text,
                            o->help); // cmp_ said why
        return set_text(p, o->size, o->path, text, where, false);
    case T_ENUM: {
        int i = index_of(o->names, text);
        join(allowed, sizeof allowed, o->names);
        if (i < 0)
            return COMPLAIN(where, o->path, "\"%s\" is not one of: %s", text, allowed);
        memcpy(p, &i,
               sizeof i); // enums are ints with gcc and clang on every system that we build for
        return NEB_OK;
    }
    case T_TARGETS:
    case T_FREEZE:
        return COMPLAIN(where, o->path, "must be a list, such as [%s]",
                        o->type == T_TARGETS ? "q, v" : "embeddings");
    }
    return NEB_ERR_INVALID;
}

// The same, or `auto`: then the key holds its default, a micro-batch one sequence.
static enum neb_status set_scalar(struct agent_job *job, const struct option *o, const char *text,
                                  const char *where) {
    uint32_t bit = auto_bit(o);
    if (!bit || strcmp(text, "auto")) {
        NEB_TRY(set_plain(job, o, text, where));
        job->autos &= ~bit;
        return NEB_OK;
    }
    job->autos |= bit;
    return set_plain(job, o, o->preset ? o->preset : "1", where);
}

static void clear_list(struct agent_job *job, const struct option *o) {
    memset((char *)job + o->at, 0, o->size);
}

static enum neb_status set_item(struct agent_job *job, const struct option *o, const char *text,
                                const char *where) {
    char allowed[64];
    if (o->type == T_FREEZE) {
        if (strcmp(text, "embeddings"))
            return COMPLAIN(where, o->path, "\"%s\" cannot be frozen; only: embeddings", text);
        job->trainable.freeze_embeddings = true;
        return NEB_OK;
    }
    int i = index_of(target_names, text);
    join(allowed, sizeof allowed, target_names);
    if (i < 0)
        return COMPLAIN(where, o->path, "\"%s\" is not one of: %s", text, allowed);
    job->trainable.lora_targets |= 1u << i;
    return NEB_OK;
}

static void set_defaults(struct agent_job *job) {
    memset(job, 0, sizeof *job);
    for (int i = 0; i < N_OPTIONS; i++) {
        const struct option *o = &options[i];
        if (!o->preset || o->type == T_FREEZE)
            continue;
        if (o->type == T_TARGETS)
            job->trainable.lora_targets = INTRA_LORA_Q | INTRA_LORA_V;
        else
            NEB_ASSERT(set_scalar(job, o, o->preset, "default") == NEB_OK);
    }
}

static const struct option *find_option(const char *path) {
    for (int i = 0; i < N_OPTIONS; i++)
        if (!strcmp(options[i].path, path))
            return &options[i];
    return NULL;
}

static bool is_section(const char *path) {
    size_t n = strlen(path);
    for (int i = 0; i < N_OPTIONS; i++)
        if (!strncmp(options[i].path, path, n) && options[i].path[n] == '.')
            return true;
    return false;
}

// Edits (insert, delete, change, swap neighbours) between short keys, for "did you mean".
static int distance(const char *a, const char *b) {
    enum { MAX = 64 };
    int rows[3][MAX], n = (int)strlen(b);
    if (n >= MAX)
        return MAX;
    for (int j = 0; j <= n; j++)
        rows[0][j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int *row = rows[i % 3], *up = rows[(i + 2) % 3], *up2 = rows[(i + 1) % 3];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = up[j - 1] + (a[i - 1] != b[j - 1]);
            best = up[j] + 1 < best ? up[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                up2[j - 2] + 1 < best)
                best = up2[j - 2] + 1;
            row[j] = best;
        }
    }
    return rows[strlen(a) % 3][n];
}

static enum neb_status unknown_key(const char *where, const char *path) {
    char best[64] = "";
    int least = 4;
    for (int i = 0; i < N_OPTIONS; i++) // every option, and before it the section that holds it
        for (int whole = 0; whole < 2; whole++) {
            char candidate[64];
            const char *dot = strrchr(options[i].path, '.');
            if (!whole && !dot)
                continue;
            snprintf(candidate, sizeof candidate, "%.*s", whole ? 63 : (int)(dot - options[i].path),
                     options[i].path);
            int d = distance(path, candidate);
            if (d < least ||
                (d == least && !whole)) { // on a tie a section is likelier: it is typed more often
                least = d;
                memcpy(best, candidate, sizeof best);
            }
        }
    if (distance(path, "clusters") < least)
        snprintf(best, sizeof best, "clusters");
    if (best[0])
        return COMPLAIN(where, path, "unknown key (did you mean '%s'?)", best);
    return COMPLAIN(where, path, "unknown key; configs/README.md lists all keys");
}

// ---- YAML -----------------------------------------------------------------------------------------------------

struct walk {
    yaml_document_t *doc;
    const char *file;
    struct agent_job *job;
    bool seen[N_OPTIONS];
};

static const char *where_of(const struct walk *w, const yaml_node_t *n, char *out, size_t cap) {
    snprintf(out, cap, "%s:%zu", w->file, n->start_mark.line + 1);
    return out;
}

static const char *scalar(const yaml_node_t *n) {
    return n->type == YAML_SCALAR_NODE &&
                   strlen((const char *)n->data.scalar.value) == n->data.scalar.length
               ? (const char *)n->data.scalar.value
               : NULL;
}

static enum neb_status set_option_node(struct walk *w, const struct option *o, yaml_node_t *value,
                                       const char *where) {
    if (w->seen[o - options])
        return COMPLAIN(where, o->path, "given twice");
    w->seen[o - options] = true;
    if (o->type == T_TARGETS || o->type == T_FREEZE) {
        if (value->type != YAML_SEQUENCE_NODE)
            return set_scalar(w->job, o, "", where);
        clear_list(w->job, o);
        for (yaml_node_item_t *i = value->data.sequence.items.start;
             i < value->data.sequence.items.top; i++) {
            const char *text = scalar(yaml_document_get_node(w->doc, *i));
            if (!text)
                return COMPLAIN(where, o->path, "holds something that is not a word");
            NEB_TRY(set_item(w->job, o, text, where));
        }
        return NEB_OK;
    }
    const char *text = scalar(value);
    if (!text)
        return COMPLAIN(where, o->path, "must be a single value");
    return set_scalar(w->job, o, text, where);
}

static enum neb_status add_source(struct agent_cluster *c, const char *name, const char *weight,
                                  const char *where) {
    char *end = NULL;
    if (c->n_sources == AGENT_SOURCES_MAX)
        return COMPLAIN(where, "clusters.sources", "more than %d sources", AGENT_SOURCES_MAX);
    struct agent_source *s = &c->sources[c->n_sources];
    NEB_TRY(set_text(s->name, sizeof s->name, "clusters.sources", name ? name : "", where, true));
    s->weight = weight ? strtof(weight, &end) : 0;
    if (!weight || !*weight || *end || !(s->weight > 0) || !(s->weight <= 1e6f))
        return COMPLAIN(where, "clusters.sources", "weight of %s must be a number above 0",
                        s->name);
    for (int32_t i = 0; i < c->n_sources; i++)
        if (!strcmp(c->sources[i].name, s->name))
            return COMPLAIN(where, "clusters.sources", "%s given twice", s->name);
    c->n_sources++;
    return NEB_OK;
}

// {name: en, weight: 0.5}; the weight may be left out
static enum neb_status walk_source_item(struct walk *w, struct agent_cluster *c, yaml_node_t *map) {
    char at[NEB_PATH_MAX + 32];
    const char *name = NULL, *weight = "1";
    where_of(w, map, at, sizeof at);
    if (map->type != YAML_MAPPING_NODE)
        return COMPLAIN(at, "clusters.sources",
                        "each item must be such as {name: en, weight: 0.5}");
    for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
         p++) {
        const char *key = scalar(yaml_document_get_node(w->doc, p->key)),
                   *text = scalar(yaml_document_get_node(w->doc, p->value));
        if (key && !strcmp(key, "name"))
            name = text;
        else if (key && !strcmp(key, "weight"))
            weight = text;
        else
            return COMPLAIN(at, "clusters.sources", "unknown key '%s'; allowed: name, weight",
                            key ? key : "?");
    }
    return add_source(c, name, weight, at);
}

// {en: 1, de: 0.5}, or a list of {name, weight}
static enum neb_status walk_sources(struct walk *w, struct agent_cluster *c, yaml_node_t *node,
                                    const char *where) {
    char at[NEB_PATH_MAX + 32];
    if (node->type == YAML_SEQUENCE_NODE) {
        for (yaml_node_item_t *i = node->data.sequence.items.start;
             i < node->data.sequence.items.top; i++)
            NEB_TRY(walk_source_item(w, c, yaml_document_get_node(w->doc, *i)));
        return NEB_OK;
    }
    if (node->type != YAML_MAPPING_NODE)
        return COMPLAIN(where, "clusters.sources",
                        "must map source names to weights, such as {en: 1, de: 0.5}");
    for (yaml_node_pair_t *p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top;
         p++) {
        yaml_node_t *k = yaml_document_get_node(w->doc, p->key),
                    *v = yaml_document_get_node(w->doc, p->value);
        where_of(w, k, at, sizeof at);
        NEB_TRY(add_source(c, scalar(k), scalar(v), at));
    }
    return NEB_OK;
}

static enum neb_status walk_mesh(struct walk *w, struct intra_mesh_config *mesh, yaml_node_t *map,
                                 const char *where) {
    if (map->type != YAML_MAPPING_NODE)
        return COMPLAIN(where, "clusters.mesh",
                        "must be a mapping such as {dp: 2, pp: 1, tp: 2}, or auto");
    for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
         p++) {
        const char *key = scalar(yaml_document_get_node(w->doc, p->key)),
                   *text = scalar(yaml_document_get_node(w->doc, p->value));
        int32_t *axis = !key                 ? NULL
                        : !strcmp(key, "dp") ? &mesh->dp
                        : !strcmp(key, "pp") ? &mesh->pp
                        : !strcmp(key, "tp") ? &mesh->tp
                                             : NULL;
        char *end = NULL;
        if (!axis)
            return COMPLAIN(where, "clusters.mesh", "unknown key '%s'; allowed: dp, pp, tp",
                            key ? key : "?");
        long n = text ? strtol(text, &end, 10) : 0;
        if (!text || !*text || *end || n < 1 || n > MESH_AXIS_MAX)
            return COMPLAIN(where, "clusters.mesh", "%s \"%s\" is not in 1..%d", key,
                            text ? text : "?", MESH_AXIS_MAX);
        *axis = (int32_t)n;
    }
    return NEB_OK;
}

static enum neb_status set_launcher(struct agent_cluster *c, const char *text, const char *where) {
    for (int i = 0; launcher_names[i]; i++)
        if (!strcmp(text, launcher_names[i])) {
            c->launcher = (enum agent_launcher)i;
            return NEB_OK;
        }
    return COMPLAIN(where, "clusters.launcher", "\"%s\" is not one of: local, mpirun, slurm, attach", text);
}

static enum neb_status set_role(struct agent_cluster *c, const char *text, const char *where) {
    int i = index_of(role_names, text);
    if (i < 0)
        return COMPLAIN(where, "clusters.role", "\"%s\" is not one of: generator, discriminator, teacher, student", text);
    c->role = (enum agent_role)i;
    return NEB_OK;
}

int agent_job_role(const struct agent_job *j, enum agent_role role) {
    for (int i = 0; i < j->n_clusters; i++)
        if (j->clusters[i].role == role)
            return i;
    return -1;
}

static enum neb_status set_place(const char *key, const char *const *names, const char *text,
                                 const char *where, int *out) {
    for (*out = 0; names[*out]; ++*out)
        if (!strcmp(text, names[*out]))
            return NEB_OK;
    return COMPLAIN(where, key, "\"%s\" is not one of: %s, %s, %s", text, names[0], names[1],
                    names[2]);
}
// device and precision; NULL: auto
static enum neb_status set_device(struct agent_cluster *c, const char *device,
                                  const char *precision, const char *where) {
    int d = (int)c->device, p = (int)c->precision;
    if (device)
        NEB_TRY(set_place("clusters.device", device_names, device, where, &d));
    if (precision)
        NEB_TRY(set_place("clusters.precision", precision_names, precision, where, &p));
    c->device = (enum agent_device)d;
    c->precision = (enum agent_precision)p;
    return NEB_OK;
}

static enum neb_status walk_cluster(struct walk *w, struct agent_cluster *c, yaml_node_t *map) {
    char at[NEB_PATH_MAX + 32], *end = NULL;
    c->mesh = (struct intra_mesh_config){1, 1, 1};
    where_of(w, map, at, sizeof at);
    if (map->type != YAML_MAPPING_NODE)
        return COMPLAIN(at, "clusters", "each item must be a mapping with keys %s", cluster_keys);
    for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
         p++) {
        yaml_node_t *k = yaml_document_get_node(w->doc, p->key),
                    *v = yaml_document_get_node(w->doc, p->value);
        const char *key = scalar(k), *text = scalar(v);
        where_of(w, k, at, sizeof at);
        if (key && !strcmp(key, "sources"))
            NEB_TRY(walk_sources(w, c, v, at));
        else if (key && text && !strcmp(key, "mesh") && !strcmp(text, "auto"))
            c->mesh_auto = true;
        else if (key && !strcmp(key, "mesh"))
            NEB_TRY(walk_mesh(w, &c->mesh, v, at));
        else if (key && text && !strcmp(key, "launcher"))
            NEB_TRY(set_launcher(c, text, at));
        else if (key && text && !strcmp(key, "role"))
            NEB_TRY(set_role(c, text, at));
        else if (key && text && !strcmp(key, "device"))
            NEB_TRY(set_device(c, text, NULL, at));
        else if (key && text && !strcmp(key, "precision"))
            NEB_TRY(set_device(c, NULL, text, at));
        else if (key && text && !strcmp(key, "name"))
            NEB_TRY(set_text(c->name, sizeof c->name, "clusters.name", text, at, true));
        else if (key && text && !strcmp(key, "corpus"))
            NEB_TRY(set_text(c->corpus, sizeof c->corpus, "clusters.corpus", text, at, false));
        else if (key && text && !strcmp(key, "witness")) {
            if (strcmp(text, "true") && strcmp(text, "false"))
                return COMPLAIN(at, "clusters.witness", "\"%s\" is neither true nor false", text);
            c->witness = !strcmp(text, "true");
        } else if (key && text && !strcmp(key, "threads")) {
            long n = strtol(text, &end, 10);
            if (!*text || *end || n < 0 || n > 256)
                return COMPLAIN(at, "clusters.threads", "\"%s\" is not in 0..256", text);
            c->threads = (int32_t)n;
        } else
            return COMPLAIN(at, "clusters", "unknown key '%s'; allowed: %s", key ? key : "?",
                            cluster_keys);
    }
    where_of(w, map, at, sizeof at);
    return c->name[0] ? NEB_OK : COMPLAIN(at, "clusters.name", "is missing");
}

static enum neb_status walk_clusters(struct walk *w, yaml_node_t *seq, const char *where) {
    if (seq->type != YAML_SEQUENCE_NODE)
        return COMPLAIN(where, "clusters", "must be a list of mappings with keys %s", cluster_keys);
    for (yaml_node_item_t *i = seq->data.sequence.items.start; i < seq->data.sequence.items.top;
         i++) {
        if (w->job->n_clusters == AGENT_CLUSTERS_MAX)
            return COMPLAIN(where, "clusters", "more than %d", AGENT_CLUSTERS_MAX);
        NEB_TRY(walk_cluster(w, &w->job->clusters[w->job->n_clusters++],
                             yaml_document_get_node(w->doc, *i)));
    }
    return NEB_OK;
}

static enum neb_status walk_mapping(struct walk *w, yaml_node_t *map, const char *prefix,
                                    int depth) {
    char path[256], at[NEB_PATH_MAX + 32];
    where_of(w, map, at, sizeof at);
    if (map->type != YAML_MAPPING_NODE)
        return COMPLAIN(at, *prefix ? prefix : "job file", "must be a mapping of keys to values");
    for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
         p++) {
        yaml_node_t *k = yaml_document_get_node(w->doc, p->key),
                    *v = yaml_document_get_node(w->doc, p->value);
        const char *key = scalar(k);
        where_of(w, k, at, sizeof at);
        if (!key || !*key || strlen(key) > 60)
            return COMPLAIN(at, *prefix ? prefix : "job file", "a key must be a short word");
        snprintf(path, sizeof path, "%s%s%s", prefix, *prefix ? "." : "", key);
        const struct option *o = find_option(path);
        if (!strcmp(path, "trainable") && scalar(v))
            o = find_option("trainable.mode");
        if (!strcmp(path, "sync.tune") && scalar(v))
            o = find_option("sync.tune.mode");
        if (o)
            NEB_TRY(set_option_node(w, o, v, at));
        else if (!strcmp(path, "clusters"))
            NEB_TRY(walk_clusters(w, v, at));
        else if (is_section(path) && depth < 4)
            NEB_TRY(walk_mapping(w, v, path, depth + 1));
        else
            return unknown_key(at, path);
    }
    return NEB_OK;
}

static enum neb_status walk_document(struct walk *w) {
    yaml_node_t *root = yaml_document_get_root_node(w->doc);
    if (!root)
        return COMPLAIN(w->file, "job file", "is empty");
    NEB_TRY(walk_mapping(w, root, "", 0));
    for (int i = 0; i < N_OPTIONS; i++)
        if (!options[i].preset && !w->seen[i] &&
            !(w->job->model_init[0] && !strncmp(options[i].path, "model.", 6)))
            return COMPLAIN(w->file, options[i].path, "is missing (%s)", options[i].help);
    return agent_job_validate(w->job, w->file);
}

enum neb_status agent_job_parse(const char *text, size_t len, const char *file,
                                struct agent_job *out) {
    yaml_parser_t parser;
    yaml_document_t doc;
    enum neb_status st;
    const char *slash = strrchr(file, '/');
    set_defaults(out);
    if (!yaml_parser_initialize(&parser))
        return neb_fail(NEB_ERR_NOMEM, "out of memory reading %s", file);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, len);
    if (!yaml_parser_load(&parser, &doc)) {
        st = neb_fail(NEB_ERR_FORMAT, "%s:%zu: not valid YAML: %s", slash ? slash + 1 : file,
                      parser.problem_mark.line + 1, parser.problem ? parser.problem : "unreadable");
    } else {
        struct walk w = {.doc = &doc, .file = slash ? slash + 1 : file, .job = out};
        st = walk_document(&w);
        yaml_document_delete(&doc);
    }
    yaml_parser_delete(&parser);
    return st;
}

enum neb_status agent_job_load(const char *path, struct agent_job *out) {
    struct neb_buf b = {0};
    enum neb_status st = neb_fs_read(path, 1 << 20, &b);
    if (st == NEB_OK)
        st = agent_job_parse((const char *)b.p, b.len, path, out);
    neb_buf_free(&b);
    return st;
}

enum neb_status agent_job_set(struct agent_job *job, const char *assignment) {
    char path[128];
    const char *eq = strchr(assignment, '=');
    if (!eq || eq == assignment || (size_t)(eq - assignment) >= sizeof path)
        return neb_fail(NEB_ERR_INVALID,
                        "--set %s: write it as path=value, such as sync.interval=10", assignment);
    snprintf(path, sizeof path, "%.*s", (int)(eq - assignment), assignment);
    const struct option *o = find_option(!strcmp(path, "trainable")   ? "trainable.mode"
                                         : !strcmp(path, "sync.tune") ? "sync.tune.mode"
                                                                      : path);
    if (!o)
        return unknown_key("--set", path);
    if (o->type != T_TARGETS && o->type != T_FREEZE)
        return set_scalar(job, o, eq + 1, "--set");
    char list[128], *save = NULL;
    snprintf(list, sizeof list, "%s", eq + 1);
    clear_list(job, o);
    for (char *t = strtok_r(list, "[], ", &save); t; t = strtok_r(NULL, "[], ", &save))
        NEB_TRY(set_item(job, o, t, "--set"));
    return NEB_OK;
}

// What the mesh of every cluster has to divide.
static enum neb_status validate_meshes(const struct agent_job *j, const char *file) {
    struct intra_model_config m = j->model;
    m.n_kv_heads = m.n_kv_heads ? m.n_kv_heads : m.n_heads;
    m.vocab = m.vocab ? m.vocab : INT32_MAX; // the corpus's
    for (int32_t i = 0; i < j->n_clusters; i++) {
        const struct agent_cluster *c = &j->clusters[i];
        if (c->device == AGENT_DEVICE_CPU && c->precision == AGENT_PRECISION_BF16)
            return COMPLAIN(file, "clusters.precision",
                            "cluster %s: bf16 needs device: cuda; processors train in fp32",
                            c->name);
        if (agent_cluster_ranks(c) == 1)
            continue;
        if (c->device == AGENT_DEVICE_CUDA)
            return COMPLAIN(file, "clusters.mesh",
                            "cluster %s: several ranks train on CPUs only; remove mesh, or set "
                            "device: cpu",
                            c->name);
        if (agent_cluster_ranks(c) > MESH_RANKS_MAX)
            return COMPLAIN(file, "clusters.mesh", "cluster %s: %d ranks, at most %d are possible",
                            c->name, agent_cluster_ranks(c), MESH_RANKS_MAX);
        if (intra_mesh_check(&c->mesh, &m) != NEB_OK)
            return COMPLAIN(file, "clusters.mesh", "cluster %s cannot run this model", c->name);
        if ((int64_t)j->accumulate * j->batch % c->mesh.dp)
            return COMPLAIN(file, "clusters.mesh",
                            "cluster %s: dp %d does not divide the sequences of a step, data.batch "
                            "%d x data.accumulate %d; the replicas get equal shares",
                            c->name, c->mesh.dp, j->batch, j->accumulate);
    }
    return NEB_OK;
}

static enum neb_status validate_rtd(const struct agent_job *j, const char *file) {
    const struct agent_rtd_config *r = &j->rtd;
    int g = agent_job_role(j, AGENT_ROLE_GENERATOR), d = agent_job_role(j, AGENT_ROLE_DISCRIMINATOR);
    for (int i = 0; j->mode != AGENT_MODE_RTD && i < j->n_clusters; i++)
        if (j->clusters[i].role && j->mode != AGENT_MODE_DISTILL)
            return COMPLAIN(file, "clusters.role", "only modes rtd and distill have roles");
    if (j->mode != AGENT_MODE_RTD)
        return NEB_OK;
    if (j->n_clusters != 2 || g < 0 || d < 0)
        return COMPLAIN(file, "clusters", "mode rtd takes two, one with role generator, one with role discriminator");
    for (int i = 0; i < 2; i++)
        if (agent_cluster_ranks(&j->clusters[i]) > 1 || j->clusters[i].launcher == AGENT_LAUNCHER_ATTACH)
            return COMPLAIN(file, "clusters.mesh", "cluster %s: mode rtd trains on one rank of its own",
                            j->clusters[i].name);
    if (j->clusters[d].n_sources)
        return COMPLAIN(file, "clusters.sources", "cluster %s: the generator's sources count, in the order of their names",
                        j->clusters[d].name);
    if (j->sync.scheme == AGENT_SCHEME_NONE)
        return COMPLAIN(file, "sync.scheme", "none: mode rtd takes federated, or synchronous for one process");
    if (j->trainable.mode != INTRA_TRAIN_FULL || j->trainable.freeze_embeddings || j->init_from[0] || j->model_init[0])
        return COMPLAIN(file, "trainable", "mode rtd trains everything, from nothing");
    if (j->autos)
        return COMPLAIN(file, "mode", "the planner knows only replicas: mode rtd takes no auto");
    int32_t width = r->d_model ? r->d_model : j->model.d_model, heads = r->n_heads ? r->n_heads : j->model.n_heads;
    if ((r->d_model || r->n_heads) && (width % heads || width / heads % 2 || width / heads > 256))
        return COMPLAIN(file, "rtd.generator.d_model", "%d over %d heads is not an even number in 2..256", width, heads);
    return NEB_OK;
}

static enum neb_status validate_distill(const struct agent_job *j, const char *file) {
    const struct agent_distill_config *d = &j->distill;
    int teachers = 0, students = 0;
    if (j->mode != AGENT_MODE_DISTILL)
        return NEB_OK;
    for (int i = 0; i < j->n_clusters; i++) {
        teachers += j->clusters[i].role == AGENT_ROLE_TEACHER;
        students += j->clusters[i].role == AGENT_ROLE_STUDENT;
        if (agent_cluster_ranks(&j->clusters[i]) > 1)
            return COMPLAIN(file, "clusters.mesh", "cluster %s: mode distill trains on one rank",
                            j->clusters[i].name);
        if (j->clusters[i].n_sources)
            return COMPLAIN(file, "clusters.sources",
                            "cluster %s: mode distill takes all sources of the corpus",
                            j->clusters[i].name);
    }
    if (teachers > 1 || students < 1 || teachers + students != j->n_clusters)
        return COMPLAIN(file, "clusters.role",
                        "mode distill takes at most one teacher, and students for the rest");
    if (j->clusters[0].role != AGENT_ROLE_STUDENT && j->sync.scheme == AGENT_SCHEME_SYNCHRONOUS)
        return COMPLAIN(file, "clusters", "synchronous: list the student first");
    if (teachers && j->sync.scheme == AGENT_SCHEME_NONE)
        return COMPLAIN(file, "sync.scheme", "none: labels could not travel");
    if (teachers && students > 1 && j->sync.scheme == AGENT_SCHEME_SYNCHRONOUS)
        return COMPLAIN(file, "sync.scheme", "synchronous: one student in one process");
    if (teachers && !d->k && j->sync.scheme != AGENT_SCHEME_SYNCHRONOUS)
        return COMPLAIN(file, "distill.k", "0: all logits need sync.scheme: synchronous; else 1..64");
    if ((d->k_min && d->k_min > d->k) || (d->k_max && d->k_max < d->k) ||
        (!d->k && (d->k_min || d->k_max)))
        return COMPLAIN(file, "distill.k", "%d is not within k_min %d and k_max %d", d->k, d->k_min,
                        d->k_max);
    if (d->relay && (!teachers || d->pushed || j->sync.scheme == AGENT_SCHEME_SYNCHRONOUS))
        return COMPLAIN(file, "distill.relay", "needs a teacher, and shards that all read");
    if (d->pushed && j->sync.scheme == AGENT_SCHEME_SYNCHRONOUS)
        return COMPLAIN(file, "distill.push_text", "synchronous: nothing travels in one process");
    if (teachers && !d->teacher[0] && !d->learn)
        return COMPLAIN(file, "distill.teacher.init",
                        "a teacher that does not learn needs a checkpoint");
    int32_t width = d->d_model ? d->d_model : j->model.d_model,
            heads = d->n_heads ? d->n_heads : j->model.n_heads;
    if ((d->d_model || d->n_heads) && (width % heads || width / heads % 2 || width / heads > 256))
        return COMPLAIN(file, "distill.teacher.d_model",
                        "%d over %d heads is not an even number in 2..256", width, heads);
    return NEB_OK;
}

static enum neb_status validate_shape(const struct agent_job *j, const char *file) {
    if (!j->model.head_dim && j->model.d_model % j->model.n_heads)
        return COMPLAIN(file, "model.d_model", "%d is not a multiple of n_heads %d; set head_dim",
                        j->model.d_model, j->model.n_heads);
    int32_t kv = j->model.n_kv_heads ? j->model.n_kv_heads : j->model.n_heads;
    int32_t head_dim = j->model.head_dim ? j->model.head_dim : j->model.d_model / j->model.n_heads;
    if (j->model.n_heads % kv)
        return COMPLAIN(file, "model.n_kv_heads", "%d does not divide n_heads %d", kv,
                        j->model.n_heads);
    if (head_dim % 2 || head_dim < 2 || head_dim > 256)
        return COMPLAIN(file, "model.head_dim",
                        "%d is not an even number in 2..256; choose d_model, n_heads or head_dim",
                        head_dim);
    return NEB_OK;
}

static enum neb_status validate_tune(const struct agent_job *j, const char *file) {
    const struct agent_tune *t = &j->sync.tune;
    int rung = (int)inter_rung_of(j->sync.codec) - 1;
    if (t->mode == AGENT_TUNE_FIXED)
        return NEB_OK;
    if (rung < 0 || rung < t->finest || rung > t->coarsest)
        return COMPLAIN(file, "sync.tune", "auto starts from sync.codec, and %s is not between %s and %s (sync.tune.finest, coarsest)",
                        j->sync.codec, rung_names[t->finest], rung_names[t->coarsest]);
    if (t->overlap_max && (t->overlap_max < j->sync.overlap || t->overlap_max >= j->sync.interval))
        return COMPLAIN(file, "sync.tune.overlap_max", "%d must be at least sync.overlap %d and below sync.interval %d",
                        t->overlap_max, j->sync.overlap, j->sync.interval);
    if (t->interval_max && t->interval_max < j->sync.interval)
        return COMPLAIN(file, "sync.tune.interval_max", "%d must not be below sync.interval %d", t->interval_max, j->sync.interval);
    return NEB_OK;
}

enum neb_status agent_job_validate(const struct agent_job *j, const char *file) {
    if (j->n_clusters < 1)
        return COMPLAIN(file, "clusters", "is missing: list at least one, with a name");
    for (int32_t i = 0; i < j->n_clusters; i++)
        for (int32_t k = 0; k < i; k++)
            if (!strcmp(j->clusters[i].name, j->clusters[k].name))
                return COMPLAIN(file, "clusters.name", "\"%s\" is given to two clusters",
                                j->clusters[i].name);
    int32_t data = 0;
    for (int32_t i = 0; i < j->n_clusters; i++)
        data += !j->clusters[i].witness;
    for (int32_t i = 1; i < j->n_clusters; i++)
        if (j->clusters[i - 1].witness && !j->clusters[i].witness)
            return COMPLAIN(file, "clusters.witness", "\"%s\" trains: list it before the witnesses",
                            j->clusters[i].name);
    if (data < j->n_clusters && (data < 2 || j->n_clusters < 3))
        return COMPLAIN(file, "clusters.witness",
                        "a witness helps two or more clusters that train to elect a leader; here are %d",
                        data);
    if (j->sync.gate == AGENT_GATE_ROBUST && (data < INTER_ROBUST_MEMBERS || data < j->n_clusters))
        return COMPLAIN(file, "sync.gate",
                        "robust needs %d clusters that train, and no witness, to outvote one bad one; "
                        "here are %d of %d: use trusted, or more clusters",
                        INTER_ROBUST_MEMBERS, data, j->n_clusters);
    if (j->model_init[0] &&
        !(j->model.n_layers && j->model.d_model && j->model.n_heads && j->model.d_ff))
        return NEB_OK; // checked again when agent_job_model_init() has filled them in
    NEB_TRY(validate_shape(j, file));
    NEB_TRY(validate_meshes(j, file));
    NEB_TRY(validate_rtd(j, file));
    NEB_TRY(validate_distill(j, file));
    for (int32_t i = 0; i < j->n_clusters; i++) {
        if (j->clusters[i].launcher != AGENT_LAUNCHER_ATTACH)
            continue;
        if (!j->model.vocab)
            return COMPLAIN(file, "model.vocab", "is missing: \"%s\" has launcher attach, and its trainer "
                            "brings no corpus to take it from", j->clusters[i].name);
        if (agent_cluster_ranks(&j->clusters[i]) > 1)
            return COMPLAIN(file, "clusters.mesh", "\"%s\" has launcher attach: its trainer has ranks of its own",
                            j->clusters[i].name);
        if (j->sync.scheme == AGENT_SCHEME_SYNCHRONOUS)
            return COMPLAIN(file, "clusters.launcher", "attach does not go with sync.scheme synchronous");
    }
    struct inter_rate_limit limit;
    if (inter_rate_limit_parse(j->rate_limit, &limit) != NEB_OK) // it said why
        return COMPLAIN(file, "wan.rate_limit", "\"%s\" is not a rate such as 20mbit, or 100mbit 08:00-18:00=20mbit", j->rate_limit);
    NEB_TRY(validate_tune(j, file));
    if (j->sync.early_steps % j->sync.early_interval)
        return COMPLAIN(file, "sync.early_steps", "%d is not a multiple of sync.early_interval %d",
                        j->sync.early_steps, j->sync.early_interval);
    if (j->sync.early_steps &&
        (j->sync.overlap >= j->sync.early_interval || j->sync.fragments > j->sync.early_interval))
        return COMPLAIN(file, "sync.early_interval",
                        "%d must be above sync.overlap %d and at least sync.fragments %d",
                        j->sync.early_interval, j->sync.overlap, j->sync.fragments);
    struct agent_wan link;
    if (j->sync.link[0] && agent_wan_parse(j->sync.link, "sync.link", &link) != NEB_OK)
        return COMPLAIN(file, "sync.link", "\"%s\" does not describe a link", j->sync.link);
    // What is auto holds a default, which the planner replaces: no conflict with what is written.
    bool chosen = !(j->autos & (AGENT_AUTO_INTERVAL | AGENT_AUTO_OVERLAP));
    if (chosen && j->sync.overlap >= j->sync.interval)
        return COMPLAIN(file, "sync.overlap", "%d must be below sync.interval %d", j->sync.overlap,
                        j->sync.interval);
    if (chosen && j->sync.fragments > j->sync.interval)
        return COMPLAIN(file, "sync.fragments", "%d must not be above sync.interval %d",
                        j->sync.fragments, j->sync.interval);
    if (j->trainable.mode == INTRA_TRAIN_LORA &&
        (j->trainable.lora_rank < 1 || !j->trainable.lora_targets))
        return COMPLAIN(file, "trainable.rank",
                        "lora needs a rank of 1 or more and at least one target");
    if (j->trainable.mode == INTRA_TRAIN_LAST_LAYERS &&
        (j->trainable.last_layers < 1 || j->trainable.last_layers > j->model.n_layers))
        return COMPLAIN(file, "trainable.n", "%d is not in 1..%d", j->trainable.last_layers,
                        j->model.n_layers);
    return NEB_OK;
}

// ---- JSON -----------------------------------------------------------------------------------------------------

static json_t *option_to_json(const struct agent_job *job, const struct option *o) {
    const char *p = (const char *)job + o->at;
    json_t *list;
    switch (o->type) {
    case T_INT32: return json_integer(*(const int32_t *)(const void *)p);
    case T_INT64: return json_integer(*(const int64_t *)(const void *)p);
    case T_FLOAT: return json_real((double)*(const float *)(const void *)p);
    case T_BOOL: return json_boolean(*(const bool *)(const void *)p);
    case T_STRING:
    case T_NAME:
    case T_CODEC: return json_string(p);
    case T_ENUM: {
        int i;
        memcpy(&i, p, sizeof i);
        return json_string(o->names[i]);
    }
    case T_TARGETS:
        list = json_array();
        for (int i = 0; target_names[i]; i++)
            if (job->trainable.lora_targets & 1u << i)
                json_array_append_new(list, json_string(target_names[i]));
        return list;
    case T_FREEZE:
        list = json_array();
        if (job->trainable.freeze_embeddings)
            json_array_append_new(list, json_string("embeddings"));
        return list;
    }
    return NULL;
}

json_t *agent_job_to_json(const struct agent_job *job) {
    json_t *root = json_object(), *clusters = json_array();
    for (int i = 0; i < N_OPTIONS; i++)
        json_object_set_new(root, options[i].path, option_to_json(job, &options[i]));
    for (int32_t i = 0; i < job->n_clusters; i++) {
        const struct agent_cluster *c = &job->clusters[i];
        json_t *sources = json_object();
        for (int32_t k = 0; k < c->n_sources; k++)
            json_object_set_new(sources, c->sources[k].name,
                                json_real((double)c->sources[k].weight));
        json_t *o = json_pack("{s:s,s:b,s:i,s:s,s:o}", "name", c->name, "witness", c->witness, "threads",
                              c->threads, "corpus", c->corpus, "sources", sources);
        if (c->role) // likewise below
            json_object_set_new(o, "role", json_string(role_names[c->role]));
        if (agent_cluster_ranks(c) > 1 ||
            c->launcher) { // left out otherwise: ids stay what they were
            json_object_set_new(o, "mesh",
                                json_pack("[i,i,i]", c->mesh.dp, c->mesh.pp, c->mesh.tp));
            json_object_set_new(o, "launcher", json_string(launcher_names[c->launcher]));
        }
        if (c->device)
            json_object_set_new(o, "device", json_string(device_names[c->device]));
        if (c->precision)
            json_object_set_new(o, "precision", json_string(precision_names[c->precision]));
        json_array_append_new(clusters, o);
    }
    json_object_set_new(root, "clusters", clusters);
    return root;
}

enum neb_status agent_job_id(const struct agent_job *job, const uint8_t nonce[AGENT_JOB_ID_BYTES],
                             uint8_t out[AGENT_JOB_ID_BYTES]) {
    static const char domain[] = "nebula job v1";
    uint8_t digest[NEB_SHA256_BYTES];
    struct neb_sha256 *h = NULL;
    json_t *json = agent_job_to_json(job);
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    enum neb_status st =
        text ? neb_sha256_create(&h) : neb_fail(NEB_ERR_NOMEM, "out of memory for the job's id");
    if (st == NEB_OK) {
        neb_sha256_add(h, domain, sizeof domain);
        neb_sha256_add(h, nonce, AGENT_JOB_ID_BYTES);
        neb_sha256_add(h, text, strlen(text));
        neb_sha256_finish(h, digest);
        memcpy(out, digest, AGENT_JOB_ID_BYTES);
    }
    neb_sha256_destroy(&h);
    free(text);
    json_decref(json);
    return st;
}

static enum neb_status json_to_text(const json_t *v, char *out, size_t cap) {
    int n = -1;
    if (json_is_string(v))
        n = snprintf(out, cap, "%s", json_string_value(v));
    else if (json_is_integer(v))
        n = snprintf(out, cap, "%lld", (long long)json_integer_value(v));
    else if (json_is_real(v))
        n = snprintf(out, cap, "%.9g", json_real_value(v));
    else if (json_is_boolean(v))
        n = snprintf(out, cap, "%s", json_is_true(v) ? "true" : "false");
    return n >= 0 && (size_t)n < cap
               ? NEB_OK
               : neb_fail(NEB_ERR_FORMAT, "job specification: a value of a wrong type");
}

static enum neb_status mesh_from_json(const json_t *v, struct agent_cluster *c) {
    const json_t *mesh = json_object_get(v, "mesh");
    const char *launcher = json_string_value(json_object_get(v, "launcher"));
    int32_t *const axes[] = {&c->mesh.dp, &c->mesh.pp, &c->mesh.tp};
    c->mesh = (struct intra_mesh_config){1, 1, 1};
    NEB_TRY(set_device(c, json_string_value(json_object_get(v, "device")),
                       json_string_value(json_object_get(v, "precision")), "job specification"));
    if (!mesh)
        return NEB_OK;
    for (size_t i = 0; i < 3; i++) {
        json_int_t n = json_integer_value(json_array_get(mesh, i));
        if (n < 1 || n > MESH_AXIS_MAX || json_array_size(mesh) != 3 || !launcher)
            return neb_fail(NEB_ERR_FORMAT, "job specification: malformed mesh");
        *axes[i] = (int32_t)n;
    }
    return set_launcher(c, launcher, "job specification");
}

static enum neb_status cluster_from_json(const json_t *v, struct agent_cluster *c) {
    const json_t *role = json_object_get(v, "role");
    size_t known = 5u + (json_object_get(v, "mesh") ? 2 : 0) + (json_object_get(v, "device") != NULL) + (role != NULL) +
                   (json_object_get(v, "precision") != NULL);
    const char *name = json_string_value(json_object_get(v, "name")),
               *corpus = json_string_value(json_object_get(v, "corpus"));
    const json_t *threads = json_object_get(v, "threads"), *witness = json_object_get(v, "witness"),
                 *w;
    json_t *sources = json_object_get(v, "sources");
    const char *key;
    if (!name || !corpus || !json_is_integer(threads) || !json_is_object(sources) ||
        !json_is_boolean(witness) || json_object_size(v) != known ||
        json_object_size(sources) > AGENT_SOURCES_MAX || json_integer_value(threads) < 0 ||
        json_integer_value(threads) > 256)
        return neb_fail(NEB_ERR_FORMAT, "job specification: malformed cluster");
    NEB_TRY(set_text(c->name, sizeof c->name, "clusters.name", name, "job specification", true));
    NEB_TRY(set_text(c->corpus, sizeof c->corpus, "clusters.corpus", corpus, "job specification",
                     false));
    c->threads = (int32_t)json_integer_value(threads);
    c->witness = json_is_true(witness);
    NEB_TRY(mesh_from_json(v, c));
    if (role)
        NEB_TRY(set_role(c, json_is_string(role) ? json_string_value(role) : "?", "job specification"));
    json_object_foreach(sources, key, w) {
        struct agent_source *s = &c->sources[c->n_sources++];
        NEB_TRY(
            set_text(s->name, sizeof s->name, "clusters.sources", key, "job specification", true));
        s->weight = (float)json_number_value(w);
        if (!(s->weight > 0) || !(s->weight <= 1e6f))
            return neb_fail(NEB_ERR_FORMAT, "job specification: weight of %s is not above 0",
                            s->name);
    }
    return NEB_OK;
}

enum neb_status agent_job_from_json(const json_t *json, struct agent_job *out) {
    char text[NEB_PATH_MAX];
    size_t i;
    json_t *v, *item;
    set_defaults(out);
    json_t *clusters = json_object_get(json, "clusters");
    if (!json_is_object(json) || json_object_size(json) != N_OPTIONS + 1 ||
        !json_is_array(clusters) || json_array_size(clusters) > AGENT_CLUSTERS_MAX)
        return neb_fail(
            NEB_ERR_FORMAT,
            "job specification: not an object of all %d keys; do all agents run the same version?",
            N_OPTIONS + 1);
    for (int k = 0; k < N_OPTIONS; k++) {
        const struct option *o = &options[k];
        if (!(v = json_object_get(json, o->path)))
            return neb_fail(NEB_ERR_FORMAT, "job specification: key %s is missing", o->path);
        if (o->type != T_TARGETS && o->type != T_FREEZE) {
            NEB_TRY(json_to_text(v, text, sizeof text));
            NEB_TRY(set_scalar(out, o, text, "job specification"));
            continue;
        }
        clear_list(out, o);
        json_array_foreach(v, i, item) {
            NEB_TRY(json_to_text(item, text, sizeof text));
            NEB_TRY(set_item(out, o, text, "job specification"));
        }
    }
    json_array_foreach(clusters, i, item)
        NEB_TRY(cluster_from_json(item, &out->clusters[out->n_clusters++]));
    if (out->autos)
        return neb_fail(NEB_ERR_FORMAT, "job specification: a key still says auto");
    return agent_job_validate(out, "job specification");
}

void agent_job_reference(FILE *f) {
    char allowed[128];
    fputs("| key | default | allowed | what |\n| --- | --- | --- | --- |\n", f);
    for (int i = 0; i < N_OPTIONS; i++) {
        const struct option *o = &options[i];
        allowed[0] = 0;
        if (o->names)
            join(allowed, sizeof allowed, o->names);
        else if (o->type == T_BOOL)
            snprintf(allowed, sizeof allowed, "true, false");
        else if (o->type == T_INT32 || o->type == T_INT64 || o->type == T_FLOAT)
            snprintf(allowed, sizeof allowed, "%.10g to %.10g", o->min, o->max);
        if (auto_bit(o))
            snprintf(allowed + strlen(allowed), sizeof allowed - strlen(allowed), "%sauto",
                     allowed[0] ? ", " : "");
        fprintf(f, "| `%s` | %s | %s | %s |\n", o->path,
                o->preset ? (*o->preset ? o->preset : "none") : "**required**", allowed, o->help);
    }
    fprintf(
        f,
        "| `clusters` | **required** | 1 to %d | list of {%s}; sources: {NAME: WEIGHT} or a "
        "list of {name, weight}, relative; "
        "none: all of the corpus by size; mesh: {dp, pp, tp}, ranks of the cluster's worker "
        "(default 1 each; dp must divide batch x accumulate, pp model.n_layers, tp heads and "
        "d_ff), or auto; launcher: local (all on the agent's machine), mpirun (its hosts), slurm "
        "(a step of the agent's allocation) or attach: none is started, your own training loop "
        "attaches through libnebula; device: auto (CUDA where there is one), cpu or cuda; "
        "precision: auto (bf16 on CUDA), fp32 or bf16 (CUDA only) |\n",
        AGENT_CLUSTERS_MAX, cluster_keys);
}
