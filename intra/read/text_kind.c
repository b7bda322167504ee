// SPDX-License-Identifier: Apache-2.0
// Marks of known file kinds, and guesses about text that is not UTF-8.
#include "intra/read/text_kind.h"
#include "intra/read/charset.h"

#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

enum { SAMPLE = 4096 }; // bytes that the guess of an encoding looks at

static const char unpack[] = "unpack it first", convert[] = "write it as JSONL first",
                  tar[] = "set the format of the source to tar",
                  parquet[] = "set the format of the source to parquet, and field to a column",
                  arrow[] = "set the format of the source to arrow, and field to a column",
                  ids[] = "set the format of the source to nanogpt, and name the tokenizer",
                  megatron[] = "set the format of the source to megatron, and name the tokenizer";

static const struct mark {
    const char *bytes;
    size_t n, at;
    const char *name, *help;
} marks[] = {
#define MARK(at, bytes, name, help)                                                                \
    { bytes, sizeof bytes - 1, at, name, help }
    MARK(0, "\x1f\x8b", "gzip data", unpack),
    MARK(0, "\x28\xb5\x2f\xfd", "zstd data", unpack),
    MARK(0,
         "\xfd"
         "7zXZ\0",
         "xz data", unpack),
    MARK(0, "BZh", "bzip2 data", unpack), // text may begin so, too: see is_confirmed
    MARK(0, "\x04\x22\x4d\x18", "LZ4 data", unpack),
    MARK(0, "\x1f\x9d", "compress (.Z) data", unpack),
    MARK(0, "7z\xbc\xaf\x27\x1c", "a 7z archive", unpack),
    MARK(0, "Rar!\x1a\x07", "a RAR archive", unpack),
    MARK(0, "PK\3\4", "a ZIP archive (docx, xlsx, npz and jar files are ZIP archives too)", unpack),
    MARK(0, "PK\5\6", "a ZIP archive", unpack),
    MARK(257, "ustar", "a tar archive", tar),
    MARK(0, "PAR1", "a Parquet file", parquet),
    MARK(0, "ARROW1", "an Arrow file", arrow),
    MARK(0, "\xff\xff\xff\xff", "an Arrow stream", arrow),
    MARK(0, "FEA1", "an old Feather file", convert),
    MARK(0, "MMIDIDX\0", "the index of a Megatron data set", megatron),
    MARK(0, "\x88\xd8\x34\x01", "a list of token ids of llm.c", ids),
    MARK(0, "\xa1\xd9\x34\x01", "a list of token ids of llm.c", ids),
    MARK(0, "ORC", "an ORC file", convert),
    MARK(0, "Obj\1", "an Avro file", convert),
    MARK(0, "SQLite format 3", "an SQLite database", convert),
    MARK(0, "\x89HDF\r\n\x1a\n", "an HDF5 file", convert),
    MARK(0, "\x93NUMPY", "a NumPy array", NULL),
    MARK(0, "NEBSHRD", "a shard of a corpus: tokens, not text", NULL),
    MARK(0, "%PDF-", "a PDF document", "take its text out first (pdftotext)"),
    MARK(0, "\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office document", NULL),
    MARK(0, "{\\rtf", "an RTF document", "save it as text first"),
    MARK(0, "\177ELF", "a program (ELF)", NULL),
    MARK(0, "\xca\xfe\xba\xbe", "a Java class or a Mach-O program", NULL),
    MARK(0, "\xcf\xfa\xed\xfe", "a Mach-O program", NULL),
    MARK(0, "\0asm", "a WebAssembly program", NULL),
    MARK(0, "\x89PNG\r\n\x1a\n", "a PNG image", NULL),
    MARK(0, "\xff\xd8\xff", "a JPEG image", NULL),
    MARK(0, "GIF87a", "a GIF image", NULL),
    MARK(0, "GIF89a", "a GIF image", NULL),
    MARK(0, "OggS", "an Ogg file", NULL),
    MARK(0, "\xde\x12\4\x95", "a compiled message catalogue", "take the .po file"),
    MARK(0, "\x95\4\x12\xde", "a compiled message catalogue", "take the .po file"),
    MARK(0, "version https://git-lfs.github.com/spec/", "a Git LFS pointer, not the file itself",
         "fetch the file: git lfs pull"),
#undef MARK
};

// True if the bytes cannot be text. The last character may be incomplete.
static bool is_binary(const uint8_t *p, size_t n) {
    bool strange = intra_utf8_length(p, n) + 3 < n;
    for (size_t i = 0; i < n && !strange; i++)
        strange = p[i] < ' ' && !strchr("\t\n\r\f", p[i] ? p[i] : 1);
    return strange;
}

// Some marks can also begin a text; the bytes after the mark decide.
static bool is_confirmed(const struct mark *m, const uint8_t *p, size_t n) {
    if (!strcmp(m->bytes, "BZh"))
        return n >= 10 && p[3] >= '1' && p[3] <= '9' &&
               (!memcmp(p + 4, "1AY&SY", 6) || !memcmp(p + 4, "\x17\x72\x45\x38\x50\x90", 6));
    if (!strcmp(m->bytes, "ORC") || !strcmp(m->bytes, "PAR1") || !strcmp(m->bytes, "ARROW1") ||
        !strcmp(m->bytes, "FEA1") || !strcmp(m->bytes, "OggS"))
        return is_binary(p, n);
    if (!strcmp(m->name, "a tar archive"))
        return memchr(p, 0, m->at) != NULL;
    return true;
}

