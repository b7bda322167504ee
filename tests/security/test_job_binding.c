// SPDX-License-Identifier: Apache-2.0
// A job belongs to the member that submitted it, and its messages to its clusters. An agent,
// `site`, runs anna's job (clusters site, anna, bert). Mallory, who has no cluster, sends messages
// for it and offers jobs under its id. Bert may resume it, but not with another specification.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/daemon/daemon.h"
#include "agent/daemon/lines.h"
#include "agent/daemon/policy.h"
#include "agent/job/config.h"
#include "agent/job/id.h"
#include "agent/job/tune.h"
#include "agent/proc/ipc.h"
#include "inter/service/service.h"

#include <ctype.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const char yaml[] =
    "job: %s\nsteps: 40\nmodel: {vocab: 16, n_layers: 1, d_model: 8, n_heads: 2, n_kv_heads: 1, "
    "d_ff: 16, tied: true}\n"
    "data: {corpus: /nowhere, seq_len: 8, batch: 1}\noptim: {lr: 0.1}\nsync: {%s}\n"
    "clusters:\n  - {name: site, launcher: attach, threads: %d}\n"
    "  - {name: anna, launcher: attach, threads: 1}\n"
    "  - {name: bert, launcher: attach, threads: 1}\n";
enum { HEX = 2 * AGENT_JOB_ID_BYTES + 1 };
static char annas[HEX], sites[HEX], lost[HEX], capitals[HEX];
static const char unasked[] = "4444444444444444444444444444444444444444444444444444444444444444";
static char nonce[2 * AGENT_NONCE_BYTES + 1] = "00000000000000000000000000000000";

enum { SITE, ANNA, BERT, MALLORY, N, ENDED = 2 };
static const char *const names[] = {"site", "anna", "bert", "mallory"};
static char dir[] = "/tmp/nebula-binding-XXXXXX", homes[N][64], path[128], log_path[128];
static pid_t agent;
static void *ctx, *contexts[N]; // one ZAP handler each
static struct sec_identity *ids[N];
static struct sec_members members;
static struct inter_service *services[N]; // the agent has SITE's
static uint32_t index_of[N];              // in everybody's list
static bool up[N];
static char refused[N][512]; // the reason of the last refusal; "": none since wait_refused
static char refused_id[N][HEX];
static unsigned answered_again, refused_running; // both must stay 0
static unsigned barriers;
static int threads = 1; // of the site, which may change them
static bool alone;      // the job's clusters exchange nothing

// ---- the members --------------------------------------------------------------------------------

static void on_message(void *user, uint32_t peer, uint32_t kind, const uint8_t *p, size_t n) {
    int who = *(int *)user;
    (void)peer;
    json_t *body = json_loadb((const char *)p, n, 0, NULL);
    const char *reason = json_string_value(json_object_get(body, "reason")),
               *id = json_string_value(json_object_get(body, "id"));
    if (kind == AGENT_MSG_REFUSED && reason && id) {
        snprintf(refused[who], sizeof refused[who], "%s", reason);
        snprintf(refused_id[who], sizeof refused_id[who], "%s", id);
        answered_again += !strcmp(id, unasked);
        refused_running += !strcmp(id, annas) && strstr(reason, "too many jobs");
    }
    json_decref(body);
}
static void on_peer(void *user, uint32_t peer, bool is_up) {
    int who = *(int *)user;
    if (peer == index_of[SITE])
        up[who] = is_up;
}
static void on_fault(void *user, uint32_t peer, enum inter_fault f) {
    (void)user, (void)peer, (void)f;
}

static void start(int i) {
    static int who[N] = {SITE, ANNA, BERT, MALLORY};
    struct inter_service_config c = {
        .dir = homes[i],
        .identity = ids[i],
        .members = &members,
        .n_bulk = 1,
        .zmq_context = contexts[i],
        .callbacks = {.user = &who[i], .message = on_message, .peer = on_peer, .fault = on_fault}};
    assert_int_equal(inter_service_create(&c, &services[i]), NEB_OK);
}

