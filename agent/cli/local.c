// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/local.h"
#include "agent/base/log.h"
#include "agent/cli/commands.h"
#include "agent/daemon/daemon.h"
#include "agent/proc/ipc.h"
#include "agent/proc/port.h"
#include "agent/proc/seal.h"
#include "security/members.h"
#include "security/seal.h"

#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WAN_PORT = 7443, RESTARTS_MAX = 100 };

struct places { // how agents are reached
    char listen[AGENT_CLUSTERS_MAX][64];
    char reach[AGENT_CLUSTERS_MAX][AGENT_CLUSTERS_MAX][64]; // [who dials][whom]
    char netns[AGENT_CLUSTERS_MAX][64];
};

// The port stays reserved until this process ends, also while its agent restarts: fd is not closed.
static enum neb_status reserve_port(int *port) {
    int fd;
    return agent_port_bind(false, &fd, port);
}

static enum neb_status place_on_loopback(int n, struct places *p) {
    for (int i = 0; i < n; i++) {
        int port;
        NEB_TRY(reserve_port(&port));
        snprintf(p->listen[i], sizeof p->listen[i], "127.0.0.1:%d", port);
        for (int k = 0; k < n; k++)
            snprintf(p->reach[k][i], sizeof p->reach[k][i], "127.0.0.1:%d", port);
    }
    return NEB_OK;
}

static bool tun_possible(const char *wanlink) {
    struct agent_child c;
    int status = 1, fd = -1;
    const char *const argv[] = {wanlink, "probe", NULL};
    if (agent_child_start(&c, "wanlink", argv, NULL, &fd) != NEB_OK)
        return false;
    for (int i = 0; i < 500 && !agent_child_ended(&c, &status); i++)
        neb_sleep(10 * NEB_MS);
    agent_child_stop(&c, NEB_S);
    close(fd);
    return status == 0;
}

static enum neb_status start_tun(struct agent_local *l, const char *wanlink, const char *wan,
                                 const char *dir, struct places *p) {
    char sites[16], log[NEB_PATH_MAX], ctl[NEB_PATH_MAX], endpoint[32];
    json_t *ready = NULL, *list, *site;
    size_t i;
    snprintf(sites, sizeof sites, "%d", l->n < 2 ? 2 : l->n);
    NEB_TRY(neb_path(log, sizeof log, dir, "wanlink.log"));
    NEB_TRY(neb_path(ctl, sizeof ctl, dir, "wan.ctl"));
    NEB_TRY(neb_fs_remove(ctl));
    const char *const argv[] = {
        wanlink, "run", "--wan", wan, "--sites", sites, "--ctl", ctl, "--die-with-parent", NULL};
    NEB_TRY(agent_child_start(&l->wan, "wanlink", argv, log, &l->wan_stdout));
    if (agent_child_read_json(l->wan_stdout, 15 * NEB_S, &ready) != NEB_OK) {
        json_decref(ready);
        return neb_fail(NEB_ERR_IO, "the WAN emulator did not start; see %s", log);
    }
    list = json_object_get(ready, "sites");
    json_array_foreach(list, i, site) {
        const char *ns = json_string_value(json_object_get(site, "netns")),
                   *addr = json_string_value(json_object_get(site, "addr"));
        if (i >= (size_t)l->n || !ns || !addr || strlen(ns) >= sizeof p->netns[i] ||
            strlen(addr) > 20)
            continue;
        snprintf(p->netns[i], sizeof p->netns[i], "%s", ns);
        snprintf(endpoint, sizeof endpoint, "%.20s:%d", addr, WAN_PORT);
        snprintf(p->listen[i], sizeof p->listen[i], "%s", endpoint);
        for (int k = 0; k < l->n; k++)
            snprintf(p->reach[k][i], sizeof p->reach[k][i], "%s", endpoint);
    }
    json_decref(ready);
    for (int k = 0; k < l->n; k++)
        if (!p->netns[k][0])
            return neb_fail(NEB_ERR_FORMAT, "the WAN emulator reported fewer sites than %d", l->n);
    return NEB_OK;
}

// Without root, agents are on loopback with a proxy of limited rate and delay between each pair.
// Makes the proxy's command line; in p, k dials i through a port of the proxy. text: storage for
// argv.
static enum neb_status proxy_args(const struct agent_local *l, struct places *p,
                                  const char *const *head, int n_head, const char **argv,
                                  char (*text)[64]) {
    for (int i = 0; i < n_head; i++)
        *argv++ = head[i];
    for (int i = 0; i < l->n; i++)
        for (int k = i + 1; k < l->n; k++, text += 2) {
            int port;
            NEB_TRY(reserve_port(&port));
            snprintf(text[0], sizeof *text, "127.0.0.1:%d", port);
            snprintf(text[1], sizeof *text, "%s", p->listen[i]);
            snprintf(p->reach[k][i], sizeof p->reach[k][i], "%s", text[0]);
            *argv++ = "--listen";
            *argv++ = text[0];
            *argv++ = "--connect";
            *argv++ = text[1];
        }
    return NEB_OK;
}

