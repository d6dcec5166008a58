#include "io/convert.h"

#include <string.h>

#include "tensor.h"

/* What passes through the stack at a time: large enough to make the system calls cheap. */
#define CHUNK_BYTES 16384

static const bool host_is_big = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__;

/* ---- float types ----------------------------------------------------------------------------- */

/*
 * Every float type is one sign, some bits of exponent and some of fraction, in this order. Values
 * pass through the bits of float64, which holds all of them exactly, so each of the conversions
 * rounds once. Integers only: no rounding mode, flush-to-zero or exception flag can interfere.
 */
struct float_format {
    int exponent_bits, fraction_bits;
};

static struct float_format format_of(int32_t type)
{
    switch (type) {
    case MHA_FLOAT16: return (struct float_format){ 5, 10 };
    case MHA_BFLOAT16: return (struct float_format){ 8, 7 };
    case MHA_FLOAT32: return (struct float_format){ 8, 23 };
    case MHA_FLOAT64: return (struct float_format){ 11, 52 };
    default: return (struct float_format){ 0, 0 };
    }
}

static bool is_float(int32_t type)
{
    return format_of(type).exponent_bits != 0;
}

bool mha_convert_possible(int32_t from, int32_t to)
{
    return from == to || (is_float(from) && is_float(to));
}

#define FRACTION_64 52
#define BIAS_64 1023
#define TOP_64 2047u /* the exponent of infinity and NaN */
#define QUIET_64 (UINT64_C(1) << (FRACTION_64 - 1))

/* To the bits of float64; a NaN comes out quiet. */
static uint64_t widen(uint64_t bits, struct float_format from)
{
    uint64_t sign = bits >> (from.exponent_bits + from.fraction_bits) << 63;
    uint64_t fraction = bits & ((UINT64_C(1) << from.fraction_bits) - 1);
    uint64_t top = (UINT64_C(1) << from.exponent_bits) - 1;
    uint64_t exponent = bits >> from.fraction_bits & top;
    int shift = FRACTION_64 - from.fraction_bits;
    if (exponent == top)
        return sign | (uint64_t)TOP_64 << FRACTION_64 | fraction << shift
               | (fraction ? QUIET_64 : 0);
    if (shift == 0)
        return bits;
    uint64_t rebias = BIAS_64 - (top >> 1);
    if (exponent == 0) {
        if (fraction == 0)
            return sign;
        /* Subnormal: its leading bit becomes the implicit one. */
        int missing = __builtin_clzll(fraction) - (63 - from.fraction_bits);
        fraction = fraction << missing & ((UINT64_C(1) << from.fraction_bits) - 1);
        return sign | (rebias + 1 - (uint64_t)missing) << FRACTION_64 | fraction << shift;
    }
    return sign | (exponent + rebias) << FRACTION_64 | fraction << shift;
}

/* value / 2^shift to the nearest integer, ties to the even one; 1 <= shift <= 63. */
static uint64_t shift_rounded(uint64_t value, int shift)
{
    uint64_t half = UINT64_C(1) << (shift - 1);
    uint64_t odd = value >> shift & 1;
    return (value + half - 1 + odd) >> shift;
}

/* From the bits of float64 that widen made. */
static uint64_t narrow(uint64_t bits, struct float_format to)
{
    uint64_t sign = bits >> 63 << (to.exponent_bits + to.fraction_bits);
    uint64_t fraction = bits & ((UINT64_C(1) << FRACTION_64) - 1);
    uint64_t exponent = bits >> FRACTION_64 & TOP_64;
    uint64_t top = (UINT64_C(1) << to.exponent_bits) - 1;
    uint64_t infinity = top << to.fraction_bits;
    int shift = FRACTION_64 - to.fraction_bits;
    if (exponent == TOP_64)
        return sign | infinity | fraction >> shift;
    if (shift == 0)
        return bits;
    int64_t place = (int64_t)exponent - BIAS_64 + (int64_t)(top >> 1);
    if (place >= (int64_t)top)
        return sign | infinity;
    if (place >= 1) {
        /* A carry out of the fraction raises the exponent, at the end into infinity: as it must. */
        return sign | shift_rounded((uint64_t)place << FRACTION_64 | fraction, shift);
    }
    /* Subnormal: the implicit bit shows. A subnormal float64 gets one too, far below any target. */
    int64_t deeper = shift + 1 - place;
    if (deeper > FRACTION_64 + 2)
        return sign;
    return sign | shift_rounded(UINT64_C(1) << FRACTION_64 | fraction, (int)deeper);
}

/* ---- elements -------------------------------------------------------------------------------- */

/* Elements at equal distances, of a type that they may not be aligned for. */
struct elements {
    char *data;
    int32_t type;
    bool swapped;   /* in the byte order that is not this machine's */
    int64_t stride; /* in elements */
};

#define BATCH 256

