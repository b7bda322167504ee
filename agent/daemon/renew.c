// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/renew.h"

#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "security/ca.h"

static const neb_ns look_every = 60 * NEB_S, try_first = 5 * NEB_S, try_every = 3600 * NEB_S;

static void ended(const struct agent_members *m, int status) {
    struct sec_cert cert;
    char reason[96], what[48] = "cannot be read";
    if (sec_federation_cert(agent_members_federation(m), &cert) == NEB_OK)
        snprintf(what, sizeof what, "ends in %lld days",
                 (long long)((cert.not_after - neb_wall_now() / NEB_S) / 86400));
    if (status == 0)
        neb_info("this member's certificate was renewed; it %s", what);
    else
        neb_warn("this member's certificate, which %s, could not be renewed (%s): is the hub's "
                 "agent running? This agent tries again; by hand: nebula members --fetch HOST:PORT",
                 what, agent_child_reason(status, reason, sizeof reason));
}

// Also due if the certificate is missing or cannot be read: a new one repairs that.
static bool is_due(const struct agent_renew *r, const struct sec_federation *f) {
    struct sec_cert cert;
    int days = r->before_days ? r->before_days : SEC_MEMBER_DAYS / 3;
    return sec_federation_cert(f, &cert) != NEB_OK ||
           cert.not_after - neb_wall_now() / NEB_S <= (int64_t)days * 86400;
}

void agent_renew_step(struct agent_renew *r, const struct agent_members *m) {
    const struct sec_federation *f = agent_members_federation(m);
    char hub[SEC_ENDPOINT_MAX], log[NEB_PATH_MAX];
    int status;
    if (!f)
        return;
    neb_ns now = neb_now();
    if (r->child.pid && agent_child_ended(&r->child, &status)) {
        ended(m, status);
        r->wait = status == 0 ? 0 : r->wait ? 2 * r->wait : try_first;
        r->wait = r->wait < try_every ? r->wait : try_every;
        r->next = now + (r->wait ? r->wait : try_every);
    }
    if (now < r->next || r->child.pid)
        return;
    r->next = now + look_every;
    if (!is_due(r, f))
        return;
    r->next = now + try_every;
    if (!agent_members_hub(m, hub) || neb_path(log, sizeof log, r->home, "renew.log") != NEB_OK)
        return;
    const char *const argv[] = {r->exe, "members", "--fetch", hub, "--dir", r->home, NULL};
    if (agent_child_start(&r->child, "renewal", argv, log, NULL) != NEB_OK)
        neb_warn("this member's certificate could not be renewed; the log says why");
}
