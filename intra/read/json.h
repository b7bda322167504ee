// SPDX-License-Identifier: Apache-2.0
// JSON that other programs wrote: the files of Hugging Face folders, and lines of corpora. Most of
// it is written by Python's json, so what that writes is read here, and as it reads it:
//
//     1000000000000000019884624838656   a json_real: an error where an id or a size is needed
//     NaN, Infinity, -Infinity, 1e999   {"__float__": "NaN"}, as transformers 5 writes it: an error
//                                       where a number is needed
//     half a surrogate pair             U+FFFD
//     \u0000                            U+FFFD; in a line of a corpus a blank
//     a byte order mark at the start    passed over
//     a key that is there twice         the last one counts
//
// All else that is no JSON is refused, and depth is bounded (2048 levels, by jansson). Whoever uses
// a value checks it: nothing that is not used is a reason to refuse a file. Our own files and
// messages have the strict reader, jansson's.
#ifndef INTRA_JSON_H
#define INTRA_JSON_H
#include "agent/base/bytes.h"
#include "agent/base/status.h"

#include <jansson.h>

// New reference to any kind of value. NEB_ERR_FORMAT: no JSON; `file` is for the message, which
// names the line.
NEB_MUST_CHECK enum neb_status intra_json_parse(const char *text, size_t len, const char *file,
                                                json_t **out);
// The same of a file of at most `max` bytes. As neb_fs_read.
NEB_MUST_CHECK enum neb_status intra_json_read(const char *path, size_t max, json_t **out);
// A line of a corpus. NULL: no JSON, and *why (NULL: not asked for) says so, or out of memory.
// Threads: any.
json_t *intra_json_line(const char *text, size_t len, json_error_t *why);
// The text of an object in which `key`, a plain word, has this text as its value; all else stays
// byte for byte, but for a byte order mark, which Python does not read. NEB_ERR_FORMAT: no JSON
// object.
NEB_MUST_CHECK enum neb_status intra_json_set(const char *text, size_t len, const char *file,
                                              const char *key, const char *value,
                                              struct neb_buf *out);

#endif
