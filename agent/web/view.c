// SPDX-License-Identifier: Apache-2.0
#include "agent/web/view.h"
#include "agent/base/bytes.h"
#include "agent/base/log.h"
#include "agent/job/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PEERS = 64, CODEC = 40, DEVICE = 96, ROUNDS = 24 };

// A merge of one cluster: round, fragment; times of day: begins to encode, has sent its update, has
// the commit, begins to merge, has merged; seconds that training waited.
enum { ROUND_WORDS = 8 };

struct point {
    double t, at; // t: time of day; at: a clock that nobody sets
    double loss, eval_loss, tokens_per_s, goodput_bps;
    double step, sent_bytes, recv_bytes;
    int interval, codec; // codec: index into codecs; -1: none yet
};

// A sum falls when a worker resumes from a checkpoint or an agent is killed. `sum` is the growth
// that this agent has seen, which never falls.
struct counted {
    double last, sum;
};

enum { CODECS = 8 };
// The columns of the history, in this order: codec is text, the others are numbers.
static const char *const column_names[] = {
    "t",          "step",       "loss",     "tokens_per_s", "goodput_bps",
    "sent_bytes", "recv_bytes", "interval", "eval_loss",    "codec"};
enum { COLUMNS = sizeof column_names / sizeof *column_names, CODEC_COLUMN = COLUMNS - 1 };

struct course { // the curve of one cluster of one job
    char name[AGENT_NAME_MAX + 1];
    struct point last, *points; // points: owned, AGENT_VIEW_POINTS
    int n;
    double spacing_s;
    struct counted stall_s, train_s, sent_bytes, recv_bytes;
    double said;         // `at` of the last line of its worker; link lines come from its agent
    char device[DEVICE]; // where its worker trains; "": unknown
    int64_t round;
    char codecs[CODECS][CODEC];
    int n_codecs;
    // The points as JSON, "1,2.5,null,". Each is written once; all are rewritten when the curve is
    // thinned.
    struct neb_buf columns[COLUMNS];
    int written; // points in columns
    double rounds[ROUNDS][ROUND_WORDS];
    uint64_t n_rounds; // in all; the ring holds the last ones
};

struct job_view {
    char id[2 * AGENT_JOB_ID_BYTES + 1];
    struct course c[AGENT_CLUSTERS_MAX];
    int n;
    uint64_t used; // order of use; the oldest job makes room
};

struct event {
    double t;
    char job[2 * AGENT_JOB_ID_BYTES + 1], cluster[AGENT_NAME_MAX + 1], text[512];
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
    uint64_t n_events; // in all; the ring holds the last ones
    struct counter peers[PEERS];
};

enum neb_status agent_view_create(struct agent_view **out) {
    *out = calloc(1, sizeof **out);
    return *out ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory for the status page");
}

static void clear_job(struct job_view *j) {
    for (int i = 0; i < j->n; i++) {
        free(j->c[i].points);
        for (int k = 0; k < COLUMNS; k++)
            neb_buf_free(&j->c[i].columns[k]);
    }
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
    const struct counted none = {.last = NAN};
    *c = (struct course){.said = NAN,
                         .round = -1,
                         .last = {.loss = NAN, .eval_loss = NAN, .codec = -1},
                         .stall_s = none,
                         .train_s = none,
                         .sent_bytes = none,
                         .recv_bytes = none};
    c->points = calloc(AGENT_VIEW_POINTS, sizeof *c->points);
    if (!c->points)
        return NULL;
    snprintf(c->name, sizeof c->name, "%s", name);
    j->n++;
    return c;
}

static void keep(struct course *c) {
    if (c->n && c->last.at - c->points[c->n - 1].at < c->spacing_s)
        return;
    if (c->n == AGENT_VIEW_POINTS) {
        c->n /= 2;
        for (int i = 1; i < c->n; i++)
            c->points[i] = c->points[2 * i];
        c->written = 0;
        double span = c->last.at - c->points[0].at;
        c->spacing_s = 2 * span / AGENT_VIEW_POINTS;
    }
    c->points[c->n++] = c->last;
}

static void number(const json_t *line, const char *key, double *out) {
    const json_t *x = json_object_get(line, key);
    if (json_is_number(x) && isfinite(json_number_value(x)))
        *out = json_number_value(x);
}

// The same for a count; ignores a value that cannot be a count.
static void count(const json_t *line, const char *key, double *out) {
    double x = *out;
    number(line, key, &x);
    *out = fabs(x) < 1e15 ? x : *out;
}

static void counted(struct counted *c, double now) {
    c->sum += now > c->last ? now - c->last : 0; // a first value is no growth
    c->last = now;
}

