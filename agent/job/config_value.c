// SPDX-License-Identifier: Apache-2.0
// Sets a value of a job or cluster from text (YAML, --set, JSON). If it cannot, it logs what is
// wrong and where.
#include "agent/base/number.h"
#include "agent/job/config_options.h"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum neb_status config_complain(const char *where, const char *path, const char *fmt, ...) {
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return neb_fail(NEB_ERR_INVALID, "%s: %s: %s", where, path, text);
}

void config_join(char *out, size_t cap, const char *const *names) {
    size_t n = 0;
    out[0] = 0;
    for (; *names && n + 1 < cap; names++)
        n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? ", " : "", *names);
}

void config_join_levels(char *out, size_t cap) {
    const char *names[CMP_LEVELS_MAX + 1] = {NULL};
    for (int i = 0; i < CMP_LEVELS_MAX && cmp_level(i + 1); i++)
        names[i] = cmp_level(i + 1)->name;
    config_join(out, cap, names);
}

static int index_of(const char *const *names, const char *text) {
    for (int i = 0; names[i]; i++)
        if (!strcmp(names[i], text))
            return i;
    return -1;
}

static enum neb_status set_number(void *base, const struct config_option *o, const char *text,
                                  const char *where) {
    bool whole = o->type != T_FLOAT, negative = *text == '-';
    uint64_t n = 0;
    double v = 0;
    bool good = whole ? neb_number_whole(text + negative, 0, INT64_MAX, &n)
                      : neb_number_real(text, -DBL_MAX, DBL_MAX, &v);
    if (whole)
        v = negative ? -(double)n : (double)n;
    if (!good)
        return COMPLAIN(where, o->path, "\"%s\" is not %s", text,
                        whole ? "an integer" : "a number");
    // Compared as fp32: the fp32 value of 0.999 is a little above 0.999, and JSON must bring it
    // back.
    bool below = whole ? v < o->min : (float)v < (float)o->min,
         above = whole ? v > o->max : (float)v > (float)o->max;
    if (below || above)
        return COMPLAIN(where, o->path, "%s is not in %.10g..%.10g", text, o->min, o->max);
    char *p = (char *)base + o->at;
    if (o->type == T_INT32)
        memcpy(p, &(int32_t){(int32_t)v}, sizeof(int32_t));
    else if (o->type == T_INT64)
        memcpy(p, &(int64_t){negative ? -(int64_t)n : (int64_t)n}, sizeof(int64_t));
    else
        memcpy(p, &(float){(float)v}, sizeof(float));
    return NEB_OK;
}

enum neb_status config_set_text(char *p, size_t size, const char *path, const char *text,
                                const char *where, bool name) {
    const struct config_option *o = config_option(path);
    if (strlen(text) >= size)
        return COMPLAIN(where, path, "longer than %zu bytes", size - 1);
    if (!*text && o && !o->preset)
        return COMPLAIN(where, path, "is empty (%s)", o->help);
    if (name &&
        (!*text || !strcmp(text, ".") || !strcmp(text, "..") || // the name becomes a folder
         strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") !=
             strlen(text)))
        return COMPLAIN(where, path, "\"%s\" is not a name (letters, digits, '-', '_', '.')", text);
    json_t *utf8 = json_string(text); // JSON must be able to carry it
    if (!utf8)
        return COMPLAIN(where, path, "is not UTF-8 text");
    json_decref(utf8);
    memset(p, 0, size);
    memcpy(p, text, strlen(text));
    return NEB_OK;
}

static enum neb_status set_path(char *p, size_t size, const char *path, const char *text,
                                const char *where) {
    char whole[NEB_PATH_MAX];
    if (strncmp(text, "~/", 2) != 0)
        return config_set_text(p, size, path, text, where, false);
    if (neb_path_home(whole, sizeof whole, text, path) != NEB_OK) // it has logged why
        return NEB_ERR_INVALID;
    return config_set_text(p, size, path, whole, where, false);
}

