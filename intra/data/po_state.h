// SPDX-License-Identifier: Apache-2.0
// Shared by the files that read catalogues. No other file includes this.
#ifndef INTRA_PO_STATE_H
#define INTRA_PO_STATE_H
#include "intra/data/po.h"
#include "intra/read/charset.h"

enum { PO_FORMS = 10 }; // plural forms that are kept; languages have at most 6

// ---- po_lex.c -----------------------------------------------------------------------------------

enum po_kind {
    PO_END,
    PO_MSGCTXT,
    PO_MSGID,
    PO_PLURAL,
    PO_MSGSTR,
    PO_DOMAIN,
    PO_STRING,
    PO_NUMBER,
    PO_OPEN,
    PO_CLOSE,
    PO_COMMENT,
    PO_WRONG // `why` describes the fault; the lexer is after it
};
struct po_token {
    enum po_kind kind;
    size_t line;
    bool obsolete, previous; // in a line that begins with "#~" or "#|"
    uint32_t number;
    const char *text, *why; // text: of a comment, after the "#", up to the end of the line
    size_t len;
};
struct po_lexer {
    const char *p;
    size_t n, at, line;
    bool obsolete, previous;
    struct intra_charset *bytes; // converts escaped bytes; NULL: they are UTF-8
    struct neb_buf string;       // value of the last PO_STRING
    struct neb_buf escaped;
};
// Reads the next token. NEB_ERR_NOMEM only.
NEB_MUST_CHECK enum neb_status po_next(struct po_lexer *l, struct po_token *t);
// Skips to the next line that may begin an entry.
void po_skip_entry(struct po_lexer *l);
// The charset that the header of these bytes names; "": none. The bytes may be in any encoding that
// contains ASCII.
void po_find_charset(const char *p, size_t n, char out[INTRA_CHARSET_NAME_MAX + 1]);

// ---- po_plural.c --------------------------------------------------------------------------------

struct po_plurals {
    int n_forms;          // 0: the header does not tell
    int one;              // the form of the number 1
    int counts[PO_FORMS]; // how many numbers from 2 to 100 take each form
};
// header: the msgstr of the empty msgid.
void po_plurals_of(const char *header, struct po_plurals *out);

#endif
