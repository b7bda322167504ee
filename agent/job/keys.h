// SPDX-License-Identifier: Apache-2.0
// The keys of a job, one row each. A new key needs only a row here, its use and its test:
//
//     KEY_FLOAT(SYNC, kappa, "sync.kappa", 1e-6, 1e6, "0.1", "count that each row has ...")
//               |     |      |             |          |      +- help, one short line
//               |     |      |             |          +- default; NULL: required; "": none
//               |     |      |             +- smallest and largest value
//               |     |      +- the key in job files, in JSON and for --set
//               |     +- the field that holds the value
//               +- its struct: JOB, SYNC, SYNC_DP, SYNC_TUNE, RTD or DISTILL get their fields from
//                  these rows; OTHER: the field is in a struct that is written elsewhere
//
// This file has no include guard. config.h includes it once for each struct, and config_options.c
// for the table that YAML, --set, JSON and `nebula check --reference` read. The includer defines
// KEY(where, field, path, type, size or limits, default, names, help).

#define KEY_INT32(where, field, path, min, max, preset, help)                                      \
    KEY(where, int32_t field, field, path, T_INT32, min, max, preset, NULL, help)
#define KEY_INT64(where, field, path, min, max, preset, help)                                      \
    KEY(where, int64_t field, field, path, T_INT64, min, max, preset, NULL, help)
#define KEY_FLOAT(where, field, path, min, max, preset, help)                                      \
    KEY(where, float field, field, path, T_FLOAT, min, max, preset, NULL, help)
#define KEY_BOOL(where, field, path, preset, help)                                                 \
    KEY(where, bool field, field, path, T_BOOL, 0, 0, preset, NULL, help)
#define KEY_ENUM(where, field, path, type, names, preset, help)                                    \
    KEY(where, type field, field, path, T_ENUM, 0, 0, preset, names, help)
#define KEY_PATH(where, field, path, preset, help)                                                 \
    KEY(where, char field[NEB_PATH_MAX], field, path, T_PATH, 0, 0, preset, NULL, help)
#define KEY_TEXT(where, field, path, size, preset, help)                                           \
    KEY(where, char field[size], field, path, T_STRING, 0, 0, preset, NULL, help)
#define KEY_NAME(where, field, path, size, preset, help)                                           \
    KEY(where, char field[size], field, path, T_NAME, 0, 0, preset, NULL, help)
#define KEY_CODEC(where, field, path, size, preset, help)                                          \
    KEY(where, char field[size], field, path, T_CODEC, 0, 0, preset, NULL, help)
#define KEY_LEVEL(where, field, path, preset, help)                                                \
    KEY(where, int field, field, path, T_LEVEL, 0, 0, preset, NULL, help)
#define KEY_LIST(where, field, path, type, preset, help)                                           \
    KEY(where, uint32_t field, field, path, type, 0, 0, preset, NULL, help)

// clang-format off
KEY_NAME(JOB, name, "job", AGENT_NAME_MAX + 1, NULL, "name of the job")
KEY_ENUM(JOB, mode, "mode", enum agent_mode, mode_names, "replicas",
    "replicas: one model on all clusters; rtd: generator and discriminator; distill: teacher "
    "and students")
KEY_INT64(JOB, seed, "seed", 0, AGENT_SEED_MAX, "1",
    "seed of the first parameters and of the data order")
KEY_INT64(JOB, steps, "steps", 1, AGENT_STEPS_MAX, NULL, "inner steps of every cluster")

KEY(JOB, bool attached, attached, "model.mode", T_BOOL, 0, 0, "built-in", model_names,
    "attached: the tensors are those of your own loops; short: `model: attached`")
KEY_PATH(JOB, model_init, "model.init", "",
    "checkpoint that gives shape and first parameters, as `nebula import` writes it")
KEY_INT32(OTHER, model.vocab, "model.vocab", 0, 1 << 24, "0",
    "size of the vocabulary; 0: as in the corpus")
