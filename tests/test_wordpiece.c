/* The example's tokenizer: its rules on a small vocabulary, and the recorded sentences on the real
 * one, which examples/embed/fetch-model puts into MHA_MODEL_DIR (build/model if not set). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support.h"
#include "wordpiece.h"

static const char vocabulary[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"
                                 "a\nmis\n##use\n##us\n##e\nuse\nnaive\nl\n##l\n##a\n,\n.\n$\n"
                                 "\u4E2D\n\u56FD\n\u00B7\nstrasse\n\u00DF\n\u03C3\n[\n]\nsep\n#\n";

/* Writes a vocabulary to a temporary file; the caller removes it and frees the name. */
static char *write_vocabulary(const char *text, size_t bytes)
{
    char *path = strdup("/tmp/mha-vocabulary-XXXXXX");
    assert_non_null(path);
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    assert_int_equal(write(descriptor, text, bytes), (ssize_t)bytes);
    close(descriptor);
    return path;
}

static bool open_text(const char *text, struct wordpiece **wordpiece, struct reason *why)
{
    char *path = write_vocabulary(text, strlen(text));
    bool ok = wordpiece_open(path, wordpiece, why);
    unlink(path);
    free(path);
    return ok;
}

static int open_small(void **state)
{
    struct reason why = { "" };
    struct wordpiece *wordpiece = NULL;
    if (!open_text(vocabulary, &wordpiece, &why))
        fail_msg("%s", why.text);
    *state = wordpiece;
    return 0;
}

static int close_small(void **state)
{
    wordpiece_close(*state);
    return 0;
}

/* Fails unless the pieces of `bytes` bytes of text, joined by blanks, are `want`. */
static void check_bytes(const struct wordpiece *wordpiece, const char *text, size_t bytes,
                        int32_t limit, const char *want)
{
    int32_t *ids = guarded(limit * (int64_t)sizeof *ids), count = 0;
    struct reason why = { "" };
    char got[4096] = "";
    if (!wordpiece_encode(wordpiece, text, bytes, limit, ids, &count, &why))
        fail_msg("%s", why.text);
    assert_in_range(count, 2, limit);
    for (int32_t i = 0; i < count; i++) {
        if (i > 0)
            strcat(got, " ");
        strcat(got, wordpiece_text(wordpiece, ids[i]));
    }
    assert_string_equal(got, want);
    guarded_free(ids);
}

static void check(void **state, const char *text, const char *want)
{
    check_bytes(*state, text, strlen(text), 256, want);
}

static void spells_with_the_longest_pieces(void **state)
{
    check(state, "misuse", "[CLS] mis ##use [SEP]");
    check(state, "use", "[CLS] use [SEP]");
    check(state, "mise", "[CLS] mis ##e [SEP]");
    check(state, "misusa", "[CLS] mis ##us ##a [SEP]");
    check(state, "misx", "[CLS] [UNK] [SEP]"); /* all of the word, not its rest */
    check(state, "us a", "[CLS] [UNK] a [SEP]");
}

static void cleans_lower_cases_and_strips(void **state)
{
    check(state, "NA\u00CFVE nai\u0308ve", "[CLS] naive naive [SEP]");
    check(state, "na\u00EFve\u0301", "[CLS] naive [SEP]");
    check(state, "\u1E9E \u03A3", "[CLS] \u00DF \u03C3 [SEP]");
    check(state, "a\ta\r\na\u00A0a\u3000a\u2028a", "[CLS] a a a a a a [SEP]");
    check(state, "mi\u00ADs\u200Bu\ase\uFEFF", "[CLS] mis ##use [SEP]");
    check(state, "mi\vs\xC2\x85", "[CLS] mis [SEP]"); /* a control character, not a blank */
    check(state, "mi\uE000s\uFFFD", "[CLS] mis [SEP]");
    check_bytes(*state, "mi\0s", 4, 256, "[CLS] mis [SEP]");
}

static void splits_at_punctuation_and_ideographs(void **state)
{
    check(state, "a,a.$a", "[CLS] a , a . $ a [SEP]");
    check(state, "a\u00B7a", "[CLS] a \u00B7 a [SEP]");
    check(state, "a\u20ACa", "[CLS] [UNK] [SEP]"); /* a sign of money that is not ASCII */
    check(state, "##use", "[CLS] # # use [SEP]");
    check(state, "a\u4E2D\u56FDa", "[CLS] a \u4E2D \u56FD a [SEP]");
    check(state, "", "[CLS] [SEP]");
    check(state, " \t ", "[CLS] [SEP]");
}

static void knows_special_tokens_in_text(void **state)
{
    check(state, "a[SEP]a [MASK]", "[CLS] a [SEP] a [MASK] [SEP]");
    check(state, "[sep]", "[CLS] [ sep ] [SEP]");
    check(state, "[[SEP]", "[CLS] [ [SEP] [SEP]");
    check(state, "[SEP", "[CLS] [ sep [SEP]");
}

