// SPDX-License-Identifier: Apache-2.0
// A worker of one job can do nothing for another. Processes try to be a job's worker with nothing,
// with the other job's credentials, with a cut secret, under another name, or without asking. All
// are refused, counted, and logged once.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/daemon/daemon.h"
#include "agent/job/config.h"
#include "agent/proc/credential.h"
#include "agent/proc/ipc.h"
#include "security/identity.h"
#include "security/members.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const char yaml[] = "job: %s\nsteps: 4\nmodel: {vocab: 16, n_layers: 1, d_model: 8, "
                           "n_heads: 2, n_kv_heads: 1, d_ff: 16, tied: true}\n"
                           "data: {corpus: /nowhere, seq_len: 8, batch: 1}\n"
                           "optim: {lr: 0.1}\nsync: {scheme: none}\nclusters:\n  - {name: site, "
                           "launcher: attach, threads: 1}\n";
static const char *const names[] = {"first", "second"};
static char hexes[2][2 * AGENT_JOB_ID_BYTES + 1]; // from the agent's answers

static char dir[] = "/tmp/nebula-worker-XXXXXX", path[128], log_path[128];
static pid_t agent;
static void *ctx;

static struct agent_ipc *client(void) {
    struct agent_ipc *c = NULL;
    assert_int_equal(agent_ipc_connect(ctx, path, &c), NEB_OK);
    return c;
}

// Sends one request. The caller clears the answer.
static struct agent_ipc_msg ask(struct agent_ipc *c, json_t *head, const void *part, size_t n) {
    struct agent_ipc_part p = {part, n};
    struct agent_ipc_msg m = {0};
    assert_int_equal(agent_ipc_send(c, NULL, head, &p, part ? 1 : 0), NEB_OK);
    assert_int_equal(agent_ipc_wait(c, 20 * NEB_S, &m), NEB_OK);
    return m;
}

static json_t *attach(int job) {
    return json_pack("{s:s,s:s,s:b,s:I,s:i}", "op", "attach", "job", hexes[job], "foreign", true,
                     "pid", (json_int_t)getpid(), "protocol", agent_ipc_protocol());
}

static int64_t strangers(void) {
    struct agent_ipc *c = client();
    struct agent_ipc_msg m = ask(c, json_pack("{s:s}", "op", "status"), NULL, 0);
    int64_t n = json_integer_value(json_object_get(json_object_get(m.head, "refused"), "local"));
    agent_ipc_msg_clear(&m);
    agent_ipc_destroy(&c);
    return n;
}

static bool answered(struct agent_ipc_msg *m, const char *text) { // refused with this text
    bool ok = !strcmp(agent_ipc_str(m, "ev", ""), "answer") &&
              !json_is_true(json_object_get(m->head, "ok")) &&
              strstr(agent_ipc_str(m, "text", ""), text);
    agent_ipc_msg_clear(m);
    return ok;
}

static void test_refused(void **state) {
    (void)state;
    struct agent_credential *mine = NULL, *other = NULL;
    struct agent_ipc *c = client();
    static const uint8_t zeros[AGENT_SECRET_BYTES];
    int64_t before = strangers();
    assert_int_equal(agent_credential_find(path, hexes[0], &mine), NEB_OK);
    assert_int_equal(agent_credential_find(path, hexes[1], &other), NEB_OK);
    assert_true(memcmp(agent_credential_secret(mine), agent_credential_secret(other),
                       AGENT_SECRET_BYTES) != 0);
    struct agent_ipc_msg m = ask(c, attach(0), NULL, 0); // with nothing
    assert_true(answered(&m, "not the credentials"));
    m = ask(c, attach(0), zeros, sizeof zeros);
    assert_true(answered(&m, "not the credentials"));
    m = ask(c, attach(0), agent_credential_secret(other), AGENT_SECRET_BYTES); // another job's
    assert_true(answered(&m, "not the credentials"));
    m = ask(c, attach(0), agent_credential_secret(mine), AGENT_SECRET_BYTES - 1); // cut
    assert_true(answered(&m, "not the credentials"));
    static const char *const ops[] = {"update", "report", "metrics", "checkpoint",
                                      "ready",  "shape",  "detach",  "nonsense"};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) { // only a worker may ask these
        m = ask(c,
                json_pack("{s:s,s:s,s:{},s:{}}", "op", ops[i], "job", hexes[0], "report", "line"),
                NULL, 0);
        assert_true(answered(&m, "unknown request"));
    }
    assert_int_equal(strangers() - before, 4 + 8);
    agent_credential_destroy(&mine);
    agent_credential_destroy(&other);
    agent_ipc_destroy(&c);
}

