// SPDX-License-Identifier: Apache-2.0
#include "agent/job/update_size.h"
#include "inter/record/types.h"

static uint64_t most_of(const struct agent_job *job, const struct cmp_codec *codec, uint64_t n,
                        uint64_t units) {
    if (job->sync.gate == AGENT_GATE_PRIVATE) { // masked 16-bit integers and their scales
        struct cmp_codec sums;
        NEB_ASSERT(cmp_codec_parse("bf16", &sums) == NEB_OK);
        return cmp_codec_bytes_max(&sums, n, units);
    }
    return cmp_codec_bytes_max(codec, n, units);
}

bool agent_update_possible(const struct agent_job *job, const struct cmp_codec *codec,
                           uint64_t elements, uint64_t units) {
    return most_of(job, codec, elements, units) <= INTER_BLOB_MAX;
}

enum neb_status agent_update_fits(const struct agent_job *job, uint64_t elements, uint64_t units,
                                  uint64_t largest) {
    struct cmp_codec codec;
    NEB_TRY(cmp_codec_parse(job->sync.codec, &codec));
    if (agent_update_possible(job, &codec, elements, units))
        return NEB_OK;
    uint64_t bytes = most_of(job, &codec, elements, units);
    bool cut = agent_update_possible(job, &codec, largest, 1);
    uint64_t fragments = (uint64_t)job->sync.fragments * (bytes / INTER_BLOB_MAX + 1);
    double most = (double)bytes / 1e9, bound = INTER_BLOB_MAX / 1e9;
    if (!cut || fragments > INTER_FRAGMENTS_MAX)
        return neb_fail(NEB_ERR_LIMIT,
                        "sync.codec: %s: an update of %llu parameters can need %.2f GB, but at "
                        "most %.2f GB can be sent at once: use a codec with fewer bits%s",
                        job->sync.codec, (unsigned long long)elements, most, bound,
                        cut ? ", or more sync.fragments" : "; fragments do not cut a tensor");
    return neb_fail(NEB_ERR_LIMIT,
                    "sync.fragments: %d: an update of %llu parameters with %s can need %.2f GB, "
                    "but at most %.2f GB can be sent at once: use %llu fragments or more",
                    job->sync.fragments, (unsigned long long)elements, job->sync.codec, most, bound,
                    (unsigned long long)fragments);
}
