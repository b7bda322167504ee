// SPDX-License-Identifier: Apache-2.0
// The loop of the agent: what it waits for, the order of its work, start and end. state.h lists the
// other files.
#include "agent/base/log.h"
#include "agent/base/moved.h"
#include "agent/daemon/state.h"
#include "agent/daemon/status.h"
#include "agent/daemon/sums.h"
#include "agent/proc/harden.h"
#include "agent/proc/home_lock.h"
#include "agent/proc/launch.h"
#include "agent/proc/seal.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { POLL_MAX = 1100 }; // 66 per peer with all bulk connections open
static const neb_ns telemetry_interval = NEB_S, heartbeat_every = 500 * NEB_MS;

static void telemetry(struct daemon *d) {
    daemon_extend_stop(d);
    agent_spread_stand(&d->spread, d->up);
    EACH_JOB (d, j) {
        if (!agent_job_active(j->state))
            continue;
        daemon_send_alive(d, j, false);
        daemon_offer_retry(d, j);
        daemon_send_link(d, j);
        daemon_send_waits(d, j);
        daemon_send_protocols(d, j);
        j->rounds.updates_stay = j->federated && inter_service_updates_stay(d->service, j->id);
        daemon_trainer_left(d, j, false);
        daemon_proof_look(d, j);
        daemon_tensors_look(d, j);
        daemon_deliver_retry(d, j);
        daemon_ranks_look(d, j);
        if (agent_job_stops(j->state)) // repeated until it ends
            daemon_send(d, &j->worker.client, json_pack("{s:s}", "ev", "stop"));
    }
    daemon_send_blobs(d);
    daemon_log_suppressed(d);
    daemon_drop_ended(d);
    if (d->web)
        agent_status_publish(d->web, d->view, daemon_status(d));
    agent_notify("WATCHDOG=1");
}

// Called while this thread reads, copies or hashes something large: peers that wait for it get a
// heartbeat. Not during shutdown, nor while the service is replaced.
static void moved(void *user) {
    struct daemon *d = user;
    neb_ns now = neb_now();
    if (!d->service || now - d->heartbeat_at < heartbeat_every)
        return;
    d->heartbeat_at = now;
    inter_service_heartbeat(d->service);
}

// Called during the start, while the ledger is read: extends the start timeout of the service
// manager.
static void busy(void *user) {
    (void)user;
    agent_notify("WATCHDOG=1\nEXTEND_TIMEOUT_USEC=60000000");
}

static bool signed_before(void *user, const char *name, const char *context, const void *msg,
                          size_t len, const uint8_t sig[INTER_SIG_BYTES]) {
    struct daemon *d = user;
    return agent_members_signed_before(d->trust, name, context, msg, len, sig);
}

enum neb_status daemon_start_service(struct daemon *d) {
    d->members = *agent_members_list(d->trust);
    struct inter_service_config s = {
        .dir = d->c->home,
        .identity = d->identity,
        .members = &d->members,
        .listen = d->c->listen,
        .n_bulk = d->c->n_bulk,
        .recycle = d->c->recycle,
        .congestion = d->c->congestion,
        .limit = d->c->limit,
        .zmq_context = d->zctx,
        .repeats = AGENT_MSG_METRICS, // their lines have numbers
        .seal = sec_vault_key(d->vault),
        .callbacks = {d, daemon_on_screen, daemon_on_commit, daemon_on_message, daemon_on_peer,
                      daemon_on_fault, daemon_on_behind, daemon_on_snapshot_open,
                      daemon_on_snapshot_close, daemon_on_snapshot_done, daemon_on_equivocation,
                      busy, daemon_on_divergence, signed_before, daemon_on_lost, daemon_on_gone}};
    NEB_TRY(inter_service_create(&s, &d->service));
    if (d->c->blobs_max)
        NEB_TRY(inter_ledger_set_cap(inter_service_ledger(d->service), d->c->blobs_max));
    d->streams = (struct agent_streams){
        inter_service_streams(d->service), d->ipc, d->jobs, d->c->home, daemon_job_over, d};
    agent_streams_listen(&d->streams);
    d->spread = (struct agent_spread){.members = d->trust, .service = d->service};
    return NEB_OK;
}

static void on_signal(struct daemon *d) {
    struct signalfd_siginfo info;
    while (read(d->signal_fd, &info, sizeof info) == sizeof info)
        if (info.ssi_signo == SIGHUP) {
            struct agent_members_change change;
            agent_members_reload(d->trust, &change);
            daemon_merge_change(&d->change, &change);
            d->changes = true;
        } else if (info.ssi_signo != SIGCHLD) {
            daemon_stop(d, (pid_t)info.ssi_pid == getppid());
        }
}

