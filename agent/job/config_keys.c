// SPDX-License-Identifier: Apache-2.0
// Keys: finding one in the table, "did you mean" for an unknown one, and --set.
#include "agent/base/nearest.h"
#include "agent/job/config_options.h"

#include <stdlib.h>
#include <string.h>

const struct config_option *config_option(const char *path) {
    for (int i = 0; i < config_n_options; i++)
        if (!strcmp(config_options[i].path, path))
            return &config_options[i];
    return NULL;
}

const struct config_option *config_option_short(const char *path) {
    size_t n = strlen(path);
    for (int i = 0; i < config_n_options; i++)
        if (!strncmp(config_options[i].path, path, n) &&
            (!config_options[i].path[n] || !strcmp(config_options[i].path + n, ".mode")))
            return &config_options[i];
    return NULL;
}

const struct config_cluster_option *config_cluster_option(const char *key) {
    for (int i = 0; i < config_n_cluster_options; i++)
        if (!strcmp(config_cluster_options[i].option.path + CONFIG_CLUSTER_PREFIX, key))
            return &config_cluster_options[i];
    return NULL;
}

const struct config_option *config_group_option(const char *key) {
    for (int i = 0; i < config_n_group_options; i++)
        if (!strcmp(config_group_options[i].path + CONFIG_GROUP_PREFIX, key))
            return &config_group_options[i];
    return NULL;
}

static bool is_one_of(const char *path, const char *const *prefixes) {
    for (; *prefixes; prefixes++) {
        size_t n = strlen(*prefixes);
        bool open = strchr("._", (*prefixes)[n - 1]) != NULL;
        if (!strncmp(path, *prefixes, n) && (open || !path[n]))
            return true;
    }
    return false;
}

bool config_is_used(const struct agent_job *j, const struct config_option *o) {
    static const char *const attached[] = {"model.mode", "data.step_tokens", "init.", NULL};
    static const char *const built_in[] = {
        "model.", "trainable.", "optim.", "data.",     "recompute",  "init_from", "init_sha256",
        "rtd.",   "distill.",   "eval.",  "sync.row_", "sync.kappa", NULL};
    return j->attached ? is_one_of(o->path, attached) || !is_one_of(o->path, built_in)
                       : !is_one_of(o->path, attached);
}

const char *config_keys_below(const char *prefix, char out[CONFIG_KEYS_TEXT]) {
    size_t n = strlen(prefix), at = 0;
    out[0] = 0;
    for (int i = 0; i < config_n_cluster_options; i++) {
        const char *path = config_cluster_options[i].option.path;
        if (!strncmp(path, prefix, n) && !strchr(path + n, '.'))
            at +=
                (size_t)snprintf(out + at, CONFIG_KEYS_TEXT - at, "%s%s", at ? ", " : "", path + n);
        NEB_ASSERT(at < CONFIG_KEYS_TEXT);
    }
    return out;
}

// True if row i of the table is this key, or is in this section. path has n bytes.
static bool is_within(int i, const char *path, size_t n) {
    const char *key = config_options[i].path;
    return !strncmp(key, path, n) && (!key[n] || key[n] == '.');
}

bool agent_job_gives(const struct agent_job *job, const char *path) {
    bool gives = false;
    NEB_ASSERT(config_option(path) || config_is_section(path));
    for (int i = 0; i < config_n_options; i++)
        gives |= job->given[i] && is_within(i, path, strlen(path));
    return gives;
}

bool config_is_section(const char *path) {
    size_t n = strlen(path);
    for (int i = 0; i < config_n_options; i++)
        if (!strncmp(config_options[i].path, path, n) && config_options[i].path[n] == '.')
            return true;
    return false;
}

// The first line of a key, or of the keys of a section; 0: the file has none.
static unsigned line_of(const struct agent_job *job, const char *path, size_t n) {
    unsigned line = n >= 8 && !strncmp(path, "clusters", 8) ? job->clusters_line
                    : n >= 6 && !strncmp(path, "groups", 6) ? job->groups_line
                                                            : 0;
    for (int i = 0; i < config_n_options; i++)
        if (is_within(i, path, n) && job->lines[i] && (!line || job->lines[i] < line))
            line = job->lines[i];
    return line;
}

const char *config_line(const struct agent_job *job, const char *file, const char *path,
                        char out[NEB_PATH_MAX + 16]) {
    size_t n = strlen(path);
    unsigned line = line_of(job, path, n);
    for (; !line && n; n--) // a missing key: the line of its section
        if (path[n] == '.')
            line = line_of(job, path, n);
    if (!line)
        return file;
    snprintf(out, NEB_PATH_MAX + 16, "%s:%u", file, line);
    return out;
}

const char *config_cluster_line(const struct agent_job *job, int i, const char *file,
                                const char *path, char out[NEB_PATH_MAX + 16]) {
    const struct config_cluster_option *o = config_cluster_option(path + CONFIG_CLUSTER_PREFIX);
    // a missing key: the line of the cluster's name
    unsigned line = job->cluster_lines[i][o ? o - config_cluster_options : 0];
    line = line ? line : job->cluster_lines[i][0];
    if (!line || !job->clusters_line) // from JSON, or changed by the planner
        return config_line(job, file, "clusters", out);
    snprintf(out, NEB_PATH_MAX + 16, "%s:%u", file, line);
    return out;
}

