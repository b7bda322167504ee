// nebula pretrain JOB.yaml: hands a job to the agents, shows how it goes, and leaves the contract's files behind.
//
//     out/  summary.json  metrics.jsonl  checkpoint/{model.ckpt, tokenizer.model}  plots/*.svg  job.json
//           clusters/NAME/…   homes of the agents, with --local
#include "agent/base/log.h"
#include "agent/commands.h"
#include "agent/distill_summary.h"
#include "agent/export.h"
#include "agent/ipc.h"
#include "agent/json.h"
#include "agent/local.h"
#include "agent/model_init.h"
#include "agent/planner.h"
#include "agent/plots.h"
#include "agent/progress.h"
#include "agent/report.h"
#include "agent/rtd_summary.h"
#include "agent/tensorboard.h"
#include "security/identity.h"

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

enum { SETS_MAX = 64, KEY_STEPS = 1000, KEY_SEED, KEY_LOCAL, KEY_WAN, KEY_RESUME, KEY_HOME, KEY_SEAL, KEY_TENSORBOARD };

struct options {
    const char *job, *out, *wan, *home, *steps, *seed;
    const char *sets[SETS_MAX];
    int n_sets, local;
    const char *seal_key;
    bool json, resume, tensorboard;
};

struct run {
    struct options o;
    struct agent_job job;
    json_t *spec, *quality;
    char id[2 * AGENT_JOB_ID_BYTES + 1];
    char out[NEB_PATH_MAX], socket[NEB_PATH_MAX], model_dir[NEB_PATH_MAX];
    struct agent_local local;
    void *zctx;
    struct agent_ipc *ipc;
    struct agent_progress *progress;
    struct agent_metrics *metrics;
    struct agent_tensorboard *tensorboard; // NULL: not asked for
    json_t *reports[AGENT_CLUSTERS_MAX];
    int expected; // reports
    neb_ns start;
    bool stop_sent;
    int lock_fd; // OUT/.lock: one command a folder; released by the system however this process ends
};

static volatile sig_atomic_t interrupted;
static void on_interrupt(int sig) { interrupted = sig; }

// ---- the job --------------------------------------------------------------------------------------------------

// Trainers that attach may read what they like.
static bool needs_corpus(const struct agent_job *job) {
    for (int i = 0; i < job->n_clusters; i++)
        if (!job->clusters[i].witness && job->clusters[i].launcher != AGENT_LAUNCHER_ATTACH)
            return true;
    return neb_fs_exists(job->corpus);
}

// The agents that read the job work in other folders.
static enum neb_status make_absolute(struct agent_job *j) {
    if (needs_corpus(j))
        NEB_TRY(neb_path_absolute(j->corpus, sizeof j->corpus, "data.corpus"));
    if (j->init_from[0])
        NEB_TRY(neb_path_absolute(j->init_from, sizeof j->init_from, "init_from"));
    if (j->mode != AGENT_MODE_DISTILL)
        return NEB_OK;
    if (j->distill.teacher[0])
        NEB_TRY(neb_path_absolute(j->distill.teacher, sizeof j->distill.teacher, "distill.teacher.init"));
    if (!j->distill.cache[0])
        return NEB_OK;
    NEB_TRY(neb_fs_mkdirs(j->distill.cache, 0755));
    return neb_path_absolute(j->distill.cache, sizeof j->distill.cache, "distill.cache");
}

static enum neb_status load_job(struct run *r) {
    char assignment[128];
    NEB_TRY(agent_job_load(r->o.job, &r->job));
    for (int i = 0; i < r->o.n_sets; i++)
        NEB_TRY(agent_job_set(&r->job, r->o.sets[i]));
    if (r->o.steps) {
        snprintf(assignment, sizeof assignment, "steps=%.100s", r->o.steps);
        NEB_TRY(agent_job_set(&r->job, assignment));
    }
    if (r->o.seed) {
        snprintf(assignment, sizeof assignment, "seed=%.100s", r->o.seed);
        NEB_TRY(agent_job_set(&r->job, assignment));
    }
    NEB_TRY(agent_job_model_init(&r->job, r->o.job));
    NEB_TRY(agent_job_validate(&r->job, r->o.job));
    NEB_TRY(make_absolute(&r->job));
    bool reference = r->job.sync.scheme == AGENT_SCHEME_SYNCHRONOUS;
    if (r->o.local && r->o.local != r->job.n_clusters)
        return neb_fail(NEB_ERR_INVALID, "--local %d, but the job has %d clusters", r->o.local,
                        r->job.n_clusters);
    if (reference)
        r->o.local = r->o.local ? 1 : 0;
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    for (int i = 0; r->o.local && i < r->job.n_clusters; i++)
        if (!r->job.clusters[i].threads)
            r->job.clusters[i].threads = cpus / r->o.local > 0 ? (int32_t)(cpus / r->o.local) : 1;
    if (reference && r->o.local) // it has the machine to itself
        r->job.clusters[0].threads = (int32_t)cpus;
    NEB_TRY(agent_planner_resolve(&r->job, r->o.local, r->o.wan));
    r->expected = 0; // reports: of the clusters that train, which come first
    for (int i = 0; i < r->job.n_clusters; i++)
        r->expected += !r->job.clusters[i].witness;
    r->expected = reference ? 1 : r->expected;
    r->spec = agent_job_to_json(&r->job);
    return r->spec ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory");
}