// Waits until something can be read or a timer is due.
static enum neb_status wait_for_work(struct daemon *d) {
    zmq_pollitem_t items[POLL_MAX];
    size_t n = 2;
    void *remote = agent_ipc_remote_socket(d->ipc), *monitor = agent_ipc_remote_monitor(d->ipc);
    items[0] = (zmq_pollitem_t){.socket = agent_ipc_socket(d->ipc), .events = ZMQ_POLLIN};
    items[1] = (zmq_pollitem_t){.fd = d->signal_fd, .events = ZMQ_POLLIN};
    if (remote)
        items[n++] = (zmq_pollitem_t){.socket = remote, .events = ZMQ_POLLIN};
    if (monitor)
        items[n++] = (zmq_pollitem_t){.socket = monitor, .events = ZMQ_POLLIN};
    if (agent_members_fd(d->trust) >= 0)
        items[n++] = (zmq_pollitem_t){.fd = agent_members_fd(d->trust), .events = ZMQ_POLLIN};
    n += inter_service_poll_items(d->service, items + n, POLL_MAX - n);
    neb_ns deadline = inter_service_next_deadline(d->service), now = neb_now();
    deadline = d->next_telemetry < deadline ? d->next_telemetry : deadline;
    long wait_ms = deadline > now ? (long)((deadline - now + NEB_MS - 1) / NEB_MS) : 0;
    if (zmq_poll(items, (int)(n < POLL_MAX ? n : POLL_MAX), wait_ms) < 0 && zmq_errno() != EINTR)
        return neb_fail(NEB_ERR_IO, "poll: %s", zmq_strerror(zmq_errno()));
    return NEB_OK;
}

static enum neb_status look_at_members(struct daemon *d) {
    struct agent_members_change change;
    NEB_TRY(agent_members_step(d->trust, &change));
    daemon_merge_change(&d->change, &change);
    NEB_TRY(daemon_take_members(d));
    NEB_TRY(daemon_renew_service(d));
    NEB_TRY(daemon_rekey(d));
    agent_renew_step(&d->renew, d->trust);
    return NEB_OK;
}

static void take_local(struct daemon *d) {
    struct agent_ipc_client from;
    struct agent_ipc_msg m;
    for (int i = 0; i < 64; i++) { // local messages are few; a flood must not starve the links
        enum neb_status st = agent_ipc_recv(d->ipc, &from, &m);
        if (st == NEB_ERR_AGAIN)
            break;
        if (st == NEB_OK)
            daemon_on_local(d, &from, &m);
        agent_ipc_msg_clear(&m);
    }
}

// A longer gap between two looks shows that this agent itself was stopped. Then nobody was silent
// or idle meanwhile.
static void excuse_absence(struct daemon *d) {
    static const neb_ns longest = 5 * NEB_S;
    neb_ns now = neb_now(), absent = now - d->looked_at;
    bool blind = d->looked_at && absent > longest;
    d->looked_at = now;
    if (!blind)
        return;
    EACH_JOB (d, j) {
        neb_ns idle_at = agent_timer_at(&j->timers, AGENT_TIMER_IDLE);
        if (idle_at)
            agent_timer_set(&j->timers, AGENT_TIMER_IDLE, idle_at + absent);
        daemon_worker_heard(j);
    }
}

static void look_at_jobs(struct daemon *d) {
    excuse_absence(d);
    EACH_JOB (d, j) {
        if (j->sums && agent_sums_tick(j->sums) && j->worker.client.len &&
            neb_now() > agent_timer_at(&j->timers, AGENT_TIMER_BEHIND)) {
            j->fetch.any = true;
            daemon_ask_snapshot(d, j);
        }
        daemon_worker_look(j);
        daemon_job_timers(d, j);
        daemon_witness_ends(d, j);
        daemon_lines_soon(d, j);
    }
}

static enum neb_status loop(struct daemon *d) {
    while (!d->stopping || daemon_stop_waits(d)) {
        NEB_TRY(wait_for_work(d));
        on_signal(d);
        NEB_TRY(look_at_members(d));
        take_local(d);
        NEB_TRY(inter_service_process(d->service));
        look_at_jobs(d);
        if (neb_now() >= d->next_telemetry) {
            d->next_telemetry = neb_now() + telemetry_interval;
            telemetry(d);
        }
    }
    return NEB_OK;
}

// A thread that a library started before main does not block these signals. A signal that goes to
// such a thread would end the agent, and signalfd would miss it. So the thread passes it on to the
// main thread.
static void pass_on(int signo) {
    if (gettid() != getpid())
        tgkill(getpid(), getpid(), signo);
}

static enum neb_status take_signals(sigset_t *set) {
    static const int ours[] = {SIGTERM, SIGINT, SIGHUP, SIGCHLD};
    struct sigaction sa = {.sa_handler = pass_on, .sa_flags = SA_RESTART};
    sigemptyset(set);
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++) {
        sigaddset(set, ours[i]);
        if (sigaction(ours[i], &sa, NULL) != 0)
            return neb_fail_errno("sigaction");
    }
    sigprocmask(SIG_BLOCK, set, NULL);
    // The reader of the log may go away, and a joining member may hang up: neither ends jobs.
    return signal(SIGPIPE, SIG_IGN) != SIG_ERR ? NEB_OK : neb_fail_errno("SIGPIPE");
}