const char *config_group_line(const struct agent_job *job, int g, const char *file,
                              char out[NEB_PATH_MAX + 16]) {
    if (!job->group_lines[g]) // from JSON
        return config_line(job, file, "groups", out);
    snprintf(out, NEB_PATH_MAX + 16, "%s:%u", file, job->group_lines[g]);
    return out;
}

enum neb_status config_unknown_part(const char *where, const char *path, const char *key,
                                    const char *allowed) {
    char near[64];
    const char *meant = key ? neb_nearest_of(key, allowed, near, sizeof near) : "";
    return COMPLAIN(where, path, "unknown key '%s'%s%s%s; allowed: %s", key ? key : "?",
                    *meant ? " (did you mean '" : "", meant, *meant ? "'?)" : "", allowed);
}

enum neb_status config_unknown_key(const char *where, const char *path) {
    char best[64] = "";
    int least = 4;
    // each key, and before it its section
    for (int i = 0; i < config_n_options; i++)
        for (int whole = 0; whole < 2; whole++) {
            char candidate[64];
            const char *dot = strrchr(config_options[i].path, '.');
            if (!whole && !dot)
                continue;
            snprintf(candidate, sizeof candidate, "%.*s",
                     whole ? 63 : (int)(dot - config_options[i].path), config_options[i].path);
            int d = neb_edits(path, candidate);
            // if both are equally near, the section wins: users type it more often
            if (d < least || (d == least && !whole)) {
                least = d;
                memcpy(best, candidate, sizeof best);
            }
        }
    static const char *const lists[] = {"clusters", "groups"};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (neb_edits(path, lists[i]) < least) {
            least = neb_edits(path, lists[i]);
            snprintf(best, sizeof best, "%s", lists[i]);
        }
    if (best[0])
        return COMPLAIN(where, path, "unknown key (did you mean '%s'?)", best);
    return COMPLAIN(where, path, "unknown key; nebula check --reference lists all keys");
}

// "data=3": only the keys of a section can be set.
static enum neb_status section_as_value(const char *path) {
    char keys[512] = "";
    size_t n = strlen(path);
    for (int i = 0; i < config_n_options; i++) {
        size_t at = strlen(keys);
        if (!strncmp(config_options[i].path, path, n) && config_options[i].path[n] == '.')
            snprintf(keys + at, sizeof keys - at, "%s%s", at ? ", " : "", config_options[i].path);
    }
    return COMPLAIN("--set", path, "is a section; set one of its keys: %s", keys);
}

enum neb_status agent_job_set(struct agent_job *job, const char *assignment) {
    char path[128];
    const char *eq = strchr(assignment, '=');
    if (!eq || eq == assignment || (size_t)(eq - assignment) >= sizeof path)
        return neb_fail(NEB_ERR_INVALID,
                        "--set %s: write it as path=value, such as sync.interval=10", assignment);
    snprintf(path, sizeof path, "%.*s", (int)(eq - assignment), assignment);
    const struct config_option *o = config_option_short(path);
    if (!o && (!strncmp(path, "clusters", 8) || !strncmp(path, "groups", 6)))
        return COMPLAIN("--set", path, "is a list; change it in the job file");
    if (!o && config_is_section(path))
        return section_as_value(path);
    if (!o)
        return config_unknown_key("--set", path);
    job->lines[o - config_options] = 0; // the value no longer comes from the file
    job->given[o - config_options] = true;
    if (o->type != T_TARGETS && o->type != T_FREEZE) {
        NEB_TRY(config_set_written(job, o, eq + 1, "--set"));
        config_settle(job);
        return NEB_OK;
    }
    char list[128], *save = NULL;
    snprintf(list, sizeof list, "%s", eq + 1);
    config_clear_list(job, o);
    for (char *t = strtok_r(list, "[], ", &save); t; t = strtok_r(NULL, "[], ", &save))
        NEB_TRY(config_set_item(job, o, t, "--set"));
    return NEB_OK;
}

// True if only other clusters use this path.
static bool elsewhere(const struct agent_job *j, const struct agent_cluster *c,
                      const struct config_option *o) {
    const char *p = (const char *)j + o->at;
    return (p == j->corpus && c->corpus[0]) ||
           (p == j->distill.teacher && (c->role == AGENT_ROLE_STUDENT || c->init[0])) ||
           (p == j->distill.cache && c->role == AGENT_ROLE_TEACHER);
}

int agent_job_paths(const struct agent_job *j, int self, const char *paths[AGENT_JOB_PATHS_MAX]) {
    bool all = j->sync.scheme == AGENT_SCHEME_SYNCHRONOUS; // one process is all clusters
    int n = 0;
    for (int i = 0; i < config_n_options; i++) {
        const struct config_option *o = &config_options[i];
        const char *p = (const char *)j + o->at;
        if (o->type != T_PATH || !*p || (!all && elsewhere(j, &j->clusters[self], o)))
            continue;
        NEB_ASSERT(n < AGENT_JOB_PATHS_MAX - AGENT_CLUSTERS_MAX);
        paths[n++] = p;
    }
    for (int i = 0; i < j->n_clusters; i++)
        for (int k = 0; k < config_n_cluster_options; k++) {
            const struct config_cluster_option *o = &config_cluster_options[k];
            const char *p = (const char *)&j->clusters[i] + o->option.at;
            if (o->option.type != T_PATH || o->in_json == CONFIG_NEVER || !*p ||
                !(all || i == self))
                continue;
            NEB_ASSERT(n < AGENT_JOB_PATHS_MAX);
            paths[n++] = p;
        }
    return n;
}
