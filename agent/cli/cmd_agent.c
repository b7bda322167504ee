// SPDX-License-Identifier: Apache-2.0
// nebula agent: the daemon of a cluster. nebula worker (internal): the agent starts it.
#include "agent/base/log.h"
#include "agent/base/number.h"
#include "agent/cli/cmd_options.h"
#include "agent/daemon/daemon.h"
#include "agent/proc/ipc.h"
#include "agent/proc/launch.h"
#include "agent/train/rank.h"
#include "agent/train/worker.h"
#include "inter/link/tcp.h"
#include "security/identity.h"
#include "security/members.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options {
    const char *home, *listen, *workers;
    const char *congestion;
    unsigned n_bulk;
    unsigned recycle_s, overlap_s, renew_days, stop_s;
    struct agent_web_config page;
    struct inter_rate_limit limit;
    const char *seal_key;
    uint64_t blobs_max;
};

enum {
    KEY_RECYCLE = 1000,
    KEY_OVERLAP,
    KEY_RENEW,
    OPT_TOKEN,
    OPT_CERT,
    OPT_KEY,
    KEY_RATE_LIMIT,
    KEY_CONGESTION,
    KEY_SEAL,
    KEY_WORKERS,
    KEY_BLOBS,
    KEY_STOP
};

static const uint64_t BLOBS_MIN = 1000000, BLOBS_MAX = UINT64_C(1) << 60;
enum { WEEK_S = 7 * 86400, RENEW_DAYS_MAX = 3650, STRIPES_MAX = 32 };

static unsigned number(const struct argp_state *state, int key, const char *arg, unsigned max) {
    return (unsigned)agent_option_whole(state, key, arg, 1, max);
}