static void counted_line(const json_t *line, const char *key, struct counted *c) {
    double x = NAN;
    number(line, key, &x);
    if (fabs(x) < 1e15)
        counted(c, x);
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

// Cuts a long text at a character boundary, since JSON refuses part of a character.
static void copy_text(char *to, size_t cap, const char *text) {
    size_t n = (size_t)snprintf(to, cap, "%s", text);
    if (n >= cap) {
        n = cap - 1;
        while (n && (text[n] & 0xc0) == 0x80)
            n--;
        to[n] = 0;
    }
}

// Lines of a worker without values for a curve.
static bool of_worker(const char *kind) {
    return !strcmp(kind, "checkpoint") || !strcmp(kind, "tune") || !strcmp(kind, "labels");
}

// Seconds that something took. Another site may claim anything, and one page shows all sites.
static double span(const json_t *line, const char *key) {
    double s = 0;
    number(line, key, &s);
    return fmin(fmax(s, 0), 2 * 86400);
}

static void keep_round(struct course *c, const json_t *line, double merged) {
    double round = NAN, fragment = 0, encode = span(line, "encode_s"),
           travel = span(line, "travel_s"), held = span(line, "held_s"),
           apply = span(line, "apply_s"), stall = span(line, "stall_s");
    number(line, "round", &round);
    number(line, "fragment", &fragment);
    double merge = merged - apply, arrived = merge - held, sent = arrived - travel;
    const double words[ROUND_WORDS] = {round,   fragment, sent - encode, sent,
                                       arrived, merge,    merged,        stall};
    memcpy(c->rounds[c->n_rounds++ % ROUNDS], words, sizeof words);
}

void agent_view_line(struct agent_view *v, const char *job, int interval, const json_t *line,
                     double unix_s, double steady_s) {
    const char *kind = json_string_value(json_object_get(line, "kind")),
               *name = json_string_value(json_object_get(line, "cluster")),
               *text = json_string_value(json_object_get(line, "text")),
               *codec = json_string_value(json_object_get(line, "codec")),
               *device = json_string_value(json_object_get(line, "device"));
    if (!kind || !name)
        return;
    bool note = !strcmp(kind, "note");
    if (note || !strcmp(kind, "fault"))
        agent_view_event(v, job, name, text ? text : kind, unix_s);
    bool eval = !strcmp(kind, "eval"), link = !strcmp(kind, "link"),
         figures = eval || link || !strcmp(kind, "step") || !strcmp(kind, "round");
    if (!figures && !of_worker(kind) && !(note && device))
        return;
    struct course *c = course_of(job_of(v, job), name);
    if (!c)
        return;
    if (!link || isnan(c->said)) // nothing heard of its worker yet: age counts from here
        c->said = steady_s;
    if (note)
        copy_text(c->device, sizeof c->device, device);
    if (!figures)
        return;
    double round = (double)c->round, h = c->last.interval ? c->last.interval : interval;
    c->last.t = unix_s;
    c->last.at = steady_s;
    number(line, "loss", eval ? &c->last.eval_loss : &c->last.loss);
    number(line, "tokens_per_s", &c->last.tokens_per_s);
    number(line, "goodput_bps", &c->last.goodput_bps);
    count(line, "step", &c->last.step);
    count(line, "sent_bytes", &c->last.sent_bytes);
    count(line, "recv_bytes", &c->last.recv_bytes);
    if (!strcmp(kind, "step")) { // these are sums; stall_s of a round line is not
        counted_line(line, "stall_s", &c->stall_s);
        counted_line(line, "train_s", &c->train_s);
    }
    if (link) {
        counted_line(line, "sent_bytes", &c->sent_bytes);
        counted_line(line, "recv_bytes", &c->recv_bytes);
    }
    if (!strcmp(kind, "round"))
        keep_round(c, line, unix_s);
    count(line, "round", &round);
    number(line, "interval", &h);
    c->round = (int64_t)round;
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
    copy_text(e->text, sizeof e->text, text);
}

struct agent_view_rate agent_view_rate(struct agent_view *v, uint32_t peer, uint64_t sent,
                                       uint64_t recv, neb_ns now) {
    if (peer >= PEERS)
        return (struct agent_view_rate){0};
    struct counter *c = &v->peers[peer];
    if (!c->at || sent < c->sent || recv < c->recv) { // first call, or counters restarted
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

static double last_of(const struct counted *c) { return isnan(c->last) ? 0 : c->last; }

static json_t *codec_or_null(const struct course *c, int i) {
    return i < 0 ? json_null() : json_string(c->codecs[i]);
}

json_t *agent_view_clusters(const struct agent_view *v, const char *job, double steady_s) {
    json_t *list = json_array();
    const struct job_view *j = find_job(v, job);
    for (int i = 0; j && i < j->n; i++) {
        const struct course *c = &j->c[i];
        json_array_append_new(
            list,
            json_pack(
                "{s:s,s:o,s:I,s:o,s:o,s:f,s:f,s:f,s:I,s:o,s:i,s:I,s:I,s:f,s:f,s:{s:f,s:f,s:f,s:f}}",
                "name", c->name, "device", c->device[0] ? json_string(c->device) : json_null(),
                "step", (json_int_t)c->last.step, "loss", agent_json_number(c->last.loss),
                "eval_loss", agent_json_number(c->last.eval_loss), "tokens_per_s",
                c->last.tokens_per_s, "stall_s", last_of(&c->stall_s), "train_s",
                last_of(&c->train_s), "round", (json_int_t)c->round, "codec",
                codec_or_null(c, c->last.codec), "interval", c->last.interval, "sent_bytes",
                (json_int_t)c->last.sent_bytes, "recv_bytes", (json_int_t)c->last.recv_bytes,
                "goodput_bps", c->last.goodput_bps, "age_s", steady_s - c->said, "counted",
                "stall_s", c->stall_s.sum, "train_s", c->train_s.sum, "sent_bytes",
                c->sent_bytes.sum, "recv_bytes", c->recv_bytes.sum));
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

// ---- the history --------------------------------------------------------------------------------

static void put_text(struct neb_buf *b, const char *s) { neb_buf_add(b, s, strlen(s)); }

// Writes a JSON string, or null for text that is not UTF-8: names and codecs come from other
// agents.
static void put_string(struct neb_buf *b, const char *s) {
    json_t *o = json_string(s);
    char *text = o ? json_dumps(o, JSON_ENCODE_ANY) : NULL;
    put_text(b, text ? text : "null");
    free(text);
    json_decref(o);
}

static void put_number(struct neb_buf *b, double x) {
    char text[32];
    if (!isfinite(x))
        snprintf(text, sizeof text, "null");
    else if (fabs(x) < 1e15 && x == floor(x))
        snprintf(text, sizeof text, "%lld", (long long)x);
    else
        snprintf(text, sizeof text, "%.12g", x);
    put_text(b, text);
}

static void write_columns(struct course *c) {
    if (!c->written)
        for (int k = 0; k < COLUMNS; k++)
            neb_buf_clear(&c->columns[k]);
    for (; c->written < c->n; c->written++) {
        const struct point *p = &c->points[c->written];
        const double x[] = {p->t,           p->step,       p->loss,       p->tokens_per_s,
                            p->goodput_bps, p->sent_bytes, p->recv_bytes, p->interval,
                            p->eval_loss};
        for (int k = 0; k < CODEC_COLUMN; k++) {
            put_number(&c->columns[k], x[k]);
            put_text(&c->columns[k], ",");
        }
        p->codec < 0 ? put_text(&c->columns[CODEC_COLUMN], "null")
                     : put_string(&c->columns[CODEC_COLUMN], c->codecs[p->codec]);
        put_text(&c->columns[CODEC_COLUMN], ",");
    }
}

static void put_course(struct neb_buf *b, struct course *c) {
    write_columns(c);
    put_text(b, "{\"name\":");
    put_string(b, c->name);
    for (int k = 0; k < COLUMNS; k++) {
        const struct neb_buf *col = &c->columns[k];
        put_text(b, ",\"");
        put_text(b, column_names[k]);
        put_text(b, "\":[");
        neb_buf_add(b, col->p, col->len ? col->len - 1 : 0); // without the last comma
        put_text(b, "]");
        b->oom |= col->oom;
    }
    put_text(b, ",\"rounds\":[");
    uint64_t first = c->n_rounds > ROUNDS ? c->n_rounds - ROUNDS : 0;
    for (uint64_t i = first; i < c->n_rounds; i++)
        for (int k = 0; k < ROUND_WORDS; k++) {
            put_text(b, k ? "," : i > first ? ",[" : "[");
            put_number(b, c->rounds[i % ROUNDS][k]);
            put_text(b, k + 1 < ROUND_WORDS ? "" : "]");
        }
    put_text(b, "]}");
}

char *agent_view_history(struct agent_view *v) {
    struct neb_buf b = {0};
    json_t *events = agent_view_events(v);
    char *text = events ? json_dumps(events, JSON_COMPACT | JSON_REAL_PRECISION(12)) : NULL;
    const char *between = "";
    put_text(&b, "{\"version\":1,\"jobs\":[");
    for (int i = 0; i < AGENT_VIEW_JOBS; i++) {
        struct job_view *j = &v->jobs[i];
        if (!j->id[0])
            continue;
        put_text(&b, between);
        put_text(&b, "{\"id\":");
        put_string(&b, j->id);
        put_text(&b, ",\"clusters\":[");
        for (int k = 0; k < j->n; k++) {
            put_text(&b, k ? "," : "");
            put_course(&b, &j->c[k]);
        }
        put_text(&b, "]}");
        between = ",";
    }
    put_text(&b, "],\"events\":");
    put_text(&b, text ? text : "[]");
    neb_buf_add(&b, "}", 2); // with the final 0
    free(text);
    json_decref(events);
    if (neb_buf_check(&b) != NEB_OK)
        neb_buf_free(&b);
    return (char *)b.p;
}
