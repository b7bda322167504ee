// SPDX-License-Identifier: Apache-2.0
// Checks, compares, describes and serialises the scaling of rotary positions.
#include "intra/model/rope.h"

#include <stdio.h>

const char *const intra_rope_types[] = {"default", "linear", "llama3", NULL};

static const char *out_of_range(char why[INTRA_ROPE_TEXT], const char *key, double value,
                                const char *needed) {
    int n = value != 0 ? snprintf(why, INTRA_ROPE_TEXT, "%g is not ", value)
                       : snprintf(why, INTRA_ROPE_TEXT, "is missing or 0; it must be ");
    snprintf(why + n, INTRA_ROPE_TEXT - (size_t)n, "%s", needed);
    return key;
}

static const char *too_much(const struct kern_rope_scaling *s, const char *key,
                            char why[INTRA_ROPE_TEXT]) {
    snprintf(why, INTRA_ROPE_TEXT,
             "has no effect with rope_type %s; remove it, or set another type (linear needs "
             "factor, llama3 needs all keys)",
             intra_rope_types[s->type]);
    return key;
}

const char *intra_rope_check(const struct kern_rope_scaling *s, char why[INTRA_ROPE_TEXT]) {
    double factor = (double)s->factor, low = (double)s->low, high = (double)s->high;
    bool scaled = s->type != KERN_ROPE_DEFAULT, llama3 = s->type == KERN_ROPE_LLAMA3;
    if (!scaled && s->factor != 0)
        return too_much(s, "factor", why);
    if (!llama3 && (s->low != 0 || s->high != 0 || s->original))
        return too_much(s,
                        s->low != 0    ? "low_freq_factor"
                        : s->high != 0 ? "high_freq_factor"
                                       : "original_max_position_embeddings",
                        why);
    if (scaled && !(factor >= 1 && factor <= INTRA_ROPE_FACTOR_MAX))
        return out_of_range(why, "factor", factor, "a number from 1 to 1000000");
    if (!llama3)
        return NULL;
    if (!(low > 0 && low <= INTRA_ROPE_FACTOR_MAX))
        return out_of_range(why, "low_freq_factor", low, "a number above 0, up to 1000000");
    if (!(high > low && high <= INTRA_ROPE_FACTOR_MAX))
        return out_of_range(why, "high_freq_factor", high,
                            "a number above low_freq_factor, up to 1000000");
    if (s->original < 1 || s->original > INTRA_ROPE_ORIGINAL_MAX)
        return out_of_range(why, "original_max_position_embeddings", s->original,
                            "a whole number from 1 to 1073741824");
    return NULL;
}

bool intra_rope_same(const struct kern_rope_scaling *a, const struct kern_rope_scaling *b) {
    return a->type == b->type && a->factor == b->factor && a->low == b->low && a->high == b->high &&
           a->original == b->original;
}

const char *intra_rope_text(const struct kern_rope_scaling *s, char out[INTRA_ROPE_TEXT]) {
    const struct {
        const char *key;
        double value;
    } all[] = {{"factor", (double)s->factor},
               {"low_freq_factor", (double)s->low},
               {"high_freq_factor", (double)s->high},
               {"original_max_position_embeddings", s->original}};
    int n = snprintf(out, INTRA_ROPE_TEXT, "%s", intra_rope_types[s->type]);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i].value != 0)
            n += snprintf(out + n, INTRA_ROPE_TEXT - (size_t)n, ", %s %.9g", all[i].key,
                          all[i].value);
    return out;
}

void intra_rope_put(struct neb_buf *b, const struct kern_rope_scaling *s) {
    neb_buf_u32(b, (uint32_t)s->type);
    neb_buf_f32(b, s->factor);
    neb_buf_f32(b, s->low);
    neb_buf_f32(b, s->high);
    neb_buf_u32(b, (uint32_t)s->original);
}

bool intra_rope_get(struct neb_rd *r, struct kern_rope_scaling *out) {
    uint32_t type = neb_rd_u32(r);
    *out = (struct kern_rope_scaling){.factor = neb_rd_f32(r)};
    out->low = neb_rd_f32(r);
    out->high = neb_rd_f32(r);
    out->original = (int32_t)neb_rd_u32(r);
    if (type == KERN_ROPE_DEFAULT || type > KERN_ROPE_LLAMA3)
        return false;
    out->type = (enum kern_rope_type)type;
    return true;
}
