// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/spread.h"

#include "agent/base/log.h"
#include "agent/daemon/daemon.h"

#include <string.h>

enum { STAND_BYTES = 8 + NEB_SHA256_BYTES };
// Limits of what a peer can cost: two verified signatures and two sent lists per second. After a
// refused list, the next is checked after two seconds: even an honest one is refused if another
// peer has just brought a newer list. So a revocation is in use within five seconds.
static const neb_ns look_every = 500 * NEB_MS, look_after_refused = 2 * NEB_S,
                    send_every = 500 * NEB_MS;
// a peer with a contradicting history: the fork has been logged
static const neb_ns look_after_forked = 10 * NEB_S;

void agent_spread_stand(struct agent_spread *s, const bool *up) {
    const struct sec_federation *f = agent_members_federation(s->members);
    uint8_t b[STAND_BYTES];
    uint64_t unsaid = neb_throttle_suppressed(&s->malformed, neb_now());
    if (unsaid)
        neb_warn("%llu more malformed messages about member lists were dropped",
                 (unsigned long long)unsaid);
    if (!f)
        return;
    neb_put_u64(b, f->list.members.version);
    memcpy(b + 8, f->digest, sizeof f->digest);
    for (uint32_t i = 0; i < NEB_MEMBERS_MAX; i++)
        if (up[i])
            (void)!inter_service_send_telemetry(s->service, i, AGENT_MSG_LIST_STAND, b, sizeof b);
}

static void send_list(struct agent_spread *s, uint32_t peer) {
    const struct sec_federation *f = agent_members_federation(s->members);
    if (inter_service_send_telemetry(s->service, peer, AGENT_MSG_LIST, f->signed_list.p,
                                     f->signed_list.len) == NEB_OK)
        s->sends[peer] = neb_now() + send_every;
}

void agent_spread_list(struct agent_spread *s, const bool *up) {
    for (uint32_t i = 0; agent_members_federation(s->members) && i < NEB_MEMBERS_MAX; i++)
        if (up[i])
            send_list(s, i);
}

// Two different lists of one version: each side sends its own, which proves the fork to the other.
// If only this side knows of the fork, because the peer's newer list contradicts ours, our list
// proves it to the peer.
static void on_stand(struct agent_spread *s, uint32_t peer, struct neb_rd *r) {
    const struct sec_federation *f = agent_members_federation(s->members);
    uint8_t digest[NEB_SHA256_BYTES];
    uint64_t version = neb_rd_u64(r);
    neb_rd_copy(r, digest, sizeof digest);
    if (!neb_rd_done(r)) {
        if (neb_throttle_allows(&s->malformed, neb_now(), 1))
            neb_warn("a malformed message of %s about member lists was dropped; further ones are "
                     "counted",
                     inter_service_members(s->service)->m[peer].pub.name);
    } else if (neb_now() >= s->sends[peer] &&
               (version < f->list.members.version || s->forked[peer] ||
                (version == f->list.members.version &&
                 memcmp(digest, f->digest, sizeof digest) != 0)))
        send_list(s, peer);
}

bool agent_spread_message(struct agent_spread *s, uint32_t peer, uint32_t kind, const uint8_t *p,
                          size_t n, struct agent_members_change *out) {
    *out = (struct agent_members_change){.changed = false};
    if (kind != AGENT_MSG_LIST_STAND && kind != AGENT_MSG_LIST)
        return false;
    struct neb_rd r = neb_rd_make(p, n);
    if (!agent_members_federation(s->members) || peer >= NEB_MEMBERS_MAX)
        return true; // a pair without a CA has no list to send
    if (kind == AGENT_MSG_LIST_STAND) {
        on_stand(s, peer, &r);
        return true;
    }
    neb_ns now = neb_now();
    if (now < s->looks[peer])
        return true; // it is sent again
    agent_members_apply(s->members, p, n, out);
    s->forked[peer] = out->forked || out->settled || (s->forked[peer] && !out->changed);
    s->looks[peer] = now + (s->forked[peer] ? look_after_forked
                            : out->refused  ? look_after_refused
                                            : look_every);
    return true;
}
