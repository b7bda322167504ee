// SPDX-License-Identifier: Apache-2.0
// Reads job files. It walks the YAML nodes, which know their lines.
#include "agent/base/number.h"
#include "agent/job/config_options.h"
#include "security/identity.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

struct walk {
    yaml_document_t *doc;
    const char *file;
    struct agent_job *job;
    bool clusters_seen;
    yaml_node_t *groups; // read last: an owner names a cluster
};

static const char *where_of(const struct walk *w, const yaml_node_t *n, char *out, size_t cap) {
    snprintf(out, cap, "%s:%zu", w->file, n->start_mark.line + 1);
    return out;
}

static uint16_t line_number(const yaml_node_t *n) {
    return n->start_mark.line < UINT16_MAX ? (uint16_t)(n->start_mark.line + 1) : 0;
}

static const char *scalar(const yaml_node_t *n) {
    return n->type == YAML_SCALAR_NODE &&
                   strlen((const char *)n->data.scalar.value) == n->data.scalar.length
               ? (const char *)n->data.scalar.value
               : NULL;
}

// A second value would silently replace the first one.
static enum neb_status given_once(const struct walk *w, const yaml_node_t *map,
                                  const yaml_node_pair_t *p, const char *path) {
    char at[NEB_PATH_MAX + 32];
    const yaml_node_t *k = yaml_document_get_node(w->doc, p->key);
    const char *key = scalar(k), *before;
    for (const yaml_node_pair_t *q = map->data.mapping.pairs.start; key && q < p; q++)
        if ((before = scalar(yaml_document_get_node(w->doc, q->key))) && !strcmp(before, key))
            return COMPLAIN(where_of(w, k, at, sizeof at), path, "%s given twice", key);
    return NEB_OK;
}

static enum neb_status set_option_node(struct walk *w, const struct config_option *o,
                                       yaml_node_t *value, const char *where) {
    if (w->job->given[o - config_options])
        return COMPLAIN(where, o->path, "given twice");
    w->job->given[o - config_options] = true;
    w->job->lines[o - config_options] = line_number(value);
    if (o->type == T_TARGETS || o->type == T_FREEZE) {
        if (value->type != YAML_SEQUENCE_NODE)
            return config_set(w->job, o, "", where);
        config_clear_list(w->job, o);
        for (yaml_node_item_t *i = value->data.sequence.items.start;
             i < value->data.sequence.items.top; i++) {
            const char *text = scalar(yaml_document_get_node(w->doc, *i));
            if (!text)
                return COMPLAIN(where, o->path, "has an item that is not a single value");
            NEB_TRY(config_set_item(w->job, o, text, where));
        }
        return NEB_OK;
    }
    const char *text = scalar(value);
    if (!text)
        return COMPLAIN(where, o->path, "must be a single value");
    return config_set_written(w->job, o, text, where);
}

static enum neb_status add_source(struct agent_cluster *c, const char *name, const char *weight,
                                  const char *where) {
    double w = 0;
    if (c->n_sources == AGENT_SOURCES_MAX)
        return COMPLAIN(where, "clusters.sources", "more than %d sources", AGENT_SOURCES_MAX);
    struct agent_source *s = &c->sources[c->n_sources];
    NEB_TRY(config_set_text(s->name, sizeof s->name, "clusters.sources", name ? name : "", where,
                            true));
    bool good = weight && neb_number_real(weight, 0, 1e6, &w) && (float)w > 0;
    s->weight = (float)w;
    if (!good)
        return COMPLAIN(where, "clusters.sources", "weight of %s must be a number above 0",
                        s->name);
    for (int32_t i = 0; i < c->n_sources; i++)
        if (!strcmp(c->sources[i].name, s->name))
            return COMPLAIN(where, "clusters.sources", "%s given twice", s->name);
    c->n_sources++;
    return NEB_OK;
}

// {name: en, weight: 0.5}; without a weight: 1
static enum neb_status walk_source_item(struct walk *w, struct agent_cluster *c, yaml_node_t *map) {
    char at[NEB_PATH_MAX + 32];
    const char *name = NULL, *weight = "1";
    where_of(w, map, at, sizeof at);
    if (map->type != YAML_MAPPING_NODE)
        return COMPLAIN(at, "clusters.sources", "each item must look like {name: en, weight: 0.5}");
    for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
         p++) {
        const char *key = scalar(yaml_document_get_node(w->doc, p->key)),
                   *text = scalar(yaml_document_get_node(w->doc, p->value));
        NEB_TRY(given_once(w, map, p, "clusters.sources"));
        if (key && !strcmp(key, "name"))
            name = text;
        else if (key && !strcmp(key, "weight"))
            weight = text;
        else
            return config_unknown_part(at, "clusters.sources", key, "name, weight");
    }
    return add_source(c, name, weight, at);
}