static void fetch(uint64_t *bits, const struct elements *from, int64_t n)
{
    int64_t bytes = mha_type_bytes(from->type), step = from->stride * bytes;
    for (int64_t i = 0; i < n; i++) {
        const char *data = from->data + i * step;
        uint16_t b2;
        uint32_t b4;
        uint64_t b8;
        switch (bytes) {
        case 1: bits[i] = (unsigned char)*data; break;
        case 2:
            memcpy(&b2, data, sizeof b2);
            bits[i] = from->swapped ? __builtin_bswap16(b2) : b2;
            break;
        case 4:
            memcpy(&b4, data, sizeof b4);
            bits[i] = from->swapped ? __builtin_bswap32(b4) : b4;
            break;
        default: memcpy(&b8, data, sizeof b8); bits[i] = from->swapped ? __builtin_bswap64(b8) : b8;
        }
    }
}

static void store(const struct elements *to, const uint64_t *bits, int64_t n)
{
    int64_t bytes = mha_type_bytes(to->type), step = to->stride * bytes;
    for (int64_t i = 0; i < n; i++) {
        char *data = to->data + i * step;
        uint16_t b2 = (uint16_t)bits[i];
        uint32_t b4 = (uint32_t)bits[i];
        uint64_t b8 = bits[i];
        switch (bytes) {
        case 1: *data = (char)(unsigned char)bits[i]; break;
        case 2:
            b2 = to->swapped ? __builtin_bswap16(b2) : b2;
            memcpy(data, &b2, sizeof b2);
            break;
        case 4:
            b4 = to->swapped ? __builtin_bswap32(b4) : b4;
            memcpy(data, &b4, sizeof b4);
            break;
        default: b8 = to->swapped ? __builtin_bswap64(b8) : b8; memcpy(data, &b8, sizeof b8);
        }
    }
}

static bool is_plain_copy(const struct elements *to, const struct elements *from)
{
    return to->type == from->type && to->swapped == from->swapped && to->stride == 1
           && from->stride == 1;
}

static void convert(const struct elements *to, const struct elements *from, int64_t n)
{
    int64_t to_bytes = mha_type_bytes(to->type), from_bytes = mha_type_bytes(from->type);
    if (is_plain_copy(to, from)) {
        memcpy(to->data, from->data, (size_t)(n * to_bytes));
        return;
    }
    struct float_format wide = format_of(from->type), slim = format_of(to->type);
    struct elements source = *from, target = *to;
    while (n > 0) {
        uint64_t bits[BATCH];
        int64_t batch = min_i64(n, BATCH);
        fetch(bits, &source, batch);
        if (to->type != from->type)
            for (int64_t i = 0; i < batch; i++)
                bits[i] = narrow(widen(bits[i], wide), slim);
        store(&target, bits, batch);
        n -= batch;
        /* Only where more follows: a stride past the last element may leave the memory. */
        if (n > 0) {
            source.data += batch * source.stride * from_bytes;
            target.data += batch * target.stride * to_bytes;
        }
    }
}

/* ---- walking a tensor in the order of a file ------------------------------------------------- */

/* Axes from the slowest to the fastest; neighbours that act as one are one. There is always one. */
struct walk {
    char *data;
    int64_t element_bytes;
    uint64_t at; /* bytes to the next element; past the last one it may wrap, and is not used */
    int32_t rank;
    int64_t size[MHA_MAX_RANK], stride[MHA_MAX_RANK], index[MHA_MAX_RANK];
};

/* Do `size` steps of an axis lead just as far as one step, `outer`, of the axis before it? */
static bool continues(int64_t outer, int64_t stride, int64_t size)
{
    int64_t reach = 0;
    return mha_memory_product(stride, size, &reach) && reach == outer;
}

/* The tensor has elements. */
static void walk_begin(struct walk *walk, const struct mha_tensor *tensor, bool column_major)
{
    *walk = (struct walk){ .data = tensor->data, .element_bytes = mha_type_bytes(tensor->type) };
    for (int32_t i = 0; i < tensor->rank; i++) {
        int32_t axis = column_major ? tensor->rank - 1 - i : i;
        int64_t size = tensor->shape[axis], stride = tensor->strides[axis];
        int32_t last = walk->rank - 1;
        if (size == 1)
            continue;
        if (last >= 0 && continues(walk->stride[last], stride, size)) {
            walk->size[last] *= size;
            walk->stride[last] = stride;
        } else {
            walk->size[walk->rank] = size;
            walk->stride[walk->rank] = stride;
            walk->rank++;
        }
    }
    if (walk->rank == 0) {
        walk->size[0] = walk->stride[0] = 1;
        walk->rank = 1;
    }
}

static char *walk_data(const struct walk *walk)
{
    return walk->data + walk->at;
}

/* Elements left on the fastest axis, which lie at walk_stride from each other. */
static int64_t walk_run(const struct walk *walk)
{
    return walk->size[walk->rank - 1] - walk->index[walk->rank - 1];
}

static int64_t walk_stride(const struct walk *walk)
{
    return walk->stride[walk->rank - 1];
}

static uint64_t axis_bytes(const struct walk *walk, int32_t axis, int64_t steps)
{
    return (uint64_t)steps * (uint64_t)walk->stride[axis] * (uint64_t)walk->element_bytes;
}

