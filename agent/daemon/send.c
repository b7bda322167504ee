// SPDX-License-Identifier: Apache-2.0
// What the agent sends about its jobs: to local clients and workers, to the agents where the jobs
// were submitted, and to the status page.
#include "agent/base/log.h"
#include "agent/daemon/lines.h"
#include "agent/daemon/state.h"
#include "agent/daemon/status.h"
#include "agent/daemon/sums.h"
#include "agent/job/private.h"
#include "agent/job/sides.h"
#include "agent/show/progress.h"
#include "agent/show/report.h"
#include "compress/text.h"
#include "security/locked.h"

#include <stdlib.h>
#include <string.h>

void daemon_send(struct daemon *d, const struct agent_ipc_client *to, json_t *head) {
    if (!to->len)
        json_decref(head);
    else if (agent_ipc_send(d->ipc, to, head, NULL, 0) != NEB_OK)
        neb_debug("a local client is gone");
}

void daemon_answer(struct daemon *d, const struct agent_ipc_client *to, bool ok, const char *text) {
    daemon_send(d, to, json_pack("{s:s,s:b,s:s}", "ev", "answer", "ok", ok, "text", text));
}

bool daemon_post(struct daemon *d, uint32_t peer, enum agent_message kind, json_t *body,
                 bool reliable) {
    char *text = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    if (!text || peer >= d->members.n || !d->members.m[peer].pub.name[0]) { // revoked
        free(text);
        return false;
    }
    struct neb_buf packed = {0};
    const void *p = text;
    size_t n = strlen(text);
    // other messages are short, or are found again in the ledger by their text
    if (kind == AGENT_MSG_METRICS && cmp_text_pack(text, n, &packed) == NEB_OK)
        p = packed.p, n = packed.len;
    enum neb_status st = reliable ? inter_service_send(d->service, peer, kind, p, n)
                                  : inter_service_send_telemetry(d->service, peer, kind, p, n);
    neb_buf_free(&packed);
    if (reliable && st != NEB_OK && daemon_throttle_allows(d, THROTTLE_UNSTORED))
        neb_warn("a message to %s could not be stored in %s: %s", d->members.m[peer].pub.name,
                 d->c->home, neb_status_name(st));
    free(text);
    return st == NEB_OK;
}

bool daemon_throttle_allows(struct daemon *d, enum daemon_throttle what) {
    return neb_throttle_allows(&d->throttle[what], neb_now(),
                               what == THROTTLE_OFFERS ? (unsigned)DAEMON_OFFERS_LOGGED : 1u);
}

static void tell_protocol(struct daemon *d, struct agent_jobrun *j, uint32_t peer,
                          const struct inter_link_stats *s) {
    char text[400];
    snprintf(text, sizeof text,
             "no link to %s: it speaks protocol %u (nebula %s), this agent protocol %u (nebula "
             "%s): install the same version of nebula at both",
             d->members.m[peer].pub.name, (unsigned)s->protocol, s->build,
             (unsigned)inter_service_protocol(d->service), neb_build());
    daemon_note_fault(d, j, text);
}

// The link logs the difference. Watchers of a job that waits for such a member are told once, too.
void daemon_send_protocols(struct daemon *d, struct agent_jobrun *j) {
    for (int c = 0; j->linked && c < j->job.n_clusters; c++) {
        struct inter_peer_stats s;
        if (c == j->self || j->peers[c] >= d->members.n ||
            inter_service_stats(d->service, j->peers[c], &s) != NEB_OK)
            continue;
        if (s.link.differs && !mset_has(j->said.differs, c))
            tell_protocol(d, j, j->peers[c], &s.link);
        mset_assign(&j->said.differs, c, s.link.differs);
    }
}

