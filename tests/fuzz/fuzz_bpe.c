// SPDX-License-Identifier: Apache-2.0
// A foreign tokenizer.json, and text. An opened tokenizer encodes any text into its own ids, or
// reports that its expressions do not end, and decodes any ids into UTF-8. Input: the file, a NUL
// (which JSON never has), the text.
#include "intra/data/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_MAX = 1 << 15 };

static void use(const struct intra_tokenizer *t, const char *text, size_t len) {
    const int32_t strange[] = {-1, 0, 1, 2, 255, INT32_MAX};
    int32_t vocab = intra_tokenizer_vocab(t), *ids;
    char *back;
    size_t n;
    NEB_ASSERT(intra_tokenizer_bos(t) < vocab && intra_tokenizer_eos(t) < vocab);
    enum neb_status st = intra_tokenizer_encode(t, text, len, &ids, &n);
    NEB_ASSERT(st == NEB_OK || st == NEB_ERR_LIMIT || st == NEB_ERR_NOMEM);
    if (st == NEB_OK) {
        for (size_t i = 0; i < n; i++)
            NEB_ASSERT(ids[i] >= 0 && ids[i] < vocab);
        ids[n] = 0; // leaves room for an EOS
        NEB_ASSERT(intra_tokenizer_decode(t, ids, n, &back) == NEB_OK);
        free(back);
        free(ids);
    }
    NEB_ASSERT(intra_tokenizer_decode(t, strange, sizeof strange / sizeof *strange, &back) ==
               NEB_OK);
    free(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char text[] = "He's 12 years,  na\xc3\xafve e\xcc\x81\xcc\xa3\r\n\t\xe2\x82\xac";
    static char path[64];
    static int fd = -1;
    struct intra_tokenizer *t = NULL;
    if (fd < 0) {
        fd = memfd_create("tokenizer.json", MFD_CLOEXEC);
        NEB_ASSERT(fd >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (size == 0 || size > INPUT_MAX || *data != '{')
        return 0;
    const uint8_t *nul = memchr(data, 0, size);
    size_t json = nul ? (size_t)(nul - data) : size;
    NEB_ASSERT(ftruncate(fd, 0) == 0 && pwrite(fd, data, json, 0) == (ssize_t)json);
    if (intra_tokenizer_open(path, &t) != NEB_OK)
        return 0;
    use(t, text, sizeof text - 1);
    if (nul)
        use(t, (const char *)nul + 1, size - json - 1);
    intra_tokenizer_close(&t);
    return 0;
}