// {en: 1, de: 0.5}, or a list of {name, weight}
static enum neb_status walk_sources(struct walk *w, struct agent_cluster *c, yaml_node_t *node,
                                    const char *where) {
    char at[NEB_PATH_MAX + 32];
    if (node->type == YAML_SEQUENCE_NODE) {
        for (yaml_node_item_t *i = node->data.sequence.items.start;
             i < node->data.sequence.items.top; i++)
            NEB_TRY(walk_source_item(w, c, yaml_document_get_node(w->doc, *i)));
        return NEB_OK;
    }
    if (node->type != YAML_MAPPING_NODE)
        return COMPLAIN(where, "clusters.sources",
                        "must map source names to weights, such as {en: 1, de: 0.5}");
    for (yaml_node_pair_t *p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top;
         p++) {
        yaml_node_t *k = yaml_document_get_node(w->doc, p->key),
                    *v = yaml_document_get_node(w->doc, p->value);
        where_of(w, k, at, sizeof at);
        NEB_TRY(add_source(c, scalar(k), scalar(v), at));
    }
    return NEB_OK;
}

static enum neb_status walk_mesh(struct walk *w, struct agent_cluster *c, yaml_node_t *map,
                                 const char *where) {
    char keys[CONFIG_KEYS_TEXT], path[64];
    for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
         p++) {
        const char *key = scalar(yaml_document_get_node(w->doc, p->key)),
                   *text = scalar(yaml_document_get_node(w->doc, p->value));
        snprintf(path, sizeof path, "mesh.%s", key ? key : "");
        const struct config_cluster_option *axis = config_cluster_option(path);
        NEB_TRY(given_once(w, map, p, "clusters.mesh"));
        if (!axis)
            return config_unknown_part(where, "clusters.mesh", key,
                                       config_keys_below("clusters.mesh.", keys));
        if (!text)
            return COMPLAIN(where, axis->option.path, "must be a single value");
        NEB_TRY(config_set_cluster(c, &axis->option, text, where));
    }
    return NEB_OK;
}

// With mpirun or slurm only the launcher knows the number of ranks, so mesh: auto needs this key.
// With launcher local the planner finds the number. A written mesh has the number already, and two
// numbers could differ.
static enum neb_status ranks_fit(const struct agent_cluster *c, const char *where) {
    bool hosts = c->launcher == AGENT_LAUNCHER_MPIRUN || c->launcher == AGENT_LAUNCHER_SLURM;
    if (c->ranks && !(c->mesh_auto && hosts))
        return COMPLAIN(where, "clusters.ranks",
                        "needs mesh: auto and launcher: mpirun or slurm; %s: remove it",
                        c->mesh_auto ? "with launcher local the planner finds the fastest number"
                                     : "a written mesh has this number");
    if (c->mesh_auto && hosts && !c->ranks && !c->witness)
        return COMPLAIN(where, "clusters.ranks",
                        "is missing: with launcher: %s only you know how many ranks mesh: auto "
                        "has; add ranks: N, or write the mesh, such as {dp: 4, tp: 2}",
                        config_launcher_names[c->launcher]);
    return NEB_OK;
}

static enum neb_status walk_cluster_key(struct walk *w, struct agent_cluster *c,
                                        const struct config_option *o, yaml_node_t *value,
                                        const char *where) {
    if (o->type == T_SOURCES)
        return walk_sources(w, c, value, where);
    if (o->type == T_MESH && value->type == YAML_MAPPING_NODE)
        return walk_mesh(w, c, value, where);
    const char *text = scalar(value);
    if (!text && o->type != T_MESH)
        return COMPLAIN(where, o->path, "must be a single value");
    return config_set_cluster_written(c, o, text ? text : "", where);
}

static enum neb_status walk_cluster(struct walk *w, int i, yaml_node_t *map) {
    char at[NEB_PATH_MAX + 32], keys[CONFIG_KEYS_TEXT];
    struct agent_cluster *c = &w->job->clusters[i];
    config_cluster_defaults(c);
    config_keys_below("clusters.", keys);
    where_of(w, map, at, sizeof at);
    if (map->type != YAML_MAPPING_NODE)
        return COMPLAIN(at, "clusters", "each item must be a mapping with keys %s", keys);
    for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
         p++) {
        yaml_node_t *k = yaml_document_get_node(w->doc, p->key);
        const char *key = scalar(k);
        const struct config_cluster_option *o =
            key && !strchr(key, '.') ? config_cluster_option(key) : NULL;
        where_of(w, k, at, sizeof at);
        NEB_TRY(given_once(w, map, p, "clusters"));
        if (!o)
            return config_unknown_part(at, "clusters", key, keys);
        w->job->cluster_lines[i][o - config_cluster_options] = line_number(k);
        NEB_TRY(walk_cluster_key(w, c, &o->option, yaml_document_get_node(w->doc, p->value), at));
    }
    where_of(w, map, at, sizeof at);
    return c->name[0] ? ranks_fit(c, at) : COMPLAIN(at, "clusters.name", "is missing");
}

