/* The context: how it is made and refused, its allocator, its scratch, its message, and the door
 * that every call goes through. */
#include "support.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "context.h"

/* ---- the environment ------------------------------------------------------------------------- */

/* Each test starts without MHA_ISA; the runner's own comes back at the end. */
static char *outer_isa;

static int hide_isa(void **state)
{
    (void)state;
    const char *isa = getenv("MHA_ISA");
    outer_isa = isa ? strdup(isa) : NULL;
    return unsetenv("MHA_ISA");
}

static int restore_isa(void **state)
{
    (void)state;
    int failed = outer_isa ? setenv("MHA_ISA", outer_isa, 1) : unsetenv("MHA_ISA");
    free(outer_isa);
    return failed;
}

/* ---- making ---------------------------------------------------------------------------------- */

/* Creation that fails: no context, that status, that message. */
static void refused(struct mha_context_options *options, mha_status want, const char *text)
{
    char message[512] = "";
    mha_context *ctx = (mha_context *)message;
    options->message = message;
    options->message_bytes = sizeof message;
    mha_status got = mha_context_create(options, &ctx);
    if (got != want)
        fail_msg("got \"%s\", wanted \"%s\"; message: %s", mha_status_text(got),
                 mha_status_text(want), message);
    assert_null(ctx);
    check_contains(message, "mha_context_create: ");
    check_contains(message, text);
}

static mha_context *created(const struct mha_context_options *options)
{
    mha_context *ctx = NULL;
    check_status(NULL, mha_context_create(options, &ctx), MHA_OK);
    assert_non_null(ctx);
    return ctx;
}

static void create_and_free(void **state)
{
    (void)state;
    mha_context_free(NULL);
    mha_context *ctx = created(NULL);
    assert_string_equal(mha_context_message(ctx), "");
    assert_true(strlen(mha_context_cpu(ctx)) > 0);
    mha_context_free(ctx);
    const struct mha_context_options plain = { 0 };
    mha_context_free(created(&plain));
    struct mha_context_options options = { 0 };
    assert_int_equal(mha_context_create(NULL, NULL), MHA_ERROR_ARGUMENT);
    char message[64] = "";
    options.message = message;
    options.message_bytes = sizeof message;
    assert_int_equal(mha_context_create(&options, NULL), MHA_ERROR_ARGUMENT);
    assert_string_equal(message, "mha_context_create: ctx is NULL");
}

/* The struct of a later release: its unknown fields must be zero. */
struct later_options {
    struct mha_context_options known;
    char tail[24];
};

static void options_size(void **state)
{
    (void)state;
    struct later_options later = { .known.size = sizeof(struct mha_context_options) };
    memset(later.tail, 0x77, sizeof later.tail);
    mha_context_free(created(&later.known)); /* the tail lies outside the size */
    later.known.size = 0;
    mha_context_free(created(&later.known));

    later = (struct later_options){ .known.size = sizeof later };
    mha_context_free(created(&later.known));
    for (size_t at = 0; at < sizeof later.tail; at++) {
        memset(later.tail, 0, sizeof later.tail);
        later.tail[at] = 1;
        char text[96];
        snprintf(text, sizeof text,
                 "options has a field at byte %zu that version " MHA_VERSION " does not know",
                 sizeof later.known + at);
        refused(&later.known, MHA_ERROR_UNSUPPORTED, text);
    }

    /* Too short for what the first release knew, or no length at all: nothing else is read. */
    const int64_t sizes[] = { -1, 1, 8, (int64_t)sizeof(struct mha_context_options) - 1,
                              INT64_MIN };
    for (int64_t i = 0; i < COUNT(sizes); i++) {
        struct mha_context_options options = { .size = sizes[i] };
        mha_context *ctx = (mha_context *)&options;
        assert_int_equal(mha_context_create(&options, &ctx), MHA_ERROR_ARGUMENT);
        assert_null(ctx);
    }
}

