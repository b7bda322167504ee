// SPDX-License-Identifier: Apache-2.0
// The table of keys, for the files that read it. All other files use agent/job/config.h.
//
//     keys.h             the rows of a job
//     config_options.c   the whole table          config_yaml.c    job files     ─┐
//     config_keys.c      finding keys, --set      config_json.c    JSON          ─┼─► agent_job
//     config_value.c     one value, from text     config_check.c   what must fit ◄┘
//     config_reference.c the table as Markdown    config_shared.c  the part in a job's id
//     config_groups.c    groups: JSON, checks
#ifndef AGENT_CONFIG_OPTIONS_H
#define AGENT_CONFIG_OPTIONS_H
#include "agent/job/config.h"
#include "compress/codec.h"

enum option_type {
    T_INT32,
    T_INT64,
    T_FLOAT,
    T_BOOL,
    T_STRING,
    T_PATH, // a file or folder of the site that runs the job; the site's policy must admit it
    T_NAME,
    T_ENUM,
    T_CODEC,
    T_LEVEL, // a codec level, as an int (compress/codec.h); 0: LEVEL_OF_JOB
    T_TARGETS,
    T_FREEZE,
    // The next types are only for keys of a cluster.
    T_SWITCH,  // true or false; without the key the value of the job holds
    T_ROLE,    // a name, or auto
    T_MESH,    // {dp, pp, tp}, which have their own rows, or auto
    T_SOURCES, // names with weights
    // Only for a group.
    T_EXCHANGE, // every, never, {every: ROUNDS}, {owner: CLUSTER}
};

#define LEVEL_OF_JOB "sync.codec"

struct config_option {
    const char *path;
    enum option_type type;
    size_t at, size; // offset in struct agent_job or struct agent_cluster; size of strings
    double min, max;
    const char *preset;       // default; NULL: the key must be given; "": none
    const char *const *names; // of an enum, NULL-terminated
    const char *help;
};

enum {
    CONFIG_OPTIONS_MAX = AGENT_KEYS_MAX,
    MESH_AXIS_MAX = 1024,
    MESH_RANKS_MAX = 1024,
    CONFIG_BATCH_MAX = 65536,
    CONFIG_SEQUENCES_MAX = 1 << 24, // of a step: batch x accumulate
};
extern const struct config_option config_options[];
extern const int config_n_options;
// Names of enums that other files need, too; NULL-terminated.
extern const char *const config_target_names[];
extern const char *const config_role_names[];
extern const char *const config_launcher_names[];

// Which keys of a cluster are part of a job's id (id.h). All keys outside `clusters` are part of
// it: they have one value for all clusters and never change. A key that is not part of the id is a
// place: it says where and how fast a cluster trains, and may change when the job is resumed. With
// masked sums, no key that scales, clips, counts, quantises or weights an update may be a place: if
// one site had another value, the sum would reveal the update of another site.
enum config_place {
    CONFIG_SHARED,     // part of the id
    CONFIG_PLACE,      // not part of the id
    CONFIG_PLACE_OPEN, // shared if sync.gate is private, since it affects rounding
};
// Says when the JSON of a cluster has the key.
enum config_in_json {
    CONFIG_ALWAYS,
    CONFIG_IF_SET,  // when the value is not the default
    CONFIG_IF_MESH, // when the cluster has several ranks, or another launcher than local
    CONFIG_NEVER,   // only the planner uses the key, or another row holds it
};
struct config_cluster_option {
    struct config_option option; // path is "clusters.device", or "clusters.mesh.dp"
    enum config_place place;
    enum config_in_json in_json;
};
extern const struct config_cluster_option config_cluster_options[];
extern const int config_n_cluster_options;
enum { CONFIG_CLUSTER_PREFIX = sizeof "clusters." - 1 };
extern const struct config_option config_group_options[]; // path is "groups.match"
extern const int config_n_group_options;
enum { CONFIG_GROUP_PREFIX = sizeof "groups." - 1 };

// config_keys.c. A path is "sync.outer.lr".
const struct config_option *config_option(const char *path); // NULL: none
// The same for a key that is given as one value: `trainable: lora` stands for trainable.mode.
const struct config_option *config_option_short(const char *path);
// A key of a cluster, "device" or "mesh.dp". NULL: none.
const struct config_cluster_option *config_cluster_option(const char *key);
// The keys of a cluster directly below prefix ("clusters.", "clusters.mesh."): "name, witness".
enum { CONFIG_KEYS_TEXT = 256 };
const char *config_keys_below(const char *prefix, char out[CONFIG_KEYS_TEXT]);
// True if the job uses the key. With `model: attached` the built-in model's keys do nothing.
// Without it, some keys of attached jobs do nothing. The JSON of a job has exactly the keys that it
// uses.
bool config_is_used(const struct agent_job *job, const struct config_option *o);
// True if path is a section, such as "sync.outer".
bool config_is_section(const char *path);
// Complains, and names the nearest key.
NEB_MUST_CHECK enum neb_status config_unknown_key(const char *where, const char *path);
// The same for a key inside the value at path. allowed: "name, weight". key NULL: it is not text.
NEB_MUST_CHECK enum neb_status config_unknown_part(const char *where, const char *path,
                                                   const char *key, const char *allowed);

