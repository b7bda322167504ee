// SPDX-License-Identifier: Apache-2.0
// Messages of other agents: jobs that they submit or pass on, reports, stops; links that come and
// go; faults.
#include "agent/base/log.h"
#include "agent/daemon/late.h"
#include "agent/daemon/lines.h"
#include "agent/daemon/policy.h"
#include "agent/daemon/state.h"
#include "agent/daemon/status.h"
#include "agent/daemon/sums.h"
#include "agent/job/json.h"
#include "compress/text.h"

#include <stdlib.h>
#include <string.h>

// {"id", "spec", "home", "sig", "run"}: a job for another site. Its submitter has signed all but
// the run.
json_t *daemon_signed_job(struct daemon *d, const struct agent_jobrun *j) {
    struct neb_buf b = {0};
    uint8_t sig[SEC_SIGN_BYTES];
    char hex[2 * SEC_SIGN_BYTES + 1] = "";
    // Never sign an id that does not belong to the specification, even if the federation has
    // changed since: it would prove an equivocation (misnamed.c).
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

// True if home (UINT32_MAX: this member) has signed this job; any member may pass it on.
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

// Where a repeated job was submitted: here (UINT32_MAX: this disk was lost), at another member, or
// at the peer that offers it.
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
    if (text) // only the newest answer waits, however often the peer asks
        (void)!inter_service_unsend(d->service, peer, AGENT_MSG_REFUSED, text, strlen(text));
    free(text);
    daemon_post(d, peer, AGENT_MSG_REFUSED, body, reliable);
    if (daemon_throttle_allows(d, THROTTLE_OFFERS))
        neb_warn("job %.8s of %s refused: %s", hex, d->members.m[peer].pub.name, why);
}

// Sends a refusal once, without storing it: a member that asks without end would fill this ledger.
// If the link breaks before it arrives, the job is offered again with the next link.
static void refuse(struct daemon *d, uint32_t peer, const char *hex, const char *why) {
    refuse_by(d, peer, hex, why, false);
}

// Refuses a known job. Its repeated offers are ignored (on_job), so this answer is stored until the
// peer takes it.
static void refuse_known(struct daemon *d, uint32_t peer, const char *hex, const char *why) {
    refuse_by(d, peer, hex, why, true);
}

// True if one more offer of a job may be handled. Otherwise an unsolicited offer (again) is
// ignored, and others are refused, unless the job runs here: after an outage all jobs submitted in
// it arrive at once, and the newest has been offered before.
static bool looks_at(struct daemon *d, uint32_t peer, const char *hex, bool again) {
    if (neb_bucket_take(&d->offers[peer], neb_now(), 1, DAEMON_OFFERS_BURST,
                        DAEMON_OFFERS_A_SECOND))
        return true;
    const struct agent_jobrun *j = daemon_job(d, hex);
    if (!again && !(j && j->state == AGENT_JOB_RUNNING))
        refuse(d, peer, hex, "too many jobs were offered at once");
    return false;
}

// Result n_clusters: the peer is not a cluster of the job.
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

// The same for a job that has ended: by name.
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

// The run of the job that a message is about; 0: none, or a time that no clock can have.
static int64_t run_of(const json_t *body) {
    const int64_t day_ms = 86400 * 1000;
    int64_t run = json_integer_value(json_object_get(body, "run"));
    return run > 0 && run <= neb_wall_now() / NEB_MS + day_ms ? run : 0;
}

// A job that was here before: the same job of the same member, started again by it, or resumed by
// one of its clusters. Only that member may place the clusters differently (agent_job_differs).
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
        refuse_known(d, peer, known->hex, "only a cluster of the job can resume it");
        return;
    }
    if (resume && run && run <= known->run)
        return; // a run that was stopped or resumed since
    // The signature was verified when the job first came, and keys may have been rotated since. A
    // valid new signature replaces the stored one.
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
    struct agent_jobrun *j = daemon_job_accept(d, known->hex, spec, home, why, sizeof why);
    if (!j) {
        refuse_known(d, peer, known->hex, why);
        return;
    }
    daemon_job_event(d, j, AGENT_EV_RESUME, NULL);
    if (!j->local)
        daemon_job_set_home(d, j, home, sig);
    daemon_job_resumed(d, j, run);
    daemon_say_had(d, j, UINT32_MAX);
}

