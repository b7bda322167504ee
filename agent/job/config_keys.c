// SPDX-License-Identifier: Apache-2.0
// Keys: found in the table, "did you mean" for those that are not, set one by one (--set), and printed as the reference.
#include "agent/base/nearest.h"
#include "agent/job/config_options.h"
#include "kernels/pool.h"

#include <stdlib.h>
#include <string.h>

const struct config_option *config_option(const char *path) {
    for (int i = 0; i < config_n_options; i++)
        if (!strcmp(config_options[i].path, path))
            return &config_options[i];
    return NULL;
}

// Whether row i of the table is this key, or one of this section; path has n bytes.
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

// The first line of a key, or of what a section holds; 0: the file has none.
static unsigned line_of(const struct agent_job *job, const char *path, size_t n) {
    unsigned line = n >= 8 && !strncmp(path, "clusters", 8) ? job->clusters_line : 0;
    for (int i = 0; i < config_n_options; i++)
        if (is_within(i, path, n) && job->lines[i] && (!line || job->lines[i] < line))
            line = job->lines[i];
    return line;
}

const char *config_line(const struct agent_job *job, const char *file, const char *path,
                        char out[NEB_PATH_MAX + 16]) {
    size_t n = strlen(path);
    unsigned line = line_of(job, path, n);
    for (; !line && n; n--) // a key that is not there has a place where it would be
        if (path[n] == '.')
            line = line_of(job, path, n);
    if (!line)
        return file;
    snprintf(out, NEB_PATH_MAX + 16, "%s:%u", file, line);
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
    // every option, and before it the section that holds it
    for (int i = 0; i < config_n_options; i++)
        for (int whole = 0; whole < 2; whole++) {
            char candidate[64];
            const char *dot = strrchr(config_options[i].path, '.');
            if (!whole && !dot)
                continue;
            snprintf(candidate, sizeof candidate, "%.*s",
                     whole ? 63 : (int)(dot - config_options[i].path), config_options[i].path);
            int d = neb_edits(path, candidate);
            // on a tie a section is likelier: it is typed more often
            if (d < least || (d == least && !whole)) {
                least = d;
                memcpy(best, candidate, sizeof best);
            }
        }
    if (neb_edits(path, "clusters") < least)
        snprintf(best, sizeof best, "clusters");
    if (best[0])
        return COMPLAIN(where, path, "unknown key (did you mean '%s'?)", best);
    return COMPLAIN(where, path, "unknown key; nebula check --reference lists all keys");
}

// "model=3": its keys are what is set.
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
    const struct config_option *o = config_option(!strcmp(path, "trainable")   ? "trainable.mode"
                                                  : !strcmp(path, "sync.tune") ? "sync.tune.mode"
                                                                               : path);
    if (!o && !strncmp(path, "clusters", 8))
        return COMPLAIN("--set", path, "is a list, which only the job file has: change it there");
    if (!o && config_is_section(path))
        return section_as_value(path);
    if (!o)
        return config_unknown_key("--set", path);
    job->lines[o - config_options] = 0; // the file's value is none any more
    job->given[o - config_options] = true;
    if (o->type != T_TARGETS && o->type != T_FREEZE)
        return config_set_written(job, o, eq + 1, "--set");
    char list[128], *save = NULL;
    snprintf(list, sizeof list, "%s", eq + 1);
    config_clear_list(job, o);
    for (char *t = strtok_r(list, "[], ", &save); t; t = strtok_r(NULL, "[], ", &save))
        NEB_TRY(config_set_item(job, o, t, "--set"));
    return NEB_OK;
}

// Whether only other clusters look at it.
static bool elsewhere(const struct agent_job *j, const struct agent_cluster *c,
                      const struct config_option *o) {
    const char *p = (const char *)j + o->at;
    return (p == j->corpus && c->corpus[0]) ||
           (p == j->distill.teacher && c->role == AGENT_ROLE_STUDENT) ||
           (p == j->distill.cache && c->role == AGENT_ROLE_TEACHER);
}

