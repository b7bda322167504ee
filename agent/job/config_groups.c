// SPDX-License-Identifier: Apache-2.0
// Groups of a job: their JSON, and the checks that they fit the job.
#include "agent/job/config_options.h"
#include "inter/record/types.h"

#include <math.h>
#include <string.h>

// ---- JSON --------------------------------------------------------------------------------------

json_t *config_groups_to_json(const struct agent_job *j) {
    json_t *list = json_array();
    for (int32_t g = 0; g < j->n_groups; g++) {
        const struct agent_group *x = &j->groups[g];
        json_t *o = json_pack("{s:s}", "match", x->match);
        if (x->exchange == AGENT_GROUP_OWNER)
            json_object_set_new(o, "exchange",
                                json_pack("{s:s}", "owner", j->clusters[x->owner].name));
        else if (x->exchange == AGENT_GROUP_EVERY && x->every > 1)
            json_object_set_new(o, "exchange", json_pack("{s:i}", "every", x->every));
        else
            json_object_set_new(o, "exchange",
                                json_string(x->exchange == AGENT_GROUP_NEVER ? "never" : "every"));
        if (x->codec[0])
            json_object_set_new(o, "codec", json_string(x->codec));
        if (!isnan(x->eta))
            json_object_set_new(o, "eta", json_real((double)x->eta));
        if (!isnan(x->mu))
            json_object_set_new(o, "mu", json_real((double)x->mu));
        if (x->fragments)
            json_object_set_new(o, "fragments", json_integer(x->fragments));
        json_array_append_new(list, o);
    }
    return list;
}

// The value as text, if it has the type that config_groups_to_json() writes; else NULL.
static const char *text_of(const json_t *v, enum option_type type, char out[32]) {
    if (type == T_INT32 && json_is_integer(v))
        snprintf(out, 32, "%lld", (long long)json_integer_value(v));
    else if (type == T_FLOAT && json_is_real(v))
        snprintf(out, 32, "%.9g", json_real_value(v));
    else
        return type != T_INT32 && type != T_FLOAT ? json_string_value(v) : NULL;
    return out;
}

static enum neb_status group_from_json(const json_t *v, struct agent_job *j,
                                       struct agent_group *g) {
    static const char where[] = "job specification";
    const char *key, *inner;
    char text[32];
    json_t *value, *of;
    config_group_defaults(g);
    json_object_foreach((json_t *)(uintptr_t)v, key, value) {
        const struct config_option *o = config_group_option(key);
        const char *said = o ? text_of(value, o->type, text) : NULL;
        if (said) {
            NEB_TRY(config_set_group(g, o, said, where));
            continue;
        }
        if (!o || o->type != T_EXCHANGE || json_object_size(value) != 1)
            return neb_fail(NEB_ERR_FORMAT, "job specification: malformed group");
        json_object_foreach(value, inner, of) {
            bool every = !strcmp(inner, "every");
            said = text_of(of, every ? T_INT32 : T_STRING, text);
            if (!said || (!every && strcmp(inner, "owner")))
                return neb_fail(NEB_ERR_FORMAT, "job specification: malformed group");
            NEB_TRY(config_set_exchange(j, g, inner, said, where));
        }
    }
    return NEB_OK;
}

enum neb_status config_groups_from_json(const json_t *list, struct agent_job *j) {
    size_t i;
    json_t *v;
    if (!json_array_size(list) || json_array_size(list) > AGENT_GROUPS_MAX)
        return neb_fail(NEB_ERR_FORMAT, "job specification: groups is not a list of 1 to %d",
                        AGENT_GROUPS_MAX);
    json_array_foreach(list, i, v) {
        if (!json_is_object(v))
            return neb_fail(NEB_ERR_FORMAT, "job specification: malformed group");
        NEB_TRY(group_from_json(v, j, &j->groups[j->n_groups++]));
    }
    return NEB_OK;
}

// ---- checks ------------------------------------------------------------------------------------

#define BAD(g, path, ...)                                                                          \
    config_complain(config_group_line(j, (g), file, (char[NEB_PATH_MAX + 16]){0}), path,           \
                    __VA_ARGS__)

static enum neb_status check_pattern(const struct agent_job *j, int32_t g, const char *file) {
    const char *match = j->groups[g].match, *wrong = agent_pattern_wrong(match);
    if (wrong)
        return BAD(g, "groups.match", *match ? "\"%s\" %s" : "%s%s", match, wrong);
    for (int32_t k = 0; k < g; k++) {
        if (!strcmp(j->groups[k].match, "*"))
            return BAD(g, "groups.match",
                       "\"%s\" comes after \"*\", which matches everything: put \"*\" last", match);
        if (!strcmp(j->groups[k].match, match))
            return BAD(g, "groups.match", "two groups have the pattern \"%s\"", match);
    }
    return NEB_OK;
}

static enum neb_status check_exchange(const struct agent_job *j, int32_t g, const char *file) {
    const struct agent_group *x = &j->groups[g];
    bool private = j->sync.gate == AGENT_GATE_PRIVATE;
    const char *idle = x->codec[0]      ? "groups.codec"
                       : !isnan(x->eta) ? "groups.eta"
                       : !isnan(x->mu)  ? "groups.mu"
                       : x->fragments   ? "groups.fragments"
                                        : NULL;
    if (x->exchange == AGENT_GROUP_NEVER && idle)
        return BAD(g, idle, "does nothing: \"%s\" is never exchanged; remove it", x->match);
    if (private && x->codec[0] && strcmp(x->codec, "bf16"))
        return BAD(g, "groups.codec", "must be bf16 with sync.gate: private, as sync.codec");
    if (x->codec[0] && j->sync.tune.mode == AGENT_TUNE_AUTO && j->sync.tune.codec)
        return BAD(g, "groups.codec",
                   "does not work with sync.tune: auto, which chooses the codec: set "
                   "sync.tune.codec: false");
    if (x->exchange != AGENT_GROUP_OWNER)
        return NEB_OK;
    if (j->clusters[x->owner].witness)
        return BAD(g, "groups.exchange", "owner: \"%s\" is a witness, which trains nothing",
                   j->clusters[x->owner].name);
    if (private)
        return BAD(g, "groups.exchange",
                   "owner does not work with sync.gate: private: an update that travels alone is "
                   "not hidden in a sum");
    if (j->sync.gate == AGENT_GATE_ROBUST)
        return BAD(g, "groups.exchange",
                   "owner does not work with sync.gate: robust, which compares several updates");
    return NEB_OK;
}

enum neb_status config_groups_check(const struct agent_job *j, const char *file) {
    if (!j->n_groups)
        return NEB_OK;
    if (j->mode != AGENT_MODE_REPLICAS || j->sync.scheme != AGENT_SCHEME_FEDERATED)
        return COMPLAIN_OF(j, file, "groups",
                           "need mode: replicas and sync.scheme: federated; remove them");
    for (int32_t g = 0; g < j->n_groups; g++) {
        NEB_TRY(check_pattern(j, g, file));
        NEB_TRY(check_exchange(j, g, file));
    }
    if (!agent_job_fragments(j))
        return COMPLAIN_OF(
            j, file, "groups",
            "nothing is exchanged: every group has exchange: never; use sync.scheme: none");
    if (agent_job_fragments(j) > INTER_FRAGMENTS_MAX)
        return COMPLAIN_OF(j, file, "groups", "have %d fragments in all; the limit is %d",
                           agent_job_fragments(j), INTER_FRAGMENTS_MAX);
    return NEB_OK;
}
