#include "conformance.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------
 * Problems and memory
 * --------------------------------------------------------------------------------------------- */

bool run_fail(struct run *run, const char *format, ...)
{
    if (run_good(run)) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(run->problem, sizeof run->problem, format, arguments);
        va_end(arguments);
    }
    return false;
}

bool run_good(const struct run *run)
{
    return run->problem[0] == '\0';
}

bool run_call(struct run *run, mha_status status)
{
    if (status != MHA_OK)
        run_fail(run, "%s (%s)", mha_context_message(run->ctx), mha_status_text(status));
    return run_good(run);
}

mha_layer *run_layer(struct run *run, const struct mha_layer_shape *shape,
                     const struct mha_weights *weights)
{
    mha_layer *layer = NULL;
    if (run_call(run, mha_layer_create(run->ctx, shape, weights, MHA_BORROW, &layer))
        && run->packed)
        run_call(run, mha_layer_pack(run->ctx, layer, MHA_PACK_KEEP));
    return layer;
}

struct run_block {
    struct run_block *next;
    max_align_t data[];
};

void *run_memory(struct run *run, int64_t count, int64_t element_bytes)
{
    int64_t bytes = 0;
    struct run_block *block = NULL;
    if (count >= 0 && !__builtin_mul_overflow(count, element_bytes, &bytes)
        && bytes <= PTRDIFF_MAX - (int64_t)sizeof *block)
        block = calloc(1, sizeof *block + (size_t)bytes);
    if (!block) {
        fprintf(stderr, "conformance: out of memory\n");
        exit(2);
    }
    block->next = run->blocks;
    run->blocks = block;
    return block->data;
}

void run_release(struct run *run)
{
    while (run->blocks) {
        struct run_block *block = run->blocks;
        run->blocks = block->next;
        free(block);
    }
}

/* ------------------------------------------------------------------------------------------------
 * Attributes
 * --------------------------------------------------------------------------------------------- */

static bool listed(const char *const *names, const char *name)
{
    for (; *names; names++)
        if (strcmp(*names, name) == 0)
            return true;
    return false;
}

void run_allow(struct run *run, const char *const *attributes, const char *const *inputs)
{
    const struct suite_case *test = run->test;
    for (int64_t a = 0; a < test->attribute_count; a++)
        if (!listed(attributes, test->attributes[a].name))
            run_fail(run, "unsupported: attribute %s of %s", test->attributes[a].name, test->op);
    for (int64_t a = 0; a < test->array_count; a++)
        if (test->arrays[a].role == SUITE_IN && !listed(inputs, test->arrays[a].name))
            run_fail(run, "unsupported: input %s of %s", test->arrays[a].name, test->op);
}

static const struct suite_attribute *find_attribute(const struct run *run, const char *name)
{
    for (int64_t a = 0; a < run->test->attribute_count; a++)
        if (strcmp(run->test->attributes[a].name, name) == 0)
            return &run->test->attributes[a];
    return NULL;
}

bool run_has(const struct run *run, const char *name)
{
    return find_attribute(run, name) != NULL;
}

int64_t run_integer(struct run *run, const char *name, int64_t absent)
{
    const struct suite_attribute *attribute = find_attribute(run, name);
    if (!attribute)
        return absent;
    if (attribute->kind != 'i')
        run_fail(run, "attribute %s is %s, wanted an integer", name, attribute->text);
    return attribute->integer;
}

double run_number(struct run *run, const char *name, double absent)
{
    const struct suite_attribute *attribute = find_attribute(run, name);
    if (!attribute)
        return absent;
    if (attribute->kind != 'i' && attribute->kind != 'f')
        run_fail(run, "attribute %s is %s, wanted a number", name, attribute->text);
    return attribute->number;
}

bool run_says(const struct run *run, const char *name, const char *text)
{
    const struct suite_attribute *attribute = find_attribute(run, name);
    return attribute && attribute->kind == 's' && strcmp(attribute->text, text) == 0;
}

void run_agree(struct run *run, const char *name, int64_t value)
{
    int64_t given = run_integer(run, name, value);
    if (given != value)
        run_fail(run, "attribute %s is %" PRId64 ", the arrays say %" PRId64, name, given, value);
}

/* ------------------------------------------------------------------------------------------------
 * Arrays
 * --------------------------------------------------------------------------------------------- */

