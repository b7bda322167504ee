// SPDX-License-Identifier: Apache-2.0
// The table of subcommands, and the parser of their command lines: it makes argp's tables.
#include "agent/cli/commands.h"
#include "agent/base/nearest.h"
#include "agent/base/number.h"
#include "agent/cli/cmd_options.h"
#include "agent/job/wan_spec.h"

#include <argp.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// In the order of `nebula help`.
const struct agent_command *const agent_commands[] = {
    &cmd_check,  &cmd_plan,       &cmd_pretrain,   &cmd_distill, &cmd_agent,    &cmd_status,
    &cmd_doctor, &cmd_stop,       &cmd_jobs,       &cmd_resume,  &cmd_rejoin,   &cmd_forget,
    &cmd_logs,   &cmd_completion, &cmd_eval_probe, &cmd_eval,    &cmd_generate, &cmd_import,
    &cmd_export, &cmd_worker,     &cmd_ranks,      &cmd_bench,   &cmd_data,     &cmd_id,
    &cmd_ledger, &cmd_peer,       &cmd_init,       &cmd_invite,  &cmd_join,     &cmd_members,
    &cmd_revoke, &cmd_move,       &cmd_rotate,     &cmd_seal,    &cmd_promote,  &cmd_trace,
    NULL,
};

// KEY_LONG + i: key of row i if it has no letter.
enum { ROWS_MAX = 32, KEY_LONG = 256, KEY_HELP = '?', KEY_USAGE = KEY_LONG + ROWS_MAX };

struct line { // a command line while it is read
    const struct agent_command *c;
    struct agent_options *common; // the command's options, which begin with these
    struct argp_option rows[ROWS_MAX + 3];
    struct argp argp;
};

static int key_of(const struct agent_command *c, int i) {
    return c->options[i].letter ? c->options[i].letter : KEY_LONG + i;
}

static const struct agent_option *row_of(const struct agent_command *c, int key) {
    for (int i = 0; c->options[i].name; i++)
        if (c->options[i].sets != AGENT_OTHER_NAME && key_of(c, i) == key)
            return &c->options[i];
    return NULL;
}

// ---- unknown options ----------------------------------------------------------------------------

// Finds an option by the n letters of `word`. Like getopt, it accepts the beginning of a name.
static const struct argp_option *find_long(const struct line *l, const char *word, size_t n) {
    const struct argp_option *found = NULL, *real = NULL;
    for (const struct argp_option *o = l->rows; o->name; o++) {
        real = o->flags & OPTION_ALIAS ? real : o;
        if (!strncmp(o->name, word, n)) {
            found = real;
            if (!o->name[n])
                break;
        }
    }
    return found;
}

// True if the value of the last option in "-ab" is the next word.
static bool short_takes_next(const struct line *l, const char *word) {
    for (; *word; word++)
        for (const struct argp_option *o = l->rows; o->name; o++)
            if (o->key == *word && o->arg)
                return !word[1];
    return false;
}

// argp names an unknown option. This adds the option that is most likely meant; false: it is
// printed.
static bool all_known(const struct line *l, int argc, char **argv) {
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const char *word = argv[i], *names[ROWS_MAX + 3];
        char name[NEB_EDITS_MAX];
        size_t n = 0, len;
        if (word[0] != '-' || !word[1])
            continue;
        if (word[1] != '-') {
            i += short_takes_next(l, word + 1);
            continue;
        }
        len = strcspn(word + 2, "=");
        const struct argp_option *known = find_long(l, word + 2, len);
        if (known) {
            i += known->arg && !word[2 + len];
            continue;
        }
        snprintf(name, sizeof name, "%.*s", len < sizeof name ? (int)len : 0, word + 2);
        for (const struct argp_option *o = l->rows; o->name; o++)
            names[n++] = o->name;
        const char *meant = neb_nearest(name, names, n);
        if (!meant)
            return true; // argp prints the error
        fprintf(stderr,
                "%s: unrecognized option '--%s'; did you mean '--%s'?\nTry `%s --help' or `%s "
                "--usage' for more information.\n",
                argv[0], name, meant, argv[0], argv[0]);
        return false;
    }
    return true;
}

