// SPDX-License-Identifier: Apache-2.0
// nebula status: what the agent on this machine does.
#include "agent/cli/cmd_options.h"
#include "agent/job/json.h"
#include "agent/show/about.h"
#include "agent/show/progress.h"
#include "agent/show/watch.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct options {
    struct agent_options common;
    bool watch;
};

static double real(const json_t *o, const char *key) {
    return json_number_value(json_object_get(o, key));
}

static const char *text_of(const json_t *o, const char *key, const char *def) {
    const char *s = json_string_value(json_object_get(o, key));
    return s && *s ? s : def;
}

static void print_peer(FILE *f, const json_t *o) {
    char sent[32], recv[32], rate[32], since[32];
    bool up = json_is_true(json_object_get(o, "up"));
    fprintf(f, "\npeer: %s\n  endpoint: %s\n  link: ", text_of(o, "name", "?"),
            text_of(o, "endpoint", "(it dials)"));
    if (json_is_number(json_object_get(o, "since_s")))
        fprintf(f, "%s for %s\n", up ? "up" : "DOWN",
                agent_human_time(real(o, "since_s"), since, sizeof since));
    else
        fprintf(f, "not up since this agent started\n");
    if (json_is_true(json_object_get(o, "protocol_differs")))
        fprintf(f,
                "  CUT: it speaks protocol %.0f (nebula %s), this agent protocol %.0f (nebula %s): "
                "install the same version of nebula at both sites\n",
                real(o, "protocol"), text_of(o, "build", "?"), real(o, "own_protocol"),
                text_of(o, "own_build", "?"));
    else if (text_of(o, "build", NULL))
        fprintf(f, "  build: %s\n", text_of(o, "build", ""));
    if (up)
        fprintf(f, "  round trip: %.1f ms\n", real(o, "rtt_ms"));
    if (real(o, "goodput_bps") > 0)
        fprintf(f, "  goodput: %s\n", agent_human_rate(real(o, "goodput_bps"), rate, sizeof rate));
    fprintf(f, "  rate: %s received, %s sent\n",
            agent_human_rate(real(o, "rx_bps"), recv, sizeof recv),
            agent_human_rate(real(o, "tx_bps"), sent, sizeof sent));
    fprintf(f, "  transfer: %s received, %s sent\n",
            agent_human_bytes(real(o, "recv_bytes"), recv, sizeof recv),
            agent_human_bytes(real(o, "sent_bytes"), sent, sizeof sent));
    if (real(o, "refused") > 0)
        fprintf(f, "  refused: %.0f messages\n", real(o, "refused"));
    if (real(o, "twins") > 0)
        fprintf(f,
                "  dialled during live links, in %.0f minutes: two agents with its keys, or a line "
                "that resets connections\n",
                real(o, "twins"));
}

// A job that is in the ledger and does not run.
static void print_aside(FILE *f, const json_t *o, const char *id) {
    const char *why = text_of(o, "why", NULL);
    if (why)
        fprintf(f, "  held: %s\n", why);
    else
        fprintf(f, "  failed before this agent was started: nebula logs %.8s\n", id);
    fprintf(f, "  nebula resume %.8s continues it, nebula stop %.8s gives it up\n", id, id);
}

static void print_job(FILE *f, const json_t *o) {
    json_t *c;
    size_t i;
    const char *id = text_of(o, "id", "?"),
               *state = text_of(o, "outcome", text_of(o, "state", "?"));
    fprintf(f, "\njob: %s\n  id: %s\n  state: %s\n", text_of(o, "job", "?"), id, state);
    if (json_object_get(o, "why"))
        print_aside(f, o, id);
    else
        fprintf(f, "  step: %.0f of %.0f\n", real(o, "step"), real(o, "steps"));
    if (json_object_get(o, "members"))
        fprintf(f, "  members: %.0f of %.0f heard, leader %s\n", real(o, "live"),
                real(o, "members"), text_of(o, "leader", "(none)"));
    if (json_is_true(json_object_get(o, "witness")))
        fprintf(f, "  role: witness\n");
    if (real(o, "lag") > 0)
        fprintf(f, "  lag: %.0f rounds behind\n", real(o, "lag"));
    json_array_foreach(json_object_get(o, "waits_for"), i, c)
        fprintf(f, "%s%s", i ? ", " : "  rounds wait for: ", json_string_value(c));
    if (json_array_size(json_object_get(o, "waits_for")))
        fputc('\n', f);
    json_array_foreach(json_object_get(o, "equivocators"), i, c) fprintf(
        f, "  equivocator (two signed statements prove it): %s; on the hub: nebula revoke %s\n",
        json_string_value(c), json_string_value(c));
    if (json_is_true(json_object_get(o, "diverged")))
        fprintf(f, "  DIVERGED: members have different records of one round; nothing is applied\n");
    if (json_is_true(json_object_get(o, "disk_lost")))
        fprintf(f, "  ledger: new after the loss of its disk; this agent votes again when it has "
                   "caught up\n");
    if (json_object_get(o, "error"))
        fprintf(f, "  error: %s\n", text_of(o, "error", "?"));
    json_array_foreach(json_object_get(o, "groups"), i, c)
        fprintf(f, "  group %s: %.0f tensors, %.0f parameters\n", text_of(c, "match", "?"),
                real(c, "tensors"), real(c, "params"));
    json_array_foreach(json_object_get(o, "clusters"), i, c) {
        double stall = real(c, "stall_s"), train = real(c, "train_s");
        fprintf(f, "  cluster %s: step %.0f, round ", text_of(c, "name", "?"), real(c, "step"));
        fprintf(f, real(c, "round") < 0 ? "-" : "%.0f", real(c, "round"));
        if (json_is_number(json_object_get(c, "loss")))
            fprintf(f, ", loss %.3f", real(c, "loss"));
        fprintf(f, ", %.0f tokens/s, codec %s, H %.0f, stall %.1f %%", real(c, "tokens_per_s"),
                text_of(c, "codec", "-"), real(c, "interval"),
                stall + train > 0 ? 100 * stall / (stall + train) : 0);
        if (text_of(c, "device", NULL))
            fprintf(f, ", on %s", text_of(c, "device", NULL));
        fputc('\n', f);
    }
}

