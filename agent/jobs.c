#include "agent/jobs.h"
#include "agent/base/bytes.h"

#include <string.h>

static void list_one(void *user, const uint8_t id[INTER_ID_BYTES], const char *spec,
                     const char *state) {
    char hex[2 * INTER_ID_BYTES + 1];
    json_t *sp = json_loads(spec, 0, NULL), *st = json_loads(state, 0, NULL);
    const char *name = json_string_value(json_object_get(sp, "job")),
               *what = json_string_value(json_object_get(st, "state")),
               *home = json_string_value(json_object_get(st, "home"));
    neb_hex(id, INTER_ID_BYTES, hex);
    json_array_append_new(
        user, json_pack("{s:s,s:s,s:s,s:s,s:I,s:I}", "id", hex, "job", name ? name : "?", "state",
                        what ? what : "?", "home", home ? home : "", "sent_bytes",
                        (json_int_t)json_integer_value(json_object_get(st, "sent")), "recv_bytes",
                        (json_int_t)json_integer_value(json_object_get(st, "recv"))));
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

static void match_one(void *user, const uint8_t id[INTER_ID_BYTES], const char *spec,
                      const char *state) {
    struct search *s = user;
    struct agent_job_record *r = s->found;
    char hex[2 * INTER_ID_BYTES + 1];
    neb_hex(id, INTER_ID_BYTES, hex);
    if (strncmp(hex, s->prefix, strlen(s->prefix)))
        return;
    s->hits++;
    json_t *st = json_loads(state, 0, NULL);
    const char *home = json_string_value(json_object_get(st, "home")),
               *sig = json_string_value(json_object_get(st, "sig"));
    memcpy(r->hex, hex, sizeof hex);
    json_decref(r->spec);
    r->spec = json_loads(spec, 0, NULL);
    snprintf(r->home, sizeof r->home, "%s", home ? home : "");
    snprintf(r->sig, sizeof r->sig, "%s", sig ? sig : "");
    r->wan = (struct agent_wan_bytes){.sent = count(st, "sent"),
                                      .recv = count(st, "recv"),
                                      .messages = count(st, "messages"),
                                      .payload = count(st, "payload")};
    json_decref(st);
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

void agent_job_record_clear(struct agent_job_record *r) {
    json_decref(r->spec);
    *r = (struct agent_job_record){.spec = NULL};
}
