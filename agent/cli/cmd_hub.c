// SPDX-License-Identifier: Apache-2.0
// nebula init, invite, revoke, move, promote: what only the hub of a federation does.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/base/number.h"
#include "agent/cli/cmd_options.h"
#include "security/hub.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

struct options {
    struct agent_options common;
    const char *name, *listen, *reach, *link, *member, *backup, *restore, *role;
    int64_t ttl_s; // 0: not given
};

// "24h", "30m", "7d", "90s".
static bool take_ttl(const char *text, void *options) {
    struct options *o = options;
    static const struct {
        char unit;
        int64_t seconds;
    } units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
    char digits[8];
    uint64_t n;
    size_t len = strlen(text);
    if (len < 2 || len > sizeof digits)
        return false;
    memcpy(digits, text, len - 1);
    digits[len - 1] = 0;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (text[len - 1] == units[i].unit && neb_number_whole(digits, 1, 999999, &n)) {
            o->ttl_s = (int64_t)n * units[i].seconds;
            return true;
        }
    return false;
}

#define HOME_OPTIONS OPT_HOME("folder of keys and federation"), OPT_OTHER_NAME("dir")

// ---- init ---------------------------------------------------------------------------------------

// Others cannot use "0.0.0.0:7443" as an address, so the name of this host stands for it.
static enum neb_status reach_default(const char *listen, char out[SEC_ENDPOINT_MAX]) {
    char host[200] = "";
    const char *port = strrchr(listen, ':');
    bool any = !strncmp(listen, "0.0.0.0:", 8) || !strncmp(listen, "[::]:", 5);
    if (any && gethostname(host, sizeof host - 1) != 0)
        return neb_fail_errno("the name of this host (gethostname)");
    snprintf(out, SEC_ENDPOINT_MAX, "%s%s", any ? host : listen, any ? port : "");
    return sec_endpoint_valid(out)
               ? NEB_OK
               : neb_fail(NEB_ERR_INVALID,
                          "cannot find out how others reach %s: give --reach HOST:PORT", listen);
}

static enum neb_status init_settings(const struct options *o, struct sec_hub_settings *s) {
    *s = (struct sec_hub_settings){.listen = ""};
    if (!sec_endpoint_valid(o->listen) || (o->reach && !sec_endpoint_valid(o->reach)) ||
        (o->link && !sec_endpoint_valid(o->link)))
        return neb_fail(NEB_ERR_INVALID, "--listen, --reach and --link take HOST:PORT");
    snprintf(s->listen, sizeof s->listen, "%s", o->listen);
    if (!o->reach)
        return reach_default(o->listen, s->reach);
    snprintf(s->reach, sizeof s->reach, "%s", o->reach);
    return NEB_OK;
}

static enum neb_status own_identity(const char *home, const char *name, struct sec_public *out) {
    struct sec_identity *id = NULL;
    enum neb_status st = sec_identity_load(home, &id);
    if (st == NEB_ERR_NOT_FOUND)
        st = sec_identity_create(home, name, &id);
    NEB_TRY(st);
    *out = *sec_identity_public(id);
    sec_identity_destroy(&id);
    if (name && strcmp(name, out->name) != 0)
        return neb_fail(NEB_ERR_EXISTS, "the identity in %s already has the name '%s'", home,
                        out->name);
    return NEB_OK;
}

enum { CODE_LINE = 256 }; // a pasted code may be indented and have other spaces between its groups

// Makes the CA, or restores it and asks for the code of the backup. code: of a new backup, to be
// shown.
static enum neb_status make_ca(const struct options *o, const char *home, const char *backup,
                               char code[SEC_CODE_TEXT]) {
    if (!o->restore)
        return sec_ca_create(home, o->name, backup, code);
    char line[CODE_LINE];
    fputs("recovery code: ", stderr);
    setvbuf(stdin, NULL, _IONBF, 0); // no copy of the code stays in a buffer
    enum neb_status st = fgets(line, sizeof line, stdin)
                             ? sec_ca_restore(home, o->restore, line)
                             : neb_fail(NEB_ERR_INVALID, "no recovery code on standard input");
    sodium_memzero(line, sizeof line);
    return st;
}

