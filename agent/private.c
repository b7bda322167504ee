#include "agent/private.h"
#include "inter/sums.h"

#include <stdio.h>
#include <string.h>

float agent_private_range(const struct agent_job *j) {
    int32_t steps = j->sync.early_steps && j->sync.early_interval > j->sync.interval
                        ? j->sync.early_interval
                        : j->sync.interval;
    return j->sync.private_range > 0 ? j->sync.private_range : j->optim.schedule.lr * (float)steps;
}

int agent_private_needs(const struct agent_job *j) {
    uint8_t n = (uint8_t)j->n_clusters, f = (uint8_t)j->sync.private_colluders,
            votes = inter_quorum(n, f), updates = inter_sums_least(n, f);
    return votes > updates ? votes : updates;
}

bool agent_private_has_enough(const struct agent_job *j, uint16_t gone) {
    return j->sync.gate != AGENT_GATE_PRIVATE ||
           j->n_clusters - __builtin_popcount(gone) >= agent_private_needs(j);
}

void agent_private_says(const struct agent_job *j, char *text, size_t cap) {
    int needs = agent_private_needs(j), away = j->n_clusters - needs;
    if (away)
        snprintf(text, cap, "each round needs %d of the %d clusters: %d may be away", needs,
                 j->n_clusters, away);
    else
        snprintf(text, cap,
                 "each round needs all %d clusters: while one is away, no round ends, and each "
                 "trains on alone",
                 j->n_clusters);
}

bool agent_private_allows(const struct agent_job *j, const char **key, char *text, size_t cap) {
    bool attach = false, witness = false, batch = j->autos & AGENT_AUTO_BATCH;
    for (int32_t i = 0; i < j->n_clusters; i++) {
        attach |= j->clusters[i].launcher == AGENT_LAUNCHER_ATTACH;
        batch |= j->clusters[i].batch != 0;
        witness |= j->clusters[i].witness;
    }
    const struct {
        bool bad;
        const char *key, *text;
    } rules[] = {
        {j->mode != AGENT_MODE_REPLICAS || j->sync.scheme != AGENT_SCHEME_FEDERATED, "sync.gate",
         "private masks the updates of mode replicas with sync.scheme federated; here nothing is "
         "summed "
         "between clusters: leave the gate at trusted"},
        {j->n_clusters < AGENT_PRIVATE_MEMBERS || witness, "sync.gate",
         "private needs 3 to 16 clusters that train, and no witness: of two, each could take its "
         "own from the sum and read the other's"},
        {j->sync.private_colluders > j->n_clusters - 2, "sync.private_colluders",
         "must leave two clusters that do not collude: all others can take their own updates from "
         "the sum and read that of a single one"},
        {j->autos & AGENT_AUTO_CODEC || strcmp(j->sync.codec, "bf16"), "sync.codec",
         "must be bf16 with sync.gate private: masked sums take 16 bits a parameter, and what "
         "other codecs "
         "make cannot be added up under a mask"},
        {j->sync.row_weights, "sync.row_weights",
         "must be false with sync.gate private: the tokens that a cluster saw of each row are its "
         "own, and "
         "every cluster counts alike"},
        {j->sync.tune.mode != AGENT_TUNE_FIXED || j->autos & AGENT_AUTO_INTERVAL, "sync.tune",
         "must be fixed with sync.gate private: codec and interval decide the scale of the "
         "integers, which "
         "all announce before the run"},
        {batch, j->autos & AGENT_AUTO_BATCH ? "data.batch" : "clusters.batch",
         "must be one number for all clusters, in data.batch, with sync.gate private: what an "
         "update "
         "is made of is the same at each; for a cluster with less memory give all a smaller batch "
         "and "
         "a larger data.accumulate, or that cluster recompute: true"},
        {attach && !(j->sync.private_range > 0), "sync.private_range",
         "is missing: a trainer with launcher attach has a learning rate of its own; give the "
         "largest change "
         "of a parameter in one interval"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (rules[i].bad) {
            *key = rules[i].key;
            snprintf(text, cap, "%s", rules[i].text);
            return false;
        }
    return true;
}
