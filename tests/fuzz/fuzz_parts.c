// SPDX-License-Identifier: Apache-2.0
// A checkpoint of several files from a hostile writer: opening and loading return a status. Digests
// over the indexes are corrected, since mutations cannot guess them. Input: u32 little-endian
// length of the file; the file; the part, under the name from the file's token.
#include "agent/base/sha256.h"
#include "intra/ckpt/checkpoint_parts.h"
#include "intra/model/model.h"
#include "intra/train/trainer.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEADER_BYTES = 64, TRAILER_BYTES = 96 };
static char dir[64], file[96], part[NEB_PATH_MAX];
static const uint64_t token = 0x7f3a90c2d1e45b68;

static void clean(void) {
    unlink(file);
    unlink(part);
    rmdir(dir);
}

static void put(const char *path, const uint8_t *p, size_t n) {
    uint8_t *copy = malloc(n + 1);
    NEB_ASSERT(copy);
    memcpy(copy, p, n);
    if (n >= HEADER_BYTES + TRAILER_BYTES) {
        uint64_t at = 0;
        for (int i = 7; i >= 0; i--)
            at = at << 8 | copy[n - TRAILER_BYTES + 16 + (size_t)i];
        if (at <= n - TRAILER_BYTES)
            neb_sha256(copy + at, n - 32 - at, copy + n - 32);
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    NEB_ASSERT(fd >= 0 && write(fd, copy, n) == (ssize_t)n);
    close(fd);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!dir[0]) {
        snprintf(dir, sizeof dir, "/dev/shm/nebula-fuzz-XXXXXX");
        NEB_ASSERT(mkdtemp(dir));
        snprintf(file, sizeof file, "%s/step-000000000001.ckpt", dir);
        NEB_ASSERT(intra_part_path(file, token, 1, part, sizeof part) == NEB_OK);
        atexit(clean);
    }
    if (size < 4)
        return 0;
    size_t n =
        (size_t)data[0] | (size_t)data[1] << 8 | (size_t)data[2] << 16 | (size_t)data[3] << 24;
    n = n < size - 4 ? n : size - 4;
    put(file, data + 4, n);
    put(part, data + 4 + n, size - 4 - n);
    for (int verify = 0; verify < 2; verify++) {
        struct intra_ckpt *c = NULL;
        struct intra_model *m = NULL;
        if (intra_ckpt_open(file, verify, &c) != NEB_OK) {
            NEB_ASSERT(!c);
            continue;
        }
        if (intra_model_load(c, &m) == NEB_OK)
            for (int32_t i = 0; i < m->n_tensors; i++) {
                const struct intra_tensor *t = &m->tensors[i];
                const struct intra_ckpt_section *s = intra_ckpt_find(c, t->name);
                NEB_ASSERT(s && !memcmp(intra_param(m, t), intra_ckpt_data(c, s), s->bytes));
            }
        intra_model_destroy(&m);
        intra_ckpt_close(&c);
    }
    return 0;
}