static bool is_float(int32_t type)
{
    return type == MHA_FLOAT32 || type == MHA_FLOAT64 || type == MHA_FLOAT16
           || type == MHA_BFLOAT16;
}

static const struct suite_array *find_array(const struct run *run, enum suite_role role,
                                            const char *name)
{
    for (int64_t a = 0; a < run->test->array_count; a++) {
        const struct suite_array *array = &run->test->arrays[a];
        if (array->role == role && strcmp(array->name, name) == 0)
            return array;
    }
    return NULL;
}

/* Contiguous memory of a shape, in another type. */
static struct mha_tensor *make_array(struct run *run, const struct mha_tensor *shape, int32_t type)
{
    struct mha_tensor *tensor = run_memory(run, 1, sizeof *tensor);
    *tensor = *shape;
    tensor->type = type;
    tensor->data = run_memory(run, mha_tensor_count(tensor), mha_type_bytes(type));
    return tensor;
}

static struct mha_tensor *read_array(struct run *run, const mha_safetensors *file, const char *key,
                                     const struct mha_tensor *shape, int32_t type)
{
    struct mha_tensor *tensor = make_array(run, shape, type);
    return run_call(run, mha_safetensors_read(run->ctx, file, key, tensor)) ? tensor : NULL;
}

struct mha_tensor *run_input(struct run *run, const char *name)
{
    const struct suite_array *array = find_array(run, SUITE_IN, name);
    if (!array || !run_good(run))
        return NULL;
    int32_t type = is_float(array->tensor.type) ? MHA_FLOAT32 : array->tensor.type;
    return read_array(run, run->suite->file, array->key, &array->tensor, type);
}

struct mha_tensor *run_floats(struct run *run, const char *name)
{
    struct mha_tensor *tensor = run_input(run, name);
    if (!tensor)
        run_fail(run, "no input %s", name);
    else if (tensor->type != MHA_FLOAT32)
        run_fail(run, "input %s is %s, wanted floats", name, mha_type_text(tensor->type));
    return run_good(run) ? tensor : NULL;
}

struct mha_tensor *run_output(struct run *run, const char *name)
{
    const struct suite_array *array = find_array(run, SUITE_OUT, name);
    if (!array || !run_good(run))
        return NULL;
    struct mha_tensor *tensor = make_array(run, &array->tensor, MHA_FLOAT32);
    int64_t n = mha_tensor_count(tensor);
    for (int64_t e = 0; e < n; e++)
        ((float *)tensor->data)[e] = NAN;
    return tensor;
}

/* ------------------------------------------------------------------------------------------------
 * Comparison
 * --------------------------------------------------------------------------------------------- */

static double bound_of_output(const struct run *run, const struct suite_array *declared,
                              const double *want, int64_t n)
{
    if (declared->tensor.type == MHA_FLOAT16)
        return 2e-3;
    if (declared->tensor.type == MHA_BFLOAT16)
        return 2e-2;
    double scale = 0, f32err = 0;
    for (int64_t e = 0; e < n; e++)
        if (isfinite(want[e]))
            scale = fmax(scale, fabs(want[e]));
    for (int64_t e = 0; e < run->test->error_count; e++)
        if (strcmp(run->test->errors[e].name, declared->name) == 0)
            f32err = run->test->errors[e].error;
    return fmax(2e-6 * scale, 4 * f32err);
}

/* 0 where there is no error at all, infinity where no bound could excuse it. */
static double error_of(double got, double want)
{
    if (isnan(want) || isinf(want))
        return got == want || (isnan(got) && isnan(want)) ? 0 : INFINITY;
    return isfinite(got) ? fabs(got - want) : INFINITY;
}

