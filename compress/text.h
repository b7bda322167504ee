// SPDX-License-Identifier: Apache-2.0
// Text between agents: as it is, or as one zstd frame if that is shorter. No JSON begins like such
// a frame.
#ifndef CMP_TEXT_H
#define CMP_TEXT_H
#include "agent/base/bytes.h"

enum { CMP_TEXT_MOST = 96 << 10 }; // longer texts are not packed

// Replaces out's content. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status cmp_text_pack(const char *text, size_t n, struct neb_buf *out);
// The text of n bytes from a peer; *text is in p or in out. NEB_ERR_FORMAT: a frame that is
// damaged, or longer than CMP_TEXT_MOST when unpacked. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status cmp_text_unpack(const uint8_t *p, size_t n, struct neb_buf *out,
                                               const char **text, size_t *len);

#endif
