// SPDX-License-Identifier: Apache-2.0
// Transfers of unpinned host memory (kernels/device_stage.h) on the emulator. With EMU_LATE=1 its
// queue runs as late as allowed: a buffer that is filled or emptied too early gives wrong numbers.
// Also, each call of the device fails once.
#include "agent/base/log.h"
#include "kernels/device_stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

kern_device_opener kern_cuda_open;

enum { PIECE = KERN_STAGE_BYTES, MOST = 3 * PIECE + 12345 };
static struct kern *D;
static struct kern_ops counted; // the device's, with counted calls
static const struct kern_ops *real;
static int calls, fail_at; // 0: none
static char *from, *back;  // (MOST) host
static void *device;       // (MOST)

static void swallow(void *user, enum neb_log_level level, const char *text) {
    (void)user, (void)level, (void)text;
}

// An op without a kernel: the device's first failure, which is permanent.
static bool fails(void) {
    struct kern_attn s = {
        .B = 1, .T = 4, .n_heads = 1, .n_kv_heads = 1, .head_dim = 300, .mask = KERN_MASK_CAUSAL};
    if (++calls != fail_at)
        return false;
    real->attn_fwd(D, KERN_F32, &s, device, 300, device, device, 300, device, 300, device, 300);
    return true;
}
static void upload(struct kern *d, void *dst, const void *src, size_t bytes) {
    if (!fails())
        real->upload(d, dst, src, bytes);
}
static void download(struct kern *d, void *dst, const void *src, size_t bytes) {
    if (!fails())
        real->download(d, dst, src, bytes);
}
static void mark(struct kern *d, int slot) {
    if (!fails())
        real->mark(d, slot);
}
static void wait_for(struct kern *d, int slot) {
    if (!fails())
        real->wait(d, slot);
}
static enum neb_status alloc_pinned(struct kern *d, size_t bytes, void **out) {
    *out = NULL;
    return ++calls == fail_at ? NEB_ERR_NOMEM : real->alloc_pinned(d, bytes, out);
}

static void open_device(void) {
    char text[256] = "";
    assert_int_equal(kern_cuda_open(KERN_DEVICE_VERSION, 0, &D, text, sizeof text), NEB_OK);
    real = D->ops;
    counted = *real;
    counted.upload = upload;
    counted.download = download;
    counted.mark = mark;
    counted.wait = wait_for;
    counted.alloc_pinned = alloc_pinned;
    D->ops = &counted;
    assert_int_equal(real->alloc(D, MOST, &device), NEB_OK);
    calls = fail_at = 0;
}
static void close_device(void) {
    assert_null(D->stage);
    real->release(D, device);
    D->ops = real;
    kern_destroy(&D);
}

static void fill(unsigned seed) {
    for (size_t i = 0; i < MOST; i++)
        from[i] = (char)((i * 2654435761u + seed) >> 13);
}

// One round trip. The host's memory changes as soon as this is allowed. Several ranges lie between
// two ends.
static enum neb_status there_and_back(size_t bytes, size_t at) {
    char *copy = malloc(bytes + 1);
    assert_non_null(copy);
    memcpy(copy, from + at, bytes);
    memset(back, 0, MOST);
    kern_stage_upload(D, (char *)device + at, copy, bytes / 2);
    kern_stage_upload(D, (char *)device + at + bytes / 2, copy + bytes / 2, bytes - bytes / 2);
    memset(copy, 0x55, bytes);
    free(copy);
    kern_stage_download(D, back + at, (char *)device + at, bytes - bytes / 3);
    kern_stage_download(D, back + at + bytes - bytes / 3, (char *)device + at + bytes - bytes / 3,
                        bytes / 3);
    return kern_stage_end(D);
}

static void test_sizes(void **state) {
    static const size_t sizes[] = {0, 1, 5, 4096, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, MOST - 7};
    (void)state;
    open_device();
    assert_int_equal(kern_stage_acquire(D), NEB_OK);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        fill((unsigned)i * 7919);
        assert_int_equal(there_and_back(sizes[i], i % 2 * 7), NEB_OK);
        assert_memory_equal(back + i % 2 * 7, from + i % 2 * 7, sizes[i]);
        for (size_t k = i % 2 * 7 + sizes[i]; k < MOST; k++)
            if (back[k])
                fail_msg("%zu bytes: byte %zu is written", sizes[i], k);
    }
    kern_stage_release(D);
    close_device();
}

// All users share one stage: later users allocate nothing, and it lives as long as the last of
// them.
static void test_users(void **state) {
    (void)state;
    open_device();
    assert_int_equal(kern_stage_acquire(D), NEB_OK);
    assert_int_equal(calls, KERN_STAGE_BUFFERS);
    assert_int_equal(kern_stage_acquire(D), NEB_OK);
    assert_int_equal(calls, KERN_STAGE_BUFFERS);
    kern_stage_release(D);
    fill(3);
    assert_int_equal(there_and_back(1000, 0), NEB_OK);
    assert_memory_equal(back, from, 1000);
    kern_stage_release(D);
    close_device();
}

// Each call fails once: the result reports it, nothing waits for ever, and all memory is freed
// (sanitizer builds look for leaks).
static void test_failures(void **state) {
    (void)state;
    int all = 0;
    neb_log_set_sink(swallow, NULL);
    fill(9);
    for (int k = 1; !all || k <= all; k++) {
        open_device();
        fail_at = k;
        enum neb_status st = kern_stage_acquire(D);
        if (k <= KERN_STAGE_BUFFERS) {
            assert_int_equal(st, NEB_ERR_NOMEM);
            assert_null(D->stage);
            assert_int_equal(kern_stage_acquire(D), NEB_OK); // memory is available later
            assert_int_equal(there_and_back(PIECE + 99, 0), NEB_OK);
            assert_memory_equal(back, from, PIECE + 99);
        } else {
            assert_int_equal(st, NEB_OK);
            st = there_and_back(2 * PIECE + 99, 0);
            if (calls < k) { // no call was left to fail
                assert_int_equal(st, NEB_OK);
                all = calls;
            } else {
                assert_int_equal(st, NEB_ERR_IO);
            }
            fail_at = 0;
            assert_int_equal(there_and_back(10, 0), st); // the error is permanent
        }
        kern_stage_release(D);
        close_device();
    }
    neb_log_set_sink(NULL, NULL);
    assert_true(all > 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_users),
        cmocka_unit_test(test_failures),
    };
    from = malloc(MOST);
    back = malloc(MOST);
    if (!from || !back)
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(from);
    free(back);
    return failed;
}