KEY_INT32(OTHER, model.n_layers, "model.n_layers", 1, 1024, NULL, "blocks")
KEY_INT32(OTHER, model.d_model, "model.d_model", 2, 65536, NULL, "width")
KEY_INT32(OTHER, model.n_heads, "model.n_heads", 1, 1024, NULL, "query heads")
KEY_INT32(OTHER, model.n_kv_heads, "model.n_kv_heads", 0, 1024, "0",
    "key/value heads; 0: as n_heads")
KEY_INT32(OTHER, model.head_dim, "model.head_dim", 0, 256, "0",
    "width of a head; 0: d_model / n_heads")
KEY_INT32(OTHER, model.d_ff, "model.d_ff", 1, 1 << 20, NULL, "width of the feed-forward layer")
KEY_BOOL(OTHER, model.tied, "model.tied", "true", "the output weight is the embedding")
KEY_BOOL(OTHER, model.qkv_bias, "model.qkv_bias", "false", "query, key and value have a bias")
KEY_FLOAT(OTHER, model.rope_theta, "model.rope_theta", 1.001, 1e9, "10000",
    "base of the rotary positions")
KEY_ENUM(OTHER, model.rope_scaling.type, "model.rope_scaling.rope_type", int, intra_rope_types,
    "default",
    "scaling of rotary positions for longer sequences, as in transformers")
KEY_FLOAT(OTHER, model.rope_scaling.factor, "model.rope_scaling.factor", 0, INTRA_ROPE_FACTOR_MAX,
    "0",
    "linear, llama3: frequencies are divided by it; 1 or more")
KEY_FLOAT(OTHER, model.rope_scaling.low, "model.rope_scaling.low_freq_factor", 0,
    INTRA_ROPE_FACTOR_MAX, "0",
    "llama3: a frequency with fewer turns over these positions is divided by factor")
KEY_FLOAT(OTHER, model.rope_scaling.high, "model.rope_scaling.high_freq_factor", 0,
    INTRA_ROPE_FACTOR_MAX, "0",
    "llama3: a frequency with more turns is kept; between the two: gradual")
KEY_INT32(OTHER, model.rope_scaling.original,
    "model.rope_scaling.original_max_position_embeddings", 0, INTRA_ROPE_ORIGINAL_MAX, "0",
    "llama3: positions that the model first learned")
KEY_FLOAT(OTHER, model.norm_eps, "model.norm_eps", 1e-12, 0.1, "1e-5", "epsilon of RMSNorm")
KEY_ENUM(OTHER, model.mask, "model.mask", int, mask_names, "causal",
    "positions that a position attends to")

KEY_PATH(JOB, corpus, "data.corpus", NULL, "folder made by `nebula data build`")
KEY_TEXT(JOB, tokenizer_sha256, "data.tokenizer_sha256", 2 * NEB_SHA256_BYTES + 1, "",
    "SHA-256 of the common vocabulary; `nebula pretrain` fills it in")
KEY_INT32(JOB, seq_len, "data.seq_len", 1, 1 << 20, NULL, "tokens of a sequence")
KEY_INT32(JOB, batch, "data.batch", 1, CONFIG_BATCH_MAX, NULL, "sequences of a micro-batch")
KEY_INT32(JOB, accumulate, "data.accumulate", 1, 65536, "1",
    "micro-batches of a step; with `batch: auto`, sequences of a step")
KEY_INT64(JOB, step_tokens, "data.step_tokens", 1, 1e12, "1048576",
    "`model: attached`: most tokens of a step; limits the weight of a cluster")

KEY_ENUM(OTHER, optim.kind, "optim.name", int, intra_optim_names, "adamw",
    "muon: for the matrices of blocks, and AdamW for the rest")
KEY_FLOAT(OTHER, optim.momentum, "optim.momentum", 0, 0.99999, "0.95", "muon: momentum of matrices")
KEY_FLOAT(OTHER, optim.schedule.lr, "optim.lr", 1e-9, 10, NULL, "peak learning rate")
KEY_INT64(OTHER, optim.schedule.warmup, "optim.warmup", 0, 1e12, "0", "steps of linear warm-up")
KEY_ENUM(OTHER, optim.schedule.kind, "optim.schedule", int, schedule_names, "cosine",
    "learning rate after the warm-up")