static void step(void) {
    zmq_pollitem_t items[256];
    size_t n = 0;
    for (int i = ANNA; i < N; i++)
        n += services[i] ? inter_service_poll_items(services[i], items + n, 256 - n) : 0;
    zmq_poll(items, (int)n, 10);
    for (int i = ANNA; i < N; i++)
        if (services[i])
            assert_int_equal(inter_service_process(services[i]), NEB_OK);
}

static void say(int who, enum agent_message kind, json_t *body) {
    char *text = json_dumps(body, JSON_COMPACT);
    assert_non_null(text);
    assert_int_equal(
        inter_service_send(services[who], index_of[SITE], (uint32_t)kind, text, strlen(text)),
        NEB_OK);
    free(text);
    json_decref(body);
}

static void wait_refused(int who, const char *text) {
    for (neb_ns end = neb_now() + 20 * NEB_S; !refused[who][0] && neb_now() < end;)
        step();
    if (!strstr(refused[who], text))
        fail_msg("%s got the reason \"%s\", expected \"%s\"", names[who], refused[who], text);
    refused[who][0] = 0;
}

// Reliable messages stay in order, so the refusal of this offer comes after everything sent before.
static void barrier(int who) {
    char hex[HEX];
    snprintf(hex, sizeof hex, "%064x", ++barriers);
    say(who, AGENT_MSG_JOB, json_pack("{s:s,s:{},s:s}", "id", hex, "spec", "sig", ""));
    wait_refused(who, "not signed");
}

// ---- jobs ---------------------------------------------------------------------------------------

static json_t *spec(const char *name) {
    char text[1024];
    struct agent_job *job = calloc(1, sizeof *job);
    int n =
        snprintf(text, sizeof text, yaml, name, alone ? "scheme: none" : "interval: 10", threads);
    assert_int_equal(agent_job_parse(text, (size_t)n, "t.yaml", job), NEB_OK);
    memcpy(job->nonce, nonce, sizeof nonce);
    json_t *o = agent_job_to_json(job);
    free(job);
    return o;
}

static const uint8_t no_federation[SEC_FEDERATION_BYTES];

// The id of the job with this name when `submitter` submits it.
static void id_of(const char *name, int submitter, char hex[HEX]) {
    uint8_t id[AGENT_JOB_ID_BYTES];
    json_t *s = spec(name);
    assert_int_equal(agent_job_id(no_federation, names[submitter], s, id), NEB_OK);
    neb_hex(id, sizeof id, hex);
    json_decref(s);
}

// As daemon_signed_job, signed by `signer`.
static json_t *offer(const char *hex, const char *name, int signer, const char *home,
                     const char *flag) {
    uint8_t id[AGENT_JOB_ID_BYTES], sig[SEC_SIGN_BYTES];
    char text[2 * SEC_SIGN_BYTES + 1];
    struct neb_buf b = {0};
    json_t *s = spec(name);
    assert_true(neb_unhex(hex, id, sizeof id));
    assert_int_equal(agent_job_signed_bytes(no_federation, id, s, &b), NEB_OK);
    assert_int_equal(sec_sign(ids[signer], AGENT_CONTEXT_JOB, b.p, b.len, sig), NEB_OK);
    neb_buf_free(&b);
    neb_hex(sig, sizeof sig, text);
    json_t *o = json_pack("{s:s,s:o,s:s,s:s}", "id", hex, "spec", s, "home", home, "sig", text);
    if (flag)
        json_object_set_new(o, flag, json_true());
    return o;
}

static json_t *about(const char *hex) {
    json_t *lines = json_pack(
        "[i,{s:i},{s:i,s:{s:s,s:s}},{s:i,s:f,s:{s:s,s:s}},{s:i,s:f,s:{s:s,s:s}}]", //
        3, "line", 7,                                                              // not lines
        "n", 5, "line", "kind", "fault", "text", "f\033[2J\nforged",               //
        "n", 5, "late_s", 2.0, "line", "kind", "fault", "text", "the same again",  // number used
        "n", 6, "late_s", 1e300, "line", "kind", "fault", "text", "of another age");
    assert_non_null(lines);
    return json_pack("{s:s,s:s,s:o,s:{s:s,s:s}}", "id", hex, "reason", "no", "lines", lines,
                     "report", "error", "forged", "name", "site");
}

