// Message catalogues (gettext's PO text) as parallel text: pairs of an English message and its translation.
//
// Left out: the header, fuzzy, obsolete and untranslated entries, pairs that are equal, empty, not UTF-8, longer than
// INTRA_PO_BYTES_MAX, or of lengths so unlike that they are no translations. Of an entry with plural forms the singular and
// the first form make a pair, the plural and the second (or only) one. White space is squeezed; placeholders stay.
#ifndef INTRA_PO_H
#define INTRA_PO_H
#include "agent/base/bytes.h"

enum { INTRA_PO_BYTES_MAX = 1000 };

// Called for every pair; the texts are NUL-terminated and valid during the call.
typedef enum neb_status intra_po_pair(void *user, const char *source, const char *target);
// name: of the file, for complaints. NEB_ERR_FORMAT: a line that is none of PO, with its number; each's own error.
NEB_MUST_CHECK enum neb_status intra_po_read(const char *text, size_t len, const char *name,
                                             intra_po_pair *each, void *user);
// Squeezes white space in place and tells whether the two make a pair worth learning from.
bool intra_po_clean(char *source, char *target);

#endif