// config_value.c. `where` is "job.yaml:12", for complaints.
#define COMPLAIN(where, path, ...) config_complain(where, path, __VA_ARGS__)
// For values that do not fit together. Names the line of `path`, a key or a section, in the job
// file.
#define COMPLAIN_OF(job, file, path, ...)                                                          \
    config_complain(config_line((job), (file), (path), (char[NEB_PATH_MAX + 16]){0}), path,        \
                    __VA_ARGS__)
const char *config_line(const struct agent_job *job, const char *file, const char *path,
                        char out[NEB_PATH_MAX + 16]);
// The same for a key of cluster i: "clusters.device".
#define COMPLAIN_OF_CLUSTER(job, i, file, path, ...)                                               \
    config_complain(config_cluster_line((job), (i), (file), (path), (char[NEB_PATH_MAX + 16]){0}), \
                    path, __VA_ARGS__)
const char *config_cluster_line(const struct agent_job *job, int i, const char *file,
                                const char *path, char out[NEB_PATH_MAX + 16]);
// The same for a key of group g.
const char *config_group_line(const struct agent_job *job, int g, const char *file,
                              char out[NEB_PATH_MAX + 16]);
// Returns NEB_ERR_INVALID, after one line: "job.yaml:12: model.n_heads: ..."
NEB_MUST_CHECK __attribute__((format(printf, 3, 4))) enum neb_status
config_complain(const char *where, const char *path, const char *fmt, ...);
// Sets every key that has a default, and all other bytes to zero.
void config_defaults(struct agent_job *job);
void config_cluster_defaults(struct agent_cluster *c);
// Sets a key that is a single value. With `auto` the key holds its default; a micro-batch holds 1.
// For a value in a file or on the command line: "~" in a path is the home folder of this user.
NEB_MUST_CHECK enum neb_status config_set_written(struct agent_job *job,
                                                  const struct config_option *o, const char *text,
                                                  const char *where);
// For a value from JSON.
NEB_MUST_CHECK enum neb_status config_set(struct agent_job *job, const struct config_option *o,
                                          const char *text, const char *where);
// Removes the items of a list, also those of the default.
void config_clear_list(struct agent_job *job, const struct config_option *o);
// Adds one item to a list.
NEB_MUST_CHECK enum neb_status config_set_item(struct agent_job *job, const struct config_option *o,
                                               const char *text, const char *where);
// Sets a key of a cluster that is a single value; a mesh takes only "auto".
NEB_MUST_CHECK enum neb_status config_set_cluster(struct agent_cluster *c,
                                                  const struct config_option *o, const char *text,
                                                  const char *where);
// For a value in a file: "~" in a path is the home folder of this user.
NEB_MUST_CHECK enum neb_status config_set_cluster_written(struct agent_cluster *c,
                                                          const struct config_option *o,
                                                          const char *text, const char *where);
// Sets a key of a group that is a single value.
void config_group_defaults(struct agent_group *g);
NEB_MUST_CHECK enum neb_status config_set_group(struct agent_group *g,
                                                const struct config_option *o, const char *text,
                                                const char *where);
// Sets groups.exchange to {key: text}, {every: 4} or {owner: paris}. The clusters are known.
NEB_MUST_CHECK enum neb_status config_set_exchange(const struct agent_job *job,
                                                   struct agent_group *g, const char *key,
                                                   const char *text, const char *where);
// A key of a group, "match". NULL: none.
const struct config_option *config_group_option(const char *key);
// Call it after all keys are set: it sets values that were not given and follow from other values.
void config_settle(struct agent_job *job);
// config_groups.c
NEB_MUST_CHECK enum neb_status config_groups_check(const struct agent_job *job, const char *file);
json_t *config_groups_to_json(const struct agent_job *job); // a new reference
NEB_MUST_CHECK enum neb_status config_groups_from_json(const json_t *list, struct agent_job *job);
// Sets a string of size bytes. name: only letters, digits, '-', '_' and '.'.
NEB_MUST_CHECK enum neb_status config_set_text(char *p, size_t size, const char *path,
                                               const char *text, const char *where, bool name);
// The bit of enum agent_auto; 0: the key does not take `auto`.
uint32_t config_auto_bit(const struct config_option *o);
void config_join(char *out, size_t cap, const char *const *names); // "a, b, c"
void config_join_levels(char *out, size_t cap);                    // names of all codec levels

#endif