// ---- values -------------------------------------------------------------------------------------

// Prints the error and ends the program.
static void refuse(const struct argp_state *state, const struct agent_option *o, const char *value,
                   const char *expected) {
    argp_error(state, "--%s: \"%s\" is not %s", o->name, value, expected);
}

static uint64_t whole(const struct argp_state *state, const struct agent_option *o,
                      const char *value) {
    char expected[128];
    uint64_t v = o->min;
    bool size = o->sets == AGENT_SIZE;
    if (size ? neb_number_size(value, o->min, o->max, &v)
             : neb_number_whole(value, o->min, o->max, &v))
        return v;
    snprintf(expected, sizeof expected, "a %s from %" PRIu64 " to %" PRIu64 "%s",
             size ? "size" : "whole number", o->min, o->max,
             size ? " bytes (for example 200M, 5G or 64GiB)" : "");
    refuse(state, o, value, expected);
    return v;
}

static double real(const struct argp_state *state, const struct agent_option *o,
                   const char *value) {
    char expected[96];
    double min = (double)o->min, max = (double)o->max, v = min;
    snprintf(expected, sizeof expected, "a number from %g to %g", min, max);
    if (!neb_number_real(value, min, max, &v))
        refuse(state, o, value, expected);
    return v;
}

static void add(const struct argp_state *state, const struct agent_option *o, const char *value,
                struct agent_list *list) {
    if (list->n == AGENT_LIST_MAX)
        argp_error(state, "--%s is given more than %d times", o->name, AGENT_LIST_MAX);
    else
        list->text[list->n++] = value;
}

static void take_option(const struct argp_state *state, const struct line *l,
                        const struct agent_option *o, const char *value) {
    void *at = (char *)l->common + o->at;
    if (o->take && !o->take(value, l->common))
        refuse(state, o, value, o->expected);
    switch (o->sets) {
    case AGENT_NOTHING:
    case AGENT_OTHER_NAME: break;
    case AGENT_FLAG: *(bool *)at = true; break;
    case AGENT_TEXT: *(const char **)at = value; break;
    case AGENT_LIST: add(state, o, value, at); break;
    case AGENT_INT: *(int *)at = (int)whole(state, o, value); break;
    case AGENT_WHOLE:
    case AGENT_SIZE: *(uint64_t *)at = whole(state, o, value); break;
    case AGENT_REAL: *(double *)at = real(state, o, value); break;
    }
}

// ---- arguments ----------------------------------------------------------------------------------

static const struct agent_action *action_of(const struct agent_command *c, const char *word) {
    for (const struct agent_action *a = c->actions; a->word; a++)
        if (!strcmp(a->word, word))
            return a;
    return NULL;
}

// The first argument is none of the words: names the nearest one, and all.
static void refuse_action(const struct argp_state *state, const struct agent_command *c,
                          const char *word) {
    char all[256] = "";
    const char *known[16] = {NULL};
    size_t n = 0;
    for (const struct agent_action *a = c->actions; a->word; a++) {
        size_t at = strlen(all);
        snprintf(all + at, sizeof all - at, "%s%s", n ? ", " : "", a->word);
        known[n++] = a->word;
    }
    const char *meant = neb_nearest(word, known, n);
    argp_error(state, "'%s' is %s %s%s%s%s", word, n > 1 ? "none of" : "not", all,
               meant ? "; did you mean '" : "", meant ? meant : "", meant ? "'?" : "");
}

static void take_argument(const struct argp_state *state, const struct line *l, const char *word) {
    if (l->common->n == (l->c->most ? l->c->most : l->c->least))
        argp_usage(state);
    if (l->c->actions && !l->common->n && !action_of(l->c, word))
        refuse_action(state, l->c, word);
    l->common->args[l->common->n++] = word;
}

