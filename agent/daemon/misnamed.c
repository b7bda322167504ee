// SPDX-License-Identifier: Apache-2.0
// Submitters that give one id to two specifications. An id is the digest of its specification
// (agent/job/id.h), so every site can see that one of them is false, and the signature proves the
// equivocation. A site that got the false one starts no job. It passes the proof on, and the sites
// that got the true one stop: their updates would enter other sums than they expect.
#include "agent/base/log.h"
#include "agent/daemon/state.h"
#include "agent/job/id.h"

#include <stdlib.h>
#include <string.h>

// Limit of proofs per member about ids of unknown jobs, so that a member cannot fill this ledger,
// or make this site send without limit.
enum { MISNAMED_MOST = 16 };

const uint8_t *daemon_federation(const struct daemon *d) {
    static const uint8_t none[SEC_FEDERATION_BYTES];
    return agent_members_federation(d->trust) ? d->members.federation : none;
}

bool daemon_id_fits(const struct daemon *d, const char *submitter, const char *hex,
                    const json_t *spec) {
    uint8_t said[AGENT_JOB_ID_BYTES], id[AGENT_JOB_ID_BYTES];
    return hex && neb_unhex(hex, said, sizeof said) &&
           agent_job_id(daemon_federation(d), submitter, spec, id) == NEB_OK &&
           !memcmp(said, id, sizeof id);
}

bool daemon_spec_is_read(const json_t *spec) {
    struct agent_job *job = calloc(1, sizeof *job);
    bool read = job && agent_job_from_json(spec, job) == NEB_OK;
    free(job);
    return read;
}

// Sends the statement once to every member in a list of clusters.
static void pass_on(struct daemon *d, uint32_t from, const json_t *spec, const json_t *statement,
                    struct member_set *told) {
    const json_t *c;
    size_t i;
    json_array_foreach(json_object_get(spec, "clusters"), i, c) {
        const char *name = json_string_value(json_object_get(c, "name"));
        const struct sec_member *m = name ? sec_members_by_name(&d->members, name) : NULL;
        uint32_t peer = m ? (uint32_t)(m - d->members.m) : from;
        if (peer == from || !strcmp(name, daemon_name(d)) || mset_has(*told, (int)peer))
            continue;
        mset_add(told, (int)peer);
        daemon_post(d, peer, AGENT_MSG_JOB, json_copy((json_t *)(uintptr_t)statement), true);
    }
}

static void end_job(struct daemon *d, const char *hex, const char *by, const char *why) {
    struct agent_jobrun *j = daemon_job(d, hex);
    char text[640];
    snprintf(text, sizeof text,
             "%s. The job ends here. On the hub: nebula revoke %s; then submit it again, from "
             "another member",
             why, by);
    agent_view_event(d->view, j ? hex : NULL, by, text, neb_seconds(neb_wall_now()));
    neb_log(NEB_LOG_ERROR, "job %.8s: %s", hex, text);
    if (!j || j->state != AGENT_JOB_RUNNING)
        return;
    daemon_job_fail(d, j, text);
}

void daemon_on_misnamed(struct daemon *d, uint32_t peer, const char *by, const char *hex,
                        const json_t *body, char *why, size_t cap) {
    struct agent_job_record r;
    uint8_t id[AGENT_JOB_ID_BYTES];
    bool fresh = false, known = daemon_job_recall(d, hex, &r) == NEB_OK,
         own = known && !strcmp(r.home[0] ? r.home : daemon_name(d), by);
    snprintf(why, cap,
             "\"%s\" has signed the job id %.8s over a specification that does not belong to it; "
             "others may have got another specification",
             by, hex);
    json_t *statement =
        json_pack("{s:s,s:O,s:s,s:O,s:b}", "id", hex, "spec", json_object_get(body, "spec"), "home",
                  by, "sig", json_object_get(body, "sig"), "again", 1);
    char *text = json_dumps(statement, JSON_COMPACT);
    bool kept = text && neb_unhex(hex, id, sizeof id) &&
                inter_ledger_put_misnamed(inter_service_ledger(d->service), id, by, text,
                                          own ? 0 : MISNAMED_MOST, &fresh) == NEB_OK;
    if (!kept)
        neb_warn("job %.8s: the proof that %s has equivocated could not be stored", hex, by);
    if (fresh) {
        struct member_set told = mset_none();
        neb_log(NEB_LOG_ERROR, "%s: both are kept in the ledger as proof", why);
        pass_on(d, peer, r.spec, statement, &told);
        pass_on(d, peer, json_object_get(body, "spec"), statement, &told);
    }
    const struct agent_jobrun *j = daemon_job(d, hex);
    if (own && (fresh || (j && j->state == AGENT_JOB_RUNNING)))
        end_job(d, hex, by, why);
    free(text);
    json_decref(statement);
    agent_job_record_clear(&r);
}

bool daemon_was_misnamed(const struct daemon *d, const uint8_t id[AGENT_JOB_ID_BYTES],
                         const char *submitter, char *why, size_t cap) {
    bool was = false;
    if (inter_ledger_was_misnamed(inter_service_ledger(d->service), id, submitter, &was) != NEB_OK)
        was = true; // unreadable: it may be there
    if (was)
        snprintf(why, cap,
                 "\"%s\", which submitted it, has also signed its id over another specification "
                 "(nebula ledger shows it): such a job does not continue",
                 submitter);
    return was;
}