static enum neb_status show_code(const char *backup, const char *code) {
    printf("backup of the CA's key: %s\n  Move it off this host. It opens only with this recovery "
           "code, which is shown once:\n  %s\n",
           backup, code);
    return fflush(stdout) == 0 ? NEB_OK : neb_fail_errno("stdout");
}

enum { MADE_BY_INIT = 4 };
static const char *const made_by_init[MADE_BY_INIT] = {"keys", "identity", "ca", "federation"};

// What existed before. A failing init leaves it as it was.
struct before {
    bool home, backup, part[MADE_BY_INIT];
};

static void look(const char *home, const char *backup, struct before *b) {
    char path[NEB_PATH_MAX];
    b->backup = neb_fs_exists(backup);
    for (int i = 0; i < MADE_BY_INIT; i++)
        b->part[i] =
            neb_path(path, sizeof path, home, made_by_init[i]) != NEB_OK || neb_fs_exists(path);
}

static void undo(const char *home, const char *backup, const struct before *b) {
    char path[NEB_PATH_MAX];
    bool all = b->backup || neb_fs_remove(backup) == NEB_OK;
    for (int i = 0; i < MADE_BY_INIT; i++)
        all = (b->part[i] || (neb_path(path, sizeof path, home, made_by_init[i]) == NEB_OK &&
                              neb_fs_remove_tree(path) == NEB_OK)) &&
              all;
    if (!b->home)
        rmdir(home);
    if (!all) // the name is logged
        neb_warn("this init has left files in %s that are not a federation: remove them", home);
}

// A second init at the same time would use the parts of the first one, and undo them; a first
// `nebula id` makes keys too (sec_identity_first). *fd: holds the lock until it is closed.
static enum neb_status hold(const char *home, int *fd) {
    NEB_TRY(neb_fs_mkdirs(home, 0700));
    *fd = open(home, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*fd < 0)
        return neb_fail_errno("%s", home);
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) // NFS does not lock folders
        return NEB_OK;
    close(*fd);
    return neb_fail(NEB_ERR_AGAIN,
                    "%s is locked: another nebula init, id or join works in it (try again)", home);
}

static enum neb_status init(const struct options *o) {
    char home[NEB_PATH_MAX], path[NEB_PATH_MAX], code[SEC_CODE_TEXT] = "";
    int fd = -1;
    struct sec_hub_settings s;
    struct sec_public self;
    struct before b;
    enum neb_status st;
    if (!o->listen || (!o->name == !o->restore))
        return neb_fail(NEB_ERR_INVALID, "init needs --listen, and --name or --restore");
    NEB_TRY(sec_init());
    NEB_TRY(init_settings(o, &s));
    NEB_TRY(sec_home(o->common.home, home, sizeof home));
    NEB_TRY(neb_path(path, sizeof path, home, "ca-backup"));
    const char *backup = o->backup ? o->backup : path;
    b.home = neb_fs_exists(home);
    NEB_TRY(hold(home, &fd));
    look(home, backup, &b);
    NEB_TRY_GOTO(own_identity(home, o->member, &self), out);
    NEB_TRY_GOTO(make_ca(o, home, backup, code), out);
    if (!o->restore) // before there is a list: without the code, the federation has no backup
        NEB_TRY_GOTO(show_code(backup, code), out);
    NEB_TRY_GOTO(sec_hub_create(home, &s, &self, o->link ? o->link : ""), out);
    printf("this node is '%s', the hub of the federation; enrolment at %s when nebula agent runs\n",
           self.name, s.reach);
    st = fflush(stdout) == 0 ? NEB_OK : neb_fail_errno("stdout");
out:
    sodium_memzero(code, sizeof code);
    if (st != NEB_OK) // also if the code was not shown: nobody could open the backup
        undo(home, backup, &b);
    close(fd);
    return st;
}

