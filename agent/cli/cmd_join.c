// SPDX-License-Identifier: Apache-2.0
// nebula join, members, rotate: what each member of a federation does.
#include "agent/base/clock.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/cli/cmd_options.h"
#include "security/enrol.h"
#include "security/rotate.h"

#include <signal.h>
#include <sodium.h>
#include <string.h>
#include <time.h>

struct options {
    struct agent_options common;
    const char *name, *endpoint, *fetch;
    bool new_keys;
};

enum { KEY_FETCH = 256, KEY_NEW };

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    struct options *o = state->input;
    switch (key) {
    case 'n': o->name = arg; return 0;
    case 'e': o->endpoint = arg; return 0;
    case KEY_FETCH: o->fetch = arg; return 0;
    case KEY_NEW: o->new_keys = true; return 0;
    default: return agent_parse_option(key, arg, state);
    }
}

#define HOME_OPTIONS AGENT_OPTION_HOME("folder of keys and federation"), AGENT_OPTION_DIR

static enum neb_status home_of(const struct options *o, char home[NEB_PATH_MAX]) {
    if (signal(SIGPIPE, SIG_IGN) == SIG_ERR)
        return neb_fail_errno("SIGPIPE cannot be ignored");
    NEB_TRY(sec_init());
    return sec_home(o->common.home, home, NEB_PATH_MAX);
}

// ---- members ------------------------------------------------------------------------------------

static const char *date(int64_t seconds, char out[32]) {
    time_t t = (time_t)seconds;
    struct tm tm;
    if (!gmtime_r(&t, &tm) || !strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &tm))
        snprintf(out, 32, "?");
    return out;
}

static enum neb_status print_list(const struct sec_federation *f) {
    char hex[2 * NEB_SHA256_BYTES + 1], when[32], id[SEC_ID_TEXT];
    const struct sec_list *l = &f->list;
    neb_hex(f->digest, sizeof f->digest, hex);
    printf("federation: %s\nversion: %llu (%s %s, %s)\ndigest: %s\n", f->name,
           (unsigned long long)l->members.version, sec_list_why_name(l->why), l->subject,
           date(l->issued, when), hex);
    if (l->n_history)
        printf("history: back to version %llu\n",
               (unsigned long long)(l->members.version - l->n_history));
    for (uint32_t i = 0; i < l->members.n; i++) {
        const struct sec_member *e = &l->members.m[i];
        NEB_TRY(sec_public_format(&e->pub, id, sizeof id));
        printf("\nmember: %s\n  role: %s%s\n  endpoint: %s\n  id: %s\n", e->pub.name,
               sec_role_name(e->role), e->caps & SEC_CAP_VOTER ? ", votes" : "",
               e->endpoint[0] ? e->endpoint : "- (dials)", id);
    }
    return fflush(stdout) == 0 ? NEB_OK : neb_fail_errno("stdout");
}

static enum neb_status open_federation(const char *home, struct sec_federation **out) {
    enum neb_status st = sec_federation_open(home, out);
    return st == NEB_ERR_NOT_FOUND
               ? neb_fail(st, "%s is in no federation: run nebula join, or nebula init", home)
               : st;
}

static enum neb_status show(const char *home) {
    struct sec_federation *f = NULL;
    NEB_TRY(open_federation(home, &f));
    enum neb_status st = print_list(f);
    sec_federation_destroy(&f);
    return st;
}

static enum neb_status members(const struct options *o) {
    char home[NEB_PATH_MAX];
    NEB_TRY(home_of(o, home));
    if (o->fetch && !sec_endpoint_valid(o->fetch))
        return neb_fail(NEB_ERR_INVALID, "--fetch takes HOST:PORT");
    if (o->fetch)
        NEB_TRY(sec_enrol_renew(home, o->fetch, NULL));
    return show(home);
}

// ---- join, rotate -------------------------------------------------------------------------------

// If no member has an address, nobody can dial. It is only a warning: members with an address may
// join later.
static void warn_unlinked(const char *home, const char *self) {
    struct sec_federation *f = NULL;
    bool reachable = false;
    if (sec_federation_open(home, &f) != NEB_OK)
        return; // the reason is logged, and the join itself is done
    for (uint32_t i = 0; i < f->list.members.n; i++)
        reachable = reachable || f->list.members.m[i].endpoint[0];
    if (!reachable)
        neb_warn("no member of the federation has an address, so no link is possible yet: the hub "
                 "sets its own with nebula init --link, a member with nebula join --endpoint (to "
                 "change '%s': revoke it, invite it, and join with --new-keys)",
                 self);
    sec_federation_destroy(&f);
}

