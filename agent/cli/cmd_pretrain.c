// SPDX-License-Identifier: Apache-2.0
// nebula pretrain JOB.yaml: hands a job to the agents, shows its progress, and writes the results.
//
//     out/  summary.json  metrics.jsonl  job.json  plots/*.svg
//           checkpoint/{model.ckpt, tokenizer.model, corpus.sha256}
//           clusters/NAME/…   homes of the agents, with --local
#include "agent/base/log.h"
#include "agent/base/number.h"
#include "agent/cli/cmd_options.h"
#include "agent/cli/pretrain_state.h"
#include "agent/job/json.h"
#include "agent/job/wan_spec.h"
#include "agent/show/report.h"
#include "security/identity.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REPORT_WITHIN = 600, REPORT_WITHIN_MAX = 30 * 86400 }; // seconds
static volatile sig_atomic_t interrupted;
static void on_interrupt(int sig) { interrupted = sig; }

// A scheduler, a time limit or a closed terminal ends this command but not the job, which other
// sites train too. Ctrl-C stops the job. Agents of --local are children of this process and end
// with it.
static bool detaches(const struct run *r) {
    return !r->o.local && (interrupted == SIGTERM || interrupted == SIGHUP);
}

static void take_signals(void) {
    struct sigaction sa = {.sa_handler = on_interrupt}, was;
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    if (sigaction(SIGHUP, NULL, &was) == 0 && was.sa_handler != SIG_IGN) // nohup
        sigaction(SIGHUP, &sa, NULL);
}

// ---- following the job --------------------------------------------------------------------------

static int cluster_index(const struct run *r, const char *name) {
    for (int i = 0; name && i < r->job.n_clusters; i++)
        if (!strcmp(r->job.clusters[i].name, name))
            return i;
    return -1;
}

static bool says_stopped(const json_t *report) {
    return json_is_true(json_object_get(report, "stopped"));
}

// True while a newer report may come: one cluster has made all steps, and another one was stopped,
// but not by this command. The report of the other may be from an earlier run, and its new report
// may be in flight. Waits half a minute after the last line.
static bool newer_may_come(struct run *r) {
    const neb_ns patience = 30 * NEB_S;
    bool stopped = false, done = false;
    for (int i = 0; i < r->expected; i++) {
        stopped |= says_stopped(r->reports[i]);
        done |= r->reports[i] && !says_stopped(r->reports[i]) &&
                !json_object_get(r->reports[i], "error");
    }
    if (!stopped || !done || r->stop_sent) {
        r->odd_since = 0;
        return false;
    }
    if (!r->odd_since)
        r->odd_since = neb_now();
    return neb_now() - r->odd_since < patience;
}

// A disk that is full here must not end the job elsewhere. Later lines are written if possible.
static enum neb_status keep_line(struct run *r, neb_ns at, json_t *line) {
    bool quiet = r->lines_lost > 0;
    if (quiet)
        neb_log_hush(true);
    enum neb_status st = agent_metrics_add(r->metrics, at, json_incref(line));
    if (quiet)
        neb_log_hush(false);
    if (st != NEB_ERR_NOSPC && st != NEB_ERR_IO)
        return st;
    if (!r->lines_lost++)
        agent_progress_note(
            r->progress,
            "metrics.jsonl cannot be written; the job continues and is still followed");
    return NEB_OK;
}

static enum neb_status on_line(struct run *r, const json_t *event) {
    json_t *line = json_object_get(event, "line");
    neb_ns late = (neb_ns)(json_number_value(json_object_get(event, "late_s")) * NEB_S);
    int64_t n = json_integer_value(json_object_get(event, "n"));
    int i = cluster_index(r, json_string_value(json_object_get(line, "cluster")));
    const char *kind = json_string_value(json_object_get(line, "kind"));
    char text[256];
    if (i < 0 || i >= r->expected || !kind)
        return NEB_OK; // witnesses send no lines
    pretrain_reached(r, i, neb_now());
    if (late && n <= r->had[i])
        return NEB_OK; // sent twice: the agent has restarted and does not know what was sent
    r->had[i] = n;
    if (agent_report_is_former(r->reports[i], line)) {
        json_decref(r->reports[i]);
        r->reports[i] = NULL;
    }
    if (r->odd_since && says_stopped(r->reports[i]))
        r->odd_since = neb_now();
    if (agent_metrics_wants(r->metrics, i, neb_now() - late, line))
        NEB_TRY(keep_line(r, neb_now() - late, line));
    r->stepped |= !strcmp(kind, "step");
    agent_progress_metrics(r->progress, i, line);
    agent_tensorboard_line(r->tensorboard, i, line, neb_wall_now() - late);
    if (!strcmp(kind, "fault") || !strcmp(kind, "note")) {
        const char *what = json_string_value(json_object_get(line, "text"));
        snprintf(text, sizeof text, "%s: %s", r->job.clusters[i].name, what ? what : kind);
        if (!r->o.common.json) // else it is printed already
            agent_progress_note(r->progress, text);
        r->stop_heard = r->stop_sent ? neb_now() : 0;
    }
    return NEB_OK;
}

