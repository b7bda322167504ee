// SPDX-License-Identifier: Apache-2.0
// What the files of the reader of catalogues share; nobody else includes this.
#ifndef INTRA_PO_STATE_H
#define INTRA_PO_STATE_H
#include "intra/data/po.h"
#include "intra/read/charset.h"

enum { PO_FORMS = 10 }; // of a plural that are kept: languages have 6 at most

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
    PO_WRONG // `why` says what; the lexer stands behind it
};
struct po_token {
    enum po_kind kind;
    size_t line;
    bool obsolete, previous; // of a line "#~", "#|"
    uint32_t number;
    const char *text, *why; // comment: behind the "#", up to the line's end
    size_t len;
};
struct po_lexer {
    const char *p;
    size_t n, at, line;
    bool obsolete, previous;
    struct intra_charset *bytes; // what escaped bytes are; NULL: UTF-8
    struct neb_buf string;       // of the last PO_STRING
    struct neb_buf escaped;
};
// Only running out of memory is an error.
NEB_MUST_CHECK enum neb_status po_next(struct po_lexer *l, struct po_token *t);
// To the next line that may begin an entry.
void po_skip_entry(struct po_lexer *l);
// What the header of these bytes, which may be of any encoding that has ASCII's signs, says of
// them: "" nothing.
void po_find_charset(const char *p, size_t n, char out[INTRA_CHARSET_NAME_MAX + 1]);

// ---- po_plural.c --------------------------------------------------------------------------------

struct po_plurals {
    int n_forms;          // 0: the header does not say
    int one;              // the form of 1
    int counts[PO_FORMS]; // of the numbers from 2 to 100, how many take each form
};
// header: the msgstr of an empty msgid.
void po_plurals_of(const char *header, struct po_plurals *out);

#endif
