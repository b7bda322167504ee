// SPDX-License-Identifier: Apache-2.0
#include "agent/base/nearest.h"

#include <stdio.h>
#include <string.h>

enum { NEB_PART_MIN = 3 };

int neb_edits(const char *a, const char *b) {
    int rows[3][NEB_EDITS_MAX], m = (int)strnlen(a, NEB_EDITS_MAX),
                                n = (int)strnlen(b, NEB_EDITS_MAX);
    if (m >= NEB_EDITS_MAX || n >= NEB_EDITS_MAX)
        return NEB_EDITS_MAX;
    for (int j = 0; j <= n; j++)
        rows[0][j] = j;
    for (int i = 1; i <= m; i++) {
        int *row = rows[i % 3], *up = rows[(i + 2) % 3], *up2 = rows[(i + 1) % 3];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = up[j - 1] + (a[i - 1] != b[j - 1]);
            best = up[j] + 1 < best ? up[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                up2[j - 2] + 1 < best)
                best = up2[j - 2] + 1;
            row[j] = best;
        }
    }
    return rows[m % 3][n];
}

// The most edits at which a word of this length counts as misspelt.
static int edits_near(const char *word) {
    size_t n = strlen(word);
    return n <= 3 ? 1 : n <= 6 ? 2 : 3;
}

// True if `word` is at least half of `of` and stands at its beginning or end.
static int is_part(const char *word, const char *of) {
    size_t n = strlen(word), m = strlen(of);
    return n >= NEB_PART_MIN && n < m && 2 * n >= m &&
           (!strncmp(of, word, n) || !strcmp(of + m - n, word));
}

const char *neb_nearest(const char *word, const char *const *known, size_t n) {
    const char *best = NULL;
    int least = edits_near(word) + 1;
    for (size_t i = 0; i < n; i++) {
        if (!known[i])
            continue;
        int d = neb_edits(word, known[i]);
        if ((is_part(word, known[i]) || is_part(known[i], word)) && d > 2)
            d = 2; // a part counts as two edits
        // a word with every letter changed is another word
        if (d < least && d < (int)strlen(known[i]) && d < (int)strlen(word)) {
            least = d;
            best = known[i];
        }
    }
    return best;
}

const char *neb_nearest_of(const char *word, const char *list, char *out, size_t cap) {
    char one[NEB_EDITS_MAX];
    int least = NEB_EDITS_MAX;
    out[0] = 0;
    while (*list) {
        size_t n = strcspn(list, ", ");
        if (n && n < sizeof one && n < cap) {
            snprintf(one, sizeof one, "%.*s", (int)n, list);
            int d = neb_edits(word, one);
            if (d < least && neb_nearest(word, (const char *[]){one}, 1)) {
                least = d;
                snprintf(out, cap, "%s", one);
            }
        }
        list += n + strspn(list + n, ", ");
    }
    return out;
}