static void isa_by_option(void **state)
{
    (void)state;
    struct mha_context_options options = { .isa = "generic" };
    mha_context *ctx = created(&options);
    assert_string_equal(mha_context_isa(ctx), "generic");
    mha_context_free(ctx);
    /* The best level is the one that can be asked for by its name. */
    ctx = created(NULL);
    char best[16];
    snprintf(best, sizeof best, "%s", mha_context_isa(ctx));
    mha_context_free(ctx);
    options.isa = best;
    ctx = created(&options);
    assert_string_equal(mha_context_isa(ctx), best);
    mha_context_free(ctx);

    const char *const unknown[] = { "sse9", "Generic", "generic ", "avx", "AVX2" };
    for (int64_t i = 0; i < COUNT(unknown); i++) {
        char text[64];
        snprintf(text, sizeof text, "isa is \"%s\", wanted one of ", unknown[i]);
        options.isa = unknown[i];
        refused(&options, MHA_ERROR_ARGUMENT, text);
    }
    char endless[5000];
    memset(endless, 'x', sizeof endless - 1);
    endless[sizeof endless - 1] = '\0';
    options.isa = endless;
    refused(&options, MHA_ERROR_ARGUMENT, "generic"); /* the end of the message is still there */
}

static void isa_by_environment(void **state)
{
    (void)state;
    struct mha_context_options options = { 0 };
    assert_int_equal(setenv("MHA_ISA", "generic", 1), 0);
    mha_context *ctx = created(NULL);
    assert_string_equal(mha_context_isa(ctx), "generic");
    mha_context_free(ctx);
    assert_int_equal(setenv("MHA_ISA", "pentium", 1), 0);
    refused(&options, MHA_ERROR_ARGUMENT,
            "the environment variable MHA_ISA is \"pentium\", wanted one of ");
    options.isa = "generic"; /* the option is asked first */
    mha_context_free(created(&options));
    assert_int_equal(setenv("MHA_ISA", "", 1), 0); /* as good as unset */
    mha_context_free(created(NULL));
    assert_int_equal(unsetenv("MHA_ISA"), 0);
}

static void creation_message_is_cut(void **state)
{
    (void)state;
    const char *whole = "mha_context_create: isa is \"sse9\", wanted one of ";
    struct mha_context_options options = { .isa = "sse9" };
    for (int64_t room = -1; room <= 40; room++) {
        char message[64];
        memset(message, '#', sizeof message);
        mha_context *ctx = NULL;
        options.message = message;
        options.message_bytes = room;
        assert_int_equal(mha_context_create(&options, &ctx), MHA_ERROR_ARGUMENT);
        if (room > 0) {
            assert_int_equal(strlen(message), room - 1);
            assert_memory_equal(message, whole, (size_t)room - 1);
        }
        assert_int_equal(message[room > 0 ? room : 0], '#');
    }
    options.message = NULL;
    options.message_bytes = 100;
    mha_context *ctx = NULL;
    assert_int_equal(mha_context_create(&options, &ctx), MHA_ERROR_ARGUMENT);
    /* A success leaves the room alone. */
    char message[] = "as before";
    options = (struct mha_context_options){ .message = message, .message_bytes = sizeof message };
    mha_context_free(created(&options));
    assert_string_equal(message, "as before");
}

/* ---- allocator ------------------------------------------------------------------------------- */

/* An allocator that keeps a ledger of its blocks, does something in the middle of a call, and
 * leaves traces in errno. */
enum { LEDGER = 16 };

struct ledger {
    struct mha_allocator allocator;
    struct {
        void *block;
        size_t bytes;
    } blocks[LEDGER];
    int64_t live, calls;
    bool fail;
    void (*meanwhile)(mha_context *ctx);
    mha_context *ctx;
};

static void *ledger_allocate(void *user, size_t bytes, size_t alignment)
{
    struct ledger *ledger = user;
    assert_true(alignment >= sizeof(void *) && (alignment & (alignment - 1)) == 0);
    assert_true(bytes > 0);
    ledger->calls++;
    if (ledger->meanwhile && ledger->ctx)
        ledger->meanwhile(ledger->ctx);
    errno = EDOM;
    void *block = NULL;
    if (ledger->fail || posix_memalign(&block, alignment, bytes) != 0)
        return NULL;
    int at = 0;
    while (ledger->blocks[at].block)
        at++;
    assert_true(at < LEDGER);
    ledger->blocks[at].block = block;
    ledger->blocks[at].bytes = bytes;
    ledger->live++;
    return block;
}

static void ledger_release(void *user, void *block, size_t bytes)
{
    struct ledger *ledger = user;
    int at = 0;
    while (at < LEDGER && ledger->blocks[at].block != block)
        at++;
    assert_true(at < LEDGER);
    assert_int_equal(ledger->blocks[at].bytes, bytes);
    ledger->blocks[at].block = NULL;
    ledger->live--;
    free(block);
    errno = ERANGE;
}

