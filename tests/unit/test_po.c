// SPDX-License-Identifier: Apache-2.0
// Message catalogues as pairs: which entries are kept, which are dropped, and the place of a
// malformed one.
#include "agent/base/log.h"
#include "intra/data/po.h"

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
        {"msgid \"\"\nmsgstr \"Language: de\\n\"\n", ""},             // header
        {"#, fuzzy, c-format\nmsgid \"one\"\nmsgstr \"eins\"\n", ""}, // fuzzy
        {"#, c-format\nmsgid \"one\"\nmsgstr \"eins\"\n", "one=eins|"},
        {"msgid \"one\"\nmsgstr \"\"\n", ""},           // untranslated
        {"msgid \"same\"\nmsgstr \"same\"\n", ""},      // nothing to learn
        {"msgid \"%d\"\nmsgstr \"%i\"\n", ""},          // nothing to learn
        {"#~ msgid \"one\"\n#~ msgstr \"eins\"\n", ""}, // obsolete
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
         "open=öffnen|shut=zu|"}, // no blank line between
        {"#, fuzzy\nmsgid \"one\"\nmsgstr \"eins\"\n\nmsgid \"two\"\nmsgstr \"zwei\"\n",
         "two=zwei|"},
        {"msgid \"say \\\"hi\\\"\"\nmsgstr \"sag \\\"hallo\\\"\"\n", "say \"hi\"=sag \"hallo\"|"},
        {"msgid \"ab\"\nmsgstr \"this is far too long to be a translation of it\"\n", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(read_text(cases[i].text), NEB_OK);
        assert_string_equal(seen, cases[i].want);
    }
}

#define HEADER(charset, forms)                                                                     \
    "msgid \"\"\nmsgstr \"\"\n\"Content-Type: text/plain; charset=" charset                        \
    "\\n\"\n\"Plural-Forms: " forms "\\n\"\n\n"
#define FILES "msgid \"one file\"\nmsgid_plural \"%d files\"\n"

// Files as GNU gettext writes them, and as other programs do.
static void grammar(void **state) {
    (void)state;
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"msgid \"one\"\r\nmsgstr \"\"\r\n\r\nmsgid \"two\"\r\nmsgstr \"zwei\"\r\n", "two=zwei|"},
        {"msgid \"one\" \"two\"\nmsgstr \"eins\"\"zwei\" \"drei\"\n", "onetwo=einszweidrei|"},
        {"msgid\n\"one\"\nmsgstr\n  \"eins\"\n", "one=eins|"},
        {"msgid\t\"one\"\nmsgstr\"eins\"\n", "one=eins|"},
        {"msgctxt\"a\"msgid\"one\"msgstr\"eins\"msgid\"two\"msgstr\"zwei\"", "one=eins|two=zwei|"},
        {"\xef\xbb\xbfmsgid \"one\"\nmsgstr \"eins\"\n", "one=eins|"},
        {"msgid \"a \\342\\202\\254\"\nmsgstr \"b \\xe2\\x82\\xac\\41\\x21\"\n", "a €=b €!!|"},
        {"msgid \"a\\tb\\0c\"\nmsgstr \"d\\/e\\qf\"\n", "a b c=d/eqf|"},
        {"#, fuzzy\n#~ msgid \"old\"\n#~ msgstr \"alt\"\nmsgid \"one\"\nmsgstr \"eins\"\n",
         "one=eins|"},
        {"#, c-format,fuzzy\r\n#| msgid \"was\"\r\nmsgid \"one\"\r\nmsgstr \"eins\"\r\n", ""},
        {"#| msgctxt \"c\"\n#| msgid \"was\"\n#| \"so\"\nmsgid \"one\"\nmsgstr \"eins\"\n",
         "one=eins|"},
        {"msgid \"one\"\nmsgstr \"eins\"\n#~| msgid \"was\"\n#~ msgid \"old\"\n#~ msgstr \"alt\"\n",
         "one=eins|"},
        {"#~ this is no entry [\n#~ msgid \"cut\nmsgid \"one\"\nmsgstr \"eins\"\n#~ msgid "
         "\"old\"\n",
         "one=eins|"},
        {"#, not-fuzzy-at-all\n# fuzzy\nmsgid \"one\"\nmsgstr \"eins\"\n", "one=eins|"},
        {"#= fuzzy\nmsgid \"one\"\nmsgstr \"eins\"\n", ""},
        {"msgid \"one\"\n# a word between\nmsgstr \"eins\"\n", "one=eins|"},
        {"domain \"d\"\nmsgid \"one\"\nmsgstr \"eins\"\n", "one=eins|"},
        {"msgctxt \"\"\nmsgid \"\"\nmsgstr \"nothing\"\nmsgid \"one\"\nmsgstr \"eins\"",
         "one=eins|"},
        {FILES "msgstr [ 1 ] \"Dateien\"\nmsgstr[0]\"Datei\"\n",
         "one file=Datei|%d files=Dateien|"},
        {FILES "msgstr[0] \"Datei\"\nmsgstr[1] \"\"\n", "one file=Datei|"},
        {"", ""},
        {"# only this", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(read_text(cases[i].text), NEB_OK);
        assert_string_equal(seen, cases[i].want);
    }
}

