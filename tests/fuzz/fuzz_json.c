// SPDX-License-Identifier: Apache-2.0
// JSON of other programs: the reader gives a value or none. It accepts all that the strict reader
// accepts, with the same value. The result can be written and read again. Setting a value keeps all
// others.
#include "intra/read/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// The largest numbers overflow here, so such a text is not compared.
static bool has_huge(const json_t *v) {
    const char *key;
    json_t *w;
    size_t i;
    bool huge = json_is_real(v) && fabs(json_real_value(v)) > 9e307;
    json_array_foreach((json_t *)(uintptr_t)v, i, w) huge = huge || has_huge(w);
    json_object_foreach((json_t *)(uintptr_t)v, key, w) huge = huge || has_huge(w);
    return huge;
}

// Infinity and NaN, and texts with a blank or U+FFFD in them, may look the same when read again.
static void check_again(const json_t *v) {
    json_t *again;
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    NEB_ASSERT(text && intra_json_parse(text, strlen(text), "again", &again) == NEB_OK);
    NEB_ASSERT(has_huge(v) || json_equal(v, again));
    json_decref(again);
    free(text);
}

static void check_set(const char *text, size_t n, const json_t *before) {
    struct neb_buf b = {0};
    json_t *after, *want = json_copy((json_t *)(uintptr_t)before);
    enum neb_status st = intra_json_set(text, n, "set", "dtype", "\"bfloat16\"", &b);
    NEB_ASSERT(st == NEB_OK || !json_is_object(before) || json_object_get(before, "__float__"));
    if (st == NEB_OK) {
        NEB_ASSERT(intra_json_parse((const char *)b.p, b.len, "set", &after) == NEB_OK);
        json_object_set_new(want, "dtype", json_string("bfloat16"));
        NEB_ASSERT(json_equal(after, want));
        json_decref(after);
    }
    json_decref(want);
    neb_buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data;
    json_t *v, *line = intra_json_line(text, size, NULL),
               *strict = json_loadb(text, size, JSON_DECODE_ANY, NULL);
    bool good = intra_json_parse(text, size, "json", &v) == NEB_OK;
    NEB_ASSERT(good == (v != NULL) && good == (line != NULL));
    NEB_ASSERT(!strict || (good && (has_huge(strict) || json_equal(v, strict))));
    if (good) {
        check_again(v);
        check_again(line);
        check_set(text, size, v);
    }
    json_decref(strict);
    json_decref(line);
    json_decref(v);
    return 0;
}
