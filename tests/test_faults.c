/*
 * Memory that runs out: for every public function that allocates, the n-th allocation fails, for
 * every n until there is success. Each failure must be MHA_ERROR_MEMORY with a message, leak
 * nothing, write no output and leave every object as it was.
 */
#include "support.h"

#include <stdio.h>
#include <string.h>

#include "files.h"

enum { B = 2, L = 5, E = 12, H = 3, OUT = B * L * E, LSE = B * H * L, MEAN = B * L * L };

/* Everything a call needs, and everything that must survive its failure. */
struct world {
    struct counting counting;
    mha_context *ctx;
    mha_layer *layer;      /* of the functions that use one */
    mha_safetensors *file; /* of mha_layer_load */
    mha_layer *made;       /* by mha_layer_create and mha_layer_load */
    mha_safetensors *opened;
    float x[OUT], w[E * E], out[OUT], lse[LSE], mean[MEAN];
};

/* The same numbers each time. */
static void prepare(struct world *w)
{
    memset(w, 0, sizeof *w);
    counting_init(&w->counting);
    w->ctx = context_counting(&w->counting);
    for (int i = 0; i < OUT; i++)
        w->x[i] = (float)(i * 7 % 23 - 11) / 11;
    for (int i = 0; i < E * E; i++)
        w->w[i] = (float)(i * 5 % 13 - 6) / 12;
}

static void clean(struct world *w)
{
    mha_layer_free(w->layer);
    mha_layer_free(w->made);
    mha_safetensors_close(w->file);
    mha_safetensors_close(w->opened);
    mha_context_free(w->ctx);
    assert_int_equal(w->counting.live, 0);
    assert_int_equal(w->counting.live_bytes, 0);
}

/* ---- the functions --------------------------------------------------------------------------- */

static mha_status run_reserve(struct world *w)
{
    return mha_context_reserve(w->ctx, 4096);
}

static mha_status run_attention(struct world *w)
{
    struct mha_tensor x = mha_tensor_4d_const(w->x, MHA_FLOAT32, B, L, H, E / H);
    struct mha_tensor out = mha_tensor_4d(w->out, MHA_FLOAT32, B, L, H, E / H);
    struct mha_tensor lse = mha_tensor_3d(w->lse, MHA_FLOAT32, B, H, L);
    struct mha_tensor mean = mha_tensor_3d(w->mean, MHA_FLOAT32, B, L, L);
    return mha_attention(w->ctx, &(struct mha_inputs){ .query = &x }, NULL,
                         &(struct mha_outputs){ .out = &out, .lse = &lse, .weights_mean = &mean });
}

static mha_status create_layer(struct world *w, int32_t ownership, mha_layer **layer)
{
    struct mha_tensor t = mha_tensor_2d(w->w, MHA_FLOAT32, E, E);
    struct mha_layer_shape shape = { .E = E, .H = H };
    struct mha_weights weights = { .w_q = &t, .w_k = &t, .w_v = &t, .w_o = &t };
    return mha_layer_create(w->ctx, &shape, &weights, ownership, layer);
}

static void prepare_layer(struct world *w)
{
    prepare(w);
    check_status(w->ctx, create_layer(w, MHA_COPY, &w->layer), MHA_OK);
}

static mha_status forward(struct world *w, const mha_layer *layer)
{
    struct mha_tensor x = mha_tensor_3d_const(w->x, MHA_FLOAT32, B, L, E);
    struct mha_tensor out = mha_tensor_3d(w->out, MHA_FLOAT32, B, L, E);
    struct mha_tensor lse = mha_tensor_3d(w->lse, MHA_FLOAT32, B, H, L);
    struct mha_tensor mean = mha_tensor_3d(w->mean, MHA_FLOAT32, B, L, L);
    return mha_forward(w->ctx, layer, &(struct mha_inputs){ .query = &x, .residual = &x }, NULL,
                       &(struct mha_outputs){ .out = &out, .lse = &lse, .weights_mean = &mean });
}

static mha_status run_forward(struct world *w)
{
    return forward(w, w->layer);
}

static mha_status run_create_copy(struct world *w)
{
    return create_layer(w, MHA_COPY, &w->made);
}

static mha_status run_create_borrow(struct world *w)
{
    return create_layer(w, MHA_BORROW, &w->made);
}