uint32_t config_auto_bit(const struct config_option *o) {
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

static enum neb_status set_named_bool(char *p, const struct config_option *o, const char *text,
                                      const char *where) {
    char allowed[64];
    int i = index_of(o->names, text);
    config_join(allowed, sizeof allowed, o->names);
    if (i < 0)
        return COMPLAIN(where, o->path, "\"%s\" is not one of: %s", text, allowed);
    *(bool *)(void *)p = i == 1;
    return NEB_OK;
}

// A key that is a single value. config_set_item() takes the items of a list, one by one.
static enum neb_status set_plain(void *base, const struct config_option *o, const char *text,
                                 const char *where) {
    char *p = (char *)base + o->at, allowed[256];
    struct cmp_codec codec;
    switch (o->type) {
    case T_INT32:
    case T_INT64:
    case T_FLOAT: return set_number(base, o, text, where);
    case T_BOOL:
    case T_SWITCH:
        if (o->names)
            return set_named_bool(p, o, text, where);
        if (strcmp(text, "true") && strcmp(text, "false"))
            return COMPLAIN(where, o->path, "\"%s\" is neither true nor false", text);
        if (o->type == T_BOOL)
            *(bool *)(void *)p = text[0] == 't';
        else
            memcpy(p, &(int){text[0] == 't' ? AGENT_RECOMPUTE_ON : AGENT_RECOMPUTE_OFF},
                   sizeof(int));
        return NEB_OK;
    case T_PATH:
    case T_STRING: return config_set_text(p, o->size, o->path, text, where, false);
    case T_NAME: return config_set_text(p, o->size, o->path, text, where, true);
    case T_CODEC:
        cmp_codec_usage(allowed, sizeof allowed);
        if (cmp_codec_parse(text, &codec) != NEB_OK) // it has logged why
            return COMPLAIN(where, o->path, "\"%s\" is not one of: %s", text, allowed);
        return config_set_text(p, o->size, o->path, text, where, false);
    case T_LEVEL:
        config_join_levels(allowed, sizeof allowed);
        if (!cmp_level_of(text) &&
            !(o->preset && !strcmp(text, LEVEL_OF_JOB) && !strcmp(o->preset, LEVEL_OF_JOB)))
            return COMPLAIN(where, o->path, "\"%s\" is not one of: %s", text, allowed);
        memcpy(p, &(int){cmp_level_of(text)}, sizeof(int));
        return NEB_OK;
    case T_ENUM: {
        int i = index_of(o->names, text);
        config_join(allowed, sizeof allowed, o->names);
        if (i < 0)
            return COMPLAIN(where, o->path, "\"%s\" is not one of: %s%s", text, allowed,
                            o->names == config_launcher_names && !strcmp(text, "torchrun")
                                ? "; for your own loop that torchrun starts, use attach "
                                  "(configs/examples/train_ddp.py)"
                                : "");
        // gcc and clang make enums ints on every system that we build for
        memcpy(p, &i, sizeof i);
        return NEB_OK;
    }
    case T_TARGETS:
    case T_FREEZE:
        return COMPLAIN(where, o->path, "must be a list, such as [%s]",
                        o->type == T_TARGETS ? "q, v" : "embeddings");
    case T_ROLE:
    case T_MESH:
    case T_SOURCES:         // config_set_cluster()
    case T_EXCHANGE: break; // config_set_group()
    }
    return NEB_ERR_INVALID;
}

enum neb_status config_set(struct agent_job *job, const struct config_option *o, const char *text,
                           const char *where) {
    uint32_t bit = config_auto_bit(o);
    if (!bit || strcmp(text, "auto")) {
        NEB_TRY(set_plain(job, o, text, where));
        job->autos &= ~bit;
        return NEB_OK;
    }
    job->autos |= bit;
    return set_plain(job, o, o->preset ? o->preset : "1", where);
}

enum neb_status config_set_written(struct agent_job *job, const struct config_option *o,
                                   const char *text, const char *where) {
    return o->type == T_PATH ? set_path((char *)job + o->at, o->size, o->path, text, where)
                             : config_set(job, o, text, where);
}

void config_clear_list(struct agent_job *job, const struct config_option *o) {
    memset((char *)job + o->at, 0, o->size);
}

enum neb_status config_set_item(struct agent_job *job, const struct config_option *o,
                                const char *text, const char *where) {
    char allowed[64];
    if (o->type == T_FREEZE) {
        if (strcmp(text, "embeddings"))
            return COMPLAIN(where, o->path, "\"%s\" cannot be frozen; only: embeddings", text);
        job->trainable.freeze_embeddings = true;
        return NEB_OK;
    }
    int i = index_of(config_target_names, text);
    config_join(allowed, sizeof allowed, config_target_names);
    if (i < 0)
        return COMPLAIN(where, o->path, "\"%s\" is not one of: %s", text, allowed);
    job->trainable.lora_targets |= 1u << i;
    return NEB_OK;
}

static void set_default(struct agent_job *job, const struct config_option *o) {
    if (o->type == T_TARGETS)
        job->trainable.lora_targets = INTRA_LORA_Q | INTRA_LORA_V;
    else if (o->preset && o->type != T_FREEZE)
        NEB_ASSERT(config_set(job, o, o->preset, "default") == NEB_OK);
}

void config_defaults(struct agent_job *job) {
    memset(job, 0, sizeof *job);
    for (int i = 0; i < config_n_options; i++)
        set_default(job, &config_options[i]);
}

// ---- clusters ----------------------------------------------------------------------------------

static enum neb_status set_role(struct agent_cluster *c, const struct config_option *o,
                                const char *text, const char *where) {
    char allowed[128];
    int i = index_of(o->names, text);
    c->role_auto = !strcmp(text, "auto");
    config_join(allowed, sizeof allowed,
                o->names + 1); // not "none": a cluster without a role has no key role
    if (i < 0 && !c->role_auto)
        return COMPLAIN(where, o->path, "\"%s\" is not one of: %s, auto", text, allowed);
    c->role = i < 0 ? AGENT_ROLE_NONE : (enum agent_role)i;
    return NEB_OK;
}

enum neb_status config_set_cluster(struct agent_cluster *c, const struct config_option *o,
                                   const char *text, const char *where) {
    if (o->type == T_ROLE)
        return set_role(c, o, text, where);
    if (o->type == T_SOURCES)
        return COMPLAIN(where, o->path,
                        "must map source names to weights, such as {en: 1, de: 0.5}");
    if (o->type != T_MESH)
        return set_plain(c, o, text, where);
    if (strcmp(text, "auto"))
        return COMPLAIN(where, o->path, "must be a mapping such as {dp: 2, pp: 1, tp: 2}, or auto");
    c->mesh_auto = true;
    return NEB_OK;
}

enum neb_status config_set_cluster_written(struct agent_cluster *c, const struct config_option *o,
                                           const char *text, const char *where) {
    return o->type == T_PATH ? set_path((char *)c + o->at, o->size, o->path, text, where)
                             : config_set_cluster(c, o, text, where);
}

void config_cluster_defaults(struct agent_cluster *c) {
    memset(c, 0, sizeof *c);
    for (int i = 0; i < config_n_cluster_options; i++) {
        const struct config_option *o = &config_cluster_options[i].option;
        if (o->preset && *o->preset)
            NEB_ASSERT(config_set_cluster(c, o, o->preset, "default") == NEB_OK);
    }
}

// ---- groups ------------------------------------------------------------------------------------

void config_group_defaults(struct agent_group *g) {
    memset(g, 0, sizeof *g);
    g->every = 1;
    g->owner = -1;
    g->eta = g->mu = NAN;
}

enum neb_status config_set_group(struct agent_group *g, const struct config_option *o,
                                 const char *text, const char *where) {
    if (o->type != T_EXCHANGE)
        return set_plain(g, o, text, where);
    if (strcmp(text, "every") && strcmp(text, "never"))
        return COMPLAIN(where, o->path,
                        "\"%s\" is not one of: every, never, {every: ROUNDS}, {owner: CLUSTER}",
                        text);
    g->exchange = text[0] == 'e' ? AGENT_GROUP_EVERY : AGENT_GROUP_NEVER;
    return NEB_OK;
}

enum neb_status config_set_exchange(const struct agent_job *job, struct agent_group *g,
                                    const char *key, const char *text, const char *where) {
    static const struct config_option rounds = {"groups.exchange.every", T_INT32,
                                                offsetof(struct agent_group, every), .min = 1,
                                                .max = AGENT_GROUP_EVERY_MAX};
    if (!strcmp(key, "every")) {
        g->exchange = AGENT_GROUP_EVERY;
        return set_plain(g, &rounds, text, where);
    }
    g->exchange = AGENT_GROUP_OWNER;
    for (g->owner = 0; g->owner < job->n_clusters; g->owner++)
        if (!strcmp(job->clusters[g->owner].name, text))
            return NEB_OK;
    g->owner = -1;
    return COMPLAIN(where, "groups.exchange", "owner: \"%s\" is not one of the clusters", text);
}

void config_settle(struct agent_job *job) {
    if (!job->attached)
        return;
    for (int i = 0; i < config_n_options; i++) { // keys that do nothing count as not given
        const struct config_option *o = &config_options[i];
        if (!job->given[i] || config_is_used(job, o))
            continue;
        memset((char *)job + o->at, 0, o->size);
        job->autos &= ~config_auto_bit(o);
        set_default(job, o);
    }
    job->sync.row_weights = false; // only the built-in model has rows that belong to tokens
    if (job->init == AGENT_INIT_SEED && !job->given[config_option("init.mode") - config_options])
        job->init = AGENT_INIT_FROM;
}
