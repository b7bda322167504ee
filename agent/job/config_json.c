// SPDX-License-Identifier: Apache-2.0
// The canonical form of a job, as it travels: JSON, every key, in the order of the table.
#include "agent/base/bytes.h"
#include "agent/job/config_options.h"
#include "kernels/pool.h"

#include <stdlib.h>
#include <string.h>

static json_t *option_to_json(const struct agent_job *job, const struct config_option *o) {
    const char *p = (const char *)job + o->at;
    json_t *list;
    switch (o->type) {
    case T_INT32: return json_integer(*(const int32_t *)(const void *)p);
    case T_INT64: return json_integer(*(const int64_t *)(const void *)p);
    case T_FLOAT: return json_real((double)*(const float *)(const void *)p);
    case T_BOOL: return json_boolean(*(const bool *)(const void *)p);
    case T_STRING:
    case T_PATH:
    case T_NAME:
    case T_CODEC: return json_string(p);
    case T_ENUM: {
        int i;
        memcpy(&i, p, sizeof i);
        return json_string(o->names[i]);
    }
    case T_TARGETS:
        list = json_array();
        for (int i = 0; config_target_names[i]; i++)
            if (job->trainable.lora_targets & 1u << i)
                json_array_append_new(list, json_string(config_target_names[i]));
        return list;
    case T_FREEZE:
        list = json_array();
        if (job->trainable.freeze_embeddings)
            json_array_append_new(list, json_string("embeddings"));
        return list;
    }
    return NULL;
}

