/* Views: makers, views of views, shape texts, and the geometry the doors rely on (overlap, elements
 * that share a place), which is held against enumeration of every element. */
#include "fixture.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "tensor.h"

/* ---- small pieces ---------------------------------------------------------------------------- */

static void check_shape(const struct mha_tensor *t, const char *text)
{
    char got[160];
    mha_tensor_shape_text(t, got, sizeof got);
    assert_string_equal(got, text);
}

static void check_strides(const struct mha_tensor *t, const int64_t *strides)
{
    for (int32_t axis = 0; axis < t->rank; axis++)
        if (t->strides[axis] != strides[axis])
            fail_msg("axis %d: got stride %lld, wanted %lld", (int)axis,
                     (long long)t->strides[axis], (long long)strides[axis]);
}

/* Byte offsets of all elements from `data`, in row-major order of the indices. */
enum { MOST = 4096 };

static int64_t enumerate(const struct mha_tensor *t, int64_t *offsets)
{
    int64_t count = mha_tensor_count(t);
    assert_in_range(count, 0, MOST);
    for (int64_t e = 0; e < count; e++) {
        int64_t rest = e, offset = 0;
        for (int32_t axis = t->rank - 1; axis >= 0; axis--) {
            offset += rest % t->shape[axis] * t->strides[axis];
            rest /= t->shape[axis];
        }
        offsets[e] = offset * mha_type_bytes(t->type);
    }
    return count;
}

static void describe(const struct mha_tensor *t, char *text, size_t bytes)
{
    int used = snprintf(text, bytes, "%s at %p", mha_type_text(t->type), t->data);
    for (int32_t axis = 0; axis < t->rank; axis++)
        used += snprintf(text + used, bytes - (size_t)used, " %lld/%lld", (long long)t->shape[axis],
                         (long long)t->strides[axis]);
}

/* ---- types ----------------------------------------------------------------------------------- */

static void types(void **state)
{
    (void)state;
    const struct {
        int32_t type, number;
        int64_t bytes;
        const char *text;
    } pinned[] = {
        { MHA_FLOAT32, 1, 4, "float32" }, { MHA_FLOAT64, 2, 8, "float64" },
        { MHA_FLOAT16, 3, 2, "float16" }, { MHA_BFLOAT16, 4, 2, "bfloat16" },
        { MHA_BOOL, 5, 1, "bool" },       { MHA_UINT8, 6, 1, "uint8" },
        { MHA_INT8, 7, 1, "int8" },       { MHA_INT16, 8, 2, "int16" },
        { MHA_UINT16, 9, 2, "uint16" },   { MHA_INT32, 10, 4, "int32" },
        { MHA_UINT32, 11, 4, "uint32" },  { MHA_INT64, 12, 8, "int64" },
        { MHA_UINT64, 13, 8, "uint64" },
    };
    for (int64_t i = 0; i < COUNT(pinned); i++) {
        assert_int_equal(pinned[i].type, pinned[i].number);
        assert_int_equal(mha_type_bytes(pinned[i].type), pinned[i].bytes);
        assert_string_equal(mha_type_text(pinned[i].type), pinned[i].text);
    }
    const int32_t unknown[] = { 0, -1, (int32_t)COUNT(pinned) + 1, INT32_MAX, INT32_MIN };
    for (int64_t i = 0; i < COUNT(unknown); i++) {
        assert_int_equal(mha_type_bytes(unknown[i]), 0);
        assert_string_equal(mha_type_text(unknown[i]), "unknown type");
    }
}

/* ---- makers ---------------------------------------------------------------------------------- */

static void makers(void **state)
{
    (void)state;
    static float data[2 * 3 * 5 * 7];
    const struct {
        struct mha_tensor tensor, constant;
        int32_t rank;
        int64_t count;
        const char *shape;
        int64_t strides[4];
    } made[] = {
        { mha_tensor_1d(data, MHA_FLOAT32, 7),
          mha_tensor_1d_const(data, MHA_FLOAT32, 7),
          1,
          7,
          "[7]",
          { 1 } },
        { mha_tensor_2d(data, MHA_FLOAT32, 5, 7),
          mha_tensor_2d_const(data, MHA_FLOAT32, 5, 7),
          2,
          35,
          "[5, 7]",
          { 7, 1 } },
        { mha_tensor_3d(data, MHA_FLOAT32, 3, 5, 7),
          mha_tensor_3d_const(data, MHA_FLOAT32, 3, 5, 7),
          3,
          105,
          "[3, 5, 7]",
          { 35, 7, 1 } },
        { mha_tensor_4d(data, MHA_FLOAT32, 2, 3, 5, 7),
          mha_tensor_4d_const(data, MHA_FLOAT32, 2, 3, 5, 7),
          4,
          210,
          "[2, 3, 5, 7]",
          { 105, 35, 7, 1 } },
    };
    for (int64_t i = 0; i < COUNT(made); i++)
        for (int constant = 0; constant < 2; constant++) {
            const struct mha_tensor *t = constant ? &made[i].constant : &made[i].tensor;
            assert_ptr_equal(t->data, data);
            assert_int_equal(t->type, MHA_FLOAT32);
            assert_int_equal(t->rank, made[i].rank);
            assert_int_equal(t->flags, constant ? MHA_READ_ONLY : 0);
            assert_int_equal(mha_tensor_count(t), made[i].count);
            check_shape(t, made[i].shape);
            check_strides(t, made[i].strides);
            check_status(ctx, mha_tensor_check(ctx, "t", t), MHA_OK);
            check_status(ctx, mha_tensor_check_output(ctx, "t", t),
                         constant ? MHA_ERROR_LAYOUT : MHA_OK);
        }
}

