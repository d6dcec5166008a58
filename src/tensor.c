#include "tensor.h"

#include <inttypes.h>
#include <stdio.h>

int64_t mha_type_bytes(int32_t type)
{
    switch (type) {
    case MHA_BOOL:
    case MHA_UINT8:
    case MHA_INT8: return 1;
    case MHA_FLOAT16:
    case MHA_BFLOAT16:
    case MHA_INT16:
    case MHA_UINT16: return 2;
    case MHA_FLOAT32:
    case MHA_INT32:
    case MHA_UINT32: return 4;
    case MHA_FLOAT64:
    case MHA_INT64:
    case MHA_UINT64: return 8;
    default: return 0;
    }
}

const char *mha_type_text(int32_t type)
{
    switch (type) {
    case MHA_FLOAT32: return "float32";
    case MHA_FLOAT64: return "float64";
    case MHA_FLOAT16: return "float16";
    case MHA_BFLOAT16: return "bfloat16";
    case MHA_BOOL: return "bool";
    case MHA_UINT8: return "uint8";
    case MHA_INT8: return "int8";
    case MHA_INT16: return "int16";
    case MHA_UINT16: return "uint16";
    case MHA_INT32: return "int32";
    case MHA_UINT32: return "uint32";
    case MHA_INT64: return "int64";
    case MHA_UINT64: return "uint64";
    default: return "unknown type";
    }
}

/* ---- makers ---------------------------------------------------------------------------------- */

/* Contiguous strides. An overflow saturates; the door's span check refuses the tensor then. */
static void set_contiguous(struct mha_tensor *tensor)
{
    int64_t stride = 1;
    for (int32_t axis = tensor->rank - 1; axis >= 0; axis--) {
        tensor->strides[axis] = stride;
        int64_t size = max_i64(tensor->shape[axis], 1);
        if (__builtin_mul_overflow(stride, size, &stride))
            stride = INT64_MAX;
    }
}

static struct mha_tensor make(const void *data, int32_t type, int32_t rank, const int64_t *shape,
                              int64_t flags)
{
    struct mha_tensor tensor = { .type = type, .rank = rank, .flags = flags };
    tensor.data = (void *)(uintptr_t)data;
    for (int32_t axis = 0; axis < rank; axis++)
        tensor.shape[axis] = shape[axis];
    set_contiguous(&tensor);
    return tensor;
}

struct mha_tensor mha_tensor_1d(void *data, int32_t type, int64_t n0)
{
    return make(data, type, 1, (int64_t[]){ n0 }, 0);
}

struct mha_tensor mha_tensor_2d(void *data, int32_t type, int64_t n0, int64_t n1)
{
    return make(data, type, 2, (int64_t[]){ n0, n1 }, 0);
}

struct mha_tensor mha_tensor_3d(void *data, int32_t type, int64_t n0, int64_t n1, int64_t n2)
{
    return make(data, type, 3, (int64_t[]){ n0, n1, n2 }, 0);
}

struct mha_tensor mha_tensor_4d(void *data, int32_t type, int64_t n0, int64_t n1, int64_t n2,
                                int64_t n3)
{
    return make(data, type, 4, (int64_t[]){ n0, n1, n2, n3 }, 0);
}

struct mha_tensor mha_tensor_1d_const(const void *data, int32_t type, int64_t n0)
{
    return make(data, type, 1, (int64_t[]){ n0 }, MHA_READ_ONLY);
}

struct mha_tensor mha_tensor_2d_const(const void *data, int32_t type, int64_t n0, int64_t n1)
{
    return make(data, type, 2, (int64_t[]){ n0, n1 }, MHA_READ_ONLY);
}

struct mha_tensor mha_tensor_3d_const(const void *data, int32_t type, int64_t n0, int64_t n1,
                                      int64_t n2)
{
    return make(data, type, 3, (int64_t[]){ n0, n1, n2 }, MHA_READ_ONLY);
}

struct mha_tensor mha_tensor_4d_const(const void *data, int32_t type, int64_t n0, int64_t n1,
                                      int64_t n2, int64_t n3)
{
    return make(data, type, 4, (int64_t[]){ n0, n1, n2, n3 }, MHA_READ_ONLY);
}

/* ---- texts ----------------------------------------------------------------------------------- */

