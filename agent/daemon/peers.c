// SPDX-License-Identifier: Apache-2.0
// What other agents say: jobs that they submit or pass on, their reports, that they came and went, what was wrong with it.
#include "agent/base/log.h"
#include "agent/daemon/lines.h"
#include "agent/daemon/policy.h"
#include "agent/daemon/state.h"
#include "agent/daemon/status.h"
#include "agent/daemon/sums.h"
#include "agent/job/json.h"

#include <stdlib.h>
#include <string.h>

// {"id", "spec", "home", "sig", "run"}: a job for another site, signed (but for the last) by the member that submitted it.
json_t *daemon_signed_job(struct daemon *d, const struct agent_jobrun *j) {
    struct neb_buf b = {0};
    uint8_t sig[SEC_SIGN_BYTES];
    char hex[2 * SEC_SIGN_BYTES + 1] = "";
    // What is not its id's is a lie to whoever hears it (daemon_misnamed.c), whatever has become of
    // the federation since.
    if (j->local && daemon_id_fits(d, daemon_name(d), j->hex, j->spec) &&
        agent_job_signed_bytes(daemon_federation(d), j->id, j->spec, &b) == NEB_OK &&
        sec_sign(d->identity, AGENT_CONTEXT_JOB, b.p, b.len, sig) == NEB_OK)
        neb_hex(sig, sizeof sig, hex);
    neb_buf_free(&b);
    return json_pack("{s:s,s:O,s:s,s:s,s:I}", "id", j->hex, "spec", j->spec, "home",
                     j->local ? daemon_name(d) : j->owner, "sig", j->local ? hex : j->sig, "run",
                     (json_int_t)j->run);
}

bool daemon_job_is_of_owner(const struct daemon *d, const struct agent_job_record *r) {
    struct neb_buf b = {0};
    uint8_t sig[SEC_SIGN_BYTES], id[AGENT_JOB_ID_BYTES];
    bool ok = neb_unhex(r->sig, sig, sizeof sig) && neb_unhex(r->hex, id, sizeof id) &&
              agent_job_signed_bytes(daemon_federation(d), id, r->spec, &b) == NEB_OK &&
              agent_members_signed_as_now(d->trust, r->home, AGENT_CONTEXT_JOB, b.p, b.len, sig);
    neb_buf_free(&b);
    return ok;
}

// Whether home (UINT32_MAX: this member) has signed this job, whoever passes it on.
static bool job_is_signed(struct daemon *d, uint32_t home, const char *id_hex, const json_t *body) {
    struct neb_buf b = {0};
    uint8_t sig[SEC_SIGN_BYTES], id[AGENT_JOB_ID_BYTES];
    const char *hex = json_string_value(json_object_get(body, "sig"));
    const struct sec_member *me = sec_members_by_name(&d->members, daemon_name(d));
    if (home == UINT32_MAX && me)
        home = (uint32_t)(me - d->members.m);
    bool ok = hex && neb_unhex(hex, sig, sizeof sig) && neb_unhex(id_hex, id, sizeof id) &&
              agent_job_signed_bytes(daemon_federation(d), id, json_object_get(body, "spec"), &b) ==
                  NEB_OK &&
              inter_service_verify(d->service, home, AGENT_CONTEXT_JOB, b.p, b.len, sig);
    neb_buf_free(&b);
    return ok;
}

// Where a job that is offered again was submitted: here (UINT32_MAX; our disk was lost), at another member, or at the one that offers it.
static uint32_t named_home(const struct daemon *d, const json_t *body, uint32_t peer) {
    const char *name = json_string_value(json_object_get(body, "home"));
    const struct sec_member *m = name ? sec_members_by_name(&d->members, name) : NULL;
    if (name && !strcmp(name, daemon_name(d)))
        return UINT32_MAX;
    return m ? (uint32_t)(m - d->members.m) : peer;
}

static const char *member_of(const struct daemon *d, uint32_t home) {
    return home == UINT32_MAX ? daemon_name(d) : d->members.m[home].pub.name;
}

static const char not_signed[] =
    "the job specification is not signed by the member that submits it";

