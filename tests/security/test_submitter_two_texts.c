// SPDX-License-Identifier: Apache-2.0
// A submitter signs one job id for two specifications. With another learning rate or range, a
// site's integers are zero, so a sum of masked updates would show the update of one member. Agents
// that get the false text begin nothing and tell the others. Agents that train stop, and name the
// submitter.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/cli/commands.h"
#include "agent/daemon/daemon.h"
#include "agent/daemon/policy.h"
#include "agent/job/config.h"
#include "agent/job/id.h"
#include "agent/proc/ipc.h"
#include "agent/proc/port.h"
#include "inter/service/service.h"

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

enum { ANNA, BERT, CARL, N, HEX = 2 * AGENT_JOB_ID_BYTES + 1 };
static const char yaml[] =
    "job: sum\nsteps: 40\nmodel: {vocab: 16, n_layers: 1, d_model: 8, n_heads: 2, n_kv_heads: 1, "
    "d_ff: 16, tied: true}\n"
    "data: {corpus: /nowhere, seq_len: 8, batch: 2}\noptim: {lr: 0.1}\nsync: {interval: 10, gate: "
    "private, codec: bf16, row_weights: false, private_range: 0.5}\nclusters:\n"
    "  - {name: anna, launcher: attach, threads: 1}\n"
    "  - {name: bert, launcher: attach, threads: 1}\n"
    "  - {name: carl, launcher: attach, threads: 1}\n";
static const char *const names[] = {"anna", "bert", "carl"};
static char dir[] = "/tmp/nebula-two-texts-XXXXXX", homes[N][64], sockets[N][256], logs[N][96];
static pid_t agents[N];
static void *ctx, *links;
static struct sec_identity *ids[N];
static struct sec_members members;
static struct inter_service *anna;
static uint32_t index_of[N];
static bool up[N];
static char refused[N][512]; // the last answer of each; "": none
static char refused_id[N][HEX];
static unsigned drawn;
static uint16_t ports[N];

// ---- anna --------------------------------------------------------------------------------------

static void on_message(void *user, uint32_t peer, uint32_t kind, const uint8_t *p, size_t n) {
    (void)user;
    json_t *body = json_loadb((const char *)p, n, 0, NULL);
    const char *reason = json_string_value(json_object_get(body, "reason")),
               *id = json_string_value(json_object_get(body, "id"));
    for (int i = BERT; i < N; i++)
        if (kind == AGENT_MSG_REFUSED && peer == index_of[i] && reason && id) {
            snprintf(refused[i], sizeof refused[i], "%s", reason);
            snprintf(refused_id[i], sizeof refused_id[i], "%s", id);
        }
    json_decref(body);
}
static void on_peer(void *user, uint32_t peer, bool is_up) {
    (void)user;
    for (int i = BERT; i < N; i++)
        if (peer == index_of[i])
            up[i] = is_up;
}
static void on_fault(void *user, uint32_t peer, enum inter_fault f) {
    (void)user, (void)peer, (void)f;
}

static void step(void) {
    zmq_pollitem_t items[256];
    size_t n = inter_service_poll_items(anna, items, 256);
    zmq_poll(items, (int)n, 10);
    assert_int_equal(inter_service_process(anna), NEB_OK);
}

// A new job each time.
static json_t *spec(void) {
    static struct agent_job job;
    assert_int_equal(agent_job_parse(yaml, sizeof yaml - 1, "t.yaml", &job), NEB_OK);
    snprintf(job.nonce, sizeof job.nonce, "%032x", ++drawn);
    return agent_job_to_json(&job);
}

static const uint8_t no_federation[SEC_FEDERATION_BYTES];

static void id_of(const json_t *s, char hex[HEX]) {
    uint8_t id[AGENT_JOB_ID_BYTES];
    assert_int_equal(agent_job_id(no_federation, "anna", s, id), NEB_OK);
    neb_hex(id, sizeof id, hex);
}

