// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/members.h"

#include "agent/base/clock.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/base/nearest.h"
#include "agent/base/throttle.h"
#include "security/enrol.h"
#include "security/members.h"
#include "security/sign.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <unistd.h>

struct agent_members {
    const struct sec_identity *identity;
    struct sec_federation *fed; // NULL: a pair without a CA
    struct sec_hub *hub;        // NULL: not the hub
    struct sec_enrol_server *server;
    struct sec_members pair_list;             // of a pair
    struct sec_former former[SEC_FORMER_MAX]; // previous keys of fed's members
    size_t n_former;
    neb_ns retry_at; // a hub without a server: when to listen again
    int epoll_fd, notify_fd;
    char pair[NEB_PATH_MAX];             // the file of a pair; "": a federation
    struct neb_throttle refused, forked; // throttles for lists from others
};

// So many of each are logged in a row: the first one of a fork has all the details.
static const unsigned few_refused = 4;

const struct sec_members *agent_members_list(const struct agent_members *m) {
    return m->fed ? &m->fed->list.members : &m->pair_list;
}

static enum neb_status load_pair(struct agent_members *m, const char *home) {
    char *path = m->pair;
    NEB_TRY(neb_path(path, sizeof m->pair, home, "members.json"));
    enum neb_status st = sec_members_load(path, 0, &m->pair_list);
    if (st == NEB_ERR_NOT_FOUND)
        return neb_fail(st,
                        "no members are known in %s: add the other agents with nebula peer add, or "
                        "join a federation with nebula join",
                        path);
    if (st != NEB_OK)
        return neb_fail(st,
                        "%s cannot be used: restore it from a backup, or remove it and add the "
                        "other agents again with nebula peer add",
                        path);
    return st;
}

// Without the previous keys, what they signed is not accepted, which is logged. Nothing else needs
// them.
static void load_former(struct agent_members *m) {
    if (sec_former_load(m->fed->dir, m->former, &m->n_former) != NEB_OK)
        m->n_former = 0;
}

const char *agent_members_advice(const struct agent_members *m, const char *name, char *out,
                                 size_t cap) {
    const struct sec_members *l = agent_members_list(m);
    const char *names[NEB_MEMBERS_MAX];
    for (uint32_t i = 0; i < l->n; i++)
        names[i] = l->m[i].pub.name;
    const char *meant = neb_nearest(name, names, l->n);
    int n = snprintf(out, cap,
                     m->hub   ? "nebula invite %s, here, makes a token for it"
                     : m->fed ? "nebula invite %s, on the hub, makes a token for it"
                              : "add %s with nebula peer add",
                     name);
    if (meant && n > 0 && (size_t)n < cap)
        snprintf(out + n, cap - (size_t)n, "; did you mean '%s'?", meant);
    return out;
}

// Explains why this member's keys are not on the list.
static enum neb_status not_held(const struct agent_members *m, const struct sec_public *me) {
    const struct sec_member *other = sec_members_by_name(agent_members_list(m), me->name);
    bool former = false;
    const char *why = "it is not on the list: it has not joined, or the list here is an old one";
    if (sec_former_holds(m->fed->dir, me->sign, &former) != NEB_OK)
        former = false; // it has logged why
    if (former)
        why = other ? "the list holds other keys for it: nebula rotate made new ones, here or in a "
                      "copy "
                      "of this home"
                    : "it was taken off the list: ask the hub for an invitation, and join with "
                      "--new-keys";
    else if (other)
        why = "the list holds other keys for it: this home is not the one that joined by this name";
    return neb_fail(NEB_ERR_DENIED,
                    "member list version %llu of federation '%s' does not hold the keys of '%s': "
                    "%s",
                    (unsigned long long)m->fed->list.members.version, m->fed->name, me->name, why);
}