/* A file of one layer, all weights and biases being the same numbers. */
static const char *layer_file(const struct world *w)
{
    enum { WIDE = E * E * (int)sizeof(float), NARROW = E * (int)sizeof(float) };
    static const char *const names[] = { "self.query", "self.key", "self.value", "output.dense" };
    char header[1024] = "{", data[4 * (WIDE + NARROW)];
    int at = 0;
    for (int i = 0; i < 4; i++) {
        size_t used = strlen(header);
        snprintf(header + used, sizeof header - used,
                 "%s\"%s.weight\":{\"dtype\":\"F32\",\"shape\":[%d,%d],\"data_offsets\":[%d,%d]},"
                 "\"%s.bias\":{\"dtype\":\"F32\",\"shape\":[%d],\"data_offsets\":[%d,%d]}",
                 i ? "," : "", names[i], E, E, at, at + WIDE, names[i], E, at + WIDE,
                 at + WIDE + NARROW);
        memcpy(data + at, w->w, WIDE);
        memcpy(data + at + WIDE, w->w, NARROW);
        at += WIDE + NARROW;
    }
    strcat(header, "}");
    return file_write_safetensors("layer.safetensors", header, data, at);
}

static void prepare_path(struct world *w)
{
    prepare(w);
    layer_file(w);
}

static mha_status run_open(struct world *w)
{
    return mha_safetensors_open(w->ctx, file_path("layer.safetensors"), 0, &w->opened);
}

static void prepare_file(struct world *w)
{
    prepare(w);
    const char *path = layer_file(w);
    check_status(w->ctx, mha_safetensors_open(w->ctx, path, 0, &w->file), MHA_OK);
}

static mha_status run_load(struct world *w)
{
    struct mha_layer_source source = { .naming = MHA_NAMING_BERT, .fusion = MHA_FUSION_SEPARATE };
    struct mha_layer_shape shape = { .H = H };
    return mha_layer_load(w->ctx, w->file, &source, &shape, &w->made);
}

/* The .npy functions need no memory, so none of theirs can run out. */
static mha_status run_npy(struct world *w)
{
    const char *path = file_path("rows.npy");
    struct mha_tensor x = mha_tensor_3d_const(w->x, MHA_FLOAT32, B, L, E), shape;
    struct mha_tensor out = mha_tensor_3d(w->out, MHA_FLOAT32, B, L, E);
    mha_status status = mha_npy_write(w->ctx, path, &x);
    if (status == MHA_OK)
        status = mha_npy_shape(w->ctx, path, &shape);
    return status == MHA_OK ? mha_npy_read(w->ctx, path, &out) : status;
}

struct function {
    const char *name; /* at the start of its messages */
    void (*prepare)(struct world *w);
    mha_status (*run)(struct world *w);
    int allocations; /* that a first call makes */
};

static const struct function functions[] = {
    { "mha_context_reserve", prepare, run_reserve, 1 },
    { "mha_attention", prepare, run_attention, 1 },
    { "mha_forward", prepare_layer, run_forward, 1 },
    { "mha_layer_create", prepare, run_create_copy, 2 },
    { "mha_layer_create", prepare, run_create_borrow, 1 },
    { "mha_safetensors_open", prepare_path, run_open, 4 },
    { "mha_layer_load", prepare_file, run_load, 3 },
    { "mha_npy_write", prepare, run_npy, 0 },
};

/* ---- the sweep ------------------------------------------------------------------------------- */

/* What a call computes, as far as it computes anything. */
static void use(struct world *w)
{
    if (w->made)
        check_status(w->ctx, forward(w, w->made), MHA_OK);
    if (w->opened)
        assert_int_equal(mha_safetensors_count(w->opened), 8);
}

static void spoil_outputs(struct world *w)
{
    memset(w->out, 0xa5, sizeof w->out);
    memset(w->lse, 0xa5, sizeof w->lse);
    memset(w->mean, 0xa5, sizeof w->mean);
}