void daemon_log_suppressed(struct daemon *d) {
    static const char *const texts[THROTTLE_N] = {
        [THROTTLE_OFFERS] = "more jobs of others were refused",
        [THROTTLE_LINES] = "more messages about the progress of jobs were dropped",
        [THROTTLE_UNSTORED] = "more messages to others could not be stored",
        [THROTTLE_FORKED] = "more times: the CA's member lists do not follow from each other"};
    uint64_t n;
    neb_log_tick();
    for (int i = 0; i < THROTTLE_N; i++)
        if ((n = neb_throttle_suppressed(&d->throttle[i], neb_now())))
            neb_warn("%llu %s", (unsigned long long)n, texts[i]);
    for (uint32_t i = 0; i < d->members.n; i++)
        if ((n = neb_throttle_suppressed(&d->links[i], neb_now())))
            neb_warn("link to %s came or went %llu more times; it is %s. If the line is good: does "
                     "a copy of this HOME run elsewhere, with the same keys?",
                     d->members.m[i].pub.name, (unsigned long long)n, d->up[i] ? "up" : "down");
    for (enum inter_fault f = 0; f < INTER_FAULTS; f++)
        if ((n = neb_throttle_suppressed(&d->fault_throttles[f], neb_now())))
            neb_warn("%llu more faults of the kind \"%s\"", (unsigned long long)n,
                     inter_fault_name(f));
}

json_t *daemon_stop_message(const struct agent_jobrun *j) {
    return json_pack("{s:s,s:I}", "id", j->hex, "run", (json_int_t)j->run);
}

void daemon_withdraw_stop(struct daemon *d, const struct agent_jobrun *j) {
    json_t *body = daemon_stop_message(j);
    char *text = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    for (int i = 0; text && i < j->job.n_clusters; i++)
        if (agent_job_has_peer(j, i) &&
            inter_service_unsend(d->service, j->peers[i], AGENT_MSG_STOP, text, strlen(text)) !=
                NEB_OK)
            neb_warn("a stop of job %s that waits for its link could not be withdrawn",
                     j->job.name);
    free(text);
}

// True if a watcher took it. One that takes nothing is gone, or will ask again.
static bool tell_watchers(struct daemon *d, struct agent_jobrun *j, json_t *event) {
    bool taken = false;
    for (int i = 0; i < AGENT_WATCHERS_MAX; i++)
        if (j->watchers[i].len &&
            agent_ipc_send(d->ipc, &j->watchers[i], json_incref(event), NULL, 0) == NEB_OK)
            taken = true;
        else
            j->watchers[i] = (struct agent_ipc_client){0};
    json_decref(event);
    return taken;
}

static int other_cluster(const struct agent_jobrun *j, const char *name) {
    for (int i = 0; name && i < j->job.n_clusters; i++)
        if (i != j->self && strcmp(j->job.clusters[i].name, name) == 0)
            return i;
    return -1;
}

enum { LINES_BYTES = 48 << 10 }; // of one message

static bool send_lines(struct daemon *d, struct agent_jobrun *j, json_t *lines, bool reliable) {
    return daemon_post(d, j->home, AGENT_MSG_METRICS,
                       json_pack("{s:s,s:o}", "id", j->hex, "lines", lines), reliable);
}

// Lines that follow each other share keys, so that together and packed they take few bytes.
void daemon_lines_soon(struct daemon *d, struct agent_jobrun *j) {
    const neb_ns every = NEB_S / 4;
    neb_ns now = neb_now();
    if (!j->lines || now < j->lines_at)
        return;
    j->lines_at = now + every;
    daemon_lines_due(d, j);
}

// Lines must not delay rounds: more follow when these have been taken.
void daemon_lines_due(struct daemon *d, struct agent_jobrun *j) {
    json_t *lines;
    if (!j->lines)
        return;
    struct inter_link_control c = inter_service_control(d->service, j->home);
    agent_lines_acked(j->lines, c.way, c.acked, neb_now());
    while (inter_service_may_send_telemetry(d->service, j->home) &&
           (lines = agent_lines_next(j->lines, neb_now(), LINES_BYTES))) {
        int n = (int)json_array_size(lines);
        if (!send_lines(d, j, lines, false)) {
            agent_lines_back(j->lines, n);
            return;
        }
        c = inter_service_control(d->service, j->home);
        agent_lines_sent(j->lines, c.way, c.sent);
    }
}

void daemon_store_lines(struct daemon *d, struct agent_jobrun *j) {
    json_t *lines;
    while (j->lines && (lines = agent_lines_take(j->lines, neb_now(), LINES_BYTES))) {
        int n = (int)json_array_size(lines);
        if (!send_lines(d, j, lines, true)) { // it was logged
            agent_lines_back(j->lines, n);
            return;
        }
        agent_lines_stored(j->lines);
    }
}