static const char *first_difference(const json_t *a, const json_t *b) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)a, key,
                        v) if (!json_equal(v, json_object_get(b, key))) return key;
    return "?";
}

// job.json keeps id and specification: --resume must mean the same job.
static enum neb_status open_out(struct run *r) {
    char path[NEB_PATH_MAX];
    uint8_t id[AGENT_JOB_ID_BYTES];
    enum neb_status st = NEB_OK;
    NEB_TRY(neb_fs_mkdirs(r->o.out, 0755));
    snprintf(r->out, sizeof r->out, "%s", r->o.out);
    NEB_TRY(neb_path_absolute(r->out, sizeof r->out, "--out"));
    NEB_TRY(neb_path(path, sizeof path, r->out, ".lock"));
    r->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (r->lock_fd < 0)
        return neb_fail_errno("cannot create %s", path);
    if (flock(r->lock_fd, LOCK_EX | LOCK_NB) != 0)
        return neb_fail(NEB_ERR_EXISTS,
                        "another nebula works in %s; wait for it, or choose another --out",
                        r->o.out);
    NEB_TRY(neb_path(path, sizeof path, r->out, "job.json"));
    if (neb_fs_exists(path)) {
        if (!r->o.resume)
            return neb_fail(
                NEB_ERR_EXISTS,
                "%s holds a run already; --resume continues it, or choose another --out", r->o.out);
        json_t *was = json_load_file(path, 0, NULL);
        const char *hex = json_string_value(json_object_get(was, "id"));
        if (!hex || !neb_unhex(hex, id, sizeof id))
            st = neb_fail(NEB_ERR_FORMAT, "%s is damaged", path);
        else if (!json_equal(json_object_get(was, "spec"), r->spec))
            st = neb_fail(
                NEB_ERR_INVALID,
                "%s was begun with another job: %s differs; resume with the same file and options",
                r->o.out, first_difference(r->spec, json_object_get(was, "spec")));
        else
            memcpy(r->id, hex, sizeof r->id);
        json_decref(was);
        return st;
    }
    if (r->o.resume)
        return neb_fail(NEB_ERR_NOT_FOUND, "--resume: %s holds no run", r->o.out);
    if (getrandom(id, sizeof id, 0) != sizeof id)
        return neb_fail_errno("cannot draw a job id");
    neb_hex(id, sizeof id, r->id);
    json_t *root = json_pack("{s:s,s:O}", "id", r->id, "spec", r->spec);
    char *text = json_dumps(root, JSON_INDENT(1));
    st = text ? neb_fs_write(path, text, strlen(text), 0644)
              : neb_fail(NEB_ERR_NOMEM, "out of memory");
    free(text);
    json_decref(root);
    return st;
}

// ---- following it ---------------------------------------------------------------------------------------------

static int cluster_index(const struct run *r, const char *name) {
    for (int i = 0; name && i < r->job.n_clusters; i++)
        if (!strcmp(r->job.clusters[i].name, name))
            return i;
    return -1;
}

static enum neb_status on_line(struct run *r, json_t *line) {
    int i = cluster_index(r, json_string_value(json_object_get(line, "cluster")));
    const char *kind = json_string_value(json_object_get(line, "kind"));
    char text[256];
    if (i < 0 || i >= r->expected || !kind)
        return NEB_OK; // witnesses have nothing to tell
    NEB_TRY(agent_metrics_add(r->metrics, neb_now(), json_incref(line)));
    agent_progress_metrics(r->progress, i, line);
    agent_tensorboard_line(r->tensorboard, i, line, neb_wall_now());
    if (!strcmp(kind, "fault")) {
        const char *what = json_string_value(json_object_get(line, "text"));
        snprintf(text, sizeof text, "%s: %s", r->job.clusters[i].name, what ? what : "fault");
        agent_progress_note(r->progress, text);
    }
    return NEB_OK;
}

