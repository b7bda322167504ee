// SPDX-License-Identifier: Apache-2.0
// Requests and answers of enrolment. The fields of an accepted request give the same request when
// they are written.
#include "security/enrol_wire.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void request(const uint8_t *data, size_t size) {
    struct sec_enrol_request q;
    struct neb_buf b = {0};
    if (sec_enrol_parse(data, size, &q) != NEB_OK)
        return;
    NEB_ASSERT(q.body == data && q.body_len + SEC_POP_BYTES + SEC_PROOF_BYTES == size);
    NEB_ASSERT(sec_enrol_body(&q, &b) == NEB_OK);
    NEB_ASSERT(b.len == q.body_len && !memcmp(b.p, data, b.len));
    neb_buf_free(&b);
}

static void answer(const uint8_t *data, size_t size) {
    struct sec_enrol_answer a;
    struct neb_buf b = {0};
    if (sec_enrol_answer_parse(data, size, &a) != NEB_OK)
        return;
    NEB_ASSERT(sec_enrol_answer_make(&a, &b) == NEB_OK);
    NEB_ASSERT(b.len == size + 4 && !memcmp(b.p + 4, data, size));
    neb_buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    request(data, size);
    answer(data, size);
    return 0;
}
