// SPDX-License-Identifier: Apache-2.0
#include "agent/job/init_digest.h"
#include "intra/train/trainer.h"

#include <stdio.h>
#include <string.h>

bool agent_init_is_clear(const char *path) {
    char magic[sizeof INTRA_CKPT_MAGIC] = "";
    FILE *f = fopen(path, "rb");
    bool clear = f && fread(magic, sizeof magic, 1, f) == 1 &&
                 !memcmp(magic, INTRA_CKPT_MAGIC, sizeof magic);
    if (f)
        fclose(f);
    return clear;
}

enum neb_status agent_job_init_digest(struct agent_job *job) {
    uint8_t sha[NEB_SHA256_BYTES];
    struct intra_ckpt *c = NULL;
    if (!agent_init_is_clear(job->init_from))
        return NEB_OK; // the code that reads the file reports the error
    NEB_TRY(intra_ckpt_open(job->init_from, false, &c));
    enum neb_status st = intra_model_params_digest(c, sha);
    intra_ckpt_close(&c);
    NEB_TRY(st);
    neb_hex(sha, sizeof sha, job->init_sha256);
    return NEB_OK;
}

enum neb_status agent_job_init_same(const struct agent_job *job, int cluster,
                                    const struct intra_ckpt *init) {
    uint8_t sha[NEB_SHA256_BYTES];
    char hex[2 * sizeof sha + 1];
    if (!job->init_sha256[0])
        return NEB_OK;
    NEB_TRY(intra_model_params_digest(init, sha));
    neb_hex(sha, sizeof sha, hex);
    if (!strcmp(hex, job->init_sha256))
        return NEB_OK;
    return neb_fail(NEB_ERR_INVALID,
                    "cluster %s: %s does not hold the parameters that the job starts from (digest "
                    "%.12s; the job's is %.12s): copy the submitter's checkpoint there",
                    job->clusters[cluster].name, intra_ckpt_path(init), hex, job->init_sha256);
}
