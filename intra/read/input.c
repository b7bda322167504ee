// SPDX-License-Identifier: Apache-2.0
#include "intra/read/input.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "intra/read/convert.h"

#include <errno.h>
#include <lzma.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>
#include <zstd.h>

enum { RAW_BYTES = 256 << 10, MAGIC_BYTES = 6, ZSTD_WINDOW_LOG = 27 };

enum packer { PLAIN, GZIP, ZSTD, XZ };
static const char *const packer_names[] = {"", "gzip", "zstd", "xz"};

struct intra_input {
    char *path;
    FILE *f, *said;
    pid_t child;
    enum packer packer;
    uint8_t *raw; // (RAW_BYTES) from the file; at: used up to here
    size_t at, len;
    bool raw_end;
    bool whole; // packed: a part is complete, and no further one has begun
    uint64_t taken, given;
    uint64_t most; // bytes that a converter may give for a file of this size; 0: no converter
    z_stream gzip;
    lzma_stream xz;
    ZSTD_DCtx *zstd;
};

size_t intra_input_name(const char *name) {
    static const char *const ends[] = {".gz", ".zst", ".xz"};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t k = strlen(ends[i]);
        if (n > k && !strcmp(name + n - k, ends[i]))
            return n - k;
    }
    return n;
}

static enum neb_status refill(struct intra_input *in) {
    in->at = 0;
    in->len = fread(in->raw, 1, RAW_BYTES, in->f);
    in->raw_end = in->len < RAW_BYTES;
    if (ferror(in->f))
        return neb_fail_errno("cannot read %s", in->path);
    return in->raw_end && in->child ? intra_convert_end(&in->child, in->said, in->path) : NEB_OK;
}

static enum packer packer_of(const uint8_t *p, size_t n) {
    return n >= 3 && !memcmp(p, "\x1f\x8b\x08", 3)       ? GZIP
           : n >= 4 && !memcmp(p, "\x28\xb5\x2f\xfd", 4) ? ZSTD
           : n >= 6 && !memcmp(p,
                               "\xfd"
                               "7zXZ\0",
                               6)
               ? XZ
               : PLAIN;
}

static enum neb_status begin(struct intra_input *in) {
    bool good = true;
    NEB_TRY(refill(in));
    if (!in->child)
        in->packer = packer_of(in->raw, in->len);
    if (in->packer == GZIP) {
        good = inflateInit2(&in->gzip, 16 + MAX_WBITS) == Z_OK; // 16: with gzip's header
    } else if (in->packer == XZ) {
        in->xz = (lzma_stream)LZMA_STREAM_INIT;
        good = lzma_stream_decoder(&in->xz, INTRA_UNPACK_MEMORY, LZMA_CONCATENATED) == LZMA_OK;
    } else if (in->packer == ZSTD) {
        in->zstd = ZSTD_createDCtx();
        good = in->zstd && !ZSTD_isError(ZSTD_DCtx_setParameter(in->zstd, ZSTD_d_windowLogMax,
                                                                ZSTD_WINDOW_LOG));
    }
    return good ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory reading %s", in->path);
}

enum neb_status intra_input_take(FILE *f, const char *path, pid_t child, FILE *said,
                                 struct intra_input **out) {
    struct stat info;
    struct intra_input *in = calloc(1, sizeof *in);
    enum neb_status st = NEB_OK;
    *out = in;
    if (!in) {
        fclose(f);
        if (child)
            intra_convert_stop(&child);
        if (said)
            fclose(said);
        return neb_fail(NEB_ERR_NOMEM, "out of memory reading %s", path);
    }
    in->f = f;
    in->said = said;
    in->child = child;
    if (child && stat(path, &info) == 0)
        in->most = INTRA_UNPACK_FREE + (uint64_t)info.st_size * INTRA_UNPACK_RATIO;
    in->path = strdup(path);
    in->raw = malloc(RAW_BYTES);
    if (!in->path || !in->raw)
        st = neb_fail(NEB_ERR_NOMEM, "out of memory reading %s", path);
    if (st == NEB_OK)
        st = begin(in);
    if (st != NEB_OK)
        intra_input_close(out);
    return st;
}

