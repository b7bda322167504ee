// SPDX-License-Identifier: Apache-2.0
// Recipes of nebula data build: no crash, and an accepted recipe is within its limits.
#include "agent/cli/cmd_data.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool ends(const char *text, size_t cap) { return memchr(text, 0, cap) != NULL; }

static void check_source(const struct intra_source_spec *s) {
    NEB_ASSERT(ends(s->name, sizeof s->name) && s->name[0] && !strpbrk(s->name, "/."));
    NEB_ASSERT(ends(s->path, sizeof s->path) && s->path[0] == '/');
    NEB_ASSERT(ends(s->field, sizeof s->field) && (s->format != INTRA_JSONL || s->field[0]));
    NEB_ASSERT(s->format >= INTRA_TEXT && s->format <= INTRA_PO);
    NEB_ASSERT(s->column >= 0 && s->target_column >= 0);
    NEB_ASSERT(ends(s->tag, sizeof s->tag) && !strchr(s->tag, ',')); // tags are joined by commas
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct intra_build_spec s; // large
    static char path[64];
    static int fd = -1;
    if (fd < 0) {
        fd = memfd_create("recipe", MFD_CLOEXEC);
        NEB_ASSERT(fd >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    NEB_ASSERT(ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size);
    if (agent_recipe_load(path, &s) != NEB_OK)
        return 0;
    NEB_ASSERT(ends(s.name, sizeof s.name) && ends(s.tokenizer, sizeof s.tokenizer));
    NEB_ASSERT(s.vocab >= 300 && s.vocab <= 1 << 20);
    NEB_ASSERT(!strcmp(s.type, "unigram") || !strcmp(s.type, "bpe"));
    NEB_ASSERT(s.character_coverage >= 0.9 && s.character_coverage <= 1);
    NEB_ASSERT(s.train_lines >= 100 && s.threads >= 0 && s.threads <= 256);
    NEB_ASSERT(s.holdout_per_mille + s.test_per_mille < 1000);
    NEB_ASSERT(s.n_sources >= 1 && s.n_sources <= INTRA_SOURCES_MAX);
    for (int32_t i = 0; i < s.n_sources; i++) {
        check_source(&s.sources[i]);
        for (int32_t j = 0; j < i; j++)
            NEB_ASSERT(strcmp(s.sources[i].name, s.sources[j].name) != 0);
    }
    return 0;
}
