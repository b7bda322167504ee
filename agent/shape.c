#include "agent/shape.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"

#include <stdlib.h>
#include <string.h>

static void apply(struct inter_service *s, const struct agent_jobrun *j, const json_t *said) {
    json_int_t all = json_integer_value(json_object_get(said, "elements"));
    const json_t *fragments = json_object_get(said, "fragments"), *f;
    uint8_t sha[INTER_SHA_BYTES];
    size_t i;
    if (all <= 0)
        return;
    // a foreign trainer says how many tokens a step had, and counts rows apart from it
    bool counted = true;
    for (int k = 0; k < j->job.n_clusters; k++)
        counted = counted && j->job.clusters[k].launcher != AGENT_LAUNCHER_ATTACH;
    inter_service_bound(s, j->id, (uint64_t)all, counted);
    json_array_foreach(fragments, i, f) {
        const char *hex = json_string_value(json_object_get(f, "sha"));
        json_int_t n = json_integer_value(json_object_get(f, "elements"));
        if (i < (size_t)j->job.sync.fragments && n > 0 && hex && neb_unhex(hex, sha, sizeof sha) &&
            inter_service_shape(s, j->id, (uint32_t)i, (uint64_t)n, sha) != NEB_OK)
            neb_warn("the shape of fragment %zu of job %s is not checked", i, j->job.name);
    }
}

void agent_shape_take(struct inter_service *s, const struct agent_jobrun *j, const char *dir,
                      const json_t *said) {
    char path[NEB_PATH_MAX];
    json_t *kept = json_pack("{s:O,s:O}", "elements", json_object_get(said, "elements"),
                             "fragments", json_object_get(said, "fragments"));
    char *text = kept ? json_dumps(kept, JSON_COMPACT) : NULL;
    if (text && (neb_path(path, sizeof path, dir, "shape.json") != NEB_OK ||
                 neb_fs_write(path, text, strlen(text), 0600) != NEB_OK))
        neb_warn("the shape of job %s could not be kept; it is known again when its worker is back",
                 j->job.name);
    free(text);
    json_decref(kept);
    apply(s, j, said);
}

void agent_shape_recall(struct inter_service *s, const struct agent_jobrun *j, const char *dir) {
    char path[NEB_PATH_MAX];
    if (neb_path(path, sizeof path, dir, "shape.json") != NEB_OK || !neb_fs_exists(path))
        return;
    json_t *said = json_load_file(path, 0, NULL);
    apply(s, j, said);
    json_decref(said);
}
