// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/groups.h"
#include "agent/base/fs.h"
#include "agent/exchange/exchange.h"
#include "agent/exchange/shards_plan.h"
#include "agent/plan/plan.h"
#include "agent/show/progress.h"
#include "compress/device.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static enum neb_status read_tensors(const char *path, struct exchange_manifest **out) {
    struct neb_buf text = {0};
    enum neb_status st = neb_fs_read(path, EXCHANGE_MANIFEST_MAX, &text);
    if (st == NEB_OK)
        st = exchange_manifest_read(text.p, text.len, out);
    neb_buf_free(&text);
    return st;
}

static enum neb_status add_tensors(const struct agent_job *job, const char *path,
                                   struct agent_groups_view *v) {
    struct exchange_group_size sizes[AGENT_GROUP_VIEWS_MAX];
    struct exchange_manifest *m = NULL;
    int32_t n = 0;
    enum neb_status st = read_tensors(path, &m);
    const struct exchange_tensor *all = st == NEB_OK ? exchange_manifest_tensors(m, &n) : NULL;
    for (int32_t i = 0; i < n && st == NEB_OK; i++)
        if (agent_job_group_of(job, all[i].name) != all[i].group)
            st = neb_fail(NEB_ERR_INVALID, "%s: tensor \"%s\" is in group %d, but in the job in %d",
                          path, all[i].name, all[i].group, agent_job_group_of(job, all[i].name));
    if (st == NEB_OK)
        st = exchange_manifest_sizes(m, sizes, v->n);
    for (int32_t g = 0; g < v->n && st == NEB_OK; g++) {
        struct agent_group_view *x = &v->groups[g];
        x->tensors = sizes[g].tensors;
        x->parameters = sizes[g].parameters;
        if (!x->fragments)
            continue;
        x->bytes = x->bits / 8 * (double)x->parameters;
        v->parameters += x->parameters;
        v->bytes += x->bytes;
        v->largest = x->bytes / x->fragments > v->largest ? x->bytes / x->fragments : v->largest;
    }
    exchange_manifest_destroy(&m);
    return st;
}

enum neb_status agent_groups_view(const struct agent_job *job, const char *tensors,
                                  struct agent_groups_view *v) {
    *v = (struct agent_groups_view){.n = agent_job_groups(job), .sized = tensors != NULL};
    for (int32_t g = 0; g < v->n; g++) {
        struct agent_group_view *x = &v->groups[g];
        int32_t f = agent_job_group_first(job, g);
        x->group = agent_job_group(job, g);
        x->fragments = agent_job_group_fragments(job, g);
        if (!x->fragments)
            continue;
        x->codec = agent_job_fragment_codec(job, f);
        x->eta = agent_job_fragment_eta(job, f);
        x->mu = agent_job_fragment_mu(job, f);
        NEB_TRY(agent_codec_bits(x->codec, &x->bits));
    }
    return tensors ? add_tensors(job, tensors, v) : NEB_OK;
}

double agent_groups_state_bytes(const struct agent_groups_view *v) {
    return 4 * sizeof(float) * (double)v->parameters; // θ, v, the residual and θ at the send
}

struct cut { // the units of a job
    struct exchange_manifest *m;
    struct agent_unit *units;
    int32_t n, *fragment;
};

static enum neb_status cut_units(const struct agent_job *job, const char *tensors, struct cut *c) {
    NEB_TRY(read_tensors(tensors, &c->m));
    NEB_TRY(exchange_manifest_units(c->m, 0, &c->units, &c->n));
    if (!(c->fragment = calloc((size_t)c->n + 1, sizeof *c->fragment)))
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %d units", c->n);
    return exchange_cut(job, c->units, c->n, c->fragment);
}

static void cut_free(struct cut *c) {
    free(c->fragment);
    free(c->units);
    exchange_manifest_destroy(&c->m);
}

enum neb_status agent_groups_rank_bytes(const struct agent_job *job, const char *tensors,
                                        int32_t ranks, int32_t threads, uint64_t *bytes) {
    struct cut c = {0};
    enum neb_status st = cut_units(job, tensors, &c);
    if (st == NEB_OK)
        st = agent_shards_predict(c.units, c.n, c.fragment, agent_job_fragments(job), ranks,
                                  threads, bytes);
    cut_free(&c);
    return st;
}

