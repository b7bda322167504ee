#include "agent/view.h"
#include "agent/base/log.h"
#include "agent/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PEERS = 64, CODEC = 40 };

struct point {
    double t;
    double loss, tokens_per_s, goodput_bps;
    double step, sent_bytes, recv_bytes;
    int interval, codec; // codec: index into the cluster's names, -1: none yet
};

enum { CODECS = 8 };

struct course { // of one cluster of one job
    char name[AGENT_NAME_MAX + 1];
    struct point last, *points; // points: owned, AGENT_VIEW_POINTS
    int n;
    double spacing_s, stall_s, train_s;
    int64_t round;
    char codecs[CODECS][CODEC];
    int n_codecs;
};

struct job_view {
    char id[2 * AGENT_JOB_ID_BYTES + 1];
    struct course c[AGENT_CLUSTERS_MAX];
    int n;
    uint64_t used; // order of use: the oldest makes room
};

struct event {
    double t;
    char job[2 * AGENT_JOB_ID_BYTES + 1], cluster[AGENT_NAME_MAX + 1], text[160];
};

struct counter {
    uint64_t sent, recv;
    neb_ns at;
    struct agent_view_rate rate;
};

struct agent_view {
    struct job_view jobs[AGENT_VIEW_JOBS];
    uint64_t uses;
    struct event events[AGENT_VIEW_EVENTS];
    uint64_t n_events; // ever; the ring holds the last ones
    struct counter peers[PEERS];
};

enum neb_status agent_view_create(struct agent_view **out) {
    *out = calloc(1, sizeof **out);
    return *out ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory for the status page");
}

static void clear_job(struct job_view *j) {
    for (int i = 0; i < j->n; i++)
        free(j->c[i].points);
    *j = (struct job_view){0};
}

void agent_view_destroy(struct agent_view **v) {
    for (int i = 0; *v && i < AGENT_VIEW_JOBS; i++)
        clear_job(&(*v)->jobs[i]);
    free(*v);
    *v = NULL;
}

static struct job_view *find_job(const struct agent_view *v, const char *id) {
    for (int i = 0; i < AGENT_VIEW_JOBS; i++)
        if (v->jobs[i].id[0] && !strcmp(v->jobs[i].id, id))
            return (struct job_view *)&v->jobs[i];
    return NULL;
}

static struct job_view *job_of(struct agent_view *v, const char *id) {
    struct job_view *j = find_job(v, id);
    for (int i = 0; i < AGENT_VIEW_JOBS && !(j && !strcmp(j->id, id)); i++)
        if (!j || v->jobs[i].used < j->used)
            j = &v->jobs[i];
    if (strcmp(j->id, id)) {
        clear_job(j);
        snprintf(j->id, sizeof j->id, "%s", id);
    }
    j->used = ++v->uses;
    return j;
}

static struct course *course_of(struct job_view *j, const char *name) {
    for (int i = 0; i < j->n; i++)
        if (!strcmp(j->c[i].name, name))
            return &j->c[i];
    if (j->n == AGENT_CLUSTERS_MAX)
        return NULL;
    struct course *c = &j->c[j->n];
    *c = (struct course){.round = -1, .last = {.loss = NAN, .codec = -1}};
    c->points = calloc(AGENT_VIEW_POINTS, sizeof *c->points);
    if (!c->points)
        return NULL;
    snprintf(c->name, sizeof c->name, "%s", name);
    j->n++;
    return c;
}

static void keep(struct course *c) {
    if (c->n && c->last.t - c->points[c->n - 1].t < c->spacing_s)
        return;
    if (c->n == AGENT_VIEW_POINTS) {
        c->n /= 2;
        for (int i = 1; i < c->n; i++)
            c->points[i] = c->points[2 * i];
        double span = c->last.t - c->points[0].t;
        c->spacing_s = 2 * span / AGENT_VIEW_POINTS;
    }
    c->points[c->n++] = c->last;
}

static void number(const json_t *line, const char *key, double *out) {
    const json_t *x = json_object_get(line, key);
    if (json_is_number(x) && isfinite(json_number_value(x)))
        *out = json_number_value(x);
}

static int codec_index(struct course *c, const char *name) {
    for (int i = 0; i < c->n_codecs; i++)
        if (!strcmp(c->codecs[i], name))
            return i;
    if (c->n_codecs == CODECS)
        return c->last.codec;
    snprintf(c->codecs[c->n_codecs], CODEC, "%s", name);
    return c->n_codecs++;
}

void agent_view_line(struct agent_view *v, const char *job, int interval, const json_t *line,
                     double unix_s) {
    const char *kind = json_string_value(json_object_get(line, "kind")),
               *name = json_string_value(json_object_get(line, "cluster")),
               *text = json_string_value(json_object_get(line, "text")),
               *codec = json_string_value(json_object_get(line, "codec"));
    if (!kind || !name)
        return;
    if (!strcmp(kind, "fault")) {
        agent_view_event(v, job, name, text ? text : "fault", unix_s);
        return;
    }
    if (strcmp(kind, "step") && strcmp(kind, "round") && strcmp(kind, "link"))
        return;
    struct course *c = course_of(job_of(v, job), name);
    if (!c)
        return;
    double round = (double)c->round, h = interval;
    c->last.t = unix_s;
    number(line, "loss", &c->last.loss);
    number(line, "tokens_per_s", &c->last.tokens_per_s);
    number(line, "goodput_bps", &c->last.goodput_bps);
    number(line, "step", &c->last.step);
    number(line, "sent_bytes", &c->last.sent_bytes);
    number(line, "recv_bytes", &c->last.recv_bytes);
    number(line, "stall_s", &c->stall_s);
    number(line, "train_s", &c->train_s);
    number(line, "round", &round);
    number(line, "interval", &h);
    c->round = fabs(round) < 1e15 ? (int64_t)round : c->round;
    c->last.interval = fabs(h) < 1e9 ? (int)h : c->last.interval;
    if (codec)
        c->last.codec = codec_index(c, codec);
    keep(c);
}