KEY_FLOAT(OTHER, optim.schedule.min_ratio, "optim.min_lr_ratio", 0, 1, "0.1",
    "last learning rate / peak")
KEY_FLOAT(OTHER, optim.schedule.decay_fraction, "optim.decay_fraction", 0, 1, "0.2",
    "wsd: share of the steps that decays")
KEY_FLOAT(OTHER, optim.beta1, "optim.beta1", 0, 0.99999, "0.9",
    "decay of the mean of the gradients")
KEY_FLOAT(OTHER, optim.beta2, "optim.beta2", 0, 0.99999, "0.95",
    "decay of the mean of their squares")
KEY_FLOAT(OTHER, optim.eps, "optim.eps", 1e-20, 1, "1e-8", "term added to the root")
KEY_FLOAT(OTHER, optim.weight_decay, "optim.weight_decay", 0, 10, "0.1", "weight decay of matrices")
KEY_ENUM(OTHER, optim.clip.kind, "optim.clip.kind", int, clip_names, "global_norm",
    "global_norm: all tensors together; adagc: each tensor (arXiv 2502.11034)")
KEY_FLOAT(OTHER, optim.clip.max_norm, "optim.clip.max_norm", 0, 1e9, "1",
    "largest global norm; 0: no limit")
KEY_FLOAT(OTHER, optim.clip.ratio, "optim.clip.ratio", 1, 100, "1.04",
    "adagc: largest norm of a tensor / moving mean of its norm")
KEY_FLOAT(OTHER, optim.clip.beta, "optim.clip.beta", 0, 1, "0.99", "adagc: decay of this mean")
KEY_INT64(OTHER, optim.clip.warmup, "optim.clip.warmup", 0, 1e12, "100",
    "adagc: first steps, which clip by the global norm")

KEY_BOOL(JOB, recompute, "recompute", "false",
    "store only the inputs of blocks, compute activations twice: less memory, more time")
KEY_PATH(JOB, init_from, "init_from", "",
    "checkpoint that gives the first parameters: file or folder")
KEY_TEXT(JOB, init_sha256, "init_sha256", 2 * NEB_SHA256_BYTES + 1, "",
    "SHA-256 of the parameters in init_from; `nebula pretrain` fills it in")

KEY_ENUM(JOB, init, "init.mode", enum agent_init, init_names, "seed",
    "`model: attached`: equal: all loops begin with the same values; default: from")
KEY_TEXT(JOB, init_cluster, "init.from", AGENT_NAME_MAX + 1, "",
    "`model: attached`: cluster whose first parameters all take; none: the first")

KEY_ENUM(OTHER, trainable.mode, "trainable.mode", int, trainable_names, "full",
    "parameters that learn and are exchanged; short: `trainable: lora`")
KEY_INT32(OTHER, trainable.lora_rank, "trainable.rank", 0, 1024, "0",
    "lora: rank of the adapters, 1 or more")
KEY_FLOAT(OTHER, trainable.lora_alpha, "trainable.alpha", 1e-6, 1e6, "16",
    "lora: scale of the adapters is alpha / rank")
KEY_LIST(OTHER, trainable.lora_targets, "trainable.targets", T_TARGETS, "[q, v]",
    "lora: any of q, k, v, o, gate, up, down")
KEY_INT32(OTHER, trainable.last_layers, "trainable.n", 0, 1024, "0",
    "last_layers: number of layers")
KEY_LIST(OTHER, trainable.freeze_embeddings, "trainable.freeze", T_FREEZE, "[]",
    "what stays fixed: [embeddings] or nothing")

KEY_ENUM(SYNC, scheme, "sync.scheme", enum agent_scheme, scheme_names, "federated",
    "federated: rounds; synchronous: one process, outer steps too; none: no exchange")