int agent_job_paths(const struct agent_job *j, int self, const char *paths[AGENT_JOB_PATHS_MAX]) {
    bool all = j->sync.scheme == AGENT_SCHEME_SYNCHRONOUS; // one process does what all of them do
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
        if ((all || i == self) && j->clusters[i].corpus[0])
            paths[n++] = j->clusters[i].corpus;
    return n;
}

void agent_job_reference(FILE *f) {
    char allowed[128];
    fputs("| key | default | allowed | what |\n| --- | --- | --- | --- |\n", f);
    for (int i = 0; i < config_n_options; i++) {
        const struct config_option *o = &config_options[i];
        allowed[0] = 0;
        if (o->names)
            config_join(allowed, sizeof allowed, o->names);
        else if (o->type == T_BOOL)
            snprintf(allowed, sizeof allowed, "true, false");
        else if (o->type == T_INT32 || o->type == T_INT64 || o->type == T_FLOAT)
            snprintf(allowed, sizeof allowed, "%.10g to %.10g", o->min, o->max);
        if (config_auto_bit(o))
            snprintf(allowed + strlen(allowed), sizeof allowed - strlen(allowed), "%sauto",
                     allowed[0] ? ", " : "");
        fprintf(f, "| `%s` | %s | %s | %s |\n", o->path,
                o->preset ? (*o->preset ? o->preset : "none") : "**required**", allowed, o->help);
    }
    fprintf(
        f,
        "| `clusters` | **required** | 1 to %d | list of {%s}; name: the agent's; threads: of the "
        "worker (mpirun, slurm: of each rank), 0 to %d, 0: all processors, which the ranks of a "
        "host divide (slurm: those that it gives to the task); corpus: in place of "
        "data.corpus; witness: votes and trains nothing; sources: {NAME: WEIGHT} or a "
        "list of {name, weight}, relative, up to %d; "
        "none: all of the corpus by size; mesh: {dp, pp, tp}, ranks of the cluster's worker "
        "(default 1 each; dp must divide batch x accumulate, pp model.n_layers, tp heads and "
        "d_ff; modes rtd and distill have one rank), or auto; ranks: of mesh: auto with launcher "
        "mpirun or slurm, how many there are; "
        "launcher: local (all on the agent's machine, over TCP), mpirun (its "
        "hosts, over MPI), slurm (a step of the agent's allocation or one of its own; rank 0 on "
        "another host than the agent's: nebula agent --workers) or attach: none is started, "
        "your own training loop attaches through libnebula; device: auto (CUDA where every rank "
        "has one, else cpu; one that cannot be opened is warned of), cpu or cuda (one a rank, "
        "those that fewest other workers of the agent "
        "have; modes rtd and distill with sync.scheme synchronous train on cpu); "
        "precision: auto (bf16 on CUDA, fp32 on processors), fp32 or bf16 (on processors: "
        "products, with avx512_bf16); "
        "outer_state: auto (the exchange's state and arithmetic where the cluster trains, if it "
        "fits there and leaves half a GB free), device (of a mesh: each rank's share on its own; "
        "mode distill: students with distill.federate) or host; cuda_graphs: auto (a pass is "
        "recorded and replayed where its first runs show "
        "that this is faster), on (not with tp above 1; of rtd and distill a discriminator alone) "
        "or "
        "off, the same bits; batch and "
        "recompute: of this cluster "
        "instead of data.batch and recompute, where its memory is another: the same sequences a "
        "step in other micro-batches (mode replicas; batch not with sync.gate: private); role: "
        "generator "
        "and "
        "discriminator (rtd), teacher and student (distill), or auto; "
        "profile: a file with what nebula plan --profile printed on that cluster's machine, for "
        "nebula plan and auto |\n",
        AGENT_CLUSTERS_MAX, config_cluster_keys, KERN_POOL_THREADS_MAX, AGENT_SOURCES_MAX);
}
