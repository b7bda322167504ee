// SPDX-License-Identifier: Apache-2.0
// Message catalogues: the reader returns OK or NEB_ERR_FORMAT, and every pair that it outputs is
// clean UTF-8 text on one line.
#include "intra/data/po.h"

#include <stdlib.h>
#include <string.h>

static void require(bool good) {
    if (!good)
        abort();
}

static enum neb_status pair(void *user, const char *source, const char *target) {
    char a[INTRA_PO_BYTES_MAX + 1], b[INTRA_PO_BYTES_MAX + 1];
    size_t n = strlen(source), m = strlen(target);
    (void)user;
    require(n && m && n <= INTRA_PO_BYTES_MAX && m <= INTRA_PO_BYTES_MAX);
    require(!strpbrk(source, "\t\r\n") && !strpbrk(target, "\t\r\n"));
    memcpy(a, source, n + 1);
    memcpy(b, target, m + 1);
    // the text is already clean
    require(intra_po_clean(a, b) && !strcmp(a, source) && !strcmp(b, target));
    return NEB_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum neb_status st =
        intra_po_read(&(struct intra_po){.name = "fuzz", .each = pair}, (const char *)data, size);
    require(st == NEB_OK || st == NEB_ERR_FORMAT);
    return 0;
}