// Stops a job that is in the ledger only (held, or without an entry since a restart), so that it
// does not start by itself.
static void stop_known(struct daemon *d, uint32_t peer, struct agent_job_record *r, int64_t run) {
    const char *scheme = json_string_value(json_object_get(r->spec, "sync.scheme"));
    bool waits =
        !strcmp(r->state, "held") || !strcmp(r->state, "running") || !strcmp(r->state, "stopping");
    bool may = names_cluster(r->spec, d->members.m[peer].pub.name) &&
               !(scheme && !strcmp(scheme, "synchronous"));
    if (waits && may && (!run || run >= r->run) &&
        daemon_job_end_known(d, r, "was stopped at another of its clusters") != NEB_OK)
        neb_warn("the stop of job %.8s could not be stored", r->hex);
}

// A stop from another cluster of the job, or from a member whose job has not arrived yet.
static void on_stop(struct daemon *d, struct agent_jobrun *j, uint32_t peer, const char *hex,
                    int64_t run) {
    struct agent_job_record known;
    if (j && (!run || run >= j->run))
        daemon_job_stop_asked(d, j);
    if (j || daemon_job(d, hex)) // an old run, or a member that may not stop it
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

// Limited: each call searches the ledger, and an honest member asks once a second.
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

// An offer whose id does not belong to its specification. If its submitter has signed it, this is
// equivocation, even if another member passes it on.
static void on_unfit_job(struct daemon *d, uint32_t peer, uint32_t home, const char *hex,
                         const json_t *body) {
    char why[512];
    uint8_t id[AGENT_JOB_ID_BYTES];
    struct agent_job_record known;
    if (!neb_unhex(hex, id, sizeof id))
        return; // not an id
    bool again = json_is_true(json_object_get(body, "again"));
    bool is_signed = job_is_signed(d, home, hex, body);
    if (is_signed && !daemon_spec_is_read(json_object_get(body, "spec"))) {
        if (!again) // another version may make other ids
            refuse(d, peer, hex, "this version of nebula cannot read the job specification");
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

// A job that another agent submits, resumes, or (again) repeats because this one may have lost it.
static void on_job(struct daemon *d, uint32_t peer, const char *hex, const json_t *body) {
    char why[512];
    bool again = json_is_true(json_object_get(body, "again")),
         resume = json_is_true(json_object_get(body, "resume"));
    // A repeated offer comes again with each link. A reliable message does not: a known job is
    // stored for the next start.
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
            daemon_job_reopen(d, &known); // the other clusters finished it while that peer was away
        agent_job_record_clear(&known);
        return;
    }
    uint8_t id[AGENT_JOB_ID_BYTES];
    bool forgotten = true;
    if (again && neb_unhex(hex, id, sizeof id) &&
        inter_ledger_was_dropped(inter_service_ledger(d->service), id, &forgotten) == NEB_OK &&
        forgotten)
        return;      // it ended here and was removed; the others continue without this site
    if (d->stopping) // unknown here: it is offered again to the restarted agent
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
        return; // the refusal was reported, and the job stops
    neb_warn("job %s: %s refuses it: %s", j->job.name, from, reason ? reason : "no reason given");
    daemon_publish_report(
        d, j, json_pack("{s:s,s:s}", "name", from, "error", reason ? reason : "refused"));
    daemon_job_stop(d, j);
}

// True if lines or a report of another cluster may be passed on to watchers, which write them to
// disk: within the limits of an honest cluster.
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
        neb_warn("job %s: %s reports more progress than a cluster can make; the excess is dropped",
                 j->job.name, j->job.clusters[cluster].name);
    return false;
}

// A report of another cluster, for a job submitted here. The link, not the report, determines its
// name.
static void on_report(struct daemon *d, struct agent_jobrun *j, uint32_t peer, const char *from,
                      const json_t *body, size_t bytes) {
    json_t *report = json_object_get(body, "report");
    if (!j->local || !json_is_object(report) || !passes_on(d, j, cluster_of(j, peer), 1, bytes))
        return;
    json_object_set_new(report, "name", json_string(from));
    daemon_publish_report(d, j, json_incref(report));
}

// A line of a message. NULL: it has none.
static json_t *line_of(json_t *o, const char *from, int64_t *n, double *late_s) {
    const double latest_s = 365 * 86400;
    json_t *line = json_object_get(o, "line");
    double late = json_number_value(json_object_get(o, "late_s"));
    *n = json_integer_value(json_object_get(o, "n"));
    *late_s = late > 0 && late < latest_s ? late : 0;
    if (!json_is_object(line))
        return NULL;
    json_object_set_new(line, "cluster", json_string(from));
    return line;
}

static bool may_keep(struct daemon *d, uint32_t peer) {
    return neb_bucket_take(&d->lates[peer], neb_now(), 1, DAEMON_LATES_BURST,
                           DAEMON_LATES_A_SECOND);
}

// Keeps lines that waited for a link, until a command follows the job. Owns them.
static void keep_late(struct daemon *d, uint32_t peer, const char *hex, json_t *lines, bool may) {
    char dir[NEB_PATH_MAX], why[512] = "more come than are kept until a command follows the job";
    enum neb_status st = NEB_ERR_LIMIT;
    if (!json_array_size(lines))
        st = NEB_OK;
    else if (may && snprintf(dir, sizeof dir, "%s/jobs/%s", d->c->home, hex) < NEB_PATH_MAX)
        st = agent_late_add(dir, lines);
    if (st != NEB_OK && st != NEB_ERR_LIMIT)
        neb_last_error(why, sizeof why);
    if (st != NEB_OK && daemon_throttle_allows(d, THROTTLE_LINES))
        neb_warn("job %.8s: lines of metrics of %s are dropped: %s", hex,
                 d->members.m[peer].pub.name, why);
    json_decref(lines);
}

static void on_lines(struct daemon *d, struct agent_jobrun *j, uint32_t peer, const char *from,
                     const json_t *body, size_t bytes) {
    const json_t *lines = json_object_get(body, "lines");
    int k = cluster_of(j, peer);
    json_t *o, *late = json_array();
    size_t i;
    if (!j->local || !passes_on(d, j, k, json_array_size(lines), bytes))
        lines = NULL;
    json_array_foreach(lines, i, o) {
        double late_s;
        int64_t n;
        json_t *line = line_of(o, from, &n, &late_s);
        // sent twice, because the first send was in doubt
        bool again = late_s > 0 && n <= j->had[k];
        j->had[k] = again ? j->had[k] : n;
        j->had_due |= !again;
        if (line && !again && !daemon_pass_line(d, j, json_incref(line), n, late_s) && late_s > 0)
            json_array_append_new(late, agent_late_line(n, late_s, line));
    }
    keep_late(d, peer, j->hex, late, !json_array_size(late) || may_keep(d, peer));
}

// Lines of a job that was submitted here and does not run now.
static void on_early_lines(struct daemon *d, uint32_t peer, const char *hex, const json_t *body) {
    const char *from = d->members.m[peer].pub.name;
    json_t *o, *late = json_array();
    struct agent_job_record r = {.spec = NULL};
    bool may = may_keep(d, peer);
    size_t i;
    if (may &&
        (daemon_job_recall(d, hex, &r) != NEB_OK || r.home[0] || !names_cluster(r.spec, from)))
        body = NULL;
    json_array_foreach(json_object_get(body, "lines"), i, o) {
        double late_s;
        int64_t n;
        json_t *line = line_of(o, from, &n, &late_s);
        if (line && late_s > 0 && n > json_integer_value(json_object_get(r.had, from)))
            json_array_append_new(late, agent_late_line(n, late_s, line));
    }
    keep_late(d, peer, hex, late, may);
    agent_job_record_clear(&r);
}

// After an outage: the agent where the job was submitted has our lines up to a number.
static void on_had(struct daemon *d, struct agent_jobrun *j, const json_t *body) {
    if (!daemon_need_lines(d, j))
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
    const char *from = d->members.m[peer].pub.name, *text = (const char *)p;
    struct neb_buf room = {0};
    // "": the member was revoked
    bool good =
        from[0] && (kind != AGENT_MSG_METRICS || cmp_text_unpack(p, n, &room, &text, &n) == NEB_OK);
    json_t *body = good ? json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL) : NULL;
    neb_buf_free(&room);
    if (kind != AGENT_MSG_JOB) // a job's text is signed and must not change
        agent_json_plain(body);
    const char *hex = json_string_value(json_object_get(body, "id"));
    struct agent_jobrun *j = daemon_job(d, hex);
    if (kind == AGENT_MSG_HAD && j && !j->local && j->home == peer)
        on_had(d, j, body);
    if (j && !is_cluster(j, peer)) // a member, but no cluster of this job
        j = NULL;
    if (kind == AGENT_MSG_JOB && hex)
        on_job(d, peer, hex, body);
    else if (kind == AGENT_MSG_STOP && hex)
        on_stop(d, j, peer, hex, run_of(body));
    else if (kind == AGENT_MSG_REFUSED && j)
        on_refused(d, j, from, body);
    else if (kind == AGENT_MSG_METRICS && j)
        on_lines(d, j, peer, from, body, n);
    else if (kind == AGENT_MSG_METRICS && hex && !daemon_job(d, hex))
        on_early_lines(d, peer, hex, body);
    else if (kind == AGENT_MSG_REPORT && j)
        on_report(d, j, peer, from, body, n);
    else if (kind == AGENT_MSG_TENSORS && j)
        daemon_on_tensors(d, j, cluster_of(j, peer), body);
    json_decref(body);
}

