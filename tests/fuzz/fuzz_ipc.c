// Heads of messages between workers, commands and an agent, at both ends. A daemon of two clusters, whose own one waits for a trainer that
// attaches, gets what a trainer, a command or a stranger says; a worker gets what an agent says of a commit. At the end the agent still
// runs, its ledger is sound, and what it says of itself is JSON.
//
// Input: lines. The first byte says who speaks (T: who has the trainer's secret; C: a command; W: the agent, to a worker), the second one
// what goes along (k: the secret, u: an update, 0 to 9: so many parts), the rest is the head. A lone T attaches it.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/daemon_state.h"
#include "agent/status.h"
#include "agent/worker.h"
#include "compress/update.h"
#include "inter/ledger_verify.h"
#include "security/sign.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LINES_MAX = 48, LINE_MAX_BYTES = 4096, ROWS = 8, COLS = 8 };
static const char yaml[] =
    "job: t\nsteps: 400\nlog_every: 1\n"
    "model: {vocab: 16, n_layers: 1, d_model: 8, n_heads: 2, n_kv_heads: 1, d_ff: 16, tied: true}\n"
    "data: {corpus: /nowhere, seq_len: 8, batch: 1}\noptim: {lr: 0.1}\nsync: {interval: 4}\n"
    "clusters:\n  - {name: anna, launcher: attach, threads: 1}\n  - {name: bert, threads: 1}\n";
static const char hex[] = "aabbccddeeff00112233445566778899";

static char root[64], home[80], list[96];
static struct sec_identity *ids[2];
static struct agent_daemon_config config = {.home = home};
static struct agent_job parsed;
static json_t *spec;
static struct neb_buf update;
static void *zctx;

// ---- once -----------------------------------------------------------------------------------------------------

static void remove_all(void) {
    json_decref(spec);
    neb_buf_free(&update);
    for (int k = 0; k < 2; k++)
        sec_identity_destroy(&ids[k]);
    if (neb_fs_remove_tree(root) != NEB_OK)
        neb_warn("%s stays", root);
}

static void make_update(void) {
    float data[ROWS * COLS] = {1};
    uint64_t counts[ROWS] = {1};
    const struct cmp_unit_shape shape = {.unit = 0, .rows = ROWS, .cols = COLS, .counts = true};
    struct cmp_work *w = NULL;
    struct cmp_codec codec;
    NEB_ASSERT(cmp_work_create(&w) == NEB_OK && cmp_codec_parse("fp32", &codec) == NEB_OK);
    cmp_update_begin(&update, 1);
    NEB_ASSERT(cmp_update_add(w, &update, &shape, &codec, data, counts) == NEB_OK);
    cmp_work_destroy(&w);
}

