// SPDX-License-Identifier: Apache-2.0
// Reads JSON that other programs wrote: the files of Hugging Face folders, and lines of corpora.
// Most of it comes from Python's json module, so the output of that module is accepted here:
//
//     1000000000000000019884624838656   a json_real: an error where an id or a size is needed
//     NaN, Infinity, -Infinity, 1e999   {"__float__": "NaN"}, as transformers 5 writes it: an error
//                                       where a number is needed
//     half a surrogate pair             U+FFFD
//     \u0000                            U+FFFD; in a line of a corpus a blank
//     a byte order mark at the start    skipped
//     a key that occurs twice           the last one counts
//
// All other text that is not JSON is refused. jansson limits the depth to 2048 levels. A caller
// checks the values that it uses; a value that nobody uses never makes a file invalid. For its own
// files and messages, Nebula uses jansson's strict reader.
#ifndef INTRA_JSON_H
#define INTRA_JSON_H
#include "agent/base/bytes.h"
#include "agent/base/status.h"

#include <jansson.h>

// *out: new reference to a value of any kind. `file` names the text in the message. NEB_ERR_FORMAT:
// not JSON; the message names the line.
NEB_MUST_CHECK enum neb_status intra_json_parse(const char *text, size_t len, const char *file,
                                                json_t **out);
// The same for a file of at most `max` bytes. Errors also as neb_fs_read.
NEB_MUST_CHECK enum neb_status intra_json_read(const char *path, size_t max, json_t **out);
// A line of a corpus. NULL: not JSON or out of memory; *why (NULL: not wanted) tells which.
// Threads: any.
json_t *intra_json_line(const char *text, size_t len, json_error_t *why);
// *out: the text of a JSON object in which `key`, a plain word, has the value `value` (JSON text).
// All other bytes stay the same, except that a byte order mark is dropped, because Python does not
// read it. NEB_ERR_FORMAT: not a JSON object.
NEB_MUST_CHECK enum neb_status intra_json_set(const char *text, size_t len, const char *file,
                                              const char *key, const char *value,
                                              struct neb_buf *out);

#endif
