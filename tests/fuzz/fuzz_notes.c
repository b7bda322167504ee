// SPDX-License-Identifier: Apache-2.0
// Small files in folders of runs, corpora and federations that may be edited, damaged or foreign:
// corpus.sha256, metrics.jsonl and job.json of a resumed run, corpus.json of a folder that a build
// would replace, the hub's hub.json and invitations, a member's federation files (seen, hub).
// Accepted content is within its limits, and is written back unchanged. Input: a byte that chooses
// one, then the file.
#include "agent/base/log.h"
#include "agent/cli/pretrain_state.h"
#include "agent/show/corpus_note.h"
#include "agent/show/report.h"
#include "intra/data/build_state.h"
#include "security/hub.h"
#include "security/invite.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[64], run[80], built[80], home[80], ca[96];
static json_t *spec;
static struct neb_buf seen; // the file's content

static void path_of(char out[NEB_PATH_MAX], const char *dir, const char *name) {
    NEB_ASSERT(neb_path(out, NEB_PATH_MAX, dir, name) == NEB_OK);
}

// Skips fsync: the folder is in memory.
static void put(const char *dir, const char *name, const void *p, size_t n) {
    char path[NEB_PATH_MAX];
    path_of(path, dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    NEB_ASSERT(fd >= 0 && write(fd, p, n) == (ssize_t)n && close(fd) == 0);
}

static void remove_all(void) {
    json_decref(spec);
    neb_buf_free(&seen);
    if (neb_fs_remove_tree(folder) != NEB_OK)
        neb_warn("%s stays", folder);
}

static void make_hub(void) {
    char path[NEB_PATH_MAX], code[SEC_CODE_TEXT];
    struct sec_identity *id = NULL;
    const struct sec_hub_settings s = {"127.0.0.1:7443", "127.0.0.1:7443"};
    path_of(path, folder, "backup");
    NEB_ASSERT(sec_init() == NEB_OK && sec_identity_create(home, "hub", &id) == NEB_OK);
    NEB_ASSERT(sec_ca_create(home, "acme", path, code) == NEB_OK);
    NEB_ASSERT(sec_hub_create(home, &s, sec_identity_public(id), "") == NEB_OK);
    sec_identity_destroy(&id);
    path_of(path, home, "federation/seen");
    NEB_ASSERT(neb_fs_read(path, 1024, &seen) == NEB_OK);
}

static void set_up(void) {
    static const char yaml[] =
        "job: t\nsteps: 4\nmodel: {n_layers: 1, d_model: 8, n_heads: 2, d_ff: 16}\n"
        "data: {corpus: /nowhere, seq_len: 8, batch: 1}\noptim: {lr: 0.1}\n"
        "clusters: [{name: anna}, {name: bert}]\n";
    static struct agent_job job;
    char path[NEB_PATH_MAX];
    snprintf(folder, sizeof folder, "%s/nebula-fuzz-notes-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    NEB_ASSERT(mkdtemp(folder));
    snprintf(run, sizeof run, "%s/run", folder);
    snprintf(built, sizeof built, "%s/corpus", folder);
    snprintf(home, sizeof home, "%s/home", folder);
    snprintf(ca, sizeof ca, "%s/ca", home);
    path_of(path, built, "en");
    NEB_ASSERT(neb_fs_mkdirs(run, 0700) == NEB_OK && neb_fs_mkdirs(path, 0700) == NEB_OK);
    NEB_ASSERT(agent_job_parse(yaml, sizeof yaml - 1, "t.yaml", &job) == NEB_OK);
    NEB_ASSERT((spec = agent_job_to_json(&job)) != NULL);
    make_hub();
    atexit(remove_all);
}

// ---- notes of runs and corpora ----

// "@" is the corpus's folder.
static void corpus_note(const uint8_t *p, size_t n) {
    struct neb_buf text = {0};
    char out[NEB_PATH_MAX], index[NEB_PATH_MAX];
    for (size_t i = 0; i < n; i++)
        neb_buf_add(&text, p[i] == '@' ? (const void *)built : &p[i],
                    p[i] == '@' ? strlen(built) : 1);
    put(run, "corpus.sha256", text.p, text.len);
    put(built, "corpus.json", "{}", 2);
    neb_buf_free(&text);
    if (agent_corpus_note_read(run, out, sizeof out) != NEB_OK)
        return;
    path_of(index, out, "corpus.json");
    NEB_ASSERT(neb_fs_exists(index));
}

enum { YEARS_30_S = 1000000000 };
struct newest {
    double t, last; // largest time within a run's length; time of the last line
    int64_t lines;
};

static void take_line(void *user, const json_t *line) {
    struct newest *x = user;
    x->last = json_number_value(json_object_get(line, "t"));
    x->t = x->last > x->t && x->last < YEARS_30_S ? x->last : x->t;
    x->lines++;
}

// A resumed run writes its next line after the last one, with a time that is not earlier.
static void metrics(const uint8_t *p, size_t n) {
    struct agent_metrics *m = NULL;
    struct newest before = {0}, after = {0};
    char path[NEB_PATH_MAX];
    int64_t bad = 0, still = 0;
    put(run, "metrics.jsonl", p, n);
    path_of(path, run, "metrics.jsonl");
    NEB_ASSERT(agent_metrics_read(path, take_line, &before, &bad) == NEB_OK);
    NEB_ASSERT(agent_metrics_open(path, true, NEB_S, &m) == NEB_OK);
    NEB_ASSERT(agent_metrics_add(m, 2 * NEB_S, json_pack("{s:s}", "kind", "note")) == NEB_OK);
    agent_metrics_close(&m);
    NEB_ASSERT(agent_metrics_read(path, take_line, &after, &still) == NEB_OK);
    NEB_ASSERT(after.lines == before.lines + 1 && still == bad && after.last >= before.t);
}

static void job_json(const uint8_t *p, size_t n) {
    static struct run r; // large
    uint8_t id[AGENT_JOB_ID_BYTES];
    r = (struct run){.o = {.out = run, .resume = true}, .spec = spec, .lock_fd = -1};
    put(run, "job.json", p, n);
    if (pretrain_open_out(&r) == NEB_OK)
        NEB_ASSERT(!*r.id || neb_unhex(r.id, id, sizeof id)); // empty: no agent has it yet
    close(r.lock_fd);
}

static void corpus_json(const uint8_t *p, size_t n) {
    put(built, "corpus.json", p, n);
    if (build_place_check(built) != NEB_OK)
        return;
    json_t *root = json_loadb((const char *)p, n, 0, NULL),
           *o; // then it is a corpus, whose folder is "en"
    bool lists = false;
    size_t i;
    json_array_foreach(json_object_get(root, "sources"), i, o) {
        const char *name = json_string_value(json_object_get(o, "name"));
        lists |= name && !strcmp(name, "en");
    }
    NEB_ASSERT(lists);
    json_decref(root);
}

// ---- notes of federations ----

static void hub_json(const uint8_t *p, size_t n) {
    struct sec_hub *h = NULL;
    put(ca, "hub.json", p, n);
    if (sec_hub_open(home, &h) == NEB_OK)
        NEB_ASSERT(sec_endpoint_valid(h->settings.listen) && sec_endpoint_valid(h->settings.reach));
    sec_hub_destroy(&h);
}

static void invite(const uint8_t *p, size_t n) {
    static const char file[] = "invites/0001020304050607.json";
    static const uint8_t id[SEC_INVITE_ID_BYTES] = {0, 1, 2, 3, 4, 5, 6, 7};
    struct sec_invite v, again;
    struct sec_invites_swept swept;
    put(ca, file, p, n);
    bool good = sec_invite_load(ca, id, &v) == NEB_OK;
    if (good) {
        NEB_ASSERT(sec_name_valid(v.name) && v.cert_len <= sizeof v.cert);
        NEB_ASSERT(sec_invite_store(ca, &v) == NEB_OK && sec_invite_load(ca, id, &again) == NEB_OK);
        NEB_ASSERT(!strcmp(v.name, again.name) && v.role == again.role && v.used == again.used &&
                   v.expires == again.expires && v.cert_len == again.cert_len &&
                   !memcmp(v.cert, again.cert, v.cert_len));
    }
    NEB_ASSERT(sec_invites_sweep(ca, 1000, NULL, &swept) == NEB_OK);
    NEB_ASSERT(swept.left == (good && v.expires >= 1000)); // damaged files are removed
}

static void seen_file(const uint8_t *p, size_t n) {
    struct sec_federation *f = NULL;
    put(home, "federation/seen", p, n);
    if (sec_federation_open(home, &f) == NEB_OK)
        NEB_ASSERT(f->list.members.version == 1 && f->list.members.n == 1);
    sec_federation_destroy(&f);
    put(home, "federation/seen", seen.p, seen.len);
    char path[NEB_PATH_MAX];
    path_of(path, home, "federation/forked"); // proof of two lists with one version
    NEB_ASSERT(neb_fs_remove(path) == NEB_OK);
}

static void hub_endpoint(const uint8_t *p, size_t n) {
    struct sec_federation *f = NULL;
    char endpoint[SEC_ENDPOINT_MAX];
    put(home, "federation/hub", p, n);
    NEB_ASSERT(sec_federation_open(home, &f) == NEB_OK);
    if (sec_federation_hub(f, endpoint) == NEB_OK)
        NEB_ASSERT(sec_endpoint_valid(endpoint));
    sec_federation_destroy(&f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static void (*const all[])(const uint8_t *, size_t) = {
        corpus_note, metrics, job_json, corpus_json, hub_json, invite, seen_file, hub_endpoint};
    if (!spec)
        set_up();
    if (size)
        all[data[0] % (sizeof all / sizeof *all)](data + 1, size - 1);
    return 0;
}