static enum neb_status load_signed(struct agent_members *m) {
    const struct sec_public *me = sec_identity_public(m->identity);
    struct sec_cert cert;
    load_former(m);
    if (!agent_members_holds(m, me))
        return not_held(m, me);
    int64_t now = neb_wall_now() / NEB_S;
    if (sec_federation_cert(m->fed, &cert) == NEB_OK &&
        cert.not_after - now < SEC_MEMBER_DAYS * 86400 / 4)
        neb_warn(
            "this member's certificate ends in %lld days and was not renewed: the agent renews it "
            "if it knows its hub (see renew.log); by hand: nebula members --fetch HOST:PORT",
            (long long)((cert.not_after - now) / 86400));
    return NEB_OK;
}

static enum neb_status watch_fd(struct agent_members *m, int fd) {
    struct epoll_event e = {.events = EPOLLIN};
    return epoll_ctl(m->epoll_fd, EPOLL_CTL_ADD, fd, &e) == 0 ? NEB_OK
                                                              : neb_fail_errno("members: epoll");
}

static enum neb_status watch(struct agent_members *m, const char *dir) {
    m->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    m->notify_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (m->epoll_fd < 0 || m->notify_fd < 0 ||
        inotify_add_watch(m->notify_fd, dir, IN_MOVED_TO | IN_CLOSE_WRITE) < 0)
        return neb_fail_errno("members: cannot watch %s", dir);
    return watch_fd(m, m->notify_fd);
}

static enum neb_status start_enrolment(struct agent_members *m) {
    NEB_TRY(sec_enrol_server_create(m->hub, m->identity, m->hub->settings.listen, &m->server));
    return watch_fd(m, sec_enrol_server_fd(m->server));
}

static enum neb_status open_hub(struct agent_members *m, const char *home) {
    enum neb_status st = sec_hub_open(home, &m->hub);
    if (st == NEB_ERR_NOT_FOUND)
        return NEB_OK;
    NEB_TRY(st);
    NEB_TRY(start_enrolment(m));
    neb_info("hub of federation '%s': enrolment on %s", m->fed->name, m->hub->settings.listen);
    return NEB_OK;
}

enum neb_status agent_members_open(const char *home, const struct sec_identity *identity,
                                   struct agent_members **out) {
    struct agent_members *m = calloc(1, sizeof *m);
    if (!m)
        return neb_fail(NEB_ERR_NOMEM, "out of memory: members");
    m->identity = identity;
    m->epoll_fd = m->notify_fd = -1;
    enum neb_status st = sec_federation_open(home, &m->fed);
    if (st == NEB_ERR_NOT_FOUND) {
        NEB_TRY_GOTO(load_pair(m, home), out);
        if (watch(m, home) != NEB_OK)
            neb_warn("changes by nebula peer take effect only at the next start of this agent");
        goto out;
    }
    if (st != NEB_OK)
        goto out;
    NEB_TRY_GOTO(load_signed(m), out);
    NEB_TRY_GOTO(watch(m, m->fed->dir), out);
    st = open_hub(m, home);
out:
    if (st != NEB_OK)
        agent_members_destroy(&m);
    *out = m;
    return st;
}

void agent_members_destroy(struct agent_members **m) {
    if (!m || !*m)
        return;
    sec_enrol_server_destroy(&(*m)->server);
    sec_hub_destroy(&(*m)->hub);
    sec_federation_destroy(&(*m)->fed);
    if ((*m)->notify_fd >= 0)
        close((*m)->notify_fd);
    if ((*m)->epoll_fd >= 0)
        close((*m)->epoll_fd);
    free(*m);
    *m = NULL;
}

int agent_members_fd(const struct agent_members *m) { return m->epoll_fd; }

