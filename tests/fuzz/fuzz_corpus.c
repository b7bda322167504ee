// SPDX-License-Identifier: Apache-2.0
// A foreign corpus folder: corpus.json and one shard. An opened corpus can be read to its last
// token, and every token is in the vocabulary. Input: u16 little-endian length of corpus.json;
// corpus.json; the shard, as "s.bin".
#include "agent/base/fs.h"
#include "intra/data/data.h"
#include "tests/corpus_token.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char dir[64];
static int json_fd, shard_fd;

static void clean(void) {
    char path[96];
    snprintf(path, sizeof path, "%s/corpus.json", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/s.bin", dir);
    unlink(path);
    rmdir(dir);
}

static int open_in(const char *name) {
    char path[96];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    NEB_ASSERT(fd >= 0);
    return fd;
}

static void set(int fd, const uint8_t *p, size_t n) {
    NEB_ASSERT(ftruncate(fd, 0) == 0 && pwrite(fd, p, n, 0) == (ssize_t)n);
}

static void read_all(const struct intra_corpus *c) {
    int32_t vocab = intra_corpus_vocab(c), tokens[9], targets[9];
    for (int32_t s = 0; s < intra_corpus_sources(c); s++)
        for (int k = 0; k < INTRA_SPLITS; k++) {
            uint64_t n = intra_corpus_tokens(c, s, (enum intra_split)k);
            uint64_t windows = intra_corpus_windows(c, s, (enum intra_split)k, 8);
            for (uint64_t at = 0; at < n && at < 256; at++)
                NEB_ASSERT(corpus_token(c, s, (enum intra_split)k, at) < vocab);
            if (n)
                NEB_ASSERT(corpus_token(c, s, (enum intra_split)k, n - 1) < vocab);
            if (windows)
                intra_corpus_window(c, s, (enum intra_split)k, 8, windows - 1, tokens, targets);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!dir[0]) {
        snprintf(dir, sizeof dir, "/dev/shm/nebula-fuzz-XXXXXX");
        NEB_ASSERT(mkdtemp(dir));
        atexit(clean);
        json_fd = open_in("corpus.json");
        shard_fd = open_in("s.bin");
    }
    if (size < 2)
        return 0;
    size_t n = (size_t)data[0] | (size_t)data[1] << 8;
    n = n < size - 2 ? n : size - 2;
    set(json_fd, data + 2, n);
    set(shard_fd, data + 2 + n, size - 2 - n);
    for (int verify = 0; verify < 2; verify++) {
        struct intra_corpus *c = NULL;
        if (intra_corpus_open(dir, verify, &c) == NEB_OK)
            read_all(c);
        else
            NEB_ASSERT(!c);
        intra_corpus_close(&c);
    }
    return 0;
}