bool daemon_need_lines(struct daemon *d, struct agent_jobrun *j) {
    return j->lines || agent_lines_create(d->up[j->home], neb_now(), &j->lines) == NEB_OK;
}

static bool tell_line(struct daemon *d, struct agent_jobrun *j, json_t *event, double late_s) {
    agent_view_line(d->view, j->hex, j->job.sync.interval, json_object_get(event, "line"),
                    neb_seconds(neb_wall_now()) - late_s, neb_seconds(neb_now()) - late_s);
    return tell_watchers(d, j, event);
}

void daemon_publish_line(struct daemon *d, struct agent_jobrun *j, json_t *line) {
    tell_line(d, j, json_pack("{s:s,s:s,s:O}", "ev", "line", "job", j->hex, "line", line), 0);
    json_t *told = j->local ? NULL : agent_disclosed_line(&j->disclosed, &j->terms.told, line);
    if (told && daemon_need_lines(d, j)) {
        agent_lines_add(j->lines, told, neb_now(), neb_wall_now() / NEB_MS);
        daemon_lines_soon(d, j);
    }
    json_decref(told);
    json_decref(line);
}

bool daemon_pass_line(struct daemon *d, struct agent_jobrun *j, json_t *line, int64_t n,
                      double late_s) {
    int other = other_cluster(j, json_string_value(json_object_get(line, "cluster")));
    // a report of a previous run is kept until the cluster makes further steps
    if (other >= 0 && agent_report_is_former(j->others[other], line)) {
        json_decref(j->others[other]);
        j->others[other] = NULL;
    }
    return tell_line(d, j,
                     json_pack("{s:s,s:s,s:o,s:I,s:f}", "ev", "line", "job", j->hex, "line", line,
                               "n", (json_int_t)n, "late_s", late_s),
                     late_s);
}

void daemon_publish_report(struct daemon *d, struct agent_jobrun *j, json_t *report) {
    const char *error = json_string_value(json_object_get(report, "error")),
               *who = json_string_value(json_object_get(report, "name"));
    int other = other_cluster(j, who);
    if (error)
        agent_view_event(d->view, j->hex, who ? who : daemon_name(d), error,
                         neb_seconds(neb_wall_now()));
    if (other >= 0) { // for watchers that come later
        json_decref(j->others[other]);
        j->others[other] = json_incref(report);
    }
    tell_watchers(d, j,
                  json_pack("{s:s,s:s,s:O}", "ev", "report", "job", j->hex, "report", report));
    if (!j->local) {
        daemon_store_lines(d, j); // a watcher that has all reports waits for no more lines
        daemon_post(d, j->home, AGENT_MSG_REPORT,
                    json_pack("{s:s,s:o}", "id", j->hex, "report",
                              agent_disclosed_report(&j->disclosed, &j->terms.told, report)),
                    true);
    }
    json_decref(report);
}

// Number of other clusters that are reachable; *expected: enough of them for a commit.
static int peers_alive(const struct daemon *d, const struct agent_jobrun *j, bool *expected) {
    struct inter_job_status st;
    int live = 0, data = 0, voters = 0;
    *expected = false;
    for (int i = 0; !j->federated && j->linked && i < j->job.n_clusters; i++) // with streams only
        live += i != j->self && d->up[j->peers[i]];
    if (!j->federated && (*expected = live > 0))
        return live;
    if (!j->federated || !inter_service_job_status(d->service, j->id, &st))
        return 0;
    for (int i = 0; i < j->job.n_clusters; i++) {
        live += mset_has(st.live, i);
        data += mset_has(st.live, i) && !mset_has(st.idle, i) && !agent_job_only_votes(&j->job, i);
        voters += !mset_has(st.removed, i);
    }
    *expected = live > voters / 2 && data >= (voters < 2 ? 1 : 2);
    // If a round of `robust` or `private` waits for more members, each worker trains on. With
    // commit_all the wait must not depend on who is silent.
    if (!mset_empty(st.waits) && !j->job.sync.commit_all)
        *expected = false;
    return live - 1;
}