static enum neb_status start_proxy(struct agent_local *l, const char *wanlink, const char *wan,
                                   const char *dir, struct places *p) {
    enum { HEAD = 7, WORDS_A_PAIR = 4 };
    char log[NEB_PATH_MAX], ctl[NEB_PATH_MAX], rate_delay[64];
    size_t pairs = (size_t)l->n * (size_t)(l->n - 1) / 2;
    json_t *ready = NULL;
    NEB_TRY(place_on_loopback(l->n, p));
    NEB_TRY(neb_path(log, sizeof log, dir, "wanlink.log"));
    NEB_TRY(neb_path(ctl, sizeof ctl, dir, "wan.ctl"));
    NEB_TRY(neb_fs_remove(ctl));
    snprintf(rate_delay, sizeof rate_delay, "%.60s", wan);
    char *loss = strchr(rate_delay, ':') ? strchr(strchr(rate_delay, ':') + 1, ':') : NULL;
    if (loss) {
        *loss = 0;
        neb_warn("without root the WAN emulator is a proxy: the loss of %s is not emulated", wan);
    }
    const char *const head[HEAD] = {
        wanlink, "proxy", "--wan", rate_delay, "--ctl", ctl, "--die-with-parent"};
    const char **argv = calloc(HEAD + WORDS_A_PAIR * pairs + 1, sizeof *argv);
    char(*text)[64] = calloc(2 * pairs + 1, sizeof *text);
    enum neb_status st = argv && text
                             ? proxy_args(l, p, head, HEAD, argv, text)
                             : neb_fail(NEB_ERR_NOMEM, "out of memory starting the WAN emulator");
    if (st == NEB_OK)
        st = agent_child_start(&l->wan, "wanlink", argv, log, &l->wan_stdout);
    if (st == NEB_OK && agent_child_read_json(l->wan_stdout, 15 * NEB_S, &ready) != NEB_OK)
        st = neb_fail(NEB_ERR_IO, "the WAN emulator did not start; see %s", log);
    json_decref(ready);
    free(argv);
    free(text);
    return st;
}

static enum neb_status make_keys(const struct agent_job *job, struct agent_local *l,
                                 const char *dir, struct sec_public *pub) {
    for (int i = 0; i < l->n; i++) {
        struct sec_identity *id = NULL;
        char clusters[NEB_PATH_MAX], path[NEB_PATH_MAX];
        NEB_TRY(neb_path(clusters, sizeof clusters, dir, "clusters"));
        NEB_TRY(neb_path(l->homes[i], sizeof l->homes[i], clusters, job->clusters[i].name));
        NEB_TRY(neb_path(path, sizeof path, l->homes[i], "agent.sock"));
        NEB_TRY(agent_ipc_path_fits(path));
        NEB_TRY(neb_fs_mkdirs(l->homes[i], 0700));
        bool mended;
        NEB_TRY(sec_identity_mend(l->homes[i], job->clusters[i].name, &mended));
        if (mended)
            neb_warn("%s/identity was damaged or missing: it is written again from the keys there",
                     l->homes[i]);
        NEB_TRY(sec_identity_first(l->homes[i], job->clusters[i].name, &id, NULL));
        pub[i] = *sec_identity_public(id);
        sec_identity_destroy(&id);
    }
    return NEB_OK;
}

// Every agent knows all others. In each pair, the later one in the job's list dials.
static enum neb_status write_members(const struct agent_local *l, const struct sec_public *pub,
                                     const struct places *p) {
    for (int i = 0; i < l->n; i++) {
        struct sec_members members = {0};
        char path[NEB_PATH_MAX];
        for (int k = 0; k < l->n; k++) {
            struct sec_member m = {.pub = pub[k],
                                   .connect = k < i ? SEC_CONNECT_OUT : SEC_CONNECT_IN};
            if (k < i)
                snprintf(m.endpoint, sizeof m.endpoint, "%s", p->reach[i][k]);
            NEB_TRY(sec_members_add(&members, &m));
        }
        NEB_TRY(neb_path(path, sizeof path, l->homes[i], "members.json"));
        NEB_TRY(neb_fs_remove(path)); // it has addresses of an earlier run
        NEB_TRY(sec_members_save(path, &members));
    }
    return NEB_OK;
}

