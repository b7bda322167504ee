// nebula status and nebula stop: what the agent on this machine does.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/commands.h"
#include "agent/ipc.h"
#include "agent/progress.h"
#include "security/identity.h"

#include <argp.h>
#include <string.h>

struct options {
    const char *home, *job;
    bool json;
};

// One request, one answer.
enum neb_status agent_ask(const char *home_given, json_t *request, struct agent_ipc_msg *answer) {
    char home[NEB_PATH_MAX], path[NEB_PATH_MAX];
    struct agent_ipc *ipc = NULL;
    void *zctx = NULL;
    enum neb_status st = NEB_OK;
    NEB_TRY_GOTO(sec_home(home_given, home, sizeof home), out);
    NEB_TRY_GOTO(neb_path(path, sizeof path, home, "agent.sock"), out);
    if (!neb_fs_exists(path)) {
        st = neb_fail(NEB_ERR_NOT_FOUND,
                      "no agent runs in %s (nothing at %s); start one with nebula agent", home,
                      path);
        goto out;
    }
    zctx = zmq_ctx_new();
    NEB_TRY_GOTO(agent_ipc_connect(zctx, path, &ipc), out);
    json_t *copy = json_incref(request);
    NEB_TRY_GOTO(agent_ipc_send(ipc, NULL, copy, NULL, 0), out);
    st = agent_ipc_wait(ipc, 5 * NEB_S, answer);
    if (st == NEB_ERR_TIMEOUT)
        st = neb_fail(st, "the agent at %s does not answer", path);
out:
    json_decref(request);
    agent_ipc_destroy(&ipc);
    if (zctx)
        zmq_ctx_term(zctx);
    return st;
}

static void print_status(const json_t *s) {
    json_t *list, *o;
    size_t i;
    char sent[32], recv[32], rate[32], since[32];
    printf("agent: %s\n", json_string_value(json_object_get(s, "name")));
    if (json_integer_value(json_object_get(s, "port")))
        printf("  listening port: %lld\n",
               (long long)json_integer_value(json_object_get(s, "port")));
    list = json_object_get(s, "peers");
    json_array_foreach(list, i, o) {
        const char *endpoint = json_string_value(json_object_get(o, "endpoint"));
        bool up = json_is_true(json_object_get(o, "up"));
        double goodput = json_number_value(json_object_get(o, "goodput_bps"));
        printf("\npeer: %s\n  endpoint: %s\n  link: %s for %s\n",
               json_string_value(json_object_get(o, "name")),
               endpoint && *endpoint ? endpoint : "(dials us)", up ? "up" : "DOWN",
               agent_human_time(json_number_value(json_object_get(o, "since_s")), since,
                                sizeof since));
        if (up)
            printf("  round trip: %.1f ms\n", json_number_value(json_object_get(o, "rtt_ms")));
        if (goodput > 0)
            printf("  goodput: %s\n", agent_human_rate(goodput, rate, sizeof rate));
        printf("  transfer: %s received, %s sent\n",
               agent_human_bytes(json_number_value(json_object_get(o, "recv_bytes")), recv,
                                 sizeof recv),
               agent_human_bytes(json_number_value(json_object_get(o, "sent_bytes")), sent,
                                 sizeof sent));
    }
    list = json_object_get(s, "jobs");
    json_array_foreach(list, i, o) printf(
        "\njob: %s\n  id: %s\n  state: %s\n  step: %lld of %lld\n",
        json_string_value(json_object_get(o, "job")), json_string_value(json_object_get(o, "id")),
        json_string_value(json_object_get(o, "state")),
        (long long)json_integer_value(json_object_get(o, "step")),
        (long long)json_integer_value(json_object_get(o, "steps")));
}

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    struct options *o = state->input;
    switch (key) {
    case 'H': o->home = arg; return 0;
    case 'j': o->json = true; return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num)
            argp_usage(state);
        o->job = arg;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option table[] = {
    {"home", 'H', "DIR", 0, "of the agent (default ~/.nebula)", 0},
    {"json", 'j', NULL, 0, "machine-readable output", 0},
    {0}};

int cmd_status(int argc, char **argv) {
    static const struct argp argp = {
        table, parse_option, NULL, "Shows the agent of this machine: peers, links, jobs.",
        NULL,  NULL,         NULL};
    struct options o = {0};
    struct agent_ipc_msg m = {0};
    argp_err_exit_status = AGENT_EXIT_USAGE;
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0)
        return AGENT_EXIT_USAGE;
    if (agent_ask(o.home, json_pack("{s:s}", "op", "status"), &m) != NEB_OK)
        return AGENT_EXIT_FAILED;
    if (o.json) {
        json_dumpf(m.head, stdout, JSON_COMPACT);
        putchar('\n');
    } else {
        print_status(m.head);
    }
    agent_ipc_msg_clear(&m);
    return AGENT_EXIT_OK;
}

int cmd_stop(int argc, char **argv) {
    static const struct argp argp = {
        table, parse_option, "JOB-ID", "Stops a job on all its clusters after a checkpoint.",
        NULL,  NULL,         NULL};
    struct options o = {0};
    struct agent_ipc_msg m = {0};
    argp_err_exit_status = AGENT_EXIT_USAGE;
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0 || !o.job) {
        fputs("nebula stop: give the id that nebula status shows\n", stderr);
        return AGENT_EXIT_USAGE;
    }
    if (agent_ask(o.home, json_pack("{s:s,s:s}", "op", "stop", "job", o.job), &m) != NEB_OK)
        return AGENT_EXIT_FAILED;
    bool ok = json_is_true(json_object_get(m.head, "ok"));
    puts(agent_ipc_str(&m, "text", ""));
    agent_ipc_msg_clear(&m);
    return ok ? AGENT_EXIT_OK : AGENT_EXIT_FAILED;
}