KEY_INT32(SYNC, interval, "sync.interval", 1, 1e9, "30", "H: inner steps between exchanges")
KEY_INT32(SYNC, early_interval, "sync.early_interval", 1, 1e9, "10",
    "H of the first early_steps steps")
KEY_INT32(SYNC, early_steps, "sync.early_steps", 0, 1e9, "0",
    "steps with early_interval, a multiple of it; 0: none")
KEY_INT32(SYNC, fragments, "sync.fragments", 1, INTER_FRAGMENTS_MAX, "1",
    "P: parts of the model, exchanged in turn")
KEY_INT32(SYNC, overlap, "sync.overlap", 0, 1e9, "0",
    "τ: inner steps while an update is in flight; below the interval")
KEY_CODEC(SYNC, codec, "sync.codec", 32, "int4", "the codecs") // compress/table.c has their texts
KEY_FLOAT(SYNC, error_feedback, "sync.error_feedback", 0, 1, "1",
    "β: factor on the residual that goes into the next update")
KEY_FLOAT(SYNC, anticipate, "sync.anticipate", 0, 1, "1",
    "a training cluster adds this x residual / clusters to its parameters; 0: nothing")
KEY_FLOAT(SYNC, blend, "sync.blend", 0, 1, "0",
    "α: share of its own parameters that a cluster keeps at a merge, instead of anticipate")
KEY_FLOAT(SYNC, eta, "sync.outer.lr", 0, 10, "1", "η: outer learning rate")
KEY_FLOAT(SYNC, mu, "sync.outer.momentum", 0, 0.999, "0", "μ: outer Nesterov momentum")
KEY_BOOL(SYNC, row_weights, "sync.row_weights", "true",
    "weight rows of embedding and output by how often a cluster saw their token")
KEY_ENUM(SYNC, row_counts, "sync.row_counts", enum agent_row_counts, row_counts_names, "coarse",
    "counts for row_weights: coarse hides rare tokens; exact may be against a site's policy")
KEY_FLOAT(SYNC, kappa, "sync.kappa", 1e-6, 1e6, "0.1",
    "count that each row has before any token is seen")
KEY_INT32(SYNC, merge_after, "sync.merge_after", 1, 1e6, "4",
    "S: missed intervals before a merge round")
KEY_BOOL(SYNC, commit_all, "sync.commit_all", "false",
    "commit a round only with the update of every cluster")
KEY_ENUM(SYNC, gate, "sync.gate", enum agent_gate, gate_names, "trusted",
    "check of updates; robust: five clusters or more; private: masked sums, three or more")
KEY_FLOAT(SYNC, private_range, "sync.private_range", 0, 1e6, "0",
    "largest change of a parameter in an update; 0: optim.lr x sync.interval")
KEY_INT32(SYNC, private_colluders, "sync.private_colluders", 1, 14, "1",
    "clusters that may collude and still read no other update")
KEY_FLOAT(SYNC_DP, clip, "sync.dp.clip", 0, 1e6, "0",
    "differential privacy: largest L2 norm of an update; 0: none")
KEY_FLOAT(SYNC_DP, noise, "sync.dp.noise", 0, 100, "0",
    "standard deviation of the noise in a sum / clip")
KEY_FLOAT(SYNC_DP, delta, "sync.dp.delta", 1e-15, 0.01, "1e-6", "δ for which epsilon is reported")
KEY_TEXT(SYNC, link, "sync.link", 64, "",
    "link between clusters, for the planner: 100mbit:80ms, 100mbit:80ms:0.1%")
KEY_FLOAT(SYNC, grace_s, "sync.grace_s", 0, 1e6, "60",
    "seconds to wait for a slow cluster after two updates are ready")
KEY_ENUM(SYNC_TUNE, mode, "sync.tune.mode", int, tune_names, "fixed",
    "auto: codec, overlap and interval follow the link; short: `sync.tune: auto`")