static enum neb_status on_lines(struct run *r, const json_t *lines) {
    for (size_t i = 0; i < json_array_size(lines); i++)
        NEB_TRY(on_line(r, json_array_get(lines, i)));
    return NEB_OK;
}

static enum neb_status on_event(struct run *r, struct agent_ipc_msg *m) {
    const char *ev = agent_ipc_str(m, "ev", "");
    enum neb_status st = pretrain_heard(r, m);
    if (st != NEB_OK) {
        ; // the agent no longer runs the job
    } else if (!strcmp(ev, "line")) {
        st = on_line(r, m->head);
    } else if (!strcmp(ev, "lines")) {
        st = on_lines(r, json_object_get(m->head, "lines"));
    } else if (!strcmp(ev, "status")) {
        pretrain_on_status(r, m->head);
    } else if (!strcmp(ev, "members")) {
        pretrain_on_members(r, m->head);
    } else if (!strcmp(ev, "report")) {
        json_t *report = json_object_get(m->head, "report");
        int i = cluster_index(r, json_string_value(json_object_get(report, "name")));
        if (i >= 0 && (!r->reports[i] || says_stopped(r->reports[i]))) {
            json_decref(r->reports[i]);
            r->reports[i] = json_incref(report);
            if (i < r->expected) // a witness makes no steps
                agent_progress_sample(r->progress, i)->out =
                    json_object_get(report, "error") != NULL;
            agent_tensorboard_report(r->tensorboard, i, report, neb_wall_now());
        }
    }
    agent_ipc_msg_clear(m);
    return st;
}

static bool reports_are_in(const struct run *r) {
    for (int i = 0; i < r->expected; i++)
        if (!r->reports[i] && !mset_has(r->gone, i))
            return false;
    return true;
}

// Restarts killed agents, as a service manager would, and asks the followed one again for the job.
static enum neb_status tend_agents(struct run *r) {
    int again = -1;
    char text[128];
    enum neb_status st = agent_local_tend(&r->local, &interrupted, &again);
    if (st == NEB_ERR_INTERRUPTED) {
        pretrain_all_end(r);
        return NEB_OK;
    }
    NEB_TRY(st);
    if (again < 0)
        return NEB_OK;
    snprintf(text, sizeof text, "agent %s was killed and is started again",
             r->job.clusters[again].name);
    agent_progress_note(r->progress, text);
    if (again == 0)
        pretrain_ask_now(r);
    // It may have missed the stop; a repeated stop does no harm.
    return r->stop_sent ? pretrain_say_stop(r) : NEB_OK;
}

static enum neb_status follow(struct run *r) {
    struct agent_ipc_msg m;
    bool enough = false;
    r->heard = neb_now();
    while ((!reports_are_in(r) || newer_may_come(r)) && !enough && !r->no_more) {
        enum neb_status st = agent_ipc_wait(r->ipc, 200 * NEB_MS, &m);
        if (st == NEB_OK)
            NEB_TRY(on_event(r, &m));
        else if (st != NEB_ERR_TIMEOUT && st != NEB_ERR_INTERRUPTED)
            return st;
        if (detaches(r)) {
            r->detached = true;
            break;
        }
        if (interrupted)
            NEB_TRY(pretrain_stop(r, "stopping after a checkpoint; --resume continues"));
        if (pretrain_must_stop(r)) // the others would wait for it
            NEB_TRY(pretrain_stop(r, "one cluster failed; stopping the others"));
        NEB_TRY(pretrain_stop_step(r, &enough));
        NEB_TRY(pretrain_wait_step(r, neb_now(), &enough));
        if (r->o.local)
            NEB_TRY(tend_agents(r));
        NEB_TRY(pretrain_stay_in_touch(r));
        agent_progress_draw(r->progress, neb_now(), false);
    }
    agent_progress_draw(r->progress, neb_now(), true);
    return NEB_OK;
}

