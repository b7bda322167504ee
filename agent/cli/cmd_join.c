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

#define HOME_OPTIONS OPT_HOME("folder of keys and federation"), OPT_OTHER_NAME("dir")

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
    enum neb_status st = sec_token_parse(o->common.args[0], &t);
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
    if (!sec_endpoint_valid(o->common.args[0]))
        return neb_fail(NEB_ERR_INVALID, "rotate takes the hub's enrolment endpoint, HOST:PORT");
    NEB_TRY(open_federation(home, &f));
    sec_federation_destroy(&f);
    NEB_TRY(sec_rotate(home, o->common.args[0]));
    puts("new keys are made. A running agent uses them within seconds, and its jobs continue. The "
         "other members get the new list.");
    return NEB_OK;
}

static int run_members(void *options) { return agent_exit_of_input(members(options)); }
static int run_rotate(void *options) { return agent_exit_of_input(rotate(options)); }

// A token must not stay where ps shows it.
static int run_join(void *options) {
    struct options *o = options;
    char *given = (char *)(uintptr_t)o->common.args[0];
    bool piped = !strcmp(given, "-");
    char token[SEC_TOKEN_TEXT];
    if (!piped && strncmp(given, "neb1:", 5) != 0)
        return agent_exit_of_input(join(o));
    if (piped) {
        if (!fgets(token, sizeof token, stdin))
            token[0] = 0;
        token[strcspn(token, "\r\n")] = 0;
    } else {
        snprintf(token, sizeof token, "%s", given);
        sodium_memzero(given, strlen(given));
    }
    o->common.args[0] = token;
    enum neb_status st = join(o);
    sodium_memzero(token, sizeof token);
    return agent_exit_of_input(st);
}

static const struct agent_option join_table[] = {
    HOME_OPTIONS, OPT_TEXT("name", 'n', "NAME", "name of this site, as in the token", AT(name)),
    OPT_TEXT("endpoint", 'e', "HOST:PORT",
             "where other agents reach this one (default: it only dials)", AT(endpoint)),
    OPT_FLAG("new-keys", 0, "keep the old keys aside and make new ones (needed after a revocation)",
             AT(new_keys)),
    OPT_END};

const struct agent_command cmd_join = {
    .name = "join",
    .summary = "join a federation with a token",
    .options = join_table,
    .arguments = "TOKEN|-",
    .doc = "Joins a federation with the token that nebula invite has printed on its hub. The keys "
           "are made here and stay here. -: reads the token from standard input, so that no list "
           "of processes shows it.\vAfter a failure, run it again with the same token.",
    .least = 1,
    .size = sizeof(struct options),
    .run = run_join,
    .home = true};

static const struct agent_option members_table[] = {
    HOME_OPTIONS,
    OPT_TEXT("fetch", 0, "HOST:PORT",
             "first get the newest list and a new certificate from the hub's enrolment endpoint",
             AT(fetch)),
    OPT_END};

const struct agent_command cmd_members = {
    .name = "members",
    .summary = "show the signed member list",
    .options = members_table,
    .doc = "Prints the signed member list of this node's federation.",
    .size = sizeof(struct options),
    .run = run_members,
    .home = true};

static const struct agent_option rotate_table[] = {HOME_OPTIONS, OPT_END};

const struct agent_command cmd_rotate = {
    .name = "rotate",
    .summary = "give this member new keys",
    .options = rotate_table,
    .arguments = "HOST:PORT",
    .doc = "Makes new keys for this member. The hub (HOST:PORT is its enrolment endpoint) lists "
           "them in place of the old ones.",
    .least = 1,
    .size = sizeof(struct options),
    .run = run_rotate,
    .home = true};
