// SPDX-License-Identifier: Apache-2.0
// The canonical form of a job, which agents send: JSON with every key, in the order of the table.
#include "agent/base/bytes.h"
#include "agent/job/config_options.h"

#include <stdlib.h>
#include <string.h>

static json_t *sources_to_json(const struct agent_cluster *c) {
    json_t *sources = json_object();
    for (int32_t i = 0; i < c->n_sources; i++)
        json_object_set_new(sources, c->sources[i].name, json_real((double)c->sources[i].weight));
    return sources;
}

// base: the struct agent_job or struct agent_cluster that holds the option.
static json_t *option_to_json(const void *base, const struct config_option *o) {
    const char *p = (const char *)base + o->at;
    const struct agent_job *job = base;
    const struct intra_mesh_config *mesh = (const void *)p;
    json_t *list;
    int i;
    switch (o->type) {
    case T_INT32: return json_integer(*(const int32_t *)(const void *)p);
    case T_INT64: return json_integer(*(const int64_t *)(const void *)p);
    case T_FLOAT: return json_real((double)*(const float *)(const void *)p);
    case T_BOOL:
        return o->names ? json_string(o->names[*(const bool *)(const void *)p])
                        : json_boolean(*(const bool *)(const void *)p);
    case T_STRING:
    case T_PATH:
    case T_NAME:
    case T_CODEC: return json_string(p);
    case T_ROLE:
    case T_ENUM: memcpy(&i, p, sizeof i); return json_string(o->names[i]);
    case T_LEVEL:
        memcpy(&i, p, sizeof i);
        return json_string(i ? cmp_level(i)->name : LEVEL_OF_JOB);
    case T_SWITCH: memcpy(&i, p, sizeof i); return json_boolean(i == AGENT_RECOMPUTE_ON);
    case T_MESH: return json_pack("[i,i,i]", mesh->dp, mesh->pp, mesh->tp);
    case T_SOURCES: return sources_to_json(base);
    case T_TARGETS:
        list = json_array();
        for (i = 0; config_target_names[i]; i++)
            if (job->trainable.lora_targets & 1u << i)
                json_array_append_new(list, json_string(config_target_names[i]));
        return list;
    case T_FREEZE:
        list = json_array();
        if (job->trainable.freeze_embeddings)
            json_array_append_new(list, json_string("embeddings"));
        return list;
    case T_EXCHANGE: break; // config_groups.c
    }
    return NULL;
}

static bool is_in_json(const struct agent_cluster *c, const struct config_cluster_option *o) {
    int i;
    memcpy(&i, (const char *)c + o->option.at, sizeof i); // an enum or a whole number
    return o->in_json == CONFIG_ALWAYS || (o->in_json == CONFIG_IF_SET && i) ||
           (o->in_json == CONFIG_IF_MESH && (agent_cluster_ranks(c) > 1 || c->launcher));
}

static json_t *cluster_to_json(const struct agent_cluster *c) {
    json_t *out = json_object();
    for (int i = 0; i < config_n_cluster_options; i++) {
        const struct config_cluster_option *o = &config_cluster_options[i];
        if (is_in_json(c, o))
            json_object_set_new(out, o->option.path + CONFIG_CLUSTER_PREFIX,
                                option_to_json(c, &o->option));
    }
    return out;
}

json_t *agent_job_to_json(const struct agent_job *job) {
    json_t *root = json_object(), *clusters = json_array();
    for (int i = 0; i < config_n_options; i++)
        if (config_is_used(job, &config_options[i]))
            json_object_set_new(root, config_options[i].path,
                                option_to_json(job, &config_options[i]));
    for (int32_t i = 0; i < job->n_clusters; i++)
        json_array_append_new(clusters, cluster_to_json(&job->clusters[i]));
    json_object_set_new(root, "nonce", json_string(job->nonce));
    json_object_set_new(root, "clusters", clusters);
    if (job->n_groups)
        json_object_set_new(root, "groups", config_groups_to_json(job));
    return root;
}

static enum neb_status json_to_text(const json_t *v, char *out, size_t cap) {
    int n = -1;
    if (json_is_string(v))
        n = snprintf(out, cap, "%s", json_string_value(v));
    else if (json_is_integer(v))
        n = snprintf(out, cap, "%lld", (long long)json_integer_value(v));
    else if (json_is_real(v))
        n = snprintf(out, cap, "%.9g", json_real_value(v));
    else if (json_is_boolean(v))
        n = snprintf(out, cap, "%s", json_is_true(v) ? "true" : "false");
    return n >= 0 && (size_t)n < cap
               ? NEB_OK
               : neb_fail(NEB_ERR_FORMAT, "job specification: a value of a wrong type");
}

static enum neb_status mesh_from_json(const json_t *v, struct intra_mesh_config *mesh) {
    int32_t *const axes[] = {&mesh->dp, &mesh->pp, &mesh->tp};
    for (size_t i = 0; i < 3; i++) {
        json_int_t n = json_integer_value(json_array_get(v, i));
        if (n < 1 || n > MESH_AXIS_MAX || json_array_size(v) != 3)
            return neb_fail(NEB_ERR_FORMAT, "job specification: malformed mesh");
        *axes[i] = (int32_t)n;
    }
    return NEB_OK;
}