// Number of other clusters that are still members.
static int peers_left(const struct daemon *d, const struct agent_jobrun *j) {
    struct member_set gone = mset_union(daemon_gone_clusters(d, j), daemon_removed_clusters(d, j));
    return j->job.n_clusters - 1 - mset_count(mset_without(gone, j->self));
}

struct inter_job_status daemon_rounds(const struct daemon *d, const struct agent_jobrun *j) {
    struct inter_job_status st;
    return j->federated && inter_service_job_status(d->service, j->id, &st)
               ? st
               : (struct inter_job_status){.leader = -1};
}

json_t *daemon_take_alive(struct daemon *d, struct agent_jobrun *j, bool *changed) {
    struct inter_job_status st = daemon_rounds(d, j);
    bool expected,
        lost = st.lost && (!st.votes || st.lag); // not all commits of the others are here
    int alive = peers_alive(d, j, &expected), others = peers_left(d, j);
    *changed = alive != j->said.alive || others != j->said.others || expected != j->said.expected ||
               lost != j->said.lost;
    j->said.alive = alive;
    j->said.others = others;
    j->said.expected = expected;
    j->said.lost = lost;
    // attempts: the first attempt number of the present ledger; 0: the job has no rounds yet
    return json_pack("{s:i,s:i,s:b,s:b,s:I}", "alive", alive, "others", others, "expected",
                     expected, "lost", lost, "attempts", (json_int_t)st.attempts);
}

void daemon_send_alive(struct daemon *d, struct agent_jobrun *j, bool asked) {
    bool changed;
    json_t *event = daemon_take_alive(d, j, &changed);
    json_object_set_new(event, "ev", json_string("peers"));
    if (asked || (j->linked && changed))
        daemon_send(d, &j->worker.client, json_incref(event));
    json_decref(event);
}

struct agent_wan_bytes daemon_link_totals(struct daemon *d, const struct agent_jobrun *j) {
    struct agent_wan_bytes sum = {0};
    struct inter_peer_stats s;
    for (int i = 0; i < j->job.n_clusters; i++)
        if (agent_job_has_peer(j, i) &&
            inter_service_stats(d->service, j->peers[i], &s) == NEB_OK) {
            sum.sent += s.link.sent_bytes;
            sum.recv += s.link.recv_bytes;
            sum.messages += s.link.message_bytes;
            sum.payload += s.link.payload_bytes;
        }
    return sum;
}

struct agent_wan_bytes daemon_wan_bytes(struct daemon *d, const struct agent_jobrun *j) {
    const struct agent_wan_bytes *b = &j->wan_before, *base = &j->wan_base;
    if (!j->linked)
        return (struct agent_wan_bytes){0};
    struct agent_wan_bytes x = daemon_link_totals(d, j);
    return (struct agent_wan_bytes){.sent = x.sent + b->sent - base->sent,
                                    .recv = x.recv + b->recv - base->recv,
                                    .messages = x.messages + b->messages - base->messages,
                                    .payload = x.payload + b->payload - base->payload};
}

// Where the job was submitted, a line per second. Elsewhere the line crosses the link that it
// describes: it waits until it is a small part of the traffic, except for the first line after an
// outage.
static const neb_ns link_line_every = 5 * NEB_S, link_line_rare = 30 * NEB_S;
enum { LINK_LINE_TRAFFIC = 32 << 10 };

static bool line_due(const struct agent_jobrun *j, const struct agent_wan_bytes *now, bool up) {
    neb_ns since = neb_now() - j->said.link_at;
    uint64_t traffic = now->sent + now->recv - j->said.link_bytes;
    return j->local || (up && !j->said.link_up) || since >= link_line_rare ||
           (since >= link_line_every && traffic >= LINK_LINE_TRAFFIC);
}