// Reports the result of reading a list, compared with the previous one.
static void compare(struct agent_members *m, const struct sec_members *before, enum neb_status st,
                    bool say, struct agent_members_change *out) {
    struct sec_members_change diff;
    const struct sec_list *l = &m->fed->list;
    uint64_t version = l->members.version;
    *out = (struct agent_members_change){.forked = st == NEB_ERR_CORRUPT,
                                         .refused = st != NEB_OK,
                                         .settled = st != NEB_OK && m->fed->settled};
    if (st != NEB_OK && say && !out->settled)
        neb_warn("member list version %llu stays in use", (unsigned long long)before->version);
    if (version == before->version)
        return;
    sec_members_diff(before, &l->members, &diff);
    load_former(m);
    out->changed = true;
    out->revoked = diff.removed > 0;
    if (l->why == SEC_LIST_ROTATE && version == before->version + 1)
        memcpy(out->rotated, l->subject, sizeof out->rotated);
    neb_info("member list version %llu (%s %s): %u added, %u removed, %u renewed",
             (unsigned long long)version, sec_list_why_name(l->why), l->subject, diff.added,
             diff.removed, diff.renewed);
}

// nebula peer raises the version. A file that cannot be read, is older, or lacks this node changes
// nothing.
static void reload_pair(struct agent_members *m, struct agent_members_change *out) {
    struct sec_members l;
    struct sec_members_change diff;
    enum neb_status st = sec_members_load(m->pair, m->pair_list.version, &l);
    if (st != NEB_OK || !sec_members_hold(&l, sec_identity_public(m->identity))) {
        neb_warn("%s: version %llu stays in use%s", m->pair,
                 (unsigned long long)m->pair_list.version,
                 st == NEB_OK ? ": the new one does not contain this node" : "");
        out->refused = true;
        return;
    }
    if (l.version == m->pair_list.version)
        return;
    sec_members_diff(&m->pair_list, &l, &diff);
    m->pair_list = l;
    out->changed = true;
    out->revoked = diff.removed > 0;
    neb_info("members.json, version %llu: %u added, %u removed, %u renewed",
             (unsigned long long)l.version, diff.added, diff.removed, diff.renewed);
}

void agent_members_reload(struct agent_members *m, struct agent_members_change *out) {
    *out = (struct agent_members_change){.changed = false};
    if (!m->fed) {
        reload_pair(m, out);
        return;
    }
    struct sec_members before = m->fed->list.members;
    compare(m, &before, sec_federation_reload(m->fed, NULL), true, out);
}

void agent_members_apply(struct agent_members *m, const uint8_t *p, size_t len,
                         struct agent_members_change *out) {
    *out = (struct agent_members_change){.changed = false};
    if (!m->fed)
        return;
    struct sec_members before = m->fed->list.members;
    neb_ns now = neb_now();
    m->fed->hush = !neb_throttle_would_allow(&m->refused, now, few_refused);
    m->fed->hush_forks = !neb_throttle_would_allow(&m->forked, now, few_refused);
    enum neb_status st = sec_federation_apply(m->fed, p, len, NULL);
    bool settled = m->fed->settled, say = st == NEB_OK || settled;
    // changes of a file by an operator are logged in full
    m->fed->hush = m->fed->hush_forks = false;
    if (!say)
        say =
            neb_throttle_allows(st == NEB_ERR_CORRUPT ? &m->forked : &m->refused, now, few_refused);
    compare(m, &before, st, say, out);
}

bool agent_members_only_votes(const struct agent_members *m, const char *name) {
    const struct sec_member *x = sec_members_by_name(agent_members_list(m), name);
    return x && x->role == SEC_ROLE_WITNESS;
}

const struct sec_federation *agent_members_federation(const struct agent_members *m) {
    return m->fed;
}

uint64_t agent_members_refused(const struct agent_members *m) {
    return m->server ? sec_enrol_server_refused(m->server) : 0;
}

bool agent_members_previous_key(const struct agent_members *m, const char *name,
                                uint8_t sign[SEC_KEY_BYTES]) {
    const struct sec_former *f = sec_former_find(m->former, m->n_former, name);
    if (f)
        memcpy(sign, f->sign, SEC_KEY_BYTES);
    return f != NULL;
}

