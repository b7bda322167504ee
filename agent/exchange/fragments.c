// SPDX-License-Identifier: Apache-2.0
// Cuts the units of a trainer into the fragments of the job's groups, and reads what each group
// says about its fragments.
#include "agent/exchange/exchange.h"
#include "agent/job/update_size.h"
#include "intra/train/shards.h"

#include <stdlib.h>
#include <string.h>

struct cut { // scratch, one entry per unit
    uint64_t *elements;
    int32_t *layer, *fragment, *unit, *group;
};

// Cuts the units of one group. They are `n` of the trainer's units.
static enum neb_status cut_group(const struct agent_job *job, int32_t g, const struct cut *c,
                                 int32_t n, int32_t layers, int32_t *fragment) {
    int32_t first = agent_job_group_first(job, g), fragments = agent_job_group_fragments(job, g),
            used = 0;
    intra_shards_fragments(c->elements, c->layer, n, layers, fragments, c->fragment);
    for (int32_t k = 0; k < n; k++) {
        fragment[c->unit[k]] = first + c->fragment[k];
        used = c->fragment[k] >= used ? c->fragment[k] + 1 : used;
    }
    const char *match = agent_job_groups(job) > 1 ? agent_job_group(job, g)->match : NULL;
    if (used < fragments && match)
        return neb_fail(NEB_ERR_INVALID,
                        "groups: \"%s\" has %d fragments, but its tensors fill only %d", match,
                        fragments, used);
    if (used < fragments)
        return neb_fail(NEB_ERR_INVALID,
                        "sync.fragments: fragment %d of %d is empty; use fewer fragments", used,
                        fragments);
    return NEB_OK;
}

static enum neb_status cut_groups(const struct agent_job *job, const struct agent_unit *units,
                                  int32_t n, const struct cut *c, int32_t *fragment) {
    int32_t layers = 1;
    for (int32_t i = 0; i < n; i++) {
        c->group[i] = i && !agent_unit_first(&units[i]) ? c->group[i - 1]
                                                        : agent_job_group_of(job, units[i].tensor);
        layers = units[i].group >= layers ? units[i].group + 1 : layers;
        fragment[i] = -1;
    }
    for (int32_t g = 0; g < agent_job_groups(job); g++) {
        const struct agent_group *group = agent_job_group(job, g);
        int32_t k = 0;
        for (int32_t i = 0; i < n; i++)
            if (c->group[i] == g && group->exchange != AGENT_GROUP_NEVER) {
                c->elements[k] = agent_unit_size(&units[i]);
                c->layer[k] = units[i].group - 1; // counted like layers: the first is -1
                c->unit[k++] = i;
            }
        // "*" names what is left, which may be nothing
        if (!k && group->exchange != AGENT_GROUP_NEVER && strcmp(group->match, "*") != 0)
            return neb_fail(NEB_ERR_INVALID, "groups: \"%s\" matches no tensor that is trained",
                            group->match);
        if (k)
            NEB_TRY(cut_group(job, g, c, k, layers, fragment));
    }
    return NEB_OK;
}

enum neb_status exchange_cut(const struct agent_job *job, const struct agent_unit *units, int32_t n,
                             int32_t *fragment) {
    size_t all = (size_t)n + 1;
    struct cut c = {calloc(all, sizeof *c.elements), calloc(all, sizeof *c.layer),
                    calloc(all, sizeof *c.fragment), calloc(all, sizeof *c.unit),
                    calloc(all, sizeof *c.group)};
    bool whole = c.elements && c.layer && c.fragment && c.unit && c.group;
    enum neb_status st = whole ? cut_groups(job, units, n, &c, fragment)
                               : neb_fail(NEB_ERR_NOMEM, "out of memory for %d units", n);
    free(c.elements);
    free(c.layer);
    free(c.fragment);
    free(c.unit);
    free(c.group);
    return st;
}

// ---- codecs -------------------------------------------------------------------------------------

// The update of a group's largest fragment must be small enough to be sent.
static enum neb_status check_size(const struct agent_exchange *x, int32_t f,
                                  const struct cmp_codec *codec, uint64_t largest) {
    const struct exchange_fragment *k = &x->kept[f];
    const struct agent_group *g = agent_job_group(&x->job, agent_job_fragment_group(&x->job, f));
    if (!*g->codec && !g->fragments)
        return agent_update_fits(&x->job, k->most_elements, k->most_units, largest);
    if (agent_update_possible(&x->job, codec, k->most_elements, k->most_units))
        return NEB_OK;
    return neb_fail(NEB_ERR_LIMIT,
                    "groups: \"%s\": an update of %llu parameters with %s can need more than the "
                    "%.2f GB that can be sent at once: use a codec with fewer bits, or more "
                    "fragments",
                    g->match, (unsigned long long)k->most_elements,
                    agent_job_fragment_codec(&x->job, f), INTER_BLOB_MAX / 1e9);
}

static enum neb_status choose_codec(struct agent_exchange *x, int32_t f, uint64_t largest) {
    struct exchange_fragment *k = &x->kept[f];
    NEB_TRY(cmp_codec_parse(agent_job_fragment_codec(&x->job, f), &k->codec));
    NEB_TRY(check_size(x, f, &k->codec, largest));
    k->merge_codec = k->codec;
    if (!cmp_codec_coarse(&k->codec))
        return NEB_OK;
    // a merge round carries much: it uses 8 bits if the message size allows it
    NEB_TRY(cmp_codec_parse("int8", &k->merge_codec));
    if (!agent_update_possible(&x->job, &k->merge_codec, k->most_elements, k->most_units))
        k->merge_codec = k->codec;
    return NEB_OK;
}

// Elements and units of the largest fragment of each group.
static void find_largest(struct agent_exchange *x, const uint64_t *units) {
    for (int32_t g = 0; g < agent_job_groups(&x->job); g++) {
        int32_t first = agent_job_group_first(&x->job, g), most = first,
                end = first + agent_job_group_fragments(&x->job, g);
        for (int32_t f = first; f < end; f++)
            most = x->kept[f].elements > x->kept[most].elements ? f : most;
        for (int32_t f = first; f < end; f++) {
            x->kept[f].most_elements = x->kept[most].elements;
            x->kept[f].most_units = units[most];
        }
    }
}

enum neb_status exchange_choose_codecs(struct agent_exchange *x) {
    uint64_t units[INTER_FRAGMENTS_MAX] = {0}, tensor = 0, largest = 0;
    for (int32_t i = 0; i < x->trainer.n_units; i++) {
        const struct agent_unit *u = &x->trainer.units[i];
        uint64_t n = agent_unit_size(u);
        if (x->fragment[i] < 0)
            continue;
        tensor = (agent_unit_first(u) ? 0 : tensor) + n;
        largest = tensor > largest ? tensor : largest;
        x->kept[x->fragment[i]].elements += n;
        units[x->fragment[i]]++;
        x->elements += n;
    }
    find_largest(x, units);
    for (int32_t f = 0; f < exchange_fragments(x); f++)
        NEB_TRY(choose_codec(x, f, largest));
    return NEB_OK;
}

bool exchange_follows(const struct agent_exchange *x, int32_t f) {
    int32_t owner = agent_job_fragment_owner(&x->job, f);
    return owner >= 0 && owner != x->cluster;
}