// Plural forms: the form for 1, and the form that most larger numbers take.
static void plurals(void **state) {
    (void)state;
    static const char *const f[6] = {"null", "eine", "zwei", "drei", "vier", "fünf"};
    static const struct {
        const char *header;
        int one, many; // indices into f
    } cases[] = {
        {HEADER("UTF-8", "nplurals=2; plural=n != 1;"), 0, 1},
        {HEADER("UTF-8", "nplurals=2; plural=(n > 1);"), 0, 1},
        {HEADER("UTF-8", "nplurals=1; plural=0;"), 0, 0},
        {HEADER("UTF-8", "nplurals = 2 ; plural = n!=1"), 0, 1},
        {HEADER("UTF-8", "nplurals=3; \"\n\"plural=n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 "
                         "&& (n%100<10 || n%100>=20) ? 1 : 2;"),
         0, 2},
        {HEADER("UTF-8", "nplurals=3; plural=(n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || "
                         "n%100>=20) ? 1 : 2);"),
         0, 2},
        {HEADER("UTF-8",
                "nplurals=4; plural=(n%100==1 ? 1 : n%100==2 ? 2 : n%100==3 || n%100==4 ? 3 : 0);"),
         1, 0},
        {HEADER("UTF-8",
                "nplurals=4; plural=(n==1) ? 0 : (n==2) ? 1 : (n != 8 && n != 11) ? 2 : 3;"),
         0, 2},
        {HEADER("UTF-8", "nplurals=5; plural=(n==1 ? 0 : n==2 ? 1 : n<7 ? 2 : n<11 ? 3 : 4);"), 0,
         4},
        {HEADER("UTF-8", "nplurals=6; plural=n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && "
                         "n%100<=10 ? 3 : n%100>=11 ? 4 : 5;"),
         1, 4},
        {HEADER("UTF-8", "nplurals=2; plural=n==0 ? 1/0 : 1-1*2+n/2%3*0+1 == 0 || !(n<=1);"), 1, 1},
        // No valid expression: it is read as GNU gettext reads it.
        {HEADER("UTF-8", "nplurals=INTEGER; plural=EXPRESSION;"), 0, 1},
        {HEADER("UTF-8", "nplurals=2; plural=n/0;"), 0, 1},
        {HEADER("UTF-8", "nplurals=2; plural=n;"), 0, 1},
        {HEADER("UTF-8", "nplurals=2; plural=(n != 1;"), 0, 1},
        {HEADER("UTF-8", "nplurals=2; plural=n != 1 system;"), 0, 1},
        {HEADER("UTF-8", "nplurals=99; plural=n==1;"), 0, 1},
        {HEADER("UTF-8", "nplurals=2; "
                         "plural=(((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((("
                         "((((((((((((n))))"),
         0, 1},
        {HEADER("UTF-8", ""), 0, 1},
        {"", 0, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[2048], want[256];
        int n = snprintf(text, sizeof text, "%s%s", cases[i].header, FILES);
        for (int k = 0; k < 6; k++)
            n += snprintf(text + n, sizeof text - (size_t)n, "msgstr[%d] \"%s\"\n", k, f[k]);
        snprintf(want, sizeof want, "one file=%s|%%d files=%s|", f[cases[i].one], f[cases[i].many]);
        assert_int_equal(read_text(text), NEB_OK);
        if (strcmp(seen, want) != 0)
            fail_msg("%s: %s, not %s", cases[i].header, seen, want);
    }
}

// The header's charset decides, also where a byte of a character equals a quote or a backslash.
static void charsets(void **state) {
    (void)state;
#define FORMS "nplurals=2; plural=n!=1;"
    static const struct {
        const char *text, *want;
    } cases[] = {
        {HEADER("ISO-8859-1", FORMS) "msgid \"door\"\nmsgstr \"T\xfcr\"\n", "door=Tür|"},
        {HEADER("iso8859-1", FORMS) "msgid \"door\"\nmsgstr \"T\\374r\"\n", "door=Tür|"},
        {HEADER("SHIFT_JIS", FORMS) "msgid \"Show table\"\nmsgstr \"\x95\x5c\\n\x95\x5c\"\n",
         "Show table=表 表|"},
        {HEADER("SHIFT_JIS", FORMS) "msgid \"Show table\"\nmsgstr \"\\225\\134 \x95\x5c\"\n",
         "Show table=表 表|"},
        {HEADER("EUC-JP", FORMS) "msgid \"Show table\"\nmsgstr \"\xc9\xbd\"\n", "Show table=表|"},
        {HEADER("GBK", FORMS) "msgid \"Show\"\nmsgstr \"\x81\x5c\"\n", "Show=乗|"},
        {HEADER("BIG5", FORMS) "msgid \"Show\"\nmsgstr \"\xa5\x5c\"\n", "Show=功|"},
        {HEADER("KOI8-R", FORMS) "msgid \"Shut\"\nmsgstr \"\xda\xc1\xcb\"\n", "Shut=зак|"},
        {HEADER("CP1251", FORMS) "msgid \"Shut\"\nmsgstr \"\xe7\xe0\xea\"\n", "Shut=зак|"},
        {HEADER("CHARSET", FORMS) "msgid \"door\"\nmsgstr \"Tür\"\n", "door=Tür|"},
        {HEADER("us-ascii", FORMS) "msgid \"door\"\nmsgstr \"Tür\"\n", "door=Tür|"},
        {"# charset=KOI8-R\nmsgid \"charset=KOI8-R\"\nmsgstr \"charset=KOI8-R x\"\n" HEADER(
             "UTF-8", FORMS) "msgid \"door\"\nmsgstr \"Tür\"\n",
         "charset=KOI8-R=charset=KOI8-R x|door=Tür|"},
        {"msgid \"\" msgstr \"a: b\\n\" \"Content-Type: text/plain; charset=KOI8-R\\n\"\n"
         "msgid \"Shut\"\nmsgstr \"\xda\xc1\xcb\"\n",
         "Shut=зак|"},
        {"# Jos\xe9\n" HEADER("UTF-8", FORMS) "msgid \"door\"\nmsgstr \"Tür\"\n", "door=Tür|"},
    };
    char error[512];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(read_text(cases[i].text), NEB_OK);
        assert_string_equal(seen, cases[i].want);
    }
    assert_int_equal(read_text(HEADER("X-NO-SUCH", FORMS)), NEB_ERR_FORMAT);
    neb_last_error(error, sizeof error);
    assert_non_null(strstr(error, "t.po: its header names the charset 'X-NO-SUCH'"));
    assert_int_equal(read_text(HEADER("UTF-8", FORMS) "msgid \"door\"\nmsgstr \"T\xfcr\"\n"),
                     NEB_ERR_FORMAT);
    neb_last_error(error, sizeof error);
    assert_non_null(
        strstr(error, "t.po:6: the text of this entry is not valid UTF-8, which is the charset"));
}