// As daemon_signed_job of an honest agent, but the signed text may be false.
static void offer(int to, const char *hex, json_t *s) {
    uint8_t id[AGENT_JOB_ID_BYTES], sig[SEC_SIGN_BYTES];
    char signature[2 * SEC_SIGN_BYTES + 1];
    struct neb_buf b = {0};
    assert_true(neb_unhex(hex, id, sizeof id));
    assert_int_equal(agent_job_signed_bytes(no_federation, id, s, &b), NEB_OK);
    assert_int_equal(sec_sign(ids[ANNA], AGENT_CONTEXT_JOB, b.p, b.len, sig), NEB_OK);
    neb_hex(sig, sizeof sig, signature);
    json_t *o =
        json_pack("{s:s,s:O,s:s,s:s}", "id", hex, "spec", s, "home", "anna", "sig", signature);
    char *text = json_dumps(o, JSON_COMPACT);
    refused[to][0] = 0;
    assert_int_equal(inter_service_send(anna, index_of[to], AGENT_MSG_JOB, text, strlen(text)),
                     NEB_OK);
    free(text);
    json_decref(o);
    neb_buf_free(&b);
}

static void wait_refused(int who, const char *hex) {
    for (neb_ns end = neb_now() + 20 * NEB_S; !refused[who][0] && neb_now() < end;)
        step();
    if (!strstr(refused[who], "\"anna\" has signed") || strcmp(refused_id[who], hex) != 0)
        fail_msg("%s answered \"%s\", expected \"anna\" has signed", names[who], refused[who]);
}

// ---- the agents --------------------------------------------------------------------------------

static struct agent_ipc_msg ask(int who, json_t *head) {
    struct agent_ipc *c = NULL;
    struct agent_ipc_msg m = {0};
    assert_int_equal(agent_ipc_connect(ctx, sockets[who], &c), NEB_OK);
    assert_int_equal(agent_ipc_send(c, NULL, head, NULL, 0), NEB_OK);
    assert_int_equal(agent_ipc_wait(c, 20 * NEB_S, &m), NEB_OK);
    agent_ipc_destroy(&c);
    return m;
}

static void state_of(int who, const char *hex, char *out, size_t cap) {
    struct agent_ipc_msg m = ask(who, json_pack("{s:s}", "op", "jobs"));
    json_t *j;
    size_t i;
    snprintf(out, cap, "absent");
    json_array_foreach(json_object_get(m.head, "jobs"), i,
                       j) if (!strcmp(json_string_value(json_object_get(j, "id")), hex))
        snprintf(out, cap, "%s", json_string_value(json_object_get(j, "state")));
    agent_ipc_msg_clear(&m);
}

static void wait_state(int who, const char *hex, const char *want) {
    char is[32] = "";
    for (neb_ns end = neb_now() + 20 * NEB_S; strcmp(is, want) != 0 && neb_now() < end; step())
        state_of(who, hex, is, sizeof is);
    assert_string_equal(is, want);
}

static bool said(int who, const char *text) {
    struct neb_buf b = {0};
    assert_int_equal(neb_fs_read(logs[who], 1 << 24, &b), NEB_OK);
    neb_buf_u8(&b, 0);
    bool is = strstr((const char *)b.p, text);
    neb_buf_free(&b);
    return is;
}

// The operator cannot resume the job.
static void expect_over(int who, const char *hex) {
    struct agent_ipc_msg m = ask(who, json_pack("{s:s,s:s}", "op", "resume", "job", hex));
    assert_false(json_is_true(json_object_get(m.head, "ok")));
    if (!strstr(agent_ipc_str(&m, "text", ""),
                "\"anna\", which submitted it, has also signed its id"))
        fail_msg("%s: resume answered \"%s\", expected a refusal that names \"anna\"", names[who],
                 agent_ipc_str(&m, "text", ""));
    agent_ipc_msg_clear(&m);
}

