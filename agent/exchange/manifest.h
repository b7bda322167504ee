// SPDX-License-Identifier: Apache-2.0
// The manifest of tensors: what a job exchanges, by name, and the frozen tensors that must be equal
// everywhere, with a digest of their values (kern_digest of fp32, whatever their dtype). Every
// cluster of a job has the same one, whatever its mesh, so clusters compare its hash before they
// make a step.
//
//     {"tensors":[{"name":"h.0.ln.bias","shape":[768],"group":0},
//                 {"name":"h.0.ln.mean","shape":[768],"group":1,"buffer":true},
//                 {"name":"wte","shape":[50257,768],"group":2,"frozen":"<32 hex digits>"}]}
//
// The text is JSON without blanks, in the order of the bytes of the names. There is one text for
// one list of tensors. dtypes are not in it: a cluster may hold bf16 where another one holds fp32.
//
// A tensor of shape (d0, d1, …) is seen as d0 rows of d1·d2·… columns; a scalar or a vector is one
// row. Units are ranges of rows. If one row has more than EXCHANGE_UNIT_MAX elements, units are
// ranges of its columns.
#ifndef AGENT_MANIFEST_H
#define AGENT_MANIFEST_H
#include "agent/base/bytes.h"
#include "agent/base/sha256.h"
#include "agent/exchange/trainer.h"

enum {
    EXCHANGE_DIMS_MAX = 8,
    EXCHANGE_TENSOR_NAME_MAX = 255, // bytes
    EXCHANGE_GROUPS_MAX = 64,
    EXCHANGE_TENSORS_MAX = 1 << 18,
    EXCHANGE_UNITS_MAX = 1 << 22,
    EXCHANGE_UNIT_MAX = 1 << 20,     // elements
    EXCHANGE_MANIFEST_MAX = 64 << 20 // bytes of the text
};

enum exchange_dtype { EXCHANGE_F32, EXCHANGE_BF16, EXCHANGE_F16 };

struct exchange_tensor {
    const char *name; // UTF-8 without control characters
    int32_t dims;     // 0: a scalar
    int64_t shape[EXCHANGE_DIMS_MAX];
    enum exchange_dtype dtype; // not in the text
    int32_t group;             // index among the groups of the job
    bool buffer;               // not trained by gradients, for instance a running mean
    bool frozen;               // never exchanged: it has no units, and counts in no size
    uint64_t digest[2];        // of a frozen tensor
};

struct exchange_manifest;
// Sorts a copy of the list. NEB_ERR_INVALID names the tensor: two of one name; a name that is
// empty, too long, or not UTF-8; a dimension below 1; a group or a number of elements out of range.
// NEB_ERR_LIMIT: too many tensors or units. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status exchange_manifest_create(const struct exchange_tensor *tensors,
                                                        int32_t n, struct exchange_manifest **out);
void exchange_manifest_destroy(struct exchange_manifest **m); // NULL-safe
// (n) in order. They belong to the manifest.
const struct exchange_tensor *exchange_manifest_tensors(const struct exchange_manifest *m,
                                                        int32_t *n);

// Appends the text. NEB_ERR_LIMIT: it has more than EXCHANGE_MANIFEST_MAX bytes.
NEB_MUST_CHECK enum neb_status exchange_manifest_write(const struct exchange_manifest *m,
                                                       struct neb_buf *out);
// Reads text that comes from elsewhere. NEB_ERR_FORMAT: it is not the text that
// exchange_manifest_write makes of these tensors. Also the errors of create. All dtypes are fp32.
NEB_MUST_CHECK enum neb_status exchange_manifest_read(const void *text, size_t len,
                                                      struct exchange_manifest **out);
// SHA-256 of the text.
NEB_MUST_CHECK enum neb_status exchange_manifest_sha(const struct exchange_manifest *m,
                                                     uint8_t sha[NEB_SHA256_BYTES]);
// True if the texts differ. Then `text` says where they first do, in one line: the tensor, and
// what each of the two clusters has.
bool exchange_manifest_differ(const struct exchange_manifest *a, const char *cluster_a,
                              const struct exchange_manifest *b, const char *cluster_b, char *text,
                              size_t cap);

struct exchange_group_size {
    uint64_t tensors, parameters;
};
// sizes: (groups). NEB_ERR_INVALID: a tensor has a group that is not below `groups`.
NEB_MUST_CHECK enum neb_status exchange_manifest_sizes(const struct exchange_manifest *m,
                                                       struct exchange_group_size *sizes,
                                                       int32_t groups);

// The units, in the order of tensors; names are borrowed. never: bit per group whose tensors have
// no units. The caller frees *out. The field `group` is the tensor's index; no unit has data or
// counters. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status exchange_manifest_units(const struct exchange_manifest *m,
                                                       uint64_t never, struct agent_unit **out,
                                                       int32_t *n);

#endif
