// SPDX-License-Identifier: Apache-2.0
// The table of all options of a job: one row an option, in the order of sections. Nothing else is here; config_options.h says who
// reads it. After a change: nebula check --reference makes the table of configs/README.md anew.
#include "agent/job/config_options.h"
#include "inter/record/types.h"
#include "intra/model/rope.h"

#include <stddef.h>

static const char *const mode_names[] = {"replicas", "rtd", "distill", NULL};
const char *const config_role_names[] = {"none",    "generator", "discriminator",
                                         "teacher", "student",   NULL};
static const char *const lost_names[] = {"wait", "alone", NULL};
static const char *const gate_names[] = {"trusted", "robust", "private", NULL};
static const char *const row_counts_names[] = {"coarse", "exact", NULL};
static const char *const scheme_names[] = {"federated", "synchronous", "none", NULL};
static const char *const schedule_names[] = {"cosine", "wsd", "constant", NULL};
static const char *const clip_names[] = {"none", "global_norm", "adagc", NULL};
static const char *const trainable_names[] = {"full", "lora", "bitfit", "last_layers", NULL};
static const char *const mask_names[] = {"causal", NULL};
static const char *const tune_names[] = {"fixed", "auto", NULL};
const char *const config_level_names[] = {"int8",          "int4",          "int3",         "int2",
                                          "topk:512/4096", "topk:256/4096", "topk:64/4096", NULL};
const char *const config_target_names[] = {"q", "k", "v", "o", "gate", "up", "down", NULL};

// Of a cluster, which has no rows below:
const char config_cluster_keys[] =
    "name, role, witness, threads, corpus, sources, mesh, ranks, launcher, "
    "device, precision, outer_state, cuda_graphs, batch, recompute, profile";
// A key that is not here is shared, and so is what a new one is until somebody says otherwise here.
const struct config_cluster_key config_cluster_table[] = {
    {"name", "clusters.name", CONFIG_SHARED},
    {"role", "clusters.role", CONFIG_SHARED},
    {"witness", "clusters.witness", CONFIG_SHARED},
    {"corpus", "clusters.corpus", CONFIG_SHARED},
    {"sources", "clusters.sources", CONFIG_SHARED},
    {"outer_state", "clusters.outer_state", CONFIG_SHARED},
    {"threads", "clusters.threads", CONFIG_PLACE},
    {"mesh", "clusters.mesh", CONFIG_PLACE},
    {"launcher", "clusters.launcher", CONFIG_PLACE}, // attach, which is another trainer, is shared
    {"device", "clusters.device", CONFIG_PLACE},
    {"cuda_graphs", "clusters.cuda_graphs", CONFIG_PLACE},
    {"recompute", "clusters.recompute", CONFIG_PLACE}, // the same bits
    {"precision", "clusters.precision", CONFIG_PLACE_OPEN},
    {"batch", "clusters.batch", CONFIG_PLACE_OPEN}, // the same sequences a step
};
const int config_n_cluster_keys = sizeof config_cluster_table / sizeof config_cluster_table[0];
const char *const config_launcher_names[] = {"local", "mpirun", "slurm", "attach", NULL};
const char *const config_device_names[] = {"auto", "cpu", "cuda", NULL};
const char *const config_precision_names[] = {"auto", "fp32", "bf16", NULL};
const char *const config_outer_state_names[] = {"auto", "device", "host", NULL};
const char *const config_graphs_names[] = {"auto", "on", "off", NULL};

#define AT(field) offsetof(struct agent_job, field), sizeof(((struct agent_job *)0)->field)

