// SPDX-License-Identifier: Apache-2.0
// Foreign SentencePiece models: a vocabulary that a corpus reuses, or one of a Hugging Face folder.
// An opened model encodes text into its own ids, and decodes any ids. The library is the system's,
// without sanitizers. Input: a model.
#include "intra/data/tokenizer.h"
#include "intra/hf/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MODEL_MAX = 1 << 16 };

static void use(const struct intra_tokenizer *t) {
    static const char *const texts[] = {"", "open the file", "na\xc3\xafve \xe2\x82\xac\n\tx",
                                        "\xff\xfe\x80"};
    const int32_t strange[] = {-1, 0, 1, 2, INT32_MAX};
    int32_t vocab = intra_tokenizer_vocab(t), *ids;
    char *text;
    size_t n;
    NEB_ASSERT(intra_tokenizer_bos(t) < vocab && intra_tokenizer_eos(t) < vocab);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (intra_tokenizer_encode(t, texts[i], strlen(texts[i]), &ids, &n) != NEB_OK)
            continue;
        for (size_t k = 0; k < n; k++)
            NEB_ASSERT(ids[k] >= 0 && ids[k] < vocab);
        if (intra_tokenizer_decode(t, ids, n, &text) == NEB_OK)
            free(text);
        free(ids);
    }
    if (intra_tokenizer_decode(t, strange, sizeof strange / sizeof *strange, &text) == NEB_OK)
        free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char path[64];
    static int fd = -1;
    struct intra_tokenizer *t = NULL;
    struct intra_hf_special ids;
    if (fd < 0) {
        fd = memfd_create("model", MFD_CLOEXEC);
        NEB_ASSERT(fd >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (size > MODEL_MAX)
        return 0;
    NEB_ASSERT(ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size);
    if (intra_tokenizer_open(path, &t) != NEB_OK)
        return 0;
    NEB_ASSERT(intra_hf_special_ids(path, &ids) == NEB_OK);
    NEB_ASSERT(ids.vocab == intra_tokenizer_vocab(t) && ids.bos == intra_tokenizer_bos(t) &&
               ids.eos == intra_tokenizer_eos(t) && ids.unk < ids.vocab && ids.pad < ids.vocab);
    use(t);
    intra_tokenizer_close(&t);
    return 0;
}