/* Makers cannot fail: whatever they are given, the sizes are noted and the door refuses. */
static void makers_of_impossible_sizes(void **state)
{
    (void)state;
    float data = 0;
    const struct {
        struct mha_tensor tensor;
        const char *shape, *message;
        mha_status status;
    } cases[] = {
        { mha_tensor_1d(&data, MHA_FLOAT32, -1), "[-1]", "no negative size", MHA_ERROR_ARGUMENT },
        { mha_tensor_2d(&data, MHA_FLOAT32, 0, -3), "[0, -3]", "no negative size",
          MHA_ERROR_ARGUMENT },
        { mha_tensor_3d(&data, MHA_FLOAT32, 2, INT64_MIN, 2), "[2, -9223372036854775808, 2]",
          "no negative size", MHA_ERROR_ARGUMENT },
        { mha_tensor_1d(&data, MHA_FLOAT32, INT64_MAX), "[9223372036854775807]",
          "more memory than a pointer can address", MHA_ERROR_OVERFLOW },
        { mha_tensor_1d(&data, MHA_FLOAT32, (int64_t)1 << 61), "[2305843009213693952]",
          "more memory than a pointer can address", MHA_ERROR_OVERFLOW },
        { mha_tensor_2d(&data, MHA_FLOAT32, (int64_t)1 << 32, (int64_t)1 << 32),
          "[4294967296, 4294967296]", "more memory than a pointer can address",
          MHA_ERROR_OVERFLOW },
        { mha_tensor_4d(&data, MHA_UINT8, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX),
          "[9223372036854775807, 9223372036854775807, 9223372036854775807, 9223372036854775807]",
          "more memory than a pointer can address", MHA_ERROR_OVERFLOW },
        { mha_tensor_1d(&data, 0, 1), "[1]", "element type 0", MHA_ERROR_TYPE },
        { mha_tensor_1d(NULL, MHA_FLOAT32, 1), "[1]", "no data (NULL)", MHA_ERROR_ARGUMENT },
    };
    for (int64_t i = 0; i < COUNT(cases); i++) {
        check_shape(&cases[i].tensor, cases[i].shape);
        check_status(ctx, mha_tensor_check(ctx, "thing", &cases[i].tensor), cases[i].status);
        check_contains(mha_context_message(ctx), "thing ");
        check_contains(mha_context_message(ctx), cases[i].message);
    }
    /* An empty tensor needs no memory, however large its other sizes. */
    struct mha_tensor empty = mha_tensor_3d(NULL, MHA_FLOAT32, INT64_MAX, 0, INT64_MAX);
    check_status(ctx, mha_tensor_check_output(ctx, "empty", &empty), MHA_OK);
    assert_int_equal(mha_tensor_count(&empty), 0);
}

static void count(void **state)
{
    (void)state;
    struct mha_tensor t = { .rank = 0 };
    assert_int_equal(mha_tensor_count(NULL), -1);
    assert_int_equal(mha_tensor_count(&t), 1);
    t.rank = MHA_MAX_RANK + 1;
    assert_int_equal(mha_tensor_count(&t), -1);
    t.rank = -1;
    assert_int_equal(mha_tensor_count(&t), -1);
    const struct {
        int64_t shape[MHA_MAX_RANK], count;
    } cases[] = {
        { { 2, 3, 4, 5, 6, 7 }, 5040 },
        { { 2, 3, 0, 5, 6, 7 }, 0 },
        { { INT64_MAX, INT64_MAX, 0, 1, 1, 1 }, 0 },
        { { INT64_MAX, INT64_MAX, 1, 1, 1, 0 }, 0 },
        { { INT64_MAX, 1, 1, 1, 1, 1 }, INT64_MAX },
        { { INT64_MAX, 2, 1, 1, 1, 1 }, -1 },
        { { (int64_t)1 << 32, (int64_t)1 << 32, 1, 1, 1, 1 }, -1 },
        { { 0, -1, 1, 1, 1, 1 }, -1 },
        { { INT64_MIN, 2, 1, 1, 1, 1 }, -1 },
    };
    t.rank = MHA_MAX_RANK;
    for (int64_t i = 0; i < COUNT(cases); i++) {
        memcpy(t.shape, cases[i].shape, sizeof t.shape);
        assert_true(mha_tensor_count(&t) == cases[i].count);
    }
}

/* ---- texts ----------------------------------------------------------------------------------- */

