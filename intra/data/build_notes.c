// SPDX-License-Identifier: Apache-2.0
// What the first reading leaves for the second. For each document: its split, or a mark that it is
// a duplicate. For each chunk: a hash, which shows whether a source has changed meanwhile.
#include "agent/base/array.h"
#include "agent/base/log.h"
#include "intra/data/build_state.h"

#include <stdlib.h>
#include <string.h>

// ---- duplicates ---------------------------------------------------------------------------------
// Exact duplicates within a source are dropped; the first one stays. The key is 64 bits of SHA-256.

static size_t place_of(const uint64_t *table, size_t cap, uint64_t key) {
    size_t at = (size_t)key & (cap - 1);
    while (table[at] && table[at] != key)
        at = (at + 1) & (cap - 1);
    return at;
}

static enum neb_status grow_seen(struct build_notes *n) {
    size_t cap = n->cap_seen ? 2 * n->cap_seen : 4096;
    uint64_t *table = calloc(cap, sizeof *table);
    if (!table)
        return neb_fail(NEB_ERR_NOMEM, "out of memory comparing %zu documents", n->n_seen);
    for (size_t i = 0; i < n->cap_seen; i++)
        if (n->seen[i])
            table[place_of(table, cap, n->seen[i])] = n->seen[i];
    free(n->seen);
    n->seen = table;
    n->cap_seen = cap;
    return NEB_OK;
}

static enum neb_status see(struct build_notes *n, uint64_t key, bool *fresh) {
    if (!key) { // 0 marks a free slot
        *fresh = !n->seen_zero;
        n->seen_zero = true;
        return NEB_OK;
    }
    if (4 * (n->n_seen + 1) > 3 * n->cap_seen)
        NEB_TRY(grow_seen(n));
    size_t at = place_of(n->seen, n->cap_seen, key);
    *fresh = !n->seen[at];
    n->n_seen += *fresh;
    n->seen[at] = key;
    return NEB_OK;
}

// ---- the first reading --------------------------------------------------------------------------

static int split_of(const struct intra_build_spec *s, uint64_t hash) {
    int32_t at = (int32_t)(hash % 1000);
    return at < s->holdout_per_mille                       ? INTRA_VALID
           : at < s->holdout_per_mille + s->test_per_mille ? INTRA_TEST
                                                           : INTRA_TRAIN;
}

static enum neb_status put_verdict(struct build_notes *n, int verdict) {
    if (n->n_docs == n->cap_docs) {
        uint64_t cap = n->cap_docs ? 2 * n->cap_docs : 4096;
        uint8_t *p = realloc(n->verdicts, (size_t)(cap / 4));
        if (!p)
            return neb_fail(NEB_ERR_NOMEM, "out of memory after %llu documents",
                            (unsigned long long)n->n_docs);
        memset(p + n->cap_docs / 4, 0, (size_t)((cap - n->cap_docs) / 4));
        n->verdicts = p;
        n->cap_docs = cap;
    }
    n->verdicts[n->n_docs / 4] |= (uint8_t)(verdict << n->n_docs % 4 * 2);
    n->n_docs++;
    return NEB_OK;
}

static uint64_t chunk_hash(const struct chunk *c) {
    uint64_t h = 0;
    for (size_t i = 0; i < c->n; i++) {
        const struct doc *d = &c->docs[i];
        if (d->len)
            h = neb_mix64(neb_mix64(neb_mix64(h ^ d->text_hash) ^ d->name_hash) ^ d->target_hash);
    }
    return h;
}

static enum neb_status put_chunk(struct build_notes *n, uint64_t hash) {
    uint64_t *p = neb_array_more(n->chunks, n->n_chunks, &n->cap_chunks, 1024, sizeof *p);
    if (!p)
        return neb_fail(NEB_ERR_NOMEM, "out of memory after %zu chunks", n->n_chunks);
    n->chunks = p;
    n->chunks[n->n_chunks++] = hash;
    return NEB_OK;
}

enum neb_status build_note_chunk(struct build *b) {
    struct build_notes *n = &b->notes;
    for (size_t i = 0; i < b->chunk.n; i++) {
        const struct doc *d = &b->chunk.docs[i];
        bool fresh;
        b->units++;
        if (d->fault)
            NEB_TRY(build_fault_count(b, d));
        if (!d->len)
            continue;
        neb_sha256_add(b->inputs, d->text, d->len);
        if (d->target)
            neb_sha256_add(b->inputs, d->target, strlen(d->target) + 1);
        // The name decides the split, so its hash is an input too. It also marks where a document
        // ends.
        neb_sha256_add(b->inputs, &d->name_hash, sizeof d->name_hash);
        NEB_TRY(see(n, d->text_hash, &fresh));
        NEB_TRY(put_verdict(n, fresh ? split_of(b->spec, d->name_hash) : BUILD_DUPLICATE));
        n->duplicates += !fresh;
        if (!fresh)
            continue;
        n->text_bytes[b->source] += d->len;
        NEB_TRY(build_sample_doc(&b->sample, d));
    }
    return put_chunk(n, chunk_hash(&b->chunk));
}

enum neb_status build_note_source_end(struct build *b) {
    struct build_notes *n = &b->notes;
    const struct intra_source_spec *s = &b->spec->sources[b->source];
    free(n->seen);
    n->seen = NULL;
    n->n_seen = n->cap_seen = 0;
    n->seen_zero = false;
    n->docs_end[b->source] = n->n_docs;
    NEB_TRY(build_fault_source_end(b));
    build_sample_source_end(&b->sample);
    if (n->duplicates)
        neb_info("source %s: %llu of %llu documents are left out: %s", s->name,
                 (unsigned long long)n->duplicates,
                 (unsigned long long)(n->n_docs - (b->source ? n->docs_end[b->source - 1] : 0)),
                 s->format == INTRA_TSV || s->format == INTRA_PO ? "their source text occurs before"
                                                                 : "their text occurs before");
    n->duplicates = 0;
    if (n->n_docs == (b->source ? n->docs_end[b->source - 1] : 0))
        return neb_fail(NEB_ERR_INVALID, "source %s: %s holds no documents", s->name, s->path);
    return NEB_OK;
}

// ---- the second reading -------------------------------------------------------------------------

static enum neb_status changed(const struct build *b) {
    const struct intra_source_spec *s = &b->spec->sources[b->source];
    return neb_fail(NEB_ERR_STATE,
                    "source %s: %s has changed while the corpus was built from it; build it again",
                    s->name, b->file ? b->file : s->path);
}

enum neb_status build_recall_chunk(struct build *b) {
    struct build_notes *n = &b->notes;
    if (n->chunk == n->n_chunks || n->chunks[n->chunk++] != chunk_hash(&b->chunk))
        return changed(b);
    for (size_t i = 0; i < b->chunk.n; i++) {
        struct doc *d = &b->chunk.docs[i];
        if (!d->len)
            continue;
        if (n->doc == n->docs_end[b->source])
            return changed(b);
        d->verdict = n->verdicts[n->doc / 4] >> n->doc % 4 * 2 & 3;
        d->number = n->doc++ - (b->source ? n->docs_end[b->source - 1] : 0);
    }
    return NEB_OK;
}

enum neb_status build_recall_source_end(struct build *b) {
    return b->notes.doc == b->notes.docs_end[b->source] ? NEB_OK : changed(b);
}

void build_notes_free(struct build_notes *n) {
    free(n->seen);
    free(n->verdicts);
    free(n->chunks);
    *n = (struct build_notes){0};
}