static enum neb_status on_event(struct run *r, struct agent_ipc_msg *m) {
    const char *ev = agent_ipc_str(m, "ev", "");
    enum neb_status st = NEB_OK;
    if (!strcmp(ev, "line")) {
        st = on_line(r, json_object_get(m->head, "line"));
    } else if (!strcmp(ev, "report")) {
        json_t *report = json_object_get(m->head, "report");
        int i = cluster_index(r, json_string_value(json_object_get(report, "name")));
        if (i >= 0 && !r->reports[i]) {
            r->reports[i] = json_incref(report);
            agent_tensorboard_report(r->tensorboard, i, report, neb_wall_now());
        }
    }
    agent_ipc_msg_clear(m);
    return st;
}

static int reports_in(const struct run *r) {
    int n = 0;
    for (int i = 0; i < r->expected; i++)
        n += r->reports[i] != NULL;
    return n;
}

// An error that the others cannot go on behind; one that was refused a join leaves them as they were.
static bool must_stop(const struct run *r) {
    for (int i = 0; i < r->expected; i++)
        if (json_is_string(json_object_get(r->reports[i], "error")) &&
            !json_is_true(json_object_get(r->reports[i], "refused")))
            return true;
    return false;
}

static enum neb_status say_stop(struct run *r) {
    return agent_ipc_send(r->ipc, NULL, json_pack("{s:s,s:s}", "op", "stop", "job", r->id), NULL,
                          0);
}

static enum neb_status send_stop(struct run *r, const char *why) {
    if (r->stop_sent)
        return NEB_OK;
    r->stop_sent = true;
    agent_progress_note(r->progress, why);
    return say_stop(r);
}

// An agent that was killed is started again, as a service manager would; the one we follow is asked anew.
static enum neb_status tend_agents(struct run *r) {
    int again = -1;
    char text[128];
    NEB_TRY(agent_local_tend(&r->local, &again));
    if (again < 0)
        return NEB_OK;
    snprintf(text, sizeof text, "agent %s was killed; started again", r->job.clusters[again].name);
    agent_progress_note(r->progress, text);
    if (again == 0)
        NEB_TRY(agent_ipc_send(r->ipc, NULL,
                               json_pack("{s:s,s:s,s:O}", "op", "submit", "id", r->id, "spec",
                                         r->spec),
                               NULL, 0));
    return r->stop_sent ? say_stop(r) : NEB_OK; // it may not have heard it, and asked again it does no more
}

static enum neb_status follow(struct run *r) {
    struct agent_ipc_msg m;
    neb_ns give_up = 0;
    while (reports_in(r) < r->expected) {
        enum neb_status st = agent_ipc_wait(r->ipc, 200 * NEB_MS, &m);
        if (st == NEB_OK)
            NEB_TRY(on_event(r, &m));
        else if (st != NEB_ERR_TIMEOUT && st != NEB_ERR_INTERRUPTED)
            return st;
        if (interrupted)
            NEB_TRY(send_stop(r, "stopping after a checkpoint; --resume continues"));
        if (must_stop(r) && !r->stop_sent) // the others would wait for it
            NEB_TRY(send_stop(r, "one cluster failed; stopping the others"));
        if (r->stop_sent && !give_up)
            give_up = neb_now() + 60 * NEB_S;
        if (give_up && neb_now() > give_up)
            return neb_fail(
                NEB_ERR_TIMEOUT,
                "not all clusters reported within 60 s of the stop; their agents' logs say more");
        if (r->o.local)
            NEB_TRY(tend_agents(r));
        agent_progress_draw(r->progress, neb_now(), false);
    }
    agent_progress_draw(r->progress, neb_now(), true);
    return NEB_OK;
}