static void shape_text(void **state)
{
    (void)state;
    const struct mha_tensor t = mha_tensor_3d(NULL, MHA_FLOAT32, 2, 5, 384);
    const char *whole = "[2, 5, 384]";
    int64_t length = (int64_t)strlen(whole);
    assert_int_equal(mha_tensor_shape_text(&t, NULL, 0), length);
    assert_int_equal(mha_tensor_shape_text(&t, NULL, 100), length);
    for (int64_t bytes = -1; bytes < length + 4; bytes++) {
        char text[32];
        memset(text, '#', sizeof text);
        assert_int_equal(mha_tensor_shape_text(&t, text, bytes), length);
        int64_t kept = bytes < 1 ? 0 : bytes - 1 < length ? bytes - 1 : length;
        if (bytes > 0)
            assert_int_equal(text[kept], '\0');
        assert_memory_equal(text, whole, (size_t)kept);
        assert_int_equal(text[bytes > 0 ? kept + 1 : 0], '#');
    }
    struct mha_tensor odd = { .rank = 0 };
    check_shape(&odd, "[]");
    check_shape(NULL, "[]");
    odd.rank = 7;
    check_shape(&odd, "[rank 7]");
    odd.rank = INT32_MIN;
    check_shape(&odd, "[rank -2147483648]");
    odd.rank = MHA_MAX_RANK;
    for (int axis = 0; axis < MHA_MAX_RANK; axis++)
        odd.shape[axis] = INT64_MIN;
    check_shape(&odd, "[-9223372036854775808, -9223372036854775808, -9223372036854775808, "
                      "-9223372036854775808, -9223372036854775808, -9223372036854775808]");
}

/* ---- what every view function refuses -------------------------------------------------------- */

/* One of the three functions, with arguments that would do for a tensor [2, 3, 4]. */
static mha_status call_view(mha_context *c, int which, const struct mha_tensor *t,
                            struct mha_tensor *view)
{
    switch (which) {
    case 0: return mha_tensor_slice(c, t, 1, 0, 1, view);
    case 1: return mha_tensor_permute(c, t, (const int32_t[]){ 2, 0, 1 }, view);
    default: return mha_tensor_reshape(c, t, 2, (const int64_t[]){ 6, 4 }, view);
    }
}

static const char *const view_names[] = { "mha_tensor_slice: ", "mha_tensor_permute: ",
                                          "mha_tensor_reshape: " };

static void refused(mha_status got, mha_status want, const char *function, const char *message,
                    const struct mha_tensor *view)
{
    const struct mha_tensor untouched = { .rank = 99 };
    check_status(ctx, got, want);
    check_contains(mha_context_message(ctx), function);
    check_contains(mha_context_message(ctx), message);
    assert_memory_equal(view, &untouched, sizeof untouched);
}

static void views_of_malformed_tensors(void **state)
{
    (void)state;
    float data[24] = { 0 };
    const struct mha_tensor good = mha_tensor_3d(data, MHA_FLOAT32, 2, 3, 4);
    for (int which = 0; which < 3; which++) {
        struct mha_tensor view = { .rank = 99 }, t = good;
        const char *name = view_names[which];
        refused(call_view(ctx, which, NULL, &view), MHA_ERROR_ARGUMENT, name, "tensor is NULL",
                &view);
        check_status(ctx, call_view(ctx, which, &good, NULL), MHA_ERROR_ARGUMENT);
        check_contains(mha_context_message(ctx), "view is NULL");
        t.rank = 7;
        refused(call_view(ctx, which, &t, &view), MHA_ERROR_ARGUMENT, name,
                "tensor has rank 7, wanted 0 to 6", &view);
        t = good;
        t.rank = -1;
        refused(call_view(ctx, which, &t, &view), MHA_ERROR_ARGUMENT, name, "tensor has rank -1",
                &view);
        t = good;
        t.type = 14;
        refused(call_view(ctx, which, &t, &view), MHA_ERROR_TYPE, name,
                "tensor has the element type 14", &view);
        t = good;
        t.flags = 6;
        refused(call_view(ctx, which, &t, &view), MHA_ERROR_ARGUMENT, name,
                "tensor has the flags 0x6", &view);
        t = good;
        t.shape[0] = -2;
        refused(call_view(ctx, which, &t, &view), MHA_ERROR_ARGUMENT, name,
                "tensor has the shape [-2, 3, 4], wanted no negative size", &view);
        t = good;
        t.strides[1] = -4;
        refused(call_view(ctx, which, &t, &view), MHA_ERROR_LAYOUT, name,
                "tensor has the stride -4 on axis 1", &view);
        t = good;
        t.strides[0] = INT64_MAX;
        refused(call_view(ctx, which, &t, &view), MHA_ERROR_OVERFLOW, name,
                "tensor of shape [2, 3, 4] spans", &view);
        /* Without a context the same answer, only without the message. */
        assert_int_equal(call_view(NULL, which, &t, &view), MHA_ERROR_OVERFLOW);
        assert_int_equal(call_view(NULL, which, &good, &view), MHA_OK);
        /* A tensor without memory is a shape like any other. */
        t = good;
        t.data = NULL;
        check_status(ctx, call_view(ctx, which, &t, &view), MHA_OK);
        assert_null(view.data);
    }
}

/* ---- slice ----------------------------------------------------------------------------------- */