KEY_BOOL(SYNC_TUNE, codec, "sync.tune.codec", "true", "auto may change the codec")
KEY_BOOL(SYNC_TUNE, overlap, "sync.tune.overlap", "true", "auto may raise τ")
KEY_BOOL(SYNC_TUNE, interval, "sync.tune.interval", "false",
    "auto may raise H, for all clusters alike")
KEY_BOOL(SYNC_TUNE, balance, "sync.tune.balance", "true",
    "auto lets a cluster that is slower by 1/8 or more skip steps")
KEY_LEVEL(SYNC_TUNE, finest, "sync.tune.finest", LEVEL_OF_JOB,
    "finest codec level; sync.codec: that of the job")
KEY_LEVEL(SYNC_TUNE, coarsest, "sync.tune.coarsest", "topk:64/4096", "coarsest codec level")
KEY_INT32(SYNC_TUNE, overlap_max, "sync.tune.overlap_max", 0, 1e9, "0",
    "largest τ; 0: half of sync.interval")
KEY_INT32(SYNC_TUNE, interval_max, "sync.tune.interval_max", 0, 1e9, "0",
    "largest H; 0: twice sync.interval")
KEY_FLOAT(SYNC_TUNE, error_max, "sync.tune.error_max", 0.01, 10, "0.65",
    "largest relative error of a dense codec")

KEY_TEXT(JOB, rate_limit, "wan.rate_limit", 128, "",
    "largest send rate of a cluster: 20mbit, or 100mbit 08:00-18:00=20mbit")

KEY_FLOAT(RTD, mask_rate, "rtd.mask_rate", 0.001, 0.9, "0.15", "share of the tokens that is masked")
KEY_FLOAT(RTD, lambda, "rtd.lambda", 1e-6, 1e6, "1", "λ: weight of the detection loss")
KEY_BOOL(RTD, push_text, "rtd.push_text", "false",
    "the generator sends the text; else both sides read the same shards")
KEY_INT32(RTD, generator_steps, "rtd.generator_steps", 1, 1000, "1",
    "generator steps per discriminator_steps")
KEY_INT32(RTD, discriminator_steps, "rtd.discriminator_steps", 1, 1000, "1",
    "discriminator steps per generator_steps")
KEY_INT32(RTD, ahead, "rtd.ahead", 1, 1024, "16", "batches that the generator may be ahead")
KEY_INT32(RTD, share_embeddings, "rtd.share_embeddings", 0, 1e9, "0",
    "steps between two averages of the embeddings; 0: never")
KEY_INT32(OTHER, rtd.shape.n_layers, "rtd.generator.n_layers", 0, 1024, "0",
    "blocks of the generator; 0: as the model")
KEY_INT32(OTHER, rtd.shape.d_model, "rtd.generator.d_model", 0, 65536, "0",
    "its width; 0: as the model")
KEY_INT32(OTHER, rtd.shape.n_heads, "rtd.generator.n_heads", 0, 1024, "0",
    "its heads; 0: as the model")
KEY_INT32(OTHER, rtd.shape.d_ff, "rtd.generator.d_ff", 0, 1 << 20, "0",
    "its feed-forward width; 0: as the model")

KEY_ENUM(DISTILL, task, "distill.task", enum agent_task, task_names, "translate",
    "pairs to translate; windows of text; or pairs of prompt and answer, read causally")
KEY_ENUM(DISTILL, source, "distill.source", enum agent_text_source, source_names, "corpus",
    "whose text is learned: the corpus's; the student's samples; or the teacher's answers")
KEY_FLOAT(DISTILL, mix, "distill.mix", 0, 1, "1",
    "share of the steps whose text comes from distill.source; the rest is the corpus's")
KEY_FLOAT(DISTILL, lambda, "distill.lambda", 0, 1, "0.5",
    "λ: loss is (1 - λ) cross-entropy + λ T² KL to the teacher")
KEY_FLOAT(DISTILL, temperature, "distill.temperature", 0.1, 20, "1",
    "T: divides the logits of both models")
