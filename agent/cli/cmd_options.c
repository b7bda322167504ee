// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/cmd_options.h"
#include "agent/base/nearest.h"
#include "agent/base/number.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

// ---- unknown options ----------------------------------------------------------------------------

enum { LONG_MAX_N = 96 };

// The long options of a table and its children, and whether each takes a value.
struct longs {
    const char *name[LONG_MAX_N];
    bool takes[LONG_MAX_N];
    int key[LONG_MAX_N];
    size_t n;
};

static void collect(const struct argp *a, struct longs *l) {
    bool takes = false;
    int key = 0;
    for (const struct argp_option *o = a->options; o && (o->name || o->key || o->doc); o++) {
        if (!(o->flags & OPTION_ALIAS)) { // an alias is like the option that it stands for
            takes = o->arg && !(o->flags & OPTION_ARG_OPTIONAL);
            key = o->key;
        }
        if (l->n < LONG_MAX_N && (o->name || o->key)) {
            l->name[l->n] = o->name;
            l->takes[l->n] = takes;
            l->key[l->n++] = o->key ? o->key : key;
        }
    }
    for (const struct argp_child *c = a->children; c && c->argp; c++)
        collect(c->argp, l);
}

// Finds an option by the n letters of `word`. Like getopt, it accepts the beginning of a name.
// NULL: there is none.
static const bool *find_long(const struct longs *l, const char *word, size_t n) {
    const bool *found = NULL;
    for (size_t i = 0; i < l->n; i++)
        if (l->name[i] && !strncmp(l->name[i], word, n)) {
            found = &l->takes[i];
            if (!l->name[i][n])
                break;
        }
    return found;
}

// True if the value of the last option in "-ab" is the next word.
static bool short_takes_next(const struct longs *l, const char *word) {
    for (; *word; word++)
        for (size_t i = 0; i < l->n; i++)
            if (l->key[i] == *word && l->takes[i])
                return !word[1];
    return false;
}

error_t agent_options_parse(const struct argp *argp, int argc, char **argv, void *input) {
    struct longs l = {.name = {"help", "usage"}, .n = 2};
    collect(argp, &l);
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const char *word = argv[i];
        if (word[0] != '-' || !word[1])
            continue;
        if (word[1] != '-') {
            i += short_takes_next(&l, word + 1);
            continue;
        }
        char name[NEB_EDITS_MAX];
        size_t n = strcspn(word + 2, "=");
        const bool *takes = find_long(&l, word + 2, n);
        if (takes) {
            i += *takes && !word[2 + n];
            continue;
        }
        snprintf(name, sizeof name, "%.*s", n < sizeof name ? (int)n : 0, word + 2);
        const char *meant = neb_nearest(name, l.name, l.n);
        if (!meant)
            break; // argp prints the error
        fprintf(stderr,
                "%s: unrecognized option '--%s'; did you mean '--%s'?\nTry `%s --help' or `%s "
                "--usage' for more information.\n",
                argv[0], name, meant, argv[0], argv[0]);
        return EINVAL;
    }
    return argp_parse(argp, argc, argv, 0, NULL, input);
}

void agent_action_refuse(const struct argp_state *state, const char *given,
                         const char *const *known, size_t n) {
    char all[256] = "";
    const char *meant = neb_nearest(given, known, n);
    for (size_t i = 0; i < n; i++) {
        size_t at = strlen(all);
        snprintf(all + at, sizeof all - at, "%s%s", i ? ", " : "", known[i]);
    }
    argp_error(state, "'%s' is %s %s%s%s%s", given, n > 1 ? "none of" : "not", all,
               meant ? "; did you mean '" : "", meant ? meant : "", meant ? "'?" : "");
}

// ---- shared by several commands -----------------------------------------------------------------

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

// The name of an option. argp adds --help, so the table of the command is a child of its root.
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
             "a size from %" PRIu64 " to %" PRIu64 " bytes (for example 200M, 5G or 64GiB)", min,
             max);
    if (!neb_number_size(arg, min, max, &v))
        agent_option_refuse(state, key, arg, expected);
    return v;
}
