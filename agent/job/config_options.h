// SPDX-License-Identifier: Apache-2.0
// The options of a job, between the files that read them; everybody else uses agent/job/config.h:
//
//     config_options.c   the table: a row an option           config_yaml.c    job files        ─┐
//     config_keys.c      keys, --set, the reference           config_json.c    what travels     ─┼─► struct agent_job
//     config_value.c     one value, from text                 config_check.c   what must fit    ◄┘
//     config_shared.c    what of it is in a job's id
#ifndef AGENT_CONFIG_OPTIONS_H
#define AGENT_CONFIG_OPTIONS_H
#include "agent/job/config.h"

enum option_type {
    T_INT32,
    T_INT64,
    T_FLOAT,
    T_BOOL,
    T_STRING,
    T_PATH, // a string: a file or folder of the site that runs the job, which its policy must admit
    T_NAME,
    T_ENUM,
    T_CODEC,
    T_TARGETS,
    T_FREEZE
};

struct config_option {
    const char *path;
    enum option_type type;
    size_t at, size; // where in struct agent_job; size of strings
    double min, max;
    const char *preset;       // default; NULL: must be given
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
// Names of enums that more than the table needs, NULL-terminated.
extern const char *const config_target_names[],
    *const config_level_names[], *const config_role_names[],
                                     *const config_launcher_names[],
                                         *const config_device_names[],
                                             *const config_precision_names[],
                                                 *const config_outer_state_names[],
                                                     *const config_graphs_names[];
extern const char config_cluster_keys[]; // in words

// What is in a job's id (job_id.h). Every option is: it has one value for all clusters, for good.
// Of the keys of a cluster, those that say where and how fast it trains are not, and may change
// when the job is resumed. What scales, clips, counts, quantises or weights an update never is a
// place where sums are masked: with another value at one site the sum would tell another one's
// update.
enum config_place {
    CONFIG_SHARED,
    CONFIG_PLACE,
    CONFIG_PLACE_OPEN, // a place, but with sync.gate: private: it rounds
};
struct config_cluster_key {
    const char *key, *path; // as it travels; as complaints name it
    enum config_place place;
};
extern const struct config_cluster_key config_cluster_table[];
extern const int config_n_cluster_keys;

// config_keys.c. A path is "sync.outer.lr".
const struct config_option *config_option(const char *path); // NULL: none
// "sync.outer": some option's path begins so.
bool config_is_section(const char *path);
// complains, with what may be meant
NEB_MUST_CHECK enum neb_status config_unknown_key(const char *where, const char *path);
// The same of a key inside of what is at path; allowed: "name, weight"; key: NULL: none that is text
NEB_MUST_CHECK enum neb_status config_unknown_part(const char *where, const char *path,
                                                   const char *key, const char *allowed);

// config_value.c. `where` is "job.yaml:12", for complaints.
#define COMPLAIN(where, path, ...) config_complain(where, path, __VA_ARGS__)
// About keys that do not fit together: names the line of `path`, a key or a section, in the job file.
#define COMPLAIN_OF(job, file, path, ...)                                                          \
    config_complain(config_line((job), (file), (path), (char[NEB_PATH_MAX + 16]){0}), path,        \
                    __VA_ARGS__)
const char *config_line(const struct agent_job *job, const char *file, const char *path,
                        char out[NEB_PATH_MAX + 16]);
// NEB_ERR_INVALID, after one line: "job.yaml:12: model.n_heads: ..."
NEB_MUST_CHECK __attribute__((format(printf, 3, 4))) enum neb_status
config_complain(const char *where, const char *path, const char *fmt, ...);
// Everything that has a default; the rest is zero.
void config_defaults(struct agent_job *job);
// A scalar option, or `auto`: then the key holds its default, a micro-batch one sequence.
// The same of what somebody has written here, in a file or on the command line: "~" in a path is this user's.
NEB_MUST_CHECK enum neb_status config_set_written(struct agent_job *job,
                                                  const struct config_option *o, const char *text,
                                                  const char *where);
NEB_MUST_CHECK enum neb_status config_set(struct agent_job *job, const struct config_option *o,
                                          const char *text, const char *where);
// A list that is set replaces the default's items.
void config_clear_list(struct agent_job *job, const struct config_option *o);
// one item of a list
NEB_MUST_CHECK enum neb_status config_set_item(struct agent_job *job, const struct config_option *o,
                                               const char *text, const char *where);
// A string (name: letters, digits, '-', '_', '.'), and keys of a cluster.
NEB_MUST_CHECK enum neb_status config_set_text(char *p, size_t size, const char *path,
                                               const char *text, const char *where, bool name);
// A path that somebody has written here, likewise.
NEB_MUST_CHECK enum neb_status config_set_path(char *p, size_t size, const char *path,
                                               const char *text, const char *where);
NEB_MUST_CHECK enum neb_status config_set_launcher(struct agent_cluster *c, const char *text,
                                                   const char *where);
NEB_MUST_CHECK enum neb_status config_set_role(struct agent_cluster *c, const char *text,
                                               const char *where);
NEB_MUST_CHECK enum neb_status config_set_outer_state(struct agent_cluster *c, const char *text,
                                                      const char *where);
NEB_MUST_CHECK enum neb_status config_set_graphs(struct agent_cluster *c, const char *text,
                                                 const char *where);
// NULL: auto
NEB_MUST_CHECK enum neb_status config_set_device(struct agent_cluster *c, const char *device,
                                                 const char *precision, const char *where);
// enum agent_auto, of keys that the planner can fill in; 0: it cannot
uint32_t config_auto_bit(const struct config_option *o);
void config_join(char *out, size_t cap, const char *const *names); // "a, b, c"
int config_index_of(const char *const *names, const char *text);   // -1: none

#endif
