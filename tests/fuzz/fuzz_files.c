// SPDX-License-Identifier: Apache-2.0
// Edited or damaged files of an agent's home: members.json, federation/former.json,
// federation/forked, jobs/ID/shape.json, and job states in the ledger. Accepted content is within
// its limits.
#include "agent/daemon/jobs.h"
#include "agent/daemon/updates.h"
#include "security/members.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void members(const char *text, size_t n) {
    struct sec_members m;
    if (sec_members_parse(text, n, "members.json", &m) != NEB_OK)
        return;
    NEB_ASSERT(m.n <= NEB_MEMBERS_MAX);
    for (uint32_t i = 0; i < m.n; i++) {
        NEB_ASSERT(sec_name_valid(m.m[i].pub.name));
        NEB_ASSERT(!m.m[i].endpoint[0] || sec_endpoint_valid(m.m[i].endpoint));
        NEB_ASSERT(sec_members_by_name(&m, m.m[i].pub.name) == &m.m[i]); // names are unique
    }
}

static void former(const char *text, size_t n) {
    static struct sec_former all[SEC_FORMER_MAX];
    size_t k;
    if (sec_former_parse(text, n, "former.json", all, &k) != NEB_OK)
        NEB_ASSERT(k == 0);
    NEB_ASSERT(k <= SEC_FORMER_MAX);
    for (size_t i = 0; i < k; i++)
        NEB_ASSERT(sec_name_valid(all[i].name) && all[i].until > 0 &&
                   sec_former_find(all, k, all[i].name));
}

// Accepted evidence is in the file, byte for byte.
static void forks(const uint8_t *p, size_t n) {
    struct sec_forks f;
    const size_t magic = 8;
    if (sec_forks_parse(p, n, "forked", &f) != NEB_OK)
        NEB_ASSERT(f.n == 0);
    else
        NEB_ASSERT(f.n <= SEC_FORKS_MAX && n == magic + f.n * sizeof f.digest[0] &&
                   !memcmp(f.digest, p + magic, n - magic));
}

static void shape(const char *text, size_t n) {
    struct agent_update_shape x;
    json_t *said = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    for (uint32_t f = 1; f <= INTER_FRAGMENTS_MAX + 1; f++) {
        uint64_t sum = 0;
        if (!agent_shape_read(said, f, &x))
            continue;
        NEB_ASSERT(f <= INTER_FRAGMENTS_MAX && x.n == f && x.elements > 0);
        for (uint32_t i = 0; i < f; i++) {
            NEB_ASSERT(x.fragments[i].elements <= x.elements - sum);
            sum += x.fragments[i].elements;
        }
    }
    json_decref(said);
}

static void job(const char *text) { // a row: its specification and its state
    const uint8_t id[INTER_ID_BYTES] = {1, 2};
    struct agent_job_record r;
    agent_job_record_read(id, text, text, &r);
    NEB_ASSERT(strlen(r.home) < sizeof r.home && strlen(r.sig) < sizeof r.sig);
    NEB_ASSERT(strlen(r.state) < sizeof r.state && strlen(r.hex) == 2 * sizeof id);
    agent_job_record_clear(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    NEB_ASSERT(text);
    memcpy(text, data, size);
    text[size] = 0;
    members(text, size);
    former(text, size);
    forks(data, size);
    shape(text, size);
    job(text);
    free(text);
    return 0;
}