static enum neb_status set_up(struct daemon *d) {
    char jobs[NEB_PATH_MAX];
    sigset_t set;
    agent_harden();
    agent_harden_home(d->c->home);
    NEB_TRY(sec_init());
    NEB_TRY(agent_view_create(&d->view));
    NEB_TRY(agent_self_path(d->exe, sizeof d->exe));
    agent_gpus_find(getenv("CUDA_VISIBLE_DEVICES"), AGENT_GPUS_DRIVER, &d->gpus);
    NEB_TRY(sec_identity_need(d->c->home, &d->identity));
    NEB_TRY(agent_home_lock(d->c->home, &d->home_fd));
    NEB_TRY(agent_seal_open(d->c->home, d->c->seal_key, &d->vault));
    neb_log_set_name(daemon_name(d));
    NEB_TRY(agent_members_open(d->c->home, d->identity, &d->trust));
    NEB_TRY(neb_path(jobs, sizeof jobs, d->c->home, "jobs"));
    NEB_TRY(neb_fs_mkdirs(jobs, 0700));
    NEB_TRY(take_signals(&set));
    d->signal_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (d->signal_fd < 0)
        return neb_fail_errno("signalfd");
    if (!(d->zctx = zmq_ctx_new()))
        return neb_fail(NEB_ERR_IO, "cannot create a ZeroMQ context: %s",
                        zmq_strerror(zmq_errno()));
    NEB_TRY(daemon_start_service(d));
    if (d->c->page.listen)
        NEB_TRY(agent_web_start(&d->c->page, &d->web));
    NEB_TRY(neb_path(d->socket_path, sizeof d->socket_path, d->c->home, "agent.sock"));
    // last: a process that finds the socket finds an agent that is ready
    NEB_TRY(agent_ipc_listen(d->zctx, d->socket_path, &d->ipc));
    if (d->c->workers)
        NEB_TRY(agent_ipc_remote_listen(d->ipc, d->c->workers));
    d->streams.ipc = d->ipc;
    return NEB_OK;
}

static void say_policy(struct daemon *d) {
    char text[1024];
    if (agent_policy_load(d->c->home, &d->policy.is) != NEB_OK) {
        neb_log(NEB_LOG_ERROR,
                "policy.json cannot be read: until it can, no job of another member starts");
        return;
    }
    agent_policy_describe(&d->policy.is, text, sizeof text);
    neb_info("%s %s: admits %s", d->policy.is.present ? "policy.json in" : "no policy.json in",
             d->c->home, text);
}

enum neb_status agent_daemon_run(const struct agent_daemon_config *c) {
    struct daemon *d = calloc(1, sizeof *d);
    if (!d)
        return neb_fail(NEB_ERR_NOMEM, "out of memory starting the agent");
    d->c = c;
    d->signal_fd = d->home_fd = -1;
    d->ended_due = d->aside_due = true;
    d->renew = (struct agent_renew){.exe = d->exe, .home = c->home, .before_days = c->renew_days};
    enum neb_status st = set_up(d);
    neb_moved_listen(moved, d);
    if (st == NEB_OK)
        st = daemon_resume_jobs(d);
    if (st == NEB_OK) {
        neb_info("agent is ready%s%s", c->listen ? ", listening on " : "",
                 c->listen ? c->listen : "");
        if (d->members.n > 1)
            say_policy(d);
        daemon_warn_unlinked(d);
        agent_notify("READY=1");
        st = loop(d);
    }
    neb_moved_listen(NULL, NULL);
    EACH_JOB (d, j) {
        if (c->suspended && (j->state == AGENT_JOB_SUSPENDING || j->state == AGENT_JOB_SUSPENDED))
            *c->suspended = true;
        if (j->worker.kill_signal != SIGTERM) // a worker that gets SIGTERM handles it itself
            daemon_worker_kill(j);
        agent_child_stop(&j->worker.child, 10 * NEB_S);
        daemon_job_forget(d, j);
    }
    agent_child_stop(&d->renew.child, NEB_S);
    agent_web_stop(&d->web);
    agent_view_destroy(&d->view);
    json_decref(d->aside);
    bool had_socket = d->ipc != NULL;
    agent_ipc_destroy(&d->ipc);
    if (had_socket) // so that no client waits for an answer
        (void)unlink(d->socket_path);
    inter_service_destroy(&d->service);
    agent_members_destroy(&d->trust);
    if (d->signal_fd >= 0)
        close(d->signal_fd);
    if (d->zctx)
        zmq_ctx_term(d->zctx);
    sec_identity_destroy(&d->identity);
    daemon_end_searches(d);
    sec_vault_destroy(&d->vault);
    if (d->home_fd >= 0)
        close(d->home_fd);
    free(d);
    return st;
}
