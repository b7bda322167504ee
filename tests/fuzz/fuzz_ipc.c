// SPDX-License-Identifier: Apache-2.0
// Heads of messages between workers, commands and an agent, at both ends. The job has two clusters.
// The daemon's own cluster waits for an attached trainer. The daemon gets messages of a trainer, a
// command or a stranger. A worker gets an agent's messages about a commit. At the end the agent
// still runs, its ledger is sound, and its status is JSON. Input: lines. First byte: the sender (T:
// has the trainer's secret; C: a command; W: the agent, to a worker). Second byte: attachments (k:
// the secret, u: an update, 0 to 9: number of parts). Rest: the head. A T with nothing after it
// attaches.
#include "agent/exchange/exchange.h"
#include "agent/job/id.h"
#include "compress/update.h"
#include "tests/fuzz/agent.h"
#include "tests/ipc_part.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LINES_MAX = 48, LINE_MAX_BYTES = 4096, ROWS = 8, COLS = 8 };
static const char yaml[] =
    "job: t\nsteps: 400\nlog_every: 1\n"
    "model: {vocab: 16, n_layers: 1, d_model: 8, n_heads: 2, n_kv_heads: 1, d_ff: 16, tied: true}\n"
    "data: {corpus: /nowhere, seq_len: 8, batch: 1}\noptim: {lr: 0.1}\nsync: {interval: 4}\n"
    "clusters:\n  - {name: anna, launcher: attach, threads: 1}\n  - {name: bert, threads: 1}\n";
static char hex[2 * AGENT_JOB_ID_BYTES + 1]; // of the job; "0" in an input

static struct agent_job parsed;
static json_t *spec;
static struct neb_buf update;

// ---- once per process ----

static void free_made(void) {
    json_decref(spec);
    neb_buf_free(&update);
}

static void make_update(void) {
    float data[ROWS * COLS] = {1};
    uint64_t counts[ROWS] = {1};
    const struct cmp_unit_shape shape = {.unit = 0, .rows = ROWS, .cols = COLS, .counts = true};
    struct cmp_work *w = NULL;
    struct cmp_codec codec;
    NEB_ASSERT(cmp_work_create(&w) == NEB_OK && cmp_codec_parse("fp32", &codec) == NEB_OK);
    cmp_update_begin(&update, 1);
    NEB_ASSERT(cmp_update_add(w, &update, &shape, &codec, &(struct cmp_source){.x = data},
                              counts) == NEB_OK);
    cmp_work_destroy(&w);
}

static void set_up(void) {
    static struct sec_members m;
    char list[96];
    agent_set_up();
    for (int k = 0; k < 2; k++) {
        struct sec_member x = {.pub = *sec_identity_public(agent_ids[k])};
        NEB_ASSERT(sec_members_add(&m, &x) == NEB_OK);
    }
    snprintf(list, sizeof list, "%s/members.json", agent_home);
    NEB_ASSERT(sec_members_save(list, &m) == NEB_OK);
    NEB_ASSERT(agent_job_parse(yaml, sizeof yaml - 1, "t.yaml", &parsed) == NEB_OK);
    NEB_ASSERT((spec = agent_job_to_json(&parsed)) != NULL);
    make_update();
    atexit(free_made);
}

static struct daemon *begin(void) {
    struct daemon *d = agent_begin();
    char why[512];
    uint8_t id[AGENT_JOB_ID_BYTES];
    NEB_ASSERT(agent_job_id(daemon_federation(d), agent_names[0], spec, id) == NEB_OK);
    neb_hex(id, sizeof id, hex);
    NEB_ASSERT(daemon_job_accept(d, hex, spec, UINT32_MAX, why, sizeof why) != NULL);
    return d;
}

// ---- messages ----

// The message as agent_ipc_recv makes it. False: agent_ipc_recv would drop this message.
static bool read_line(const uint8_t *p, size_t n, const struct agent_credential *secret,
                      struct agent_ipc_msg *m) {
    *m = (struct agent_ipc_msg){0};
    m->head = json_loadb((const char *)p + 1, n - 1, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(m->head)) {
        json_decref(m->head);
        return false;
    }
    if (!strcmp(agent_ipc_str(m, "job", ""), "0"))
        json_object_set_new(m->head, "job", json_string(hex));
    if (p[0] == 'k' && secret)
        testing_add_part(m, agent_credential_secret(secret), AGENT_SECRET_BYTES);
    else if (p[0] == 'u')
        testing_add_part(m, update.p, update.len);
    for (int k = 0; p[0] >= '0' && p[0] <= '9' && k < p[0] - '0'; k++)
        testing_add_part(m, p, n);
    return true;
}

static void say_to_agent(struct daemon *d, bool trainer, struct agent_ipc_msg *m) {
    const struct agent_ipc_client who = {.id = {0, 0, 0, 0, trainer ? 1 : 2}, .len = 5};
    const char *op = agent_ipc_str(m, "op", "");
    // No programs are started here: fuzz_job_yaml and fuzz_peer_json test jobs.
    if (!strcmp(op, "submit") || !strcmp(op, "resume") || !strcmp(op, "rejoin"))
        return;
    daemon_on_local(d, &who, m);
}

static void attach(struct daemon *d) {
    struct agent_ipc_msg m = {.head = json_pack("{s:s,s:s,s:b,s:I,s:i}", "op", "attach", "job", hex,
                                                "foreign", 1, "pid", (json_int_t)getpid(),
                                                "protocol", NEB_PROTOCOL)};
    if (d->jobs[0].worker.credential)
        testing_add_part(&m, agent_credential_secret(d->jobs[0].worker.credential),
                         AGENT_SECRET_BYTES);
    say_to_agent(d, true, &m);
    agent_ipc_msg_clear(&m);
}

static struct agent_exchange *a_worker(void) {
    struct agent_exchange *x = calloc(1, sizeof *x);
    NEB_ASSERT(x);
    x->job = parsed;
    return x;
}

static void free_worker(struct agent_exchange *x) {
    for (int f = 0; f < 64; f++)
        agent_ipc_msg_clear(&x->flight[f].message);
    free(x);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!agent_zctx)
        set_up();
    struct daemon *d = begin();
    struct agent_exchange *x = a_worker();
    for (int k = 0; k < LINES_MAX && size; k++) {
        const uint8_t *end_of = memchr(data, '\n', size);
        size_t n = end_of ? (size_t)(end_of - data) : size;
        struct agent_ipc_msg m;
        if (n == 1 && data[0] == 'T')
            attach(d);
        else if (n > 2 && n < LINE_MAX_BYTES &&
                 read_line(data + 1, n - 1, d->jobs[0].worker.credential, &m)) {
            if (data[0] == 'W')
                (void)!exchange_take_commit(x, &m);
            else
                say_to_agent(d, data[0] == 'T', &m);
            agent_ipc_msg_clear(&m);
        }
        data += n + (end_of != NULL);
        size -= n + (end_of != NULL);
    }
    agent_expect_sound(d);
    free_worker(x);
    agent_end(d);
    return 0;
}
