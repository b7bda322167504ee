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
    char hex[2 * INTER_ID_BYTES + 1];
    json_t *spec; // owned
};

static void match_one(void *user, const uint8_t id[INTER_ID_BYTES], const char *spec,
                      const char *state) {
    struct search *s = user;
    char hex[2 * INTER_ID_BYTES + 1];
    (void)state;
    neb_hex(id, INTER_ID_BYTES, hex);
    if (strncmp(hex, s->prefix, strlen(s->prefix)))
        return;
    s->hits++;
    memcpy(s->hex, hex, sizeof hex);
    json_decref(s->spec);
    s->spec = json_loads(spec, 0, NULL);
}

enum neb_status agent_jobs_find(struct inter_ledger *l, const char *prefix,
                                char hex[2 * AGENT_JOB_ID_BYTES + 1], json_t **spec) {
    struct search s = {.prefix = prefix};
    enum neb_status st = *prefix ? inter_ledger_jobs(l, match_one, &s) : NEB_ERR_NOT_FOUND;
    if (st == NEB_OK && (s.hits != 1 || !s.spec))
        st = s.hits > 1 ? NEB_ERR_INVALID : NEB_ERR_NOT_FOUND;
    if (st != NEB_OK) {
        json_decref(s.spec);
        return st;
    }
    memcpy(hex, s.hex, sizeof s.hex);
    *spec = s.spec;
    return NEB_OK;
}