static void refuse_by(struct daemon *d, uint32_t peer, const char *hex, const char *why,
                      bool reliable) {
    json_t *body = json_pack("{s:s,s:s}", "id", hex, "reason", why);
    char *text = reliable ? json_dumps(body, JSON_COMPACT) : NULL;
    if (text) // one of its kind waits, however often it is asked for: the newest
        (void)!inter_service_unsend(d->service, peer, AGENT_MSG_REFUSED, text, strlen(text));
    free(text);
    daemon_post(d, peer, AGENT_MSG_REFUSED, body, reliable);
    if (daemon_throttle_allows(d, THROTTLE_OFFERS))
        neb_warn("job %.8s of %s refused: %s", hex, d->members.m[peer].pub.name, why);
}

// Said once, and not kept: a member that asks without end would fill this one's ledger by the answers. Where the link breaks over it the job
// is offered again with the next one.
static void refuse(struct daemon *d, uint32_t peer, const char *hex, const char *why) {
    refuse_by(d, peer, hex, why, false);
}

// Of a job that is known here: an offer with the next link is not looked at (on_job), so the answer is kept until it is taken.
static void refuse_known(struct daemon *d, uint32_t peer, const char *hex, const char *why) {
    refuse_by(d, peer, hex, why, true);
}

// Whether one more offer of a job is looked at. One that comes unasked is not answered either; of the others the answer is due, but where the
// job runs here: behind an outage come all that were submitted in it, and the last one was offered again before them.
static bool looks_at(struct daemon *d, uint32_t peer, const char *hex, bool again) {
    if (neb_bucket_take(&d->offers[peer], neb_now(), 1, DAEMON_OFFERS_BURST,
                        DAEMON_OFFERS_A_SECOND))
        return true;
    const struct agent_jobrun *j = daemon_job(d, hex);
    if (!again && !(j && j->state == AGENT_JOB_RUNNING))
        refuse(d, peer, hex, "too many jobs were offered at once");
    return false;
}

// n_clusters: none.
static int cluster_of(const struct agent_jobrun *j, uint32_t peer) {
    int k = 0;
    while (k < j->job.n_clusters && (k == j->self || j->peers[k] != peer))
        k++;
    return k;
}

static bool is_cluster(const struct agent_jobrun *j, uint32_t peer) {
    return j->job.sync.scheme != AGENT_SCHEME_SYNCHRONOUS &&
           cluster_of(j, peer) < j->job.n_clusters;
}

// The same of a job that has ended: by name.
static bool names_cluster(const json_t *spec, const char *name) {
    const json_t *c;
    size_t i;
    json_array_foreach(json_object_get(spec, "clusters"), i, c) {
        const char *s = json_string_value(json_object_get(c, "name"));
        if (s && !strcmp(s, name))
            return true;
    }
    return false;
}

// Which run of the job a message is about; 0: it does not say, or what no clock would.
static int64_t run_of(const json_t *body) {
    const int64_t day_ms = 86400 * 1000;
    int64_t run = json_integer_value(json_object_get(body, "run"));
    return run > 0 && run <= neb_wall_now() / NEB_MS + day_ms ? run : 0;
}

// A job that was here before: the same, of the same member, begun again by that one, or gone on with by one of its clusters. Where its
// clusters train may be new (agent_job_differs), in that member's words only.
static void on_known_job(struct daemon *d, uint32_t peer, uint32_t home, const json_t *body,
                         const struct agent_job_record *known) {
    char why[512];
    const char *sig = known->sig;
    json_t *spec = json_object_get(body, "spec");
    bool resume = json_is_true(json_object_get(body, "resume"));
    int64_t run = run_of(body);
    if (!daemon_job_is_same(d, known, spec, home, why, sizeof why)) {
        refuse_known(d, peer, known->hex, why);
        return;
    }
    if (resume && !names_cluster(known->spec, d->members.m[peer].pub.name)) {
        refuse_known(d, peer, known->hex, "only a cluster of the job goes on with it");
        return;
    }
    if (resume && run && run <= known->run)
        return; // of a run that was stopped, or gone on with, since
    // What was signed when the job first came needs no second look: keys may have been rotated since. A signature with the present ones is
    // worth more, and kept.
    bool is_signed = job_is_signed(d, home, known->hex, body);
    if (!is_signed && !json_equal(known->spec, spec)) {
        refuse_known(d, peer, known->hex, not_signed);
        return;
    }
    if (is_signed)
        sig = json_string_value(json_object_get(body, "sig"));
    if (d->stopping) {
        daemon_job_later(d, known, spec, sig, run);
        return;
    }
    struct agent_jobrun *j = daemon_job(d, known->hex);
    bool stopping = j && j->state == AGENT_JOB_STOPPING;
    j = daemon_job_accept(d, known->hex, spec, home, why, sizeof why);
    if (!j) {
        refuse_known(d, peer, known->hex, why);
        return;
    }
    j->resume_due |= stopping;
    if (!j->local)
        daemon_job_set_home(d, j, home, sig);
    daemon_job_resumed(d, j, run);
}

