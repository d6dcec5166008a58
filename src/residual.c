#include "tensor.h"

/* Adds along the axes from `axis` on; the pointers stand at the first element. */
static void add(const struct mha_tensor *shape, int32_t axis, const float *x, const int64_t *x_step,
                const float *y, const int64_t *y_step, float *out, const int64_t *out_step)
{
    if (axis == shape->rank) {
        *out = *x + *y;
        return;
    }
    int64_t n = shape->shape[axis];
    if (axis == shape->rank - 1) {
        for (int64_t i = 0; i < n; i++)
            out[i] = x[i] + y[i];
        return;
    }
    for (int64_t i = 0; i < n; i++)
        add(shape, axis + 1, x + i * x_step[axis], x_step, y + i * y_step[axis], y_step,
            out + i * out_step[axis], out_step);
}

static mha_status check_overlap(mha_context *ctx, const char *name, const struct mha_tensor *in,
                                const struct mha_tensor *out)
{
    mha_status status = MHA_OK;
    REQUIRE(ctx, mha_tensor_same_view(in, out) || !mha_tensor_overlap(in, out), MHA_ERROR_LAYOUT,
            "out overlaps %s and is not the very same view", name);
done:
    return status;
}

static mha_status check_same_shape(mha_context *ctx, const char *name,
                                   const struct mha_tensor *tensor, const struct mha_tensor *x)
{
    mha_status status = MHA_OK;
    int32_t axis = 0;
    while (axis < x->rank && axis < tensor->rank && x->shape[axis] == tensor->shape[axis])
        axis++;
    REQUIRE(
        ctx, mha_tensor_same_shape(tensor, x), MHA_ERROR_SHAPE,
        "%s has the shape %s and x %s: they differ in %s %d, and a residual is never broadcast, "
        "cut or padded; only a W_O that leads back to the width of x makes the sum possible",
        name, mha_tensor_text(tensor).text, mha_tensor_text(x).text,
        tensor->rank == x->rank ? "axis" : "rank, from axis", (int)axis);
done:
    return status;
}

mha_status mha_residual_add(mha_context *ctx, const struct mha_tensor *x,
                            const struct mha_tensor *y, const struct mha_tensor *out)
{
    if (!ctx)
        return MHA_ERROR_ARGUMENT;
    mha_status status = mha_context_enter(ctx, "mha_residual_add");
    if (status != MHA_OK)
        return status;
    TRY(mha_tensor_check(ctx, "x", x));
    TRY(mha_tensor_check(ctx, "y", y));
    TRY(mha_tensor_check_output(ctx, "out", out));
    TRY(mha_tensor_check_type(ctx, "x", x, MHA_FLOAT32));
    TRY(mha_tensor_check_type(ctx, "y", y, MHA_FLOAT32));
    TRY(mha_tensor_check_type(ctx, "out", out, MHA_FLOAT32));
    TRY(check_same_shape(ctx, "y", y, x));
    TRY(check_same_shape(ctx, "out", out, x));
    TRY(check_overlap(ctx, "x", x, out));
    TRY(check_overlap(ctx, "y", y, out));
    if (mha_tensor_count(x) > 0)
        add(x, 0, x->data, x->strides, y->data, y->strides, out->data, out->strides);
done:
    return mha_context_leave(ctx, status);
}
