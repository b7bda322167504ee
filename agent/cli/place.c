// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/place.h"
#include "agent/base/log.h"
#include "agent/base/number.h"
#include "agent/job/model_init.h"
#include "agent/proc/child.h"
#include "agent/proc/seal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool agent_place_is_device(const char *text, void *options) {
    (void)options;
    return !strcmp(text, "cpu") || !strcmp(text, "cuda") || !strcmp(text, "auto");
}

bool agent_place_given(const struct agent_place *p) {
    return p->device || p->precision || p->dp * p->pp * p->tp > 1;
}

enum neb_status agent_place_ranks(const struct agent_place *p) {
    enum { WORDS = 128 }; // of the command line
    char program[NEB_PATH_MAX], number[16], *word = NULL, *argv[WORDS + 4] = {NULL};
    const struct intra_mesh_config mesh = {p->dp, p->pp, p->tp};
    size_t cap = 0, n = 0;
    if (!agent_decoder_needs_ranks(&mesh))
        return NEB_OK;
    NEB_TRY(agent_self_path(program, sizeof program));
    snprintf(number, sizeof number, "%d", p->dp * p->pp * p->tp);
    FILE *f = fopen("/proc/self/cmdline", "r");
    for (; f && n < WORDS && getdelim(&word, &cap, 0, f) > 0; word = NULL, cap = 0) {
        argv[n++] = word;
        if (n > 1)
            continue;
        argv[n++] = "ranks";
        argv[n++] = number;
        argv[n++] = program;
    }
    if (f)
        fclose(f);
    if (n > 4 && n < WORDS)
        execv(program, argv); // frees the words
    return neb_fail_errno("cannot start ranks");
}

enum neb_status agent_place_take(const struct agent_options *common, const struct agent_place *p,
                                 bool merge, struct agent_placed *out) {
    NEB_TRY(agent_seal_option(common->seal_key, &out->vault));
    NEB_TRY(agent_checkpoint_file(sec_vault_of(out->vault), common->args[0], out->file,
                                  sizeof out->file));
    bool bf16 = p->precision && !strcmp(p->precision, "bf16");
    out->o = (struct agent_decoder_options){.checkpoint = out->file,
                                            .vault = sec_vault_of(out->vault),
                                            .device = p->device,
                                            .precision = bf16 ? KERN_BF16 : KERN_F32,
                                            .mesh = {p->dp, p->pp, p->tp},
                                            .merge = merge};
    return NEB_OK;
}

// Reads the id at *p and moves *p behind it. False: there is no id.
static bool next_id(const char **p, uint64_t max, int32_t *out) {
    char digits[16];
    uint64_t v;
    size_t n = strcspn(*p, " ,");
    if (n >= sizeof digits)
        return false;
    memcpy(digits, *p, n);
    digits[n] = 0;
    if (!neb_number_whole(digits, 0, max, &v))
        return false;
    *out = (int32_t)v;
    *p += n;
    return true;
}

bool agent_ids_are(const char *text, void *options) {
    (void)options;
    const char *p = text + strspn(text, " ,");
    bool any = *p;
    for (int32_t id; *p; p += strspn(p, " ,"))
        if (!next_id(&p, INT32_MAX, &id))
            return false;
    return any;
}

enum neb_status agent_ids_parse(const char *text, int32_t vocab, int32_t **ids, size_t *n) {
    size_t cap = strlen(text) / 2 + 1;
    *n = 0;
    if (!(*ids = calloc(cap, sizeof **ids)))
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %zu tokens", cap);
    for (const char *p = text + strspn(text, " ,"); *p; p += strspn(p, " ,")) {
        if (!next_id(&p, (uint64_t)vocab - 1, &(*ids)[*n]))
            return neb_fail(NEB_ERR_INVALID,
                            "--ids: \"%.20s\" does not begin with a token id from 0 to %d", p,
                            vocab - 1);
        ++*n;
    }
    return *n ? NEB_OK : neb_fail(NEB_ERR_INVALID, "--ids: at least one token id is needed");
}
