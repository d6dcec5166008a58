/* Checked views: what every door asks of a tensor before any work. */
#ifndef MHA_TENSOR_H
#define MHA_TENSOR_H

#include "context.h"

/* Room for the longest text of mha_tensor_shape_text: six sizes of up to 20 characters. */
#define MHA_SHAPE_TEXT 136

/* A shape as a text that lives to the end of the enclosing full expression's block. */
struct mha_shape_text {
    char text[MHA_SHAPE_TEXT];
};
struct mha_shape_text mha_tensor_text(const struct mha_tensor *tensor);

/*
 * Fails unless the tensor is well-formed: a known type, a rank of 0..6, sizes and strides that are
 * not negative, a last stride of 1, a span that fits in memory, and data behind it. `name` is the
 * argument's name in the message. The _layout variant does not look at the data pointer.
 */
mha_status mha_tensor_check(mha_context *ctx, const char *name, const struct mha_tensor *tensor);
mha_status mha_tensor_check_layout(mha_context *ctx, const char *name,
                                   const struct mha_tensor *tensor);

/* Like mha_tensor_check_layout, and fails when the view is read-only or holds an element twice. */
mha_status mha_tensor_check_output_layout(mha_context *ctx, const char *name,
                                          const struct mha_tensor *tensor);

/* Both: well-formed with data, writable, no element twice. */
mha_status mha_tensor_check_output(mha_context *ctx, const char *name,
                                   const struct mha_tensor *tensor);

/* Fails unless the shape is exactly the `rank` sizes given; the message gives both shapes. `symbols`
 * says what the sizes are: "[B, L, H, D]". */
mha_status mha_tensor_check_shape(mha_context *ctx, const char *name,
                                  const struct mha_tensor *tensor, const char *symbols,
                                  int32_t rank, const int64_t *shape);

/* Fails unless the type is `type`. */
mha_status mha_tensor_check_type(mha_context *ctx, const char *name,
                                 const struct mha_tensor *tensor, int32_t type);

/* Do two well-formed tensors share memory? Exact for views whose strides agree, such as slices of one
 * parent; else by the range of bytes. */
bool mha_tensor_overlap(const struct mha_tensor *a, const struct mha_tensor *b);

/* Are they the very same view: data, type, shape and strides (of axes longer than 1)? */
bool mha_tensor_same_view(const struct mha_tensor *a, const struct mha_tensor *b);

bool mha_tensor_same_shape(const struct mha_tensor *a, const struct mha_tensor *b);

/* Behind the door a tensor [B, L, heads, width] of floats is plain numbers: strides in elements, the
 * last axis contiguous. data is NULL where the operand is not given. */
struct mha_view {
    float *data;
    int64_t b, l, h;
};

/* Stride of an axis as the inner loops use it: 0 where the axis has a single
 * element, or the tensor none. */
int64_t mha_tensor_stride(const struct mha_tensor *tensor, int32_t axis);

#endif