static void slice(void **state)
{
    (void)state;
    float data[24] = { 0 };
    const struct mha_tensor t = mha_tensor_3d(data, MHA_FLOAT32, 2, 3, 4);
    struct mha_tensor view;
    check_status(ctx, mha_tensor_slice(ctx, &t, 1, 1, 2, &view), MHA_OK);
    check_shape(&view, "[2, 2, 4]");
    check_strides(&view, t.strides);
    assert_ptr_equal(view.data, data + 4);
    check_status(ctx, mha_tensor_slice(ctx, &view, 2, 3, 1, &view), MHA_OK); /* in place */
    check_shape(&view, "[2, 2, 1]");
    assert_ptr_equal(view.data, data + 7);
    /* Empty parts, also at the very end; the data pointer does not leave the memory. */
    for (int64_t start = 0; start <= 3; start++) {
        check_status(ctx, mha_tensor_slice(ctx, &t, 1, start, 0, &view), MHA_OK);
        check_shape(&view, "[2, 0, 4]");
        assert_true((float *)view.data >= data && (float *)view.data <= data + 24);
    }
    view = mha_tensor_3d_const(data, MHA_FLOAT32, 2, 3, 4);
    check_status(ctx, mha_tensor_slice(ctx, &view, 0, 1, 1, &view), MHA_OK);
    assert_int_equal(view.flags, MHA_READ_ONLY);
    /* A size of 1 may have any stride, which is not followed. */
    view = mha_tensor_2d(data, MHA_FLOAT32, 1, 4);
    view.strides[0] = INT64_MIN;
    check_status(ctx, mha_tensor_slice(ctx, &view, 0, 0, 1, &view), MHA_OK);
    assert_ptr_equal(view.data, data);
}

static void slice_refusals(void **state)
{
    (void)state;
    float data[24] = { 0 };
    const struct mha_tensor t = mha_tensor_3d(data, MHA_FLOAT32, 2, 3, 4);
    struct mha_tensor view = { .rank = 99 };
    const int32_t axes[] = { -1, 3, INT32_MAX, INT32_MIN };
    const char *const axis_texts[] = { "axis is -1, ", "axis is 3, ", "axis is 2147483647, ",
                                       "axis is -2147483648, " };
    for (int64_t i = 0; i < COUNT(axes); i++) {
        refused(mha_tensor_slice(ctx, &t, axes[i], 0, 1, &view), MHA_ERROR_ARGUMENT,
                "mha_tensor_slice: ", axis_texts[i], &view);
        check_contains(mha_context_message(ctx), "wanted one of the 3 axes of [2, 3, 4]");
    }
    const struct {
        int64_t start, length;
        const char *text;
    } ranges[] = {
        { -1, 1, "start is -1 and length 1" },
        { 0, -1, "start is 0 and length -1" },
        { 0, 4, "start is 0 and length 4" },
        { 3, 1, "start is 3 and length 1" },
        { 4, 0, "start is 4 and length 0" },
        { 1, INT64_MAX, "start is 1 and length 9223372036854775807" },
        { INT64_MAX, INT64_MAX, "start is 9223372036854775807 and length 9223372036854775807" },
        { INT64_MIN, INT64_MIN, "start is -9223372036854775808 and length -9223372036854775808" },
    };
    for (int64_t i = 0; i < COUNT(ranges); i++) {
        refused(mha_tensor_slice(ctx, &t, 1, ranges[i].start, ranges[i].length, &view),
                MHA_ERROR_ARGUMENT, "mha_tensor_slice: ", ranges[i].text, &view);
        check_contains(mha_context_message(ctx), "wanted a part of the 3 elements of axis 1");
    }
    struct mha_tensor scalar = { .data = data, .type = MHA_FLOAT32, .rank = 0 };
    refused(mha_tensor_slice(ctx, &scalar, 0, 0, 1, &view), MHA_ERROR_ARGUMENT,
            "mha_tensor_slice: ", "axis is 0, wanted one of the 0 axes of []", &view);
}

/* ---- permute --------------------------------------------------------------------------------- */

static void permute(void **state)
{
    (void)state;
    float data[2 * 3 * 5 * 7] = { 0 };
    const struct mha_tensor t = mha_tensor_4d_const(data, MHA_FLOAT32, 2, 3, 5, 7);
    const int32_t axes[] = { 0, 2, 1, 3 };
    struct mha_tensor view;
    check_status(ctx, mha_tensor_permute(ctx, &t, axes, &view), MHA_OK);
    check_shape(&view, "[2, 5, 3, 7]");
    check_strides(&view, (const int64_t[]){ 105, 7, 35, 1 });
    assert_ptr_equal(view.data, data);
    assert_int_equal(view.flags, MHA_READ_ONLY);
    check_status(ctx, mha_tensor_permute(ctx, &view, axes, &view), MHA_OK); /* and back, in place */
    assert_true(mha_tensor_same_view(&view, &t));
    struct mha_tensor scalar = { .data = data, .type = MHA_FLOAT32, .rank = 0 };
    check_status(ctx, mha_tensor_permute(ctx, &scalar, axes, &view), MHA_OK);
    check_shape(&view, "[]");
}

