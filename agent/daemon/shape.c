// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/shape.h"
#include "agent/base/bytes.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"

#include <stdlib.h>
#include <string.h>

bool agent_shape_read(const json_t *said, uint32_t n, struct agent_update_shape *out) {
    const json_t *list = json_object_get(said, "fragments");
    json_int_t all = json_integer_value(json_object_get(said, "elements"));
    uint64_t left = all > 0 ? (uint64_t)all : 0;
    *out = (struct agent_update_shape){.elements = left, .n = n};
    bool good = left > 0 && n <= INTER_FRAGMENTS_MAX && json_array_size(list) == n;
    for (uint32_t i = 0; good && i < n; i++) {
        const json_t *f = json_array_get(list, i), *elements = json_object_get(f, "elements");
        const char *hex = json_string_value(json_object_get(f, "sha"));
        json_int_t k = json_integer_value(elements);
        good = json_is_integer(elements) && k >= 0 && (uint64_t)k <= left && hex &&
               neb_unhex(hex, out->fragments[i].sha, INTER_SHA_BYTES);
        if (good)
            left -= out->fragments[i].elements = (uint64_t)k;
    }
    return good;
}

static void apply(struct inter_service *s, const struct agent_jobrun *j,
                  const struct agent_update_shape *x) {
    enum inter_counts counts =
        j->job.sync.row_counts == AGENT_ROWS_COARSE ? INTER_COUNTS_COARSE : INTER_COUNTS_EXACT;
    // an attached trainer counts rows separately from the tokens of its steps
    for (int k = 0; k < j->job.n_clusters; k++)
        if (j->job.clusters[k].launcher == AGENT_LAUNCHER_ATTACH)
            counts = INTER_COUNTS_FOREIGN;
    inter_service_bound(s, j->id, x->elements, counts);
    for (uint32_t i = 0; i < x->n; i++)
        if (x->fragments[i].elements && inter_service_shape(s, j->id, i, x->fragments[i].elements,
                                                            x->fragments[i].sha) != NEB_OK) {
            neb_warn("the shape of fragment %u of job %s is unknown: no update is judged", i,
                     j->job.name);
            return;
        }
    inter_service_job_judges(s, j->id);
}

void agent_shape_take(struct inter_service *s, const struct agent_jobrun *j, const char *dir,
                      const json_t *said) {
    char path[NEB_PATH_MAX];
    struct agent_update_shape x;
    if (!agent_shape_read(said, (uint32_t)j->job.sync.fragments, &x)) {
        neb_warn("the worker of job %s sent a malformed shape of its updates: no update is judged",
                 j->job.name);
        return;
    }
    json_t *kept = json_pack("{s:O,s:O}", "elements", json_object_get(said, "elements"),
                             "fragments", json_object_get(said, "fragments"));
    char *text = kept ? json_dumps(kept, JSON_COMPACT) : NULL;
    if (!text || neb_path(path, sizeof path, dir, "shape.json") != NEB_OK ||
        neb_fs_write(path, text, strlen(text), 0600) != NEB_OK)
        neb_warn("the shape of job %s could not be stored; after a restart it is unknown until the "
                 "worker is back",
                 j->job.name);
    free(text);
    json_decref(kept);
    apply(s, j, &x);
}

void agent_shape_recall(struct inter_service *s, const struct agent_jobrun *j, const char *dir) {
    char path[NEB_PATH_MAX];
    struct agent_update_shape x;
    if (neb_path(path, sizeof path, dir, "shape.json") != NEB_OK || !neb_fs_exists(path))
        return;
    json_t *said = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
    if (agent_shape_read(said, (uint32_t)j->job.sync.fragments, &x))
        apply(s, j, &x);
    else
        neb_warn("%s is damaged; the shape is unknown until the worker is back", path);
    json_decref(said);
}