bool agent_members_signed_before(const struct agent_members *m, const char *name,
                                 const char *context, const void *msg, size_t len,
                                 const uint8_t sig[SEC_SIGN_BYTES]) {
    for (size_t i = 0; i < m->n_former; i++)
        if (!strcmp(m->former[i].name, name) &&
            sec_verify(m->former[i].sign, context, msg, len, sig) == NEB_OK)
            return true;
    return false;
}

bool agent_members_signed_as_now(const struct agent_members *m, const char *name,
                                 const char *context, const void *msg, size_t len,
                                 const uint8_t sig[SEC_SIGN_BYTES]) {
    const struct sec_member *now = sec_members_by_name(agent_members_list(m), name);
    if (!now)
        return false;
    if (sec_verify(now->pub.sign, context, msg, len, sig) == NEB_OK)
        return true;
    for (size_t i = m->n_former; i-- > 0;) {
        const struct sec_former *f = &m->former[i];
        if (strcmp(f->name, name) != 0)
            continue;
        if (!f->rotated) // older keys belong to a member that was removed
            return false;
        if (sec_verify(f->sign, context, msg, len, sig) == NEB_OK)
            return true;
    }
    return false;
}

bool agent_members_without_vote(const struct agent_members *m, const char *name) {
    const struct sec_member *x = sec_members_by_name(agent_members_list(m), name);
    return m->fed && x && !(x->caps & SEC_CAP_VOTER);
}

bool agent_members_hub(const struct agent_members *m, char out[SEC_ENDPOINT_MAX]) {
    if (m->hub)
        memcpy(out, m->hub->settings.reach, SEC_ENDPOINT_MAX);
    return m->hub || (m->fed && sec_federation_hub(m->fed, out) == NEB_OK);
}

bool agent_members_holds(const struct agent_members *m, const struct sec_public *p) {
    return sec_members_hold(agent_members_list(m), p);
}

void agent_members_rekey(struct agent_members *m, const struct sec_identity *identity) {
    m->identity = identity;
    sec_enrol_server_destroy(&m->server); // closing its descriptor removes it from the epoll set
    m->retry_at = 0;
}

// Restarts enrolment after a rotation. If it cannot listen yet, jobs continue, and it tries again.
static void serve_enrolment(struct agent_members *m) {
    if (!m->hub || m->server || neb_now() < m->retry_at)
        return;
    if (start_enrolment(m) == NEB_OK)
        return;
    sec_enrol_server_destroy(&m->server);
    m->retry_at = neb_now() + 5 * NEB_S;
}

static bool file_changed(struct agent_members *m) {
    char buf[4096] __attribute__((aligned(8)));
    bool hit = false;
    for (;;) {
        ssize_t n = read(m->notify_fd, buf, sizeof buf);
        if (n <= 0)
            return hit;
        for (ssize_t at = 0; at < n;) {
            const struct inotify_event *e = (const struct inotify_event *)(buf + at);
            hit = hit || (e->len && !strcmp(e->name, m->fed ? "members.neb" : "members.json"));
            at += (ssize_t)(sizeof *e + e->len);
        }
    }
}

static void say_quiet(struct agent_members *m) {
    uint64_t refused = neb_throttle_suppressed(&m->refused, neb_now()),
             forked = neb_throttle_suppressed(&m->forked, neb_now());
    if (refused || forked)
        neb_warn(
            "%llu more member lists of others were refused, and %llu that do not follow from ours",
            (unsigned long long)refused, (unsigned long long)forked);
}

enum neb_status agent_members_step(struct agent_members *m, struct agent_members_change *out) {
    *out = (struct agent_members_change){.changed = false};
    say_quiet(m);
    serve_enrolment(m);
    if (m->server)
        NEB_TRY(sec_enrol_server_step(m->server));
    if (file_changed(m))
        agent_members_reload(m, out);
    return NEB_OK;
}