static void permute_refusals(void **state)
{
    (void)state;
    float data[24] = { 0 };
    const struct mha_tensor t = mha_tensor_3d(data, MHA_FLOAT32, 2, 3, 4);
    struct mha_tensor view = { .rank = 99 };
    const struct {
        int32_t axes[3];
        const char *text;
    } cases[] = {
        { { 0, 1, 3 }, "axes[2] is 3, wanted each of 0 to 2 once" },
        { { -1, 1, 2 }, "axes[0] is -1, wanted each of 0 to 2 once" },
        { { 0, 1, 1 }, "axes[2] is 1, wanted each of 0 to 2 once" },
        { { 2, 2, 0 }, "axes[1] is 2, wanted each of 0 to 2 once" },
        { { 0, INT32_MAX, 2 }, "axes[1] is 2147483647, " },
        { { INT32_MIN, 1, 2 }, "axes[0] is -2147483648, " },
    };
    for (int64_t i = 0; i < COUNT(cases); i++)
        refused(mha_tensor_permute(ctx, &t, cases[i].axes, &view), MHA_ERROR_ARGUMENT,
                "mha_tensor_permute: ", cases[i].text, &view);
    refused(mha_tensor_permute(ctx, &t, NULL, &view), MHA_ERROR_ARGUMENT,
            "mha_tensor_permute: ", "axes is NULL", &view);
}

/* ---- reshape --------------------------------------------------------------------------------- */

static void reshape(void **state)
{
    (void)state;
    float data[240] = { 0 };
    struct mha_tensor view, part;
    /* The way to heads: [B, L, H*D] of a packed row into [B, L, H, D], whose rows stay apart. */
    const struct mha_tensor rows = mha_tensor_3d_const(data, MHA_FLOAT32, 2, 5, 24);
    check_status(ctx, mha_tensor_slice(ctx, &rows, 2, 8, 8, &part), MHA_OK);
    check_status(ctx, mha_tensor_reshape(ctx, &part, 4, (const int64_t[]){ 2, 5, 4, 2 }, &view),
                 MHA_OK);
    check_shape(&view, "[2, 5, 4, 2]");
    check_strides(&view, (const int64_t[]){ 120, 24, 2, 1 });
    assert_ptr_equal(view.data, data + 8);
    assert_int_equal(view.flags, MHA_READ_ONLY);
    /* ... and back, in place; and samples that lie evenly join. */
    check_status(ctx, mha_tensor_reshape(ctx, &view, 2, (const int64_t[]){ 10, 8 }, &view), MHA_OK);
    check_strides(&view, (const int64_t[]){ 24, 1 });
    /* What needs a copy is refused. */
    view = (struct mha_tensor){ .rank = 99 };
    refused(mha_tensor_reshape(ctx, &part, 1, (const int64_t[]){ 80 }, &view), MHA_ERROR_LAYOUT,
            "mha_tensor_reshape: ",
            "shape is [80], which the strides of a tensor [2, 5, 8] cannot express without a copy",
            &view);
    /* Axes of 1 come and go, whatever their stride; a scalar is one element. */
    part = mha_tensor_3d(data, MHA_FLOAT32, 1, 1, 1);
    part.strides[1] = -77;
    check_status(ctx, mha_tensor_reshape(ctx, &part, 0, NULL, &view), MHA_OK);
    check_shape(&view, "[]");
    check_status(ctx,
                 mha_tensor_reshape(ctx, &view, 6, (const int64_t[]){ 1, 1, 1, 1, 1, 1 }, &view),
                 MHA_OK);
    check_status(ctx, mha_tensor_check_output(ctx, "view", &view), MHA_OK);
    /* Empty tensors take any empty shape. */
    part = mha_tensor_2d(NULL, MHA_FLOAT32, 0, 8);
    check_status(ctx,
                 mha_tensor_reshape(ctx, &part, 3, (const int64_t[]){ 5, INT64_MAX, 0 }, &view),
                 MHA_OK);
    check_status(ctx, mha_tensor_check_output(ctx, "view", &view), MHA_OK);
}

static void reshape_refusals(void **state)
{
    (void)state;
    float data[24] = { 0 };
    const struct mha_tensor t = mha_tensor_3d(data, MHA_FLOAT32, 2, 3, 4);
    struct mha_tensor view = { .rank = 99 };
    const int64_t seven[7] = { 24, 1, 1, 1, 1, 1, 1 };
    const char *function = "mha_tensor_reshape: ";
    refused(mha_tensor_reshape(ctx, &t, 7, seven, &view), MHA_ERROR_ARGUMENT, function,
            "rank is 7 and shape given, wanted 0 to 6 sizes", &view);
    refused(mha_tensor_reshape(ctx, &t, -1, seven, &view), MHA_ERROR_ARGUMENT, function,
            "rank is -1", &view);
    refused(mha_tensor_reshape(ctx, &t, INT32_MAX, seven, &view), MHA_ERROR_ARGUMENT, function,
            "rank is 2147483647", &view);
    refused(mha_tensor_reshape(ctx, &t, 1, NULL, &view), MHA_ERROR_ARGUMENT, function, "shape NULL",
            &view);
    const struct {
        int64_t shape[2];
        const char *text;
    } cases[] = {
        { { 5, 5 }, "shape is [5, 5], wanted the 24 elements of [2, 3, 4]" },
        { { -1, 24 }, "shape is [-1, 24], wanted the 24 elements of [2, 3, 4]" },
        { { -4, -6 }, "shape is [-4, -6], wanted the 24 elements" },
        { { 0, 24 }, "shape is [0, 24], wanted the 24 elements" },
        { { INT64_MAX, INT64_MAX }, "shape is [9223372036854775807, 9223372036854775807], wanted" },
        { { 24, (int64_t)1 << 62 }, "shape is [24, 4611686018427387904], wanted the 24 elements" },
    };
    for (int64_t i = 0; i < COUNT(cases); i++)
        refused(mha_tensor_reshape(ctx, &t, 2, cases[i].shape, &view), MHA_ERROR_SHAPE, function,
                cases[i].text, &view);
    refused(mha_tensor_reshape(ctx, &t, 0, NULL, &view), MHA_ERROR_SHAPE, function,
            "shape is [], wanted the 24 elements", &view);
}

