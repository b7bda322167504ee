// Sealed streams: hostile bytes open to nothing; no crash, no leak.
#include "agent/base/log.h"
#include "security/seal_stream.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
static void swallow(void *user, enum neb_log_level level, const char *text) {
    (void)user, (void)level, (void)text;
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct sec_seal_key key = {.kind = SEC_KEY_FILE};
    struct neb_buf out = {0};
    neb_log_set_sink(swallow, NULL);
    enum neb_status st = sec_stream_open(&key, data, size, &out);
    if (st != NEB_OK && out.len)
        abort();
    neb_buf_free(&out);
    return 0;
}
