// SPDX-License-Identifier: Apache-2.0
// The list of tensors that an attached trainer or another agent sends: a text that is accepted is
// the only text of its tensors, and its units cover every element once.
#include "agent/exchange/manifest.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_units(const struct exchange_manifest *m) {
    struct exchange_group_size sizes[EXCHANGE_GROUPS_MAX];
    struct agent_unit *units;
    uint64_t want = 0, have = 0;
    int32_t n;
    NEB_ASSERT(exchange_manifest_sizes(m, sizes, EXCHANGE_GROUPS_MAX) == NEB_OK);
    for (int g = 0; g < EXCHANGE_GROUPS_MAX; g++)
        want += g == 1 ? 0 : sizes[g].parameters;
    NEB_ASSERT(exchange_manifest_units(m, 1u << 1, &units, &n) == NEB_OK);
    for (int32_t i = 0; i < n; i++) {
        NEB_ASSERT(agent_unit_size(&units[i]) > 0 &&
                   agent_unit_size(&units[i]) <= EXCHANGE_UNIT_MAX);
        have += agent_unit_size(&units[i]);
    }
    NEB_ASSERT(have == want);
    free(units);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct exchange_manifest *m;
    struct neb_buf text = {0};
    char line[1024];
    if (exchange_manifest_read(data, size, &m) != NEB_OK) {
        NEB_ASSERT(!m);
        return 0;
    }
    NEB_ASSERT(exchange_manifest_write(m, &text) == NEB_OK);
    NEB_ASSERT(text.len == size && memcmp(text.p, data, size) == 0);
    NEB_ASSERT(!exchange_manifest_differ(m, "a", m, "b", line, sizeof line));
    check_units(m);
    exchange_manifest_destroy(&m);
    neb_buf_free(&text);
    return 0;
}