// A job that is in the ledger only: held, or without a place since this agent was started. It would begin again by itself.
static void stop_known(struct daemon *d, uint32_t peer, struct agent_job_record *r, int64_t run) {
    const char *scheme = json_string_value(json_object_get(r->spec, "sync.scheme"));
    bool waits =
        !strcmp(r->state, "held") || !strcmp(r->state, "running") || !strcmp(r->state, "stopping");
    bool may = names_cluster(r->spec, d->members.m[peer].pub.name) &&
               !(scheme && !strcmp(scheme, "synchronous"));
    if (waits && may && (!run || run >= r->run) &&
        daemon_job_end_known(d, r, "was stopped at another of its clusters") != NEB_OK)
        neb_warn("that job %.8s is stopped could not be stored", r->hex);
}

// Of another cluster of the job, or of a member that may be one of a job that has not come yet.
static void on_stop(struct daemon *d, struct agent_jobrun *j, uint32_t peer, const char *hex,
                    int64_t run) {
    struct agent_job_record known;
    if (j && (!run || run >= j->run))
        daemon_job_stop_asked(d, j);
    if (j || daemon_job(d, hex)) // of this run no more, or not for this member to say
        return;
    enum neb_status st = daemon_job_recall(d, hex, &known);
    if (st == NEB_ERR_NOT_FOUND) {
        struct daemon_early_stop *e =
            &d->early_stops[peer][d->n_early_stops[peer]++ % AGENT_JOBS_MAX];
        snprintf(e->hex, sizeof e->hex, "%s", hex);
        e->run = run;
        return;
    }
    if (st == NEB_OK)
        stop_known(d, peer, &known, run);
    agent_job_record_clear(&known);
}

// A look through the ledger each, and an honest member asks again each second.
bool daemon_job_over(void *user, const uint8_t id[AGENT_JOB_ID_BYTES], uint32_t peer) {
    struct daemon *d = user;
    struct agent_job_record r;
    char hex[2 * AGENT_JOB_ID_BYTES + 1];
    neb_hex(id, AGENT_JOB_ID_BYTES, hex);
    if (!neb_bucket_take(&d->overs[peer], neb_now(), 1, DAEMON_OFFERS_BURST,
                         DAEMON_OFFERS_A_SECOND) ||
        daemon_job_recall(d, hex, &r) != NEB_OK)
        return false;
    bool over = !strcmp(r.state, "done") && names_cluster(r.spec, d->members.m[peer].pub.name);
    agent_job_record_clear(&r);
    return over;
}

static bool was_stopped(const struct daemon *d, const struct agent_jobrun *j) {
    for (int k = 0; k < j->job.n_clusters; k++)
        for (int i = 0; i < AGENT_JOBS_MAX && agent_job_has_peer(j, k); i++) {
            const struct daemon_early_stop *e = &d->early_stops[j->peers[k]][i];
            if (!strcmp(e->hex, j->hex) && (!e->run || e->run >= j->run))
                return true;
        }
    return false;
}

