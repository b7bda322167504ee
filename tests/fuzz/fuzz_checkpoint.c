// SPDX-License-Identifier: Apache-2.0
// Checkpoints from a hostile writer: opening and loading return a status, read nothing outside the
// file, and allocate no more than the file backs. Every input is tried as it is, and with a
// corrected digest over its index, which mutations cannot guess. tests/golden/test_golden.c writes
// the corpus.
#include "agent/base/sha256.h"
#include "intra/train/trainer.h"
#include "tests/testing.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HEADER_BYTES = 64, TRAILER_BYTES = 96 };

static void require(bool good) {
    if (!good)
        abort();
}

static void use_model(const struct intra_ckpt *c, size_t file_bytes) {
    struct intra_model *m = NULL;
    if (intra_model_load(c, &m) != NEB_OK) {
        require(!m);
        return;
    }
    size_t backed = 0;
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct intra_tensor *t = &m->tensors[i];
        const struct intra_ckpt_section *s = intra_ckpt_find(c, t->name);
        require(s && s->bytes == intra_tensor_size(t) * sizeof(float));
        require(s->bytes == 0 || memcmp(intra_param(m, t), intra_ckpt_data(c, s), s->bytes) == 0);
        backed += s->bytes;
    }
    // sections may overlap, but each is inside the file
    require(backed <= file_bytes * (size_t)m->n_tensors);
    require(m->params && !m->grads && intra_model_matmul_params(m) <= m->n_params);
    intra_model_destroy(&m);
}

// A trainer of the corpus's model takes a full state or refuses it.
static void use_state(const struct intra_ckpt *c) {
    static struct kern *K;
    static struct intra_trainer *t; // one per process: a restore overwrites it
    if (!K) {
        struct intra_trainer_config config =
            testing_small_trainer((struct intra_trainable){.mode = INTRA_TRAIN_FULL});
        require(kern_ref_create(&K) == NEB_OK && intra_trainer_create(&config, K, &t) == NEB_OK);
    }
    if (intra_trainer_restore(t, c) == NEB_OK)
        require(t->optim->t >= 0);
}

static void use(const uint8_t *p, size_t size) {
    static int fd = -1;
    static char path[64];
    struct intra_ckpt *c = NULL;
    if (fd < 0) {
        fd = memfd_create("checkpoint", MFD_CLOEXEC);
        require(fd >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    require(ftruncate(fd, 0) == 0 && pwrite(fd, p, size, 0) == (ssize_t)size);
    if (intra_ckpt_open(path, true, &c) == NEB_OK) // opening without verification must succeed, too
        intra_ckpt_close(&c);
    require(!c);
    if (intra_ckpt_open(path, false, &c) != NEB_OK) {
        require(!c);
        return;
    }
    const struct intra_ckpt_section *s = intra_ckpt_find(c, "model.config");
    require(!s || (s->at % 64 == 0 && s->at <= size && s->bytes <= size - s->at));
    use_model(c, size);
    use_state(c);
    intra_ckpt_close(&c);
}

static void make_digest_right(uint8_t *p, size_t size) {
    uint64_t at = 0;
    for (int i = 7; i >= 0; i--)
        at = at << 8 | p[size - TRAILER_BYTES + 16 + (size_t)i];
    if (at <= size - TRAILER_BYTES)
        neb_sha256(p + at, size - 32 - at, p + size - 32);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    use(data, size);
    if (size < HEADER_BYTES + TRAILER_BYTES)
        return 0;
    uint8_t *copy = malloc(size);
    require(copy != NULL);
    memcpy(copy, data, size);
    make_digest_right(copy, size);
    use(copy, size);
    free(copy);
    return 0;
}
