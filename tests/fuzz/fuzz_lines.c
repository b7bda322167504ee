// Text from anywhere, as a corpus is built of it: JSONL, TSV, TSV with a translation, paragraphs. What is taken is what was there: documents
// are no longer than the input, and end where they say.
//
// Input: a byte that chooses the format, then the file.
#include "intra/build_state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void progress(void *user, const char *stage, uint64_t done, uint64_t total) {
    (void)user, (void)stage;
    NEB_ASSERT(done <= total);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int fd = -1;
    static struct intra_build_spec spec;
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
    struct build b = {.spec = &spec, .progress = progress};
    NEB_ASSERT(neb_sha256_create(&b.inputs) == NEB_OK);
    (void)!build_read_sources(&b);
    for (size_t i = 0; i < b.docs.n; i++) {
        const struct doc *d = &b.docs.p[i];
        NEB_ASSERT(d->len > 0 && d->len <= size && d->text[d->len] == 0);
        NEB_ASSERT(!d->target || strlen(d->target) <= size);
        NEB_ASSERT(!!d->target == s->parallel);
        free(d->text);
        free(d->target);
    }
    free(b.docs.p);
    neb_sha256_destroy(&b.inputs);
    return 0;
}