// An offer under an id that is not its text's. Where its submitter has signed that, it is a lie,
// whoever tells of it.
static void on_unfit_job(struct daemon *d, uint32_t peer, uint32_t home, const char *hex,
                         const json_t *body) {
    char why[512];
    uint8_t id[AGENT_JOB_ID_BYTES];
    struct agent_job_record known;
    if (!neb_unhex(hex, id, sizeof id))
        return; // no id
    bool again = json_is_true(json_object_get(body, "again"));
    bool is_signed = job_is_signed(d, home, hex, body);
    if (is_signed && !daemon_spec_is_read(json_object_get(body, "spec"))) {
        if (!again) // of another version, whose ids are its own affair
            refuse(d, peer, hex, "the job specification is not one of this version of nebula");
        return;
    }
    if (is_signed) {
        daemon_on_misnamed(d, peer, member_of(d, home), hex, body, why, sizeof why);
        if (!again)
            refuse(d, peer, hex, why);
        return;
    }
    if (again) {
        neb_debug("a job was offered again without its submitter's signature");
        return;
    }
    bool is_known = daemon_job_recall(d, hex, &known) == NEB_OK;
    if (is_known &&
        !daemon_job_is_same(d, &known, json_object_get(body, "spec"), home, why, sizeof why))
        refuse_known(d, peer, hex, why);
    else
        refuse(d, peer, hex, not_signed);
    agent_job_record_clear(&known);
}

// A job that another agent submits, goes on with, or (again) offers because this one may have lost it.
static void on_job(struct daemon *d, uint32_t peer, const char *hex, const json_t *body) {
    char why[512];
    bool again = json_is_true(json_object_get(body, "again")),
         resume = json_is_true(json_object_get(body, "resume"));
    // An offer comes anew with each link. What has a receipt does not: of a job that is known it is kept for the next start.
    if ((d->stopping && again) || !looks_at(d, peer, hex, again))
        return;
    uint32_t home = again || resume ? named_home(d, body, peer) : peer;
    if (!daemon_id_fits(d, member_of(d, home), hex, json_object_get(body, "spec"))) {
        on_unfit_job(d, peer, home, hex, body);
        return;
    }
    struct agent_job_record known;
    enum neb_status st = daemon_job_recall(d, hex, &known);
    if (st != NEB_ERR_NOT_FOUND) {
        if (st == NEB_OK && !again)
            on_known_job(d, peer, home, body, &known);
        else if (st == NEB_OK && !daemon_job(d, hex) && !strcmp(known.state, "done") &&
                 names_cluster(known.spec, d->members.m[peer].pub.name))
            daemon_job_reopen(d, &known); // the others had ended it while that one was away
        agent_job_record_clear(&known);
        return;
    }
    uint8_t id[AGENT_JOB_ID_BYTES];
    bool forgotten = true;
    if (again && neb_unhex(hex, id, sizeof id) &&
        inter_ledger_was_dropped(inter_service_ledger(d->service), id, &forgotten) == NEB_OK &&
        forgotten)
        return;      // it has ended here, and was removed; it goes on there without this one
    if (d->stopping) // not known here: offered again once this agent is back
        return;
    if (!job_is_signed(d, home, hex, body)) {
        if (again)
            neb_debug("a job was offered again without its submitter's signature");
        else
            refuse(d, peer, hex, not_signed);
        return;
    }
    struct agent_jobrun *j =
        daemon_job_accept(d, hex, json_object_get(body, "spec"), home, why, sizeof why);
    if (!j) {
        refuse(d, peer, hex, why);
        return;
    }
    if (!j->local)
        daemon_job_set_home(d, j, home, json_string_value(json_object_get(body, "sig")));
    daemon_job_resumed(d, j, run_of(body));
    if (was_stopped(d, j))
        daemon_job_stop(d, j);
}

static void on_refused(struct daemon *d, struct agent_jobrun *j, const char *from,
                       const json_t *body) {
    const char *reason = json_string_value(json_object_get(body, "reason"));
    if (j->state != AGENT_JOB_RUNNING)
        return; // it was said, and the job stops
    neb_warn("job %s: %s refuses it: %s", j->job.name, from, reason ? reason : "no reason given");
    daemon_publish_report(
        d, j, json_pack("{s:s,s:s}", "name", from, "error", reason ? reason : "refused"));
    daemon_job_stop(d, j);
}