static enum neb_status submit(struct run *r) {
    struct agent_ipc_msg m;
    if (!(r->zctx = zmq_ctx_new()))
        return neb_fail(NEB_ERR_NOMEM, "cannot create a ZeroMQ context");
    if (!neb_fs_exists(r->socket))
        return neb_fail(NEB_ERR_NOT_FOUND,
                        "no agent at %s; start one with nebula agent, or use --local %d", r->socket,
                        r->job.n_clusters);
    NEB_TRY(agent_ipc_connect(r->zctx, r->socket, &r->ipc));
    NEB_TRY(agent_ipc_send(r->ipc, NULL,
                           json_pack("{s:s,s:s,s:O}", "op", "submit", "id", r->id, "spec", r->spec),
                           NULL, 0));
    for (neb_ns end = neb_now() + 15 * NEB_S; neb_now() < end;) {
        enum neb_status st = agent_ipc_wait(r->ipc, NEB_S, &m);
        if (st == NEB_ERR_TIMEOUT || st == NEB_ERR_INTERRUPTED)
            continue;
        NEB_TRY(st);
        if (strcmp(agent_ipc_str(&m, "ev", ""), "answer")) {
            NEB_TRY(on_event(r, &m));
            continue;
        }
        bool ok = json_is_true(json_object_get(m.head, "ok"));
        if (!ok)
            st = neb_fail(NEB_ERR_INVALID, "the agent refuses the job: %s",
                          agent_ipc_str(&m, "text", "?"));
        agent_ipc_msg_clear(&m);
        return st;
    }
    return neb_fail(NEB_ERR_TIMEOUT, "the agent at %s does not answer", r->socket);
}

// ---- the end --------------------------------------------------------------------------------------------------

// A count in another site's report: what is no number, or absurd, is 0. (A NaN cast to an integer is undefined.)
static uint64_t whole(const json_t *o, const char *key) {
    double x = agent_json_get(o, key);
    return x >= 0 && x < 0x1p62 ? (uint64_t)x : 0;
}

static void make_summary(const struct run *r, struct agent_summary *s) {
    memset(s, 0, sizeof *s);
    snprintf(s->job, sizeof s->job, "%s", r->job.name);
    bool distill = r->job.mode == AGENT_MODE_DISTILL;
    bool rtd = r->job.mode == AGENT_MODE_RTD, both = rtd && r->job.sync.scheme == AGENT_SCHEME_SYNCHRONOUS;
    snprintf(s->mode, sizeof s->mode, rtd ? "rtd" : distill ? "distill" : "replicas");
    s->wall_s = neb_seconds(neb_now() - r->start);
    s->n_clusters = both ? 2 : r->expected;
    for (int i = 0; i < s->n_clusters; i++) {
        const json_t *p = both ? agent_rtd_report_of(&r->job, r->reports, r->job.clusters[i].role) : r->reports[i];
        struct agent_cluster_summary *c = &s->clusters[i];
        const char *digest = json_string_value(json_object_get(p, "params_digest"));
        snprintf(c->name, sizeof c->name, "%s", r->job.clusters[i].name);
        const char *device = json_string_value(json_object_get(p, "device"));
        if (device && !strncmp(device, "cuda", 4))
            snprintf(c->device, sizeof c->device, "%s", device);
        else
            snprintf(c->device, sizeof c->device, "cpu (%s, %d threads)", kern_cpu_isa(),
                     (int)(whole(p, "threads") & 0xffff));
        if (r->job.clusters[i].launcher == AGENT_LAUNCHER_ATTACH)
            snprintf(c->device, sizeof c->device, "attached trainer");
        c->steps = (int64_t)whole(p, "steps");
        c->tokens = (int64_t)whole(p, "tokens");
        c->loss_first = agent_json_get(p, "loss_first");
        c->loss_last = agent_json_get(p, "loss_last");
        c->eval_loss = agent_json_get(p, "eval_loss");
        c->stall_s = agent_json_get(p, "stall_s");
        c->train_s = agent_json_get(p, "train_s");
        c->lost_steps = (int64_t)whole(p, "lost_steps");
        c->divergences = (int64_t)whole(p, "divergences");
        c->wan_sent_bytes = whole(p, "wan_sent_bytes");
        c->wan_recv_bytes = whole(p, "wan_recv_bytes");
        c->wan_payload_bytes = whole(p, "wan_payload_bytes");
        c->wan_protocol_bytes = whole(p, "wan_protocol_bytes");
        snprintf(c->params_digest, sizeof c->params_digest, "%s", digest ? digest : "");
        s->params = (int64_t)whole(p, "params");
        s->trainable_params = (int64_t)whole(p, "trainable_params");
        s->rounds =
            (int64_t)whole(p, "rounds") > s->rounds ? (int64_t)whole(p, "rounds") : s->rounds;
        s->payload_bytes += whole(p, "payload_bytes");
        s->payload_params += whole(p, "payload_params");
    }
}