static void check_failure(const struct function *f, struct world *w, mha_status status,
                          const struct world *before)
{
    check_status(w->ctx, status, MHA_ERROR_MEMORY);
    char start[64];
    snprintf(start, sizeof start, "%s: no memory for ", f->name);
    check_contains(mha_context_message(w->ctx), start);
    assert_memory_equal(w->out, before->out, sizeof w->out);
    assert_memory_equal(w->lse, before->lse, sizeof w->lse);
    assert_memory_equal(w->mean, before->mean, sizeof w->mean);
    assert_memory_equal(w->x, before->x, sizeof w->x);
    assert_memory_equal(w->w, before->w, sizeof w->w);
    assert_null(w->made);
    assert_null(w->opened);
    assert_int_equal(w->counting.live, before->counting.live);
    assert_int_equal(w->counting.live_bytes, before->counting.live_bytes);
}

/* What a world without failures ends with. */
static void run_whole(const struct function *f, struct world *w)
{
    f->prepare(w);
    spoil_outputs(w);
    check_status(w->ctx, f->run(w), MHA_OK);
    use(w);
    clean(w);
}

/* Fails each allocation of a first call; the same call then succeeds on the same objects and gives
 * what it gives where nothing ever failed. */
static void sweep(const struct function *f)
{
    struct world whole;
    run_whole(f, &whole);
    for (int n = 1; n <= f->allocations; n++) {
        struct world w, before;
        f->prepare(&w);
        spoil_outputs(&w);
        before = w;
        w.counting.fail_at = w.counting.calls + n;
        mha_status status = f->run(&w);
        check_failure(f, &w, status, &before);
        check_status(w.ctx, f->run(&w), MHA_OK);
        use(&w);
        check_same_bits(f->name, w.out, whole.out, OUT);
        check_same_bits(f->name, w.lse, whole.lse, LSE);
        check_same_bits(f->name, w.mean, whole.mean, MEAN);
        clean(&w);
    }

    /* That was all of them: the next allocation is none of this function's. */
    struct world w;
    f->prepare(&w);
    w.counting.fail_at = w.counting.calls + f->allocations + 1;
    check_status(w.ctx, f->run(&w), MHA_OK);
    assert_int_equal(w.counting.calls, w.counting.fail_at - 1);
    w.counting.fail_at = 0;
    clean(&w);
}

static void kind_18_case_123_every_allocation_may_fail(void **state)
{
    (void)state;
    for (int64_t i = 0; i < COUNT(functions); i++)
        sweep(&functions[i]);
}

static void context_create_may_fail(void **state)
{
    (void)state;
    struct counting counting;
    counting_init(&counting);
    counting.fail_at = 1;
    char message[128] = "";
    struct mha_context_options options = { .allocator = &counting.allocator,
                                           .message = message,
                                           .message_bytes = sizeof message };
    mha_context *ctx = (mha_context *)&counting; /* must become NULL */
    check_status(NULL, mha_context_create(&options, &ctx), MHA_ERROR_MEMORY);
    assert_null(ctx);
    check_contains(message, "mha_context_create: no memory for the context");
    assert_int_equal(counting.live, 0);
    check_status(NULL, mha_context_create(&options, &ctx), MHA_OK);
    assert_int_equal(counting.calls, 2);
    mha_context_free(ctx);
    assert_int_equal(counting.live, 0);
}

/* A scratch that cannot grow stays what it was: enough for what it was enough for. */
static void scratch_survives_a_failure_to_grow(void **state)
{
    (void)state;
    struct world w;
    prepare_layer(&w);
    check_status(w.ctx, run_forward(&w), MHA_OK);
    float out[OUT];
    memcpy(out, w.out, sizeof out);
    struct world before = w;
    w.counting.fail_at = w.counting.calls + 1;
    check_status(w.ctx, mha_context_reserve(w.ctx, INT64_C(1) << 20), MHA_ERROR_MEMORY);
    assert_int_equal(w.counting.live, before.counting.live);
    assert_int_equal(w.counting.live_bytes, before.counting.live_bytes);
    spoil_outputs(&w);
    check_status(w.ctx, run_forward(&w), MHA_OK);
    check_same_bits("out", w.out, out, OUT);
    assert_int_equal(w.counting.calls, before.counting.calls + 1);
    clean(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kind_18_case_123_every_allocation_may_fail),
        cmocka_unit_test(context_create_may_fail),
        cmocka_unit_test(scratch_survives_a_failure_to_grow),
    };
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}