// Whether what another cluster tells of a job that was submitted here is passed on: lines and reports go to whoever follows it, and there to disk.
static bool passes_on(struct daemon *d, struct agent_jobrun *j, int cluster, size_t lines,
                      size_t bytes) {
    enum {
        BYTES_MOST = AGENT_LINES_TAKEN * AGENT_LINES_BYTES_BURST,
        BYTES_A_SECOND = AGENT_LINES_TAKEN * AGENT_LINES_BYTES_A_SECOND
    };
    neb_ns now = neb_now();
    if (neb_bucket_left(&j->told_bytes[cluster], now, BYTES_MOST, BYTES_A_SECOND) >=
            (double)bytes &&
        neb_bucket_take(&j->told_lines[cluster], now, (double)lines,
                        AGENT_LINES_TAKEN * AGENT_LINES_BURST,
                        AGENT_LINES_TAKEN * AGENT_LINES_A_SECOND)) {
        neb_bucket_use(&j->told_bytes[cluster], now, (double)bytes, BYTES_MOST, BYTES_A_SECOND);
        return true;
    }
    if (daemon_throttle_allows(d, THROTTLE_LINES))
        neb_warn("job %s: %s tells more of its progress than a cluster can make; what is beyond "
                 "that is dropped",
                 j->job.name, j->job.clusters[cluster].name);
    return false;
}

// Of another cluster, of a job that was submitted here. Who it is from is not for it to say.
static void on_report(struct daemon *d, struct agent_jobrun *j, uint32_t peer, const char *from,
                      const json_t *body, size_t bytes) {
    json_t *report = json_object_get(body, "report");
    if (!j->local || !json_is_object(report) || !passes_on(d, j, cluster_of(j, peer), 1, bytes))
        return;
    json_object_set_new(report, "name", json_string(from));
    daemon_publish_report(d, j, json_incref(report));
}
static void on_lines(struct daemon *d, struct agent_jobrun *j, uint32_t peer, const char *from,
                     const json_t *body, size_t bytes) {
    const double latest_s = 365 * 86400;
    const json_t *lines = json_object_get(body, "lines");
    int k = cluster_of(j, peer);
    json_t *o;
    size_t i;
    if (!j->local || !passes_on(d, j, k, json_array_size(lines), bytes))
        return;
    json_array_foreach(lines, i, o) {
        json_t *line = json_object_get(o, "line");
        double late_s = json_number_value(json_object_get(o, "late_s"));
        int64_t n = json_integer_value(json_object_get(o, "n"));
        bool again = late_s > 0 && n <= j->had[k]; // sent twice, as the first time was in doubt
        j->had[k] = again ? j->had[k] : n;
        if (!json_is_object(line) || again)
            continue;
        json_object_set_new(line, "cluster", json_string(from));
        daemon_pass_line(d, j, json_incref(line), n, late_s > 0 && late_s < latest_s ? late_s : 0);
    }
}

// The link to the agent where the job was submitted was down: what it has of our lines.
static void on_had(struct daemon *d, struct agent_jobrun *j, const json_t *body) {
    if (!j->lines)
        return;
    agent_lines_had(j->lines, json_integer_value(json_object_get(body, "had")));
    daemon_lines_due(d, j);
}

void daemon_on_message(void *user, uint32_t peer, uint32_t kind, const uint8_t *p, size_t n) {
    struct daemon *d = user;
    struct agent_members_change change;
    if (agent_spread_message(&d->spread, peer, kind, p, n, &change)) {
        d->changes = d->changes || change.changed || change.forked;
        daemon_merge_change(&d->change, &change);
        return;
    }
    if (kind == AGENT_MSG_SUMS) {
        uint8_t id[AGENT_JOB_ID_BYTES];
        struct agent_jobrun *about = agent_sums_about(p, n, id) ? daemon_job_by_id(d, id) : NULL;
        if (about && about->sums)
            agent_sums_message(about->sums, peer, p, n);
        return;
    }
    const char *from = d->members.m[peer].pub.name;
    // "": revoked since
    json_t *body = from[0] ? json_loadb((const char *)p, n, JSON_REJECT_DUPLICATES, NULL) : NULL;
    if (kind != AGENT_MSG_JOB) // whose bytes are signed
        agent_json_plain(body);
    const char *hex = json_string_value(json_object_get(body, "id"));
    struct agent_jobrun *j = daemon_job(d, hex);
    if (kind == AGENT_MSG_HAD && j && !j->local && j->home == peer)
        on_had(d, j, body);
    if (j && !is_cluster(j, peer)) // a member, but not of this job
        j = NULL;
    if (kind == AGENT_MSG_JOB && hex)
        on_job(d, peer, hex, body);
    else if (kind == AGENT_MSG_STOP && hex)
        on_stop(d, j, peer, hex, run_of(body));
    else if (kind == AGENT_MSG_REFUSED && j)
        on_refused(d, j, from, body);
    else if (kind == AGENT_MSG_METRICS && j)
        on_lines(d, j, peer, from, body, n);
    else if (kind == AGENT_MSG_REPORT && j)
        on_report(d, j, peer, from, body, n);
    json_decref(body);
}

