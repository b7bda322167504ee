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
    struct agent_options common;
    const char *listen, *workers, *congestion;
    int n_bulk, recycle_s, overlap_s, renew_days, stop_s;
    struct agent_web_config page;
    struct inter_rate_limit limit;
    uint64_t blobs_max;
    bool verbose;
};

enum { WEEK_S = 7 * 86400, RENEW_DAYS_MAX = 3650, STRIPES_MAX = 32 };

// True for HOST:PORT, and for "*:PORT" (all addresses, in the form of ZeroMQ).
static bool is_listen(const char *where, void *options) {
    char text[SEC_ENDPOINT_MAX + 4]; // a text that is cut here is too long anyway
    (void)options;
    snprintf(text, sizeof text, "%s%s", *where == '*' ? "all" : "", where + (*where == '*'));
    return sec_endpoint_valid(text);
}

static bool is_page(const char *where, void *options) {
    (void)options;
    return agent_web_address_valid(where); // the reason is logged
}

static bool is_workers(const char *where, void *options) {
    (void)options;
    return agent_ipc_remote_valid(where);
}

static bool is_congestion(const char *name, void *options) {
    (void)options;
    return inter_tcp_may_use(name);
}

static bool take_rate_limit(const char *text, void *options) {
    struct options *o = options;
    return *text && inter_rate_limit_parse(text, &o->limit) == NEB_OK; // the reason is logged
}

static const struct agent_option table[] = {
    OPT_HOME("folder with keys and members"),
    OPT_CHECKED("listen", 'l', "HOST:PORT",
                "accept links of other agents here (default: only dial)", AT(listen), is_listen,
                "HOST:PORT"),
    OPT_CHECKED("workers", 0, "ADDRESS[:PORT]",
                "address or interface of this host for ranks that mpirun or srun starts on other "
                "hosts of the cluster; encrypted, with new keys for each worker",
                AT(workers), is_workers, "an ADDRESS[:PORT] or an interface of this host"),
    OPT_INT("recycle", 0, "SECONDS", "replace connections older than this (default 3600)",
            AT(recycle_s), 1, WEEK_S),
    OPT_INT("overlap", 0, "SECONDS",
            "how long the old keys of a member are valid after its rotation (default 600)",
            AT(overlap_s), 1, WEEK_S),
    OPT_INT("renew-before", 0, "DAYS",
            "renew the certificate when it has fewer days left (default 30)", AT(renew_days), 1,
            RENEW_DAYS_MAX),
    OPT_CHECKED("page", 'p', "[HOST:]PORT",
                "serve the status page and /metrics here; an address beyond loopback (the default) "
                "uses TLS and needs --page-token",
                AT(page.listen), is_page, "[HOST:]PORT"),
    OPT_TEXT("page-token", 0, "FILE", "file with the token that readers of the page must send",
             AT(page.token)),
    OPT_TEXT("page-cert", 0, "FILE",
             "certificate of the page, PEM (default: self-signed, its fingerprint in the log)",
             AT(page.cert)),
    OPT_TEXT("page-key", 0, "FILE", "private key of --page-cert, PEM", AT(page.key)),
    OPT_INT("connections", 'b', "N",
            "bulk connections per peer (default: as many as fill the link, up to 32)", AT(n_bulk),
            1, STRIPES_MAX),
    OPT_TAKEN("rate-limit", 0, "RATE",
              "limit of what this site sends, also by local time: \"100mbit 08:00-18:00=20mbit\"",
              take_rate_limit, "a rate (for example 20mbit, or 100mbit 08:00-18:00=20mbit)"),
    OPT_CHECKED("congestion", 0, "NAME", "TCP congestion control (default bbr, if permitted)",
                AT(congestion), is_congestion,
                "a congestion control that this system has and permits (nebula doctor)"),
    OPT_SEAL_KEY("seal files on disk with this key (nebula seal)"),
    OPT_SIZE("blobs-max", 0, "SIZE",
             "largest size of the updates that are kept, for example 20G (default: all back to the "
             "oldest checkpoint)",
             AT(blobs_max), 1000000, UINT64_C(1) << 60),
    OPT_INT("stop-within", 0, "SECONDS",
            "at the end, wait so long for checkpoints that still grow (default 3600)", AT(stop_s),
            1, WEEK_S),
    OPT_FLAG("verbose", 'v', "log more", AT(verbose)),
    OPT_END};

static int run(void *options) {
    struct options *o = options;
    char home[NEB_PATH_MAX];
    bool suspended = false;
    if (o->verbose)
        neb_log_set_level(NEB_LOG_DEBUG);
    if (sec_home(o->common.home, home, sizeof home) != NEB_OK)
        return AGENT_EXIT_USAGE;
    o->page.home = home;
    neb_log_throttle(true);
    if (agent_web_check(&o->page) != NEB_OK)
        return AGENT_EXIT_USAGE;
    struct agent_daemon_config c = {.home = home,
                                    .listen = o->listen,
                                    .workers = o->workers,
                                    .n_bulk = (unsigned)o->n_bulk,
                                    .congestion = o->congestion,
                                    .limit = o->limit,
                                    .seal_key = o->common.seal_key,
                                    .blobs_max = o->blobs_max,
                                    .recycle = (neb_ns)o->recycle_s * NEB_S,
                                    .overlap = (neb_ns)o->overlap_s * NEB_S,
                                    .renew_days = o->renew_days,
                                    .stop_within = (neb_ns)o->stop_s * NEB_S,
                                    .page = o->page,
                                    .suspended = &suspended};
    if (agent_daemon_run(&c) != NEB_OK)
        return AGENT_EXIT_FAILED;
    return suspended ? AGENT_EXIT_INTERRUPTED : AGENT_EXIT_OK;
}

const struct agent_command cmd_agent = {
    .name = "agent",
    .summary = "run the agent of this cluster",
    .options = table,
    .doc =
        "Runs the agent of this cluster until SIGTERM or Ctrl-C. Running jobs are then suspended "
        "after a checkpoint (exit status 3), and continue when the agent starts again. To make "
        "keys: nebula id. To add other agents: nebula peer add, or nebula join.",
    .size = sizeof(struct options),
    .run = run,
    .home = true};

static int run_worker(int argc, char **argv) {
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

const struct agent_command cmd_worker = {.name = "worker", .run_raw = run_worker, .home = true};