bool intra_text_kind_of(const uint8_t *p, size_t n, struct intra_text_kind *out) {
    n = n < INTRA_KIND_HEAD ? n : INTRA_KIND_HEAD;
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        const struct mark *m = &marks[i];
        if (n < m->at + m->n || memcmp(p + m->at, m->bytes, m->n) != 0 || !is_confirmed(m, p, n))
            continue;
        *out = (struct intra_text_kind){m->name, m->help, m->at, m->n};
        return true;
    }
    return false;
}

bool intra_text_is_catalogue(const uint8_t *p, size_t n) {
    return n >= 4 && (!memcmp(p, "\xde\x12\4\x95", 4) || !memcmp(p, "\x95\4\x12\xde", 4));
}

// ---- what it looks like -------------------------------------------------------------------------

// True if the bytes read as text of this unit and byte order: almost no invalid or control
// characters, half of them letters, and now and then a blank or a punctuation mark.
static bool reads_as(const uint8_t *p, size_t n, size_t unit, bool big) {
    size_t units = 0, strange = 0, gaps = 0, letters = 0;
    for (size_t i = 0; i + unit <= n; i += unit) {
        uint32_t c = 0;
        for (size_t k = 0; k < unit; k++)
            c |= (uint32_t)p[i + k] << 8 * (big ? unit - 1 - k : k);
        bool half = unit == 2 && c >= 0xd800 && c < 0xe000; // half of a surrogate pair
        utf8proc_category_t is =
            c > 0x10ffff ? UTF8PROC_CATEGORY_CN : utf8proc_category((utf8proc_int32_t)c);
        bool gap = c == ' ' || c == '\n' || c == '\r' || c == '\t' || c == 0x3001 || c == 0x3002 ||
                   c == 0xff0c;
        units++;
        gaps += gap;
        letters += is >= UTF8PROC_CATEGORY_LU && is <= UTF8PROC_CATEGORY_LO;
        strange += !gap && !half &&
                   (is == UTF8PROC_CATEGORY_CN || is == UTF8PROC_CATEGORY_CC ||
                    is == UTF8PROC_CATEGORY_CS || is == UTF8PROC_CATEGORY_CO);
    }
    return units && 20 * strange <= units && 40 * gaps >= units && 2 * letters >= units;
}

static bool begins(const uint8_t *p, size_t n, const char *mark, size_t k) {
    return n >= k && !memcmp(p, mark, k);
}

const char *intra_text_order(const uint8_t *p, size_t n) {
    n = n < SAMPLE ? n : SAMPLE;
    if (begins(p, n, "\xff\xfe\0\0", 4) && n % 4 == 0)
        return "UTF-32LE";
    if (begins(p, n, "\0\0\xfe\xff", 4))
        return "UTF-32BE";
    if (begins(p, n, "\xff\xfe", 2))
        return "UTF-16LE";
    if (begins(p, n, "\xfe\xff", 2))
        return "UTF-16BE";
    if (reads_as(p, n, 4, false))
        return "UTF-32LE";
    if (reads_as(p, n, 4, true))
        return "UTF-32BE";
    bool little = reads_as(p, n, 2, false), big = reads_as(p, n, 2, true);
    return little && !big ? "UTF-16LE" : big && !little ? "UTF-16BE" : NULL;
}

// True if the bytes may be u16 ids of a vocabulary: none is among the highest numbers, as in data
// of other kinds.
static bool are_ids(const uint8_t *p, size_t n) {
    for (size_t i = 1; i < n; i += 2)
        if (p[i] >= 0xe0)
            return false;
    return n >= 64;
}

void intra_text_guess(const uint8_t *p, size_t n, char *out, size_t cap) {
    const char *order = intra_text_order(p, n);
    size_t nul = 0, control = 0, high = 0, ascii = 0, whole = 0;
    n = n < SAMPLE ? n : SAMPLE;
    for (size_t i = 0; i < n; i++) {
        size_t k = p[i] >= 0x80 ? intra_utf8_length(p + i, n - i < 4 ? n - i : 4) : 0;
        nul += !p[i];
        control += p[i] < ' ' && !strchr("\t\n\r\f\b\x1b", p[i] ? p[i] : 1);
        ascii += p[i] >= ' ' && p[i] < 127;
        if (k > 1) { // a UTF-8 character
            whole++;
            while (i + 1 < n && p[i + 1] >> 6 == 2)
                i++;
        } else {
            high += p[i] >= 0x80;
        }
    }
    *out = 0;
    if (order)
        snprintf(out, cap, "; it looks like %s: set the encoding of the source to %s", order,
                 order);
    else if (control > n / 10 && are_ids(p, n))
        snprintf(out, cap, "; these may be token ids of 16 bits: %s", ids);
    else if (control > n / 10)
        snprintf(out, cap,
                 "; it looks like binary data, not text (nebula help corpus lists the "
                 "formats)");
    else if (nul)
        *out = 0;
    else if (whole > high)
        snprintf(out, cap, "; the text around it is UTF-8, so the file is damaged there");
    else if (high && 2 * high <= ascii)
        snprintf(out, cap,
                 "; it looks like an 8-bit encoding, such as Latin-1 or Windows-1252: set the "
                 "encoding of the source");
    else if (high)
        snprintf(out, cap,
                 "; it looks like text in another encoding: set the encoding of the source");
}