// Lines of jobs wait for the links to where those were submitted; from there, every other cluster hears which of its lines came.
static void tend_lines(struct daemon *d, uint32_t peer, bool up) {
    for (int i = 0; i < AGENT_JOBS_MAX; i++) {
        struct agent_jobrun *j = &d->jobs[i];
        if (j->used && j->lines && j->home == peer)
            agent_lines_link(j->lines, up, neb_now());
        for (int k = 0; up && j->used && j->local && j->linked && k < j->job.n_clusters; k++)
            if (k != j->self && j->peers[k] == peer)
                daemon_post(d, peer, AGENT_MSG_HAD,
                            json_pack("{s:s,s:I}", "id", j->hex, "had", (json_int_t)j->had[k]),
                            false);
    }
}

// It may have lost its disk, or not have had the job yet. Said until the link has taken it: behind an outage a full queue may not.
void daemon_offer_retry(struct daemon *d, struct agent_jobrun *j) {
    for (int k = 0; j->offers_due && k < j->job.n_clusters; k++) {
        if (!(j->offers_due >> k & 1))
            continue;
        json_t *again = d->up[j->peers[k]] ? daemon_signed_job(d, j) : NULL;
        json_object_set_new(again, "again", json_true());
        if (!again || daemon_post(d, j->peers[k], AGENT_MSG_JOB, again, false))
            j->offers_due &= (uint16_t) ~(1u << k);
    }
}

void daemon_on_peer(void *user, uint32_t peer, bool up) {
    struct daemon *d = user;
    d->up[peer] = up;
    if (!d->members.m[peer].pub.name[0]) {
        neb_info("the link to a revoked member is cut");
        return;
    }
    bool say = neb_throttle_allows(&d->links[peer], neb_now(), DAEMON_LINKS_LOGGED);
    if (say)
        neb_info("link to %s is %s", d->members.m[peer].pub.name, up ? "up" : "down");
    tend_lines(d, peer, up);
    for (int i = 0; i < AGENT_JOBS_MAX; i++) {
        struct agent_jobrun *j = &d->jobs[i];
        if (!j->used || j->state == AGENT_JOB_ENDED || !j->linked)
            continue;
        daemon_send_alive(d, j, false);
        for (int k = 0; up && k < j->job.n_clusters; k++)
            if (k != j->self && j->peers[k] == peer)
                j->offers_due |= (uint16_t)(1u << k);
        daemon_offer_retry(d, j);
        char text[160];
        if (!say)
            continue;
        snprintf(text, sizeof text, "link to %s is %s", d->members.m[peer].pub.name,
                 up ? "up" : "down");
        (up ? daemon_note : daemon_note_fault)(d, j, text);
    }
}

static const char *blamed(const struct daemon *d, uint32_t peer, enum inter_fault f) {
    if (peer < d->members.n && d->members.m[peer].pub.name[0])
        return d->members.m[peer].pub.name;
    if (peer == INTER_PEER_NONE)
        return f == INTER_FAULT_CORRUPT ? "more than one member" : daemon_name(d);
    return "a former member";
}

// What a member has signed is its own, whoever has passed it on; anything else is of whoever sent it.
static void say_first(const char *name, enum inter_fault f) {
    if (f == INTER_FAULT_SECOND)
        neb_warn(
            "%s has signed a second update, or proposal, in the place of one; further ones are "
            "counted",
            name);
    else if (f == INTER_FAULT_FORGED)
        neb_warn("an update that %s has signed says what the job cannot give and was dropped; "
                 "further ones are counted",
                 name);
    else if (f == INTER_FAULT_CORRUPT)
        neb_warn("bytes from %s are not those of the update that they were sent for, and are asked "
                 "for again; further ones are counted",
                 name);
    else
        neb_warn("a %s message from %s was dropped; further ones are counted", inter_fault_name(f),
                 name);
}

