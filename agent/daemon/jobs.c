// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/jobs.h"
#include "agent/base/array.h"
#include "agent/base/bytes.h"
#include "agent/base/clock.h"

#include <stdlib.h>
#include <string.h>

// A row of the ledger.
struct row {
    json_t *spec, *st; // owned; NULL: damaged
    char hex[2 * INTER_ID_BYTES + 1];
    const char *name, *state, *home, *why; // borrowed; NULL: it is not there
};

static struct row row_open(const uint8_t id[INTER_ID_BYTES], const char *spec, const char *state) {
    struct row r = {.spec = json_loads(spec, 0, NULL), .st = json_loads(state, 0, NULL)};
    neb_hex(id, INTER_ID_BYTES, r.hex);
    r.name = json_string_value(json_object_get(r.spec, "job"));
    r.state = json_string_value(json_object_get(r.st, "state"));
    r.home = json_string_value(json_object_get(r.st, "home"));
    r.why = json_string_value(json_object_get(r.st, "why"));
    return r;
}

static bool row_is(const struct row *r, const char *state) {
    return r->state && !strcmp(r->state, state);
}

static json_int_t row_int(const struct row *r, const char *key) {
    return json_integer_value(json_object_get(r->st, key));
}

static void row_close(struct row *r) {
    json_decref(r->spec);
    json_decref(r->st);
}

static const char * or (const char *text, const char *other) { return text ? text : other; }

static void list_one(void *user, const uint8_t id[INTER_ID_BYTES], const char *spec,
                     const char *state) {
    struct row r = row_open(id, spec, state);
    json_array_append_new(user, json_pack("{s:s,s:s,s:s,s:s,s:s,s:I,s:I}", "id", r.hex, "job",
                                          or (r.name, "?"), "state", or (r.state, "?"), "home",
                                          or (r.home, ""), "why", or (r.why, ""), "sent_bytes",
                                          row_int(&r, "sent"), "recv_bytes", row_int(&r, "recv")));
    row_close(&r);
}

enum neb_status agent_jobs_list(struct inter_ledger *l, json_t **out) {
    *out = json_array();
    return inter_ledger_jobs(l, list_one, *out);
}

struct aside {
    json_t *list;
    int64_t at[AGENT_ASIDE_MAX]; // when each was written
};

// The place of a job that was written at this time; if the list is full, that of the entry that was
// written first. AGENT_ASIDE_MAX: all others are newer.
static size_t aside_place(const struct aside *a, int64_t at) {
    size_t n = json_array_size(a->list), k = 0;
    if (n < AGENT_ASIDE_MAX)
        return n;
    for (size_t i = 1; i < n; i++)
        k = a->at[i] < a->at[k] ? i : k;
    return a->at[k] < at ? k : (size_t)AGENT_ASIDE_MAX;
}

static void add_aside(void *user, const uint8_t id[INTER_ID_BYTES], const char *spec,
                      const char *state) {
    struct aside *a = user;
    struct row r = row_open(id, spec, state);
    bool held = row_is(&r, "held");
    size_t k =
        held || row_is(&r, "failed") ? aside_place(a, row_int(&r, "at")) : (size_t)AGENT_ASIDE_MAX;
    if (k < AGENT_ASIDE_MAX) {
        json_t *o =
            json_pack("{s:s,s:s,s:s,s:s,s:n,s:I,s:[]}", "id", r.hex, "job", or (r.name, "?"),
                      "state", held ? "held" : "ended", "why", or (r.why, ""), "step", "steps",
                      json_integer_value(json_object_get(r.spec, "steps")), "clusters");
        if (!held)
            json_object_set_new(o, "outcome", json_string("failed"));
        a->at[k] = row_int(&r, "at");
        if (k == json_array_size(a->list))
            json_array_append_new(a->list, o);
        else
            json_array_set_new(a->list, k, o);
    }
    row_close(&r);
}