const struct config_option config_options[] = {
    {"job", T_NAME, AT(name), 0, 0, NULL, NULL, "name of the job"},
    {"mode", T_ENUM, AT(mode), 0, 0, "replicas", mode_names,
     "replicas: the same model on every cluster; rtd: a generator and a discriminator; "
     "distill: a teacher and students that translate"},
    {"seed", T_INT64, AT(seed), 0, AGENT_SEED_MAX, "1", NULL,
     "of initial parameters and data order"},
    {"steps", T_INT64, AT(steps), 1, AGENT_STEPS_MAX, NULL, NULL, "inner steps of every cluster"},
    {"model.init", T_PATH, AT(model_init), 0, 0, "", NULL,
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
    {"model.rope_theta", T_FLOAT, AT(model.rope_theta), 1.001, 1e9, "10000", NULL,
     "base of the rotary positions"},
    {"model.rope_scaling.rope_type", T_ENUM, AT(model.rope_scaling.type), 0, 0, "default",
     intra_rope_types,
     "how rotary positions are scaled for longer sequences, as in transformers; default: not"},
    {"model.rope_scaling.factor", T_FLOAT, AT(model.rope_scaling.factor), 0, INTRA_ROPE_FACTOR_MAX,
     "0", NULL, "linear, llama3: 1 or more; frequencies are divided by it"},
    {"model.rope_scaling.low_freq_factor", T_FLOAT, AT(model.rope_scaling.low), 0,
     INTRA_ROPE_FACTOR_MAX, "0", NULL,
     "llama3: frequencies that turn less often in the original positions are divided by factor"},
    {"model.rope_scaling.high_freq_factor", T_FLOAT, AT(model.rope_scaling.high), 0,
     INTRA_ROPE_FACTOR_MAX, "0", NULL,
     "llama3: those that turn more often are kept; between the two it is gradual"},
    {"model.rope_scaling.original_max_position_embeddings", T_INT32,
     AT(model.rope_scaling.original), 0, INTRA_ROPE_ORIGINAL_MAX, "0", NULL,
     "llama3: positions that the model first learned"},
    {"model.norm_eps", T_FLOAT, AT(model.norm_eps), 1e-12, 0.1, "1e-5", NULL, "of RMSNorm"},
    {"model.mask", T_ENUM, AT(model.mask), 0, 0, "causal", mask_names, "what a position sees"},
    {"data.corpus", T_PATH, AT(corpus), 0, 0, NULL, NULL, "folder made by nebula data build"},
    {"data.tokenizer_sha256", T_STRING, AT(tokenizer_sha256), 0, 0, "", NULL,
     "of the vocabulary that all clusters' corpora have; empty: nebula pretrain fills in that "
     "of those that are on its machine"},
    {"data.seq_len", T_INT32, AT(seq_len), 1, 1 << 20, NULL, NULL, "tokens of a sequence"},
    {"data.batch", T_INT32, AT(batch), 1, CONFIG_BATCH_MAX, NULL, NULL,
     "sequences of a micro-batch"},
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
    {"optim.clip.ratio", T_FLOAT, AT(optim.clip.ratio), 1, 100, "1.04", NULL,
     "adagc: a tensor is clipped to this times the moving mean of its norm"},
    {"optim.clip.beta", T_FLOAT, AT(optim.clip.beta), 0, 1, "0.99", NULL,
     "adagc: decay of that mean"},
    {"optim.clip.warmup", T_INT64, AT(optim.clip.warmup), 0, 1e12, "100", NULL,
     "adagc: steps of global clipping first"},
    {"recompute", T_BOOL, AT(recompute), 0, 0, "false", NULL,
     "keep block inputs only, compute activations again"},
    {"init_from", T_PATH, AT(init_from), 0, 0, "", NULL,
     "checkpoint whose parameters to start from: file or folder; once the job has checkpoints of "
     "its own it is "
     "not read any more"},
    {"init_sha256", T_STRING, AT(init_sha256), 0, 0, "", NULL,
     "of the parameters in the checkpoint of init_from, which may have another path at each site; "
     "empty: nebula pretrain fills it in"},
    {"trainable.mode", T_ENUM, AT(trainable.mode), 0, 0, "full", trainable_names,
     "what learns and is exchanged; `trainable: full` is short for it"},
    {"trainable.rank", T_INT32, AT(trainable.lora_rank), 0, 1024, "0", NULL,
     "lora: rank of the adapters, 1 or more"},
    {"trainable.alpha", T_FLOAT, AT(trainable.lora_alpha), 1e-6, 1e6, "16", NULL,
     "lora: adapters are scaled by alpha / rank"},
    {"trainable.targets", T_TARGETS, AT(trainable.lora_targets), 0, 0, "[q, v]", NULL,
     "lora: of q, k, v, o, gate, up, down"},
    {"trainable.n", T_INT32, AT(trainable.last_layers), 0, 1024, "0", NULL,
     "last_layers: how many"},
    {"trainable.freeze", T_FREEZE, AT(trainable.freeze_embeddings), 0, 0, "[]", NULL,
     "what is frozen besides; only embeddings: [embeddings]"},
    {"sync.scheme", T_ENUM, AT(sync.scheme), 0, 0, "federated", scheme_names,
     "synchronous: the reference, in one process"},
    {"sync.interval", T_INT32, AT(sync.interval), 1, 1e9, "30", NULL,
     "H: inner steps between exchanges"},
    {"sync.early_interval", T_INT32, AT(sync.early_interval), 1, 1e9, "10", NULL,
     "H of the first early_steps steps"},
    {"sync.early_steps", T_INT32, AT(sync.early_steps), 0, 1e9, "0", NULL,
     "a multiple of early_interval; 0: one interval throughout"},
    {"sync.fragments", T_INT32, AT(sync.fragments), 1, INTER_FRAGMENTS_MAX, "1", NULL,
     "P: parts of the model that travel in turn"},
    {"sync.overlap", T_INT32, AT(sync.overlap), 0, 1e9, "0", NULL,
     "τ: inner steps while an update travels"},
    {"sync.codec", T_CODEC, AT(sync.codec), 0, 0, "int4", NULL,
     "fp32, bf16, int8, int4, int3 or int2[:BLOCK] (8..65535, default 128), topk[:K/CHUNK[:2 or "
     ":4]] (CHUNK 64..65536, default 64/4096, 2 bits)"},
    {"sync.error_feedback", T_FLOAT, AT(sync.error_feedback), 0, 1, "1", NULL,
     "β: decay of what could not be sent"},
    {"sync.anticipate", T_FLOAT, AT(sync.anticipate), 0, 1, "1", NULL,
     "a cluster trains on its own share of what it has not sent, times this; 0: on what all have"},
    {"sync.blend", T_FLOAT, AT(sync.blend), 0, 1, "0", NULL,
     "α: share of its own parameters that a cluster keeps at a merge, in place of anticipate; 0: "
     "rebase"},
    {"sync.outer.lr", T_FLOAT, AT(sync.eta), 0, 10, "1", NULL, "η: outer learning rate"},
    {"sync.outer.momentum", T_FLOAT, AT(sync.mu), 0, 0.999, "0", NULL, "μ (Nesterov)"},
    {"sync.row_weights", T_BOOL, AT(sync.row_weights), 0, 0, "true", NULL,
     "rows of embedding and output by the tokens seen of them"},
    {"sync.row_counts", T_ENUM, AT(sync.row_counts), 0, 0, "coarse", row_counts_names,
     "how row_weights tell these tokens: coarse, so that no word that came fewer than eight times "
     "in an update stands out (configs/quickstart.yaml, two seeds: 4.416 nats, with exact 4.409, "
     "without row_weights 4.63); exact, which lists them, and which other sites may not admit"},
    {"sync.kappa", T_FLOAT, AT(sync.kappa), 1e-6, 1e6, "0.1", NULL,
     "tokens that every row is worth unseen"},
    {"sync.merge_after", T_INT32, AT(sync.merge_after), 1, 1e6, "4", NULL,
     "S: missed intervals until a merge round"},
    {"sync.commit_all", T_BOOL, AT(sync.commit_all), 0, 0, "false", NULL,
     "never commit a round without every cluster's update"},
    {"sync.gate", T_ENUM, AT(sync.gate), 0, 0, "trusted", gate_names,
     "profile of the update gate: trusted; robust with five clusters or more; private with three "
     "or more, masked sums"},
    {"sync.private_range", T_FLOAT, AT(sync.private_range), 0, 1e6, "0", NULL,
     "private: largest change of a parameter in an update, the rest waits for the next; 0: "
     "optim.lr x sync.interval"},
    {"sync.private_colluders", T_INT32, AT(sync.private_colluders), 1, 14, "1", NULL,
     "private: clusters that may lie together without reading another one's update; two fewer than "
     "clusters at most"},
    {"sync.dp.clip", T_FLOAT, AT(sync.dp.clip), 0, 1e6, "0", NULL,
     "private: differential privacy of one site's update of one round: its length (L2) over all "
     "that is exchanged, at most, the rest waits for the next; 0: none"},
    {"sync.dp.noise", T_FLOAT, AT(sync.dp.noise), 0, 100, "0", NULL,
     "deviation of the noise in each element of a sum, over sync.dp.clip; nebula check says what "
     "it is worth"},
    {"sync.dp.delta", T_FLOAT, AT(sync.dp.delta), 1e-15, 0.01, "1e-6", NULL,
     "δ: epsilon is told for it"},
    {"sync.link", T_STRING, AT(sync.link), 0, 0, "", NULL,
     "RATE:DELAY[:LOSS] between clusters (100mbit:80ms:0.1%), for nebula plan and `auto`"},
    {"sync.grace_s", T_FLOAT, AT(sync.grace_s), 0, 1e6, "60", NULL,
     "seconds that a slow cluster is waited for once two updates are ready"},
    {"sync.tune.mode", T_ENUM, AT(sync.tune.mode), 0, 0, "fixed", tune_names,
     "auto: codec, overlap and interval follow the measured link; `sync.tune: auto` is short for "
     "it"},
    {"sync.tune.codec", T_BOOL, AT(sync.tune.codec), 0, 0, "true", NULL,
     "auto may change the codec"},
    {"sync.tune.overlap", T_BOOL, AT(sync.tune.overlap), 0, 0, "true", NULL, "auto may raise τ"},
    {"sync.tune.interval", T_BOOL, AT(sync.tune.interval), 0, 0, "false", NULL,
     "auto may raise H, to what the slowest cluster needs, for all alike"},
    {"sync.tune.balance", T_BOOL, AT(sync.tune.balance), 0, 0, "true", NULL,
     "auto lets a cluster that is slower by an eighth or more leave out steps, evenly, so that "
     "nobody waits for it"},
    {"sync.tune.finest", T_ENUM, AT(sync.tune.finest), 0, 0, "int4", config_level_names,
     "bound of the codec"},
    {"sync.tune.coarsest", T_ENUM, AT(sync.tune.coarsest), 0, 0, "topk:64/4096", config_level_names,
     "bound of the codec; a sparse one only where the rounds left touch every element four times"},
    {"sync.tune.overlap_max", T_INT32, AT(sync.tune.overlap_max), 0, 1e9, "0", NULL,
     "bound of τ; 0: half of sync.interval"},
    {"sync.tune.interval_max", T_INT32, AT(sync.tune.interval_max), 0, 1e9, "0", NULL,
     "bound of H; 0: twice sync.interval"},
    {"sync.tune.error_max", T_FLOAT, AT(sync.tune.error_max), 0.01, 10, "0.65", NULL,
     "relative error up to which a dense codec may be chosen"},
    {"wan.rate_limit", T_STRING, AT(rate_limit), 0, 0, "", NULL,
     "what a cluster sends at most, also by local time: 20mbit; 100mbit 08:00-18:00=20mbit; at the "
     "site that submits it in all, at others for this job"},
    {"rtd.mask_rate", T_FLOAT, AT(rtd.mask_rate), 0.001, 0.9, "0.15", NULL,
     "share of tokens that is masked"},
    {"rtd.lambda", T_FLOAT, AT(rtd.lambda), 1e-6, 1e6, "1", NULL,
     "λ: weight of the detection loss (gradients are clipped after it)"},
    {"rtd.push_text", T_BOOL, AT(rtd.push_text), 0, 0, "false", NULL,
     "the generator sends the text too; else both read the same shards"},
    {"rtd.generator_steps", T_INT32, AT(rtd.generator_steps), 1, 1000, "1", NULL,
     "ratio of steps, with discriminator_steps; `steps` counts those of the side that makes more"},
    {"rtd.discriminator_steps", T_INT32, AT(rtd.discriminator_steps), 1, 1000, "1", NULL,
     "see generator_steps"},
    {"rtd.ahead", T_INT32, AT(rtd.ahead), 1, 1024, "16", NULL,
     "batches that the generator may be ahead of the discriminator; more where a round trip takes "
     "longer than that"},
    {"rtd.share_embeddings", T_INT32, AT(rtd.share_embeddings), 0, 1e9, "0", NULL,
     "steps after which generator and discriminator average a block of their token embeddings; 0: "
     "never"},
    {"rtd.generator.n_layers", T_INT32, AT(rtd.shape.n_layers), 0, 1024, "0", NULL,
     "0: model.n_layers, and so on"},
    {"rtd.generator.d_model", T_INT32, AT(rtd.shape.d_model), 0, 65536, "0", NULL,
     "width of the generator"},
    {"rtd.generator.n_heads", T_INT32, AT(rtd.shape.n_heads), 0, 1024, "0", NULL, "its heads"},
    {"rtd.generator.d_ff", T_INT32, AT(rtd.shape.d_ff), 0, 1 << 20, "0", NULL,
     "its feed-forward width"},
    {"distill.lambda", T_FLOAT, AT(distill.lambda), 0, 1, "0.5", NULL,
     "λ: (1 - λ) cross-entropy + λ T² KL to the teacher"},
    {"distill.temperature", T_FLOAT, AT(distill.temperature), 0.1, 20, "1", NULL,
     "T: divides teacher's and student's logits in the loss"},
    {"distill.k", T_INT32, AT(distill.k), 0, 64, "8", NULL,
     "labels a position, the most likely; 0: all logits, only with sync.scheme synchronous"},
    {"distill.k_min", T_INT32, AT(distill.k_min), 0, 64, "0", NULL,
     "fewest labels a position on a slow link; 0: distill.k"},
    {"distill.k_max", T_INT32, AT(distill.k_max), 0, 64, "0", NULL,
     "most labels a position on a fast link; 0: distill.k"},
    {"distill.ahead", T_INT32, AT(distill.ahead), 1, 1024, "16", NULL,
     "steps that the teacher may be ahead of a student"},
    {"distill.teacher.init", T_PATH, AT(distill.teacher), 0, 0, "", NULL,
     "checkpoint of the teacher; none: it begins with nothing, and must learn"},
    {"distill.teacher.learn", T_BOOL, AT(distill.learn), 0, 0, "false", NULL,
     "the teacher trains on the batches that it labels"},
    {"distill.teacher.n_layers", T_INT32, AT(distill.shape.n_layers), 0, 1024, "0", NULL,
     "of a teacher without checkpoint; 0: model.n_layers, and so on"},
    {"distill.teacher.d_model", T_INT32, AT(distill.shape.d_model), 0, 65536, "0", NULL,
     "its width"},
    {"distill.teacher.n_heads", T_INT32, AT(distill.shape.n_heads), 0, 1024, "0", NULL,
     "its heads"},
    {"distill.teacher.d_ff", T_INT32, AT(distill.shape.d_ff), 0, 1 << 20, "0", NULL,
     "its feed-forward width"},
    {"distill.when_lost", T_ENUM, AT(distill.when_lost), 0, 0, "wait", lost_names,
     "a student without labels: wait for the teacher, or go on with cross-entropy"},
    {"distill.push_text", T_BOOL, AT(distill.pushed), 0, 0, "false", NULL,
     "students send their text, and the teacher needs no shards of it; else both read the same "
     "shards"},
    {"distill.federate", T_BOOL, AT(distill.federate), 0, 0, "false", NULL,
     "two students or more are one model: they exchange rounds as `sync` says; the teacher's agent "
     "votes in them"},
    {"distill.relay", T_BOOL, AT(distill.relay), 0, 0, "false", NULL,
     "the teacher's labels cross once, to the first student, which passes them on to the others; "
     "all students then learn from "
     "the same batches, each from its own start"},
    {"distill.patience_s", T_FLOAT, AT(distill.patience_s), 0, 1e6, "30", NULL,
     "seconds without labels until distill.when_lost applies"},
    {"distill.cache", T_PATH, AT(distill.cache), 0, 0, "", NULL,
     "folder where students keep labels; a job without teacher learns from it"},
    {"distill.beam", T_INT32, AT(distill.beam), 1, 16, "1", NULL,
     "beam of the translations that are measured at the end; 1: greedy"},
    {"eval.windows", T_INT32, AT(eval_windows), 0, 1e9, "64", NULL,
     "held-out windows a source; 0: all"},
    {"eval.every_steps", T_INT32, AT(eval_every), 0, 1e9, "0", NULL,
     "held-out loss of the cluster's own parameters on the way, as a line of metrics; 0: only at "
     "the end"},
    {"checkpoint.every_steps", T_INT32, AT(checkpoint_every), 0, 1e9, "1000", NULL,
     "what a run that dies loses at most, and how long agents keep updates; 0: only when stopped "
     "and at the end, and updates until then"},
    {"checkpoint.copy", T_BOOL, AT(checkpoint_copy), 0, 0, "true", NULL,
     "write a copy while training goes on (memory for it); false: training waits for the disk"},
    {"checkpoint.keep", T_INT32, AT(checkpoint_keep), 1, 16, "2", NULL, "generations"},
    {"hang_after_s", T_FLOAT, AT(hang_after_s), 0, 1e6, "60", NULL,
     "a worker that is silent for so long, and for 20 of its steps, is ended and begins again from "
     "its checkpoint; what is no "
     "step (start, exchange, evaluation, checkpoint) may take 30 times as long, and any time while "
     "bytes of "
     "a file move; 0: never. Mode replicas: workers of rtd and distill are not watched"},
    {"log_every", T_INT32, AT(log_every), 1, 1e9, "10", NULL, "inner steps a line of metrics"},
};
const int config_n_options = sizeof config_options / sizeof config_options[0];
_Static_assert(sizeof config_options / sizeof config_options[0] <= CONFIG_OPTIONS_MAX,
               "raise CONFIG_OPTIONS_MAX");