void daemon_on_fault(void *user, uint32_t peer, enum inter_fault f) {
    struct daemon *d = user;
    const char *name = blamed(d, peer, f);
    bool elsewhere = f == INTER_FAULT_BEHIND || f == INTER_FAULT_EQUIVOCATED ||
                     f == INTER_FAULT_SPLIT || f == INTER_FAULT_REFUSED ||
                     f == INTER_FAULT_NO_ROOM; // is it said
    // what is said of one member is said of each
    bool each = f == INTER_FAULT_DIVERGED || f == INTER_FAULT_OUTLIER || f == INTER_FAULT_RENEWED;
    bool say = !elsewhere && neb_throttle_allows(&d->fault_throttles[f], neb_now(),
                                                 each ? INTER_MEMBERS_MAX : 1u);
    d->faults[f]++;
    char text[96];
    snprintf(text, sizeof text, "%s message or state", inter_fault_name(f));
    // others are counted
    if (d->faults[f] == 1 || (f == INTER_FAULT_DIVERGED && say) || f == INTER_FAULT_REFUSED)
        agent_view_event(d->view, NULL, name, text, neb_seconds(neb_wall_now()));
    if (!say)
        neb_debug("%s", inter_fault_name(f));
    else if (f == INTER_FAULT_DIVERGED)
        neb_log(NEB_LOG_ERROR,
                "parameters of %s differ from ours, or the others', after the same commits", name);
    else if (f == INTER_FAULT_OUTLIER)
        neb_warn(
            "an update of %s stands out, by its size or its direction, from the others of its "
            "round; of two members by its size from its own former ones, or since both have "
            "pointed against each other for four rounds: then one of them may be turned around",
            name);
    else if (f == INTER_FAULT_RENEWED)
        neb_warn("%s came back with an empty ledger; its votes count again once it has caught up",
                 name);
    else if (f == INTER_FAULT_TERMS)
        neb_log(NEB_LOG_ERROR,
                "a job needs a new leader, and there is no term left for one: this host's clock is "
                "far behind the others', or a member has used terms up (an equivocator). Rounds "
                "wait; set "
                "the clock right, or stop the job and begin another one with its checkpoint");
    else
        say_first(name, f);
}

// The job may not be among the daemon's yet: what its ledger holds is told while it is opened.
void daemon_on_equivocation(void *user, uint32_t peer, const struct inter_evidence *e) {
    struct daemon *d = user;
    struct agent_jobrun *j = daemon_job_by_id(d, e->a.job);
    const char *name = peer < d->members.n ? d->members.m[peer].pub.name : "";
    char what[256], text[480];
    if (!*name)
        return; // revoked by now
    inter_evidence_text(e, what, sizeof what);
    neb_log(NEB_LOG_ERROR,
            "%s has lied: %s. Both are kept in the ledger as proof; nothing more that it leads is "
            "voted for. On the hub: nebula revoke %s",
            name, what, name);
    snprintf(text, sizeof text, "ERROR: it has lied: %s; on the hub: nebula revoke %s", what, name);
    agent_view_event(d->view, j ? j->hex : NULL, name, text, neb_seconds(neb_wall_now()));
}

void daemon_on_divergence(void *user, uint32_t peer, const struct inter_key *round) {
    struct daemon *d = user;
    struct agent_jobrun *j = daemon_job_by_id(d, round->job);
    struct inter_job_status st;
    char equivocators[320] = "", text[640];
    if (!j)
        return;
    if (inter_service_job_status(d->service, round->job, &st))
        agent_status_names(&j->job, st.equivocators, equivocators, sizeof equivocators);
    snprintf(
        text, sizeof text,
        "this cluster and %s hold different records of round %u of fragment %u, each with a "
        "majority's signatures: members' parameters have diverged, and nothing more is applied. "
        "Proven to have signed both: %s. On the hub: nebula revoke NAME; then, at the one "
        "cluster whose side is given up: nebula rejoin %.8s",
        blamed(d, peer, INTER_FAULT_SPLIT), round->round, round->fragment,
        equivocators[0] ? equivocators : "(nobody yet)", j->hex);
    neb_log(NEB_LOG_ERROR, "job %s: %s", j->job.name, text);
    daemon_job_fail(d, j, text);
    daemon_job_stop(d, j);
}