/* Strides near the end of what a pointer holds: joining axes must not overflow on the way. */
static void reshape_far_apart(void **state)
{
    (void)state;
    char data[4] = { 0 };
    struct mha_tensor t = mha_tensor_2d(data, MHA_UINT8, 2, 2), view = { .rank = 99 };
    t.strides[0] = 1;
    t.strides[1] = ((int64_t)1 << 62) + 1;
    refused(mha_tensor_reshape(ctx, &t, 1, (const int64_t[]){ 4 }, &view), MHA_ERROR_LAYOUT,
            "mha_tensor_reshape: ", "shape is [4], which the strides", &view);
}

/* A random shape of that many elements, ones strewn in. */
static int32_t random_shape(int64_t count, int64_t *shape)
{
    int32_t rank = 0;
    while (rank < MHA_MAX_RANK - 1 && (count > 1 || random_below(3) == 0)) {
        int64_t size = 1;
        if (random_below(4) != 0)
            for (size = 1 + random_below(count); count % size != 0;)
                size--;
        shape[rank++] = size;
        count /= size;
    }
    if (count > 1)
        shape[rank++] = count;
    return rank;
}

/* A tensor of random shape and random strides, some of them contiguous with their neighbours. */
static struct mha_tensor random_strided(void *data, int32_t type)
{
    struct mha_tensor t = { .data = data, .type = type, .rank = (int32_t)random_below(5) };
    int64_t stride = random_below(3);
    for (int32_t axis = t.rank - 1; axis >= 0; axis--) {
        t.shape[axis] = 1 + random_below(5);
        t.strides[axis] = random_below(3) ? stride : random_below(30);
        stride = t.strides[axis] * t.shape[axis];
    }
    return t;
}

/* Held against enumeration: a view walks the same addresses in the same order, and what is refused
 * can be said by no strides at all. */
static void reshape_against_enumeration(void **state)
{
    (void)state;
    static int64_t old[MOST], now[MOST];
    int accepted = 0, without_strides = 0;
    for (int run = 0; run < 20000; run++) {
        struct mha_tensor t = random_strided(&old, MHA_FLOAT32), view = { .rank = 99 };
        int64_t n = enumerate(&t, old), shape[MHA_MAX_RANK];
        int32_t rank = random_shape(n, shape);
        mha_status status = mha_tensor_reshape(ctx, &t, rank, shape, &view);
        if (status == MHA_OK) {
            accepted++;
        } else {
            check_status(ctx, status, MHA_ERROR_LAYOUT);
            without_strides++;
            /* The only strides that could do: those that lead to each axis's second element. */
            view = t;
            view.rank = rank;
            int64_t step = n;
            for (int32_t axis = 0; axis < rank; axis++) {
                view.shape[axis] = shape[axis];
                step /= shape[axis];
                view.strides[axis] = shape[axis] > 1 ? old[step] / 4 : 0;
            }
        }
        assert_int_equal(enumerate(&view, now), n);
        bool same = memcmp(old, now, (size_t)n * sizeof *old) == 0;
        char text[256];
        describe(&t, text, sizeof text);
        if (same != (status == MHA_OK))
            fail_msg("%s to %s: %s", text, mha_tensor_text(&view).text,
                     same ? "refused, but strides can say it" : "walks other elements");
    }
    assert_true(accepted > 1000 && without_strides > 1000);
}

/* ---- overlap --------------------------------------------------------------------------------- */

/* Do two tensors in one block of 512 bytes touch a common byte? */
static bool share_a_byte(const struct mha_tensor *a, const struct mha_tensor *b, const char *block)
{
    bool touched[512] = { false };
    int64_t offsets[MOST];
    int64_t n = enumerate(a, offsets);
    for (int64_t e = 0; e < n; e++)
        for (int64_t byte = 0; byte < mha_type_bytes(a->type); byte++)
            touched[(char *)a->data - block + offsets[e] + byte] = true;
    n = enumerate(b, offsets);
    for (int64_t e = 0; e < n; e++)
        for (int64_t byte = 0; byte < mha_type_bytes(b->type); byte++)
            if (touched[(char *)b->data - block + offsets[e] + byte])
                return true;
    return false;
}

static void fail_overlap(const struct mha_tensor *a, const struct mha_tensor *b, bool want)
{
    char text_a[256], text_b[256];
    describe(a, text_a, sizeof text_a);
    describe(b, text_b, sizeof text_b);
    fail_msg("%s and %s: they %s", text_a, text_b, want ? "overlap" : "do not overlap");
}

