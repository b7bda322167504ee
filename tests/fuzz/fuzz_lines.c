// SPDX-License-Identifier: Apache-2.0
// Text files of corpora: JSONL, TSV, TSV with a translation, paragraphs. Documents are no longer
// than the input and end at their stated end; a second reading finds the same ones. Input: a byte
// for the format, then the file.
#include "intra/data/build_state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void progress(void *user, const char *stage, uint64_t done, uint64_t total) {
    (void)user, (void)stage;
    NEB_ASSERT(done <= total);
}

static size_t input_bytes;

static enum neb_status first(struct build *b) {
    for (size_t i = 0; i < b->chunk.n; i++) {
        const struct doc *d = &b->chunk.docs[i];
        if (!d->len)
            continue;
        NEB_ASSERT(d->st == NEB_OK && d->len <= input_bytes && d->text[d->len] == 0);
        NEB_ASSERT(!d->target || strlen(d->target) <= input_bytes);
        NEB_ASSERT(!!d->target == b->spec->sources[0].parallel);
    }
    return build_note_chunk(b);
}

static enum neb_status second(struct build *b) {
    NEB_ASSERT(build_recall_chunk(b) == NEB_OK);
    return NEB_OK;
}

static void start(struct build *b) {
    NEB_ASSERT(neb_sha256_create(&b->inputs) == NEB_OK && kern_pool_create(1, &b->pool) == NEB_OK &&
               build_chunk_create(b) == NEB_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int fd = -1;
    static struct intra_build_spec spec = {.train_lines = 3};
    static struct build b;
    struct intra_source_spec *s = &spec.sources[0];
    if (fd < 0) {
        fd = memfd_create("lines", MFD_CLOEXEC);
        NEB_ASSERT(fd >= 0);
        spec.n_sources = 1;
        snprintf(s->name, sizeof s->name, "fuzz");
        snprintf(s->path, sizeof s->path, "/proc/self/fd/%d", fd);
        snprintf(s->field, sizeof s->field, "text");
    }
    if (!size)
        return 0;
    static const enum intra_format formats[] = {INTRA_JSONL, INTRA_TSV, INTRA_TSV, INTRA_TEXT};
    s->format = formats[data[0] % 4];
    s->column = 1;
    s->parallel = data[0] % 4 == 2;
    s->target_column = 0;
    s->reverse = data[0] & 4;
    NEB_ASSERT(ftruncate(fd, 0) == 0 && pwrite(fd, data + 1, size - 1, 0) == (ssize_t)(size - 1));
    input_bytes = size;
    if (!b.spec) {
        b.spec = &spec;
        b.progress = progress;
        start(&b);
    }
    b.again = false;
    b.done = b.total = 0;
    b.take_chunk = first;
    build_sample_start(&b);
    if (build_read_source(&b, 0) == NEB_OK && build_note_source_end(&b) == NEB_OK) {
        b.again = true;
        b.take_chunk = second;
        NEB_ASSERT(build_read_source(&b, 0) == NEB_OK && build_recall_source_end(&b) == NEB_OK);
    }
    b.chunk.n = 0; // a failed reading leaves a partial chunk
    neb_buf_clear(&b.chunk.text);
    build_notes_free(&b.notes);
    build_sample_free(&b.sample);
    return 0;
}