static enum neb_status sources_from_json(const json_t *v, struct agent_cluster *c) {
    const char *name;
    json_t *weight;
    if (json_object_size(v) > AGENT_SOURCES_MAX)
        return neb_fail(NEB_ERR_FORMAT, "job specification: more than %d sources",
                        AGENT_SOURCES_MAX);
    json_object_foreach((json_t *)(uintptr_t)v, name, weight) {
        struct agent_source *s = &c->sources[c->n_sources++];
        NEB_TRY(config_set_text(s->name, sizeof s->name, "clusters.sources", name,
                                "job specification", true));
        s->weight = (float)json_number_value(weight);
        if (!(s->weight > 0) || !(s->weight <= 1e6f))
            return neb_fail(NEB_ERR_FORMAT, "job specification: weight of %s is not above 0",
                            s->name);
    }
    return NEB_OK;
}

static bool has_type(const json_t *v, enum option_type type) {
    switch (type) {
    case T_INT32: return json_is_integer(v);
    case T_FLOAT: return json_is_real(v);
    case T_BOOL:
    case T_SWITCH: return json_is_boolean(v);
    case T_MESH: return json_is_array(v);
    case T_SOURCES: return json_is_object(v);
    default: return json_is_string(v);
    }
}

static enum neb_status cluster_key_from_json(const json_t *v, struct agent_cluster *c,
                                             const struct config_option *o) {
    char text[NEB_PATH_MAX];
    if (!has_type(v, o->type))
        return neb_fail(NEB_ERR_FORMAT, "job specification: malformed %s", o->path);
    if (o->type == T_MESH)
        return mesh_from_json(v, &c->mesh);
    if (o->type == T_SOURCES)
        return sources_from_json(v, c);
    NEB_TRY(json_to_text(v, text, sizeof text));
    return config_set_cluster(c, o, text, "job specification");
}

static enum neb_status cluster_from_json(const json_t *v, struct agent_cluster *c) {
    size_t known = 0;
    bool all = true;
    config_cluster_defaults(c);
    for (int i = 0; i < config_n_cluster_options; i++) {
        const struct config_cluster_option *o = &config_cluster_options[i];
        const char *key = o->option.path + CONFIG_CLUSTER_PREFIX;
        const json_t *value = o->in_json == CONFIG_NEVER ? NULL : json_object_get(v, key);
        all = all && (value || o->in_json != CONFIG_ALWAYS);
        known += value != NULL;
        if (value)
            NEB_TRY(cluster_key_from_json(value, c, &o->option));
    }
    // mesh and launcher are sent together
    if (!all || json_object_size(v) != known ||
        !json_object_get(v, "mesh") != !json_object_get(v, "launcher"))
        return neb_fail(NEB_ERR_FORMAT, "job specification: malformed cluster");
    if (c->role_auto) // the planner chooses before the job is sent
        return COMPLAIN("job specification", "clusters.role", "auto is not a role");
    return NEB_OK;
}

static enum neb_status option_from_json(struct agent_job *out, const struct config_option *o,
                                        const json_t *v) {
    char text[NEB_PATH_MAX];
    size_t i;
    json_t *item;
    if (!v)
        return neb_fail(NEB_ERR_FORMAT, "job specification: key %s is missing", o->path);
    if (o->type != T_TARGETS && o->type != T_FREEZE) {
        NEB_TRY(json_to_text(v, text, sizeof text));
        return config_set(out, o, text, "job specification");
    }
    config_clear_list(out, o);
    json_array_foreach(v, i, item) {
        NEB_TRY(json_to_text(item, text, sizeof text));
        NEB_TRY(config_set_item(out, o, text, "job specification"));
    }
    return NEB_OK;
}

enum neb_status agent_job_from_json(const json_t *json, struct agent_job *out) {
    size_t i, keys = 2;
    json_t *item;
    config_defaults(out);
    json_t *clusters = json_object_get(json, "clusters"), *groups = json_object_get(json, "groups");
    const char *nonce = json_string_value(json_object_get(json, "nonce"));
    uint8_t drawn[AGENT_NONCE_BYTES];
    out->attached = json_object_get(json, "model.mode") != NULL;
    for (int k = 0; k < config_n_options; k++)
        keys += config_is_used(out, &config_options[k]);
    if (!json_is_object(json) || json_object_size(json) != keys + (groups != NULL) ||
        !json_is_array(clusters) || json_array_size(clusters) > AGENT_CLUSTERS_MAX)
        return neb_fail(NEB_ERR_FORMAT,
                        "job specification: it does not have exactly the %zu keys of this version. "
                        "All agents of a job must run the same version; finish or stop jobs before "
                        "an upgrade, and start new ones with init_from: HOME/jobs/ID/checkpoint",
                        keys);
    if (!nonce || (*nonce && !neb_unhex(nonce, drawn, sizeof drawn)))
        return neb_fail(NEB_ERR_FORMAT, "job specification: nonce is not %d hexadecimal digits",
                        2 * AGENT_NONCE_BYTES);
    memcpy(out->nonce, nonce, strlen(nonce) + 1);
    bool attached = out->attached;
    for (int k = 0; k < config_n_options; k++)
        if (config_is_used(out, &config_options[k]))
            NEB_TRY(option_from_json(out, &config_options[k],
                                     json_object_get(json, config_options[k].path)));
    if (out->attached != attached) // the key is there only if its value is "attached"
        return neb_fail(NEB_ERR_FORMAT, "job specification: malformed model.mode");
    config_settle(out);
    json_array_foreach(clusters, i, item)
        NEB_TRY(cluster_from_json(item, &out->clusters[out->n_clusters++]));
    if (groups)
        NEB_TRY(config_groups_from_json(groups, out));
    if (out->autos)
        return neb_fail(NEB_ERR_FORMAT, "job specification: a key still has the value auto");
    return agent_job_validate(out, "job specification");
}