static struct agent_ipc *client(void) {
    struct agent_ipc *c = NULL;
    assert_int_equal(agent_ipc_connect(ctx, path, &c), NEB_OK);
    return c;
}

// Checks what `nebula jobs` reports: "NAME, running of anna".
static void check_job(const char *hex, const char *want) {
    char is[128] = "";
    size_t i;
    json_t *j;
    for (neb_ns end = neb_now() + 20 * NEB_S; strcmp(is, want) != 0 && neb_now() < end; step()) {
        snprintf(is, sizeof is, "absent");
        struct agent_ipc *c = client();
        struct agent_ipc_msg m = {0};
        assert_int_equal(agent_ipc_send(c, NULL, json_pack("{s:s}", "op", "jobs"), NULL, 0),
                         NEB_OK);
        assert_int_equal(agent_ipc_wait(c, 20 * NEB_S, &m), NEB_OK);
        json_array_foreach(json_object_get(m.head, "jobs"), i, j) {
            const char *home = json_string_value(json_object_get(j, "home"));
            if (!strcmp(json_string_value(json_object_get(j, "id")), hex))
                snprintf(is, sizeof is, "%s, %s of %s",
                         json_string_value(json_object_get(j, "job")),
                         json_string_value(json_object_get(j, "state")), *home ? home : "site");
        }
        agent_ipc_msg_clear(&m);
        agent_ipc_destroy(&c);
    }
    assert_string_equal(is, want);
}

static int said(const char *text) { // lines of the agent's log with this text
    struct neb_buf b = {0};
    int n = 0;
    assert_int_equal(neb_fs_read(log_path, 1 << 24, &b), NEB_OK);
    neb_buf_u8(&b, 0);
    for (const char *at = (const char *)b.p; (at = strstr(at, text)); at++)
        n++;
    neb_buf_free(&b);
    return n;
}

// ---- tests --------------------------------------------------------------------------------------

static void test_messages_of_others(void **state) {
    (void)state;
    say(ANNA, AGENT_MSG_JOB, offer(annas, "honest", ANNA, "anna", NULL));
    check_job(annas, "honest, running of anna");
    say(MALLORY, AGENT_MSG_STOP, about(annas));
    say(MALLORY, AGENT_MSG_REFUSED, about(annas));
    barrier(MALLORY);
    check_job(annas, "honest, running of anna");
}

// Offers under the id of a job that runs.
static void test_running(void **state) {
    (void)state;
    say(MALLORY, AGENT_MSG_JOB, offer(annas, "forged", MALLORY, "mallory", NULL));
    wait_refused(MALLORY, "\"mallory\" has signed the job id");
    say(MALLORY, AGENT_MSG_JOB, offer(annas, "honest", MALLORY, "mallory", NULL));
    wait_refused(MALLORY, "has signed"); // the same specification does not give it another owner
    say(MALLORY, AGENT_MSG_JOB, offer(annas, "honest", MALLORY, "mallory", "again"));
    barrier(MALLORY);
    say(BERT, AGENT_MSG_JOB, offer(annas, "other", BERT, "anna", "resume"));
    wait_refused(BERT, "which \"anna\" submitted");
    check_job(annas, "honest, running of anna");
}

// The same bytes in capital letters are not another id, neither beside the running job nor in its
// rounds.
static void test_capitals(void **state) {
    (void)state;
    for (alone = false;; alone = true) {
        json_t *o = offer(annas, "forged", MALLORY, "mallory", NULL);
        json_object_set_new(o, "id", json_string(capitals));
        say(MALLORY, AGENT_MSG_JOB, o);
        barrier(MALLORY);
        check_job(capitals, "absent");
        check_job(annas, "honest, running of anna");
        if (alone)
            break;
    }
    alone = false;
    assert_int_equal(said("job forged"), 0);
}