static enum neb_status walk_clusters(struct walk *w, yaml_node_t *seq, const char *where) {
    char keys[CONFIG_KEYS_TEXT];
    if (seq->type != YAML_SEQUENCE_NODE)
        return COMPLAIN(where, "clusters", "must be a list of mappings with keys %s",
                        config_keys_below("clusters.", keys));
    if (w->clusters_seen)
        return COMPLAIN(where, "clusters", "given twice");
    w->clusters_seen = true;
    w->job->clusters_line = line_number(seq);
    for (yaml_node_item_t *i = seq->data.sequence.items.start; i < seq->data.sequence.items.top;
         i++) {
        if (w->job->n_clusters == AGENT_CLUSTERS_MAX)
            return COMPLAIN(where, "clusters", "more than %d", AGENT_CLUSTERS_MAX);
        NEB_TRY(walk_cluster(w, w->job->n_clusters++, yaml_document_get_node(w->doc, *i)));
    }
    return NEB_OK;
}

// "every", {every: 4}, {owner: paris}
static enum neb_status walk_exchange(struct walk *w, struct agent_group *g,
                                     const struct config_option *o, yaml_node_t *value,
                                     const char *where) {
    const yaml_node_pair_t *p =
        value->type == YAML_MAPPING_NODE ? value->data.mapping.pairs.start : NULL;
    if (!p)
        return config_set_group(g, o, scalar(value) ? scalar(value) : "", where);
    const char *key = p < value->data.mapping.pairs.top
                          ? scalar(yaml_document_get_node(w->doc, p->key))
                          : NULL,
               *text = key ? scalar(yaml_document_get_node(w->doc, p->value)) : NULL;
    if (!text || value->data.mapping.pairs.top - p != 1)
        return COMPLAIN(where, o->path,
                        "must be one of: every, never, {every: ROUNDS}, {owner: CLUSTER}");
    if (strcmp(key, "every") && strcmp(key, "owner"))
        return config_unknown_part(where, o->path, key, "every, owner");
    return config_set_exchange(w->job, g, key, text, where);
}

static enum neb_status walk_group(struct walk *w, struct agent_group *g, yaml_node_t *map,
                                  const char *keys) {
    char at[NEB_PATH_MAX + 32];
    config_group_defaults(g);
    where_of(w, map, at, sizeof at);
    if (map->type != YAML_MAPPING_NODE)
        return COMPLAIN(at, "groups", "each item must be a mapping with keys %s", keys);
    for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
         p++) {
        yaml_node_t *k = yaml_document_get_node(w->doc, p->key),
                    *v = yaml_document_get_node(w->doc, p->value);
        const char *key = scalar(k);
        const struct config_option *o = key ? config_group_option(key) : NULL;
        where_of(w, k, at, sizeof at);
        NEB_TRY(given_once(w, map, p, "groups"));
        if (!o)
            return config_unknown_part(at, "groups", key, keys);
        if (o->type == T_EXCHANGE)
            NEB_TRY(walk_exchange(w, g, o, v, at));
        else if (!scalar(v))
            return COMPLAIN(at, o->path, "must be a single value");
        else
            NEB_TRY(config_set_group(g, o, scalar(v), at));
    }
    return NEB_OK;
}

static enum neb_status walk_groups(struct walk *w) {
    static const char keys[] = "match, exchange, codec, eta, mu, fragments";
    char at[NEB_PATH_MAX + 32];
    struct agent_job *j = w->job;
    where_of(w, w->groups, at, sizeof at);
    if (w->groups->type != YAML_SEQUENCE_NODE)
        return COMPLAIN(at, "groups", "must be a list of mappings with keys %s", keys);
    j->groups_line = line_number(w->groups);
    for (yaml_node_item_t *i = w->groups->data.sequence.items.start;
         i < w->groups->data.sequence.items.top; i++) {
        if (j->n_groups == AGENT_GROUPS_MAX)
            return COMPLAIN(at, "groups", "more than %d", AGENT_GROUPS_MAX);
        yaml_node_t *map = yaml_document_get_node(w->doc, *i);
        j->group_lines[j->n_groups] = line_number(map);
        NEB_TRY(walk_group(w, &j->groups[j->n_groups++], map, keys));
    }
    return NEB_OK;
}