static enum neb_status submit(struct run *r) {
    struct agent_ipc_msg m;
    if (!(r->zctx = zmq_ctx_new()))
        return neb_fail(NEB_ERR_IO, "cannot create a ZeroMQ context: %s",
                        zmq_strerror(zmq_errno()));
    if (agent_ipc_is_nobody(r->socket))
        return neb_fail(
            NEB_ERR_NOT_FOUND,
            "no agent at %s%s: start one with nebula agent, give its --home, or use --local %d",
            r->socket, neb_fs_exists(r->socket) ? " of this host" : "", r->job.n_clusters);
    NEB_TRY(agent_ipc_connect(r->zctx, r->socket, &r->ipc));
    if (detaches(r))
        return neb_fail(NEB_ERR_INTERRUPTED, "ended by a signal before the job was submitted");
    NEB_TRY(pretrain_say_submit(r));
    r->asked = true;
    for (neb_ns end = neb_now() + 15 * NEB_S; neb_now() < end;) {
        enum neb_status st = agent_ipc_wait(r->ipc, NEB_S, &m);
        if (st == NEB_ERR_TIMEOUT || st == NEB_ERR_INTERRUPTED)
            continue;
        NEB_TRY(st);
        if (strcmp(agent_ipc_str(&m, "ev", ""), "answer")) {
            NEB_TRY(on_event(r, &m));
            continue;
        }
        r->asked = json_is_true(json_object_get(m.head, "ok"));
        r->self = r->job.sync.scheme == AGENT_SCHEME_SYNCHRONOUS
                      ? 0
                      : cluster_index(r, agent_ipc_str(&m, "name", ""));
        if (!r->asked)
            st = neb_fail(NEB_ERR_STATE, "the agent refuses the job: %s",
                          agent_ipc_str(&m, "text", "?"));
        else
            st = pretrain_took(r, agent_ipc_str(&m, "text", ""));
        agent_ipc_msg_clear(&m);
        return st;
    }
    return neb_fail(NEB_ERR_TIMEOUT, "the agent at %s does not answer", r->socket);
}

static enum neb_status set_up(struct run *r) {
    char path[NEB_PATH_MAX], home[NEB_PATH_MAX], jobs[NEB_PATH_MAX];
    NEB_TRY(pretrain_load_job(r));
    NEB_TRY(pretrain_open_out(r));
    NEB_TRY(neb_path(path, sizeof path, r->out, "metrics.jsonl"));
    r->start = neb_now();
    NEB_TRY(agent_metrics_open(path, r->o.resume, r->start, &r->metrics));
    if (r->o.common.json)
        agent_metrics_show(r->metrics, stdout);
    if (r->o.tensorboard)
        NEB_TRY(
            agent_tensorboard_create(r->out, &r->job, r->expected, r->o.resume, &r->tensorboard));
    enum agent_progress_kind kind = r->o.common.json        ? AGENT_PROGRESS_JSON
                                    : isatty(STDOUT_FILENO) ? AGENT_PROGRESS_TERMINAL
                                                            : AGENT_PROGRESS_PLAIN;
    NEB_TRY(agent_progress_create(kind, stdout, r->expected, r->job.steps, r->start, &r->progress));
    for (int i = 0; i < r->expected; i++)
        snprintf(agent_progress_sample(r->progress, i)->name,
                 sizeof agent_progress_sample(r->progress, i)->name, "%s", r->job.clusters[i].name);
    if (r->o.local) {
        NEB_TRY(agent_local_start(&r->job, r->o.local, r->out, r->o.wan, r->o.common.seal_key,
                                  &r->local));
        snprintf(home, sizeof home, "%s", r->local.homes[0]);
    } else {
        NEB_TRY(sec_home(r->o.common.home, home, sizeof home));
    }
    NEB_TRY(neb_path(r->socket, sizeof r->socket, home, "agent.sock"));
    NEB_TRY(submit(r));
    NEB_TRY(neb_path(jobs, sizeof jobs, home, "jobs"));
    return neb_path(r->model_dir, sizeof r->model_dir, jobs, r->id);
}

static void tear_down(struct run *r) {
    if (r->o.local)
        agent_local_stop(&r->local);
    pretrain_undo_out(r);
    agent_ipc_destroy(&r->ipc);
    if (r->zctx)
        zmq_ctx_term(r->zctx);
    agent_progress_destroy(&r->progress);
    agent_metrics_close(&r->metrics);
    agent_tensorboard_destroy(&r->tensorboard);
    for (int i = 0; i < AGENT_CLUSTERS_MAX; i++)
        json_decref(r->reports[i]);
    json_decref(r->spec);
    json_decref(r->quality);
    json_decref(r->missing_names);
    free(r);
}

