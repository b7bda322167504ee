// SPDX-License-Identifier: Apache-2.0
// nebula doctor [JOB]: examines this machine, its agent and its links. Exit status 1: something
// would stop a job.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/cli/cmd_options.h"
#include "agent/cli/doctor.h"
#include "agent/daemon/job_needs.h"
#include "agent/job/json.h"
#include "agent/job/model_init.h"
#include "agent/show/watch.h"
#include "inter/link/socket_profile.h"
#include "inter/round/transfer.h"
#include "security/identity.h"
#include "security/locked.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct options {
    struct agent_options common; // its argument: a job file
    const char *peer;
    bool sockets;
};

// Bytes of disk that a worker of the job needs.
static enum neb_status job_needs(const char *path, struct agent_job *job, int64_t *bytes) {
    struct agent_needs n;
    NEB_TRY(agent_job_load(path, job));
    NEB_TRY(agent_job_model_init(job, path));
    const struct agent_found found = {.vocab = 32768};
    for (int32_t i = 0; i < job->n_clusters; i++) {
        agent_job_needs(job, i, &found, &n);
        *bytes = (int64_t)fmax((double)*bytes, n.disk);
    }
    return NEB_OK;
}

static const json_t *find_peer(const json_t *peers, const char *name) {
    const json_t *p;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)peers, i, p) {
        const char *s = json_string_value(json_object_get(p, "name"));
        if (s && !strcmp(s, name))
            return p;
    }
    return NULL;
}

static bool in_federation(const struct options *o) {
    char home[NEB_PATH_MAX], path[NEB_PATH_MAX];
    return sec_home(o->common.home, home, sizeof home) == NEB_OK &&
           neb_path(path, sizeof path, home, "federation/members.neb") == NEB_OK &&
           neb_fs_exists(path);
}

static void look_at_peers(struct doctor *d, const json_t *status, const struct options *o,
                          const struct agent_job *job) {
    const json_t *peers = json_object_get(status, "peers"), *p;
    const char *me = json_string_value(json_object_get(status, "name"));
    size_t i;
    if (o->peer) {
        if ((p = find_peer(peers, o->peer)))
            doctor_peer(d, p);
        else
            doctor_add(d, "peer", DOCTOR_FAIL,
                       "nebula members or nebula peer list shows the known members",
                       "%s is not a known member", o->peer);
        return;
    }
    for (int k = 0; job && k < job->n_clusters; k++)
        if ((!me || strcmp(me, job->clusters[k].name)) && !find_peer(peers, job->clusters[k].name))
            doctor_add(d, "job", DOCTOR_FAIL,
                       in_federation(o) ? "nebula invite, on the hub, makes a token for it"
                                        : "add it with nebula peer add",
                       "cluster %s of the job is not a known member", job->clusters[k].name);
    json_array_foreach((json_t *)(uintptr_t)peers, i, p) doctor_peer(d, p);
}

// Examines the limits that an agent started here would have.
static void look_at_locking(struct doctor *d) {
    const size_t keys_and_streams = 1 << 20; // more than a sealing agent locks
    sec_locked_init();
    doctor_keys(d, sec_locked_room(keys_and_streams), sec_locked_limit());
}

static void print_checks(const struct doctor *d) {
    json_t *c;
    size_t i;
    json_array_foreach(d->checks, i, c) {
        const char *state = json_string_value(json_object_get(c, "state")),
                   *advice = json_string_value(json_object_get(c, "advice"));
        printf("%-5s %-20s %s\n",
               !strcmp(state, "ok")     ? "ok"
               : !strcmp(state, "warn") ? "WARN"
                                        : "FAIL",
               json_string_value(json_object_get(c, "name")),
               json_string_value(json_object_get(c, "found")));
        if (*advice)
            printf("      %-20s -> %s\n", "", advice);
    }
}