int64_t mha_tensor_count(const struct mha_tensor *tensor)
{
    if (!tensor || tensor->rank < 0 || tensor->rank > MHA_MAX_RANK)
        return -1;
    int64_t count = 1;
    bool empty = false, fits = true;
    for (int32_t axis = 0; axis < tensor->rank; axis++) {
        if (tensor->shape[axis] < 0)
            return -1;
        if (tensor->shape[axis] == 0)
            empty = true;
        else if (fits)
            fits = mha_memory_product(count, tensor->shape[axis], &count);
    }
    return empty ? 0 : count;
}

int64_t mha_tensor_shape_text(const struct mha_tensor *tensor, char *text, int64_t bytes)
{
    struct mha_shape_text whole = mha_tensor_text(tensor);
    return snprintf(text, text && bytes > 0 ? (size_t)bytes : 0, "%s", whole.text);
}

struct mha_shape_text mha_tensor_text(const struct mha_tensor *tensor)
{
    struct mha_shape_text whole = { "[" };
    int32_t rank = tensor ? tensor->rank : 0;
    if (rank < 0 || rank > MHA_MAX_RANK) {
        snprintf(whole.text, sizeof whole.text, "[rank %" PRId32 "]", rank);
        return whole;
    }
    int used = 1;
    for (int32_t axis = 0; axis < rank; axis++)
        used += snprintf(whole.text + used, sizeof whole.text - (size_t)used, "%s%" PRId64,
                         axis ? ", " : "", tensor->shape[axis]);
    snprintf(whole.text + used, sizeof whole.text - (size_t)used, "]");
    return whole;
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* Distance in elements from the first to the last element; false when it does not fit a pointer. */
static bool span(const struct mha_tensor *tensor, int64_t *distance)
{
    int64_t total = 0, bytes = mha_type_bytes(tensor->type);
    for (int32_t axis = 0; axis < tensor->rank; axis++) {
        int64_t reach = 0;
        if (tensor->shape[axis] <= 1)
            continue;
        if (!mha_memory_product(tensor->shape[axis] - 1, tensor->strides[axis], &reach)
            || __builtin_add_overflow(total, reach, &total))
            return false;
    }
    *distance = total;
    return total < PTRDIFF_MAX / bytes;
}

/* What views of views ask: everything but a last stride of 1. */
static mha_status check_form(mha_context *ctx, const char *name, const struct mha_tensor *tensor)
{
    mha_status status = MHA_OK;
    REQUIRE(ctx, tensor, MHA_ERROR_ARGUMENT, "%s is NULL", name);
    REQUIRE(ctx, tensor->rank >= 0 && tensor->rank <= MHA_MAX_RANK, MHA_ERROR_ARGUMENT,
            "%s has rank %" PRId32 ", wanted 0 to %d", name, tensor->rank, MHA_MAX_RANK);
    REQUIRE(ctx, mha_type_bytes(tensor->type) != 0, MHA_ERROR_TYPE,
            "%s has the element type %" PRId32 ", which is none of enum mha_type", name,
            tensor->type);
    REQUIRE(ctx, (tensor->flags & ~(int64_t)MHA_READ_ONLY) == 0, MHA_ERROR_ARGUMENT,
            "%s has the flags 0x%" PRIx64 ", wanted 0 or MHA_READ_ONLY", name,
            (uint64_t)tensor->flags);
    for (int32_t axis = 0; axis < tensor->rank; axis++) {
        REQUIRE(ctx, tensor->shape[axis] >= 0, MHA_ERROR_ARGUMENT,
                "%s has the shape %s, wanted no negative size", name, mha_tensor_text(tensor).text);
        REQUIRE(ctx, tensor->shape[axis] <= 1 || tensor->strides[axis] >= 0, MHA_ERROR_LAYOUT,
                "%s has the stride %" PRId64 " on axis %" PRId32 ", wanted none below 0", name,
                tensor->strides[axis], axis);
    }
    int64_t distance = 0;
    int64_t count = mha_tensor_count(tensor);
    REQUIRE(ctx, count == 0 || (count > 0 && span(tensor, &distance)), MHA_ERROR_OVERFLOW,
            "%s of shape %s spans more memory than a pointer can address", name,
            mha_tensor_text(tensor).text);
done:
    return status;
}

mha_status mha_tensor_check_layout(mha_context *ctx, const char *name,
                                   const struct mha_tensor *tensor)
{
    mha_status status = MHA_OK;
    TRY(check_form(ctx, name, tensor));
    int32_t last = tensor->rank - 1;
    REQUIRE(ctx, last < 0 || tensor->shape[last] <= 1 || tensor->strides[last] == 1,
            MHA_ERROR_LAYOUT, "%s has the stride %" PRId64 " on its last axis, wanted 1", name,
            tensor->strides[last]);
done:
    return status;
}

mha_status mha_tensor_check(mha_context *ctx, const char *name, const struct mha_tensor *tensor)
{
    mha_status status = MHA_OK;
    TRY(mha_tensor_check_layout(ctx, name, tensor));
    REQUIRE(ctx, tensor->data || mha_tensor_count(tensor) == 0, MHA_ERROR_ARGUMENT,
            "%s of shape %s has no data (NULL)", name, mha_tensor_text(tensor).text);
done:
    return status;
}

/*
 * Axes longer than 1, shortest stride first, go into `axes`; their number is returned. An axis with
 * a stride of 0 comes first.
 */
static int32_t sort_axes(const struct mha_tensor *tensor, int32_t *axes)
{
    int32_t n = 0;
    for (int32_t axis = 0; axis < tensor->rank; axis++) {
        if (tensor->shape[axis] <= 1)
            continue;
        int32_t at = n++;
        for (; at > 0 && tensor->strides[axes[at - 1]] > tensor->strides[axis]; at--)
            axes[at] = axes[at - 1];
        axes[at] = axis;
    }
    return n;
}

/*
 * Does each step along an axis pass over everything the shorter-strided axes cover? Then no two
 * indices meet. It refuses a few interleaved layouts that would be legal and that nobody uses.
 */
static bool is_nested(const struct mha_tensor *tensor)
{
    int32_t axes[MHA_MAX_RANK];
    int32_t n = sort_axes(tensor, axes);
    int64_t covered = 0;
    for (int32_t i = 0; i < n; i++) {
        if (tensor->strides[axes[i]] <= covered)
            return false;
        covered += (tensor->shape[axes[i]] - 1) * tensor->strides[axes[i]];
    }
    return true;
}

mha_status mha_tensor_check_output_layout(mha_context *ctx, const char *name,
                                          const struct mha_tensor *tensor)
{
    mha_status status = MHA_OK;
    TRY(mha_tensor_check_layout(ctx, name, tensor));
    REQUIRE(ctx, !(tensor->flags & MHA_READ_ONLY), MHA_ERROR_LAYOUT,
            "%s is read-only, wanted memory to write to", name);
    REQUIRE(ctx, mha_tensor_count(tensor) == 0 || is_nested(tensor), MHA_ERROR_LAYOUT,
            "%s of shape %s has strides that give two elements one place", name,
            mha_tensor_text(tensor).text);
done:
    return status;
}

mha_status mha_tensor_check_output(mha_context *ctx, const char *name,
                                   const struct mha_tensor *tensor)
{
    mha_status status = MHA_OK;
    TRY(mha_tensor_check_output_layout(ctx, name, tensor));
    TRY(mha_tensor_check(ctx, name, tensor));
done:
    return status;
}

mha_status mha_tensor_check_shape(mha_context *ctx, const char *name,
                                  const struct mha_tensor *tensor, const char *symbols,
                                  int32_t rank, const int64_t *shape)
{
    mha_status status = MHA_OK;
    struct mha_tensor wanted = make(NULL, tensor->type, rank, shape, 0);
    REQUIRE(ctx, mha_tensor_same_shape(tensor, &wanted), MHA_ERROR_SHAPE,
            "%s has the shape %s, wanted %s = %s", name, mha_tensor_text(tensor).text, symbols,
            mha_tensor_text(&wanted).text);
done:
    return status;
}

mha_status mha_tensor_check_type(mha_context *ctx, const char *name,
                                 const struct mha_tensor *tensor, int32_t type)
{
    mha_status status = MHA_OK;
    REQUIRE(ctx, tensor->type == type, MHA_ERROR_TYPE, "%s is %s, wanted %s", name,
            mha_type_text(tensor->type), mha_type_text(type));
done:
    return status;
}

/* ---- overlap --------------------------------------------------------------------------------- */

bool mha_tensor_same_shape(const struct mha_tensor *a, const struct mha_tensor *b)
{
    if (a->rank != b->rank)
        return false;
    for (int32_t axis = 0; axis < a->rank; axis++)
        if (a->shape[axis] != b->shape[axis])
            return false;
    return true;
}

bool mha_tensor_same_view(const struct mha_tensor *a, const struct mha_tensor *b)
{
    if (a->data != b->data || a->type != b->type || !mha_tensor_same_shape(a, b))
        return false;
    for (int32_t axis = 0; axis < a->rank; axis++)
        if (a->shape[axis] > 1 && a->strides[axis] != b->strides[axis])
            return false;
    return true;
}

int64_t mha_tensor_stride(const struct mha_tensor *tensor, int32_t axis)
{
    return tensor->shape[axis] > 1 && mha_tensor_count(tensor) > 0 ? tensor->strides[axis] : 0;
}

/*
 * Is `distance` = sum of k_i * stride_i with -b_i < k_i < a_i, the sizes of two tensors on one nested
 * grid? The axes below reach less than one stride of the axis above, so only the two nearest
 * multiples of the longest stride can leave a rest that they reach.
 */
static bool reaches(const struct mha_tensor *grid, const int32_t *axes, int32_t n,
                    const struct mha_tensor *a, const struct mha_tensor *b, int64_t distance)
{
    if (n == 0)
        return distance == 0;
    int32_t axis = axes[n - 1];
    int64_t stride = grid->strides[axis];
    int64_t below = distance / stride - (distance % stride < 0);
    for (int64_t k = below; k <= below + 1; k++)
        if (k > -b->shape[axis] && k < a->shape[axis]
            && reaches(grid, axes, n - 1, a, b, distance - k * stride))
            return true;
    return false;
}

/* The smallest nested tensor whose slices both could be; false where there is none. */
static bool common_grid(const struct mha_tensor *a, const struct mha_tensor *b,
                        struct mha_tensor *grid)
{
    if (a->type != b->type || a->rank != b->rank)
        return false;
    *grid = *a;
    for (int32_t axis = 0; axis < a->rank; axis++) {
        if (a->shape[axis] > 1 && b->shape[axis] > 1 && a->strides[axis] != b->strides[axis])
            return false;
        if (b->shape[axis] > a->shape[axis]) {
            grid->shape[axis] = b->shape[axis];
            grid->strides[axis] = b->strides[axis];
        }
    }
    int64_t distance = 0;
    return span(grid, &distance) && is_nested(grid);
}

bool mha_tensor_overlap(const struct mha_tensor *a, const struct mha_tensor *b)
{
    int64_t span_a = 0, span_b = 0;
    if (mha_tensor_count(a) <= 0 || mha_tensor_count(b) <= 0 || !a->data || !b->data
        || !span(a, &span_a) || !span(b, &span_b))
        return false;
    int64_t bytes_a = mha_type_bytes(a->type), bytes_b = mha_type_bytes(b->type);
    uintptr_t first_a = (uintptr_t)a->data, first_b = (uintptr_t)b->data;
    if (first_a + (uintptr_t)((span_a + 1) * bytes_a) <= first_b
        || first_b + (uintptr_t)((span_b + 1) * bytes_b) <= first_a)
        return false;
    int64_t distance = (int64_t)(first_b - first_a);
    struct mha_tensor grid;
    if (!common_grid(a, b, &grid) || distance % bytes_a != 0)
        return true;
    int32_t axes[MHA_MAX_RANK];
    int32_t n = sort_axes(&grid, axes);
    return reaches(&grid, axes, n, a, b, distance / bytes_a);
}

/* ---- views of views -------------------------------------------------------------------------- */

mha_status mha_tensor_slice(mha_context *ctx, const struct mha_tensor *tensor, int32_t axis,
                            int64_t start, int64_t length, struct mha_tensor *view)
{
    mha_status status = mha_context_enter(ctx, "mha_tensor_slice");
    if (status != MHA_OK)
        return status;
    TRY(check_form(ctx, "tensor", tensor));
    REQUIRE(ctx, view, MHA_ERROR_ARGUMENT, "view is NULL");
    REQUIRE(ctx, axis >= 0 && axis < tensor->rank, MHA_ERROR_ARGUMENT,
            "axis is %" PRId32 ", wanted one of the %" PRId32 " axes of %s", axis, tensor->rank,
            mha_tensor_text(tensor).text);
    REQUIRE(ctx,
            start >= 0 && length >= 0 && start <= tensor->shape[axis]
                && length <= tensor->shape[axis] - start,
            MHA_ERROR_ARGUMENT,
            "start is %" PRId64 " and length %" PRId64 ", wanted a part of the %" PRId64
            " elements of axis %" PRId32,
            start, length, tensor->shape[axis], axis);
    struct mha_tensor result = *tensor;
    result.shape[axis] = length;
    if (tensor->data && mha_tensor_count(&result) > 0)
        result.data = (char *)tensor->data
                      + start * mha_tensor_stride(tensor, axis) * mha_type_bytes(tensor->type);
    *view = result;
done:
    return mha_context_leave(ctx, status);
}

mha_status mha_tensor_permute(mha_context *ctx, const struct mha_tensor *tensor,
                              const int32_t *axes, struct mha_tensor *view)
{
    mha_status status = mha_context_enter(ctx, "mha_tensor_permute");
    if (status != MHA_OK)
        return status;
    TRY(check_form(ctx, "tensor", tensor));
    REQUIRE(ctx, axes && view, MHA_ERROR_ARGUMENT, "%s is NULL", !axes ? "axes" : "view");
    struct mha_tensor result = *tensor;
    uint32_t seen = 0;
    for (int32_t i = 0; i < tensor->rank; i++) {
        REQUIRE(ctx, axes[i] >= 0 && axes[i] < tensor->rank && !(seen >> axes[i] & 1),
                MHA_ERROR_ARGUMENT,
                "axes[%" PRId32 "] is %" PRId32 ", wanted each of 0 to %" PRId32 " once", i,
                axes[i], tensor->rank - 1);
        seen |= 1u << axes[i];
        result.shape[i] = tensor->shape[axes[i]];
        result.strides[i] = tensor->strides[axes[i]];
    }
    *view = result;
done:
    return mha_context_leave(ctx, status);
}

/*
 * Gives `view`, whose shape is set, strides that walk `tensor`'s elements in row-major order; false
 * where none do. Both are walked from the last axis: runs of old axes that are contiguous with each
 * other are matched with runs of new axes of the same product.
 */
static bool set_reshaped_strides(const struct mha_tensor *tensor, struct mha_tensor *view)
{
    int32_t from = tensor->rank - 1, to = view->rank - 1;
    while (to >= 0) {
        if (view->shape[to] == 1) {
            view->strides[to--] = 1;
            continue;
        }
        while (tensor->shape[from] == 1)
            from--;
        int64_t old_size = tensor->shape[from], new_size = view->shape[to];
        int64_t stride = tensor->strides[from];
        view->strides[to] = stride;
        while (old_size != new_size) {
            if (old_size < new_size) {
                int64_t next = 0;
                if (!mha_memory_product(tensor->strides[from], tensor->shape[from], &next))
                    return false;
                do
                    from--;
                while (tensor->shape[from] == 1);
                if (tensor->strides[from] != next)
                    return false;
                old_size *= tensor->shape[from];
            } else {
                to--;
                view->strides[to] = stride * new_size;
                new_size *= view->shape[to];
            }
        }
        from--;
        to--;
    }
    return true;
}

mha_status mha_tensor_reshape(mha_context *ctx, const struct mha_tensor *tensor, int32_t rank,
                              const int64_t *shape, struct mha_tensor *view)
{
    mha_status status = mha_context_enter(ctx, "mha_tensor_reshape");
    if (status != MHA_OK)
        return status;
    TRY(check_form(ctx, "tensor", tensor));
    REQUIRE(ctx, view, MHA_ERROR_ARGUMENT, "view is NULL");
    REQUIRE(ctx, rank >= 0 && rank <= MHA_MAX_RANK && (shape || rank == 0), MHA_ERROR_ARGUMENT,
            "rank is %" PRId32 " and shape %s, wanted 0 to %d sizes", rank,
            shape ? "given" : "NULL", MHA_MAX_RANK);
    struct mha_tensor result = make(tensor->data, tensor->type, rank, shape, tensor->flags);
    int64_t count = mha_tensor_count(tensor);
    REQUIRE(ctx, mha_tensor_count(&result) == count, MHA_ERROR_SHAPE,
            "shape is %s, wanted the %" PRId64 " elements of %s", mha_tensor_text(&result).text,
            count, mha_tensor_text(tensor).text);
    REQUIRE(ctx, count == 0 || set_reshaped_strides(tensor, &result), MHA_ERROR_LAYOUT,
            "shape is %s, which the strides of a tensor %s cannot express without a copy",
            mha_tensor_text(&result).text, mha_tensor_text(tensor).text);
    *view = result;
done:
    return mha_context_leave(ctx, status);
}