static mha_context *context_ledger(struct ledger *ledger)
{
    *ledger = (struct ledger){ .allocator = { ledger_allocate, ledger_release, ledger } };
    struct mha_allocator copied = ledger->allocator;
    const struct mha_context_options options = { .allocator = &copied };
    mha_context *ctx = created(&options);
    memset(&copied, 0, sizeof copied); /* the context has its own copy */
    ledger->ctx = ctx;
    return ctx;
}

static void allocator_gets_its_blocks_back(void **state)
{
    (void)state;
    struct ledger ledger;
    mha_context *ctx = context_ledger(&ledger);
    assert_int_equal(ledger.calls, 1);
    check_status(ctx, mha_context_reserve(ctx, 1000), MHA_OK);
    check_status(ctx, mha_context_reserve(ctx, 100000), MHA_OK);
    assert_int_equal(ledger.live, 2); /* context and scratch: the smaller one was given back */
    mha_context_free(ctx);
    assert_int_equal(ledger.live, 0);
}

static void allocator_refusals(void **state)
{
    (void)state;
    struct ledger ledger = { .allocator = { ledger_allocate, ledger_release, &ledger } };
    struct mha_context_options options = { .allocator = &ledger.allocator };
    ledger.allocator.allocate = NULL;
    refused(&options, MHA_ERROR_ARGUMENT, "allocator lacks allocate");
    ledger.allocator.allocate = ledger_allocate;
    ledger.allocator.release = NULL;
    refused(&options, MHA_ERROR_ARGUMENT, "allocator lacks release");
    ledger.allocator.release = ledger_release;
    ledger.fail = true;
    refused(&options, MHA_ERROR_MEMORY, "no memory for the context (");
    assert_int_equal(ledger.calls, 1);
}

/* ---- scratch --------------------------------------------------------------------------------- */

static void reserve(void **state)
{
    (void)state;
    struct ledger ledger;
    mha_context *ctx = context_ledger(&ledger);
    assert_int_equal(mha_context_reserve(NULL, 100), MHA_ERROR_ARGUMENT);
    check_status(ctx, mha_context_reserve(ctx, -1), MHA_ERROR_ARGUMENT);
    assert_string_equal(mha_context_message(ctx),
                        "mha_context_reserve: bytes is -1, must not be negative");
    check_status(ctx, mha_context_reserve(ctx, INT64_MIN), MHA_ERROR_ARGUMENT);
    check_status(ctx, mha_context_reserve(ctx, 0), MHA_OK);
    assert_int_equal(ledger.calls, 1); /* that of the context */

    check_status(ctx, mha_context_reserve(ctx, 5000), MHA_OK);
    assert_int_equal(ledger.calls, 2);
    const int64_t smaller[] = { 5000, 4999, 1, 0 };
    for (int64_t i = 0; i < COUNT(smaller); i++)
        check_status(ctx, mha_context_reserve(ctx, smaller[i]), MHA_OK);
    assert_int_equal(ledger.calls, 2);

    /* A failure leaves the scratch as it was: what it held is still held. */
    ledger.fail = true;
    check_status(ctx, mha_context_reserve(ctx, 5001), MHA_ERROR_MEMORY);
    assert_string_equal(mha_context_message(ctx),
                        "mha_context_reserve: no memory for scratch (5001 bytes)");
    check_status(ctx, mha_context_reserve(ctx, 5000), MHA_OK);
    assert_int_equal(ledger.live, 2);
    ledger.fail = false;
    check_status(ctx, mha_context_reserve(ctx, 5001), MHA_OK);
    assert_int_equal(ledger.live, 2);
    mha_context_free(ctx);
    assert_int_equal(ledger.live, 0);
}

/* ---- the door -------------------------------------------------------------------------------- */

static int64_t inner_calls;