void run_compare(struct run *run, const char *name, const struct mha_tensor *got)
{
    if (!got || !run_good(run))
        return;
    const struct suite_array *declared = find_array(run, SUITE_OUT, name);
    const struct suite_array *expected = find_array(run, SUITE_OUT64, name);
    if (!expected)
        expected = declared;
    if (!is_float(declared->tensor.type) || !is_float(expected->tensor.type)) {
        run_fail(run, "unsupported: output %s of a type that is no float", name);
        return;
    }
    if (mha_tensor_count(&expected->tensor) != mha_tensor_count(&declared->tensor)) {
        run_fail(run, "output %s has two sizes, as out and as out64", name);
        return;
    }
    const struct mha_tensor *wanted = read_array(run, run->suite->file, expected->key,
                                                 &expected->tensor, MHA_FLOAT64);
    if (!wanted)
        return;
    const float *values = got->data;
    const double *want = wanted->data;
    int64_t n = mha_tensor_count(got);
    double bound = bound_of_output(run, declared, want, n);
    for (int64_t e = 0; e < n; e++) {
        double error = error_of((double)values[e], want[e]);
        double ratio = error == 0 ? 0 : error / bound;
        if (!run->worst.name || ratio > run->worst.ratio)
            run->worst = (struct run_worst){
                .name = name,
                .index = e,
                .got = (double)values[e],
                .want = want[e],
                .error = error,
                .bound = bound,
                .ratio = ratio,
            };
    }
    run->compared++;
}

/* ------------------------------------------------------------------------------------------------
 * The model's weights
 * --------------------------------------------------------------------------------------------- */

const mha_safetensors *run_model(struct run *run)
{
    if (!run->weights && run_good(run)) {
        mha_status status = mha_safetensors_open(run->ctx, run->weights_path, 0, &run->weights);
        if (status != MHA_OK)
            run_fail(run, "no weights, give them with --weights FILE or MHA_MODEL_DIR: %s",
                     mha_context_message(run->ctx));
    }
    return run->weights;
}

/* A weight line also tells where the bytes lie in the file: they must be those that came out. */
static void check_bytes(struct run *run, const struct suite_weight *weight,
                        const struct mha_tensor *tensor)
{
    size_t bytes = (size_t)mha_tensor_count(tensor) * sizeof(float);
    char *stored = run_memory(run, (int64_t)bytes, 1);
    FILE *file = fopen(run->weights_path, "rb");
    if (!file || fseek(file, (long)weight->offset, SEEK_SET) != 0
        || fread(stored, 1, bytes, file) != bytes || memcmp(stored, tensor->data, bytes) != 0)
        run_fail(run, "weight %s: %s is not what lies at byte %" PRId64, weight->name, weight->key,
                 weight->offset);
    if (file)
        fclose(file);
}

struct mha_tensor *run_weight(struct run *run, const char *name)
{
    const mha_safetensors *model = run_model(run);
    for (int64_t w = 0; run_good(run) && w < run->test->weight_count; w++) {
        const struct suite_weight *weight = &run->test->weights[w];
        if (strcmp(weight->name, name) != 0)
            continue;
        struct mha_tensor *tensor = read_array(run, model, weight->key, &weight->tensor,
                                               MHA_FLOAT32);
        if (tensor)
            check_bytes(run, weight, tensor);
        return tensor;
    }
    return NULL;
}

struct mha_tensor *run_model_tensor(struct run *run, const char *key)
{
    const mha_safetensors *model = run_model(run);
    struct mha_tensor shape;
    if (!run_good(run) || mha_safetensors_shape(run->ctx, model, key, &shape) != MHA_OK)
        return NULL;
    return read_array(run, model, key, &shape, MHA_FLOAT32);
}

/* ------------------------------------------------------------------------------------------------
 * Views
 * --------------------------------------------------------------------------------------------- */

struct mha_tensor *run_reshape(struct run *run, const struct mha_tensor *tensor, int32_t rank,
                               const int64_t *shape)
{
    if (!tensor)
        return NULL;
    struct mha_tensor *view = run_memory(run, 1, sizeof *view);
    run_call(run, mha_tensor_reshape(run->ctx, tensor, rank, shape, view));
    return view;
}

struct mha_tensor *run_permute(struct run *run, const struct mha_tensor *tensor, int32_t rank,
                               const int32_t *axes)
{
    if (!tensor)
        return NULL;
    struct mha_tensor *view = run_memory(run, 1, sizeof *view);
    if (tensor->rank != rank)
        run_fail(run, "an array of %d axes, wanted %d", (int)tensor->rank, (int)rank);
    else
        run_call(run, mha_tensor_permute(run->ctx, tensor, axes, view));
    return view;
}

struct mha_tensor *run_slice(struct run *run, const struct mha_tensor *tensor, int64_t start,
                             int64_t length)
{
    if (!tensor)
        return NULL;
    struct mha_tensor *view = run_memory(run, 1, sizeof *view);
    run_call(run, mha_tensor_slice(run->ctx, tensor, 0, start, length, view));
    return view;
}
