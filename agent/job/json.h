// SPDX-License-Identifier: Apache-2.0
// The few forms of JSON that jansson lacks.
#ifndef AGENT_JSON_H
#define AGENT_JSON_H
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>

// JSON has no NaN: null for what is not finite. New reference.
static inline json_t *agent_json_number(double x) {
    return isfinite(x) ? json_real(x) : json_null();
}

// NAN where the key is missing, or holds no number.
static inline double agent_json_get(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

// What came from elsewhere: strings pass neb_plain, and what lies under a key that would not pass as it is goes.
void agent_json_plain(json_t *v);

// To standard output, and a new line.
static inline void agent_json_print(const json_t *o, size_t flags) {
    json_dumpf(o, stdout, flags);
    putchar('\n');
}

// With --json a failure is an object too: {"ok":false,"error":TEXT}, of the error that was logged last.
void agent_json_print_error(void);
// rc, behind such an object where it is a failure and the command has --json.
static inline int agent_json_exit(bool json, int rc) {
    if (json && rc)
        agent_json_print_error();
    return rc;
}

#endif