// The worker of the first job can act for that job only.
static void test_one_job(void **state) {
    (void)state;
    struct agent_credential *mine = NULL;
    struct agent_ipc *c = client();
    assert_int_equal(agent_credential_find(path, hexes[0], &mine), NEB_OK);
    struct agent_ipc_msg m = ask(c, attach(0), agent_credential_secret(mine), AGENT_SECRET_BYTES);
    assert_string_equal(agent_ipc_str(&m, "ev", ""), "job");
    assert_int_equal(m.n_parts, 1); // the keys of this job, for ranks on other hosts
    agent_ipc_msg_clear(&m);
    int64_t before = strangers();
    // It is not the worker of the second job.
    m = ask(c, attach(1), agent_credential_secret(mine), AGENT_SECRET_BYTES);
    assert_true(answered(&m, "not the credentials"));
    static const char *const ops[] = {"stop", "submit", "resume",    "rejoin",
                                      "jobs", "status", "attachable"};
    // Requests of a command, on a worker's connection.
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        m = ask(c, json_pack("{s:s,s:s}", "op", ops[i], "job", hexes[1]), NULL, 0);
        assert_true(answered(&m, "unknown request"));
    }
    assert_int_equal(strangers() - before, 1 + 7);
    m = ask(c, json_pack("{s:s}", "op", "hello"), NULL, 0); // still the worker of its own job
    assert_string_equal(agent_ipc_str(&m, "ev", ""), "peers");
    assert_int_equal(agent_ipc_int(&m, "alive", -1), 0); // sent again, though nothing has changed
    assert_true(json_is_false(json_object_get(m.head, "expected")));
    agent_ipc_msg_clear(&m);
    // Without this the agent would wait for the worker when it ends.
    assert_int_equal(agent_ipc_send(c, NULL, json_pack("{s:s}", "op", "detach"), NULL, 0), NEB_OK);
    assert_true(strangers() >= 0);
    agent_credential_destroy(&mine);
    agent_ipc_destroy(&c);
}

// Texts of a worker reach plots, terminals and files of others. No text can act as a command there.
static void test_words(void **state) {
    (void)state;
    struct agent_credential *mine = NULL;
    struct agent_ipc *c = client(), *watcher = client();
    assert_int_equal(agent_credential_find(path, hexes[1], &mine), NEB_OK);
    struct agent_ipc_msg m =
        ask(watcher, json_pack("{s:s,s:s}", "op", "follow", "job", hexes[1]), NULL, 0);
    agent_ipc_msg_clear(&m);
    m = ask(c, attach(1), agent_credential_secret(mine), AGENT_SECRET_BYTES);
    assert_string_equal(agent_ipc_str(&m, "ev", ""), "job");
    agent_ipc_msg_clear(&m);
    json_t *line =
        json_pack("{s:s,s:s,s:i,s:{s:[s]}}", "kind", "link", "codec", "int4'\nsystem('id')\033[2J",
                  "step\n", 3, "more", "list", "\033]0;x\a");
    assert_int_equal(
        agent_ipc_send(c, NULL, json_pack("{s:s,s:o}", "op", "metrics", "line", line), NULL, 0),
        NEB_OK);
    const json_t *got = NULL;
    for (int i = 0; i < 50 && !got; i++) {
        assert_int_equal(agent_ipc_wait(watcher, 20 * NEB_S, &m), NEB_OK);
        const json_t *l = json_object_get(m.head, "line");
        if (!strcmp(agent_ipc_str(&m, "ev", ""), "line") && json_object_get(l, "codec"))
            got = l;
        else
            agent_ipc_msg_clear(&m);
    }
    assert_non_null(got);
    assert_string_equal(json_string_value(json_object_get(got, "codec")), "int4'?system('id')?[2J");
    assert_null(json_object_get(got, "step\n"));
    assert_string_equal(
        json_string_value(json_array_get(json_object_get(json_object_get(got, "more"), "list"), 0)),
        "?]0;x?");
    agent_ipc_msg_clear(&m);
    assert_int_equal(agent_ipc_send(c, NULL, json_pack("{s:s}", "op", "detach"), NULL, 0), NEB_OK);
    agent_credential_destroy(&mine);
    agent_ipc_destroy(&c);
    agent_ipc_destroy(&watcher);
}