// One operator owns all clusters of a local run, so their policies allow everything.
static enum neb_status write_policies(const struct agent_local *l, const struct agent_job *job) {
    json_t *names = json_array();
    for (int i = 0; i < l->n; i++)
        json_array_append_new(names, json_string(job->clusters[i].name));
    json_t *o = json_pack("{s:i,s:i,s:s,s:b,s:b,s:s,s:f,s:o}", "format", 1, "tokens_per_update", 1,
                          "row_counts", "exact", "labels", 1, "push_text", 1, "losses", "exact",
                          "hours_without_progress", 1e6, "attach", names);
    char *text = o ? json_dumps(o, JSON_INDENT(1)) : NULL, path[NEB_PATH_MAX];
    enum neb_status st = text ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory writing policies");
    for (int i = 0; i < l->n && st == NEB_OK; i++) {
        st = neb_path(path, sizeof path, l->homes[i], "policy.json");
        if (st == NEB_OK && !neb_fs_exists(path)) // keeps a policy that the user has written
            st = sec_secret_write(path, text, strlen(text));
    }
    free(text);
    json_decref(o);
    return st;
}

// The last error in an agent's log: why it ended. Empty: none.
static void last_error(const char *home, char *out, size_t cap) {
    enum { LOG_END = 8192 };
    char path[NEB_PATH_MAX], end[LOG_END + 1];
    FILE *f = neb_path(path, sizeof path, home, "agent.log") == NEB_OK ? fopen(path, "re") : NULL;
    out[0] = 0;
    if (!f)
        return;
    if (fseek(f, -LOG_END, SEEK_END) != 0)
        rewind(f);
    end[fread(end, 1, LOG_END, f)] = 0;
    fclose(f);
    for (char *at = end, *line; (line = strstr(at, " error ")) != NULL; at = line + 1)
        snprintf(out, cap, ": %.*s", (int)strcspn(line + 7, "\n"), line + 7);
}

static enum neb_status ended(const struct agent_local *l, const struct agent_child *c,
                             const char *home, int status) {
    char reason[96], why[1024] = "";
    (void)l;
    if (home)
        last_error(home, why, sizeof why);
    agent_child_reason(status, reason, sizeof reason);
    return home ? neb_fail(NEB_ERR_STATE, "agent %s ended (%s)%s; see %s/agent.log", c->what,
                           reason, why, home)
                : neb_fail(NEB_ERR_STATE, "the WAN emulator ended (%s)", reason);
}

static enum neb_status check(struct agent_local *l) {
    int status;
    for (int i = 0; i < l->n; i++)
        if (agent_child_ended(&l->agents[i], &status))
            return ended(l, &l->agents[i], l->homes[i], status);
    return NEB_OK;
}

static enum neb_status start_agent(struct agent_local *l, int i) {
    char log[NEB_PATH_MAX], sock[NEB_PATH_MAX], exe[NEB_PATH_MAX], wanlink[NEB_PATH_MAX], name[64];
    NEB_TRY(neb_path(log, sizeof log, l->homes[i], "agent.log"));
    NEB_TRY(neb_path(sock, sizeof sock, l->homes[i], "agent.sock"));
    NEB_TRY(neb_fs_remove(sock));
    NEB_TRY(agent_self_path(exe, sizeof exe));
    if (l->netns[i][0])
        NEB_TRY(agent_helper_path("wanlink", wanlink, sizeof wanlink));
    snprintf(name, sizeof name, "%s", l->agents[i].what);
    const char *argv[16];
    int n = 0;
    if (l->netns[i][0]) {
        argv[n++] = wanlink;
        argv[n++] = "exec";
        argv[n++] = l->netns[i];
        argv[n++] = "--";
    }
    if (l->gpus[i][0]) {
        argv[n++] = "/usr/bin/env";
        argv[n++] = l->gpus[i];
    }
    argv[n++] = exe;
    argv[n++] = "agent";
    argv[n++] = "--home";
    argv[n++] = l->homes[i];
    argv[n++] = "--listen";
    argv[n++] = l->listen[i];
    argv[n] = NULL;
    return agent_child_start(&l->agents[i], name, argv, log, NULL);
}

// True if a child ended because it was asked to, and this process is asked to end too, now or
// within a second.
static bool with_us(int status, const volatile sig_atomic_t *asked) {
    if (WIFEXITED(status)
            ? WEXITSTATUS(status) != AGENT_EXIT_OK && WEXITSTATUS(status) != AGENT_EXIT_INTERRUPTED
            : WTERMSIG(status) != SIGTERM)
        return false;
    for (neb_ns end = neb_now() + NEB_S; !*asked && neb_now() < end;)
        neb_sleep(10 * NEB_MS);
    return *asked;
}

