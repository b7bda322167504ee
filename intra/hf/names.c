// SPDX-License-Identifier: Apache-2.0
#include "intra/hf/names.h"

#include <stdlib.h>
#include <string.h>

static bool drop_front(char *name, const char *front) {
    size_t k = strlen(front);
    if (strncmp(name, front, k))
        return false;
    memmove(name, name + k, strlen(name + k) + 1);
    return true;
}

// Removes a whole component of the name, with its dots: "._orig_mod." becomes ".".
static bool drop_within(char *name, const char *component) {
    char *at = strstr(name, component);
    if (at)
        memmove(at, at + strlen(component) - 1, strlen(at + strlen(component) - 1) + 1);
    return at != NULL;
}

static void plain_name(const struct intra_model *m, const char *given,
                       char out[sizeof((struct intra_hf_named *)0)->name]) {
    static const char *const fronts[] = {"module.", "_orig_mod.", "_fsdp_wrapped_module.",
                                         "_checkpoint_wrapped_module.", "base_model.model."};
    static const char *const withins[] = {"._orig_mod.", "._fsdp_wrapped_module.",
                                          "._checkpoint_wrapped_module."};
    char *adapter;
    snprintf(out, INTRA_ST_NAME_MAX + 1, "%s", given);
    for (bool again = true; again;) {
        again = false;
        for (size_t i = 0; i < sizeof fronts / sizeof *fronts; i++)
            again = drop_front(out, fronts[i]) || again;
        for (size_t i = 0; i < sizeof withins / sizeof *withins; i++)
            again = drop_within(out, withins[i]) || again;
    }
    if ((adapter = strstr(out, ".lora_")))
        drop_within(adapter, ".default.");
    char with[sizeof((struct intra_hf_named *)0)->name];
    snprintf(with, sizeof with, "model.%.*s", INTRA_ST_NAME_MAX, out);
    if (!intra_model_find(m, out) && intra_model_find(m, with))
        memcpy(out, with, sizeof with);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct intra_hf_named *)a)->name,
                  ((const struct intra_hf_named *)b)->name);
}

enum neb_status intra_hf_names_make(const struct intra_st *s, const struct intra_model *m,
                                    struct intra_hf_names *out) {
    int32_t n = s ? intra_st_count(s) : 0;
    *out = (struct intra_hf_names){0};
    if (!n)
        return NEB_OK;
    if (!(out->p = calloc((size_t)n, sizeof *out->p)))
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the names of %d tensors", n);
    for (out->n = 0; out->n < n; out->n++) {
        struct intra_hf_named *f = &out->p[out->n];
        f->t = intra_st_at(s, out->n);
        plain_name(m, f->t->name, f->name);
    }
    qsort(out->p, (size_t)n, sizeof *out->p, by_name);
    for (int32_t i = 1; i < n; i++)
        if (!strcmp(out->p[i - 1].name, out->p[i].name))
            return neb_fail(
                NEB_ERR_FORMAT,
                "%s: '%s' and '%s' are the same tensor of the model; remove the wrong one",
                intra_st_file(s, out->p[i].t), out->p[i - 1].t->name, out->p[i].t->name);
    return NEB_OK;
}

void intra_hf_names_free(struct intra_hf_names *names) {
    free(names->p);
    *names = (struct intra_hf_names){0};
}

static int name_of(const void *key, const void *f) {
    return strcmp(key, ((const struct intra_hf_named *)f)->name);
}
const struct intra_st_tensor *intra_hf_names_find(const struct intra_hf_names *names,
                                                  const char *name) {
    const struct intra_hf_named *f =
        names->n ? bsearch(name, names->p, (size_t)names->n, sizeof *names->p, name_of) : NULL;
    return f ? f->t : NULL;
}
