// SPDX-License-Identifier: Apache-2.0
#include "agent/show/trace.h"
#include "agent/base/array.h"
#include "agent/base/member_set.h"
#include "agent/base/plain.h"
#include "agent/job/json.h"
#include "agent/show/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Links of a cluster: one to each other cluster, and their sum.
enum { CLUSTERS_MAX = NEB_MEMBERS_MAX, LINKS_MAX = NEB_MEMBERS_MAX, NAME = 64 };
enum thread { TRAIN = 1, EXCHANGE, WAIT, CHECKPOINT };
static const char *const thread_names[] = {"", "train", "exchange", "wait", "checkpoint"};

// A merge at one cluster. Times in seconds of the run.
struct mark {
    int cluster;
    int64_t round, fragment, payload, step;
    double begun, sent, arrived, merge, merged, stall; // begun: to encode
    char codec[32];
};

struct link {
    char to[NAME]; // "": all links together
    double t, sent, recv;
};

struct cluster {
    char name[NAME];
    double t;     // of the last line of kind step
    int64_t step; // there
    struct link links[LINKS_MAX];
    int n_links;
};

struct trace {
    FILE *out;
    int64_t events;
    struct cluster clusters[CLUSTERS_MAX];
    int n;
    struct mark *marks; // owned
    size_t n_marks, cap;
    bool oom;
};

// NULL: a figure of another site is infinite, so there is no such event.
static void put(struct trace *t, json_t *event) {
    if (!event)
        return;
    fputs(t->events++ ? ",\n" : "", t->out);
    json_dumpf(event, t->out, JSON_COMPACT | JSON_REAL_PRECISION(15));
    json_decref(event);
}

static double us(double s) { return fmin(fmax(0, s), 1e9) * 1e6; }

// args: taken; NULL: none.
static void slice(struct trace *t, int cluster, enum thread thread, const char *name, double from,
                  double to, json_t *args) {
    if (to > from && isfinite(from))
        put(t, json_pack("{s:s,s:s,s:s,s:i,s:i,s:f,s:f,s:o*}", "ph", "X", "cat",
                         thread_names[thread], "name", name, "pid", cluster + 1, "tid", (int)thread,
                         "ts", us(from), "dur", us(to) - us(from), "args", args));
    else
        json_decref(args);
}

static void instant(struct trace *t, int cluster, const char *name, double at, const json_t *line) {
    put(t, json_pack("{s:s,s:s,s:s,s:s,s:i,s:i,s:f,s:O}", "ph", "i", "s", "p", "cat", "event",
                     "name", name, "pid", cluster + 1, "tid", TRAIN, "ts", us(at), "args", line));
}

static struct cluster *cluster_of(struct trace *t, const json_t *line) {
    char name[NAME];
    snprintf(name, sizeof name, "%s", agent_json_text(line, "cluster", ""));
    neb_plain(name, false);
    for (int i = 0; i < t->n; i++)
        if (!strcmp(t->clusters[i].name, name))
            return &t->clusters[i];
    if (!*name || t->n == CLUSTERS_MAX)
        return NULL;
    struct cluster *c = &t->clusters[t->n++];
    *c = (struct cluster){.t = NAN};
    memcpy(c->name, name, sizeof name);
    put(t, json_pack("{s:s,s:s,s:i,s:{s:s}}", "ph", "M", "name", "process_name", "pid", t->n,
                     "args", "name", name));
    for (int i = TRAIN; i <= CHECKPOINT; i++)
        put(t, json_pack("{s:s,s:s,s:i,s:i,s:{s:s}}", "ph", "M", "name", "thread_name", "pid", t->n,
                         "tid", i, "args", "name", thread_names[i]));
    return c;
}

static double field(const json_t *line, const char *key, double otherwise) {
    double x = agent_json_get(line, key);
    return isfinite(x) ? x : otherwise;
}

// A figure of another site may be no integer: 1e300 fits none.
static int64_t whole(const json_t *line, const char *key, int64_t otherwise) {
    const json_t *x = json_object_get(line, key);
    return json_is_integer(x) ? (int64_t)json_integer_value(x) : otherwise;
}

static void on_step(struct trace *t, struct cluster *c, double at, const json_t *line) {
    int64_t step = whole(line, "step", 0);
    char name[64];
    if (isfinite(c->t) && step > c->step) { // else the job was resumed from an earlier checkpoint
        snprintf(name, sizeof name, "steps %lld-%lld", (long long)c->step + 1, (long long)step);
        slice(t, (int)(c - t->clusters), TRAIN, name, c->t, at,
              json_pack("{s:o,s:o,s:o}", "loss", agent_json_number(agent_json_get(line, "loss")),
                        "tokens_per_s", agent_json_number(agent_json_get(line, "tokens_per_s")),
                        "stalled_s", agent_json_number(agent_json_get(line, "stalled_s"))));
    }
    c->t = at;
    c->step = step;
}