static enum neb_status walk_mapping(struct walk *w, yaml_node_t *map, const char *prefix,
                                    int depth) {
    char path[256], at[NEB_PATH_MAX + 32];
    where_of(w, map, at, sizeof at);
    if (map->type != YAML_MAPPING_NODE)
        return COMPLAIN(at, *prefix ? prefix : "job file", "must be a mapping of keys to values");
    for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
         p++) {
        yaml_node_t *k = yaml_document_get_node(w->doc, p->key),
                    *v = yaml_document_get_node(w->doc, p->value);
        const char *key = scalar(k);
        where_of(w, k, at, sizeof at);
        if (!key || !*key || strlen(key) > 60 ||
            snprintf(path, sizeof path, "%s%s%s", prefix, *prefix ? "." : "", key) >=
                (int)sizeof path)
            return COMPLAIN(at, *prefix ? prefix : "job file", "a key must be a short word");
        const struct config_option *o = scalar(v) ? config_option_short(path) : config_option(path);
        if (o)
            NEB_TRY(set_option_node(w, o, v, at));
        else if (!strcmp(path, "clusters"))
            NEB_TRY(walk_clusters(w, v, at));
        else if (!strcmp(path, "groups") && w->groups)
            return COMPLAIN(at, path, "given twice");
        else if (!strcmp(path, "groups"))
            w->groups = v;
        else if (config_is_section(path) && depth < 4)
            NEB_TRY(walk_mapping(w, v, path, depth + 1));
        else
            return config_unknown_key(at, path);
    }
    return NEB_OK;
}

static enum neb_status walk_document(struct walk *w) {
    yaml_node_t *root = yaml_document_get_root_node(w->doc);
    if (!root)
        return COMPLAIN(w->file, "job file", "is empty");
    NEB_TRY(walk_mapping(w, root, "", 0));
    if (w->groups)
        NEB_TRY(walk_groups(w));
    config_settle(w->job);
    for (int i = 0; i < config_n_options; i++)
        if (!config_options[i].preset && !w->job->given[i] &&
            config_is_used(w->job, &config_options[i]) &&
            !(w->job->model_init[0] && !strncmp(config_options[i].path, "model.", 6)))
            return COMPLAIN(w->file, config_options[i].path, "is missing (%s)",
                            config_options[i].help);
    return agent_job_validate(w->job, w->file);
}

// A second job after "---" would silently not run.
static enum neb_status no_second(yaml_parser_t *parser, const char *file) {
    yaml_document_t doc;
    if (!yaml_parser_load(parser, &doc))
        return neb_fail(NEB_ERR_FORMAT, "%s:%zu: not valid YAML: %s", file,
                        parser->problem_mark.line + 1,
                        parser->problem ? parser->problem : "unreadable");
    const yaml_node_t *root = yaml_document_get_root_node(&doc);
    bool second = root && !(root->type == YAML_SCALAR_NODE && !root->data.scalar.length);
    size_t line = root ? root->start_mark.line + 1 : 0;
    yaml_document_delete(&doc);
    return second // a bare "---" at the end is allowed
               ? neb_fail(NEB_ERR_INVALID,
                          "%s:%zu: a second document begins here; a file holds one job", file, line)
               : NEB_OK;
}

enum neb_status agent_job_parse(const char *text, size_t len, const char *file,
                                struct agent_job *out) {
    yaml_parser_t parser;
    yaml_document_t doc;
    enum neb_status st;
    config_defaults(out);
    if (!yaml_parser_initialize(&parser))
        return neb_fail(NEB_ERR_NOMEM, "out of memory reading %s", file);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, len);
    if (!yaml_parser_load(&parser, &doc)) {
        st = neb_fail(NEB_ERR_FORMAT, "%s:%zu: not valid YAML: %s", file,
                      parser.problem_mark.line + 1, parser.problem ? parser.problem : "unreadable");
    } else {
        struct walk w = {.doc = &doc, .file = file, .job = out};
        st = walk_document(&w);
        yaml_document_delete(&doc);
        if (st == NEB_OK)
            st = no_second(&parser, file);
    }
    yaml_parser_delete(&parser);
    return st;
}

enum neb_status agent_job_load(const char *path, struct agent_job *out) {
    struct neb_buf b = {0};
    enum neb_status st = neb_fs_read(path, 1 << 20, &b);
    if (st == NEB_OK)
        st = agent_job_parse((const char *)b.p, b.len, path, out);
    neb_buf_free(&b);
    return st;
}
