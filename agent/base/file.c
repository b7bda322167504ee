// SPDX-License-Identifier: Apache-2.0
#include "agent/base/file.h"
#include "agent/base/fault.h"
#include "agent/base/moved.h"

#include <stdlib.h>

struct neb_file {
    struct neb_map map;
    const struct neb_vault_ops *ops; // NULL: the file is in clear
    void *reader;
    uint64_t len;
};

enum neb_status neb_file_open(const char *path, const struct neb_vault *vault,
                              struct neb_file **out) {
    struct neb_file *f = calloc(1, sizeof *f);
    if (!f)
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", path);
    enum neb_status st = neb_map_open(path, &f->map);
    f->len = f->map.len;
    if (st == NEB_OK && neb_is_sealed(f->map.p, f->map.len)) {
        if (!vault)
            st = neb_fail(NEB_ERR_DENIED, "%s is sealed: give the site's key with --seal-key FILE",
                          path);
        else if ((st = vault->ops->open(vault->ctx, path, f->map.p, f->map.len, &f->reader,
                                        &f->len)) == NEB_OK)
            f->ops = vault->ops;
    }
    if (st != NEB_OK)
        neb_file_close(&f);
    *out = f;
    return st;
}

void neb_file_close(struct neb_file **fp) {
    struct neb_file *f = *fp;
    if (!f)
        return;
    if (f->ops)
        f->ops->close(f->reader);
    neb_map_close(&f->map);
    free(f);
    *fp = NULL;
}

uint64_t neb_file_len(const struct neb_file *f) { return f->len; }
bool neb_file_sealed(const struct neb_file *f) { return f->ops; }
const uint8_t *neb_file_view(const struct neb_file *f) { return f->ops ? NULL : f->map.p; }

enum neb_status neb_file_read(const struct neb_file *f, uint64_t at, void *dst, size_t n) {
    uint8_t *out = dst;
    NEB_ASSERT(at <= f->len && n <= f->len - at);
    while (n) {
        size_t piece = n < NEB_MOVED_PIECE ? n : NEB_MOVED_PIECE;
        (void)neb_fault("file.read"); // tests delay reads here
        if (f->ops)
            NEB_TRY(f->ops->read(f->reader, at, out, piece));
        else
            memcpy(out, f->map.p + at, piece);
        neb_moved_add(piece);
        out += piece;
        at += piece;
        n -= piece;
    }
    return NEB_OK;
}