static void on_round(struct trace *t, const struct cluster *c, double at, const json_t *line) {
    struct mark *m = neb_array_more(t->marks, t->n_marks, &t->cap, 256, sizeof *m);
    if (!m) {
        t->oom = true;
        return;
    }
    t->marks = m;
    m = &t->marks[t->n_marks++];
    *m = (struct mark){.cluster = (int)(c - t->clusters),
                       .round = whole(line, "round", -1),
                       .fragment = whole(line, "fragment", 0),
                       .payload = whole(line, "payload_bytes", 0),
                       .step = whole(line, "step", 0),
                       .stall = field(line, "stall_s", 0),
                       .merged = at};
    m->merge = at - field(line, "apply_s", 0);
    m->arrived = m->merge - field(line, "held_s", 0);
    m->sent = m->arrived - field(line, "travel_s", 0);
    m->begun = m->sent - field(line, "encode_s", 0);
    snprintf(m->codec, sizeof m->codec, "%s", agent_json_text(line, "codec", ""));
    neb_plain(m->codec, false);
}

// ---- links --------------------------------------------------------------------------------------

static struct link *link_of(struct cluster *c, const char *to) {
    for (int i = 0; i < c->n_links; i++)
        if (!strcmp(c->links[i].to, to))
            return &c->links[i];
    if (c->n_links == LINKS_MAX)
        return NULL;
    struct link *l = &c->links[c->n_links++];
    *l = (struct link){.t = NAN};
    snprintf(l->to, sizeof l->to, "%s", to);
    return l;
}

// The rate since the last line of this link. A sum that falls has begun again.
static double rate(double now, double before, double seconds) {
    return now >= before && seconds > 0 ? (now - before) * 8 / seconds : 0;
}

static void count(struct trace *t, struct cluster *c, const char *to, double at, const json_t *o) {
    char name[NAME + 16];
    struct link *l = link_of(c, to);
    double sent = field(o, "sent_bytes", 0), recv = field(o, "recv_bytes", 0);
    if (!l)
        return;
    if (isfinite(l->t)) {
        snprintf(name, sizeof name, *to ? "link to %s" : "link%s", to);
        put(t, json_pack("{s:s,s:s,s:s,s:i,s:f,s:{s:f,s:f}}", "ph", "C", "cat", "link", "name",
                         name, "pid", (int)(c - t->clusters) + 1, "ts", us(l->t), "args",
                         "sent_bit_s", rate(sent, l->sent, at - l->t), "received_bit_s",
                         rate(recv, l->recv, at - l->t)));
        snprintf(name, sizeof name, *to ? "bytes to %s" : "bytes%s", to);
        put(t, json_pack("{s:s,s:s,s:s,s:i,s:f,s:{s:f,s:f}}", "ph", "C", "cat", "link", "name",
                         name, "pid", (int)(c - t->clusters) + 1, "ts", us(at), "args", "sent",
                         sent, "received", recv));
    }
    l->t = at;
    l->sent = sent;
    l->recv = recv;
}

static void on_link(struct trace *t, struct cluster *c, double at, const json_t *line) {
    const char *to;
    json_t *o;
    count(t, c, "", at, line);
    json_object_foreach(json_object_get(line, "links"), to, o) {
        char name[NAME];
        snprintf(name, sizeof name, "%s", to);
        neb_plain(name, false);
        if (*name)
            count(t, c, name, at, o);
    }
    put(t, json_pack("{s:s,s:s,s:s,s:i,s:f,s:{s:f}}", "ph", "C", "cat", "link", "name", "RTT ms",
                     "pid", (int)(c - t->clusters) + 1, "ts", us(at), "args", "rtt_ms",
                     field(line, "rtt_ms", 0)));
}

static void on_line(void *user, const json_t *line) {
    struct trace *t = user;
    const char *kind = agent_json_text(line, "kind", "");
    double at = agent_json_get(line, "t");
    struct cluster *c = isfinite(at) ? cluster_of(t, line) : NULL;
    if (!c)
        return;
    int i = (int)(c - t->clusters);
    if (!strcmp(kind, "step"))
        on_step(t, c, at, line);
    else if (!strcmp(kind, "round"))
        on_round(t, c, at, line);
    else if (!strcmp(kind, "link"))
        on_link(t, c, at, line);
    else if (!strcmp(kind, "checkpoint"))
        slice(t, i, CHECKPOINT, "write a checkpoint", at - field(line, "write_ms", 0) / 1e3, at,
              json_incref((json_t *)(uintptr_t)line));
    else if (!strcmp(kind, "note") || !strcmp(kind, "fault") || !strcmp(kind, "eval") ||
             !strcmp(kind, "tune") || !strcmp(kind, "labels"))
        instant(t, i, kind, at, line);
}

// ---- rounds -------------------------------------------------------------------------------------

static int by_round(const void *a, const void *b) {
    const struct mark *x = a, *y = b;
    return x->fragment != y->fragment ? (x->fragment < y->fragment ? -1 : 1)
           : x->round != y->round     ? (x->round < y->round ? -1 : 1)
           : x->merged != y->merged   ? (x->merged < y->merged ? -1 : 1)
                                      : 0;
}