/* Parts of one contiguous tensor, of any two lengths, axes in any order: the answer is exact. */
static void overlap_of_slices_is_exact(void **state)
{
    (void)state;
    static _Alignas(8) char block[512];
    int overlaps = 0, apart = 0;
    for (int run = 0; run < 20000; run++) {
        const struct mha_tensor parent = mha_tensor_4d(block, MHA_FLOAT32, 1 + random_below(3),
                                                       1 + random_below(4), 1 + random_below(3),
                                                       1 + random_below(3));
        int32_t order[4] = { 0, 1, 2, 3 };
        for (int i = 3; i > 0; i--) {
            int64_t j = random_below(i + 1);
            int32_t axis = order[i];
            order[i] = order[j];
            order[j] = axis;
        }
        struct mha_tensor views[2];
        bool same_length = random_below(2);
        int64_t length[4];
        for (int v = 0; v < 2; v++) {
            views[v] = parent;
            for (int32_t axis = 0; axis < 4; axis++) {
                if (v == 0 || !same_length)
                    length[axis] = random_below(6) ? 1 + random_below(parent.shape[axis]) : 0;
                int64_t start = random_below(parent.shape[axis] - length[axis] + 1);
                check_status(ctx,
                             mha_tensor_slice(ctx, &views[v], axis, start, length[axis], &views[v]),
                             MHA_OK);
            }
            check_status(ctx, mha_tensor_permute(ctx, &views[v], order, &views[v]), MHA_OK);
        }
        bool want = share_a_byte(&views[0], &views[1], block);
        *(want ? &overlaps : &apart) += 1;
        if (mha_tensor_overlap(&views[0], &views[1]) != want
            || mha_tensor_overlap(&views[1], &views[0]) != want)
            fail_overlap(&views[0], &views[1], want);
    }
    assert_true(overlaps > 1000 && apart > 1000);
}

static struct mha_tensor random_view(char *block)
{
    struct mha_tensor t = { .type = random_below(2) ? MHA_FLOAT32 : MHA_UINT8,
                            .rank = (int32_t)random_below(4) };
    for (int32_t axis = 0; axis < t.rank; axis++) {
        t.shape[axis] = random_below(4);
        t.strides[axis] = random_below(12);
    }
    t.data = block + random_below(64);
    return t;
}

/* Any two views: memory that is shared is always reported. The range of bytes may report more. */
static void overlap_is_never_missed(void **state)
{
    (void)state;
    static _Alignas(8) char block[512];
    int overlaps = 0, apart = 0;
    for (int run = 0; run < 40000; run++) {
        struct mha_tensor a = random_view(block), b = random_view(block);
        if (random_below(2)) { /* the same grid elsewhere */
            void *data = b.data;
            b = a;
            b.data = data;
        }
        bool want = share_a_byte(&a, &b, block), got = mha_tensor_overlap(&a, &b);
        assert_int_equal(got, mha_tensor_overlap(&b, &a));
        if (want && !got)
            fail_overlap(&a, &b, want);
        overlaps += want;
        apart += !got;
    }
    assert_true(overlaps > 1000 && apart > 1000);
}

/* Neighbours do not overlap, nor does anything with no memory at all. */
static void overlap_at_the_edges(void **state)
{
    (void)state;
    float data[20] = { 0 };
    const struct mha_tensor a = mha_tensor_1d(data, MHA_FLOAT32, 10);
    struct mha_tensor b = mha_tensor_2d(data + 10, MHA_FLOAT32, 2, 5);
    assert_false(mha_tensor_overlap(&a, &b));
    b.data = data + 9;
    assert_true(mha_tensor_overlap(&a, &b));
    b = mha_tensor_1d((char *)data + 39, MHA_UINT8, 1);
    assert_true(mha_tensor_overlap(&a, &b));
    b.data = (char *)data + 40;
    assert_false(mha_tensor_overlap(&a, &b));
    b = mha_tensor_1d(data, MHA_FLOAT32, 0);
    assert_false(mha_tensor_overlap(&a, &b));
    b = mha_tensor_1d(NULL, MHA_FLOAT32, 10);
    assert_false(mha_tensor_overlap(&a, &b));
    assert_false(mha_tensor_overlap(&b, &b));
    assert_true(mha_tensor_overlap(&a, &a));
}

/* ---- outputs --------------------------------------------------------------------------------- */

static bool holds_an_element_twice(const struct mha_tensor *t)
{
    bool seen[1024] = { false };
    int64_t offsets[MOST];
    int64_t n = enumerate(t, offsets);
    for (int64_t e = 0; e < n; e++) {
        if (seen[offsets[e] / 4])
            return true;
        seen[offsets[e] / 4] = true;
    }
    return false;
}

static void outputs_hold_no_element_twice(void **state)
{
    (void)state;
    static float data[1024];
    int accepted = 0, twice = 0;
    for (int run = 0; run < 40000; run++) {
        struct mha_tensor t = { .data = data,
                                .type = MHA_FLOAT32,
                                .rank = (int32_t)random_below(5) };
        for (int32_t axis = 0; axis < t.rank; axis++) {
            t.shape[axis] = random_below(8) ? 1 + random_below(4) : 0;
            t.strides[axis] = axis == t.rank - 1 ? 1 : random_below(40);
        }
        bool bad = holds_an_element_twice(&t);
        mha_status status = mha_tensor_check_output(ctx, "out", &t);
        char text[256];
        describe(&t, text, sizeof text);
        if (status == MHA_OK && bad)
            fail_msg("accepted, but an element lies twice: %s", text);
        accepted += status == MHA_OK;
        twice += bad;
        if (bad) {
            check_status(ctx, status, MHA_ERROR_LAYOUT);
            check_contains(mha_context_message(ctx), "out of shape ");
            check_contains(mha_context_message(ctx), "give two elements one place");
        }
    }
    assert_true(accepted > 1000 && twice > 1000);
}

