// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/probe.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FIT_STEPS = 400, PAGE_BYTES_MAX = 8 << 20 };
static const double fit_rate = 0.02;

void agent_probe_set_free(struct agent_probe_set *s) {
    free(s->labels);
    free(s->x);
    *s = (struct agent_probe_set){0};
}

// ---- examples -----------------------------------------------------------------------------------

// "open.2.txt" gives name "open", section "2". Pages of a section such as 3pm count as 3.
static bool parse_name(const char *file, char name[256], char section[AGENT_PROBE_LABEL_MAX]) {
    size_t n = strlen(file);
    const char *dot;
    if (n < 7 || n >= 256 || strcmp(file + n - 4, ".txt"))
        return false;
    memcpy(name, file, n - 4);
    name[n - 4] = 0;
    if (!(dot = strrchr(name, '.')) || dot[1] < '1' || dot[1] > '9')
        return false;
    snprintf(section, AGENT_PROBE_LABEL_MAX, "%c", dot[1]);
    name[dot - name] = 0;
    return true;
}

// half of all names, by a hash: the same half in all languages
static int half_of(const char *name) {
    uint64_t h = 0xcbf29ce484222325ull;
    for (; *name; name++)
        h = (h ^ (uint8_t)*name) * 0x100000001b3ull;
    return (int)(h >> 32 & 1);
}

static int class_of(struct agent_probe *p, const char *section, bool fixed) {
    for (int i = 0; i < p->n_classes; i++)
        if (!strcmp(p->classes[i], section))
            return i;
    if (fixed || p->n_classes == AGENT_PROBE_CLASSES_MAX)
        return -1;
    memcpy(p->classes[p->n_classes], section, AGENT_PROBE_LABEL_MAX);
    return p->n_classes++;
}

static enum neb_status add_example(struct agent_probe *p, struct intra_device *passes,
                                   const int32_t *ids, int32_t n, int32_t label,
                                   struct agent_probe_set *s) {
    size_t d = (size_t)p->model->c.d_model;
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 256;
        float *x = realloc(s->x, cap * d * sizeof *x);
        s->x = x ? x : s->x;
        int32_t *l = x ? realloc(s->labels, cap * sizeof *l) : NULL;
        s->labels = l ? l : s->labels;
        if (!x || !l)
            return neb_fail(NEB_ERR_NOMEM, "out of memory for %zu examples", cap);
        s->cap = cap;
    }
    NEB_TRY(intra_device_pass(passes, &(struct intra_batch){.tokens = ids, .B = 1, .T = n}, 0, NULL,
                              NULL));
    const float *h = intra_device_hidden(passes);
    float *x = s->x + s->n * d;
    for (size_t k = 0; k < d; k++) {
        double sum = 0;
        for (int32_t i = 0; i < n; i++)
            sum += (double)h[(size_t)i * d + k];
        x[k] = (float)(sum / n);
    }
    s->labels[s->n++] = label;
    return NEB_OK;
}

// Paragraphs are separated by blank lines.
static enum neb_status add_page(struct agent_probe *p, struct intra_device *passes,
                                const char *text, size_t len, int32_t label,
                                struct agent_probe_set *s) {
    int32_t taken = 0;
    for (size_t at = 0; at < len && taken < p->most_a_page;) {
        const char *gap = memmem(text + at, len - at, "\n\n", 2);
        size_t end = gap ? (size_t)(gap - text) : len, n_ids;
        int32_t *ids = NULL;
        NEB_TRY(intra_tokenizer_encode(p->tokenizer, text + at, end - at, &ids, &n_ids));
        enum neb_status st = NEB_OK;
        if (n_ids >= (size_t)p->min_tokens) {
            int32_t n = n_ids < (size_t)p->max_tokens ? (int32_t)n_ids : p->max_tokens;
            st = add_example(p, passes, ids, n, label, s);
            taken++;
        }
        free(ids);
        NEB_TRY(st);
        at = end + 2;
    }
    return NEB_OK;
}

static int by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

enum neb_status agent_probe_read(struct agent_probe *p, const char *dir, int half, bool fixed,
                                 struct agent_probe_set *out) {
    struct dirent **list = NULL;
    struct intra_device *passes = NULL;
    struct neb_buf page = {0};
    enum neb_status st = NEB_OK;
    int n = scandir(dir, &list, NULL, by_name); // the same order on every machine
    if (n < 0)
        return neb_fail_errno("cannot read the folder %s", dir);
    NEB_TRY_GOTO(intra_device_on_host(p->K, p->model, 1, p->max_tokens, false, false, &passes),
                 out);
    for (int i = 0; i < n && st == NEB_OK; i++) {
        char name[256], section[AGENT_PROBE_LABEL_MAX], path[NEB_PATH_MAX];
        int label;
        if (!parse_name(list[i]->d_name, name, section) || half_of(name) != half ||
            (label = class_of(p, section, fixed)) < 0)
            continue;
        NEB_TRY_GOTO(neb_path(path, sizeof path, dir, list[i]->d_name), out);
        NEB_TRY_GOTO(neb_fs_read(path, PAGE_BYTES_MAX, &page), out);
        st = add_page(p, passes, (const char *)page.p, page.len, label, out);
    }
    if (st == NEB_OK && !out->n)
        st = neb_fail(NEB_ERR_NOT_FOUND,
                      "%s has no files NAME.SECTION.txt with paragraphs of %d tokens", dir,
                      p->min_tokens);
out:
    for (int i = 0; i < n; i++)
        free(list[i]);
    free(list);
    neb_buf_free(&page);
    intra_device_destroy(&passes);
    return st;
}

