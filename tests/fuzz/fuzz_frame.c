// Codec frames and updates from a hostile peer: whatever the bytes, a decoder answers OK or NEB_ERR_FORMAT, writes nothing
// outside its output, and never hands on a NaN or an infinity. What it accepts, it accepts again with the same result.
// The corpus is written by tests/unit/test_codec_golden.c.
#include "compress/reader.h"
#include "compress/update.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_MAX = 1 << 18 }; // elements; larger claims only cost time here
static const uint32_t sentinel = 0x5ca1ab1e;

static void require(bool good) {
    if (!good)
        abort();
}

static void decode_frame(struct cmp_work *w, const uint8_t *p, size_t len) {
    struct cmp_frame_info info;
    if (cmp_frame_peek(p, len, &info) != NEB_OK || info.n > N_MAX)
        return;
    size_t n = info.n;
    float *x = malloc((n + 1) * sizeof *x), *y = malloc((n + 1) * sizeof *y);
    require(x && y);
    memcpy(&x[n], &sentinel, sizeof sentinel);
    enum neb_status st = cmp_decode(w, p, len, x, n);
    require(st == NEB_OK || st == NEB_ERR_FORMAT);
    require(memcmp(&x[n], &sentinel, sizeof sentinel) == 0);
    require(cmp_decode(w, p, len, y, n + 1) == NEB_ERR_FORMAT); // never as another size
    if (st == NEB_OK) {
        for (size_t i = 0; i < n; i++)
            require(isfinite(x[i]));
        require(cmp_decode(w, p, len, y, n) == NEB_OK && memcmp(x, y, n * sizeof *x) == 0);
    }
    // Opened to be read in strips: accepted exactly when decoding is, and the same elements.
    static struct cmp_reader *r;
    if (!r)
        require(cmp_reader_create(&r) == NEB_OK);
    require(cmp_reader_open(r, w, p, len, n) == st);
    if (st == NEB_OK) {
        memcpy(&y[n], &sentinel, sizeof sentinel);
        for (size_t at = 0, strip = 1 + len % 1000; at < n; at += strip)
            cmp_reader_read(r, at, y + at, n - at < strip ? n - at : strip);
        require(memcmp(x, y, n * sizeof *x) == 0 && memcmp(&y[n], &sentinel, sizeof sentinel) == 0);
    }
    free(x);
    free(y);
}

static void open_update(struct cmp_work *w, const uint8_t *p, size_t len) {
    static const struct cmp_unit_shape shapes[2] = {{0, 50, 8, true},
                                                    {3, 1, 77, false}}; // as in the corpus
    struct cmp_update_unit units[2];
    struct cmp_update_stats stats;
    uint32_t counts[50];
    float x[400];
    enum neb_status st = cmp_update_check(w, p, len, &stats);
    require(st == NEB_OK || st == NEB_ERR_FORMAT);
    require(st != NEB_OK || (isfinite(stats.norm) && stats.norm >= 0));
    if (cmp_update_open(p, len, shapes, 2, units) != NEB_OK)
        return;
    enum neb_status st_counts = cmp_update_counts(w, &units[0], 50, counts);
    enum neb_status st_first = cmp_decode(w, units[0].frame, units[0].frame_len, x, 400);
    enum neb_status st_second = cmp_decode(w, units[1].frame, units[1].frame_len, x, 77);
    // The gate's check and what a worker does later must agree: an update that passed is applied.
    if (st == NEB_OK)
        require(st_counts == NEB_OK && st_first == NEB_OK && st_second == NEB_OK &&
                stats.elements == 477);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct cmp_work *w; // one for the process: its buffers are meant to be used again
    if (!w)
        require(cmp_work_create(&w) == NEB_OK);
    decode_frame(w, data, size);
    open_update(w, data, size);
    return 0;
}
