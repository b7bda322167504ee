// The block codecs, int8 and int4 (int3 and int2 are int4 frames): a scale byte a block, then the codes.
#include "compress/frame.h"
#include "kernels/blocks.h"
#include "kernels/quant.h"

#include <string.h>

enum neb_status cmp_blocks_encode(struct cmp_work *w, struct cmp_frame *h,
                                  const struct cmp_source *from, size_t n) {
    size_t block = h->codec.block, blocks = (n + block - 1) / block;
    bool four = h->codec.id == CMP_INT4, finite;
    if (n == 0)
        return NEB_OK;
    neb_buf_clear(&w->codes);
    uint16_t *steps = (uint16_t *)(void *)neb_buf_grow(&w->codes, blocks * sizeof *steps + 2 * block);
    struct kern_blocks b = {.x = from->x,
                            .n = n,
                            .block = block,
                            .levels = h->codec.levels,
                            .four = four,
                            .steps = steps,
                            .room = (int8_t *)(steps + blocks),
                            .scales = neb_buf_grow(&w->stream[0], blocks),
                            .codes = neb_buf_grow(&w->stream[1], four ? (n + 1) / 2 : n)};
    if (!steps || !b.scales || !b.codes)
        return neb_buf_check(!steps ? &w->codes : !b.scales ? &w->stream[0] : &w->stream[1]);
    if (from->learned) {
        const struct cmp_feedback *f = from->learned;
        b.u = f->u, b.theta = f->theta, b.theta_m = f->theta_m, b.sent = f->sent, b.beta = f->beta;
    }
    h->top = kern_blocks_encode(&b, &finite);
    return finite ? NEB_OK : cmp_frame_not_finite();
}

static enum neb_status open_streams(struct cmp_work *w, struct neb_rd *r, const struct cmp_frame *h,
                                size_t n) {
    size_t block = h->codec.block, blocks = (n + block - 1) / block;
    size_t bytes = h->codec.id == CMP_INT4 ? (n + 1) / 2 : n;
    NEB_TRY(cmp_frame_get_stream(w, r, blocks, blocks, &w->stream[0]));
    return cmp_frame_get_stream(w, r, bytes, bytes, &w->stream[1]);
}

// 4-bit codes pass through w->scratch in strips of whole blocks that stay in the cache; an even number of codes each.
static size_t strip_of(size_t block) { return block * (block <= 4096 ? 16 : 2); }

enum neb_status cmp_blocks_decode(struct cmp_work *w, struct neb_rd *r, const struct cmp_frame *h,
                                  float *out, size_t n) {
    size_t block = h->codec.block;
    bool four = h->codec.id == CMP_INT4;
    NEB_TRY(open_streams(w, r, h, n));
    const int8_t *codes = (const int8_t *)w->stream[1].p;
    if (!four && n && memchr(codes, 0x80, n))
        return neb_fail(NEB_ERR_FORMAT, "codec frame: an 8-bit code out of range");
    size_t strip = four ? strip_of(block) : n;
    for (size_t from = 0; from < n; from += strip) {
        size_t len = n - from < strip ? n - from : strip;
        if (four) {
            int8_t *room = (int8_t *)w->scratch;
            if (!kern_unpack4(room, w->stream[1].p + from / 2, len))
                return neb_fail(NEB_ERR_FORMAT, "codec frame: a 4-bit code out of range");
            codes = room;
        }
        for (size_t i = 0; i < len; i += block)
            kern_dequantise(out + from + i, codes + i,
                            kern_scale_value(w->stream[0].p[(from + i) / block], h->top),
                            len - i < block ? len - i : block);
    }
    return NEB_OK;
}