// ---- the layer ----------------------------------------------------------------------------------

struct fit {
    int d, c;
    double *mean, *scale;  // (d) of the training set
    double *w, *g, *m, *v; // (c, d + 1) weights with a bias, gradient, moments
    double *z;             // (c)
};

// Scores of one example, in f->z.
static void scores(struct fit *f, const float *x) {
    for (int k = 0; k < f->c; k++) {
        const double *w = f->w + (size_t)k * (f->d + 1);
        f->z[k] = w[f->d];
        for (int i = 0; i < f->d; i++)
            f->z[k] += w[i] * ((double)x[i] - f->mean[i]) * f->scale[i];
    }
}

static void standardise(struct fit *f, const struct agent_probe_set *s) {
    for (int i = 0; i < f->d; i++) {
        double sum = 0, sq = 0;
        for (size_t n = 0; n < s->n; n++)
            sum += (double)s->x[n * (size_t)f->d + i];
        f->mean[i] = sum / (double)s->n;
        for (size_t n = 0; n < s->n; n++) {
            double x = (double)s->x[n * (size_t)f->d + i] - f->mean[i];
            sq += x * x;
        }
        f->scale[i] = sq > 0 ? 1 / sqrt(sq / (double)s->n) : 0;
    }
}

static void gradient(struct fit *f, const struct agent_probe_set *s, double decay) {
    size_t row = (size_t)f->d + 1;
    for (size_t k = 0; k < (size_t)f->c * row; k++)
        f->g[k] = k % row == (size_t)f->d ? 0 : decay * f->w[k];
    for (size_t n = 0; n < s->n; n++) {
        const float *x = s->x + n * (size_t)f->d;
        double max, sum = 0;
        scores(f, x);
        max = f->z[0];
        for (int k = 1; k < f->c; k++)
            max = f->z[k] > max ? f->z[k] : max;
        for (int k = 0; k < f->c; k++)
            sum += f->z[k] = exp(f->z[k] - max);
        for (int k = 0; k < f->c; k++) {
            double e = (f->z[k] / sum - (s->labels[n] == k)) / (double)s->n,
                   *g = f->g + (size_t)k * row;
            for (int i = 0; i < f->d; i++)
                g[i] += e * ((double)x[i] - f->mean[i]) * f->scale[i];
            g[f->d] += e;
        }
    }
}

static void adam(struct fit *f, int t) {
    size_t n = (size_t)f->c * ((size_t)f->d + 1);
    double rate = fit_rate * 0.5 * (1 + cos(3.14159265358979 * t / FIT_STEPS)) *
                  sqrt(1 - pow(0.999, t)) / (1 - pow(0.9, t));
    for (size_t k = 0; k < n; k++) {
        f->m[k] = 0.9 * f->m[k] + 0.1 * f->g[k];
        f->v[k] = 0.999 * f->v[k] + 0.001 * f->g[k] * f->g[k];
        f->w[k] -= rate * f->m[k] / (sqrt(f->v[k]) + 1e-9);
    }
}

static struct agent_probe_result test(struct fit *f, const struct agent_probe_set *s,
                                      int majority) {
    size_t right[AGENT_PROBE_CLASSES_MAX] = {0}, all[AGENT_PROBE_CLASSES_MAX] = {0}, total = 0;
    struct agent_probe_result r = {0};
    int present = 0;
    for (size_t n = 0; n < s->n; n++) {
        int best = 0;
        scores(f, s->x + n * (size_t)f->d);
        for (int k = 1; k < f->c; k++)
            best = f->z[k] > f->z[best] ? k : best;
        all[s->labels[n]]++;
        right[s->labels[n]] += best == s->labels[n];
        total += best == s->labels[n];
    }
    for (int k = 0; k < f->c; k++)
        if (all[k]) {
            r.balanced += (double)right[k] / (double)all[k];
            present++;
        }
    r.balanced /= present ? present : 1;
    r.accuracy = s->n ? (double)total / (double)s->n : NAN;
    r.majority = s->n ? (double)all[majority] / (double)s->n : NAN;
    return r;
}

enum neb_status agent_probe_fit(const struct agent_probe *p, const struct agent_probe_set *train,
                                const struct agent_probe_set *tests, int n_tests, double decay,
                                struct agent_probe_result *results) {
    struct fit f = {.d = p->model->c.d_model, .c = p->n_classes};
    size_t d = (size_t)f.d, n = (size_t)f.c * (d + 1), counts[AGENT_PROBE_CLASSES_MAX] = {0};
    int majority = 0;
    double *all = calloc(2 * d + 4 * n + (size_t)f.c, sizeof *all);
    if (!all)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a probe");
    f.mean = all;
    f.scale = f.mean + d;
    f.w = f.scale + d;
    f.g = f.w + n;
    f.m = f.g + n;
    f.v = f.m + n;
    f.z = f.v + n;
    standardise(&f, train);
    for (int t = 1; t <= FIT_STEPS; t++) {
        gradient(&f, train, decay);
        adam(&f, t);
    }
    for (size_t i = 0; i < train->n; i++)
        counts[train->labels[i]]++;
    for (int k = 1; k < f.c; k++)
        majority = counts[k] > counts[majority] ? k : majority;
    for (int i = 0; i < n_tests; i++)
        results[i] = test(&f, &tests[i], majority);
    free(all);
    return NEB_OK;
}
