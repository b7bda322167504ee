// SPDX-License-Identifier: Apache-2.0
// Which members may connect: the list in use, newer lists, keys before a rotation. Detects two
// agents with the same keys.
#include "agent/base/log.h"
#include "inter/link/state.h"

#include <string.h>

// Admits every member of the list, and during a rotation's overlap also its previous keys.
void link_admit(struct inter_link *l) {
    struct sec_members m = {.version = l->members.version};
    for (uint32_t i = 0; i < l->n_peers; i++)
        if (l->members.m[i].pub.name[0])
            m.m[m.n++] = l->members.m[i];
    for (uint32_t i = 0; i < l->n_peers; i++) {
        if (!l->peers[i].former_until)
            continue;
        if (m.n == NEB_MEMBERS_MAX) {
            neb_warn("the member list is full: the previous keys of %s are not admitted during its "
                     "rotation",
                     l->peers[i].member.pub.name);
            continue;
        }
        m.m[m.n] = l->peers[i].member;
        m.m[m.n++].pub = l->peers[i].former;
    }
    sec_zap_set(l->zap, &m);
    l->nameless_most = link_guard_most(m.n);
    link_guard_expects(l);
}

void link_peer_init(const struct inter_link *l, struct peer *p, const struct sec_member *x) {
    uint32_t fixed = l->cfg.n_bulk;
    memset(p, 0, sizeof *p);
    inter_stripes_init(&p->stripes,
                       fixed    ? fixed
                       : l->bbr ? INTER_STRIPES_FIRST_BBR
                                : INTER_STRIPES_FIRST,
                       fixed ? fixed : INTER_LINK_MAX_BULK, l->bbr);
    p->member = *x;
    p->revoked = !x->pub.name[0];
    for (int w = 0; w < SETS; w++)
        for (int k = 0; k < CONNS; k++)
            p->s[w].c[k].fd = p->s[w].c[k].zmq_fd = -1;
}

// Index of the peer with this name, removed peers included; n_peers: none.
static uint32_t peer_named(const struct inter_link *l, const char *name) {
    uint32_t i = 0;
    while (i < l->n_peers && strcmp(l->peers[i].member.pub.name, name) != 0)
        i++;
    return i;
}

// Takes one member of a newer list. False: it is new and there is no room.
static bool reload_member(struct inter_link *l, const struct sec_member *x, bool keep_former,
                          neb_ns overlap) {
    uint32_t i = peer_named(l, x->pub.name);
    if (i == NEB_MEMBERS_MAX)
        return false;
    struct peer *p = &l->peers[i];
    if (i == l->n_peers) {
        l->n_peers++;
        link_peer_init(l, p, x);
    }
    l->members.m[i] = *x;
    bool same = !memcmp(&x->pub, &p->member.pub, sizeof x->pub);
    // Also for this member itself: its earlier signatures stay valid.
    if (!same && keep_former && !p->revoked) {
        p->former = p->member.pub;
        p->former_until = neb_now() + overlap;
    } else if (!same || p->parts_at) {
        p->former_until = 0;
        link_peer_close(l, p);
    }
    p->revoked = false;
    bool moved = strcmp(p->member.endpoint, x->endpoint) != 0;
    p->member = *x;
    if (moved)
        link_peer_moved(l, p);
    return true;
}

enum neb_status inter_link_reload(struct inter_link *l, const struct sec_members *m,
                                  const char *rotated, neb_ns overlap, uint32_t *waiting) {
    *waiting = 0;
    if (m->version <= l->members.version)
        return neb_fail(NEB_ERR_DENIED, "member list: version %llu is not newer than %llu",
                        (unsigned long long)m->version, (unsigned long long)l->members.version);
    memset(&l->members, 0, sizeof l->members);
    l->members.version = m->version;
    memcpy(l->members.federation, m->federation, sizeof m->federation);
    for (uint32_t k = 0; k < m->n; k++)
        *waiting +=
            !reload_member(l, &m->m[k], rotated && !strcmp(rotated, m->m[k].pub.name), overlap);
    l->members.n = l->n_peers;
    for (uint32_t i = 0; i < l->n_peers; i++)
        if (!l->members.m[i].pub.name[0] && !l->peers[i].self) {
            l->peers[i].former_until = 0;
            if (!l->peers[i].revoked)
                link_peer_revoke(l, &l->peers[i]);
        }
    link_admit(l);
    return NEB_OK;
}

const struct sec_members *inter_link_members(const struct inter_link *l) { return &l->members; }

const struct sec_public *inter_link_previous_keys(const struct inter_link *l, uint32_t peer,
                                                  neb_ns *until) {
    bool has = peer < l->n_peers && l->peers[peer].former_until;
    if (has && until)
        *until = l->peers[peer].former_until;
    return has ? &l->peers[peer].former : NULL;
}

void inter_link_keep_previous_keys(struct inter_link *l, uint32_t peer,
                                   const struct sec_public *former, neb_ns until) {
    l->peers[peer].former = *former;
    l->peers[peer].former_until = until;
    link_admit(l);
}

// A copied HOME that runs on two hosts makes two agents with one member's keys. They replace each
// other's links, and both sign. A single agent replaces a live set only after a break that this
// side did not notice. It keeps two sets for at most DUPLICATE_GRACE.
static void say_twins(struct peer *p, neb_ns now) {
    if (p->twins.said && now - p->twins.said < TWINS_SPAN)
        return;
    p->twins.said = now;
    p->twins.minutes++;
    neb_warn(
        "link to %s: it dials again and again while its links are up. Either two agents use its "
        "keys, because its HOME was copied and both run: stop one of them, since they replace "
        "each other's links, and signing one round twice is equivocation of %s. Or something "
        "on the path resets connections",
        p->member.pub.name, p->member.pub.name);
}

void link_twins_displaced(struct peer *p, neb_ns now) {
    if (now - p->twins.since > TWINS_SPAN) {
        p->twins.since = now;
        p->twins.displaced = 0;
    }
    if (++p->twins.displaced >= TWINS_DISPLACED)
        say_twins(p, now);
}

void link_twins_look(struct peer *p, neb_ns now) {
    bool both = p->s[DIALED].up && p->s[ACCEPTED].up;
    p->twins.beside = !both ? 0 : p->twins.beside ? p->twins.beside : now;
    if (both && now - p->twins.beside > TWINS_BESIDE)
        say_twins(p, now);
}