enum neb_status agent_jobs_attention(struct inter_ledger *l, json_t **out) {
    struct aside a = {.list = json_array()};
    enum neb_status st = inter_ledger_jobs(l, add_aside, &a);
    *out = a.list;
    return st;
}

struct search {
    const char *prefix;
    int hits;
    struct agent_job_record *found;
};

void agent_job_record_read(const uint8_t id[INTER_ID_BYTES], const char *spec, const char *state,
                           struct agent_job_record *r) {
    struct row x = row_open(id, spec, state);
    const char *sig = json_string_value(json_object_get(x.st, "sig"));
    *r = (struct agent_job_record){.spec = json_incref(x.spec)};
    memcpy(r->hex, x.hex, sizeof r->hex);
    snprintf(r->home, sizeof r->home, "%s", or (x.home, ""));
    snprintf(r->sig, sizeof r->sig, "%s", or (sig, ""));
    // without its submitter a job does not run
    snprintf(r->state, sizeof r->state, "%s", x.state && x.home ? x.state : "");
    r->adopted = json_is_true(json_object_get(x.st, "adopted"));
    r->run = row_int(&x, "run");
    r->had = json_incref(json_object_get(x.st, "had"));
    r->wan = (struct agent_wan_bytes){.sent = (uint64_t)row_int(&x, "sent"),
                                      .recv = (uint64_t)row_int(&x, "recv"),
                                      .messages = (uint64_t)row_int(&x, "messages"),
                                      .payload = (uint64_t)row_int(&x, "payload")};
    row_close(&x);
}

static void match_one(void *user, const uint8_t id[INTER_ID_BYTES], const char *spec,
                      const char *state) {
    struct search *s = user;
    char hex[2 * INTER_ID_BYTES + 1];
    neb_hex(id, INTER_ID_BYTES, hex);
    if (strncmp(hex, s->prefix, strlen(s->prefix)) != 0)
        return;
    s->hits++;
    agent_job_record_clear(s->found);
    agent_job_record_read(id, spec, state, s->found);
}

enum neb_status agent_jobs_find(struct inter_ledger *l, const char *prefix,
                                struct agent_job_record *out) {
    *out = (struct agent_job_record){.spec = NULL};
    struct search s = {.prefix = prefix, .found = out};
    enum neb_status st = *prefix ? inter_ledger_jobs(l, match_one, &s) : NEB_ERR_NOT_FOUND;
    if (st == NEB_OK && (s.hits != 1 || !out->spec))
        st = s.hits > 1 ? NEB_ERR_INVALID : NEB_ERR_NOT_FOUND;
    if (st != NEB_OK)
        agent_job_record_clear(out);
    return st;
}

struct listing {
    const char *prefix;
    char *out;
    size_t cap;
};

static void add_like(void *user, const uint8_t id[INTER_ID_BYTES], const char *spec,
                     const char *state) {
    struct listing *l = user;
    struct agent_job_record r;
    size_t n = strlen(l->out);
    agent_job_record_read(id, spec, state, &r);
    const char *name = json_string_value(json_object_get(r.spec, "job"));
    if (!strncmp(r.hex, l->prefix, strlen(l->prefix)))
        snprintf(l->out + n, l->cap - n, "%s%s (%s, %s)", n ? ", " : "", r.hex, name ? name : "?",
                 r.state);
    agent_job_record_clear(&r);
}

enum neb_status agent_jobs_choose(struct inter_ledger *l, const char *prefix,
                                  struct agent_job_record *out, char *why, size_t cap) {
    char like[400] = "";
    enum neb_status st = agent_jobs_find(l, prefix, out);
    if (st == NEB_ERR_NOT_FOUND)
        snprintf(why, cap, "no job id begins with \"%.40s\"; nebula jobs lists them", prefix);
    else if (st == NEB_ERR_INVALID &&
             inter_ledger_jobs(l, add_like, &(struct listing){prefix, like, sizeof like}) == NEB_OK)
        snprintf(why, cap, "more than one job id begins with \"%.40s\": %s", prefix, like);
    else if (st != NEB_OK)
        snprintf(why, cap, "the ledger could not be read; the agent's log says why");
    return st;
}

