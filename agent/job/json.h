// SPDX-License-Identifier: Apache-2.0
// Helpers that jansson lacks.
#ifndef AGENT_JSON_H
#define AGENT_JSON_H
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>

// null for NaN and infinity, which JSON lacks. A new reference.
static inline json_t *agent_json_number(double x) {
    return isfinite(x) ? json_real(x) : json_null();
}

// NAN if the key is missing or its value is not a number.
static inline double agent_json_get(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

// `otherwise` if the key is missing or its value is not a text.
static inline const char *agent_json_text(const json_t *o, const char *key, const char *otherwise) {
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : otherwise;
}

// Makes JSON from elsewhere safe to print: cleans its strings with neb_plain, and removes members
// with an unsafe key.
void agent_json_plain(json_t *v);

// Prints to standard output, with a newline.
static inline void agent_json_print(const json_t *o, size_t flags) {
    json_dumpf(o, stdout, flags);
    putchar('\n');
}

// Prints the latest logged error as the result of a failed command with --json:
// {"ok":false,"error":TEXT}.
void agent_json_print_error(void);
// Returns rc. If the command has --json and failed, prints that object first.
static inline int agent_json_exit(bool json, int rc) {
    if (json && rc)
        agent_json_print_error();
    return rc;
}

#endif