// Training waited until the commit came. Until the last of the others had sent its update it waited
// for that cluster, then for the line.
static void put_wait(struct trace *t, const struct mark *m, const struct mark *of, size_t n) {
    const struct mark *last = NULL;
    char name[NAME + 64];
    double from = m->arrived - m->stall, until = m->arrived;
    for (size_t i = 0; i < n; i++)
        if (of[i].cluster != m->cluster && of[i].sent < m->arrived &&
            (!last || of[i].sent > last->sent))
            last = &of[i];
    if (!last) {
        slice(t, m->cluster, WAIT, "waits for the commit", from, until, NULL);
        return;
    }
    const char *whom = t->clusters[last->cluster].name;
    double sent = fmin(fmax(last->sent, from), until);
    snprintf(name, sizeof name, "waits for %s: it has not sent its update yet", whom);
    slice(t, m->cluster, WAIT, name, from, sent,
          json_pack("{s:s,s:I,s:I}", "for", whom, "round", (json_int_t)m->round, "fragment",
                    (json_int_t)m->fragment));
    snprintf(name, sizeof name, "waits for the line: updates and votes travel");
    slice(t, m->cluster, WAIT, name, sent, until,
          json_pack("{s:s,s:I,s:I}", "last", whom, "round", (json_int_t)m->round, "fragment",
                    (json_int_t)m->fragment));
}

static void put_flow(struct trace *t, const char *phase, const struct mark *m, int64_t id,
                     double at) {
    put(t, json_pack("{s:s,s:s,s:s,s:s,s:I,s:i,s:i,s:f}", "ph", phase, "bp", "e", "cat", "round",
                     "name", "update", "id", (json_int_t)id, "pid", m->cluster + 1, "tid", EXCHANGE,
                     "ts", us(at)));
}

static json_t *args_of(const struct mark *m) {
    return json_pack("{s:I,s:I,s:I,s:I,s:s}", "round", (json_int_t)m->round, "fragment",
                     (json_int_t)m->fragment, "step", (json_int_t)m->step, "payload_bytes",
                     (json_int_t)m->payload, "codec", m->codec);
}

static void put_mark(struct trace *t, const struct mark *m, const struct mark *of, size_t n,
                     int64_t *id) {
    char name[64], key[64];
    snprintf(name, sizeof name, "encode %lld.%lld", (long long)m->round, (long long)m->fragment);
    slice(t, m->cluster, EXCHANGE, name, m->begun, m->sent, args_of(m));
    snprintf(name, sizeof name, "merge %lld.%lld", (long long)m->round, (long long)m->fragment);
    slice(t, m->cluster, EXCHANGE, name, m->merge, m->merged, args_of(m));
    snprintf(name, sizeof name, "send %lld.%lld", (long long)m->round, (long long)m->fragment);
    snprintf(key, sizeof key, "%d.%lld.%lld", m->cluster, (long long)m->round,
             (long long)m->fragment);
    for (int end = 0; end < 2; end++) // on its way: such stretches may overlap
        put(t, json_pack("{s:s,s:s,s:s,s:s,s:i,s:i,s:f,s:o}", "ph", end ? "e" : "b", "cat", "send",
                         "name", name, "id", key, "pid", m->cluster + 1, "tid", EXCHANGE, "ts",
                         us(end ? m->arrived : m->sent), "args", args_of(m)));
    if (m->stall > 0)
        put_wait(t, m, of, n);
    for (size_t i = 0; i < n; i++) {
        if (of[i].cluster == m->cluster || of[i].merged < m->sent)
            continue;
        put_flow(t, "s", m, *id, (m->begun + m->sent) / 2); // inside the slices that it binds
        put_flow(t, "f", &of[i], (*id)++, (of[i].merge + of[i].merged) / 2);
    }
}

static void put_rounds(struct trace *t) {
    int64_t id = 1;
    if (t->n_marks)
        qsort(t->marks, t->n_marks, sizeof *t->marks, by_round);
    for (size_t i = 0, end; i < t->n_marks; i = end) {
        for (end = i; end < t->n_marks && t->marks[end].round == t->marks[i].round &&
                      t->marks[end].fragment == t->marks[i].fragment;)
            end++;
        for (size_t k = i; k < end; k++)
            put_mark(t, &t->marks[k], t->marks + i, end - i, &id);
    }
}

enum neb_status agent_trace_write(const char *metrics, const char *job, FILE *out,
                                  int64_t *events) {
    struct trace *t = calloc(1, sizeof *t);
    char name[256];
    if (!t)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a trace");
    t->out = out;
    snprintf(name, sizeof name, "%s", job);
    neb_plain(name, false);
    json_t *other = json_pack("{s:s,s:s}", "job", name, "program", "nebula");
    fputs("{\"displayTimeUnit\":\"ms\",\"otherData\":", out);
    json_dumpf(other, out, JSON_COMPACT);
    fputs(",\"traceEvents\":[\n", out);
    json_decref(other);
    enum neb_status st = agent_metrics_read(metrics, on_line, t, NULL);
    if (st == NEB_OK)
        put_rounds(t);
    fputs("\n]}\n", out);
    *events = t->events;
    if (st == NEB_OK && t->oom)
        st = neb_fail(NEB_ERR_NOMEM, "out of memory for a trace");
    free(t->marks);
    free(t);
    return st;
}