/* Passes n elements of the run. */
static void walk_advance(struct walk *walk, int64_t n)
{
    int32_t axis = walk->rank - 1;
    walk->index[axis] += n;
    walk->at += axis_bytes(walk, axis, n);
    while (axis > 0 && walk->index[axis] == walk->size[axis]) {
        walk->at -= axis_bytes(walk, axis, walk->size[axis]);
        walk->index[axis] = 0;
        axis--;
        walk->index[axis]++;
        walk->at += axis_bytes(walk, axis, 1);
    }
}

/* ---- arrays ---------------------------------------------------------------------------------- */

struct mha_tensor mha_convert_tensor(const struct mha_stored *stored)
{
    struct mha_tensor tensor = { .type = stored->type, .rank = stored->rank };
    int64_t stride = 1;
    for (int32_t axis = stored->rank - 1; axis >= 0; axis--) {
        tensor.shape[axis] = stored->shape[axis];
        tensor.strides[axis] = stride;
        stride *= max_i64(stored->shape[axis], 1);
    }
    return tensor;
}

bool mha_convert_bytes(const struct mha_stored *stored, int64_t element_bits, int64_t *bytes)
{
    int64_t bits = element_bits;
    bool empty = false;
    for (int32_t axis = 0; axis < stored->rank; axis++) {
        empty = empty || stored->shape[axis] == 0;
        if (!mha_memory_product(bits, max_i64(stored->shape[axis], 1), &bits))
            return false;
    }
    *bytes = empty ? 0 : bits / 8;
    return empty || bits % 8 == 0;
}

mha_status mha_convert_check(mha_context *ctx, const char *name, const struct mha_stored *stored,
                             const struct mha_tensor *into)
{
    mha_status status = MHA_OK;
    struct mha_tensor tensor = mha_convert_tensor(stored);
    REQUIRE(ctx, mha_tensor_same_shape(into, &tensor), MHA_ERROR_SHAPE,
            "into has the shape %s, wanted %s of %s", mha_tensor_text(into).text,
            mha_tensor_text(&tensor).text, name);
    REQUIRE(ctx, mha_convert_possible(stored->type, into->type), MHA_ERROR_TYPE,
            "into is %s, %s is %s; only float types are converted", mha_type_text(into->type), name,
            mha_type_text(stored->type));
done:
    return status;
}

mha_status mha_convert_read(mha_context *ctx, const struct mha_file *file,
                            const struct mha_stored *stored, const struct mha_tensor *into)
{
    mha_status status = MHA_OK;
    _Alignas(MHA_ALIGNMENT) char chunk[CHUNK_BYTES];
    int64_t bytes = mha_type_bytes(stored->type);
    int64_t offset = stored->offset, left = mha_tensor_count(into);
    if (left == 0)
        goto done;
    struct walk walk;
    walk_begin(&walk, into, stored->column_major);
    struct elements from = { chunk, stored->type, stored->big_endian != host_is_big, 1 };
    struct elements to = { NULL, into->type, false, walk_stride(&walk) };
    while (left > 0) {
        int64_t n = min_i64(left, CHUNK_BYTES / bytes);
        if (is_plain_copy(&to, &from) && walk_run(&walk) >= n) {
            n = walk_run(&walk);
            TRY(mha_file_read(ctx, file, offset, walk_data(&walk), n * bytes));
            walk_advance(&walk, n);
        } else {
            TRY(mha_file_read(ctx, file, offset, chunk, n * bytes));
            from.data = chunk;
            for (int64_t rest = n; rest > 0;) {
                int64_t run = min_i64(rest, walk_run(&walk));
                to.data = walk_data(&walk);
                convert(&to, &from, run);
                from.data += run * bytes;
                walk_advance(&walk, run);
                rest -= run;
            }
        }
        offset += n * bytes;
        left -= n;
    }
done:
    return status;
}

mha_status mha_convert_write(mha_context *ctx, struct mha_file_draft *draft,
                             const struct mha_tensor *tensor)
{
    mha_status status = MHA_OK;
    _Alignas(MHA_ALIGNMENT) char chunk[CHUNK_BYTES];
    int64_t bytes = mha_type_bytes(tensor->type), left = mha_tensor_count(tensor);
    if (left == 0)
        goto done;
    struct walk walk;
    walk_begin(&walk, tensor, false);
    struct elements from = { NULL, tensor->type, false, walk_stride(&walk) };
    struct elements to = { chunk, tensor->type, host_is_big, 1 };
    while (left > 0) {
        int64_t n = min_i64(left, CHUNK_BYTES / bytes);
        to.data = chunk;
        for (int64_t rest = n; rest > 0;) {
            int64_t run = min_i64(rest, walk_run(&walk));
            from.data = walk_data(&walk);
            convert(&to, &from, run);
            to.data += run * bytes;
            walk_advance(&walk, run);
            rest -= run;
        }
        TRY(mha_file_append(ctx, draft, chunk, n * bytes));
        left -= n;
    }
done:
    return status;
}
