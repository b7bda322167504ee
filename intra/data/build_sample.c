// SPDX-License-Identifier: Apache-2.0
// Samples the lines that the vocabulary is trained on, equally many from each source.
//
// A line stays with probability share / lines, where `lines` is the number of lines of its source,
// which is known only at the end. Each line draws its random number when it is read. The bound
// share / lines only falls, so a line above the current bound is dropped at once, and lines that a
// later bound excludes are dropped then. About 2 x share lines are held, and the result is the same
// as if all lines were counted first.
#include "agent/base/array.h"
#include "intra/data/build_state.h"

#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES_MAX = 4000, PRUNE_LINES = 1024 };

void build_sample_start(struct build *b) {
    b->sample = (struct build_sample){.wanted = !b->spec->tokenizer[0],
                                      .rng = neb_rng_make(b->spec->seed, 17),
                                      .share = (double)b->spec->train_lines / b->spec->n_sources,
                                      .prune_at = PRUNE_LINES};
}

// Drops this source's lines whose number is not below the bound.
static void prune(struct build_sample *s, double bound) {
    size_t n = s->first, at = n ? s->p[n - 1].at + s->p[n - 1].len : 0;
    for (size_t i = s->first; i < s->n; i++) {
        struct build_line l = s->p[i];
        if (l.number >= bound)
            continue;
        memmove(s->text.p + at, s->text.p + l.at, l.len);
        l.at = at;
        at += l.len;
        s->p[n++] = l;
    }
    s->n = n;
    s->text.len = at;
    s->prune_at = s->first + 2 * (n - s->first) + PRUNE_LINES;
}

static enum neb_status keep(struct build_sample *s, double number, const char *p, size_t len) {
    struct build_line *more = neb_array_more(s->p, s->n, &s->cap, 4096, sizeof *more);
    if (!more)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a sample of over %zu lines", s->n);
    s->p = more;
    s->p[s->n++] = (struct build_line){number, s->text.len, len};
    neb_buf_add(&s->text, p, len);
    return neb_buf_check(&s->text);
}

static enum neb_status lines_of(struct build_sample *s, double bound, const char *text) {
    for (const char *p = text; p;) {
        const char *end = strchr(p, '\n');
        size_t len = end ? (size_t)(end - p) : strlen(p);
        if (len > 0 && len < LINE_BYTES_MAX) {
            double number = neb_rng_unit(&s->rng);
            if (number < bound)
                NEB_TRY(keep(s, number, p, len));
        }
        p = end ? end + 1 : NULL;
    }
    return NEB_OK;
}

enum neb_status build_sample_doc(struct build_sample *s, const struct doc *d) {
    if (!s->wanted)
        return NEB_OK;
    for (const char *p = d->text; p; p = (p = strchr(p, '\n')) ? p + 1 : NULL)
        s->lines++;
    s->lines += d->target != NULL;
    double bound = s->share / (double)s->lines;
    NEB_TRY(lines_of(s, bound, d->text));
    NEB_TRY(lines_of(s, bound, d->target));
    if (s->n > s->prune_at)
        prune(s, bound);
    return NEB_OK;
}

void build_sample_source_end(struct build_sample *s) {
    if (s->lines)
        prune(s, s->share / (double)s->lines);
    s->lines = 0;
    s->first = s->n;
    s->prune_at = s->first + PRUNE_LINES;
}

enum neb_status build_sample_write(struct build_sample *s, const char *path) {
    FILE *f = fopen(path, "w");
    if (!f)
        return neb_fail_errno("cannot write %s", path);
    for (size_t i = 0; i < s->n; i++) {
        fwrite(s->text.p + s->p[i].at, 1, s->p[i].len, f);
        fputc('\n', f);
    }
    build_sample_free(s);
    return neb_fs_close(f, path);
}

void build_sample_free(struct build_sample *s) {
    free(s->p);
    neb_buf_free(&s->text);
    *s = (struct build_sample){0};
}