static void run_agent(int i) { // runs the program that was built with this test
    char self[NEB_PATH_MAX] = "", nebula[NEB_PATH_MAX + 16];
    char listen_at[32];
    int fd = open(logs[i], O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        _exit(1);
    *strrchr(self, '/') = 0;
    snprintf(nebula, sizeof nebula, "%s/../nebula", self);
    snprintf(listen_at, sizeof listen_at, "127.0.0.1:%u", ports[i]);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(fd, STDERR_FILENO);
    execl(nebula, "nebula", "agent", "--home", homes[i], "--listen", listen_at, (char *)NULL);
    _exit(1);
}

// Uses the endpoints that are known: carl dials bert, and anna dials both.
static void start_agent(int i) {
    char list[128];
    snprintf(list, sizeof list, "%s/members.json", homes[i]);
    if (!neb_fs_exists(list))
        assert_int_equal(sec_members_save(list, &members), NEB_OK);
    (void)unlink(sockets[i]);
    if ((agents[i] = fork()) == 0)
        run_agent(i);
    for (neb_ns end = neb_now() + 20 * NEB_S; !neb_fs_exists(sockets[i]) && neb_now() < end;)
        neb_sleep(10 * NEB_MS);
    struct agent_ipc_msg m = ask(i, json_pack("{s:s}", "op", "status"));
    agent_ipc_msg_clear(&m);
    snprintf(members.m[index_of[i]].endpoint, SEC_ENDPOINT_MAX, "127.0.0.1:%u", ports[i]);
}

static void stop_agent(int i) {
    int status = 1;
    kill(agents[i], SIGINT);
    waitpid(agents[i], &status, 0);
    assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == AGENT_EXIT_OK ||
                                      WEXITSTATUS(status) == AGENT_EXIT_INTERRUPTED));
}

// ---- tests -------------------------------------------------------------------------------------

static const struct {
    const char *key;
    double value;
} changes[] = {{"optim.lr", 1e-9}, {"sync.private_range", 1e-6}, {"sync.outer.lr", 0.5}};
enum { CHANGES = sizeof changes / sizeof *changes };

static json_t *with(const json_t *s, int k) {
    json_t *other = json_deep_copy(s);
    json_object_set_new(other, changes[k].key, json_real((double)(float)changes[k].value));
    return other;
}

// Bert has the true text, and carl gets the false one.
static void test_one_is_true(void **state) {
    (void)state;
    for (int k = 0; k < CHANGES; k++) {
        char hex[HEX], text[160];
        json_t *s = spec(), *other = with(s, k);
        id_of(s, hex);
        offer(BERT, hex, s);
        wait_state(BERT, hex, "running");
        offer(CARL, hex, other);
        wait_refused(CARL, hex);
        snprintf(text, sizeof text, "job %.8s: \"anna\" has signed the job id %.8s", hex, hex);
        for (neb_ns end = neb_now() + 20 * NEB_S; !said(BERT, text) && neb_now() < end;)
            step();
        assert_true(said(BERT, text));
        wait_state(BERT, hex, "failed");
        expect_over(BERT, hex);
        offer(CARL, hex, s); // now the true text
        for (neb_ns end = neb_now() + 20 * NEB_S; !refused[CARL][0] && neb_now() < end;)
            step();
        assert_non_null(
            strstr(refused[CARL], "\"anna\", which submitted it, has also signed its id"));
        wait_state(CARL, hex, "absent");
        json_decref(s);
        json_decref(other);
    }
}

// The other way round: a member that trains gets the false text itself.
static void test_told_itself(void **state) {
    (void)state;
    char hex[HEX];
    json_t *s = spec(), *other = with(s, 0);
    id_of(s, hex);
    offer(BERT, hex, s);
    offer(CARL, hex, s);
    wait_state(BERT, hex, "running");
    wait_state(CARL, hex, "running");
    offer(CARL, hex, other);
    wait_refused(CARL, hex);
    wait_state(CARL, hex, "failed");
    wait_state(BERT, hex, "failed"); // stopped by anna's signature, which carl passed on
    expect_over(BERT, hex);
    expect_over(CARL, hex);
    json_decref(s);
    json_decref(other);
}