/* Every public function that takes a context, in the middle of another call of the same context. */
static void call_everything(mha_context *ctx)
{
    float data[4] = { 1, 2, 3, 4 };
    const struct mha_tensor t = mha_tensor_4d(data, MHA_FLOAT32, 1, 1, 1, 4);
    struct mha_tensor view = { .rank = 99 };
    const struct mha_inputs inputs = { .query = &t };
    const struct mha_outputs outputs = { .out = &t };
    const struct mha_layer_shape shape = { .E = 1, .H = 1 };
    const struct mha_weights weights = { .w_q = &t };
    mha_layer *layer = (mha_layer *)data;
    int64_t bytes = -7;
    const mha_status answers[] = {
        mha_context_reserve(ctx, 1),
        mha_tensor_slice(ctx, &t, 0, 0, 1, &view),
        mha_tensor_permute(ctx, &t, (const int32_t[]){ 0, 1, 2, 3 }, &view),
        mha_tensor_reshape(ctx, &t, 1, (const int64_t[]){ 4 }, &view),
        mha_attention(ctx, &inputs, NULL, &outputs),
        mha_attention_workspace(ctx, &inputs, NULL, &outputs, &bytes),
        mha_forward(ctx, NULL, &inputs, NULL, &outputs),
        mha_forward_workspace(ctx, NULL, &inputs, NULL, &outputs, &bytes),
        mha_layer_create(ctx, &shape, &weights, MHA_COPY, &layer),
        mha_residual_add(ctx, &t, &t, &t),
    };
    for (int64_t i = 0; i < COUNT(answers); i++, inner_calls++)
        check_status(ctx, answers[i], MHA_ERROR_BUSY);
    assert_null(layer);
    assert_int_equal(view.rank, 99);
    assert_int_equal(bytes, -7);
    for (int i = 0; i < 4; i++)
        assert_true(data[i] == (float)(i + 1));
}

static void call_inside_a_call(void **state)
{
    (void)state;
    struct ledger ledger;
    mha_context *ctx = context_ledger(&ledger);
    check_status(ctx, mha_context_reserve(ctx, -5), MHA_ERROR_ARGUMENT);
    ledger.meanwhile = call_everything;
    inner_calls = 0;
    check_status(ctx, mha_context_reserve(ctx, 1000), MHA_OK);
    assert_int_equal(inner_calls, 10);
    /* The refused calls left the message to the running one. */
    assert_string_equal(mha_context_message(ctx),
                        "mha_context_reserve: bytes is -5, must not be negative");
    /* An attention call whose scratch must grow, with the same visitor. */
    float q[64], o[64];
    random_fill(q, COUNT(q));
    const struct mha_tensor tq = mha_tensor_4d_const(q, MHA_FLOAT32, 1, 4, 2, 8);
    const struct mha_tensor to = mha_tensor_4d(o, MHA_FLOAT32, 1, 4, 2, 8);
    const struct mha_inputs inputs = { .query = &tq };
    const struct mha_outputs outputs = { .out = &to };
    check_status(ctx, mha_attention(ctx, &inputs, NULL, &outputs), MHA_OK);
    assert_int_equal(inner_calls, 20);
    /* A failing one opens its door again, too. */
    ledger.fail = true;
    check_status(ctx, mha_context_reserve(ctx, (int64_t)1 << 30), MHA_ERROR_MEMORY);
    assert_int_equal(inner_calls, 30);
    ledger.meanwhile = NULL;
    ledger.fail = false;
    check_status(ctx, mha_context_reserve(ctx, 1), MHA_OK);
    mha_context_free(ctx);
}

/* Another context is another matter. */
static mha_context *other_context;

static void call_the_other(mha_context *ctx)
{
    (void)ctx;
    check_status(other_context, mha_context_reserve(other_context, 1), MHA_OK);
    inner_calls++;
}

static void other_contexts_are_free(void **state)
{
    (void)state;
    struct ledger ledger;
    mha_context *ctx = context_ledger(&ledger);
    other_context = created(NULL);
    ledger.meanwhile = call_the_other;
    inner_calls = 0;
    check_status(ctx, mha_context_reserve(ctx, 1000), MHA_OK);
    assert_int_equal(inner_calls, 1);
    mha_context_free(other_context);
    mha_context_free(ctx);
}

