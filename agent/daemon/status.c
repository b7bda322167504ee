// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/status.h"
#include "agent/base/log.h"
#include "agent/web/metrics.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void agent_status_names(const struct agent_job *job, uint16_t who, char *out, size_t cap) {
    size_t n = 0;
    out[0] = 0;
    for (int i = 0; i < job->n_clusters && n < cap; i++)
        if (who >> i & 1)
            n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? ", " : "", job->clusters[i].name);
}

// A witness has no worker, so the age of its last line means nothing.
static void forget_age_of_witnesses(const struct agent_job *job, json_t *clusters) {
    size_t k;
    json_t *c;
    json_array_foreach(clusters, k, c) for (int i = 0; i < job->n_clusters; i++) {
        const char *name = json_string_value(json_object_get(c, "name"));
        if (job->clusters[i].witness && name && !strcmp(job->clusters[i].name, name))
            json_object_set_new(c, "age_s", json_null());
    }
}

void agent_status_job(json_t *o, const struct agent_jobrun *j, const struct inter_service *s,
                      const struct agent_view *v) {
    struct inter_job_status st;
    const char *error = json_string_value(json_object_get(j->report, "error"));
    json_t *clusters = agent_view_clusters(v, j->hex, neb_seconds(neb_now()));
    forget_age_of_witnesses(&j->job, clusters);
    json_object_set_new(o, "clusters", clusters);
    json_object_set_new(o, "restarts", json_integer(j->worker.restarts));
    json_object_set_new(o, "witness", json_boolean(j->job.clusters[j->self].witness));
    if (error)
        json_object_set_new(o, "error", json_string(error));
    if (!j->federated || !inter_service_job_status(s, j->id, &st))
        return;
    if (st.leader >= 0 && st.leader < j->job.n_clusters)
        json_object_set_new(o, "leader", json_string(j->job.clusters[st.leader].name));
    json_object_set_new(o, "live", json_integer(__builtin_popcount(st.live)));
    json_object_set_new(o, "members", json_integer(j->job.n_clusters));
    json_object_set_new(o, "lag", json_integer(st.lag));
    json_t *waits = json_array();
    for (int i = 0; i < j->job.n_clusters; i++)
        if (agent_job_active(j->state) && (st.waits | st.owing) >> i & 1)
            json_array_append_new(waits, json_string(j->job.clusters[i].name));
    json_object_set_new(o, "waits_for", waits);
    json_t *equivocators = json_array();
    for (int i = 0; i < j->job.n_clusters; i++)
        if (st.equivocators >> i & 1)
            json_array_append_new(equivocators, json_string(j->job.clusters[i].name));
    json_object_set_new(o, "equivocators", equivocators);
    json_object_set_new(o, "diverged", json_boolean(st.split));
    json_object_set_new(o, "equivocators_proven",
                        json_integer(__builtin_popcount(st.equivocators)));
    json_object_set_new(o, "votes", json_boolean(st.votes));
    json_object_set_new(o, "disk_lost", json_boolean(st.lost));
}

json_t *agent_status_faults(const uint64_t counts[INTER_FAULTS]) {
    json_t *o = json_object();
    for (int f = 0; f < INTER_FAULTS; f++)
        json_object_set_new(o, inter_fault_name((enum inter_fault)f),
                            json_integer((json_int_t)counts[f]));
    return o;
}

void agent_status_publish(struct agent_web *w, struct agent_view *v, json_t *status) {
    struct neb_buf text = {0};
    char *history = NULL, *metrics = NULL;
    if (agent_web_watched(w)) {
        history = agent_view_history(v);
    } else {
        // the history follows within a second of the first view
        history = strdup("{\"version\":1,\"jobs\":[],\"events\":[]}");
    }
    if (agent_metrics_text(status, &text) == NEB_OK && (metrics = malloc(text.len + 1))) {
        memcpy(metrics, text.p, text.len);
        metrics[text.len] = 0;
    }
    agent_web_publish(w, json_dumps(status, JSON_COMPACT | JSON_REAL_PRECISION(12)), history,
                      metrics);
    neb_buf_free(&text);
    json_decref(status);
}

void agent_notify(const char *state) {
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    size_t n = path ? strlen(path) : 0;
    if (!n || n >= sizeof a.sun_path || (path[0] != '/' && path[0] != '@'))
        return;
    memcpy(a.sun_path, path, n);
    if (path[0] == '@') // the abstract namespace
        a.sun_path[0] = 0;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    if (fd < 0 || sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&a, len) < 0)
        neb_debug("the service manager did not get \"%s\"", state);
    if (fd >= 0)
        close(fd);
}
