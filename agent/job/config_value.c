// SPDX-License-Identifier: Apache-2.0
// Values: from text, as YAML, --set and JSON bring it, into struct agent_job, or one complaint that says where.
#include "agent/base/number.h"
#include "agent/job/config_options.h"
#include "compress/codec.h"

#include <float.h>
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

int config_index_of(const char *const *names, const char *text) {
    for (int i = 0; names[i]; i++)
        if (!strcmp(names[i], text))
            return i;
    return -1;
}

static enum neb_status set_number(struct agent_job *job, const struct config_option *o,
                                  const char *text, const char *where) {
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
    // A float is compared as one: 0.999 as fp32 is a little above 0.999, and must come back through JSON.
    bool below = whole ? v < o->min : (float)v < (float)o->min,
         above = whole ? v > o->max : (float)v > (float)o->max;
    if (below || above)
        return COMPLAIN(where, o->path, "%s is not in %.10g..%.10g", text, o->min, o->max);
    char *p = (char *)job + o->at;
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
        (!*text || !strcmp(text, ".") || !strcmp(text, "..") || // they become folders
         strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") !=
             strlen(text)))
        return COMPLAIN(where, path, "\"%s\" is not a name (letters, digits, '-', '_', '.')", text);
    json_t *utf8 = json_string(text); // it must be able to travel
    if (!utf8)
        return COMPLAIN(where, path, "is not UTF-8 text");
    json_decref(utf8);
    memset(p, 0, size);
    memcpy(p, text, strlen(text));
    return NEB_OK;
}

enum neb_status config_set_path(char *p, size_t size, const char *path, const char *text,
                                const char *where) {
    char whole[NEB_PATH_MAX];
    if (strncmp(text, "~/", 2) != 0)
        return config_set_text(p, size, path, text, where, false);
    if (neb_path_home(whole, sizeof whole, text, path) != NEB_OK) // it said why
        return NEB_ERR_INVALID;
    return config_set_text(p, size, path, whole, where, false);
}

// Keys that the planner can fill in.
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

// A scalar option. Lists (targets, freeze) come as their items one by one, see set_item.
static enum neb_status set_plain(struct agent_job *job, const struct config_option *o,
                                 const char *text, const char *where) {
    char *p = (char *)job + o->at, allowed[256];
    struct cmp_codec codec;
    switch (o->type) {
    case T_INT32:
    case T_INT64:
    case T_FLOAT: return set_number(job, o, text, where);
    case T_BOOL:
        if (strcmp(text, "true") && strcmp(text, "false"))
            return COMPLAIN(where, o->path, "\"%s\" is neither true nor false", text);
        *(bool *)(void *)p = text[0] == 't';
        return NEB_OK;
    case T_PATH:
    case T_STRING: return config_set_text(p, o->size, o->path, text, where, false);
    case T_NAME: return config_set_text(p, o->size, o->path, text, where, true);
    case T_CODEC:
        if (cmp_codec_parse(text, &codec) != NEB_OK)
            return COMPLAIN(where, o->path, "\"%s\" is not one of: %s", text,
                            o->help); // cmp_ said why
        return config_set_text(p, o->size, o->path, text, where, false);
    case T_ENUM: {
        int i = config_index_of(o->names, text);
        config_join(allowed, sizeof allowed, o->names);
        if (i < 0)
            return COMPLAIN(where, o->path, "\"%s\" is not one of: %s", text, allowed);
        // enums are ints with gcc and clang on every system that we build for
        memcpy(p, &i, sizeof i);
        return NEB_OK;
    }
    case T_TARGETS:
    case T_FREEZE:
        return COMPLAIN(where, o->path, "must be a list, such as [%s]",
                        o->type == T_TARGETS ? "q, v" : "embeddings");
    }
    return NEB_ERR_INVALID;
}

// The same, or `auto`: then the key holds its default, a micro-batch one sequence.
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
    return o->type == T_PATH ? config_set_path((char *)job + o->at, o->size, o->path, text, where)
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
    int i = config_index_of(config_target_names, text);
    config_join(allowed, sizeof allowed, config_target_names);
    if (i < 0)
        return COMPLAIN(where, o->path, "\"%s\" is not one of: %s", text, allowed);
    job->trainable.lora_targets |= 1u << i;
    return NEB_OK;
}

void config_defaults(struct agent_job *job) {
    memset(job, 0, sizeof *job);
    for (int i = 0; i < config_n_options; i++) {
        const struct config_option *o = &config_options[i];
        if (!o->preset || o->type == T_FREEZE)
            continue;
        if (o->type == T_TARGETS)
            job->trainable.lora_targets = INTRA_LORA_Q | INTRA_LORA_V;
        else
            NEB_ASSERT(config_set(job, o, o->preset, "default") == NEB_OK);
    }
}

enum neb_status config_set_launcher(struct agent_cluster *c, const char *text, const char *where) {
    for (int i = 0; config_launcher_names[i]; i++)
        if (!strcmp(text, config_launcher_names[i])) {
            c->launcher = (enum agent_launcher)i;
            return NEB_OK;
        }
    return COMPLAIN(where, "clusters.launcher",
                    "\"%s\" is not one of: local, mpirun, slurm, attach%s", text,
                    strcmp(text, "torchrun") ? ""
                                             : "; loops of your own that torchrun starts: attach "
                                               "(configs/examples/train_ddp.py)");
}

enum neb_status config_set_role(struct agent_cluster *c, const char *text, const char *where) {
    int i = config_index_of(config_role_names, text);
    c->role_auto = !strcmp(text, "auto");
    if (i < 0 && !c->role_auto)
        return COMPLAIN(where, "clusters.role",
                        "\"%s\" is not one of: generator, discriminator, teacher, student, auto",
                        text);
    c->role = i < 0 ? AGENT_ROLE_NONE : (enum agent_role)i;
    return NEB_OK;
}

static enum neb_status set_place(const char *key, const char *const *names, const char *text,
                                 const char *where, int *out) {
    for (*out = 0; names[*out]; ++*out)
        if (!strcmp(text, names[*out]))
            return NEB_OK;
    return COMPLAIN(where, key, "\"%s\" is not one of: %s, %s, %s", text, names[0], names[1],
                    names[2]);
}

// device and precision; NULL: auto
enum neb_status config_set_device(struct agent_cluster *c, const char *device,
                                  const char *precision, const char *where) {
    int d = (int)c->device, p = (int)c->precision;
    if (device)
        NEB_TRY(set_place("clusters.device", config_device_names, device, where, &d));
    if (precision)
        NEB_TRY(set_place("clusters.precision", config_precision_names, precision, where, &p));
    c->device = (enum agent_device)d;
    c->precision = (enum agent_precision)p;
    return NEB_OK;
}

enum neb_status config_set_outer_state(struct agent_cluster *c, const char *text,
                                       const char *where) {
    int i;
    NEB_TRY(set_place("clusters.outer_state", config_outer_state_names, text, where, &i));
    c->outer_state = (enum agent_outer_state)i;
    return NEB_OK;
}

enum neb_status config_set_graphs(struct agent_cluster *c, const char *text, const char *where) {
    int i;
    NEB_TRY(set_place("clusters.cuda_graphs", config_graphs_names, text, where, &i));
    c->cuda_graphs = (enum agent_graphs)i;
    return NEB_OK;
}
