// SPDX-License-Identifier: Apache-2.0
// Message catalogues (gettext's PO text) as parallel text: pairs of an English message and its
// translation.
//
// This program reads the whole grammar of GNU gettext itself, because a process for each of
// thousands of files would be slow, and msgfmt refuses a file for one bad entry. Text is read in
// the charset that the header names.
//
// Left out are the header, fuzzy, obsolete and untranslated entries, and pairs that are equal,
// empty, longer than INTRA_PO_BYTES_MAX, or too different in length. An entry with plural forms
// gives two pairs: the msgid with the form of 1, and the msgid_plural with the form that most
// numbers from 2 to 100 take. The header's Plural-Forms tells these forms. Without a readable one,
// 1 takes the first form and all other numbers the second, as in GNU gettext. Runs of white space
// become one space; placeholders stay.
#ifndef INTRA_PO_H
#define INTRA_PO_H
#include "agent/base/bytes.h"

enum { INTRA_PO_BYTES_MAX = 1000 };

// Called for every pair. The texts are NUL-terminated and valid during the call.
typedef enum neb_status intra_po_pair(void *user, const char *source, const char *target);
// Called for an entry that cannot be read. NEB_OK leaves the entry out.
typedef enum neb_status intra_po_fault(void *user, size_t line, const char *why);
struct intra_po {
    const char *name;     // of the file, for messages
    const char *encoding; // NULL: the charset in the header, else UTF-8
    intra_po_pair *each;
    intra_po_fault *fault; // NULL: a bad entry gives NEB_ERR_FORMAT (logged), with its line
    void *user;
};
// NEB_ERR_FORMAT (logged): an entry is not valid, or its charset is unknown; NEB_ERR_NOMEM; and the
// errors of each and fault.
NEB_MUST_CHECK enum neb_status intra_po_read(const struct intra_po *po, const char *text,
                                             size_t len);
// Squeezes white space in place. True: the two texts are a pair worth learning from.
bool intra_po_clean(char *source, char *target);

#endif