enum neb_status intra_input_open(const char *path, struct intra_input **out) {
    FILE *f = NULL;
    *out = NULL;
    NEB_TRY(neb_fs_stream_open(path, &f));
    return intra_input_take(f, path, 0, NULL, out);
}

// ---- unpacking ----------------------------------------------------------------------------------

static enum neb_status damaged(const struct intra_input *in, const char *why) {
    return neb_fail(NEB_ERR_FORMAT, "%s: the %s data is damaged at offset %llu: %s", in->path,
                    packer_names[in->packer], (unsigned long long)in->taken, why);
}

static enum neb_status step_gzip(struct intra_input *in, uint8_t *p, size_t n, size_t *made) {
    z_stream *z = &in->gzip;
    if (in->whole) {
        if (inflateReset(z) != Z_OK)
            return damaged(in, "zlib cannot start again");
        in->whole = false;
    }
    z->next_in = in->raw + in->at;
    z->avail_in = (uInt)(in->len - in->at);
    z->next_out = p;
    z->avail_out = (uInt)(n < RAW_BYTES ? n : RAW_BYTES);
    uInt room = z->avail_out;
    int rc = inflate(z, Z_NO_FLUSH);
    in->at = in->len - z->avail_in;
    *made = room - z->avail_out;
    in->whole = rc == Z_STREAM_END;
    return rc == Z_OK || rc == Z_STREAM_END || rc == Z_BUF_ERROR
               ? NEB_OK
               : damaged(in, z->msg ? z->msg : "zlib refuses it");
}

static enum neb_status step_zstd(struct intra_input *in, uint8_t *p, size_t n, size_t *made) {
    ZSTD_inBuffer from = {in->raw, in->len, in->at};
    ZSTD_outBuffer to = {p, n < RAW_BYTES ? n : RAW_BYTES, 0};
    size_t rc = ZSTD_decompressStream(in->zstd, &to, &from);
    in->at = from.pos;
    *made = to.pos;
    in->whole = rc == 0;
    return !ZSTD_isError(rc) ? NEB_OK : damaged(in, ZSTD_getErrorName(rc));
}

static enum neb_status step_xz(struct intra_input *in, uint8_t *p, size_t n, size_t *made) {
    lzma_stream *x = &in->xz;
    x->next_in = in->raw + in->at;
    x->avail_in = in->len - in->at;
    x->next_out = p;
    x->avail_out = n < RAW_BYTES ? n : RAW_BYTES;
    size_t room = x->avail_out;
    lzma_ret rc = lzma_code(x, in->raw_end ? LZMA_FINISH : LZMA_RUN);
    in->at = in->len - x->avail_in;
    *made = room - x->avail_out;
    in->whole = rc == LZMA_STREAM_END;
    if (rc == LZMA_MEMLIMIT_ERROR)
        return neb_fail(NEB_ERR_LIMIT, "%s: unpacking needs more than %d MiB of memory", in->path,
                        INTRA_UNPACK_MEMORY >> 20);
    return rc == LZMA_OK || rc == LZMA_STREAM_END || rc == LZMA_BUF_ERROR
               ? NEB_OK
               : damaged(in, rc == LZMA_OPTIONS_ERROR ? "unknown options" : "liblzma refuses it");
}

// True at the end of the data. Zeros after it are padding, as tape archives have.
static bool is_end(struct intra_input *in) {
    if (!in->whole)
        return false;
    while (in->packer == GZIP && in->at < in->len && !in->raw[in->at]) {
        in->at++;
        in->taken++;
    }
    return in->raw_end && in->at == in->len;
}

