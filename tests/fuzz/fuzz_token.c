// SPDX-License-Identifier: Apache-2.0
// Invitation tokens that a user pastes: an accepted one is written back unchanged.
#include "security/token.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct sec_token t;
    char again[SEC_TOKEN_TEXT];
    char *text = malloc(size + 1);
    NEB_ASSERT(text);
    memcpy(text, data, size);
    text[size] = 0;
    if (sec_token_parse(text, &t) == NEB_OK) {
        NEB_ASSERT(sec_token_format(&t, again) == NEB_OK);
        NEB_ASSERT(!strcmp(again, text));
    }
    free(text);
    return 0;
}
