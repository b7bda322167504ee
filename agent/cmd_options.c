#include "agent/cmd_options.h"
#include "agent/base/number.h"

#include <inttypes.h>

error_t agent_parse_option(int key, char *arg, struct argp_state *state) {
    struct agent_options *o = state->input;
    switch (key) {
    case 'H': o->home = arg; return 0;
    case 'j': o->json = true; return 0;
    case ARGP_KEY_ARG:
        if (o->arg || o->takes == AGENT_TAKES_NOTHING)
            argp_usage(state);
        o->arg = arg;
        return 0;
    case ARGP_KEY_END:
        if (o->takes == AGENT_TAKES_ONE && !o->arg)
            argp_usage(state);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

// The command's own table is a child of what argp makes of it, beside --help.
static const char *name_of(const struct argp *a, int key) {
    for (const struct argp_option *o = a->options; o && o->name; o++)
        if (o->key == key)
            return o->name;
    for (const struct argp_child *c = a->children; c && c->argp; c++) {
        const char *name = name_of(c->argp, key);
        if (name)
            return name;
    }
    return NULL;
}

void agent_option_refuse(const struct argp_state *state, int key, const char *arg,
                         const char *expected) {
    const char *name = name_of(state->root_argp, key);
    NEB_ASSERT(name);
    argp_error(state, "--%s: \"%s\" is not %s", name, arg, expected);
}

uint64_t agent_option_whole(const struct argp_state *state, int key, const char *arg, uint64_t min,
                            uint64_t max) {
    char expected[96];
    uint64_t v = min;
    snprintf(expected, sizeof expected, "a whole number from %" PRIu64 " to %" PRIu64, min, max);
    if (!neb_number_whole(arg, min, max, &v))
        agent_option_refuse(state, key, arg, expected);
    return v;
}

double agent_option_real(const struct argp_state *state, int key, const char *arg, double min,
                         double max) {
    char expected[96];
    double v = min;
    snprintf(expected, sizeof expected, "a number from %g to %g", min, max);
    if (!neb_number_real(arg, min, max, &v))
        agent_option_refuse(state, key, arg, expected);
    return v;
}

uint64_t agent_option_size(const struct argp_state *state, int key, const char *arg, uint64_t min,
                           uint64_t max) {
    char expected[128];
    uint64_t v = min;
    snprintf(expected, sizeof expected,
             "a size from %" PRIu64 " to %" PRIu64 " bytes, such as 200M, 5G or 64GiB", min, max);
    if (!neb_number_size(arg, min, max, &v))
        agent_option_refuse(state, key, arg, expected);
    return v;
}