// Offers under the id of a job that has ended.
static void test_ended(void **state) {
    (void)state;
    say(BERT, AGENT_MSG_STOP, about(annas)); // one of its clusters
    check_job(annas, "honest, stopped of anna");
    say(MALLORY, AGENT_MSG_JOB, offer(annas, "forged", MALLORY, "mallory", NULL));
    wait_refused(MALLORY, "has signed");
    say(MALLORY, AGENT_MSG_JOB, offer(annas, "forged", MALLORY, "mallory", "resume"));
    wait_refused(MALLORY, "has signed");
    say(MALLORY, AGENT_MSG_JOB, offer(annas, "honest", ANNA, "anna", "resume"));
    wait_refused(MALLORY, "only a cluster of the job");
    say(BERT, AGENT_MSG_JOB, offer(annas, "forged", BERT, "anna", "resume"));
    wait_refused(BERT, "another job");
    say(BERT, AGENT_MSG_JOB, offer(annas, "honest", BERT, "bert", "resume"));
    wait_refused(BERT, "\"bert\" has signed");
    check_job(annas, "honest, stopped of anna");
    say(BERT, AGENT_MSG_JOB, offer(annas, "honest", ANNA, "anna", "resume"));
    check_job(annas, "honest, running of anna");
    say(ANNA, AGENT_MSG_STOP, about(annas));
    check_job(annas, "honest, stopped of anna");
    say(ANNA, AGENT_MSG_JOB, offer(annas, "honest", ANNA, "anna", NULL)); // pretrain --resume
    check_job(annas, "honest, running of anna");
}

struct waiting {
    const char *of;
    uint64_t messages;
};

static void count_waiting(void *user, const char *peer, uint64_t messages, uint64_t bytes) {
    struct waiting *w = user;
    (void)bytes;
    if (!strcmp(peer, w->of))
        w->messages += messages;
}

static uint64_t waits_for(int who) { // in the agent's outbox
    struct inter_ledger *l = NULL;
    struct waiting w = {.of = names[who]};
    assert_int_equal(inter_ledger_open_readonly(homes[SITE], &l), NEB_OK);
    assert_int_equal(inter_ledger_outbox(l, count_waiting, &w), NEB_OK);
    inter_ledger_close(&l);
    return w.messages;
}

// The link breaks before the answer. The refusal for a known job is sent over the next link, once.
static void test_refused_at_last(void **state) {
    (void)state;
    int before = said("of bert refused");
    assert_int_equal(kill(agent, SIGSTOP), 0);
    for (int i = 0; i < 2; i++)
        say(BERT, AGENT_MSG_JOB, offer(annas, "forged", BERT, "anna", "resume"));
    // time to reach the agent's socket
    for (neb_ns end = neb_now() + 300 * NEB_MS; neb_now() < end;)
        step();
    inter_service_destroy(&services[BERT]);
    up[BERT] = false;
    assert_int_equal(kill(agent, SIGCONT), 0);
    for (neb_ns end = neb_now() + 10 * NEB_S;
         (said("of bert refused") < before + 2 || !said("link to bert is down")) &&
         neb_now() < end;)
        step();
    assert_int_equal(said("of bert refused"), before + 2);
    assert_int_equal(waits_for(BERT), 1);
    start(BERT);
    wait_refused(BERT, "another job");
    barrier(BERT); // nothing else was refused
}

// Where and how a cluster trains may change, if the submitter signs the change.
static void test_places(void **state) {
    (void)state;
    threads = 2;
    say(BERT, AGENT_MSG_JOB, offer(annas, "honest", BERT, "anna", "resume"));
    wait_refused(BERT, "not signed");
    say(MALLORY, AGENT_MSG_JOB, offer(annas, "honest", MALLORY, "mallory", NULL));
    wait_refused(MALLORY, "has signed");
    say(ANNA, AGENT_MSG_JOB, offer(annas, "honest", ANNA, "anna", NULL));
    barrier(ANNA); // nothing was refused
    threads = 1;
    say(BERT, AGENT_MSG_JOB, offer(annas, "honest", BERT, "anna", "resume")); // threads is 2 now
    wait_refused(BERT, "not signed");
    threads = 2;
    // as the site has stored it
    say(BERT, AGENT_MSG_JOB, offer(annas, "honest", BERT, "anna", "resume"));
    barrier(BERT);
    threads = 1;
    check_job(annas, "honest, running of anna");
}