static void finish(const struct argp_state *state, const struct line *l) {
    const struct agent_command *c = l->c;
    int n = l->common->n;
    if (n < c->least || (c->actions && n && action_of(c, l->common->args[0])->n != n)) {
        if (c->missing)
            argp_error(state, "%s", c->missing);
        else
            argp_usage(state);
    }
    const char *wrong = c->check ? c->check(l->common) : NULL;
    if (wrong)
        argp_error(state, "%s", wrong);
}

static error_t parse(int key, char *value, struct argp_state *state) {
    const struct line *l = state->input;
    const struct agent_option *o = row_of(l->c, key);
    switch (key) {
    case KEY_HELP: argp_state_help(state, stdout, ARGP_HELP_STD_HELP); return 0;
    case KEY_USAGE: argp_state_help(state, stdout, ARGP_HELP_USAGE | ARGP_HELP_EXIT_OK); return 0;
    case ARGP_KEY_ARG: take_argument(state, l, value); return 0;
    case ARGP_KEY_END: finish(state, l); return 0;
    default:
        if (!o)
            return ARGP_ERR_UNKNOWN;
        take_option(state, l, o, value);
        return 0;
    }
}

static void make_line(const struct agent_command *c, struct agent_options *common, struct line *l) {
    int i;
    memset(l, 0, sizeof *l);
    l->c = c;
    l->common = common;
    for (i = 0; c->options[i].name; i++) {
        const struct agent_option *o = &c->options[i];
        NEB_ASSERT(i < ROWS_MAX);
        l->rows[i] = (struct argp_option){.name = o->name, .key = key_of(c, i)};
        if (o->sets == AGENT_OTHER_NAME) {
            l->rows[i].key = key_of(c, i - 1);
            l->rows[i].flags = OPTION_ALIAS;
            continue;
        }
        l->rows[i].arg = o->arg;
        l->rows[i].doc = o->help;
        l->rows[i].flags = o->help ? 0 : OPTION_HIDDEN;
    }
    // argp would add these two itself, but only while it parses
    l->rows[i++] = (struct argp_option){
        .name = "help", .key = KEY_HELP, .doc = "Give this help list", .group = -1};
    l->rows[i] = (struct argp_option){
        .name = "usage", .key = KEY_USAGE, .doc = "Give a short usage message", .group = -1};
    l->argp =
        (struct argp){.options = l->rows, .parser = parse, .args_doc = c->arguments, .doc = c->doc};
}

void agent_command_help(const struct agent_command *c, FILE *f) {
    struct line l;
    char name[32];
    make_line(c, NULL, &l);
    snprintf(name, sizeof name, "nebula %s", c->name);
    argp_help(&l.argp, f, ARGP_HELP_STD_HELP, name);
}

int agent_command_run(const struct agent_command *c, int argc, char **argv) {
    if (c->run_raw)
        return c->run_raw(argc, argv);
    struct line l;
    size_t size = c->size ? c->size : sizeof(struct agent_options);
    struct agent_options *o = calloc(1, size);
    int rc = AGENT_EXIT_USAGE;
    if (!o)
        return AGENT_EXIT_FAILED;
    if (c->preset)
        memcpy(o, c->preset, size);
    make_line(c, o, &l);
    if (all_known(&l, argc, argv) && argp_parse(&l.argp, argc, argv, ARGP_NO_HELP, NULL, &l) == 0)
        rc = c->run(o);
    free(o);
    return rc;
}

bool agent_option_is_wan(const char *value, void *options) {
    struct agent_wan wan;
    (void)options;
    return agent_wan_parse(value, "--wan", &wan) == NEB_OK;
}

bool agent_option_is_type(const char *value, void *options) {
    (void)options;
    return !strcmp(value, "bf16") || !strcmp(value, "fp32");
}