static enum neb_status note(void *user, size_t line, const char *why) {
    size_t n = strlen(seen);
    (void)user, (void)why;
    snprintf(seen + n, sizeof seen - n, "<%zu>", line);
    return NEB_OK;
}

static void reads_on_after_faults(void **state) {
    (void)state;
    static const char text[] =
        "msgid \"one\"\nmsgstr \"eins\"\n\nmsgid \"two\nmsgstr \"zwei\"\n\n"
        "msgid \"three\"\nmsgstr \"drei\"\nbogus\n\nmsgid \"four\"\n\n"
        "msgid \"five\"\nmsgstr \"f\xfcnf\"\n\nmsgid \"six\"\nmsgstr \"sechs\"\nmsgid \"end\"";
    seen[0] = 0;
    assert_int_equal(intra_po_read(&(struct intra_po){.name = "t.po", .each = pair, .fault = note},
                                   text, sizeof text - 1),
                     NEB_OK);
    assert_string_equal(seen, "one=eins|<4><9><11><13>six=sechs|<18>");
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(keeps),
                                       cmocka_unit_test(grammar),
                                       cmocka_unit_test(plurals),
                                       cmocka_unit_test(charsets),
                                       cmocka_unit_test(reads_on_after_faults),
                                       cmocka_unit_test(names_the_line)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
