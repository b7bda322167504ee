// SPDX-License-Identifier: Apache-2.0
#include "agent/job/id.h"
#include "agent/base/bytes.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static const char context[] = "nebula job id v1";

enum neb_status agent_job_id(const uint8_t federation[SEC_FEDERATION_BYTES], const char *submitter,
                             const json_t *spec, uint8_t id[AGENT_JOB_ID_BYTES]) {
    struct neb_buf b = {0};
    json_t *shared = agent_job_shared(spec);
    char *text = json_dumps(shared, JSON_COMPACT | JSON_SORT_KEYS);
    _Static_assert(AGENT_JOB_ID_BYTES == NEB_SHA256_BYTES, "an id is a whole digest");
    json_decref(shared);
    if (!text)
        return neb_fail(NEB_ERR_NOMEM, "out of memory computing the id of a job");
    neb_buf_add(&b, context, sizeof context);
    neb_buf_add(&b, federation, SEC_FEDERATION_BYTES);
    neb_buf_str(&b, submitter);
    neb_buf_add(&b, text, strlen(text));
    free(text);
    enum neb_status st = neb_buf_check(&b);
    if (st == NEB_OK)
        neb_sha256(b.p, b.len, id);
    neb_buf_free(&b);
    return st;
}

enum neb_status agent_job_draw_nonce(struct agent_job *job) {
    uint8_t nonce[AGENT_NONCE_BYTES];
    if (getrandom(nonce, sizeof nonce, 0) != sizeof nonce)
        return neb_fail_errno("cannot draw the nonce of a job");
    neb_hex(nonce, sizeof nonce, job->nonce);
    return NEB_OK;
}
