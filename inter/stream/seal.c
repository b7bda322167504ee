// SPDX-License-Identifier: Apache-2.0
#include "inter/stream/seal.h"
#include "agent/base/vault.h"
#include "security/seal_stream.h"

#include <string.h>

enum { PLACE = 8 + 8 };

static void put_place(const struct inter_stream_key *k, uint64_t seq, uint8_t out[PLACE]) {
    neb_put_u64(out, k->id);
    neb_put_u64(out + 8, seq);
}

static enum neb_status keep(void *user, const void *p, size_t n) {
    struct neb_buf *out = user;
    neb_buf_add(out, p, n);
    return neb_buf_check(out);
}

enum neb_status inter_stream_seal(const struct sec_seal_key *key, const struct inter_stream_key *k,
                                  uint64_t seq, const void *p, size_t n, struct neb_buf *out) {
    struct sec_stream_writer *w = NULL;
    uint8_t place[PLACE];
    put_place(k, seq, place);
    neb_buf_clear(out);
    NEB_TRY(sec_stream_create(key, k->job, keep, out, &w));
    enum neb_status st = sec_stream_add(w, place, sizeof place);
    if (st == NEB_OK)
        st = sec_stream_add(w, p, n);
    if (st == NEB_OK)
        st = sec_stream_end(w);
    sec_stream_destroy(&w);
    return st;
}

static enum neb_status read_batch(struct sec_stream_reader *r, const char *name,
                                  const struct inter_stream_key *k, uint64_t seq,
                                  struct neb_buf *out) {
    uint64_t len = sec_stream_len(r);
    uint8_t want[PLACE], place[PLACE] = {0};
    put_place(k, seq, want);
    if (len >= PLACE)
        NEB_TRY(sec_stream_read(r, 0, place, PLACE));
    if (len <= PLACE || len > PLACE + INTER_STREAM_BATCH_MAX || memcmp(place, want, PLACE))
        return neb_fail(NEB_ERR_CORRUPT,
                        "%s: the place of batch %llu of stream %u holds another batch", name,
                        (unsigned long long)seq, k->id);
    size_t n = (size_t)(len - PLACE);
    neb_buf_clear(out);
    NEB_TRY(neb_buf_reserve(out, n));
    NEB_TRY(sec_stream_read(r, PLACE, out->p, n));
    out->len = n;
    return NEB_OK;
}

enum neb_status inter_stream_unseal(const struct sec_seal_key *key, const char *name,
                                    const struct inter_stream_key *k, uint64_t seq, const void *p,
                                    size_t n, struct neb_buf *out) {
    struct sec_stream_reader *r = NULL;
    if (!neb_is_sealed(p, n)) { // from before this site sealed
        neb_buf_clear(out);
        neb_buf_add(out, p, n);
        return neb_buf_check(out);
    }
    if (!key)
        return neb_fail(NEB_ERR_DENIED,
                        "%s: its batches are sealed; start the agent with --seal-key, or restore "
                        "HOME/seal.json",
                        name);
    NEB_TRY(sec_stream_open(key, name, p, n, &r));
    enum neb_status st = sec_stream_len(r)
                             ? read_batch(r, name, k, seq, out)
                             : neb_fail(NEB_ERR_CORRUPT, "%s: a sealed batch is empty", name);
    sec_stream_close(&r);
    return st;
}
