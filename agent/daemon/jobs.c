// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/jobs.h"
#include "agent/base/bytes.h"
#include "agent/base/clock.h"

#include <stdlib.h>
#include <string.h>

static void list_one(void *user, const uint8_t id[INTER_ID_BYTES], const char *spec,
                     const char *state) {
    char hex[2 * INTER_ID_BYTES + 1];
    json_t *sp = json_loads(spec, 0, NULL), *st = json_loads(state, 0, NULL);
    const char *name = json_string_value(json_object_get(sp, "job")),
               *what = json_string_value(json_object_get(st, "state")),
               *home = json_string_value(json_object_get(st, "home")),
               *why = json_string_value(json_object_get(st, "why"));
    neb_hex(id, INTER_ID_BYTES, hex);
    json_array_append_new(
        user, json_pack("{s:s,s:s,s:s,s:s,s:s,s:I,s:I}", "id", hex, "job", name ? name : "?",
                        "state", what ? what : "?", "home", home ? home : "", "why", why ? why : "",
                        "sent_bytes", (json_int_t)json_integer_value(json_object_get(st, "sent")),
                        "recv_bytes", (json_int_t)json_integer_value(json_object_get(st, "recv"))));
    json_decref(sp);
    json_decref(st);
}

enum neb_status agent_jobs_list(struct inter_ledger *l, json_t **out) {
    *out = json_array();
    return inter_ledger_jobs(l, list_one, *out);
}

struct aside {
    json_t *list;
    int64_t at[AGENT_ASIDE_MAX]; // when each was written
};

// If the list is full, replaces the entry that was written first.
static void add_aside(void *user, const uint8_t id[INTER_ID_BYTES], const char *spec,
                      const char *state) {
    struct aside *a = user;
    json_t *st = json_loads(state, 0, NULL), *sp = NULL;
    const char *what = json_string_value(json_object_get(st, "state")),
               *why = json_string_value(json_object_get(st, "why"));
    int64_t at = json_integer_value(json_object_get(st, "at"));
    bool held = what && !strcmp(what, "held");
    size_t n = json_array_size(a->list), k = n;
    if (!held && (!what || strcmp(what, "failed")))
        goto out;
    if (n == AGENT_ASIDE_MAX) {
        k = 0;
        for (size_t i = 1; i < n; i++)
            k = a->at[i] < a->at[k] ? i : k;
        if (a->at[k] >= at)
            goto out;
    }
    char hex[2 * INTER_ID_BYTES + 1];
    neb_hex(id, INTER_ID_BYTES, hex);
    sp = json_loads(spec, 0, NULL);
    const char *name = json_string_value(json_object_get(sp, "job"));
    json_t *o = json_pack("{s:s,s:s,s:s,s:s,s:n,s:I,s:[]}", "id", hex, "job", name ? name : "?",
                          "state", held ? "held" : "ended", "why", why ? why : "", "step", "steps",
                          (json_int_t)json_integer_value(json_object_get(sp, "steps")), "clusters");
    if (!held)
        json_object_set_new(o, "outcome", json_string("failed"));
    a->at[k] = at;
    if (k == n)
        json_array_append_new(a->list, o);
    else
        json_array_set_new(a->list, k, o);
out:
    json_decref(sp);
    json_decref(st);
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

static uint64_t count(const json_t *o, const char *key) {
    return (uint64_t)json_integer_value(json_object_get(o, key));
}

void agent_job_record_read(const uint8_t id[INTER_ID_BYTES], const char *spec, const char *state,
                           struct agent_job_record *r) {
    json_t *st = json_loads(state, 0, NULL);
    const char *home = json_string_value(json_object_get(st, "home")),
               *sig = json_string_value(json_object_get(st, "sig")),
               *what = json_string_value(json_object_get(st, "state"));
    *r = (struct agent_job_record){.spec = json_loads(spec, 0, NULL)};
    neb_hex(id, INTER_ID_BYTES, r->hex);
    snprintf(r->home, sizeof r->home, "%s", home ? home : "");
    snprintf(r->sig, sizeof r->sig, "%s", sig ? sig : "");
    // without its submitter a job does not run
    snprintf(r->state, sizeof r->state, "%s", what && home ? what : "");
    r->adopted = json_is_true(json_object_get(st, "adopted"));
    r->run = json_integer_value(json_object_get(st, "run"));
    r->wan = (struct agent_wan_bytes){.sent = count(st, "sent"),
                                      .recv = count(st, "recv"),
                                      .messages = count(st, "messages"),
                                      .payload = count(st, "payload")};
    json_decref(st);
}

static void match_one(void *user, const uint8_t id[INTER_ID_BYTES], const char *spec,
                      const char *state) {
    struct search *s = user;
    char hex[2 * INTER_ID_BYTES + 1];
    neb_hex(id, INTER_ID_BYTES, hex);
    if (strncmp(hex, s->prefix, strlen(s->prefix)))
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
    json_t *st = json_loads(state, 0, NULL);
    const char *what = json_string_value(json_object_get(st, "state")),
               *home = json_string_value(json_object_get(st, "home"));
    (void)spec;
    bool over =
        what && (!strcmp(what, "done") || !strcmp(what, "stopped") || !strcmp(what, "failed"));
    if (over && home && *home && !json_is_true(json_object_get(st, "adopted"))) {
        if (e->n == e->cap) {
            size_t cap = e->cap ? 2 * e->cap : 64;
            struct agent_ended_job *all = realloc(e->list, cap * sizeof *all);
            e->oom = e->oom || !all;
            e->list = all ? all : e->list;
            e->cap = all ? cap : e->cap;
        }
        if (e->n < e->cap) {
            struct agent_ended_job *x = &e->list[e->n++];
            *x = (struct agent_ended_job){.at = json_integer_value(json_object_get(st, "at"))};
            memcpy(x->id, id, sizeof x->id);
            snprintf(x->home, sizeof x->home, "%s", home);
        }
    }
    json_decref(st);
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
    *r = (struct agent_job_record){.spec = NULL};
}