// An id that belongs to neither text.
static void test_none_is_true(void **state) {
    (void)state;
    char hex[HEX];
    json_t *s = spec(), *other = with(s, 1);
    snprintf(hex, sizeof hex, "%064x", 0xabcd);
    offer(BERT, hex, s);
    offer(CARL, hex, other);
    wait_refused(BERT, hex);
    wait_refused(CARL, hex);
    wait_state(BERT, hex, "absent");
    wait_state(CARL, hex, "absent");
    json_decref(s);
    json_decref(other);
}

// The settings that may differ for a cluster, and those that may not, also at resume.
static void test_places(void **state) {
    (void)state;
    char hex[HEX];
    json_t *s = spec(), *other = json_deep_copy(s);
    json_t *c = json_array_get(json_object_get(other, "clusters"), 1);
    id_of(s, hex);
    offer(BERT, hex, s);
    wait_state(BERT, hex, "running");
    json_object_set_new(c, "threads", json_integer(2));
    offer(BERT, hex, other); // this may differ
    for (neb_ns end = neb_now() + NEB_S; neb_now() < end;)
        step();
    wait_state(BERT, hex, "running");
    assert_string_equal(refused[BERT], "");
    json_object_set_new(c, "corpus", json_string("/elsewhere"));
    offer(BERT, hex, other);
    wait_refused(BERT, hex);
    wait_state(BERT, hex, "failed");
    json_decref(s);
    json_decref(other);
}

// A text of another program version is refused, but is no proof against its submitter.
static void test_other_version(void **state) {
    (void)state;
    char hex[HEX];
    bool was = true;
    struct inter_ledger *l = NULL;
    uint8_t id[AGENT_JOB_ID_BYTES];
    json_t *s = spec(), *other = json_deep_copy(s);
    id_of(s, hex);
    json_object_set_new(other, "of.another", json_integer(1));
    offer(BERT, hex, other);
    for (neb_ns end = neb_now() + 20 * NEB_S; !refused[BERT][0] && neb_now() < end;)
        step();
    assert_non_null(strstr(refused[BERT], "cannot read the job specification"));
    offer(BERT, hex, s);
    wait_state(BERT, hex, "running");
    assert_true(neb_unhex(hex, id, sizeof id));
    assert_int_equal(inter_ledger_open_readonly(homes[BERT], &l), NEB_OK);
    assert_int_equal(inter_ledger_was_misnamed(l, id, "anna", &was), NEB_OK);
    assert_false(was);
    inter_ledger_close(&l);
    json_decref(s);
    json_decref(other);
}

// A cluster's own batch size is refused, whatever the id.
static void test_batch_of_its_own(void **state) {
    (void)state;
    char hex[HEX];
    json_t *s = spec();
    json_object_set_new(json_array_get(json_object_get(s, "clusters"), 1), "batch",
                        json_integer(1));
    id_of(s, hex);
    offer(BERT, hex, s);
    for (neb_ns end = neb_now() + 20 * NEB_S; !refused[BERT][0] && neb_now() < end;)
        step();
    assert_non_null(strstr(refused[BERT], "cannot run the job"));
    assert_true(said(BERT, "must be one number for all clusters"));
    wait_state(BERT, hex, "absent");
    json_decref(s);
}

// The agent is killed before it has stopped the job. After a restart it holds the job, because the
// proof is in the ledger.
static void test_begun_again(void **state) {
    (void)state;
    char hex[HEX];
    bool was = false;
    struct inter_ledger *l = NULL;
    uint8_t id[AGENT_JOB_ID_BYTES];
    json_t *s = spec(), *other = with(s, 0);
    id_of(s, hex);
    offer(BERT, hex, s);
    wait_state(BERT, hex, "running");
    stop_agent(BERT); // suspended: it would continue
    char *text = json_dumps(other, JSON_COMPACT);
    assert_true(neb_unhex(hex, id, sizeof id));
    assert_int_equal(inter_ledger_open(homes[BERT], &l), NEB_OK);
    assert_int_equal(inter_ledger_put_misnamed(l, id, "anna", text, 0, &was), NEB_OK);
    assert_true(was);
    inter_ledger_close(&l);
    free(text);
    start_agent(BERT);
    wait_state(BERT, hex, "held");
    expect_over(BERT, hex);
    json_decref(s);
    json_decref(other);
}