json_t *agent_job_to_json(const struct agent_job *job) {
    json_t *root = json_object(), *clusters = json_array();
    for (int i = 0; i < config_n_options; i++)
        json_object_set_new(root, config_options[i].path, option_to_json(job, &config_options[i]));
    for (int32_t i = 0; i < job->n_clusters; i++) {
        const struct agent_cluster *c = &job->clusters[i];
        json_t *sources = json_object();
        for (int32_t k = 0; k < c->n_sources; k++)
            json_object_set_new(sources, c->sources[k].name,
                                json_real((double)c->sources[k].weight));
        json_t *o = json_pack("{s:s,s:b,s:i,s:s,s:o}", "name", c->name, "witness", c->witness,
                              "threads", c->threads, "corpus", c->corpus, "sources", sources);
        if (c->role) // likewise below
            json_object_set_new(o, "role", json_string(config_role_names[c->role]));
        // left out otherwise
        if (agent_cluster_ranks(c) > 1 || c->launcher) {
            json_object_set_new(o, "mesh",
                                json_pack("[i,i,i]", c->mesh.dp, c->mesh.pp, c->mesh.tp));
            json_object_set_new(o, "launcher", json_string(config_launcher_names[c->launcher]));
        }
        if (c->device)
            json_object_set_new(o, "device", json_string(config_device_names[c->device]));
        if (c->precision)
            json_object_set_new(o, "precision", json_string(config_precision_names[c->precision]));
        if (c->outer_state)
            json_object_set_new(o, "outer_state",
                                json_string(config_outer_state_names[c->outer_state]));
        if (c->cuda_graphs)
            json_object_set_new(o, "cuda_graphs", json_string(config_graphs_names[c->cuda_graphs]));
        if (c->batch)
            json_object_set_new(o, "batch", json_integer(c->batch));
        if (c->recompute)
            json_object_set_new(o, "recompute", json_boolean(c->recompute == AGENT_RECOMPUTE_ON));
        json_array_append_new(clusters, o);
    }
    json_object_set_new(root, "nonce", json_string(job->nonce));
    json_object_set_new(root, "clusters", clusters);
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

static enum neb_status mesh_from_json(const json_t *v, struct agent_cluster *c) {
    const json_t *mesh = json_object_get(v, "mesh");
    const char *launcher = json_string_value(json_object_get(v, "launcher")),
               *outer = json_string_value(json_object_get(v, "outer_state")),
               *graphs = json_string_value(json_object_get(v, "cuda_graphs"));
    int32_t *const axes[] = {&c->mesh.dp, &c->mesh.pp, &c->mesh.tp};
    c->mesh = (struct intra_mesh_config){1, 1, 1};
    NEB_TRY(config_set_device(c, json_string_value(json_object_get(v, "device")),
                              json_string_value(json_object_get(v, "precision")),
                              "job specification"));
    if (json_object_get(v, "outer_state"))
        NEB_TRY(config_set_outer_state(c, outer ? outer : "?", "job specification"));
    if (json_object_get(v, "cuda_graphs"))
        NEB_TRY(config_set_graphs(c, graphs ? graphs : "?", "job specification"));
    if (!mesh)
        return NEB_OK;
    for (size_t i = 0; i < 3; i++) {
        json_int_t n = json_integer_value(json_array_get(mesh, i));
        if (n < 1 || n > MESH_AXIS_MAX || json_array_size(mesh) != 3 || !launcher)
            return neb_fail(NEB_ERR_FORMAT, "job specification: malformed mesh");
        *axes[i] = (int32_t)n;
    }
    return config_set_launcher(c, launcher, "job specification");
}

static enum neb_status micro_from_json(const json_t *v, struct agent_cluster *c) {
    const json_t *batch = json_object_get(v, "batch"), *again = json_object_get(v, "recompute");
    if ((batch && (!json_is_integer(batch) || json_integer_value(batch) < 1 ||
                   json_integer_value(batch) > CONFIG_BATCH_MAX)) ||
        (again && !json_is_boolean(again)))
        return neb_fail(NEB_ERR_FORMAT, "job specification: malformed micro-batches of a cluster");
    c->batch = (int32_t)json_integer_value(batch);
    if (again)
        c->recompute = json_is_true(again) ? AGENT_RECOMPUTE_ON : AGENT_RECOMPUTE_OFF;
    return NEB_OK;
}

static enum neb_status cluster_from_json(const json_t *v, struct agent_cluster *c) {
    const json_t *role = json_object_get(v, "role");
    size_t known =
        5u + (json_object_get(v, "mesh") ? 2 : 0) + (json_object_get(v, "device") != NULL) +
        (role != NULL) + (json_object_get(v, "precision") != NULL) +
        (json_object_get(v, "outer_state") != NULL) + (json_object_get(v, "cuda_graphs") != NULL) +
        (json_object_get(v, "batch") != NULL) + (json_object_get(v, "recompute") != NULL);
    const char *name = json_string_value(json_object_get(v, "name")),
               *corpus = json_string_value(json_object_get(v, "corpus"));
    const json_t *threads = json_object_get(v, "threads"), *witness = json_object_get(v, "witness"),
                 *w;
    json_t *sources = json_object_get(v, "sources");
    const char *key;
    if (!name || !corpus || !json_is_integer(threads) || !json_is_object(sources) ||
        !json_is_boolean(witness) || json_object_size(v) != known ||
        json_object_size(sources) > AGENT_SOURCES_MAX || json_integer_value(threads) < 0 ||
        json_integer_value(threads) > KERN_POOL_THREADS_MAX)
        return neb_fail(NEB_ERR_FORMAT, "job specification: malformed cluster");
    NEB_TRY(
        config_set_text(c->name, sizeof c->name, "clusters.name", name, "job specification", true));
    NEB_TRY(config_set_text(c->corpus, sizeof c->corpus, "clusters.corpus", corpus,
                            "job specification", false));
    c->threads = (int32_t)json_integer_value(threads);
    c->witness = json_is_true(witness);
    NEB_TRY(mesh_from_json(v, c));
    NEB_TRY(micro_from_json(v, c));
    if (role)
        NEB_TRY(config_set_role(c, json_is_string(role) ? json_string_value(role) : "?",
                                "job specification"));
    if (c->role_auto) // filled in before a job travels
        return COMPLAIN("job specification", "clusters.role", "auto is no role");
    json_object_foreach(sources, key, w) {
        struct agent_source *s = &c->sources[c->n_sources++];
        NEB_TRY(config_set_text(s->name, sizeof s->name, "clusters.sources", key,
                                "job specification", true));
        s->weight = (float)json_number_value(w);
        if (!(s->weight > 0) || !(s->weight <= 1e6f))
            return neb_fail(NEB_ERR_FORMAT, "job specification: weight of %s is not above 0",
                            s->name);
    }
    return NEB_OK;
}

enum neb_status agent_job_from_json(const json_t *json, struct agent_job *out) {
    char text[NEB_PATH_MAX];
    size_t i;
    json_t *v, *item;
    config_defaults(out);
    json_t *clusters = json_object_get(json, "clusters");
    const char *nonce = json_string_value(json_object_get(json, "nonce"));
    uint8_t drawn[AGENT_NONCE_BYTES];
    if (!json_is_object(json) || json_object_size(json) != (size_t)config_n_options + 2 ||
        !json_is_array(clusters) || json_array_size(clusters) > AGENT_CLUSTERS_MAX)
        return neb_fail(NEB_ERR_FORMAT,
                        "job specification: it does not have exactly the %d keys of this version. "
                        "All agents of "
                        "a job run the same one; finish or stop jobs before an upgrade, and begin "
                        "new ones with "
                        "init_from: HOME/jobs/ID/checkpoint",
                        config_n_options + 2);
    if (!nonce || (*nonce && !neb_unhex(nonce, drawn, sizeof drawn)))
        return neb_fail(NEB_ERR_FORMAT, "job specification: nonce is not %d hexadecimal digits",
                        2 * AGENT_NONCE_BYTES);
    memcpy(out->nonce, nonce, strlen(nonce) + 1);
    for (int k = 0; k < config_n_options; k++) {
        const struct config_option *o = &config_options[k];
        if (!(v = json_object_get(json, o->path)))
            return neb_fail(NEB_ERR_FORMAT, "job specification: key %s is missing", o->path);
        if (o->type != T_TARGETS && o->type != T_FREEZE) {
            NEB_TRY(json_to_text(v, text, sizeof text));
            NEB_TRY(config_set(out, o, text, "job specification"));
            continue;
        }
        config_clear_list(out, o);
        json_array_foreach(v, i, item) {
            NEB_TRY(json_to_text(item, text, sizeof text));
            NEB_TRY(config_set_item(out, o, text, "job specification"));
        }
    }
    json_array_foreach(clusters, i, item)
        NEB_TRY(cluster_from_json(item, &out->clusters[out->n_clusters++]));
    if (out->autos)
        return neb_fail(NEB_ERR_FORMAT, "job specification: a key still says auto");
    return agent_job_validate(out, "job specification");
}