// A connection that chose its own name (perhaps another's) gets no answer at all.
static void test_chosen_name(void **state) {
    (void)state;
    char endpoint[160], text[] = "{\"op\":\"status\"}", answer[16];
    int at_once = 0, wait_ms = 1500;
    void *s = zmq_socket(ctx, ZMQ_DEALER);
    snprintf(endpoint, sizeof endpoint, "ipc://%s", path);
    zmq_setsockopt(s, ZMQ_LINGER, &at_once, sizeof at_once);
    zmq_setsockopt(s, ZMQ_RCVTIMEO, &wait_ms, sizeof wait_ms);
    assert_int_equal(zmq_setsockopt(s, ZMQ_ROUTING_ID, "other", 5), 0);
    assert_int_equal(zmq_connect(s, endpoint), 0);
    assert_int_equal(zmq_send(s, text, sizeof text - 1, 0), (int)sizeof text - 1);
    assert_int_equal(zmq_recv(s, answer, sizeof answer, 0), -1);
    zmq_close(s);
    assert_true(strangers() >= 0); // the agent continues
}

static void test_files(void **state) {
    (void)state;
    struct stat sb;
    char key[160], link[160];
    struct agent_credential *c = NULL;
    assert_int_equal(stat(path, &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0600);
    assert_int_equal(stat(dir, &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0700);
    snprintf(key, sizeof key, "%s/jobs/%s/trainer.key", dir, hexes[1]);
    snprintf(link, sizeof link, "%s/moved", dir);
    assert_int_equal(stat(key, &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0600);
    assert_int_equal(chmod(key, 0644), 0);
    assert_int_equal(agent_credential_find(path, hexes[1], &c), NEB_ERR_DENIED);
    assert_int_equal(chmod(key, 0600), 0);
    assert_int_equal(rename(key, link), 0);
    assert_int_equal(symlink(link, key), 0);
    assert_int_equal(agent_credential_find(path, hexes[1], &c), NEB_ERR_DENIED);
    assert_int_equal(unlink(key), 0);
    assert_int_equal(rename(link, key), 0);
    assert_null(c);
}

static void test_folder(void **state) { // a folder that others can write to
    (void)state;
    char open_dir[160], socket_path[200];
    struct agent_ipc *c = NULL;
    snprintf(open_dir, sizeof open_dir, "%s/open", dir);
    snprintf(socket_path, sizeof socket_path, "%s/agent.sock", open_dir);
    assert_int_equal(mkdir(open_dir, 0700), 0);
    assert_int_equal(chmod(open_dir, 0777), 0);
    assert_int_equal(agent_ipc_listen(ctx, socket_path, &c), NEB_ERR_DENIED);
    assert_int_equal(chmod(open_dir, 0700), 0);
    assert_int_equal(agent_ipc_listen(ctx, socket_path, &c), NEB_OK);
    agent_ipc_destroy(&c);
}

static const struct agent_credential_wait no_wait = {.limit = NEB_S};

// Rank 0 of an attached loop hands its credentials to another rank, over a network that others may
// change. It takes more of them from the agent only if they are its own.
static void test_ranks(void **state) {
    (void)state;
    static const uint8_t job[INTER_ID_BYTES] = {7}, weak[AGENT_CREDENTIAL_PUBLIC];
    uint8_t public[2][AGENT_CREDENTIAL_PUBLIC], box[AGENT_CREDENTIAL_BOX], bad[sizeof box];
    struct agent_credential_asker *asker = NULL, *other = NULL;
    struct agent_credential *c = NULL, *got = NULL, *foreign = NULL;
    size_t n, m;
    assert_int_equal(agent_credential_create(NULL, job, &c), NEB_OK);
    assert_int_equal(agent_credential_create(NULL, job, &foreign), NEB_OK);
    assert_int_equal(agent_credential_give(c, weak, box), NEB_ERR_DENIED);
    assert_int_equal(agent_credential_ask(&asker, public[0]), NEB_OK);
    assert_int_equal(agent_credential_ask(&other, public[1]), NEB_OK);
    assert_int_equal(agent_credential_give(c, public[0], box), NEB_OK);
    assert_null(memmem(box, sizeof box, agent_credential_secret(c), 8));
    assert_int_equal(agent_credential_given(&other, box, &got), NEB_ERR_DENIED);
    assert_true(!got && !other);
    assert_int_equal(agent_credential_given(&asker, box, &got), NEB_OK);
    const void *all = agent_credential_bytes(c, &n), *same = agent_credential_bytes(got, &m);
    assert_int_equal(m, n);
    assert_memory_equal(same, all, n);
    assert_int_equal(agent_credential_take(got, all, n), NEB_OK);
    assert_int_equal(agent_credential_take(got, all, n - 1), NEB_ERR_FORMAT);
    assert_int_equal(agent_credential_take(foreign, all, n), NEB_ERR_FORMAT);
    assert_false(agent_credential_is(foreign, agent_credential_secret(c), AGENT_SECRET_BYTES));
    agent_credential_destroy(&got);
    assert_int_equal(agent_credential_ask(&asker, public[0]), NEB_OK);
    assert_int_equal(agent_credential_give(c, public[0], box), NEB_OK);
    memcpy(bad, box, sizeof bad);
    bad[60] ^= 1;
    assert_int_equal(agent_credential_given(&asker, bad, &got), NEB_ERR_DENIED);
    assert_true(!got && !asker);
    agent_credential_destroy(&c);
    agent_credential_destroy(&foreign);
}

// A worker needs complete credentials on its standard input, or it does not start.
static void test_pipe(void **state) {
    (void)state;
    static const uint8_t job[INTER_ID_BYTES] = {7};
    struct agent_credential *c = NULL, *back = NULL;
    struct sec_vault *v = NULL;
    uint8_t bytes[256];
    int fd = -1, ends[2], null = open("/dev/null", O_RDONLY);
    assert_int_equal(agent_credential_create(NULL, job, &c), NEB_OK);
    assert_int_equal(agent_credential_pipe(c, &fd), NEB_OK);
    assert_int_equal(agent_credential_read(fd, NULL, &no_wait, &back), NEB_OK);
    close(fd);
    assert_true(agent_credential_is(c, agent_credential_secret(back), AGENT_SECRET_BYTES));
    assert_int_equal(agent_credential_vault(back, true, &v), NEB_OK);
    assert_null(v);
    agent_credential_destroy(&back);
    assert_int_equal(agent_credential_read(null, NULL, &no_wait, &back), NEB_ERR_DENIED);
    close(null);
    assert_int_equal(agent_credential_pipe(c, &fd), NEB_OK);
    ssize_t n = read(fd, bytes, sizeof bytes);
    close(fd);
    assert_true(n > AGENT_SECRET_BYTES);
    for (int damage = 0; damage < 2; damage++) { // cut, or changed
        assert_int_equal(pipe(ends), 0);
        bytes[0] ^= (uint8_t)damage;
        assert_true(write(ends[1], bytes, (size_t)n - (damage ? 0 : 1)) > 0);
        close(ends[1]);
        assert_int_equal(agent_credential_read(ends[0], NULL, &no_wait, &back), NEB_ERR_DENIED);
        close(ends[0]);
    }
    agent_credential_destroy(&c);
}

struct answering {
    struct agent_credential *c;
    const char *dir;
    int answers; // how many more times it answers
};

static void answer(void *user) {
    struct answering *a = user;
    if (a->answers-- > 0)
        assert_int_equal(agent_credential_answer(a->c, a->dir), NEB_OK);
}

static bool holds(const void *p, size_t n, const void *secret, size_t len) {
    return memmem(p, n, secret, len) != NULL;
}

// mpirun and srun carry standard input in clear. Neither the bytes on their network nor the file
// open anything.
static void test_box(void **state) {
    (void)state;
    static const uint8_t job[INTER_ID_BYTES] = {9};
    struct agent_credential *c = NULL, *back = NULL;
    struct answering a = {.dir = dir, .answers = 1000};
    const struct agent_credential_wait wait = {.limit = 20 * NEB_S, .idle = answer, .user = &a};
    uint8_t seen[256], file[1024];
    char box[160], key[160];
    size_t n = 0;
    int fd = -1;
    snprintf(box, sizeof box, "%s/worker.box", dir);
    struct sec_seal_key *site = NULL;
    snprintf(key, sizeof key, "%s/site.key", dir);
    assert_int_equal(sec_seal_key_make(key, NULL, &site), NEB_OK);
    assert_int_equal(agent_credential_create(site, job, &c), NEB_OK);
    a.c = c;
    assert_int_equal(agent_credential_offer(c, dir, &fd), NEB_OK);
    ssize_t ticket = read(fd, seen, sizeof seen);
    close(fd);
    assert_int_equal(ticket, 40);
    int ends[2];
    for (int turn = 0; turn < 2; turn++) { // the second to come is refused
        assert_int_equal(pipe(ends), 0);
        assert_int_equal(write(ends[1], seen, (size_t)ticket), ticket);
        close(ends[1]);
        enum neb_status st = agent_credential_read(ends[0], dir, &wait, &back);
        close(ends[0]);
        assert_int_equal(st, turn ? NEB_ERR_DENIED : NEB_OK);
        if (turn)
            break;
        size_t sealed = 0, own = 0;
        assert_true(agent_credential_is(c, agent_credential_secret(back), AGENT_SECRET_BYTES));
        const uint8_t *k = agent_credential_seal(back, &sealed),
                      *want = agent_credential_seal(c, &own);
        assert_true(sealed && sealed == own && !memcmp(k, want, sealed));
        assert_int_equal(sec_secret_read(box, file, sizeof file, &n), NEB_OK);
        const struct agent_ipc_remote *r = agent_credential_remote(c);
        assert_false(holds(seen, (size_t)ticket, agent_credential_secret(c), AGENT_SECRET_BYTES));
        assert_false(holds(file, n, agent_credential_secret(c), AGENT_SECRET_BYTES));
        assert_false(holds(file, n, r->secret, sizeof r->secret));
        assert_false(holds(file, n, want, own));
        agent_credential_destroy(&back);
    }
    // The ticket of an earlier start, and a key that somebody else put there first.
    assert_int_equal(agent_credential_offer(c, dir, &fd), NEB_OK);
    close(fd);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], seen, (size_t)ticket), ticket);
    close(ends[1]);
    assert_int_equal(agent_credential_read(ends[0], dir, &wait, &back), NEB_ERR_DENIED);
    close(ends[0]);
    assert_int_equal(agent_credential_offer(c, dir, &fd), NEB_OK);
    assert_int_equal(sec_secret_read(box, file, sizeof file, &n), NEB_OK);
    memset(file + n, 7, 33); // longer than a key
    assert_int_equal(sec_secret_write(box, file, n + 33), NEB_OK);
    assert_int_equal(agent_credential_answer(c, dir), NEB_ERR_DENIED);
    assert_int_equal(agent_credential_answer(c, dir), NEB_OK); // logged once
    assert_int_equal(agent_credential_read(fd, dir, &wait, &back), NEB_ERR_DENIED);
    close(fd);
    // There is no answer, and later there is no file.
    const struct agent_credential_wait alone = {.limit = 100 * NEB_MS};
    assert_int_equal(agent_credential_offer(c, dir, &fd), NEB_OK);
    assert_int_equal(agent_credential_read(fd, dir, &alone, &back), NEB_ERR_TIMEOUT);
    close(fd);
    assert_int_equal(agent_credential_offer(c, dir, &fd), NEB_OK);
    assert_int_equal(unlink(box), 0);
    assert_int_equal(agent_credential_read(fd, dir, &alone, &back), NEB_ERR_NOT_FOUND);
    close(fd);
    agent_credential_destroy(&c);
    sec_seal_key_destroy(&site);
}