// The job's folders in the agents' homes, as far as they are here.
static enum neb_status job_dirs(const struct run *r, char (*dirs)[NEB_PATH_MAX]) {
    char jobs[NEB_PATH_MAX];
    memcpy(dirs[0], r->model_dir, sizeof dirs[0]); // of the agent that was asked
    for (int i = 0; r->o.local && i < r->expected; i++) {
        NEB_TRY(neb_path(jobs, sizeof jobs, r->local.homes[i], "jobs"));
        NEB_TRY(neb_path(dirs[i], sizeof dirs[i], jobs, r->id));
    }
    return NEB_OK;
}

static enum neb_status export_models(const struct run *r) {
    char dirs[AGENT_CLUSTERS_MAX][NEB_PATH_MAX] = {{0}};
    NEB_TRY(job_dirs(r, dirs));
    return agent_export_models(&r->job, dirs, r->out);
}

static int finish(struct run *r) {
    struct agent_summary s;
    int failed = 0, stopped = 0;
    for (int i = 0; i < r->expected; i++) {
        const char *error = json_string_value(json_object_get(r->reports[i], "error"));
        if (error)
            neb_log(NEB_LOG_ERROR, "cluster %s: %s", r->job.clusters[i].name, error);
        failed += error != NULL;
        stopped += json_is_true(json_object_get(r->reports[i], "stopped"));
    }
    if (failed)
        return AGENT_EXIT_FAILED;
    make_summary(r, &s);
    if (r->job.mode == AGENT_MODE_RTD)
        s.quality = r->quality = agent_rtd_summary(&r->job, r->reports);
    if (r->job.mode == AGENT_MODE_DISTILL)
        s.quality = r->quality = agent_distill_summary(&r->job, r->reports, r->expected);
    if (agent_summary_write(&s, r->out) != NEB_OK || agent_plots_make(r->out) != NEB_OK)
        return AGENT_EXIT_FAILED;
    if (!r->o.json)
        agent_summary_print(&s, stdout);
    if (!r->o.json && s.quality && !stopped)
        r->job.mode == AGENT_MODE_RTD ? agent_rtd_print(s.quality, stdout)
                                      : agent_distill_print(s.quality, stdout);
    if (stopped) {
        if (!r->o.json)
            printf("stopped after a checkpoint; continue with --resume --out %s\n", r->o.out);
        return AGENT_EXIT_INTERRUPTED;
    }
    bool same = true;
    for (int i = 1; i < r->expected && r->job.mode == AGENT_MODE_REPLICAS &&
                    r->job.sync.scheme == AGENT_SCHEME_FEDERATED;
         i++)
        same = same && !strcmp(s.clusters[i].params_digest, s.clusters[0].params_digest);
    if (!same) {
        neb_log(NEB_LOG_ERROR, "the clusters' parameters differ at the end (digests above): the "
                               "result cannot be trusted");
        return AGENT_EXIT_FAILED;
    }
    return agent_exit_of(export_models(r));
}

