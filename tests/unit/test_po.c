// Message catalogues as pairs: what is kept, what is left out, and where a malformed one is.
#include "agent/base/log.h"
#include "intra/po.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char seen[4096];
static enum neb_status pair(void *user, const char *source, const char *target) {
    (void)user;
    size_t n = strlen(seen);
    snprintf(seen + n, sizeof seen - n, "%s=%s|", source, target);
    return NEB_OK;
}
static enum neb_status read_text(const char *text) {
    seen[0] = 0;
    return intra_po_read(&(struct intra_po){.name = "t.po", .each = pair}, text, strlen(text));
}

static void keeps(void **state) {
    (void)state;
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"msgid \"cannot open %s\\n\"\nmsgstr \"kann %s nicht öffnen\\n\"\n",
         "cannot open %s=kann %s nicht öffnen|"},
        {"msgid \"\"\nmsgstr \"Language: de\\n\"\n", ""},               // header
        {"#, fuzzy, c-format\nmsgid \"one\"\nmsgstr \"eins\"\n", ""},   //
        {"#, c-format\nmsgid \"one\"\nmsgstr \"eins\"\n", "one=eins|"}, //
        {"msgid \"one\"\nmsgstr \"\"\n", ""},                           // untranslated
        {"msgid \"same\"\nmsgstr \"same\"\n", ""},                      //
        {"msgid \"%d\"\nmsgstr \"%i\"\n", ""},                          // nothing to learn
        {"#~ msgid \"one\"\n#~ msgstr \"eins\"\n", ""},                 // obsolete
        {"msgid \"\"\n\"two \"\n\"  lines\"\nmsgstr \"\"\n\"zwei\\n\"\n\"Zeilen\"\n",
         "two lines=zwei Zeilen|"},
        {"msgid \"%d file\"\nmsgid_plural \"%d files\"\nmsgstr[0] \"%d Datei\"\nmsgstr[1] \"%d "
         "Dateien\"\n",
         "%d file=%d Datei|%d files=%d Dateien|"},
        {"msgid \"%d file\"\nmsgid_plural \"%d files\"\nmsgstr[0] \"%d tệp\"\n",
         "%d file=%d tệp|%d files=%d tệp|"}, // a language with one form
        {"msgid \"one\"\nmsgid_plural \"ones\"\nmsgstr[0] \"один\"\nmsgstr[1] \"два\"\nmsgstr[2] "
         "\"пять\"\n",
         "one=один|ones=два|"},
        {"msgctxt \"v\"\nmsgid \"open\"\nmsgstr \"öffnen\"\nmsgid \"shut\"\nmsgstr \"zu\"\n",
         "open=öffnen|shut=zu|"}, // without a blank line between
        {"#, fuzzy\nmsgid \"one\"\nmsgstr \"eins\"\n\nmsgid \"two\"\nmsgstr \"zwei\"\n",
         "two=zwei|"},
        {"msgid \"say \\\"hi\\\"\"\nmsgstr \"sag \\\"hallo\\\"\"\n", "say \"hi\"=sag \"hallo\"|"},
        {"msgid \"bytes\"\nmsgstr \"\xff\xfe\"\n", ""}, // not UTF-8
        {"msgid \"ab\"\nmsgstr \"this is far too long to be a translation of it\"\n", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(read_text(cases[i].text), NEB_OK);
        assert_string_equal(seen, cases[i].want);
    }
}

static void names_the_line(void **state) {
    (void)state;
    char error[512];
    static const char *const bad[] = {"\nmsgid \"a\nmsgstr \"b\"\n", "\nhello\n", "\n\"a\"\n",
                                      "\nmsgid \"a\" b\"\n", "\nmsgid \"a\\\"\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(read_text(bad[i]), NEB_ERR_FORMAT);
        neb_last_error(error, sizeof error);
        assert_non_null(strstr(error, "t.po:2:"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(keeps), cmocka_unit_test(names_the_line)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
