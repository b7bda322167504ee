// SPDX-License-Identifier: Apache-2.0
#include "agent/job/json.h"
#include "agent/base/log.h"
#include "agent/base/plain.h"

#include <stdlib.h>
#include <string.h>

void agent_json_print_error(void) {
    char text[1024];
    neb_last_error(text, sizeof text);
    json_t *o = json_pack("{s:b, s:s}", "ok", 0, "error", text);
    agent_json_print(o, JSON_COMPACT);
    json_decref(o);
}

void agent_json_plain(json_t *v) {
    const char *key;
    json_t *child;
    void *next;
    size_t i;
    if (json_is_string(v) && !neb_is_plain(json_string_value(v))) {
        char *s = strdup(json_string_value(v));
        if (s)
            neb_plain(s, false);
        json_string_set(v, s ? s : "");
        free(s);
    }
    json_array_foreach(v, i, child) agent_json_plain(child);
    json_object_foreach_safe(v, next, key, child) {
        if (neb_is_plain(key))
            agent_json_plain(child);
        else
            json_object_del(v, key);
    }
}