#define EXITS                                                                                      \
    "\vExit status: 0 done, 1 failed, 2 usage, 3 stopped after a checkpoint (Ctrl-C, and with "    \
    "--local SIGTERM or SIGHUP), or detached from a job that continues at its agents (SIGTERM, "   \
    "SIGHUP), 4 done, but without the report of a cluster that could not be reached "              \
    "(--report-within). The same command with --resume continues the job, or follows it again."
static bool is_steps(const char *text, void *options) {
    uint64_t n;
    (void)options;
    return neb_number_whole(text, 1, AGENT_STEPS_MAX, &n);
}

static bool is_seed(const char *text, void *options) {
    uint64_t n;
    (void)options;
    return neb_number_whole(text, 0, AGENT_SEED_MAX, &n);
}

static const char *check(const void *options) {
    const struct options *o = options;
    return o->wan && !o->local
               ? "--wan needs --local: it emulates the network between local clusters"
               : NULL;
}

static int run(void *options) {
    struct run *r = calloc(1, sizeof *r);
    if (!r)
        return AGENT_EXIT_FAILED;
    r->o = *(struct options *)options;
    take_signals();
    enum neb_status st = set_up(r);
    r->over = st != NEB_OK && !r->asked;
    int rc = st == NEB_ERR_INVALID || st == NEB_ERR_FORMAT ? AGENT_EXIT_USAGE : AGENT_EXIT_FAILED;
    if (st == NEB_OK && follow(r) == NEB_OK)
        rc = r->detached ? pretrain_detached(r) : pretrain_finish(r);
    if (r->o.common.json && rc != AGENT_EXIT_OK && rc != AGENT_EXIT_INTERRUPTED &&
        rc != AGENT_EXIT_MISSING)
        agent_json_print_error();
    tear_down(r);
    return rc;
}

static const struct agent_option table[] = {
    OPT_TEXT("out", 'o', "DIR",
             "folder for summary.json, metrics.jsonl, checkpoint/, plots/ (default: out/JOB)",
             AT(out)),
    OPT_INT("local", 0, "N", "run the agents of all N clusters on this machine", AT(local), 1,
            AGENT_CLUSTERS_MAX),
    OPT_WAN("emulate a WAN between them: 100mbit:80ms:0.1% (DELAY is the round trip)", AT(wan)),
    OPT_SET("override a key of the job file; may be repeated", AT(sets)),
    OPT_CHECKED("steps", 0, "N", "inner steps of every cluster", AT(steps), is_steps,
                "a whole number from 1 to 1000000000000"),
    OPT_CHECKED("seed", 0, "S", "seed of initial parameters and data order", AT(seed), is_seed,
                "a whole number from 0 to 9000000000000000"),
    OPT_FLAG("resume", 0, "continue the run in --out", AT(resume)),
    OPT_FLAG("tensorboard", 0, "also write TensorBoard event files, in tensorboard/ of --out",
             AT(tensorboard)),
    OPT_TEXT("home", 0, "DIR", "home of the agent that gets the job (default ~/.nebula)",
             AT(common.home)),
    OPT_SEAL_KEY("with --local: key with which the agents seal files (nebula seal)"),
    OPT_INT("report-within", 0, "SECONDS",
            "after another cluster has ended, wait at most so long for the report of an "
            "unreachable cluster (default 600; exit status 4)",
            AT(report_within_s), 1, REPORT_WITHIN_MAX),
    OPT_JSON("one JSON object per line instead of the display"),
    OPT_END};

static const struct options preset = {.report_within_s = REPORT_WITHIN};

#define COMMAND                                                                                    \
    .options = table, .arguments = "JOB.yaml", .least = 1, .missing = "give a job file",           \
    .check = check, .size = sizeof(struct options), .preset = &preset, .run = run

const struct agent_command cmd_pretrain = {COMMAND, .name = "pretrain",
                                           .summary = "train one model on several clusters",
                                           .doc = "Trains one model on the job's clusters." EXITS};

const struct agent_command cmd_distill = {
    COMMAND, .name = "distill", .summary = "train students with a teacher on another cluster",
    .doc = "Trains students on their clusters with the labels of a teacher on another cluster: a "
           "job of mode distill (configs/distill-translate.yaml). nebula pretrain takes the same "
           "jobs and writes the same files to --out. checkpoint/model.ckpt is the student of the "
           "agent's cluster; with --local, the first student. A teacher's site has none: a warning "
           "says where the student is." EXITS};