enum neb_status agent_jobs_put(struct inter_ledger *l, const struct agent_job_record *r,
                               const char *why) {
    uint8_t id[INTER_ID_BYTES];
    json_t *s = json_pack("{s:s,s:I,s:I,s:I,s:I,s:I,s:s,s:s,s:b,s:s,s:I}", "state", r->state, "at",
                          (json_int_t)(neb_wall_now() / NEB_MS), "sent", (json_int_t)r->wan.sent,
                          "recv", (json_int_t)r->wan.recv, "messages", (json_int_t)r->wan.messages,
                          "payload", (json_int_t)r->wan.payload, "home", r->home, "sig", r->sig,
                          "adopted", r->adopted, "why", why ? why : "", "run", (json_int_t)r->run);
    if (r->had)
        json_object_set(s, "had", r->had);
    char *spec = json_dumps(r->spec, JSON_COMPACT), *text = json_dumps(s, JSON_COMPACT);
    enum neb_status st = spec && text && neb_unhex(r->hex, id, sizeof id)
                             ? inter_ledger_put_job(l, id, spec, text)
                             : neb_fail(NEB_ERR_NOMEM, "out of memory: job %.8s", r->hex);
    free(spec);
    free(text);
    json_decref(s);
    return st;
}

struct ended {
    struct agent_ended_job *list; // owned
    size_t n, cap;
    bool oom;
};

static void note_ended(void *user, const uint8_t id[INTER_ID_BYTES], const char *spec,
                       const char *state) {
    struct ended *e = user;
    struct row r = row_open(id, "", state);
    (void)spec;
    bool over = row_is(&r, "done") || row_is(&r, "stopped") || row_is(&r, "failed");
    if (over && r.home && *r.home && !json_is_true(json_object_get(r.st, "adopted"))) {
        struct agent_ended_job *all = neb_array_more(e->list, e->n, &e->cap, 64, sizeof *all);
        e->oom = e->oom || !all;
        e->list = all ? all : e->list;
        if (all) {
            struct agent_ended_job *x = &e->list[e->n++];
            *x = (struct agent_ended_job){.at = row_int(&r, "at")};
            memcpy(x->id, id, sizeof x->id);
            snprintf(x->home, sizeof x->home, "%s", r.home);
        }
    }
    row_close(&r);
}

// Sorts by member, then the newest first.
static int by_age(const void *pa, const void *pb) {
    const struct agent_ended_job *a = pa, *b = pb;
    int c = strcmp(a->home, b->home);
    c = c ? c : (a->at < b->at) - (a->at > b->at);
    return c ? c : memcmp(a->id, b->id, sizeof a->id);
}

enum neb_status agent_jobs_ended(struct inter_ledger *l, size_t most, struct agent_ended_job **out,
                                 size_t *n) {
    struct ended e = {.list = NULL};
    size_t kept = 0, of_one = 0;
    enum neb_status st = inter_ledger_jobs(l, note_ended, &e);
    if (st == NEB_OK && e.oom)
        st = neb_fail(NEB_ERR_NOMEM, "out of memory for jobs that have ended");
    if (e.n)
        qsort(e.list, e.n, sizeof *e.list, by_age);
    for (size_t i = 0; i < e.n; i++) {
        of_one = i && !strcmp(e.list[i].home, e.list[i - 1].home) ? of_one + 1 : 0;
        if (of_one >= most)
            e.list[kept++] = e.list[i];
    }
    if (st != NEB_OK || !kept) {
        free(e.list);
        e.list = NULL;
        kept = 0;
    }
    *out = e.list;
    *n = kept;
    return st;
}

void agent_job_record_clear(struct agent_job_record *r) {
    json_decref(r->spec);
    json_decref(r->had);
    *r = (struct agent_job_record){.spec = NULL};
}