KEY_INT32(DISTILL, k, "distill.k", 0, 64, "8",
    "labels per position; 0: all logits, only with sync.scheme: synchronous")
KEY_INT32(DISTILL, k_min, "distill.k_min", 0, 64, "0",
    "fewest labels per position on a slow link; 0: k")
KEY_INT32(DISTILL, k_max, "distill.k_max", 0, 64, "0",
    "most labels per position on a fast link; 0: k")
KEY_INT32(DISTILL, ahead, "distill.ahead", 1, 1024, "16",
    "steps that the teacher may be ahead of a student")
KEY_PATH(DISTILL, teacher, "distill.teacher.init", "",
    "checkpoint of the teacher; without one the teacher must learn")
KEY_BOOL(DISTILL, learn, "distill.teacher.learn", "false",
    "the teacher trains on the batches that it labels")
KEY_INT32(OTHER, distill.shape.n_layers, "distill.teacher.n_layers", 0, 1024, "0",
    "blocks of a teacher without checkpoint; 0: as the model")
KEY_INT32(OTHER, distill.shape.d_model, "distill.teacher.d_model", 0, 65536, "0",
    "its width; 0: as the model")
KEY_INT32(OTHER, distill.shape.n_heads, "distill.teacher.n_heads", 0, 1024, "0",
    "its heads; 0: as the model")
KEY_INT32(OTHER, distill.shape.d_ff, "distill.teacher.d_ff", 0, 1 << 20, "0",
    "its feed-forward width; 0: as the model")
KEY_ENUM(DISTILL, when_lost, "distill.when_lost", enum agent_lost, lost_names, "wait",
    "a student without labels waits, or trains alone by cross-entropy")
KEY_ENUM(DISTILL, align, "distill.align", enum agent_align, align_names, "same",
    "vocabularies of the sides; text: an attached teacher has another one, and maps its labels")
KEY_BOOL(DISTILL, pushed, "distill.push_text", "false",
    "students send their text; else teacher and students read the same shards")
KEY_BOOL(DISTILL, federate, "distill.federate", "false",
    "the students are one model and exchange rounds (`sync`)")
KEY_BOOL(DISTILL, relay, "distill.relay", "false",
    "the first student passes the labels on to the others")
KEY_FLOAT(DISTILL, patience_s, "distill.patience_s", 0, 1e6, "30",
    "seconds without labels before when_lost applies")
KEY_PATH(DISTILL, cache, "distill.cache", "",
    "folder for received labels; a job without teacher learns from it")
KEY_INT32(DISTILL, beam, "distill.beam", 1, 16, "1",
    "beam of the translations measured at the end, and of a teacher's answers; 1: greedy")

KEY_INT32(JOB, eval_windows, "eval.windows", 0, 1e9, "64", "held-out windows per source; 0: all")
KEY_INT32(JOB, eval_every, "eval.every_steps", 0, 1e9, "0",
    "steps between two held-out losses; 0: only at the end")

KEY_INT32(JOB, checkpoint_every, "checkpoint.every_steps", 0, 1e9, "1000",
    "steps between two checkpoints; 0: only when the job stops or ends")
KEY_BOOL(JOB, checkpoint_copy, "checkpoint.copy", "true",
    "write a copy while training continues; false: training waits for the disk")
KEY_INT32(JOB, checkpoint_keep, "checkpoint.keep", 1, 16, "2", "checkpoints that are kept")

KEY_FLOAT(JOB, hang_after_s, "hang_after_s", 0, 1e6, "60",
    "seconds of silence (and 20 steps) before a worker is restarted; 0: never")
KEY_INT32(JOB, log_every, "log_every", 1, 1e9, "10", "inner steps per line of metrics")
// clang-format on

#undef KEY
#undef KEY_INT32
#undef KEY_INT64
#undef KEY_FLOAT
#undef KEY_BOOL
#undef KEY_ENUM
#undef KEY_PATH
#undef KEY_TEXT
#undef KEY_NAME
#undef KEY_CODEC
#undef KEY_LIST
