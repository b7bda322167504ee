// SPDX-License-Identifier: Apache-2.0
// The reference of all keys: the table as Markdown, for `nebula check --reference`.
#include "agent/job/config_options.h"

#include <math.h>
#include <string.h>

// Groups of keys, by the beginning of their paths. A key is in the last group that fits. The first
// group has all keys without a dot.
static const struct group {
    const char *title;
    const char *prefixes[3];
} groups[] = {
    {"The job", {"", "init."}},
    {"Model", {"model."}},
    {"Data", {"data."}},
    {"Optimiser", {"optim."}},
    {"Parameters that learn", {"trainable."}},
    {"Exchange between clusters", {"sync.", "wan."}},
    {"Groups of tensors: a list of at most 32", {"groups."}},
    {"Private updates", {"sync.private_", "sync.dp."}},
    {"Exchange that follows the link", {"sync.tune."}},
    {"Mode rtd", {"rtd."}},
    {"Mode distill", {"distill."}},
    {"Evaluation and checkpoints", {"eval.", "checkpoint."}},
    {"Clusters: a list of 1 to 16", {"clusters."}},
};
enum { GROUPS = sizeof groups / sizeof *groups };
_Static_assert(AGENT_CLUSTERS_MAX == 16 && AGENT_SOURCES_MAX == 16, "the reference says 16");

static bool begins(const struct group *g, const char *path) {
    for (size_t i = 0; i < 3 && g->prefixes[i]; i++)
        if (*g->prefixes[i] ? !strncmp(path, g->prefixes[i], strlen(g->prefixes[i]))
                            : !strchr(path, '.'))
            return true;
    return false;
}

static const struct group *group_of(const char *path) {
    for (const struct group *g = groups + GROUPS; g-- > groups;)
        if (begins(g, path))
            return g;
    NEB_ASSERT(false); // every key has a group
    return NULL;
}

// 1e9 instead of 1000000000.
static void print_number(char out[32], double v) {
    double power = v > 0 ? floor(log10(v) + 1e-9) : 0, digit = round(v / pow(10, power));
    bool is_round = fabs(v - digit * pow(10, power)) <= 1e-9 * fabs(v);
    snprintf(out, 32, power >= 6 && is_round ? "%.0fe%.0f" : "%.10g",
             power >= 6 && is_round ? digit : v, power);
}

static void print_allowed(char *out, size_t cap, const struct config_option *o) {
    char least[32], most[32];
    bool takes_auto = config_auto_bit(o) || o->type == T_ROLE || o->type == T_MESH;
    size_t n;
    out[0] = 0;
    switch (o->type) {
    case T_ENUM: config_join(out, cap, o->names); break;
    case T_LEVEL: config_join_levels(out, cap); break;
    case T_ROLE: config_join(out, cap, o->names + 1); break; // none is not written
    case T_BOOL:
        if (o->names) {
            config_join(out, cap, o->names);
            break;
        } // fall through
    case T_SWITCH: snprintf(out, cap, "true, false"); break;
    case T_INT32:
    case T_INT64:
    case T_FLOAT:
        print_number(least, o->min);
        print_number(most, o->max);
        snprintf(out, cap, "%s to %s", least, most);
        break;
    case T_MESH: snprintf(out, cap, "{dp, pp, tp}"); break;
    case T_SOURCES: snprintf(out, cap, "{NAME: WEIGHT}, [{name, weight}]"); break;
    case T_EXCHANGE: snprintf(out, cap, "every, never, {every: ROUNDS}, {owner: CLUSTER}"); break;
    default: break;
    }
    n = strlen(out);
    if (takes_auto)
        snprintf(out + n, cap - n, "%sauto", n ? ", " : "");
}

static void print_row(FILE *f, const struct config_option *o) {
    char allowed[128], codecs[256];
    print_allowed(allowed, sizeof allowed, o);
    cmp_codec_usage(codecs, sizeof codecs);
    fprintf(f, "| `%s` | %s | %s | %s |\n", o->path,
            o->preset ? (*o->preset ? o->preset : "none") : "**required**", allowed,
            strcmp(o->path, "sync.codec") ? o->help : codecs);
}

void agent_job_reference(FILE *f) {
    for (const struct group *g = groups; g < groups + GROUPS; g++) {
        fprintf(f, "%s### %s\n\n| key | default | allowed | what |\n| --- | --- | --- | --- |\n",
                g == groups ? "" : "\n", g->title);
        for (int i = 0; i < config_n_options; i++)
            if (group_of(config_options[i].path) == g)
                print_row(f, &config_options[i]);
        for (int i = 0; i < config_n_cluster_options; i++)
            if (group_of(config_cluster_options[i].option.path) == g)
                print_row(f, &config_cluster_options[i].option);
        for (int i = 0; i < config_n_group_options; i++)
            if (group_of(config_group_options[i].path) == g)
                print_row(f, &config_group_options[i]);
    }
}