static enum neb_status set_up(struct run *r) {
    char path[NEB_PATH_MAX], home[NEB_PATH_MAX], jobs[NEB_PATH_MAX];
    NEB_TRY(load_job(r));
    NEB_TRY(open_out(r));
    NEB_TRY(neb_path(path, sizeof path, r->out, "metrics.jsonl"));
    r->start = neb_now();
    NEB_TRY(agent_metrics_open(path, r->o.resume, r->start, &r->metrics));
    if (r->o.tensorboard)
        NEB_TRY(agent_tensorboard_create(r->out, &r->job, r->expected, r->o.resume, &r->tensorboard));
    enum agent_progress_kind kind = r->o.json               ? AGENT_PROGRESS_JSON
                                    : isatty(STDOUT_FILENO) ? AGENT_PROGRESS_TERMINAL
                                                            : AGENT_PROGRESS_PLAIN;
    NEB_TRY(agent_progress_create(kind, stdout, r->expected, r->job.steps, r->start, &r->progress));
    for (int i = 0; i < r->expected; i++)
        snprintf(agent_progress_sample(r->progress, i)->name,
                 sizeof agent_progress_sample(r->progress, i)->name, "%s", r->job.clusters[i].name);
    if (r->o.local) {
        NEB_TRY(agent_local_start(&r->job, r->o.local, r->out, r->o.wan, r->o.seal_key, &r->local));
        snprintf(home, sizeof home, "%s", r->local.homes[0]);
    } else {
        NEB_TRY(sec_home(r->o.home, home, sizeof home));
    }
    NEB_TRY(neb_path(r->socket, sizeof r->socket, home, "agent.sock"));
    NEB_TRY(neb_path(jobs, sizeof jobs, home, "jobs"));
    NEB_TRY(neb_path(r->model_dir, sizeof r->model_dir, jobs, r->id));
    return submit(r);
}

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    struct options *o = state->input;
    char *end = NULL;
    switch (key) {
    case 'o': o->out = arg; return 0;
    case 'j': o->json = true; return 0;
    case KEY_STEPS: o->steps = arg; return 0;
    case KEY_SEED: o->seed = arg; return 0;
    case KEY_WAN: o->wan = arg; return 0;
    case KEY_HOME: o->home = arg; return 0;
    case KEY_SEAL: o->seal_key = arg; return 0;
    case KEY_RESUME: o->resume = true; return 0;
    case KEY_TENSORBOARD: o->tensorboard = true; return 0;
    case KEY_LOCAL:
        o->local = (int)strtol(arg, &end, 10);
        if (!*arg || *end || o->local < 1 || o->local > AGENT_CLUSTERS_MAX)
            argp_error(state, "--local takes a number of clusters, 1 to %d", AGENT_CLUSTERS_MAX);
        return 0;
    case 's':
        if (o->n_sets == SETS_MAX)
            argp_error(state, "at most %d --set", SETS_MAX);
        o->sets[o->n_sets++] = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num)
            argp_usage(state);
        o->job = arg;
        return 0;
    case ARGP_KEY_END:
        if (!o->job || !o->out)
            argp_error(state, "give a job file and --out DIR");
        if (o->wan && !o->local)
            argp_error(state,
                       "--wan needs --local: it emulates the network between local clusters");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static void tear_down(struct run *r) {
    if (r->o.local)
        agent_local_stop(&r->local);
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
    free(r);
}

int cmd_distill(int argc, char **argv) { return cmd_pretrain(argc, argv); }

int cmd_pretrain(int argc, char **argv) {
    static const struct argp_option table[] = {
        {"out", 'o', "DIR", 0, "folder for summary.json, metrics.jsonl, checkpoint/, plots/", 0},
        {"local", KEY_LOCAL, "N", 0, "run the N clusters' agents on this machine", 0},
        {"wan", KEY_WAN, "RATE:DELAY[:LOSS]", 0,
         "emulate a WAN between them: 100mbit:80ms:0.1% (DELAY is the round trip)", 0},
        {"set", 's', "PATH=VALUE", 0, "override a key of the job file; may be repeated", 0},
        {"steps", KEY_STEPS, "N", 0, "inner steps of every cluster", 0},
        {"seed", KEY_SEED, "S", 0, "of initial parameters and data order", 0},
        {"resume", KEY_RESUME, NULL, 0, "continue the run in --out", 0},
        {"tensorboard", KEY_TENSORBOARD, NULL, 0, "TensorBoard event files too, in tensorboard/ of --out", 0},
        {"home", KEY_HOME, "DIR", 0, "of the agent to submit to (default ~/.nebula)", 0},
        {"seal-key", KEY_SEAL, "FILE", 0, "with --local: the agents seal what they write with it (nebula seal)", 0},
        {"json", 'j', NULL, 0, "one JSON object a line instead of the display", 0},
        {0}};
    static const struct argp argp = {table,
                                     parse_option,
                                     "JOB.yaml",
                                     "Trains one model on the job's clusters.\vExit status: 0 "
                                     "done, 1 failed, 2 usage, 3 stopped after a "
                                     "checkpoint (Ctrl-C; continue with --resume).",
                                     NULL,
                                     NULL,
                                     NULL};
    struct run *r = calloc(1, sizeof *r);
    if (!r)
        return AGENT_EXIT_FAILED;
    if (argp_parse(&argp, argc, argv, 0, NULL, &r->o) != 0) {
        free(r);
        return AGENT_EXIT_USAGE;
    }
    struct sigaction sa = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    enum neb_status st = set_up(r);
    int rc = st == NEB_ERR_INVALID || st == NEB_ERR_FORMAT ? AGENT_EXIT_USAGE : AGENT_EXIT_FAILED;
    if (st == NEB_OK && follow(r) == NEB_OK)
        rc = finish(r);
    tear_down(r);
    return rc;
}