// This site lost its disk and does not know the job. Then the signature decides who submitted it.
static void test_lost_disk(void **state) {
    (void)state;
    nonce[0] = '1';
    id_of("honest", ANNA, lost);
    say(BERT, AGENT_MSG_JOB, offer(lost, "honest", BERT, "anna", "resume"));
    wait_refused(BERT, "not signed by the member that submits it");
    say(BERT, AGENT_MSG_JOB, offer(lost, "honest", ANNA, "anna", "resume"));
    check_job(lost, "honest, running of anna");
    nonce[0] = '0';
}

// A cluster of the job reports progress without end, in long lines. A client that follows the job
// gets no more than AGENT_LINES_TAKEN allows.
static void hear_without_end(struct agent_ipc **c) {
    enum { LONG = 40 << 10, MANY = 400 };
    static char text[LONG + 1];
    uint64_t got = 0;
    neb_ns from = neb_now();
    struct agent_ipc_msg m = {0};
    memset(text, 'x', LONG);
    for (int i = 0; i < MANY || neb_now() < from + 2 * NEB_S; i++) {
        json_t *o = json_pack("{s:s,s:[{s:i,s:{s:s,s:s}}]}", "id", sites, "lines", "n", 100 + i,
                              "line", "kind", "note", "text", text);
        char *body = json_dumps(o, JSON_COMPACT);
        if (i < MANY)
            (void)!inter_service_send_telemetry(services[BERT], index_of[SITE], AGENT_MSG_METRICS,
                                                body, strlen(body));
        free(body);
        json_decref(o);
        step();
        while (agent_ipc_wait(*c, 0, &m) == NEB_OK) {
            const char *t =
                json_string_value(json_object_get(json_object_get(m.head, "line"), "text"));
            got += t && t[0] == 'x' ? strlen(t) : 0;
            agent_ipc_msg_clear(&m);
        }
    }
    double passed = neb_seconds(neb_now() - from);
    agent_ipc_destroy(c);
    assert_in_range(got, AGENT_LINES_BYTES_BURST,
                    AGENT_LINES_TAKEN *
                        (AGENT_LINES_BYTES_BURST + AGENT_LINES_BYTES_A_SECOND * passed));
    assert_int_equal(said("reports more progress"), 1);
}

// Reports about a job that was submitted here count only if they come from its clusters.
static void test_disclose(void **state) {
    (void)state;
    struct agent_ipc *c = client();
    struct agent_ipc_msg m = {0};
    bool heard = false;
    int lines = 0, odd = 0;
    id_of("here", SITE, sites);
    assert_int_equal(agent_ipc_send(c, NULL,
                                    json_pack("{s:s,s:s,s:o}", "op", "submit", "id", sites, "spec",
                                              spec("here")),
                                    NULL, 0),
                     NEB_OK);
    // Wait until the job runs: reports about an unknown job are dropped.
    assert_int_equal(agent_ipc_wait(c, 20 * NEB_S, &m), NEB_OK);
    assert_true(json_is_true(json_object_get(m.head, "ok")));
    agent_ipc_msg_clear(&m);
    say(MALLORY, AGENT_MSG_METRICS, about(sites));
    say(MALLORY, AGENT_MSG_REPORT, about(sites));
    barrier(MALLORY);
    say(BERT, AGENT_MSG_METRICS, about(sites));
    say(BERT, AGENT_MSG_REPORT, about(sites));
    for (neb_ns end = neb_now() + 20 * NEB_S; !heard && neb_now() < end; step()) {
        if (agent_ipc_wait(c, 20 * NEB_MS, &m) != NEB_OK)
            continue;
        json_t *line = json_object_get(m.head, "line"), *report = json_object_get(m.head, "report");
        const char *text = json_string_value(json_object_get(line, "text")),
                   *of = json_string_value(json_object_get(line, "cluster"));
        if (text && strstr(text, "forged")) {
            assert_string_equal(of, "bert"); // whatever the message itself claims
            assert_string_equal(text, "f?[2J?forged");
            lines++;
        }
        assert_false(text && strcmp(text, "the same again") == 0);
        if (text && strcmp(text, "of another age") == 0) {
            assert_true(json_number_value(json_object_get(m.head, "late_s")) == 0);
            odd++;
        }
        if (report) {
            assert_string_equal(json_string_value(json_object_get(report, "name")), "bert");
            heard = true;
        }
        agent_ipc_msg_clear(&m);
    }
    assert_true(heard);
    assert_int_equal(lines, 1);
    assert_int_equal(odd, 1);
    hear_without_end(&c);
}

