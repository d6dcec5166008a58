/*
 * The conformance runner: runs suites of cases whose expected numbers come from elsewhere. A suite
 * is STEM.cases.txt, which lists the cases, and STEM.safetensors, which holds their arrays; the
 * format is told in data/README.md.
 *
 *   conformance_suite.c   reads a suite and checks it against its arrays
 *   conformance_run.c     what an operator needs: arrays in, comparison with the expected ones
 *   conformance_torch.c   the operators mha and sdpa
 *   conformance_bert.c    the operators bert_attention and bert_encoder
 *   conformance.c         the program
 *
 * Only mha.h of the library is used.
 */
#ifndef CONFORMANCE_H
#define CONFORMANCE_H

#include <stdbool.h>
#include <stdint.h>

#include "mha.h"

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof(array)[0]))

/* ------------------------------------------------------------------------------------------------
 * Suites. All text lies in the suite and lives as long as it does.
 * --------------------------------------------------------------------------------------------- */

enum suite_role { SUITE_IN, SUITE_OUT, SUITE_OUT64, SUITE_GRAD };

/* in, out, out64 and grad lines: SLOT NAME DTYPE SHAPE TENSOR */
struct suite_array {
    enum suite_role role;
    int64_t slot;
    const char *name;
    struct mha_tensor tensor; /* type and contiguous shape, no data */
    const char *key;          /* name in STEM.safetensors */
};

/* attr lines: KIND NAME VALUE */
struct suite_attribute {
    char kind; /* 'i' integer or bool, 'f' float, 's' string, 'g' graph */
    const char *name;
    const char *text;
    int64_t integer; /* of kind i */
    double number;   /* of kinds i and f */
};

/* weight lines: SHORT TENSOR SHAPE OFFSET */
struct suite_weight {
    const char *name;
    const char *key;          /* name in the model's file */
    struct mha_tensor tensor; /* float32 of that shape, no data */
    int64_t offset;           /* of its first byte, counted from the start of the file */
};

/* f32err lines: NAME ERROR SCALE */
struct suite_error {
    const char *name;
    double error; /* largest error of another system's own float32 run of that array */
    double scale; /* largest magnitude of that array */
};

struct suite_case {
    const char *name;
    const char *op;
    int64_t opset;
    bool informational;
    struct suite_array *arrays;
    struct suite_attribute *attributes;
    struct suite_weight *weights;
    struct suite_error *errors;
    int64_t array_count, attribute_count, weight_count, error_count;
};

struct suite {
    char *text; /* of the cases, cut into words */
    mha_safetensors *file;
    struct suite_case *cases;
    int64_t case_count;
    struct suite_array *arrays; /* of all cases, one after the other; likewise the rest */
    struct suite_attribute *attributes;
    struct suite_weight *weights;
    struct suite_error *errors;
    int64_t array_count, attribute_count, weight_count, error_count;
};

/* Reads STEM.cases.txt and opens STEM.safetensors. False, with a message on stderr that names the
 * file and what is wrong in it, when one of them is missing or malformed, or when an array is not
 * there with the type and shape the case gives it. suite_close takes what a failed suite_open
 * left. */
bool suite_open(mha_context *ctx, const char *stem, struct suite *suite);
void suite_close(struct suite *suite);

/* ------------------------------------------------------------------------------------------------
 * One case at work
 * --------------------------------------------------------------------------------------------- */

struct run_block;

/* The element of a case whose error is the largest part of its bound. */
struct run_worst {
    const char *name; /* of the array; NULL: nothing compared yet */
    int64_t index;
    double got, want, error, bound, ratio;
};

struct run {
    mha_context *ctx;
    const struct suite *suite;
    const struct suite_case *test;
    bool packed;              /* layers are packed */
    const char *weights_path; /* the model's file, opened when the first case needs it */
    mha_safetensors *weights;
    struct run_block *blocks; /* memory of the case */
    char problem[1024];       /* why the case failed; "" while all is well */
    int64_t compared;         /* expected arrays seen */
    struct run_worst worst;
};

