/* Elements between a file and memory: byte order, storage order, and the float types. */
#ifndef MHA_IO_CONVERT_H
#define MHA_IO_CONVERT_H

#include "io/file.h"

/* An array as it lies in a file: elements without gaps, in row-major or column-major order. It need
 * not be aligned to anything. */
struct mha_stored {
    int64_t offset; /* of the first byte in the file */
    int32_t type;   /* enum mha_type */
    int32_t rank;
    int64_t shape[MHA_MAX_RANK];
    bool big_endian;
    bool column_major;
};

/* The array's tensor, contiguous in row-major order, without data. */
struct mha_tensor mha_convert_tensor(const struct mha_stored *stored);

/*
 * Bytes of an array whose elements have `element_bits` bits. False when the product does not fit,
 * looking at the axes that are not 0, for a file whose sizes make no sense does not get better by
 * being empty; and when it is no whole number of bytes.
 */
bool mha_convert_bytes(const struct mha_stored *stored, int64_t element_bits, int64_t *bytes);

/* Can elements of one type be read as another? The same type, or two float types. */
bool mha_convert_possible(int32_t from, int32_t to);

/* Fails unless an array may be read into a tensor: types that can be converted, and the same shape.
 * `name` is the array's name in the message. */
mha_status mha_convert_check(mha_context *ctx, const char *name, const struct mha_stored *stored,
                             const struct mha_tensor *into);

/*
 * Reads an array into a tensor that mha_convert_check accepts. The tensor's strides are free, the
 * last one too: reading into a permuted view transposes. Between float types each value is rounded
 * once, to nearest even, whatever the rounding mode of the host; NaN stays NaN and becomes quiet.
 */
mha_status mha_convert_read(mha_context *ctx, const struct mha_file *file,
                            const struct mha_stored *stored, const struct mha_tensor *into);

/* Appends the elements of a tensor of any strides, in row-major order, little-endian. */
mha_status mha_convert_write(mha_context *ctx, struct mha_file_draft *draft,
                             const struct mha_tensor *tensor);

#endif