// "faults: denied 3, replay 1"; counts of 0 are left out.
static void print_counts(FILE *f, const char *what, const json_t *counts) {
    const char *kind;
    json_t *n;
    bool any = false;
    json_object_foreach((json_t *)counts, kind, n) if (json_integer_value(n) > 0) {
        if (!any)
            fprintf(f, "\n%s:", what);
        fprintf(f, "%s %s %lld", any ? "," : "", kind, (long long)json_integer_value(n));
        any = true;
    }
    if (any)
        fputc('\n', f);
}

static void print_updates(FILE *f, const json_t *o) {
    char used[32], cap[32];
    if (!o)
        return;
    fprintf(f, "  updates kept: %s", agent_human_bytes(real(o, "used_bytes"), used, sizeof used));
    if (real(o, "cap_bytes") > 0)
        fprintf(f, " of at most %s; %.0f rounds were dropped for this limit",
                agent_human_bytes(real(o, "cap_bytes"), cap, sizeof cap),
                real(o, "dropped_rounds"));
    fputc('\n', f);
}

static void print_status(FILE *f, const json_t *s) {
    char line[256];
    json_t *o;
    size_t i;
    fprintf(f, "agent: %s\n", text_of(s, "name", "?"));
    if (text_of(s, "build", NULL))
        fprintf(f, "  build: %s, protocol %.0f; %s\n", text_of(s, "build", ""), real(s, "protocol"),
                agent_about_line(json_object_get(s, "about"), line, sizeof line));
    if (real(s, "port") > 0)
        fprintf(f, "  listening port: %.0f\n", real(s, "port"));
    print_updates(f, json_object_get(s, "updates"));
    json_array_foreach(json_object_get(s, "peers"), i, o) print_peer(f, o);
    json_array_foreach(json_object_get(s, "jobs"), i, o) print_job(f, o);
    print_counts(f, "faults", json_object_get(s, "faults"));
    print_counts(f, "refused", json_object_get(s, "refused"));
    json_t *events = json_object_get(s, "events");
    size_t n = json_array_size(events);
    for (i = n > 5 ? n - 5 : 0; i < n; i++) {
        o = json_array_get(events, i);
        time_t t = (time_t)real(o, "t");
        struct tm tm;
        char when[16];
        strftime(when, sizeof when, "%H:%M:%S", localtime_r(&t, &tm));
        fprintf(f, "%s%s %s: %s\n", i == (n > 5 ? n - 5 : 0) ? "\nlast events\n  " : "  ", when,
                text_of(o, "cluster", "-"), text_of(o, "text", ""));
    }
}

static int run(void *options) {
    const struct options *o = options;
    struct agent_ipc_msg m = {0};
    if (o->watch)
        return agent_watch(o->common.home, print_status);
    if (agent_ask(o->common.home, json_pack("{s:s}", "op", "status"), &m) != NEB_OK)
        return agent_json_exit(o->common.json, AGENT_EXIT_FAILED);
    if (o->common.json) {
        agent_json_print(m.head, JSON_COMPACT);
    } else {
        char *text = agent_status_text(print_status, m.head);
        fputs(text ? text : "", stdout);
        free(text);
    }
    agent_ipc_msg_clear(&m);
    return AGENT_EXIT_OK;
}

static const struct agent_option table[] = {
    OPT_HOME("home of the agent"), OPT_JSON("machine-readable output"),
    OPT_FLAG("watch", 'w', "full screen, updated every second; q quits", AT(watch)), OPT_END};

const struct agent_command cmd_status = {.name = "status",
                                         .summary = "show peers, links and jobs of the agent",
                                         .options = table,
                                         .doc =
                                             "Shows the agent of this machine: peers, links, jobs.",
                                         .size = sizeof(struct options),
                                         .run = run};