// Unpacked frames of the fragment with the most bytes, divided over the ranks.
static enum neb_status kept_bytes(const struct agent_job *job, const struct agent_groups_view *v,
                                  int32_t ranks, uint64_t *out) {
    enum { LARGE = 1 << 20 };
    double most = 0;
    for (int32_t g = 0; g < v->n; g++) {
        struct cmp_codec codec;
        if (!v->groups[g].fragments)
            continue;
        NEB_TRY(cmp_codec_parse(v->groups[g].codec, &codec));
        double bytes = (double)cmp_device_kept_bytes(&codec, LARGE) / LARGE *
                       (double)v->groups[g].parameters / v->groups[g].fragments;
        most = bytes > most ? bytes : most;
    }
    *out = (uint64_t)(most * agent_job_exchanging(job) / ranks);
    return NEB_OK;
}

enum neb_status agent_groups_device_bytes(const struct agent_job *job, const char *tensors,
                                          const struct agent_groups_view *v, int32_t cluster,
                                          int32_t ranks, int32_t threads,
                                          struct agent_groups_device *out) {
    struct agent_shards_device d;
    struct cut c = {0};
    bool host = job->clusters[cluster].outer_state == AGENT_OUTER_HOST;
    enum neb_status st = cut_units(job, tensors, &c);
    if (st == NEB_OK)
        st = agent_shards_predict_device(c.units, c.n, c.fragment, agent_job_fragments(job), ranks,
                                         threads, &d);
    if (st == NEB_OK)
        st = kept_bytes(job, v, ranks, &out->frames);
    if (st == NEB_OK) {
        out->state = host ? d.pinned : d.there;
        out->gathered = d.gathered;
    }
    cut_free(&c);
    return st;
}

double agent_groups_frame_bytes(const struct agent_job *job, const struct agent_groups_view *v,
                                int32_t ranks) {
    return v->largest * (1 + agent_job_exchanging(job)) / ranks;
}

static void print_exchange(const struct agent_job *job, const struct agent_group_view *x) {
    const struct agent_group *g = x->group;
    if (g->exchange == AGENT_GROUP_NEVER) {
        printf("never exchanged: each cluster keeps its own");
        return;
    }
    if (g->exchange == AGENT_GROUP_OWNER)
        printf("all take those of %s, ", job->clusters[g->owner].name);
    printf("every %" PRId64
           " steps in %d fragment%s, %s (about %.2f bits per parameter), η %g, μ %g",
           (int64_t)g->every * job->sync.interval, x->fragments, x->fragments == 1 ? "" : "s",
           x->codec, x->bits, (double)x->eta, (double)x->mu);
}

void agent_groups_print(const struct agent_job *job, const struct agent_groups_view *v) {
    char a[32];
    for (int32_t g = 0; g < v->n; g++) {
        const struct agent_group_view *x = &v->groups[g];
        printf("  group     %s: ", x->group->match);
        print_exchange(job, x);
        if (v->sized)
            printf("; %" PRIu64 " tensor%s, %" PRIu64 " parameters", x->tensors,
                   x->tensors == 1 ? "" : "s", x->parameters);
        if (v->sized && x->fragments)
            printf(", %s a round", agent_human_bytes(x->bytes, a, sizeof a));
        printf("\n");
    }
}

json_t *agent_groups_json(const struct agent_job *job, const struct agent_groups_view *v) {
    static const char *const exchanges[] = {"every", "never", "owner"};
    json_t *list = json_array();
    for (int32_t g = 0; g < v->n; g++) {
        const struct agent_group_view *x = &v->groups[g];
        json_t *o = json_pack("{s:s, s:s, s:i}", "match", x->group->match, "exchange",
                              exchanges[x->group->exchange], "fragments", x->fragments);
        if (x->group->exchange == AGENT_GROUP_OWNER)
            json_object_set_new(o, "owner", json_string(job->clusters[x->group->owner].name));
        if (x->fragments) {
            json_object_set_new(o, "every", json_integer(x->group->every));
            json_object_set_new(o, "codec", json_string(x->codec));
            json_object_set_new(o, "bits_per_param", json_real(x->bits));
            json_object_set_new(o, "eta", json_real((double)x->eta));
            json_object_set_new(o, "mu", json_real((double)x->mu));
        }
        if (v->sized) {
            json_object_set_new(o, "tensors", json_integer((json_int_t)x->tensors));
            json_object_set_new(o, "params", json_integer((json_int_t)x->parameters));
            json_object_set_new(o, "bytes", json_integer((json_int_t)x->bytes));
        }
        json_array_append_new(list, o);
    }
    return list;
}