// A site cannot submit a job under the id of another member's job.
static void test_local(void **state) {
    (void)state;
    struct agent_ipc *c = client();
    struct agent_ipc_msg m = {0};
    assert_int_equal(agent_ipc_send(c, NULL,
                                    json_pack("{s:s,s:s,s:o}", "op", "submit", "id", annas, "spec",
                                              spec("honest")),
                                    NULL, 0),
                     NEB_OK);
    assert_int_equal(agent_ipc_wait(c, 20 * NEB_S, &m), NEB_OK);
    assert_false(json_is_true(json_object_get(m.head, "ok")));
    assert_non_null(strstr(agent_ipc_str(&m, "text", ""), "which \"anna\" submitted"));
    agent_ipc_msg_clear(&m);
    agent_ipc_destroy(&c);
    check_job(annas, "honest, running of anna");
}

// How many manifests the site found forged.
static int64_t forged(void) {
    struct agent_ipc *c = client();
    struct agent_ipc_msg m = {0};
    assert_int_equal(agent_ipc_send(c, NULL, json_pack("{s:s}", "op", "status"), NULL, 0), NEB_OK);
    assert_int_equal(agent_ipc_wait(c, 20 * NEB_S, &m), NEB_OK);
    int64_t n = json_integer_value(
        json_object_get(json_object_get(m.head, "faults"), inter_fault_name(INTER_FAULT_FORGED)));
    agent_ipc_msg_clear(&m);
    agent_ipc_destroy(&c);
    return n;
}

// Sends the update of round 0 of anna's job for cluster `who`: ten steps.
static void send_update(int who, uint64_t tokens) {
    static const char blob[64] = "an update";
    struct agent_job *job = calloc(1, sizeof *job);
    json_t *o = spec("honest");
    assert_int_equal(agent_job_from_json(o, job), NEB_OK);
    struct inter_job_config c = {.n_members = 3,
                                 .self = (uint8_t)who,
                                 .fragments = 1,
                                 .merge_after = (uint32_t)job->sync.merge_after,
                                 .grace = 60 * NEB_S,
                                 .eta = job->sync.eta,
                                 .mu = job->sync.mu,
                                 .tune = agent_tune_config(job)};
    struct inter_manifest m = {.tokens = tokens, .step = 10, .steps = 10};
    assert_true(neb_unhex(annas, c.id, sizeof c.id));
    memcpy(m.key.job, c.id, sizeof m.key.job);
    m.key.member = (uint8_t)who;
    for (int i = SITE; i <= BERT; i++)
        c.peers[i] = index_of[i];
    assert_int_equal(inter_service_job_open(services[who], &c), NEB_OK);
    assert_int_equal(inter_service_submit(services[who], &m, blob, sizeof blob), NEB_OK);
    json_decref(o);
    free(job);
}

// An attached trainer counts its own tokens, and they are its cluster's weight. They may be at most
// eight times those of the job.
static void test_tokens(void **state) {
    (void)state;
    int64_t before = forged();
    send_update(ANNA,
                10 * 8 * AGENT_FOREIGN_TOKENS); // ten steps with a batch of one sequence of 8
    for (neb_ns end = neb_now() + 3 * NEB_S; neb_now() < end;)
        step();
    assert_int_equal(forged(), before);
    send_update(BERT, 1ull << 40);
    for (neb_ns end = neb_now() + 20 * NEB_S; forged() == before && neb_now() < end;)
        step();
    assert_true(forged() > before);
}

