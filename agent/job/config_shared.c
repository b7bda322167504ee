// SPDX-License-Identifier: Apache-2.0
// The part of a job that is the same at all of its sites: the specification without places
// (config_options.h). The job's id is made of this part.
#include "agent/job/config_options.h"

#include <string.h>

static bool is_private(const json_t *spec) {
    const char *gate = json_string_value(json_object_get(spec, "sync.gate"));
    return gate && !strcmp(gate, "private");
}

// For a key of a cluster. A key that the table does not have is shared.
static bool is_place(const char *key, bool private) {
    const struct config_cluster_option *o = config_cluster_option(key);
    return o && (o->place == CONFIG_PLACE || (o->place == CONFIG_PLACE_OPEN && !private));
}

// Makes a list, which keeps the order of the sources; sorted keys of an object would lose it. A
// checkpoint has its cursors in this order.
static json_t *ordered(const json_t *sources) {
    json_t *list = json_array(), *weight;
    const char *name;
    json_object_foreach((json_t *)(uintptr_t)sources, name, weight)
        json_array_append_new(list, json_pack("[s,O]", name, weight));
    return list;
}

static json_t *shared_of(const json_t *cluster, bool private) {
    const char *key, *launcher = json_string_value(json_object_get(cluster, "launcher"));
    json_t *out = json_object(), *v;
    json_object_foreach((json_t *)(uintptr_t)cluster, key, v) {
        if (!strcmp(key, "sources") && json_is_object(v))
            json_object_set_new(out, key, ordered(v));
        else if (!is_place(key, private))
            json_object_set(out, key, v);
    }
    if (launcher && !strcmp(launcher, "attach")) // a trainer of the site, with its own settings
        json_object_set_new(out, "launcher", json_string("attach"));
    return out;
}

json_t *agent_job_shared(const json_t *spec) {
    json_t *out = json_object(), *clusters = json_array(), *v;
    const char *key;
    size_t i;
    json_object_foreach((json_t *)(uintptr_t)spec, key, v) if (strcmp(key, "clusters"))
        json_object_set(out, key, v);
    json_array_foreach(json_object_get(spec, "clusters"), i, v)
        json_array_append_new(clusters, shared_of(v, is_private(spec)));
    if (json_object_set_new(out, "clusters", clusters) != 0) {
        json_decref(out);
        return NULL;
    }
    return out;
}

// ---- differences -------------------------------------------------------------------------------

static bool same_names(const json_t *a, const json_t *b) { // sources, in any order
    const json_t *x, *y;
    size_t i, k, hits = 0;
    json_array_foreach(a, i, x) json_array_foreach(b, k, y) hits += json_equal(x, y);
    return hits == json_array_size(a) && json_array_size(a) == json_array_size(b);
}

// A key of a that has another value in b.
static const char *cluster_differs(const json_t *a, const json_t *b) {
    const char *key;
    json_t *x;
    json_object_foreach((json_t *)(uintptr_t)a, key, x) {
        const json_t *y = json_object_get(b, key);
        if (json_equal(x, (json_t *)(uintptr_t)y))
            continue;
        if (!strcmp(key, "sources") && same_names(x, y))
            return "the order of clusters.sources";
        const struct config_cluster_option *o = config_cluster_option(key);
        return o ? o->option.path : "clusters";
    }
    return NULL;
}

static const char *shared_differs(const json_t *a, const json_t *b) {
    const json_t *one = json_object_get(a, "clusters"), *other = json_object_get(b, "clusters");
    for (int i = 0; i <= config_n_options; i++) {
        const char *key = i < config_n_options ? config_options[i].path : "groups";
        json_t *x = json_object_get(a, key), *y = json_object_get(b, key);
        if ((x || y) && !json_equal(x, y))
            return key;
    }
    if (json_array_size(one) != json_array_size(other))
        return "clusters";
    for (size_t i = 0; i < json_array_size(one); i++) {
        const json_t *x = json_array_get(one, i), *y = json_array_get(other, i);
        const char *key = cluster_differs(x, y);
        if (key || (key = cluster_differs(y, x)))
            return key;
    }
    return json_equal((json_t *)(uintptr_t)a, (json_t *)(uintptr_t)b) ? NULL : "nonce";
}

const char *agent_job_differs(const json_t *a, const json_t *b) {
    json_t *x = agent_job_shared(a), *y = agent_job_shared(b);
    const char *key = x && y ? shared_differs(x, y) : "clusters";
    json_decref(x);
    json_decref(y);
    return key;
}