/* Whatever is a part of contiguous memory is accepted, its axes in any order but the last. */
static void outputs_may_be_slices(void **state)
{
    (void)state;
    static float data[5 * 5 * 5 * 5];
    for (int run = 0; run < 3000; run++) {
        struct mha_tensor t = mha_tensor_4d(data, MHA_FLOAT32, 5, 5, 5, 5);
        for (int32_t axis = 0; axis < 4; axis++) {
            int64_t length = random_below(6);
            check_status(ctx, mha_tensor_slice(ctx, &t, axis, random_below(6 - length), length, &t),
                         MHA_OK);
        }
        const int32_t orders[][4] = { { 0, 1, 2, 3 }, { 0, 2, 1, 3 }, { 1, 0, 2, 3 },
                                      { 1, 2, 0, 3 }, { 2, 0, 1, 3 }, { 2, 1, 0, 3 } };
        check_status(ctx, mha_tensor_permute(ctx, &t, orders[random_below(6)], &t), MHA_OK);
        check_status(ctx, mha_tensor_check_output(ctx, "out", &t), MHA_OK);
    }
}

static void output_refusals(void **state)
{
    (void)state;
    float data[24] = { 0 };
    const struct mha_tensor good = mha_tensor_3d(data, MHA_FLOAT32, 2, 3, 4);
    const struct mha_tensor constant = mha_tensor_3d_const(data, MHA_FLOAT32, 2, 3, 4);
    struct mha_tensor t = good;
    check_status(ctx, mha_tensor_check_output(ctx, "out", &constant), MHA_ERROR_LAYOUT);
    check_contains(mha_context_message(ctx), "out is read-only");
    t.strides[2] = 2;
    check_status(ctx, mha_tensor_check_output(ctx, "out", &t), MHA_ERROR_LAYOUT);
    check_contains(mha_context_message(ctx), "out has the stride 2 on its last axis, wanted 1");
    t = good;
    t.strides[0] = 0;
    check_status(ctx, mha_tensor_check_output(ctx, "out", &t), MHA_ERROR_LAYOUT);
    check_contains(mha_context_message(ctx), "out of shape [2, 3, 4] has strides that give");
    t = good;
    t.data = NULL;
    check_status(ctx, mha_tensor_check_output(ctx, "out", &t), MHA_ERROR_ARGUMENT);
    check_contains(mha_context_message(ctx), "out of shape [2, 3, 4] has no data (NULL)");
    check_status(ctx, mha_tensor_check_output_layout(ctx, "out", &t), MHA_OK);
    check_status(ctx, mha_tensor_check_output(ctx, "out", NULL), MHA_ERROR_ARGUMENT);
    check_contains(mha_context_message(ctx), "out is NULL");
}

/* ---- comparisons of views -------------------------------------------------------------------- */

static void same_view(void **state)
{
    (void)state;
    float data[24] = { 0 };
    const struct mha_tensor t = mha_tensor_3d(data, MHA_FLOAT32, 2, 1, 4);
    struct mha_tensor other = mha_tensor_3d_const(data, MHA_FLOAT32, 2, 1, 4);
    assert_true(mha_tensor_same_view(&t, &t));
    assert_true(mha_tensor_same_view(&t, &other)); /* flags say who may write, not where it lies */
    other.strides[1] = 1000;                       /* of a single element */
    assert_true(mha_tensor_same_view(&t, &other));
    other.strides[0] = 8;
    assert_false(mha_tensor_same_view(&t, &other));
    other = t;
    other.data = data + 1;
    assert_false(mha_tensor_same_view(&t, &other));
    other = t;
    other.type = MHA_INT32;
    assert_false(mha_tensor_same_view(&t, &other));
    other = t;
    other.shape[0] = 1;
    assert_false(mha_tensor_same_view(&t, &other));
    assert_false(mha_tensor_same_shape(&t, &other));
    other = mha_tensor_2d(data, MHA_FLOAT32, 2, 4);
    assert_false(mha_tensor_same_view(&t, &other));
    assert_false(mha_tensor_same_shape(&t, &other));
    other = mha_tensor_3d(data + 8, MHA_UINT8, 2, 1, 4);
    assert_true(mha_tensor_same_shape(&t, &other));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types),
        cmocka_unit_test(makers),
        cmocka_unit_test(makers_of_impossible_sizes),
        cmocka_unit_test(count),
        cmocka_unit_test(shape_text),
        cmocka_unit_test(views_of_malformed_tensors),
        cmocka_unit_test(slice),
        cmocka_unit_test(slice_refusals),
        cmocka_unit_test(permute),
        cmocka_unit_test(permute_refusals),
        cmocka_unit_test(reshape),
        cmocka_unit_test(reshape_refusals),
        cmocka_unit_test(reshape_far_apart),
        cmocka_unit_test(reshape_against_enumeration),
        cmocka_unit_test(overlap_of_slices_is_exact),
        cmocka_unit_test(overlap_is_never_missed),
        cmocka_unit_test(overlap_at_the_edges),
        cmocka_unit_test(outputs_hold_no_element_twice),
        cmocka_unit_test(outputs_may_be_slices),
        cmocka_unit_test(output_refusals),
        cmocka_unit_test(same_view),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