static enum neb_status examine(struct doctor *d, const struct options *o, const char *home) {
    struct agent_ipc_msg m = {0};
    struct agent_job *job = calloc(1, sizeof *job);
    int64_t need = 0;
    if (!job)
        return neb_fail(NEB_ERR_NOMEM, "out of memory: doctor");
    bool good = true;
    if (o->common.n && job_needs(o->common.args[0], job, &need) != NEB_OK) {
        char text[400];
        neb_last_error(text, sizeof text);
        doctor_add(d, "job", DOCTOR_FAIL, "nebula check shows more", "%s", text);
        good = false;
    }
    bool running = agent_ask(o->common.home, json_pack("{s:s}", "op", "status"), &m) == NEB_OK;
    const json_t *peers = running ? json_object_get(m.head, "peers") : NULL;
    struct doctor_path path;
    (void)doctor_path(peers, o->peer, &path);
    doctor_machine(d, home, running ? (int)json_array_size(peers) : 1, need, &path);
    const json_t *locked = running ? json_object_get(m.head, "keys_locked") : NULL;
    // the agent knows its own limit, which may differ from this command's
    if (json_is_boolean(locked))
        doctor_keys(d, json_is_true(locked),
                    json_integer_value(json_object_get(m.head, "lockable_bytes")));
    else
        look_at_locking(d);
    if (running) {
        doctor_add(d, "agent", DOCTOR_OK, "", "%s answers",
                   json_string_value(json_object_get(m.head, "name")));
        look_at_peers(d, m.head, o, o->common.n && good ? job : NULL);
        agent_ipc_msg_clear(&m);
    } else {
        doctor_add(d, "agent", DOCTOR_FAIL,
                   "start it with nebula agent; without it, links cannot be examined",
                   "no agent answers in %s", home);
    }
    free(job);
    return NEB_OK;
}

static void print_sockets(bool json) {
    static const char *const roles[] = {"?",    "listen",       "control",       "listen, control",
                                        "bulk", "listen, bulk", "control, bulk", "all"};
    json_t *rows = json_array();
    for (size_t i = 0; i < inter_socket_profile_rows; i++) {
        const struct inter_socket_option *o = &inter_socket_profile[i];
        json_int_t value = inter_socket_value(o, o->option == ZMQ_MAXMSGSIZE ? INTER_CHUNK_MAX : 0);
        if (json)
            json_array_append_new(rows,
                                  json_pack("{s:s,s:I,s:s,s:s}", "option", o->name, "value", value,
                                            "sockets", roles[o->roles & 7], "why", o->why));
        else
            printf("%-24s %8lld  %-15s %s\n", o->name, (long long)value, roles[o->roles & 7],
                   o->why);
    }
    if (json) {
        agent_json_print(rows, JSON_INDENT(2));
    } else {
        printf("before HELLO             %8d  listen          bytes; after them, or after %d ms, "
               "or as the oldest of %d, a connection is closed\n",
               INTER_UNIDENTIFIED_BYTES, INTER_UNIDENTIFIED_MS, INTER_UNIDENTIFIED_MAX);
        printf("without HELLO, of one    %8d  listen          connections of an address at once, "
               "then %d per second; an address with more is ignored for a while\n",
               INTER_UNIDENTIFIED_BURST, INTER_UNIDENTIFIED_SECOND);
        printf("without HELLO, of all    %8d  listen          connections at once from addresses "
               "without a member, then %d per second\n",
               INTER_STRANGERS_BURST, INTER_STRANGERS_SECOND);
        printf("unread of one peer       %8d  all             MiB beyond the 65 that a correct "
               "peer sends ahead: its fullest connection is closed\n",
               INTER_PEER_SLACK_BYTES >> 20);
    }
    json_decref(rows);
}

static int run(void *options) {
    const struct options *o = options;
    struct doctor d;
    char home[NEB_PATH_MAX];
    if (o->sockets) {
        print_sockets(o->common.json);
        return AGENT_EXIT_OK;
    }
    if (sec_home(o->common.home, home, sizeof home) != NEB_OK)
        return AGENT_EXIT_USAGE;
    enum neb_status st = doctor_init(&d);
    if (st == NEB_OK)
        st = examine(&d, o, home);
    if (st == NEB_OK && o->common.json) {
        json_t *root = json_pack("{s:b,s:O}", "ok", d.worst < DOCTOR_FAIL, "checks", d.checks);
        agent_json_print(root, JSON_INDENT(2));
        json_decref(root);
    } else if (st == NEB_OK) {
        print_checks(&d);
    }
    enum doctor_state worst = d.worst;
    doctor_free(&d);
    return st == NEB_OK && worst < DOCTOR_FAIL ? AGENT_EXIT_OK : AGENT_EXIT_FAILED;
}

static const struct agent_option table[] = {
    OPT_HOME("home of the agent"),
    OPT_TEXT("peer", 'p', "NAME", "examine only this peer", AT(peer)),
    OPT_JSON("machine-readable output"),
    OPT_FLAG("sockets", 's', "print only the socket options of links, with their reasons",
             AT(sockets)),
    OPT_END};

const struct agent_command cmd_doctor = {
    .name = "doctor",
    .summary = "find what slows or stops a job on this machine",
    .options = table,
    .arguments = "[JOB.yaml]",
    .doc = "Shows what would slow a job down or stop it, in this machine, its agent and its links, "
           "and what to change. Exit status 1: something would stop it.",
    .most = 1,
    .size = sizeof(struct options),
    .run = run};