void daemon_say_had(struct daemon *d, struct agent_jobrun *j, uint32_t peer) {
    for (int k = 0; j->local && j->linked && k < j->job.n_clusters; k++)
        if (k != j->self && (peer == UINT32_MAX || j->peers[k] == peer))
            daemon_post(d, j->peers[k], AGENT_MSG_HAD,
                        json_pack("{s:s,s:I}", "id", j->hex, "had", (json_int_t)j->had[k]), false);
}

// Lines wait for the link to the agent where the job was submitted. That agent reports to every
// other cluster which lines it has.
static void tend_lines(struct daemon *d, uint32_t peer, bool up) {
    for (int i = 0; i < AGENT_JOBS_MAX; i++) {
        struct agent_jobrun *j = &d->jobs[i];
        if (j->state && j->lines && j->home == peer)
            agent_lines_link(j->lines, up, neb_now());
        if (up && j->state)
            daemon_say_had(d, j, peer);
        else if (j->had_due)
            daemon_job_save(d, j);
    }
}

// The peer may have lost its disk, or may not have had the job yet. Repeated until the link takes
// the offer: after an outage its queue may be full.
void daemon_offer_retry(struct daemon *d, struct agent_jobrun *j) {
    for (int k = 0; !mset_empty(j->offers_due) && k < j->job.n_clusters; k++) {
        if (!mset_has(j->offers_due, k))
            continue;
        json_t *again = d->up[j->peers[k]] ? daemon_signed_job(d, j) : NULL;
        json_object_set_new(again, "again", json_true());
        if (!again || daemon_post(d, j->peers[k], AGENT_MSG_JOB, again, false))
            mset_remove(&j->offers_due, k);
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
        if (!agent_job_active(j->state) || !j->linked)
            continue;
        daemon_send_alive(d, j, false);
        for (int k = 0; up && k < j->job.n_clusters; k++)
            if (k != j->self && j->peers[k] == peer)
                mset_add(&j->offers_due, k);
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
    return "a removed member";
}

// The signer is responsible for what is signed, even if another member passes it on; the sender is
// responsible for everything else.
static void say_first(const char *name, enum inter_fault f) {
    if (f == INTER_FAULT_SECOND)
        neb_warn("%s has signed a second update or proposal where only one is allowed; further "
                 "ones are counted",
                 name);
    else if (f == INTER_FAULT_FORGED)
        neb_warn("an update signed by %s claims what the job cannot produce, and was dropped; "
                 "further ones are counted",
                 name);
    else if (f == INTER_FAULT_CORRUPT)
        neb_warn("bytes from %s do not belong to the update for which they were sent, and are "
                 "requested again; further ones are counted",
                 name);
    else
        neb_warn("a %s message from %s was dropped; further ones are counted", inter_fault_name(f),
                 name);
}

void daemon_on_fault(void *user, uint32_t peer, enum inter_fault f) {
    struct daemon *d = user;
    const char *name = blamed(d, peer, f);
    bool elsewhere = f == INTER_FAULT_BEHIND || f == INTER_FAULT_EQUIVOCATED ||
                     f == INTER_FAULT_SPLIT ||
                     // these are logged elsewhere
                     f == INTER_FAULT_REFUSED || f == INTER_FAULT_NO_ROOM;
    // these are logged once for each member
    bool each = f == INTER_FAULT_DIVERGED || f == INTER_FAULT_OUTLIER || f == INTER_FAULT_RENEWED;
    bool say = !elsewhere &&
               neb_throttle_allows(&d->fault_throttles[f], neb_now(), each ? NEB_MEMBERS_MAX : 1u);
    d->faults[f]++;
    char text[96];
    snprintf(text, sizeof text, "%s message or state", inter_fault_name(f));
    // others are only counted
    if (d->faults[f] == 1 || (f == INTER_FAULT_DIVERGED && say) || f == INTER_FAULT_REFUSED)
        agent_view_event(d->view, NULL, name, text, neb_seconds(neb_wall_now()));
    if (!say)
        neb_debug("%s", inter_fault_name(f));
    else if (f == INTER_FAULT_DIVERGED)
        neb_log(
            NEB_LOG_ERROR,
            "the parameters of %s differ from ours, or from the others', after the same commits",
            name);
    else if (f == INTER_FAULT_OUTLIER)
        neb_warn("an update of %s stands out, by its size or its direction, from the others of its "
                 "round (with two members: by its size from its own earlier ones, or because both "
                 "have pointed in opposite directions for four rounds; then one of them may have a "
                 "reversed sign)",
                 name);
    else if (f == INTER_FAULT_RENEWED)
        neb_warn("%s came back with an empty ledger; its votes count again once it has caught up",
                 name);
    else if (f == INTER_FAULT_TERMS)
        neb_log(NEB_LOG_ERROR,
                "a job needs a new leader, but no term is left: this host's clock is far behind "
                "the others', or a member has used up the terms (an equivocator). Rounds wait; "
                "correct the clock, or stop the job and start another one from its checkpoint");
    else
        say_first(name, f);
}

// The job may not be in d->jobs yet: evidence in its ledger is reported while it is opened.
void daemon_on_equivocation(void *user, uint32_t peer, const struct inter_evidence *e) {
    struct daemon *d = user;
    struct agent_jobrun *j = daemon_job_by_id(d, e->a.job);
    const char *name = peer < d->members.n ? d->members.m[peer].pub.name : "";
    char what[256], text[480];
    if (!*name)
        return; // revoked meanwhile
    inter_evidence_text(e, what, sizeof what);
    neb_log(NEB_LOG_ERROR,
            "%s has equivocated: %s. Both are kept in the ledger as proof; nothing that it leads "
            "gets a vote any more. On the hub: nebula revoke %s",
            name, what, name);
    snprintf(text, sizeof text, "ERROR: it has equivocated: %s; on the hub: nebula revoke %s", what,
             name);
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