void daemon_send_link(struct daemon *d, struct agent_jobrun *j) {
    double goodput = 0, rtt = 0;
    uint64_t resent = 0;
    uint32_t stripes = 0;
    bool expected;
    daemon_lines_soon(d, j);
    if (!j->linked)
        return;
    struct agent_wan_bytes now = daemon_wan_bytes(d, j);
    bool up = peers_alive(d, j, &expected) == j->job.n_clusters - 1;
    if (!line_due(j, &now, up))
        return;
    j->said.link_at = neb_now();
    j->said.link_up = up;
    j->said.link_bytes = now.sent + now.recv;
    for (int k = 0; k < j->job.n_clusters; k++) {
        struct inter_peer_stats s;
        if (!agent_job_has_peer(j, k) || inter_service_stats(d->service, j->peers[k], &s) != NEB_OK)
            continue;
        goodput = s.path.goodput_bps > goodput ? s.path.goodput_bps : goodput;
        rtt = neb_seconds(s.link.rtt) * 1e3;
        resent += s.path.payload_resent;
        stripes = s.link.bulk_used > stripes ? s.link.bulk_used : stripes;
    }
    // with two clusters the sums are those of the only link
    json_t *links = j->job.n_clusters > 2 ? json_object() : NULL;
    for (int k = 0; links && k < j->job.n_clusters; k++) {
        struct inter_peer_stats s;
        if (agent_job_has_peer(j, k) && inter_service_stats(d->service, j->peers[k], &s) == NEB_OK)
            json_object_set_new(links, j->job.clusters[k].name,
                                json_pack("{s:I,s:I}", "sent_bytes", (json_int_t)s.link.sent_bytes,
                                          "recv_bytes", (json_int_t)s.link.recv_bytes));
    }
    daemon_publish_line(
        d, j,
        json_pack("{s:s,s:s,s:b,s:I,s:I,s:f,s:f,s:I,s:I,s:o*}", "kind", "link", "cluster",
                  daemon_name(d), "up", up, "sent_bytes", (json_int_t)now.sent, "recv_bytes",
                  (json_int_t)now.recv, "goodput_bps", goodput, "rtt_ms", rtt, "resent_bytes",
                  (json_int_t)resent, "stripes", (json_int_t)stripes, "links", links));
}

// Clusters that are reachable and have owed an update for longer than least_s without a break. A
// cluster that comes back starts from zero.
static struct member_set owing_for(struct agent_jobrun *j, struct member_set owing,
                                   double least_s) {
    neb_ns now = neb_now();
    struct member_set late = mset_none();
    for (int k = 0; k < j->job.n_clusters; k++) {
        bool owes = mset_has(owing, k);
        if (!owes || !j->said.owing_since[k])
            j->said.owing_since[k] = owes ? now : 0;
        else if (neb_seconds(now - j->said.owing_since[k]) > least_s)
            mset_add(&late, k);
    }
    return late;
}

// Reports clusters that are reachable but send nothing: once each, because rounds always wait for a
// cluster that is only slow.
static void tell_owing(struct daemon *d, struct agent_jobrun *j, struct member_set owing) {
    char names[320] = "", text[480];
    owing = owing_for(j, owing, j->job.sync.grace_s);
    if (mset_within(owing, j->said.owing))
        return;
    j->said.owing = mset_union(j->said.owing, owing);
    agent_status_names(&j->job, owing, names, sizeof names);
    snprintf(text, sizeof text,
             "a round waits for the update of %s, which is reachable but has sent none in "
             "sync.grace_s (%g s) after the others; if that lasts, the hub can revoke it",
             names, j->job.sync.grace_s);
    daemon_report_fault(d, j, text);
}

// Watchers elsewhere see rounds stand still and look for the reason at other clusters, so this is
// reported; at most once a minute, because a disk may be full now and then.
static void tell_room(struct daemon *d, struct agent_jobrun *j, bool no_room) {
    const neb_ns quiet = 60 * NEB_S;
    const char *why = inter_service_no_room(d->service);
    char text[480];
    if (j->said.room && !why)
        snprintf(text, sizeof text, "%s can store the others' updates again", daemon_name(d));
    else if (!j->said.room && why && no_room &&
             (!j->said.room_at || neb_now() - j->said.room_at > quiet))
        snprintf(text, sizeof text,
                 "%s cannot store the others' updates (%s): its rounds wait, and those of others "
                 "that need its updates",
                 daemon_name(d), why);
    else
        return;
    j->said.room = why != NULL;
    j->said.room_at = neb_now();
    daemon_report_fault(d, j, text);
}