static void count(void *user, const uint8_t job[INTER_ID_BYTES], const char *member,
                  const char *text) {
    size_t *n = user;
    (void)job;
    assert_string_equal(member, "anna");
    assert_non_null(strstr(text, "\"spec\""));
    ++*n;
}

// A Byzantine submitter that signs false ids without end does not fill a disk.
static void test_bounded(void **state) {
    (void)state;
    struct inter_ledger *l = NULL;
    size_t n = 0;
    json_t *s = spec();
    char hex[HEX];
    for (int i = 0; i < 40; i++) {
        snprintf(hex, sizeof hex, "%064x", 0x1000 + i);
        offer(CARL, hex, s);
    }
    for (neb_ns end = neb_now() + 20 * NEB_S;
         strcmp(refused_id[CARL], hex) != 0 && neb_now() < end;)
        step();
    assert_string_equal(refused_id[CARL], hex);
    stop_agent(CARL);
    assert_int_equal(inter_ledger_open_readonly(homes[CARL], &l), NEB_OK);
    assert_int_equal(inter_ledger_all_misnamed(l, count, &n), NEB_OK);
    inter_ledger_close(&l);
    assert_in_range(n, 4, 32); // includes anna's jobs that ran here before
    start_agent(CARL);
    json_decref(s);
}

// ---- set-up ------------------------------------------------------------------------------------

static uint16_t reserve_port(void) { // until this process ends
    int fd, port;
    assert_int_equal(agent_port_bind(false, &fd, &port), NEB_OK);
    return (uint16_t)port;
}

static int setup(void **state) {
    (void)state;
    assert_non_null(mkdtemp(dir));
    ports[BERT] = reserve_port();
    ports[CARL] = reserve_port();
    for (int i = 0; i < N; i++) {
        struct sec_member m = {.connect = SEC_CONNECT_AUTO};
        snprintf(homes[i], sizeof homes[i], "%s/%s", dir, names[i]);
        snprintf(sockets[i], sizeof sockets[i], "%s/agent.sock", homes[i]);
        snprintf(logs[i], sizeof logs[i], "%s/%s.log", dir, names[i]);
        assert_int_equal(sec_identity_create(homes[i], names[i], &ids[i]), NEB_OK);
        m.pub = *sec_identity_public(ids[i]);
        assert_int_equal(sec_members_add(&members, &m), NEB_OK);
    }
    for (uint32_t k = 0; k < members.n; k++)
        for (int i = 0; i < N; i++)
            if (!strcmp(members.m[k].pub.name, names[i]))
                index_of[i] = k;
    ctx = zmq_ctx_new();
    links = zmq_ctx_new();
    start_agent(BERT);
    start_agent(CARL);
    struct inter_service_config c = {
        .dir = homes[ANNA],
        .identity = ids[ANNA],
        .members = &members,
        .n_bulk = 1,
        .zmq_context = links,
        .callbacks = {.message = on_message, .peer = on_peer, .fault = on_fault}};
    assert_int_equal(inter_service_create(&c, &anna), NEB_OK);
    for (neb_ns end = neb_now() + 20 * NEB_S;
         !(up[BERT] && up[CARL] && said(CARL, "link to bert is up")) && neb_now() < end;)
        step();
    return up[BERT] && up[CARL] ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    inter_service_destroy(&anna);
    zmq_ctx_term(links);
    for (int i = BERT; i < N; i++)
        stop_agent(i);
    zmq_ctx_term(ctx);
    for (int i = 0; i < N; i++)
        sec_identity_destroy(&ids[i]);
    return neb_fs_remove_tree(dir) == NEB_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_is_true),   cmocka_unit_test(test_told_itself),
        cmocka_unit_test(test_none_is_true),  cmocka_unit_test(test_places),
        cmocka_unit_test(test_other_version), cmocka_unit_test(test_batch_of_its_own),
        cmocka_unit_test(test_bounded),       cmocka_unit_test(test_begun_again)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
