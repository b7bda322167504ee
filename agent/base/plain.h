// Words of others on a terminal or in a log.
#ifndef NEB_PLAIN_H
#define NEB_PLAIN_H
#include <stdbool.h>

// In place: what commands a terminal becomes '?' byte by byte (control characters, those of two bytes included, and what turns the
// direction of writing), as does what is no UTF-8. lines: a newline stays. Every log line passes it; what else prints a peer's words calls it.
void neb_plain(char *text, bool lines);

#endif