static void test_log(void **state) {
    (void)state;
    struct neb_buf b = {0};
    assert_int_equal(neb_fs_read(log_path, 1 << 20, &b), NEB_OK);
    const char *first = strstr((const char *)b.p, "further ones are counted");
    assert_non_null(first);
    assert_null(strstr(first + 1, "further ones are counted"));
    neb_buf_free(&b);
}

static void run_agent(void) {
    struct agent_daemon_config c = {.home = dir};
    int fd = open(log_path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(fd, STDERR_FILENO);
    _exit(agent_daemon_run(&c) == NEB_OK ? 0 : 1);
}

static void submit(int i) {
    char text[1024];
    struct agent_job *job = calloc(1, sizeof *job);
    struct agent_ipc *c = client();
    int n = snprintf(text, sizeof text, yaml, names[i]);
    assert_int_equal(agent_job_parse(text, (size_t)n, "t.yaml", job), NEB_OK);
    struct agent_ipc_msg m =
        ask(c, json_pack("{s:s,s:o}", "op", "submit", "spec", agent_job_to_json(job)), NULL, 0);
    if (!json_is_true(json_object_get(m.head, "ok")))
        fail_msg("submit was refused: %s", agent_ipc_str(&m, "text", ""));
    snprintf(hexes[i], sizeof hexes[i], "%s", agent_ipc_str(&m, "text", ""));
    agent_ipc_msg_clear(&m);
    agent_ipc_destroy(&c);
    free(job);
}

static int setup(void **state) {
    struct sec_identity *id = NULL;
    struct sec_members members = {.n = 0};
    struct sec_member me = {.connect = SEC_CONNECT_AUTO};
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/agent.sock", dir);
    snprintf(log_path, sizeof log_path, "%s/agent.log", dir);
    assert_int_equal(sec_identity_create(dir, "site", &id), NEB_OK);
    me.pub = *sec_identity_public(id);
    assert_int_equal(sec_members_add(&members, &me), NEB_OK);
    char list[128];
    snprintf(list, sizeof list, "%s/members.json", dir);
    assert_int_equal(sec_members_save(list, &members), NEB_OK);
    sec_identity_destroy(&id);
    if ((agent = fork()) == 0)
        run_agent();
    ctx = zmq_ctx_new();
    for (neb_ns end = neb_now() + 20 * NEB_S; !neb_fs_exists(path) && neb_now() < end;)
        neb_sleep(10 * NEB_MS);
    for (int i = 0; i < 2; i++)
        submit(i);
    return 0;
}

static int teardown(void **state) {
    int status = 1;
    (void)state;
    zmq_ctx_term(ctx);
    kill(agent, SIGTERM);
    waitpid(agent, &status, 0);
    assert_int_equal(status, 0);
    return neb_fs_remove_tree(dir) == NEB_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files),       cmocka_unit_test(test_pipe),
        cmocka_unit_test(test_box),         cmocka_unit_test(test_folder),
        cmocka_unit_test(test_ranks),       cmocka_unit_test(test_refused),
        cmocka_unit_test(test_one_job),     cmocka_unit_test(test_words),
        cmocka_unit_test(test_chosen_name), cmocka_unit_test(test_log)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
