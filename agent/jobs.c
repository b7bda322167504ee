#include "agent/jobs.h"
#include "agent/base/bytes.h"

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
    // whose it is must be known, or it does not run
    snprintf(r->state, sizeof r->state, "%s", what && home ? what : "");
    r->adopted = json_is_true(json_object_get(st, "adopted"));
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
        snprintf(why, cap, "no job's id begins with \"%.40s\"; nebula jobs lists them", prefix);
    else if (st == NEB_ERR_INVALID &&
             inter_ledger_jobs(l, add_like, &(struct listing){prefix, like, sizeof like}) == NEB_OK)
        snprintf(why, cap, "more than one job's id begins with \"%.40s\": %s", prefix, like);
    else if (st != NEB_OK)
        snprintf(why, cap, "the ledger could not be read; the agent's log says why");
    return st;
}

enum neb_status agent_jobs_put(struct inter_ledger *l, const struct agent_job_record *r,
                               const char *why) {
    uint8_t id[INTER_ID_BYTES];
    json_t *s =
        json_pack("{s:s,s:I,s:I,s:I,s:I,s:s,s:s,s:b,s:s}", "state", r->state, "sent",
                  (json_int_t)r->wan.sent, "recv", (json_int_t)r->wan.recv, "messages",
                  (json_int_t)r->wan.messages, "payload", (json_int_t)r->wan.payload, "home",
                  r->home, "sig", r->sig, "adopted", r->adopted, "why", why ? why : "");
    char *spec = json_dumps(r->spec, JSON_COMPACT), *text = json_dumps(s, JSON_COMPACT);
    enum neb_status st = spec && text && neb_unhex(r->hex, id, sizeof id)
                             ? inter_ledger_put_job(l, id, spec, text)
                             : neb_fail(NEB_ERR_NOMEM, "job %.8s", r->hex);
    free(spec);
    free(text);
    json_decref(s);
    return st;
}

void agent_job_record_clear(struct agent_job_record *r) {
    json_decref(r->spec);
    *r = (struct agent_job_record){.spec = NULL};
}