/* The ledger's functions change errno; no call lets that out, whether it fails or not. */
static void errno_is_kept(void **state)
{
    (void)state;
    struct ledger ledger;
    errno = EXDEV;
    mha_context *ctx = context_ledger(&ledger);
    assert_int_equal(errno, EXDEV);
    errno = 0;
    check_status(ctx, mha_context_reserve(ctx, 1000), MHA_OK);
    assert_int_equal(errno, 0);
    errno = EXDEV;
    check_status(ctx, mha_context_reserve(ctx, 2000), MHA_OK);
    assert_int_equal(errno, EXDEV);
    ledger.fail = true;
    check_status(ctx, mha_context_reserve(ctx, 3000), MHA_ERROR_MEMORY);
    assert_int_equal(errno, EXDEV);
    struct mha_context_options options = { .allocator = &ledger.allocator };
    refused(&options, MHA_ERROR_MEMORY, "no memory for the context");
    assert_int_equal(errno, EXDEV);
    ledger.fail = false;

    float q[64], o[64];
    random_fill(q, COUNT(q));
    const struct mha_tensor tq = mha_tensor_4d_const(q, MHA_FLOAT32, 1, 4, 2, 8);
    const struct mha_tensor to = mha_tensor_4d(o, MHA_FLOAT32, 1, 4, 2, 8);
    const struct mha_inputs inputs = { .query = &tq };
    const struct mha_outputs outputs = { .out = &to };
    int64_t calls = ledger.calls;
    check_status(ctx, mha_attention(ctx, &inputs, NULL, &outputs), MHA_OK);
    assert_true(ledger.calls > calls);
    assert_int_equal(errno, EXDEV);
    mha_context_free(ctx);
    assert_int_equal(errno, EXDEV);
}

/* ---- message --------------------------------------------------------------------------------- */

static void texts_of_no_context(void **state)
{
    (void)state;
    assert_string_equal(mha_context_message(NULL), "");
    assert_string_equal(mha_context_isa(NULL), "");
    assert_string_equal(mha_context_cpu(NULL), "");
}

/* A message stays until the next failure; a success does not touch it. */
static void message_stays(void **state)
{
    (void)state;
    mha_context *ctx = created(NULL);
    check_status(ctx, mha_context_reserve(ctx, -9), MHA_ERROR_ARGUMENT);
    check_status(ctx, mha_context_reserve(ctx, 9), MHA_OK);
    assert_string_equal(mha_context_message(ctx),
                        "mha_context_reserve: bytes is -9, must not be negative");
    check_status(ctx, mha_context_reserve(ctx, -10), MHA_ERROR_ARGUMENT);
    assert_string_equal(mha_context_message(ctx),
                        "mha_context_reserve: bytes is -10, must not be negative");
    mha_context_free(ctx);
}

/* Whatever a message's length, it is cut to 511 bytes and nothing behind it changes. */
static void message_is_cut(void **state)
{
    (void)state;
    mha_context *ctx = created(NULL);
    char text[1024];
    memset(text, 'm', sizeof text);
    const char *start = "mha_thing: ";
    int64_t room = (int64_t)sizeof ctx->message - 1 - (int64_t)strlen(start);
    assert_int_equal(sizeof ctx->message, 512);
    const int64_t lengths[] = { 0, 1, room - 1, room, room + 1, 2 * room, sizeof text };
    for (int64_t i = 0; i < COUNT(lengths); i++) {
        int64_t length = lengths[i];
        check_status(ctx, mha_context_enter(ctx, "mha_thing"), MHA_OK);
        mha_status status = mha_context_fail(ctx, MHA_ERROR_LIMIT, "%.*s", (int)length, text);
        check_status(ctx, mha_context_leave(ctx, status), MHA_ERROR_LIMIT);
        int64_t kept = length < room ? length : room;
        assert_int_equal(strlen(mha_context_message(ctx)), (int64_t)strlen(start) + kept);
        assert_memory_equal(mha_context_message(ctx), start, strlen(start));
        assert_memory_equal(mha_context_message(ctx) + strlen(start), text, (size_t)kept);
    }
    assert_int_equal(mha_context_fail(NULL, MHA_ERROR_LIMIT, "nobody listens"), MHA_ERROR_LIMIT);
    assert_int_equal(mha_context_enter(NULL, "mha_thing"), MHA_OK);
    assert_int_equal(mha_context_leave(NULL, MHA_ERROR_LIMIT), MHA_ERROR_LIMIT);
    mha_context_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(create_and_free),         cmocka_unit_test(options_size),
        cmocka_unit_test(isa_by_option),           cmocka_unit_test(isa_by_environment),
        cmocka_unit_test(creation_message_is_cut), cmocka_unit_test(allocator_gets_its_blocks_back),
        cmocka_unit_test(allocator_refusals),      cmocka_unit_test(reserve),
        cmocka_unit_test(call_inside_a_call),      cmocka_unit_test(other_contexts_are_free),
        cmocka_unit_test(errno_is_kept),           cmocka_unit_test(texts_of_no_context),
        cmocka_unit_test(message_stays),           cmocka_unit_test(message_is_cut),
    };
    return cmocka_run_group_tests(tests, hide_isa, restore_isa);
}
