// SPDX-License-Identifier: Apache-2.0
// Message catalogues (gettext's PO text) as parallel text: pairs of an English message and its translation.
//
// The whole grammar of GNU gettext is read, by this program itself: a process for each of thousands
// of files, two times over, would take longer than all the rest, and msgfmt refuses a file for one
// entry. Text is taken in the charset that the header names.
//
// Left out: the header, fuzzy, obsolete and untranslated entries, pairs that are equal, empty,
// longer than INTRA_PO_BYTES_MAX, or of lengths so unlike that they are no translations. Of an
// entry with plural forms the header's Plural-Forms says which: the message goes with the form of
// 1, its plural with the form that most numbers from 2 to 100 take. Without a Plural-Forms that can
// be read, 1 takes the first form and all others the second, as in GNU gettext. White space is
// squeezed; placeholders stay.
#ifndef INTRA_PO_H
#define INTRA_PO_H
#include "agent/base/bytes.h"

enum { INTRA_PO_BYTES_MAX = 1000 };

// Called for every pair; the texts are NUL-terminated and valid during the call.
typedef enum neb_status intra_po_pair(void *user, const char *source, const char *target);
// An entry that cannot be read: NEB_OK leaves it out.
typedef enum neb_status intra_po_fault(void *user, size_t line, const char *why);
struct intra_po {
    const char *name;     // of the file, for complaints
    const char *encoding; // NULL: what its header names, or UTF-8
    intra_po_pair *each;
    intra_po_fault *fault; // NULL: NEB_ERR_FORMAT (logged), with the line
    void *user;
};
// NEB_ERR_FORMAT (logged): an entry is none of PO, or is in a charset that is not known; each's and
// fault's own error.
NEB_MUST_CHECK enum neb_status intra_po_read(const struct intra_po *po, const char *text,
                                             size_t len);
// Squeezes white space in place and tells whether the two make a pair worth learning from.
bool intra_po_clean(char *source, char *target);

#endif
