// SPDX-License-Identifier: Apache-2.0
// An agent that lives for one input, for fuzz targets of its parts. Its name is "anna". Its home is
// in /dev/shm if possible. The target writes the home's member list before the first agent_begin(),
// and restores it after each agent_end().
#ifndef TESTS_FUZZ_AGENT_H
#define TESTS_FUZZ_AGENT_H
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/daemon/state.h"
#include "agent/daemon/status.h"
#include "inter/ledger/verify.h"
#include "security/sign.h"

#include <stdlib.h>
#include <unistd.h>

enum { AGENT_MEMBERS = 3 };
static const char *const agent_names[AGENT_MEMBERS] = {"anna", "bert", "carol"};
static char agent_root[64], agent_home[80];
static struct sec_identity *agent_ids[AGENT_MEMBERS]; // keys of all members
static struct agent_daemon_config agent_config = {.home = agent_home};
static void *agent_zctx;

static inline void agent_remove_all(void) {
    for (int k = 0; k < AGENT_MEMBERS; k++)
        sec_identity_destroy(&agent_ids[k]);
    if (neb_fs_remove_tree(agent_root) != NEB_OK)
        neb_warn("%s stays", agent_root);
}

// Once per process: makes folders and keys.
static inline void agent_set_up(void) {
    snprintf(agent_root, sizeof agent_root, "%s/nebula-fuzz-agent-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    NEB_ASSERT(sec_init() == NEB_OK && mkdtemp(agent_root));
    for (int k = 0; k < AGENT_MEMBERS; k++) {
        char dir[96];
        snprintf(dir, sizeof dir, "%s/%s", agent_root, agent_names[k]);
        NEB_ASSERT(sec_identity_create(dir, agent_names[k], &agent_ids[k]) == NEB_OK);
    }
    snprintf(agent_home, sizeof agent_home, "%s/home", agent_root);
    NEB_ASSERT(neb_fs_mkdirs(agent_home, 0700) == NEB_OK);
    NEB_ASSERT((agent_zctx = zmq_ctx_new()) != NULL);
    atexit(agent_remove_all);
}

static inline struct daemon *agent_begin(void) {
    struct daemon *d = calloc(1, sizeof *d);
    NEB_ASSERT(d);
    d->c = &agent_config;
    d->signal_fd = -1;
    d->zctx = agent_zctx;
    d->identity = agent_ids[0];
    NEB_ASSERT(agent_view_create(&d->view) == NEB_OK);
    NEB_ASSERT(agent_members_open(agent_home, d->identity, &d->trust) == NEB_OK);
    snprintf(d->exe, sizeof d->exe, "/bin/false");
    NEB_ASSERT(daemon_start_service(d) == NEB_OK);
    NEB_ASSERT(neb_path(d->socket_path, sizeof d->socket_path, agent_home, "agent.sock") == NEB_OK);
    NEB_ASSERT(agent_ipc_listen(agent_zctx, d->socket_path, &d->ipc) == NEB_OK);
    d->streams.ipc = d->ipc;
    return d;
}

static inline void agent_end(struct daemon *d) {
    for (int i = 0; i < AGENT_JOBS_MAX; i++)
        if (d->jobs[i].state)
            daemon_job_forget(d, &d->jobs[i]);
    agent_view_destroy(&d->view);
    json_decref(d->aside);
    agent_ipc_destroy(&d->ipc);
    inter_service_destroy(&d->service);
    agent_members_destroy(&d->trust);
    free(d);
    static const char *const made[] = {"ledger.db",     "ledger.db-wal", "ledger.db-shm",
                                       "ledger.lock",   "streams.db",    "streams.db-wal",
                                       "streams.db-shm"};
    char path[NEB_PATH_MAX];
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        if (neb_path(path, sizeof path, agent_home, made[i]) == NEB_OK)
            (void)unlink(path);
    (void)(neb_path(path, sizeof path, agent_home, "jobs") == NEB_OK && neb_fs_remove_tree(path));
    (void)(neb_path(path, sizeof path, agent_home, "blobs") == NEB_OK && neb_fs_remove_tree(path));
}

// The clusters of jobs are the members, in the same order.
static inline enum neb_status agent_signed_by(void *user, const uint8_t id[INTER_ID_BYTES],
                                              uint8_t member, const char *context, const void *msg,
                                              size_t len, const uint8_t sig[INTER_SIG_BYTES]) {
    (void)user, (void)id;
    NEB_ASSERT(member < AGENT_MEMBERS);
    return sec_verify(sec_identity_public(agent_ids[member])->sign, context, msg, len, sig);
}

// The agent still runs, its ledger is sound, and its status is JSON.
static inline void agent_expect_sound(struct daemon *d) {
    struct inter_ledger_counts counts;
    const struct inter_ledger_check check = {NULL, agent_signed_by, NULL, NULL};
    NEB_ASSERT(inter_service_process(d->service) == NEB_OK);
    NEB_ASSERT(inter_ledger_verify(inter_service_ledger(d->service), &check, &counts) == NEB_OK);
    json_t *status = daemon_status(d);
    char *text = status ? json_dumps(status, JSON_COMPACT) : NULL;
    NEB_ASSERT(text);
    free(text);
    json_decref(status);
}

#endif
