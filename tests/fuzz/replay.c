// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target without libFuzzer, as a regression test under any compiler: every file of a
// corpus folder, then seeded mutations of each. Usage: fuzz_X CORPUS_DIR [MUTATIONS]
#include "agent/base/fs.h"
#include "agent/base/rng.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t mutate(struct neb_rng *r, uint8_t *p, size_t n, size_t cap) {
    uint64_t edits = 1 + neb_rng_below(r, 4);
    for (uint64_t i = 0; i < edits; i++) {
        uint64_t kind = neb_rng_below(r, 4);
        if (kind == 0 && n > 0)
            p[neb_rng_below(r, n)] = (uint8_t)neb_rng_u64(r);
        else if (kind == 1 && n > 0)
            p[neb_rng_below(r, n)] ^= (uint8_t)(1u << neb_rng_below(r, 8));
        else if (kind == 2 && n > 0)
            n = neb_rng_below(r, n + 1);
        else if (n < cap)
            p[n++] = (uint8_t)neb_rng_u64(r);
    }
    return n;
}

int main(int argc, char **argv) {
    if (argc < 2)
        return 2;
    long mutations = argc > 2 ? strtol(argv[2], NULL, 10) : 2000;
    struct neb_rng rng = neb_rng_make(1, 2);
    DIR *dir = opendir(argv[1]);
    long files = 0;
    struct dirent *e;
    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    while (dir && (e = readdir(dir))) {
        char path[NEB_PATH_MAX];
        struct neb_buf b = {0};
        if (e->d_name[0] == '.' || neb_path(path, sizeof path, argv[1], e->d_name) != NEB_OK ||
            neb_fs_read(path, 1 << 24, &b) != NEB_OK)
            continue;
        LLVMFuzzerTestOneInput(b.p, b.len);
        size_t cap = b.len + 64;
        for (long i = 0; i < mutations; i++) {
            uint8_t *copy = malloc(cap); // exact size for the sanitizers
            memcpy(copy, b.p, b.len);
            size_t n = mutate(&rng, copy, b.len, cap);
            uint8_t *exact = malloc(n ? n : 1);
            memcpy(exact, copy, n);
            LLVMFuzzerTestOneInput(exact, n);
            free(exact);
            free(copy);
        }
        neb_buf_free(&b);
        files++;
    }
    if (dir)
        closedir(dir);
    printf("%ld files, %ld mutations of each\n", files, mutations);
    return files ? 0 : 1;
}
