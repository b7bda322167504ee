// SPDX-License-Identifier: Apache-2.0
// Texts and files that name keys: output of `nebula id` on another site, and seal.json. An accepted
// public line is written back unchanged; a path to a key file is complete or refused.
#include "agent/base/fs.h"
#include "agent/proc/seal.h"
#include "security/identity.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[NEB_PATH_MAX], back[1024];
    struct sec_public id;
    char *text = malloc(size + 1);
    NEB_ASSERT(text);
    memcpy(text, data, size);
    text[size] = 0;
    if (sec_public_parse(text, &id) == NEB_OK) {
        NEB_ASSERT(sec_name_valid(id.name));
        NEB_ASSERT(sec_public_format(&id, back, sizeof back) == NEB_OK);
        NEB_ASSERT(!strncmp(back, text, strlen(back)));
    }
    if (agent_seal_settings_parse(text, size, "seal.json", path, sizeof path) == NEB_OK)
        NEB_ASSERT(strlen(path) > 0 && strlen(path) < sizeof path);
    free(text);
    return 0;
}
