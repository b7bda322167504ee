// SPDX-License-Identifier: Apache-2.0
#include "agent/job/private.h"
#include "inter/round/sums.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

// The largest change of a parameter that an update can carry: sync.private_range, or lr x H, which
// bounds how far Adam moves in an interval.
static float range_of(const struct agent_job *j) {
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

bool agent_private_has_enough(const struct agent_job *j, struct member_set gone) {
    return j->sync.gate != AGENT_GATE_PRIVATE ||
           j->n_clusters - mset_count(gone) >= agent_private_needs(j);
}

void agent_private_says(const struct agent_job *j, char *text, size_t cap) {
    int needs = agent_private_needs(j), away = j->n_clusters - needs;
    if (away)
        snprintf(text, cap, "each round needs %d of the %d clusters: %d may be away", needs,
                 j->n_clusters, away);
    else
        snprintf(text, cap,
                 "each round needs all %d clusters: while one is away, no round completes, and "
                 "each cluster trains alone",
                 j->n_clusters);
}

// Less noise hides nothing. Arithmetic cannot divide by a smaller clip.
static const float noise_least = 0.05f, clip_least = 1e-6f;

uint8_t agent_private_colluders(const struct agent_job *j) {
    return (uint8_t)j->sync.private_colluders;
}

bool agent_private_noise(const struct agent_job *j, struct sec_privacy *out) {
    const struct sec_privacy_config c = {
        .members = (uint8_t)j->n_clusters,
        .least = inter_sums_least((uint8_t)j->n_clusters, agent_private_colluders(j)),
        .colluders = agent_private_colluders(j),
        .noise = (double)j->sync.dp.noise,
        .fragments = agent_job_fragments(j)};
    return sec_privacy_plan(&c, out);
}

float agent_private_scale(const struct agent_job *j) {
    struct sec_privacy p;
    if (agent_private_noised(j) && agent_private_noise(j, &p))
        return j->sync.dp.clip / (float)p.bound;
    return range_of(j) / (float)sec_sum_limit((uint8_t)j->n_clusters);
}

double agent_private_epsilon(const struct agent_job *j, int64_t releases,
                             char text[AGENT_PRIVATE_TEXT]) {
    struct sec_privacy p;
    text[0] = 0;
    if (!agent_private_noised(j) || !agent_private_noise(j, &p))
        return NAN;
    double delta = (double)j->sync.dp.delta,
           epsilon = sec_privacy_epsilon((double)releases * p.rho, delta);
    snprintf(
        text, AGENT_PRIVATE_TEXT,
        "epsilon %.3g at delta %.3g for everything that one site sends in %lld sums, against the "
        "other sites (up to %u of them may collude)%s",
        epsilon, delta, (long long)releases, agent_private_colluders(j),
        epsilon > SEC_PRIVACY_EPSILON_WEAK
            ? ". Above 10 this protects little: from the sums, an observer who knows a text can "
              "still tell whether it was in a site's data. Raise sync.dp.noise, or use fewer rounds"
            : "");
    return epsilon;
}

struct rule {
    bool bad;
    const char *key, *text;
};

static bool keeps(const struct rule *rules, size_t n, const char **key, char *text, size_t cap) {
    for (size_t i = 0; i < n; i++)
        if (rules[i].bad) {
            *key = rules[i].key;
            snprintf(text, cap, "%s", rules[i].text);
            return false;
        }
    return true;
}

static bool noise_allows(const struct agent_job *j, const char **key, char *text, size_t cap) {
    struct sec_privacy p;
    bool clip = j->sync.dp.clip > 0, noise = j->sync.dp.noise > 0;
    const struct rule rules[] = {
        {(clip || noise) && j->sync.gate != AGENT_GATE_PRIVATE,
         clip ? "sync.dp.clip" : "sync.dp.noise",
         "needs sync.gate: private: only a masked sum hides one site's share of the noise behind "
         "the others'"},
        {noise && !clip, "sync.dp.clip",
         "is missing: it is the largest norm of the updates that sync.dp.noise hides"},
        {clip && !noise, "sync.dp.noise",
         "is missing: sync.dp.clip alone hides nothing; set it to 1 or more, and nebula check "
         "prints the epsilon"},
        {clip && j->sync.dp.clip < clip_least, "sync.dp.clip", "must be 1e-6 or more, or 0"},
        {noise && j->sync.dp.noise < noise_least, "sync.dp.noise", "must be 0.05 or more, or 0"},
        {clip && j->sync.private_range > 0, "sync.private_range",
         "does not work with sync.dp.clip, which gives the scale; remove it"},
    };
    if (!keeps(rules, sizeof rules / sizeof *rules, key, text, cap))
        return false;
    const struct rule room = {clip && !agent_private_noise(j, &p), "sync.dp.noise",
                              "so much noise leaves no room in 16 bits for a fragment of an "
                              "update; lower it, or use fewer sync.fragments"};
    return keeps(&room, 1, key, text, cap);
}

bool agent_private_allows(const struct agent_job *j, const char **key, char *text, size_t cap) {
    bool attach = false, witness = false, batch = j->autos & AGENT_AUTO_BATCH;
    if (j->sync.gate != AGENT_GATE_PRIVATE)
        return noise_allows(j, key, text, cap);
    for (int32_t i = 0; i < j->n_clusters; i++) {
        attach |= j->clusters[i].launcher == AGENT_LAUNCHER_ATTACH;
        batch |= j->clusters[i].batch != 0;
        witness |= j->clusters[i].witness;
    }
    const struct rule rules[] = {
        {j->mode != AGENT_MODE_REPLICAS || j->sync.scheme != AGENT_SCHEME_FEDERATED, "sync.gate",
         "private masks the updates of mode: replicas with sync.scheme: federated; this job sums "
         "nothing between clusters: use trusted"},
        {j->n_clusters < AGENT_PRIVATE_MEMBERS || witness, "sync.gate",
         "private needs 3 to 16 clusters that train, and no witness: of two, each could subtract "
         "its own update from the sum and read the other's"},
        {j->sync.private_colluders > j->n_clusters - 2, "sync.private_colluders",
         "must leave at least two clusters that do not collude: the others could subtract their "
         "updates from the sum and read that of a single one"},
        {j->autos & AGENT_AUTO_CODEC || strcmp(j->sync.codec, "bf16"), "sync.codec",
         "must be bf16 with sync.gate: private: masked sums have 16 bits per parameter, and the "
         "output of other codecs cannot be added under a mask"},
        {j->sync.row_weights, "sync.row_weights",
         "must be false with sync.gate: private: the row counts of a cluster stay private, so all "
         "clusters have equal weight"},
        {j->sync.tune.mode != AGENT_TUNE_FIXED || j->autos & AGENT_AUTO_INTERVAL, "sync.tune",
         "must be fixed with sync.gate: private: codec and interval determine the scale of the "
         "integers, and all clusters must know it before the run"},
        {batch, j->autos & AGENT_AUTO_BATCH ? "data.batch" : "clusters.batch",
         "must be one number for all clusters, in data.batch, with sync.gate: private, so that all "
         "clusters make their updates the same way; if one has less memory, give all a smaller "
         "batch and "
         "a larger data.accumulate, or give that one recompute: true"},
        {attach && !(j->sync.private_range > 0) && !(j->sync.dp.clip > 0), "sync.private_range",
         "is missing: an attached trainer has its own learning rate; give the largest change of a "
         "parameter in one interval"},
    };
    return keeps(rules, sizeof rules / sizeof *rules, key, text, cap) &&
           noise_allows(j, key, text, cap);
}