// ---- floods -------------------------------------------------------------------------------------

static void offer_many(int who, int from, int n) {
    for (int i = from; i < from + n; i++) {
        char hex[HEX];
        snprintf(hex, sizeof hex, "%064x", i);
        say(who, AGENT_MSG_JOB, json_pack("{s:s,s:{},s:s}", "id", hex, "spec", "sig", ""));
    }
}

// Endless jobs from a member that reads no answer. The refusals are logged a few times. Only a
// limited number of offers is looked at, and nothing is kept for that member.
static void test_offers_without_end(void **state) {
    (void)state;
    int before = said("of mallory refused");
    offer_many(MALLORY, 0x1000, 150);
    for (neb_ns end = neb_now() + 20 * NEB_S;
         !strstr(refused[MALLORY], "too many jobs") && neb_now() < end;)
        step();
    assert_non_null(strstr(refused[MALLORY], "too many jobs"));
    refused[MALLORY][0] = 0;
    assert_in_range(said("of mallory refused") - before, 0, 16);
    inter_service_destroy(&services[MALLORY]); // she acknowledges nothing any more
    for (neb_ns end = neb_now() + 5 * NEB_S;
         said("link to mallory is down") == 0 && neb_now() < end;)
        step();
    assert_int_equal(waits_for(MALLORY), 0);
}

// Many offers from an outage are refused, but the offer of the running job after them is not.
// Unrequested offers ("again") get no answer.
static void test_offers_behind_many(void **state) {
    (void)state;
    char last[HEX];
    check_job(annas, "honest, running of anna");
    offer_many(ANNA, 0x2000, 70);
    for (int i = 0; i < 8; i++) {
        say(ANNA, AGENT_MSG_JOB, offer(annas, "honest", ANNA, "anna", NULL));
        say(ANNA, AGENT_MSG_JOB, offer(unasked, "forged", MALLORY, "anna", "again"));
    }
    offer_many(ANNA, 0x3000, 1);
    snprintf(last, sizeof last, "%064x", 0x3000);
    for (neb_ns end = neb_now() + 20 * NEB_S;
         strcmp(refused_id[ANNA], last) != 0 && neb_now() < end;)
        step();
    assert_string_equal(refused_id[ANNA], last);
    assert_int_equal(refused_running, 0);
    assert_int_equal(answered_again, 0);
    check_job(annas, "honest, running of anna");
}

// Jobs are submitted and stopped repeatedly. The newest jobs stay, and nothing of the others is
// kept.
static void test_ended_without_end(void **state) {
    (void)state;
    enum { MANY = ENDED + 2 };
    char hex[MANY][HEX], folder[512];
    for (int i = 0; i < MANY; i++) {
        snprintf(nonce, sizeof nonce, "%032x", 0x4000 + i);
        id_of("loop", BERT, hex[i]);
        say(BERT, AGENT_MSG_JOB, offer(hex[i], "loop", BERT, "bert", NULL));
        check_job(hex[i], "loop, running of bert");
        say(BERT, AGENT_MSG_STOP, json_pack("{s:s}", "id", hex[i]));
        check_job(hex[i], "loop, stopped of bert");
        neb_sleep(1100 * NEB_MS); // ages are compared in seconds
    }
    for (int i = 0; i < MANY; i++) {
        check_job(hex[i], i < MANY - ENDED ? "absent" : "loop, stopped of bert");
        snprintf(folder, sizeof folder, "%s/jobs/%s", homes[SITE], hex[i]);
        assert_true(neb_fs_exists(folder) == (i >= MANY - ENDED));
    }
    // The id stays used, because masks of sums would repeat under it.
    snprintf(nonce, sizeof nonce, "%032x", 0x4000);
    say(BERT, AGENT_MSG_JOB, offer(hex[0], "loop", BERT, "bert", NULL));
    wait_refused(BERT, "was removed");
    check_job(hex[0], "absent");
    snprintf(nonce, sizeof nonce, "%032x", 0);
    check_job(annas, "honest, running of anna");
}