void agent_view_event(struct agent_view *v, const char *job, const char *cluster, const char *text,
                      double unix_s) {
    struct event *e = &v->events[v->n_events++ % AGENT_VIEW_EVENTS];
    e->t = unix_s;
    snprintf(e->job, sizeof e->job, "%s", job ? job : "");
    snprintf(e->cluster, sizeof e->cluster, "%s", cluster ? cluster : "");
    snprintf(e->text, sizeof e->text, "%s", text);
}

struct agent_view_rate agent_view_rate(struct agent_view *v, uint32_t peer, uint64_t sent,
                                       uint64_t recv, neb_ns now) {
    if (peer >= PEERS)
        return (struct agent_view_rate){0};
    struct counter *c = &v->peers[peer];
    if (!c->at || sent < c->sent || recv < c->recv) { // the first look, or new counters
        *c = (struct counter){.sent = sent, .recv = recv, .at = now};
        return c->rate;
    }
    double s = neb_seconds(now - c->at);
    if (s < 0.5)
        return c->rate;
    c->rate = (struct agent_view_rate){(double)(sent - c->sent) * 8 / s,
                                       (double)(recv - c->recv) * 8 / s};
    c->sent = sent;
    c->recv = recv;
    c->at = now;
    return c->rate;
}

static json_t *codec_or_null(const struct course *c, int i) {
    return i < 0 ? json_null() : json_string(c->codecs[i]);
}

json_t *agent_view_clusters(const struct agent_view *v, const char *job, double unix_s) {
    json_t *list = json_array();
    const struct job_view *j = find_job(v, job);
    for (int i = 0; j && i < j->n; i++) {
        const struct course *c = &j->c[i];
        json_array_append_new(
            list,
            json_pack("{s:s,s:I,s:o,s:f,s:f,s:f,s:I,s:o,s:i,s:I,s:I,s:f,s:f}", "name", c->name,
                      "step", (json_int_t)c->last.step, "loss", agent_json_number(c->last.loss),
                      "tokens_per_s", c->last.tokens_per_s, "stall_s", c->stall_s, "train_s",
                      c->train_s, "round", (json_int_t)c->round, "codec",
                      codec_or_null(c, c->last.codec), "interval", c->last.interval, "sent_bytes",
                      (json_int_t)c->last.sent_bytes, "recv_bytes", (json_int_t)c->last.recv_bytes,
                      "goodput_bps", c->last.goodput_bps, "age_s", unix_s - c->last.t));
    }
    return list;
}

json_t *agent_view_events(const struct agent_view *v) {
    json_t *list = json_array();
    uint64_t first = v->n_events > AGENT_VIEW_EVENTS ? v->n_events - AGENT_VIEW_EVENTS : 0;
    for (uint64_t i = first; i < v->n_events; i++) {
        const struct event *e = &v->events[i % AGENT_VIEW_EVENTS];
        json_array_append_new(list, json_pack("{s:f,s:s,s:s,s:s}", "t", e->t, "job", e->job,
                                              "cluster", e->cluster, "text", e->text));
    }
    return list;
}

static json_t *columns(const struct course *c) {
    static const char *const names[] = {"t",           "step",       "loss",       "tokens_per_s",
                                        "goodput_bps", "sent_bytes", "recv_bytes", "interval"};
    enum { N = sizeof names / sizeof names[0] };
    json_t *o = json_pack("{s:s}", "name", c->name), *cols[N], *codec = json_array();
    for (int k = 0; k < N; k++)
        json_object_set_new(o, names[k], cols[k] = json_array());
    for (int i = 0; i < c->n; i++) {
        const struct point *p = &c->points[i];
        const double x[N] = {p->t,           p->step,       p->loss,       p->tokens_per_s,
                             p->goodput_bps, p->sent_bytes, p->recv_bytes, p->interval};
        for (int k = 0; k < N; k++)
            json_array_append_new(cols[k], agent_json_number(x[k]));
        json_array_append_new(codec, codec_or_null(c, p->codec));
    }
    json_object_set_new(o, "codec", codec);
    return o;
}

json_t *agent_view_history(const struct agent_view *v) {
    json_t *jobs = json_array();
    for (int i = 0; i < AGENT_VIEW_JOBS; i++) {
        const struct job_view *j = &v->jobs[i];
        if (!j->id[0])
            continue;
        json_t *clusters = json_array();
        for (int k = 0; k < j->n; k++)
            json_array_append_new(clusters, columns(&j->c[k]));
        json_array_append_new(jobs, json_pack("{s:s,s:o}", "id", j->id, "clusters", clusters));
    }
    return json_pack("{s:i,s:o,s:o}", "version", 1, "jobs", jobs, "events", agent_view_events(v));
}
