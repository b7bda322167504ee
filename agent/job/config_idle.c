// SPDX-License-Identifier: Apache-2.0
// Warns of keys that do nothing in a job, such as keys of another mode: most likely a mistake.
#include "agent/base/log.h"
#include "agent/job/config_options.h"

#include <string.h>

void agent_job_warn_idle(const struct agent_job *j, const char *file) {
    const struct {
        const char *prefix;
        bool used;
        const char *why;
    } of[] = {
        {"trainable.rank", j->trainable.mode == INTRA_TRAIN_LORA, "trainable.mode is not lora"},
        {"trainable.alpha", j->trainable.mode == INTRA_TRAIN_LORA, "trainable.mode is not lora"},
        {"trainable.targets", j->trainable.mode == INTRA_TRAIN_LORA, "trainable.mode is not lora"},
        {"trainable.n", j->trainable.mode == INTRA_TRAIN_LAST_LAYERS,
         "trainable.mode is not last_layers"},
        {"sync.tune.", j->sync.tune.mode == AGENT_TUNE_AUTO, "sync.tune.mode is not auto"},
        {"sync.dp.delta", j->sync.dp.clip > 0, "sync.dp.clip is 0"},
        {"sync.early_interval", j->sync.early_steps > 0, "sync.early_steps is 0"},
        {"optim.momentum", j->optim.kind == INTRA_OPTIM_MUON, "optim.name is not muon"},
        {"optim.clip.ratio", j->optim.clip.kind == INTRA_CLIP_ADAGC,
         "optim.clip.kind is not adagc"},
        {"optim.clip.beta", j->optim.clip.kind == INTRA_CLIP_ADAGC, "optim.clip.kind is not adagc"},
        {"optim.clip.warmup", j->optim.clip.kind == INTRA_CLIP_ADAGC,
         "optim.clip.kind is not adagc"},
        {"distill.mix", j->distill.source != AGENT_TEXT_CORPUS, "distill.source is corpus"},
        {"rtd.", j->mode == AGENT_MODE_RTD, "mode is not rtd"},
        {"distill.", j->mode == AGENT_MODE_DISTILL, "mode is not distill"},
    };
    for (int i = 0; i < config_n_options; i++)
        for (size_t k = 0; k < sizeof of / sizeof *of && j->given[i]; k++) {
            const char *path = config_options[i].path;
            size_t n = strlen(of[k].prefix);
            bool whole = of[k].prefix[n - 1] != '.';
            if (!of[k].used && !strncmp(path, of[k].prefix, n) && (!whole || !path[n]) &&
                config_is_used(j, &config_options[i]) && strcmp(path, "sync.tune.mode") != 0)
                neb_warn("%s: %s does nothing: %s", file, path, of[k].why);
        }
    for (int i = 0; j->attached && i < config_n_options; i++)
        if (j->given[i] && !config_is_used(j, &config_options[i]))
            neb_warn("%s: %s does nothing: model.mode is attached", file, config_options[i].path);
    if (j->optim.kind == INTRA_OPTIM_MUON &&
        (j->trainable.mode == INTRA_TRAIN_LORA || j->trainable.mode == INTRA_TRAIN_BITFIT))
        neb_warn("%s: optim.name: muon does nothing: no matrix of a block learns", file);
    if (j->trainable.mode == INTRA_TRAIN_LORA && !j->init_from[0] && !j->model_init[0])
        neb_warn("%s: trainable.mode lora without init_from or model.init: the model below the "
                 "adapters has random parameters and is never trained",
                 file);
}