// ---- set-up -------------------------------------------------------------------------------------

static void run_agent(void) {
    struct agent_daemon_config c = {
        .home = homes[SITE], .listen = "127.0.0.1:*", .ended_max = ENDED};
    int fd = open(log_path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(fd, STDERR_FILENO);
    _exit(agent_daemon_run(&c) == NEB_OK ? 0 : 1);
}

static uint32_t port_of_agent(void) {
    struct agent_ipc *c = client();
    struct agent_ipc_msg m = {0};
    assert_int_equal(agent_ipc_send(c, NULL, json_pack("{s:s}", "op", "status"), NULL, 0), NEB_OK);
    assert_int_equal(agent_ipc_wait(c, 20 * NEB_S, &m), NEB_OK);
    uint32_t port = (uint32_t)json_integer_value(json_object_get(m.head, "port"));
    agent_ipc_msg_clear(&m);
    agent_ipc_destroy(&c);
    return port;
}

static int setup(void **state) {
    char list[128];
    (void)state;
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < N; i++) {
        struct sec_member m = {.connect = SEC_CONNECT_AUTO};
        snprintf(homes[i], sizeof homes[i], "%s/%s", dir, names[i]);
        assert_int_equal(sec_identity_create(homes[i], names[i], &ids[i]), NEB_OK);
        m.pub = *sec_identity_public(ids[i]);
        assert_int_equal(sec_members_add(&members, &m), NEB_OK);
    }
    snprintf(path, sizeof path, "%s/agent.sock", homes[SITE]);
    snprintf(log_path, sizeof log_path, "%s/agent.log", dir);
    snprintf(list, sizeof list, "%s/members.json", homes[SITE]);
    assert_int_equal(sec_members_save(list, &members), NEB_OK);
    if ((agent = fork()) == 0)
        run_agent();
    ctx = zmq_ctx_new();
    for (neb_ns end = neb_now() + 20 * NEB_S; !neb_fs_exists(path) && neb_now() < end;)
        neb_sleep(10 * NEB_MS);
    id_of("honest", ANNA, annas);
    for (int i = 0; i < HEX; i++)
        capitals[i] = (char)toupper(annas[i]);
    uint32_t port = port_of_agent();
    for (uint32_t k = 0; k < members.n; k++)
        for (int i = 0; i < N; i++)
            if (!strcmp(members.m[k].pub.name, names[i]))
                index_of[i] = k;
    snprintf(members.m[index_of[SITE]].endpoint, SEC_ENDPOINT_MAX, "127.0.0.1:%u", port);
    for (int i = ANNA; i < N; i++) {
        contexts[i] = zmq_ctx_new();
        start(i);
    }
    for (neb_ns end = neb_now() + 20 * NEB_S;
         !(up[ANNA] && up[BERT] && up[MALLORY]) && neb_now() < end;)
        step();
    return up[ANNA] && up[BERT] && up[MALLORY] ? 0 : -1;
}

static int teardown(void **state) {
    int status = 1;
    (void)state;
    for (int i = ANNA; i < N; i++) {
        inter_service_destroy(&services[i]);
        zmq_ctx_term(contexts[i]);
    }
    zmq_ctx_term(ctx);
    kill(agent, SIGINT);
    waitpid(agent, &status, 0);
    assert_int_equal(status, 0);
    for (int i = 0; i < N; i++)
        sec_identity_destroy(&ids[i]);
    return neb_fs_remove_tree(dir) == NEB_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_messages_of_others),
                                       cmocka_unit_test(test_running),
                                       cmocka_unit_test(test_capitals),
                                       cmocka_unit_test(test_ended),
                                       cmocka_unit_test(test_refused_at_last),
                                       cmocka_unit_test(test_places),
                                       cmocka_unit_test(test_lost_disk),
                                       cmocka_unit_test(test_disclose),
                                       cmocka_unit_test(test_local),
                                       cmocka_unit_test(test_tokens),
                                       cmocka_unit_test(test_ended_without_end),
                                       cmocka_unit_test(test_offers_behind_many),
                                       cmocka_unit_test(test_offers_without_end)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