/*
 * A case goes wrong at most once: run_fail keeps the first problem, and everything after it is done
 * for nothing. So an operator may read all it needs, look at run_good once, and go on. run_fail
 * returns false.
 */
bool run_fail(struct run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool run_good(const struct run *run);

/* run_good, after noting the context's message as the problem unless `status` is MHA_OK. */
bool run_call(struct run *run, mha_status status);

/* A layer that borrows the weights, packed if the run is; NULL when that failed. */
mha_layer *run_layer(struct run *run, const struct mha_layer_shape *shape,
                     const struct mha_weights *weights);

/* Zeroed memory that is released when the case ends. Never NULL: the program ends instead. */
void *run_memory(struct run *run, int64_t count, int64_t element_bytes);
void run_release(struct run *run);

/* Fails, as unsupported, for an attribute or an input whose name is not in the list, which NULL
 * ends. */
void run_allow(struct run *run, const char *const *attributes, const char *const *inputs);

/* Attributes. One of another kind fails; a number may be written as an integer. run_says tells
 * whether it is that very string. */
bool run_has(const struct run *run, const char *name);
int64_t run_integer(struct run *run, const char *name, int64_t absent);
double run_number(struct run *run, const char *name, double absent);
bool run_says(const struct run *run, const char *name, const char *text);

/* Fails unless the attribute is absent or equal to what the arrays say. */
void run_agree(struct run *run, const char *name, int64_t value);

/* An array of the case: NULL when it is absent, or when reading it failed. Floats of any type come
 * as float32, others as they are stored. */
struct mha_tensor *run_input(struct run *run, const char *name);

/* Like run_input, but absence fails, as does a type that is no float. */
struct mha_tensor *run_floats(struct run *run, const char *name);

/* A float32 array for an output that the case lists, shaped as there, full of NaN; else NULL. */
struct mha_tensor *run_output(struct run *run, const char *name);

/*
 * Compares what the library wrote into run_output's array with what the case expects, and keeps the
 * worst element; NULL does nothing. The bound for each |got - want| is
 *
 *   max(2e-6 * scale, 4 * f32err)   scale: largest expected magnitude of the array
 *   2e-3, 2e-2                      where the case declares the output float16, bfloat16
 *
 * NaN and infinities must be met exactly.
 */
void run_compare(struct run *run, const char *name, const struct mha_tensor *got);

/* The model's file, or NULL when it cannot be opened. */
const mha_safetensors *run_model(struct run *run);

/* A tensor of the model as float32: by the short name of a weight line, whose shape and offset are
 * checked, or by its name in the file. NULL when it is absent there. */
struct mha_tensor *run_weight(struct run *run, const char *name);
struct mha_tensor *run_model_tensor(struct run *run, const char *key);

/* Views of the same memory, themselves memory of the case; a refused one fails. NULL gives NULL.
 * Permuting tells how many axes it means; slices are of axis 0. */
struct mha_tensor *run_reshape(struct run *run, const struct mha_tensor *tensor, int32_t rank,
                               const int64_t *shape);
struct mha_tensor *run_permute(struct run *run, const struct mha_tensor *tensor, int32_t rank,
                               const int32_t *axes);
struct mha_tensor *run_slice(struct run *run, const struct mha_tensor *tensor, int64_t start,
                             int64_t length);

/* ------------------------------------------------------------------------------------------------
 * Operators: run a case and compare its outputs
 * --------------------------------------------------------------------------------------------- */

void run_mha(struct run *run);            /* torch.nn.MultiheadAttention */
void run_sdpa(struct run *run);           /* torch's scaled_dot_product_attention */
void run_bert_attention(struct run *run); /* attention block of a BERT encoder */
void run_bert_encoder(struct run *run);   /* a whole one, and its sentence embedding */

#endif