static enum neb_status join(const struct options *o) {
    char home[NEB_PATH_MAX];
    struct sec_token t = {.name = ""};
    NEB_TRY(home_of(o, home));
    if (o->endpoint && !sec_endpoint_valid(o->endpoint))
        return neb_fail(NEB_ERR_INVALID, "--endpoint takes HOST:PORT");
    enum neb_status st = sec_token_parse(o->common.arg, &t);
    if (st == NEB_ERR_FORMAT || st == NEB_ERR_CORRUPT)
        return NEB_ERR_INVALID; // the argument is not a token; the reason is logged
    NEB_TRY(st);
    if (o->name && strcmp(o->name, t.name) != 0)
        st = neb_fail(NEB_ERR_DENIED, "the token is for '%s', not for '%s'", t.name, o->name);
    if (st == NEB_OK && o->new_keys)
        st = sec_identity_put_aside(home);
    if (st == NEB_OK)
        st = sec_enrol_join(home, &t, o->endpoint ? o->endpoint : "");
    if (st == NEB_OK) {
        printf("joined as '%s'\n", t.name);
        warn_unlinked(home, t.name);
    }
    sodium_memzero(&t, sizeof t);
    return st;
}

static enum neb_status rotate(const struct options *o) {
    char home[NEB_PATH_MAX];
    struct sec_federation *f = NULL;
    NEB_TRY(home_of(o, home));
    if (!sec_endpoint_valid(o->common.arg))
        return neb_fail(NEB_ERR_INVALID, "rotate takes the hub's enrolment endpoint, HOST:PORT");
    NEB_TRY(open_federation(home, &f));
    sec_federation_destroy(&f);
    NEB_TRY(sec_rotate(home, o->common.arg));
    puts("new keys are made. A running agent uses them within seconds, and its jobs continue. The "
         "other members get the new list.");
    return NEB_OK;
}

static int run(int argc, char **argv, const struct argp *argp, enum agent_takes takes,
               enum neb_status (*what)(const struct options *)) {
    struct options o = {.common.takes = takes};
    if (agent_options_parse(argp, argc, argv, &o) != 0)
        return AGENT_EXIT_USAGE;
    // A token must not stay where ps shows it.
    bool piped = what == join && o.common.arg && !strcmp(o.common.arg, "-");
    if (piped || (o.common.arg && !strncmp(o.common.arg, "neb1:", 5))) {
        static char token[SEC_TOKEN_TEXT];
        if (piped && !fgets(token, sizeof token, stdin))
            token[0] = 0;
        token[strcspn(token, "\r\n")] = 0;
        if (!piped)
            snprintf(token, sizeof token, "%s", o.common.arg);
        if (!piped)
            sodium_memzero((char *)(uintptr_t)o.common.arg, strlen(o.common.arg));
        o.common.arg = token;
        enum neb_status st = what(&o);
        sodium_memzero(token, sizeof token);
        return agent_exit_of_input(st);
    }
    return agent_exit_of_input(what(&o));
}

int cmd_join(int argc, char **argv) {
    static const struct argp_option table[] = {
        HOME_OPTIONS,
        {"name", 'n', "NAME", 0, "name of this site, as in the token", 0},
        {"endpoint", 'e', "HOST:PORT", 0,
         "where other agents reach this one (default: it only dials)", 0},
        {"new-keys", KEY_NEW, NULL, 0,
         "keep the old keys aside and make new ones (needed after a revocation)", 0},
        {0}};
    static const struct argp argp = {
        .options = table,
        .parser = parse_option,
        .args_doc = "TOKEN|-",
        .doc =
            "Joins a federation with the token that nebula invite has printed on its hub. The keys "
            "are made here and stay here. -: reads the token from standard input, so that no list "
            "of processes shows it.\vAfter a failure, run it again with the same token."};
    return run(argc, argv, &argp, AGENT_TAKES_ONE, join);
}

int cmd_members(int argc, char **argv) {
    static const struct argp_option table[] = {
        HOME_OPTIONS,
        {"fetch", KEY_FETCH, "HOST:PORT", 0,
         "first get the newest list and a new certificate from the hub's enrolment endpoint", 0},
        {0}};
    static const struct argp argp = {
        .options = table,
        .parser = parse_option,
        .doc = "Prints the signed member list of this node's federation."};
    return run(argc, argv, &argp, AGENT_TAKES_NOTHING, members);
}

int cmd_rotate(int argc, char **argv) {
    static const struct argp_option table[] = {HOME_OPTIONS, {0}};
    static const struct argp argp = {
        .options = table,
        .parser = parse_option,
        .args_doc = "HOST:PORT",
        .doc = "Makes new keys for this member. The hub (HOST:PORT is its enrolment endpoint) "
               "lists them in place of the old ones."};
    return run(argc, argv, &argp, AGENT_TAKES_ONE, rotate);
}