static void reason_to_wait(const struct agent_jobrun *j, char *out, size_t cap) {
    const char *why = "";
    if (j->job.sync.gate == AGENT_GATE_ROBUST)
        why = ": with the gate \"robust\" a round needs five updates";
    else if (j->job.sync.commit_all)
        why = ": with sync.commit_all a round needs every cluster";
    snprintf(out, cap, "%s", why);
    if (j->job.sync.gate == AGENT_GATE_PRIVATE)
        snprintf(out, cap, ": with the gate \"private\" a round needs %d of the %d clusters",
                 agent_private_needs(&j->job), j->job.n_clusters);
}

// Reports when rounds begin to wait for certain clusters, and when that is over.
void daemon_send_waits(struct daemon *d, struct agent_jobrun *j) {
    struct inter_job_status st;
    char names[320] = "", why[96], text[480];
    if (!j->federated || j->state != AGENT_JOB_RUNNING ||
        !inter_service_job_status(d->service, j->id, &st) ||
        !j->worker.last_step) // before its first step nobody has been reachable yet
        return;
    tell_owing(d, j, st.owing);
    tell_room(d, j, !mset_empty(st.no_room));
    if (mset_equal(st.waits, j->said.waits))
        return;
    j->said.waits = st.waits;
    agent_status_names(&j->job, st.waits, names, sizeof names);
    reason_to_wait(j, why, sizeof why);
    bool silent = !mset_within(st.waits, st.live), ended = mset_meets(st.waits, st.live);
    if (!mset_empty(st.waits))
        snprintf(text, sizeof text, "rounds wait for %s, %s%s%s%s", names,
                 silent ? "not reachable" : "", silent && ended ? ", or " : "",
                 ended ? "whose worker has ended" : "", why);
    else
        snprintf(text, sizeof text, "rounds continue: no cluster is waited for any more");
    daemon_report_fault(d, j, text);
}

// Logs at once, then at most once a minute, what was dropped for --blobs-max; and once an hour that
// no more can be dropped.
void daemon_send_blobs(struct daemon *d) {
    static const neb_ns minute = 60 * NEB_S, hour = 60 * minute;
    const struct inter_ledger *l = inter_service_ledger(d->service);
    struct inter_dropped n;
    char a[32], b[32];
    neb_ns now = neb_now();
    if (!d->c->blobs_max)
        return;
    inter_ledger_dropped(l, &n);
    if (n.rounds < d->blobs_told.rounds) // another ledger handle, which counts from zero
        d->blobs_told = (struct inter_dropped){0};
    if (n.rounds > d->blobs_told.rounds && (!d->blobs_told_at || now - d->blobs_told_at > minute)) {
        neb_warn(
            "updates of %llu rounds (%s) were dropped because of --blobs-max %s: older checkpoints "
            "would need them, and members that are behind continue from a snapshot of the newest",
            (unsigned long long)(n.rounds - d->blobs_told.rounds),
            agent_human_bytes((double)(n.bytes - d->blobs_told.bytes), a, sizeof a),
            agent_human_bytes((double)d->c->blobs_max, b, sizeof b));
        d->blobs_told = n;
        d->blobs_told_at = now;
    }
    if (inter_ledger_used(l) > d->c->blobs_max &&
        (!d->blobs_over_at || now - d->blobs_over_at > hour)) {
        neb_warn("updates take %s, more than --blobs-max %s: those since the newest checkpoint are "
                 "kept; a smaller checkpoint.every_steps makes them fewer",
                 agent_human_bytes((double)inter_ledger_used(l), a, sizeof a),
                 agent_human_bytes((double)d->c->blobs_max, b, sizeof b));
        d->blobs_over_at = now;
    }
}

static void publish_text(struct daemon *d, struct agent_jobrun *j, const char *kind,
                         const char *text) {
    daemon_publish_line(
        d, j, json_pack("{s:s,s:s,s:s}", "kind", kind, "cluster", daemon_name(d), "text", text));
}

void daemon_note(struct daemon *d, struct agent_jobrun *j, const char *text) {
    publish_text(d, j, "note", text);
}

void daemon_note_fault(struct daemon *d, struct agent_jobrun *j, const char *text) {
    publish_text(d, j, "fault", text);
}

void daemon_report_fault(struct daemon *d, struct agent_jobrun *j, const char *text) {
    neb_warn("job %s: %s", j->job.name, text);
    daemon_note_fault(d, j, text);
}