// Restarts killed agents. *again: the index of the first one.
static enum neb_status restart_killed(struct agent_local *l, const volatile sig_atomic_t *asked,
                                      int *again) {
    int status;
    if (l->wan.pid && agent_child_ended(&l->wan, &status))
        return with_us(status, asked) ? NEB_ERR_INTERRUPTED : ended(l, &l->wan, NULL, status);
    for (int i = 0; i < l->n; i++) {
        if (!agent_child_ended(&l->agents[i], &status))
            continue;
        if (with_us(status, asked))
            return NEB_ERR_INTERRUPTED;
        if (!WIFSIGNALED(status) || ++l->restarts > RESTARTS_MAX)
            return ended(l, &l->agents[i], l->homes[i], status);
        NEB_TRY(start_agent(l, i));
        *again = *again < 0 || i < *again ? i : *again;
    }
    return NEB_OK;
}

// An agent that ends meanwhile is an error; with `again`, a killed one is restarted.
static enum neb_status wait_ready(struct agent_local *l, const volatile sig_atomic_t *asked,
                                  int *again) {
    neb_ns end = neb_now() + 20 * NEB_S;
    for (int i = 0; i < l->n; i++) {
        char path[NEB_PATH_MAX];
        NEB_TRY(neb_path(path, sizeof path, l->homes[i], "agent.sock"));
        while (!neb_fs_exists(path)) {
            NEB_TRY(again ? restart_killed(l, asked, again) : check(l));
            if (neb_now() > end)
                return neb_fail(NEB_ERR_TIMEOUT,
                                "agent in %s did not start within 20 s; see its agent.log",
                                l->homes[i]);
            neb_sleep(10 * NEB_MS);
        }
    }
    return NEB_OK;
}

static void deal_gpus(const struct agent_job *job, struct agent_local *l) {
    struct agent_gpus g;
    agent_gpus_find(getenv("CUDA_VISIBLE_DEVICES"), AGENT_GPUS_DRIVER, &g);
    for (int i = 0; i < l->n; i++) {
        const struct agent_cluster *c = &job->clusters[i];
        if (agent_local_deals(c))
            agent_gpus_text(&g, agent_gpus_take(&g, agent_cluster_ranks(c)), l->gpus[i]);
    }
}

enum neb_status agent_local_start(const struct agent_job *job, int n, const char *dir,
                                  const char *wan, const char *seal_key, struct agent_local *l) {
    static struct places p; // large; this runs once
    struct sec_public pub[AGENT_CLUSTERS_MAX];
    char wanlink[NEB_PATH_MAX];
    memset(l, 0, sizeof *l);
    memset(&p, 0, sizeof p);
    l->n = n;
    l->wan_stdout = -1;
    NEB_TRY(sec_init());
    NEB_TRY(make_keys(job, l, dir, pub));
    if (wan && n > 1) {
        NEB_TRY(agent_helper_path("wanlink", wanlink, sizeof wanlink));
        NEB_TRY(tun_possible(wanlink) ? start_tun(l, wanlink, wan, dir, &p)
                                      : start_proxy(l, wanlink, wan, dir, &p));
    } else {
        NEB_TRY(place_on_loopback(n, &p));
    }
    NEB_TRY(write_members(l, pub, &p));
    NEB_TRY(write_policies(l, job));
    deal_gpus(job, l);
    for (int i = 0; i < n; i++) {
        snprintf(l->listen[i], sizeof l->listen[i], "%s", p.listen[i]);
        snprintf(l->netns[i], sizeof l->netns[i], "%s", p.netns[i]);
        snprintf(l->agents[i].what, sizeof l->agents[i].what, "%s", job->clusters[i].name);
        if (seal_key)
            NEB_TRY(agent_seal_settings_write(l->homes[i], seal_key));
        NEB_TRY(start_agent(l, i));
    }
    return wait_ready(l, NULL, NULL);
}

enum neb_status agent_local_tend(struct agent_local *l, const volatile sig_atomic_t *asked,
                                 int *again) {
    *again = -1;
    NEB_TRY(restart_killed(l, asked, again));
    return *again < 0 ? NEB_OK : wait_ready(l, asked, again);
}

void agent_local_stop(struct agent_local *l) {
    neb_ns end = neb_now() + (AGENT_STOP_WITHIN_S + 20) * NEB_S;
    // To all at once, since each may have a checkpoint to write; only once, since twice ends it.
    for (int i = 0; i < l->n; i++)
        agent_child_signal(&l->agents[i], SIGTERM);
    for (int i = 0; i < l->n; i++)
        if (!agent_child_wait(&l->agents[i], end))
            agent_child_stop(&l->agents[i], 0);
    agent_child_stop(&l->wan, 5 * NEB_S);
    if (l->wan_stdout >= 0)
        close(l->wan_stdout);
    l->wan_stdout = -1;
}