static void passes_over_what_is_not_utf8(void **state)
{
    check(state, "mi\xFFs\x80u\xC0\xAFse", "[CLS] mis ##use [SEP]");
    check(state, "mi\xED\xA0\x80s", "[CLS] mis [SEP]"); /* half a surrogate pair */
    check(state, "mi\xE4\xB8s\xF0\x9F", "[CLS] mis [SEP]");
    check(state, "mis\xF4\x90\x80\x80", "[CLS] mis [SEP]");
}

static void limits_words_to_a_hundred_characters(void **state)
{
    char word[102], want[1024] = "[CLS] l";
    memset(word, 'l', sizeof word);
    word[101] = '\0';
    check(state, word, "[CLS] [UNK] [SEP]");
    word[100] = '\0';
    for (int i = 1; i < 100; i++)
        strcat(want, " ##l");
    strcat(want, " [SEP]");
    check(state, word, want);
}

static void leaves_out_what_goes_beyond_the_limit(void **state)
{
    const struct wordpiece *wordpiece = *state;
    check_bytes(wordpiece, "a a a", 5, 5, "[CLS] a a a [SEP]");
    check_bytes(wordpiece, "a a a", 5, 4, "[CLS] a a [SEP]");
    check_bytes(wordpiece, "a misuse", 8, 4, "[CLS] a mis [SEP]");
    check_bytes(wordpiece, "a misusx", 8, 4, "[CLS] a [UNK] [SEP]"); /* judged as a whole */
    check_bytes(wordpiece, "a[MASK][SEP]", 12, 3, "[CLS] a [SEP]");
    check_bytes(wordpiece, "a", 1, 2, "[CLS] [SEP]");
}

static void refuses_what_is_no_vocabulary(void **state)
{
    (void)state;
    struct wordpiece *wordpiece = NULL;
    struct reason why = { "" };
    assert_false(wordpiece_open("/nonexistent/vocab.txt", &wordpiece, &why));
    assert_null(wordpiece);
    check_contains(why.text, "/nonexistent/vocab.txt: ");
    assert_false(wordpiece_open("/", &wordpiece, &why));
    check_contains(why.text, "/: ");
    assert_false(open_text("[PAD]\n[UNK]\n[CLS]\n[MASK]\na\n", &wordpiece, &why));
    assert_null(wordpiece);
    check_contains(why.text, "lacks [SEP]");
    assert_false(open_text("", &wordpiece, &why));
    check_contains(why.text, "lacks [PAD]");
}

static void reads_lines_of_either_system(void **state)
{
    (void)state;
    struct wordpiece *wordpiece = NULL;
    struct reason why = { "" };
    assert_true(open_text("a\r\n[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\n[MASK]", &wordpiece, &why));
    assert_int_equal(wordpiece_count(wordpiece), 6);
    assert_int_equal(wordpiece_padding(wordpiece), 1);
    assert_string_equal(wordpiece_text(wordpiece, 0), "a");
    assert_string_equal(wordpiece_text(wordpiece, 5), "[MASK]");
    wordpiece_close(wordpiece);
    wordpiece_close(NULL);
}

/* Sentences and tokens as recorded in tests/data/minilm.json. */
static void agrees_with_the_recorded_tokens(void **state)
{
    (void)state;
    const char *directory = getenv("MHA_MODEL_DIR");
    char path[4096];
    snprintf(path, sizeof path, "%s/vocab.txt", directory ? directory : "build/model");
    struct wordpiece *wordpiece = NULL;
    struct reason why = { "" };
    if (access(path, R_OK) != 0) {
        print_message("%s is not there: examples/embed/fetch-model fetches it\n", path);
        skip();
    }
    if (!wordpiece_open(path, &wordpiece, &why))
        fail_msg("%s", why.text);
    assert_int_equal(wordpiece_count(wordpiece), 30522);
    void *real = wordpiece;
    check(&real, "The ferry was late again.", "[CLS] the ferry was late again . [SEP]");
    check(&real, "A small library should be boring to build, quick to test and hard to misuse.",
          "[CLS] a small library should be boring to build , quick to test and hard to mis ##use . "
          "[SEP]");
    check(&real,
          "When the river froze in January, the children walked across it to school instead of "
          "taking the long road over the bridge.",
          "[CLS] when the river froze in january , the children walked across it to school instead "
          "of taking the long road over the bridge . [SEP]");
    wordpiece_close(wordpiece);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(spells_with_the_longest_pieces, open_small, close_small),
        cmocka_unit_test_setup_teardown(cleans_lower_cases_and_strips, open_small, close_small),
        cmocka_unit_test_setup_teardown(splits_at_punctuation_and_ideographs, open_small,
                                        close_small),
        cmocka_unit_test_setup_teardown(knows_special_tokens_in_text, open_small, close_small),
        cmocka_unit_test_setup_teardown(passes_over_what_is_not_utf8, open_small, close_small),
        cmocka_unit_test_setup_teardown(limits_words_to_a_hundred_characters, open_small,
                                        close_small),
        cmocka_unit_test_setup_teardown(leaves_out_what_goes_beyond_the_limit, open_small,
                                        close_small),
        cmocka_unit_test(refuses_what_is_no_vocabulary),
        cmocka_unit_test(reads_lines_of_either_system),
        cmocka_unit_test(agrees_with_the_recorded_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