static int run_init(void *options) { return agent_exit_of_input(init(options)); }

static const struct agent_option init_table[] = {
    HOME_OPTIONS,
    OPT_TEXT("name", 'n', "NAME", "name of the new federation", AT(name)),
    OPT_TEXT("listen", 'l', "HOST:PORT",
             "where the agent takes enrolments, for example 0.0.0.0:7443", AT(listen)),
    OPT_TEXT("reach", 0, "HOST:PORT", "the enrolment endpoint for other sites (default: this host)",
             AT(reach)),
    OPT_TEXT("link", 0, "HOST:PORT", "where other agents reach this one (default: it only dials)",
             AT(link)),
    OPT_TEXT("member", 0, "NAME", "name of this node (default: the host's)", AT(member)),
    OPT_TEXT("backup", 0, "FILE", "where the CA's backup goes (default HOME/ca-backup)",
             AT(backup)),
    OPT_TEXT("restore", 0, "FILE", "take the CA from this backup; asks for its code", AT(restore)),
    OPT_END};

const struct agent_command cmd_init = {
    .name = "init",
    .summary = "make a federation with this node as its hub",
    .options = init_table,
    .arguments = "--name NAME --listen HOST:PORT",
    .doc = "Makes a federation with this node as its hub: the CA's key, this node's keys, and a "
           "member list of one.",
    .size = sizeof(struct options),
    .run = run_init,
    .home = true};

// ---- invite, revoke, move, promote --------------------------------------------------------------

static enum neb_status hub_open(const char *home_given, struct sec_hub **out) {
    char home[NEB_PATH_MAX];
    NEB_TRY(sec_init());
    NEB_TRY(sec_home(home_given, home, sizeof home));
    enum neb_status st = sec_hub_open(home, out);
    if (st == NEB_ERR_NOT_FOUND)
        return neb_fail(
            st, "%s is not the hub of a federation: run this on the hub, or run nebula init", home);
    return st;
}

// Only the token goes to standard output.
static enum neb_status invite(const struct options *o) {
    struct sec_hub *h = NULL;
    struct sec_token t = {.name = ""};
    char text[SEC_TOKEN_TEXT];
    enum sec_role role = SEC_ROLE_DATA;
    int64_t ttl_s = o->ttl_s ? o->ttl_s : 24 * 3600;
    if (o->role && !sec_role_parse(o->role, &role))
        return neb_fail(NEB_ERR_INVALID, "--role: expected data or witness");
    NEB_TRY(hub_open(o->common.home, &h));
    enum neb_status st = sec_hub_invite(h, o->common.args[0], role, ttl_s, &t);
    if (st == NEB_OK)
        st = sec_token_format(&t, text);
    if (st == NEB_OK && (puts(text) < 0 || fflush(stdout) != 0))
        st = neb_fail_errno("stdout");
    sodium_memzero(&t, sizeof t);
    sodium_memzero(text, sizeof text);
    sec_hub_destroy(&h);
    return st;
}

static int run_invite(void *options) { return agent_exit_of_input(invite(options)); }

static const struct agent_option invite_table[] = {
    HOME_OPTIONS,
    OPT_TAKEN("ttl", 't', "TIME",
              "how long the token is valid, for example 30m or 7d (default 24h, at most 30d)",
              take_ttl, "a time from 1 to 999999 with s, m, h or d (for example 24h)"),
    OPT_TEXT("role", 'r', "ROLE", "data (trains; the default) or witness (only votes)", AT(role)),
    OPT_END};

const struct agent_command cmd_invite = {
    .name = "invite",
    .summary = "print a token for a site that joins",
    .options = invite_table,
    .arguments = "NAME",
    .doc = "Prints a token with which one site can join once, under this name.",
    .least = 1,
    .size = sizeof(struct options),
    .run = run_invite,
    .home = true};

static void say_version(const struct sec_hub *h, const char *name, const char *did) {
    printf("%s %s: member list version %llu\n", name, did,
           (unsigned long long)h->fed->list.members.version);
}