// True for HOST:PORT, and for "*:PORT" (all addresses, in the form of ZeroMQ).
static bool listens(const char *where) {
    char text[SEC_ENDPOINT_MAX + 4]; // a text that is cut here is too long anyway
    snprintf(text, sizeof text, "%s%s", *where == '*' ? "all" : "", where + (*where == '*'));
    return sec_endpoint_valid(text);
}

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    struct options *o = state->input;
    switch (key) {
    case 'H': o->home = arg; return 0;
    case 'l':
        if (!listens(arg))
            agent_option_refuse(state, key, arg, "HOST:PORT");
        o->listen = arg;
        return 0;
    case 'b': o->n_bulk = number(state, key, arg, STRIPES_MAX); return 0;
    case KEY_RECYCLE: o->recycle_s = number(state, key, arg, WEEK_S); return 0;
    case KEY_OVERLAP: o->overlap_s = number(state, key, arg, WEEK_S); return 0;
    case KEY_RENEW: o->renew_days = number(state, key, arg, RENEW_DAYS_MAX); return 0;
    case KEY_STOP: o->stop_s = number(state, key, arg, WEEK_S); return 0;
    case 'p':
        if (!agent_web_address_valid(arg)) // the reason is logged
            agent_option_refuse(state, key, arg, "[HOST:]PORT");
        o->page.listen = arg;
        return 0;
    case OPT_TOKEN: o->page.token = arg; return 0;
    case OPT_CERT: o->page.cert = arg; return 0;
    case OPT_KEY: o->page.key = arg; return 0;
    case KEY_RATE_LIMIT:
        if (!*arg || inter_rate_limit_parse(arg, &o->limit) != NEB_OK) // the reason is logged
            agent_option_refuse(state, key, arg,
                                "a rate (for example 20mbit, or 100mbit 08:00-18:00=20mbit)");
        return 0;
    case KEY_CONGESTION:
        if (!inter_tcp_may_use(arg))
            argp_error(state,
                       "--congestion %s: this system does not have it, or does not permit it "
                       "(nebula doctor)",
                       arg);
        o->congestion = arg;
        return 0;
    case KEY_WORKERS:
        if (!agent_ipc_remote_valid(arg))
            agent_option_refuse(state, key, arg, "an ADDRESS[:PORT] or an interface of this host");
        o->workers = arg;
        return 0;
    case KEY_SEAL: o->seal_key = arg; return 0;
    case KEY_BLOBS:
        o->blobs_max = agent_option_size(state, key, arg, BLOBS_MIN, BLOBS_MAX);
        return 0;
    case 'v': neb_log_set_level(NEB_LOG_DEBUG); return 0;
    case ARGP_KEY_ARG: argp_usage(state); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

int cmd_agent(int argc, char **argv) {
    static const struct argp_option table[] = {
        {"home", 'H', "DIR", 0, "folder with keys and members (default ~/.nebula)", 0},
        {"listen", 'l', "HOST:PORT", 0, "accept links of other agents here (default: only dial)",
         0},
        {"workers", KEY_WORKERS, "ADDRESS[:PORT]", 0,
         "address or interface of this host for ranks that mpirun or srun starts on other hosts of "
         "the cluster; encrypted, with new keys for each worker",
         0},
        {"recycle", KEY_RECYCLE, "SECONDS", 0, "replace connections older than this (default 3600)",
         0},
        {"overlap", KEY_OVERLAP, "SECONDS", 0,
         "how long the old keys of a member are valid after its rotation (default 600)", 0},
        {"renew-before", KEY_RENEW, "DAYS", 0,
         "renew the certificate when it has fewer days left (default 30)", 0},
        {"page", 'p', "[HOST:]PORT", 0,
         "serve the status page and /metrics here; an address beyond loopback (the default) uses "
         "TLS and needs --page-token",
         0},
        {"page-token", OPT_TOKEN, "FILE", 0,
         "file with the token that readers of the page must send", 0},
        {"page-cert", OPT_CERT, "FILE", 0,
         "certificate of the page, PEM (default: self-signed, its fingerprint in the log)", 0},
        {"page-key", OPT_KEY, "FILE", 0, "private key of --page-cert, PEM", 0},
        {"connections", 'b', "N", 0,
         "bulk connections per peer (default: as many as fill the link, up to 32)", 0},
        {"rate-limit", KEY_RATE_LIMIT, "RATE", 0,
         "limit of what this site sends, also by local time: \"100mbit 08:00-18:00=20mbit\"", 0},
        {"congestion", KEY_CONGESTION, "NAME", 0,
         "TCP congestion control (default bbr, if permitted)", 0},
        {"seal-key", KEY_SEAL, "FILE", 0, "seal files on disk with this key (nebula seal)", 0},
        {"blobs-max", KEY_BLOBS, "SIZE", 0,
         "largest size of the updates that are kept, for example 20G (default: all back to the "
         "oldest checkpoint)",
         0},
        {"stop-within", KEY_STOP, "SECONDS", 0,
         "at the end, wait so long for checkpoints that still grow (default 3600)", 0},
        {"verbose", 'v', NULL, 0, "log more", 0},
        {0}};
    static const struct argp argp = {
        .options = table,
        .parser = parse_option,
        .doc = "Runs the agent of this cluster until SIGTERM or Ctrl-C. Running jobs are then "
               "suspended after a checkpoint (exit status 3), and continue when the agent starts "
               "again. To make keys: nebula id. To add other agents: nebula peer add, or nebula "
               "join."};
    struct options o = {0};
    char home[NEB_PATH_MAX];
    bool suspended = false;
    if (agent_options_parse(&argp, argc, argv, &o) != 0)
        return AGENT_EXIT_USAGE;
    if (sec_home(o.home, home, sizeof home) != NEB_OK)
        return AGENT_EXIT_USAGE;
    o.page.home = home;
    neb_log_throttle(true);
    if (agent_web_check(&o.page) != NEB_OK)
        return AGENT_EXIT_USAGE;
    struct agent_daemon_config c = {.home = home,
                                    .listen = o.listen,
                                    .workers = o.workers,
                                    .n_bulk = o.n_bulk,
                                    .congestion = o.congestion,
                                    .limit = o.limit,
                                    .seal_key = o.seal_key,
                                    .blobs_max = o.blobs_max,
                                    .recycle = (neb_ns)o.recycle_s * NEB_S,
                                    .overlap = (neb_ns)o.overlap_s * NEB_S,
                                    .renew_days = (int)o.renew_days,
                                    .stop_within = (neb_ns)o.stop_s * NEB_S,
                                    .page = o.page,
                                    .suspended = &suspended};
    if (agent_daemon_run(&c) != NEB_OK)
        return AGENT_EXIT_FAILED;
    return suspended ? AGENT_EXIT_INTERRUPTED : AGENT_EXIT_OK;
}

int cmd_worker(int argc, char **argv) {
    uint64_t threads = 0;
    bool rank = (argc == 5 || argc == 6) && !strcmp(argv[3], "--rank") &&
                neb_number_whole(argv[4], 0, UINT16_MAX, &threads);
    if (argc != 3 && !rank) {
        neb_log(NEB_LOG_ERROR, "nebula worker: only an agent starts it");
        return AGENT_EXIT_USAGE;
    }
    neb_log_throttle(true);
    enum neb_status st =
        rank ? agent_rank_run(argv[1], argv[2], (int)threads, argc == 6 ? argv[5] : NULL)
             : agent_worker_run(argv[1], argv[2], NULL, 0);
    return agent_exit_of(st);
}