static enum neb_status unpack(struct intra_input *in, uint8_t *p, size_t n, size_t *got) {
    while (*got < n) {
        size_t before = in->at, made = 0;
        if (in->at == in->len && !in->raw_end) {
            NEB_TRY(refill(in));
            before = 0;
        }
        if (is_end(in))
            return NEB_OK;
        if (in->whole && in->at == in->len)
            continue; // the padding of a gzip file goes on
        before = in->at;
        NEB_TRY(in->packer == GZIP   ? step_gzip(in, p + *got, n - *got, &made)
                : in->packer == ZSTD ? step_zstd(in, p + *got, n - *got, &made)
                                     : step_xz(in, p + *got, n - *got, &made));
        in->taken += in->at - before;
        in->given += made;
        *got += made;
        if (in->given > INTRA_UNPACK_FREE + in->taken * INTRA_UNPACK_RATIO)
            return neb_fail(NEB_ERR_LIMIT,
                            "%s: %llu bytes of %s data unpack to %llu, more than %d times as many; "
                            "unpack it first if this is not an attack",
                            in->path, (unsigned long long)in->taken, packer_names[in->packer],
                            (unsigned long long)in->given, INTRA_UNPACK_RATIO);
        if (!made && in->at == before && in->at == in->len && in->raw_end && !in->whole)
            return neb_fail(NEB_ERR_CORRUPT,
                            "%s: the %s data ends too early, after %llu bytes; the file is cut "
                            "short",
                            in->path, packer_names[in->packer], (unsigned long long)in->taken);
    }
    return NEB_OK;
}

// ---- reading ------------------------------------------------------------------------------------

enum neb_status intra_input_read(struct intra_input *in, void *p, size_t n, size_t *got) {
    uint8_t *to = p;
    *got = 0;
    if (in->packer != PLAIN)
        return unpack(in, to, n, got);
    while (*got < n) {
        if (in->at == in->len) {
            if (in->raw_end)
                break;
            NEB_TRY(refill(in));
        }
        size_t k = in->len - in->at < n - *got ? in->len - in->at : n - *got;
        memcpy(to + *got, in->raw + in->at, k);
        in->at += k;
        in->taken += k;
        *got += k;
    }
    if (in->most && in->taken > in->most)
        return neb_fail(NEB_ERR_LIMIT,
                        "%s holds more than %d times as much text as it has bytes; convert it to "
                        "JSONL if this is not an attack",
                        in->path, INTRA_UNPACK_RATIO);
    return NEB_OK;
}

enum neb_status intra_input_whole(struct intra_input *in, size_t max, struct neb_buf *out) {
    for (size_t got = 1; got;) {
        NEB_TRY(neb_buf_reserve(out, RAW_BYTES + 1));
        NEB_TRY(intra_input_read(in, out->p + out->len, RAW_BYTES, &got));
        out->len += got;
        if (out->len > max)
            return neb_fail(NEB_ERR_LIMIT, "%s: at most %zu bytes are accepted", in->path, max);
    }
    out->p[out->len] = 0; // not counted; makes text a C string
    return NEB_OK;
}

bool intra_input_seek(struct intra_input *in, uint64_t offset) {
    if (in->packer != PLAIN || in->child || offset > INT64_MAX ||
        fseeko(in->f, (off_t)offset, SEEK_SET) != 0)
        return false;
    in->at = in->len = 0;
    in->raw_end = false;
    in->taken = offset;
    return true;
}

uint64_t intra_input_taken(const struct intra_input *in) { return in->taken; }

void intra_input_close(struct intra_input **p) {
    struct intra_input *in = *p;
    if (!in)
        return;
    *p = NULL;
    fclose(in->f); // a converter that still writes ends now
    if (in->child)
        intra_convert_stop(&in->child);
    if (in->said)
        fclose(in->said);
    if (in->packer == GZIP)
        inflateEnd(&in->gzip);
    if (in->packer == XZ)
        lzma_end(&in->xz);
    ZSTD_freeDCtx(in->zstd);
    free(in->raw);
    free(in->path);
    free(in);
}