static enum neb_status revoke_member(const struct options *o) {
    struct sec_hub *h = NULL;
    bool member;
    NEB_TRY(hub_open(o->common.home, &h));
    enum neb_status st = sec_hub_revoke(h, o->common.args[0], &member);
    if (st == NEB_OK && member) {
        say_version(h, o->common.args[0], "is revoked");
        neb_info("a job continues if most of its voters are left; a job of two clusters ends after "
                 "a checkpoint (a new job can start from it: init_from: HOME/jobs/ID/checkpoint)");
    } else if (st == NEB_OK) {
        printf("%s is not a member; the open invitations of that name have ended\n",
               o->common.args[0]);
    }
    sec_hub_destroy(&h);
    return st;
}

static enum neb_status move(const struct options *o) {
    struct sec_hub *h = NULL;
    if (!o->link)
        return neb_fail(NEB_ERR_INVALID, "move needs --link HOST:PORT, or --link - for a site that "
                                         "only dials");
    NEB_TRY(hub_open(o->common.home, &h));
    enum neb_status st = sec_hub_move(h, o->common.args[0], strcmp(o->link, "-") ? o->link : "");
    if (st == NEB_OK)
        printf("%s: %s: member list version %llu\n", o->common.args[0],
               strcmp(o->link, "-") ? o->link : "dials",
               (unsigned long long)h->fed->list.members.version);
    sec_hub_destroy(&h);
    return st;
}

static enum neb_status promote(const struct options *o) {
    struct sec_hub *h = NULL;
    NEB_TRY(hub_open(o->common.home, &h));
    enum neb_status st = sec_hub_promote(h, o->common.args[0]);
    if (st == NEB_OK)
        say_version(h, o->common.args[0], "no longer votes");
    sec_hub_destroy(&h);
    return st;
}

static int run_revoke(void *options) { return agent_exit_of_input(revoke_member(options)); }
static int run_move(void *options) { return agent_exit_of_input(move(options)); }
static int run_promote(void *options) { return agent_exit_of_input(promote(options)); }

static const struct agent_option home_table[] = {HOME_OPTIONS, OPT_END};

const struct agent_command cmd_revoke = {
    .name = "revoke",
    .summary = "remove a member from the list",
    .options = home_table,
    .arguments = "NAME",
    .doc = "Removes a member from the list, and ends open invitations with its name.\vA job "
           "continues if most of its voters are left. A job of two clusters ends after a "
           "checkpoint: start a new one with init_from: HOME/jobs/ID/checkpoint. If the federation "
           "has only two voters, nebula promote LOST keeps the job running instead; LOST stays on "
           "the list until the job is done.",
    .least = 1,
    .size = sizeof(struct options),
    .run = run_revoke,
    .home = true};

static const struct agent_option move_table[] = {
    HOME_OPTIONS,
    OPT_TEXT("link", 0, "HOST:PORT", "where other agents reach it now; -: it only dials", AT(link)),
    OPT_END};

const struct agent_command cmd_move = {
    .name = "move",
    .summary = "give a member another address",
    .options = move_table,
    .arguments = "NAME",
    .doc =
        "Gives a member, or this hub, another address on the list. Keys, votes and jobs "
        "stay.\vRunning agents use it when the present link breaks. Start the member's own agent "
        "with a --listen that fits. A member whose only link was to a moved hub gets the list "
        "with nebula members --fetch HOST:PORT (the hub's new enrolment endpoint).",
    .least = 1,
    .size = sizeof(struct options),
    .run = run_move,
    .home = true};

const struct agent_command cmd_promote = {
    .name = "promote",
    .summary = "continue without the lost one of two voters",
    .options = home_table,
    .arguments = "LOST",
    .doc = "With two voters: removes the vote of the lost one, so that the other commits "
           "alone.\vWith more voters, revoke it instead (nebula revoke --help). Make sure that it "
           "is lost: if both continue, their histories diverge.",
    .least = 1,
    .size = sizeof(struct options),
    .run = run_promote,
    .home = true};