static void set_up(void) {
    static const char *const names[2] = {"anna", "bert"};
    static struct sec_members m;
    snprintf(root, sizeof root, "%s/nebula-fuzz-ipc-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    NEB_ASSERT(sec_init() == NEB_OK && mkdtemp(root));
    for (int k = 0; k < 2; k++) {
        char dir[96];
        snprintf(dir, sizeof dir, "%s/%s", root, names[k]);
        NEB_ASSERT(sec_identity_create(dir, names[k], &ids[k]) == NEB_OK);
        struct sec_member x = {.pub = *sec_identity_public(ids[k])};
        NEB_ASSERT(sec_members_add(&m, &x) == NEB_OK);
    }
    snprintf(home, sizeof home, "%s/home", root);
    snprintf(list, sizeof list, "%s/members.json", home);
    NEB_ASSERT(neb_fs_mkdirs(home, 0700) == NEB_OK && sec_members_save(list, &m) == NEB_OK);
    NEB_ASSERT(agent_job_parse(yaml, sizeof yaml - 1, "t.yaml", &parsed) == NEB_OK);
    NEB_ASSERT((spec = agent_job_to_json(&parsed)) != NULL);
    NEB_ASSERT((zctx = zmq_ctx_new()) != NULL);
    make_update();
    atexit(remove_all);
}

// ---- the agent ------------------------------------------------------------------------------------------------

static struct daemon *begin(void) {
    struct daemon *d = calloc(1, sizeof *d);
    char why[512];
    NEB_ASSERT(d);
    d->c = &config;
    d->signal_fd = -1;
    d->zctx = zctx;
    d->identity = ids[0];
    NEB_ASSERT(agent_view_create(&d->view) == NEB_OK);
    NEB_ASSERT(agent_members_open(home, d->identity, &d->trust) == NEB_OK);
    snprintf(d->exe, sizeof d->exe, "/bin/false");
    NEB_ASSERT(daemon_start_service(d) == NEB_OK);
    NEB_ASSERT(neb_path(d->socket_path, sizeof d->socket_path, home, "agent.sock") == NEB_OK);
    NEB_ASSERT(agent_ipc_listen(zctx, d->socket_path, &d->ipc) == NEB_OK);
    d->streams.ipc = d->ipc;
    NEB_ASSERT(daemon_job_accept(d, hex, spec, UINT32_MAX, why, sizeof why) != NULL);
    return d;
}

static void end(struct daemon *d) {
    for (int i = 0; i < AGENT_JOBS_MAX; i++)
        if (d->jobs[i].used)
            daemon_job_forget(d, &d->jobs[i]);
    agent_view_destroy(&d->view);
    agent_ipc_destroy(&d->ipc);
    inter_service_destroy(&d->service);
    agent_members_destroy(&d->trust);
    free(d);
    // all but the list
    static const char *const made[] = {"ledger.db",     "ledger.db-wal", "ledger.db-shm",
                                       "ledger.lock",   "streams.db",    "streams.db-wal",
                                       "streams.db-shm"};
    char path[NEB_PATH_MAX];
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        if (neb_path(path, sizeof path, home, made[i]) == NEB_OK)
            (void)unlink(path);
    (void)(neb_path(path, sizeof path, home, "jobs") == NEB_OK && neb_fs_remove_tree(path));
    (void)(neb_path(path, sizeof path, home, "blobs") == NEB_OK && neb_fs_remove_tree(path));
}

static enum neb_status signed_by(void *user, const uint8_t id[INTER_ID_BYTES], uint8_t member,
                                 const char *context, const void *msg, size_t len,
                                 const uint8_t sig[INTER_SIG_BYTES]) {
    (void)user, (void)id;
    NEB_ASSERT(member < 2);
    return sec_verify(sec_identity_public(ids[member])->sign, context, msg, len, sig);
}

static void expect_sound(struct daemon *d) {
    struct inter_ledger_counts counts;
    const struct inter_ledger_check check = {NULL, signed_by, NULL, NULL};
    NEB_ASSERT(inter_service_process(d->service) == NEB_OK);
    NEB_ASSERT(inter_ledger_verify(inter_service_ledger(d->service), &check, &counts) == NEB_OK);
    json_t *status = daemon_status(d);
    char *text = status ? json_dumps(status, JSON_COMPACT) : NULL;
    NEB_ASSERT(text);
    free(text);
    json_decref(status);
}

// ---- what is said ---------------------------------------------------------------------------------------------

static void add_part(struct agent_ipc_msg *m, const void *p, size_t n) {
    zmq_msg_t *f = &m->frames[m->n_parts];
    NEB_ASSERT(zmq_msg_init_size(f, n) == 0);
    memcpy(zmq_msg_data(f), p, n);
    m->parts[m->n_parts++] = (struct agent_ipc_part){zmq_msg_data(f), n};
}

// As agent_ipc_recv makes it. False: what that one drops.
static bool read_line(const uint8_t *p, size_t n, const struct agent_credential *secret,
                      struct agent_ipc_msg *m) {
    *m = (struct agent_ipc_msg){0};
    m->head = json_loadb((const char *)p + 1, n - 1, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(m->head)) {
        json_decref(m->head);
        return false;
    }
    if (p[0] == 'k' && secret)
        add_part(m, agent_credential_secret(secret), AGENT_SECRET_BYTES);
    else if (p[0] == 'u')
        add_part(m, update.p, update.len);
    for (int k = 0; p[0] >= '0' && p[0] <= '9' && k < p[0] - '0'; k++)
        add_part(m, p, n);
    return true;
}

static void say_to_agent(struct daemon *d, bool trainer, struct agent_ipc_msg *m) {
    const struct agent_ipc_client who = {.id = {0, 0, 0, 0, trainer ? 1 : 2}, .len = 5};
    const char *op = agent_ipc_str(m, "op", "");
    // No other programs are started here: jobs are fuzz_job_yaml's and fuzz_peer_json's.
    if (!strcmp(op, "submit") || !strcmp(op, "resume") || !strcmp(op, "rejoin"))
        return;
    daemon_on_local(d, &who, m);
}

static void attach(struct daemon *d) {
    struct agent_ipc_msg m = {.head = json_pack("{s:s,s:s,s:b,s:I}", "op", "attach", "job", hex,
                                                "foreign", 1, "pid", (json_int_t)getpid())};
    if (d->jobs[0].credential)
        add_part(&m, agent_credential_secret(d->jobs[0].credential), AGENT_SECRET_BYTES);
    say_to_agent(d, true, &m);
    agent_ipc_msg_clear(&m);
}

static struct agent_worker *a_worker(void) {
    struct agent_worker *w = calloc(1, sizeof *w);
    NEB_ASSERT(w);
    w->job = parsed;
    return w;
}

static void free_worker(struct agent_worker *w) {
    for (int f = 0; f < 64; f++)
        neb_buf_free(&w->travel[f].bytes);
    free(w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!zctx)
        set_up();
    struct daemon *d = begin();
    struct agent_worker *w = a_worker();
    for (int k = 0; k < LINES_MAX && size; k++) {
        const uint8_t *end_of = memchr(data, '\n', size);
        size_t n = end_of ? (size_t)(end_of - data) : size;
        struct agent_ipc_msg m;
        if (n == 1 && data[0] == 'T')
            attach(d);
        else if (n > 2 && n < LINE_MAX_BYTES &&
                 read_line(data + 1, n - 1, d->jobs[0].credential, &m)) {
            if (data[0] == 'W')
                (void)!worker_take_commit(w, &m);
            else
                say_to_agent(d, data[0] == 'T', &m);
            agent_ipc_msg_clear(&m);
        }
        data += n + (end_of != NULL);
        size -= n + (end_of != NULL);
    }
    expect_sound(d);
    free_worker(w);
    end(d);
    return 0;
}
