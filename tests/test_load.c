/* Layers from files: every naming, fusion and orientation, with row numbers for weights so that
 * each row that lands in a wrong place shows. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "fixture.h"

#ifndef MHA_TEST_DATA
#define MHA_TEST_DATA "tests/data" /* as seen from the top of the tree */
#endif

/* ---- a file in the making -------------------------------------------------------------------- */

struct making {
    char header[4096];
    float data[8192];
    int64_t used; /* elements */
};

/* Adds a tensor of n elements, its shape as JSON has it, and returns them, to be filled. */
static float *add_shaped(struct making *making, const char *name, const char *shape, int64_t n)
{
    char *end = making->header + strlen(making->header);
    size_t room = sizeof making->header - (size_t)(end - making->header);
    snprintf(end, room,
             "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],"
             "\"data_offsets\":[%" PRId64 ",%" PRId64 "]}",
             *making->header ? "," : "{", name, shape, making->used * 4, (making->used + n) * 4);
    float *data = making->data + making->used;
    making->used += n;
    assert_true(making->used <= COUNT(making->data));
    return data;
}

/* One axis (columns -1) or two. */
static float *add(struct making *making, const char *name, int64_t rows, int64_t columns)
{
    char shape[48];
    snprintf(shape, sizeof shape, columns >= 0 ? "%" PRId64 ",%" PRId64 : "%" PRId64, rows,
             columns);
    return add_shaped(making, name, shape, columns >= 0 ? rows * columns : rows);
}

/* What element (row, column) is, whichever way the matrix lies. */
static float numbered(int64_t start, int64_t row, int64_t column)
{
    return (float)start + (float)row + (float)column / 1000;
}

static void add_matrix(struct making *making, const char *name, int64_t out, int64_t in,
                       int64_t start, bool in_out)
{
    float *data = in_out ? add(making, name, in, out) : add(making, name, out, in);
    for (int64_t r = 0; r < out; r++)
        for (int64_t c = 0; c < in; c++)
            data[in_out ? c * out + r : r * in + c] = numbered(start, r, c);
}

static void add_vector(struct making *making, const char *name, int64_t n, int64_t start)
{
    float *data = add(making, name, n, -1);
    for (int64_t r = 0; r < n; r++)
        data[r] = numbered(start, r, 0);
}

static mha_safetensors *open_making(struct making *making)
{
    strcat(making->header, "}");
    const char *path = file_write_safetensors("layer.safetensors", making->header, making->data,
                                              making->used * 4);
    mha_safetensors *file;
    check_status(ctx, mha_safetensors_open(ctx, path, 0, &file), MHA_OK);
    return file;
}

/* ---- what came of it ------------------------------------------------------------------------- */

static float at(const struct mha_tensor *tensor, int64_t row, int64_t column)
{
    const float *data = tensor->data;
    return data[row * tensor->strides[0] + (tensor->rank > 1 ? column * tensor->strides[1] : 0)];
}

static void check_shape(const struct mha_tensor *tensor, int64_t rows, int64_t columns)
{
    assert_non_null(tensor);
    assert_int_equal(tensor->type, MHA_FLOAT32);
    assert_int_equal(tensor->rank, columns ? 2 : 1);
    assert_int_equal(tensor->shape[0], rows);
    if (columns)
        assert_int_equal(tensor->shape[1], columns);
}

/* Row r of the tensor must be row from(r) of what the file numbers from `start`. */
static void check_rows(const struct mha_tensor *tensor, int64_t rows, int64_t columns,
                       int64_t start, const int64_t *from)
{
    check_shape(tensor, rows, columns);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < (columns ? columns : 1); c++) {
            float want = numbered(start, from ? from[r] : r, c), got = at(tensor, r, c);
            if (got != want)
                fail_msg("(%d, %d): got %g, wanted %g", (int)r, (int)c, (double)got, (double)want);
        }
}

static void check_sizes(const mha_layer *layer, int64_t E, int64_t E_key, int64_t E_value,
                        int64_t E_out, int64_t H, int64_t G, int64_t D, int64_t Dv)
{
    struct mha_layer_shape s = mha_layer_get_shape(layer);
    assert_int_equal(s.E, E);
    assert_int_equal(s.E_key, E_key);
    assert_int_equal(s.E_value, E_value);
    assert_int_equal(s.E_out, E_out);
    assert_int_equal(s.H, H);
    assert_int_equal(s.G, G);
    assert_int_equal(s.D, D);
    assert_int_equal(s.Dv, Dv);
}

/* ---- fusion ---------------------------------------------------------------------------------- */

/* Fuses as the enum says, numbering the rows as they lie: the row of the file for each row of Q, K
 * and V. */
static void fused_rows(int32_t fusion, int64_t H, int64_t G, int64_t D, int64_t Dv, int64_t *q,
                       int64_t *k, int64_t *v)
{
    int64_t row = 0, nq = 0, nk = 0, nv = 0;
    int64_t groups = fusion == MHA_FUSION_BLOCKS ? 1 : G;
    for (int64_t g = 0; g < groups; g++) {
        for (int64_t i = 0; i < H / groups * D; i++)
            q[nq++] = row++;
        for (int64_t i = 0; i < G / groups * D; i++)
            k[nk++] = row++;
        for (int64_t i = 0; i < G / groups * Dv; i++)
            v[nv++] = row++;
    }
}

static void check_fusion(int32_t fusion, bool in_out, bool bias, struct mha_layer_shape given,
                         int64_t E, int64_t G, int64_t D, int64_t Dv)
{
    int64_t H = given.H, rows = H * D + G * D + G * Dv;
    int64_t q[64], k[64], v[64];
    struct making making = { "", { 0 }, 0 };
    add_matrix(&making, "x.in_proj_weight", rows, E, 1000, in_out);
    add_matrix(&making, "x.out_proj.weight", 5, H * Dv, 2000, in_out);
    if (bias) {
        add_vector(&making, "x.in_proj_bias", rows, 3000);
        add_vector(&making, "x.out_proj.bias", 5, 4000);
    }
    mha_safetensors *file = open_making(&making);
    struct mha_layer_source source = { .prefix = "x.",
                                       .naming = MHA_NAMING_TORCH,
                                       .fusion = fusion,
                                       .orientation = in_out ? MHA_IN_OUT : MHA_OUT_IN };
    mha_layer *layer;
    check_status(ctx, mha_layer_load(ctx, file, &source, &given, &layer), MHA_OK);
    mha_safetensors_close(file);
    check_sizes(layer, E, E, E, 5, H, G, D, Dv);
    fused_rows(fusion, H, G, D, Dv, q, k, v);
    struct mha_weights w = mha_layer_get_weights(layer);
    check_rows(w.w_q, H * D, E, 1000, q);
    check_rows(w.w_k, G * D, E, 1000, k);
    check_rows(w.w_v, G * Dv, E, 1000, v);
    check_rows(w.w_o, 5, H * Dv, 2000, NULL);
    if (bias) {
        check_rows(w.b_q, H * D, 0, 3000, q);
        check_rows(w.b_k, G * D, 0, 3000, k);
        check_rows(w.b_v, G * Dv, 0, 3000, v);
        check_rows(w.b_o, 5, 0, 4000, NULL);
    } else {
        assert_true(!w.b_q && !w.b_k && !w.b_v && !w.b_o);
    }
    assert_true(!w.bias_k && !w.bias_v);
    mha_layer_free(layer);
}

static void every_fusion(void **state)
{
    (void)state;
    for (int variant = 0; variant < 4; variant++) {
        bool in_out = variant & 1, bias = variant & 2;
        for (int32_t fusion = MHA_FUSION_BLOCKS; fusion <= MHA_FUSION_PER_GROUP; fusion++) {
            /* D = E / H and Dv = D by default; then given. */
            check_fusion(fusion, in_out, bias, (struct mha_layer_shape){ .H = 3 }, 12, 3, 4, 4);
            check_fusion(fusion, in_out, bias, (struct mha_layer_shape){ .H = 3, .D = 2, .Dv = 5 },
                         7, 3, 2, 5);
            if (fusion == MHA_FUSION_PER_HEAD)
                continue;
            check_fusion(
                fusion, in_out, bias,
                (struct mha_layer_shape){
                    .E = 7, .E_key = 7, .E_value = 7, .E_out = 5, .H = 6, .G = 2, .D = 3, .Dv = 5 },
                7, 2, 3, 5);
        }
    }
}

static void kind_14_case_95_fused_layouts(void **state)
{
    (void)state;
    static const float wanted[2][3][2] = {
        { { 0, 1 }, { 2, 3 }, { 4, 5 } }, /* blocks: q, k, v */
        { { 0, 3 }, { 1, 4 }, { 2, 5 } }, /* per head */
    };
    struct making making = { "", { 0 }, 0 };
    float *in = add(&making, "in_proj_weight", 6, 2);
    for (int r = 0; r < 6; r++)
        in[2 * r] = in[2 * r + 1] = (float)r;
    add_matrix(&making, "out_proj.weight", 2, 2, 0, false);
    mha_safetensors *file = open_making(&making);
    for (int i = 0; i < 2; i++) {
        struct mha_layer_source source = {
            .naming = MHA_NAMING_TORCH,
            .fusion = i ? MHA_FUSION_PER_HEAD : MHA_FUSION_BLOCKS,
        };
        struct mha_layer_shape shape = { .H = 2 };
        mha_layer *layer;
        check_status(ctx, mha_layer_load(ctx, file, &source, &shape, &layer), MHA_OK);
        struct mha_weights w = mha_layer_get_weights(layer);
        const struct mha_tensor *const all[3] = { w.w_q, w.w_k, w.w_v };
        for (int p = 0; p < 3; p++)
            for (int64_t h = 0; h < 2; h++) /* x = [1, 0] picks column 0 */
                assert_true(at(all[p], h, 0) == wanted[i][p][h]);
        mha_layer_free(layer);
    }
    mha_safetensors_close(file);
}

static void kind_14_case_96_orientation(void **state)
{
    (void)state;
    static const float w[4] = { 1, 2, 3, 4 };
    static const char *const names[] = { "self.query.weight", "self.key.weight",
                                         "self.value.weight", "output.dense.weight" };
    struct making making = { "", { 0 }, 0 };
    for (int i = 0; i < 4; i++)
        memcpy(add(&making, names[i], 2, 2), w, sizeof w);
    mha_safetensors *file = open_making(&making);
    for (int i = 0; i < 2; i++) {
        struct mha_layer_source source = { .naming = MHA_NAMING_BERT,
                                           .fusion = MHA_FUSION_SEPARATE,
                                           .orientation = i ? MHA_IN_OUT : MHA_OUT_IN };
        struct mha_layer_shape shape = { .H = 1 };
        mha_layer *layer;
        check_status(ctx, mha_layer_load(ctx, file, &source, &shape, &layer), MHA_OK);
        /* One key: the value is the head, and x = [1, 1] sums rows of W_V, then W_O is applied. */
        struct mha_weights weights = mha_layer_get_weights(layer);
        const struct mha_tensor *const all[] = { weights.w_q, weights.w_k, weights.w_v,
                                                 weights.w_o };
        for (int t = 0; t < 4; t++) {
            assert_true(at(all[t], 0, 0) + at(all[t], 0, 1) == (i ? 4 : 3));
            assert_true(at(all[t], 1, 0) + at(all[t], 1, 1) == (i ? 6 : 7));
        }
        mha_layer_free(layer);
    }
    mha_safetensors_close(file);
}

/* ---- against PyTorch ------------------------------------------------------------------------- */

static float *read_floats(const mha_safetensors *file, const char *prefix, const char *name,
                          struct mha_tensor *tensor)
{
    char whole[128];
    snprintf(whole, sizeof whole, "%s/%s", prefix, name);
    check_status(ctx, mha_safetensors_shape(ctx, file, whole, tensor), MHA_OK);
    tensor->type = MHA_FLOAT32;
    tensor->data = malloc((size_t)mha_tensor_count(tensor) * sizeof(float));
    assert_non_null(tensor->data);
    check_status(ctx, mha_safetensors_read(ctx, file, whole, tensor), MHA_OK);
    return tensor->data;
}

/* Loads the layer of a case of the PyTorch suite straight from the suite's file, under the names
 * that nn.MultiheadAttention gives its state, runs it, and compares with PyTorch's output, which is
 * float64. */
static void check_torch(const mha_safetensors *file, const char *name, bool self, int64_t H,
                        int32_t fusion, double f32err)
{
    char prefix[96];
    snprintf(prefix, sizeof prefix, "%s/in.", name);
    struct mha_layer_source source = { .prefix = prefix,
                                       .naming = MHA_NAMING_TORCH,
                                       .fusion = fusion };
    struct mha_layer_shape shape = { .H = H };
    mha_layer *layer;
    check_status(ctx, mha_layer_load(ctx, file, &source, &shape, &layer), MHA_OK);

    struct mha_tensor query, key, value, want = { .data = NULL }, out;
    float *q = read_floats(file, name, self ? "in.x" : "in.query", &query);
    float *k = self ? NULL : read_floats(file, name, "in.key", &key);
    float *v = self ? NULL : read_floats(file, name, "in.value", &value);
    snprintf(prefix, sizeof prefix, "%s/out.output", name);
    check_status(ctx, mha_safetensors_shape(ctx, file, prefix, &want), MHA_OK);
    assert_int_equal(want.type, MHA_FLOAT64);
    int64_t n = mha_tensor_count(&want);
    want.data = malloc((size_t)n * sizeof(double));
    assert_non_null(want.data);
    check_status(ctx, mha_safetensors_read(ctx, file, prefix, &want), MHA_OK);
    out = want;
    out.type = MHA_FLOAT32;
    out.data = malloc((size_t)n * sizeof(float));
    assert_non_null(out.data);
    struct mha_inputs inputs = { .query = &query,
                                 .key = self ? NULL : &key,
                                 .value = self ? NULL : &value };
    struct mha_outputs outputs = { .out = &out };
    check_status(ctx, mha_forward(ctx, layer, &inputs, NULL, &outputs), MHA_OK);
    check_close(name, out.data, want.data, n, bound_of(want.data, n, f32err));
    free(q);
    free(k);
    free(v);
    free(want.data);
    free(out.data);
    mha_layer_free(layer);
}

static void kind_14_case_97_key_and_value_widths(void **state)
{
    (void)state;
    mha_safetensors *file;
    check_status(ctx, mha_safetensors_open(ctx, MHA_TEST_DATA "/torch.safetensors", 0, &file),
                 MHA_OK);
    check_torch(file, "mha_kdim_only", false, 2, MHA_FUSION_SEPARATE, 3.29e-07);
    check_torch(file, "mha_kdim_vdim", false, 4, MHA_FUSION_SEPARATE, 3.16e-07);
    check_torch(file, "mha_vdim_only", false, 2, MHA_FUSION_SEPARATE, 6.03e-07);
    check_torch(file, "mha_L1_S17", false, 4, MHA_FUSION_BLOCKS, 1.02e-07);
    check_torch(file, "mha_bias_kv", true, 4, MHA_FUSION_BLOCKS, 4.84e-07);

    /* A width that is not the file's, and a matrix of the wrong one, are told by name. */
    struct mha_layer_source source = { .prefix = "mha_kdim_vdim/in.",
                                       .naming = MHA_NAMING_TORCH,
                                       .fusion = MHA_FUSION_SEPARATE };
    struct mha_layer_shape shape = { .H = 4, .E_key = 16 };
    mha_layer *layer;
    check_status(ctx, mha_layer_load(ctx, file, &source, &shape, &layer), MHA_ERROR_SHAPE);
    check_contains(mha_context_message(ctx), "mha_kdim_vdim/in.k_proj_weight");
    check_contains(mha_context_message(ctx), "[16, 12]");
    check_contains(mha_context_message(ctx), "[16, 16]");
    mha_safetensors_close(file);
}

/* ---- separate matrices ----------------------------------------------------------------------- */

/* All sizes differ: E 7, E_key 5, E_value 3, E_out 11, H 6, G 2, D 2, Dv 4. */
static void make_separate(struct making *making, int32_t naming, bool in_out, bool bias)
{
    bool torch = naming == MHA_NAMING_TORCH;
    add_matrix(making, torch ? "q_proj_weight" : "self.query.weight", 12, 7, 1000, in_out);
    add_matrix(making, torch ? "k_proj_weight" : "self.key.weight", 4, 5, 2000, in_out);
    add_matrix(making, torch ? "v_proj_weight" : "self.value.weight", 8, 3, 3000, in_out);
    add_matrix(making, torch ? "out_proj.weight" : "output.dense.weight", 11, 24, 4000, in_out);
    if (!bias)
        return;
    add_vector(making, torch ? "out_proj.bias" : "output.dense.bias", 11, 8000);
    if (torch) {
        add_vector(making, "in_proj_bias", 24, 5000);
    } else {
        add_vector(making, "self.query.bias", 12, 5000);
        add_vector(making, "self.key.bias", 4, 5012);
        add_vector(making, "self.value.bias", 8, 5016);
    }
}

static void every_naming_of_separate_matrices(void **state)
{
    (void)state;
    for (int variant = 0; variant < 16; variant++) {
        bool in_out = variant & 1, bias = variant & 2, given = variant & 4;
        int32_t naming = variant & 8 ? MHA_NAMING_TORCH : MHA_NAMING_BERT;
        struct making making = { "", { 0 }, 0 };
        make_separate(&making, naming, in_out, bias);
        mha_safetensors *file = open_making(&making);
        struct mha_layer_source source = { .size = sizeof source,
                                           .naming = naming,
                                           .fusion = MHA_FUSION_SEPARATE,
                                           .orientation = in_out ? MHA_IN_OUT : MHA_OUT_IN };
        struct mha_layer_shape shape = { .H = 6, .G = 2 };
        if (given)
            shape = (struct mha_layer_shape){ .size = sizeof shape,
                                              .E = 7,
                                              .E_key = 5,
                                              .E_value = 3,
                                              .E_out = 11,
                                              .H = 6,
                                              .G = 2,
                                              .D = 2,
                                              .Dv = 4,
                                              .zero_attention = 1 };
        mha_layer *layer;
        check_status(ctx, mha_layer_load(ctx, file, &source, &shape, &layer), MHA_OK);
        mha_safetensors_close(file);
        check_sizes(layer, 7, 5, 3, 11, 6, 2, 2, 4);
        assert_int_equal(mha_layer_get_shape(layer).zero_attention, given);
        struct mha_weights w = mha_layer_get_weights(layer);
        check_rows(w.w_q, 12, 7, 1000, NULL);
        check_rows(w.w_k, 4, 5, 2000, NULL);
        check_rows(w.w_v, 8, 3, 3000, NULL);
        check_rows(w.w_o, 11, 24, 4000, NULL);
        if (bias) {
            check_rows(w.b_q, 12, 0, 5000, NULL);
            check_rows(w.b_k, 4, 0, 5012, NULL);
            check_rows(w.b_v, 8, 0, 5016, NULL);
            check_rows(w.b_o, 11, 0, 8000, NULL);
        } else {
            assert_true(!w.b_q && !w.b_k && !w.b_v && !w.b_o);
        }
        mha_layer_free(layer);
    }
}

static void each_bias_by_itself(void **state)
{
    (void)state;
    static const char *const names[] = { "self.query.bias", "self.key.bias", "self.value.bias",
                                         "output.dense.bias" };
    static const int64_t sizes[] = { 12, 4, 8, 11 };
    for (int b = 0; b < 4; b++) {
        struct making making = { "", { 0 }, 0 };
        make_separate(&making, MHA_NAMING_BERT, false, false);
        add_vector(&making, names[b], sizes[b], 6000);
        mha_safetensors *file = open_making(&making);
        struct mha_layer_source source = { .naming = MHA_NAMING_BERT,
                                           .fusion = MHA_FUSION_SEPARATE };
        struct mha_layer_shape shape = { .H = 6, .G = 2 };
        mha_layer *layer;
        check_status(ctx, mha_layer_load(ctx, file, &source, &shape, &layer), MHA_OK);
        mha_safetensors_close(file);
        struct mha_weights w = mha_layer_get_weights(layer);
        const struct mha_tensor *const all[] = { w.b_q, w.b_k, w.b_v, w.b_o };
        for (int i = 0; i < 4; i++)
            assert_true((all[i] != NULL) == (i == b));
        check_rows(all[b], sizes[b], 0, 6000, NULL);
        mha_layer_free(layer);
    }
}

static void bias_k_and_bias_v(void **state)
{
    (void)state;
    for (int given = 0; given < 4; given++) {
        struct making making = { "", { 0 }, 0 };
        make_separate(&making, MHA_NAMING_TORCH, false, false);
        float *k = given & 1 ? add_shaped(&making, "bias_k", "1,1,4", 4) : NULL;
        float *v = given & 2 ? add_shaped(&making, "bias_v", "1,1,8", 8) : NULL;
        for (int i = 0; k && i < 4; i++)
            k[i] = (float)(400 + i);
        for (int i = 0; v && i < 8; i++)
            v[i] = (float)(500 + i);
        mha_safetensors *file = open_making(&making);
        struct mha_layer_source source = { .naming = MHA_NAMING_TORCH,
                                           .fusion = MHA_FUSION_SEPARATE };
        struct mha_layer_shape shape = { .H = 6, .G = 2 };
        mha_layer *layer;
        mha_status got = mha_layer_load(ctx, file, &source, &shape, &layer);
        mha_safetensors_close(file);
        if (given == 1 || given == 2) {
            check_status(ctx, got, MHA_ERROR_NOT_FOUND);
            check_contains(mha_context_message(ctx), given == 1 ? "\"bias_v\"" : "\"bias_k\"");
            continue;
        }
        check_status(ctx, got, MHA_OK);
        struct mha_weights w = mha_layer_get_weights(layer);
        assert_true(!w.bias_k == !given && !w.bias_v == !given);
        if (given) {
            check_shape(w.bias_k, 2, 2);
            check_shape(w.bias_v, 2, 4);
            for (int64_t g = 0; g < 2; g++) {
                for (int64_t d = 0; d < 2; d++)
                    assert_true(at(w.bias_k, g, d) == (float)(400 + g * 2 + d));
                for (int64_t d = 0; d < 4; d++)
                    assert_true(at(w.bias_v, g, d) == (float)(500 + g * 4 + d));
            }
        }
        mha_layer_free(layer);
    }
}

static void other_float_types(void **state)
{
    (void)state;
    static const struct {
        const char *dtype;
        unsigned bytes;
        unsigned char one[8]; /* 1.5, little-endian */
        mha_status want;
    } cases[] = {
        { "F16", 2, { 0x00, 0x3e }, MHA_OK },
        { "BF16", 2, { 0xc0, 0x3f }, MHA_OK },
        { "F32", 4, { 0, 0, 0xc0, 0x3f }, MHA_OK },
        { "F64", 8, { 0, 0, 0, 0, 0, 0, 0xf8, 0x3f }, MHA_OK },
        { "I32", 4, { 1 }, MHA_ERROR_TYPE },
        { "F8_E4M3", 1, { 1 }, MHA_ERROR_TYPE },
    };
    for (int64_t i = 0; i < COUNT(cases); i++) {
        char header[1024];
        unsigned char data[16 * 8];
        unsigned b = cases[i].bytes;
        const char *t = cases[i].dtype;
        for (unsigned e = 0; e < 16; e++)
            memcpy(data + e * b, cases[i].one, b);
        snprintf(header, sizeof header,
                 "{\"in_proj_weight\":{\"dtype\":\"%s\",\"shape\":[6,2],\"data_offsets\":[0,%u]},"
                 "\"out_proj.weight\":{\"dtype\":\"%s\",\"shape\":[2,2],\"data_offsets\":[%u,%u]}}",
                 t, 12 * b, t, 12 * b, 16 * b);
        mha_safetensors *file;
        const char *path = file_write_safetensors("types", header, data, 16 * b);
        check_status(ctx, mha_safetensors_open(ctx, path, 0, &file), MHA_OK);
        struct mha_layer_source source = { .naming = MHA_NAMING_TORCH,
                                           .fusion = MHA_FUSION_BLOCKS };
        struct mha_layer_shape shape = { .H = 1 };
        mha_layer *layer;
        check_status(ctx, mha_layer_load(ctx, file, &source, &shape, &layer), cases[i].want);
        mha_safetensors_close(file);
        if (cases[i].want != MHA_OK) {
            check_contains(mha_context_message(ctx), "in_proj_weight");
            check_contains(mha_context_message(ctx), t);
            continue;
        }
        struct mha_weights w = mha_layer_get_weights(layer);
        assert_true(at(w.w_q, 0, 0) == 1.5f && at(w.w_v, 1, 1) == 1.5f && at(w.w_o, 1, 1) == 1.5f);
        mha_layer_free(layer);
    }
}

/* ---- what does not fit ----------------------------------------------------------------------- */

static void sizes_that_disagree(void **state)
{
    (void)state;
    static const struct {
        struct mha_layer_shape shape;
        mha_status want;
        const char *part; /* of the message */
    } cases[] = {
        { { .H = 6, .G = 2 }, MHA_OK, "" },
        { { .H = 0, .G = 2 }, MHA_ERROR_ARGUMENT, "shape.H is 0" },
        { { .H = -6, .G = 2 }, MHA_ERROR_ARGUMENT, "shape.H is -6" },
        { { .H = 6, .G = -2 }, MHA_ERROR_ARGUMENT, "shape.G is -2" },
        { { .H = 6, .G = 2, .D = -1 }, MHA_ERROR_ARGUMENT, "shape.D is -1" },
        { { .H = 6, .G = 4 }, MHA_ERROR_ARGUMENT, "multiple of G" },
        { { .H = 6 }, MHA_ERROR_SHAPE, "self.value.weight" },         /* 8 rows, 6 heads */
        { { .H = 5, .G = 1 }, MHA_ERROR_SHAPE, "self.query.weight" }, /* 12 rows, 5 heads */
        { { .H = 6, .G = 1 }, MHA_ERROR_SHAPE, "self.key.weight" },
        { { .H = 12, .G = 2 }, MHA_ERROR_SHAPE, "self.key.weight" },
        { { .H = 6, .G = 2, .D = 3 }, MHA_ERROR_SHAPE, "self.query.weight" },
        { { .H = 6, .G = 2, .Dv = 3 }, MHA_ERROR_SHAPE, "self.value.weight" },
        { { .H = 6, .G = 2, .E = 8 }, MHA_ERROR_SHAPE, "self.query.weight" },
        { { .H = 6, .G = 2, .E_key = 7 }, MHA_ERROR_SHAPE, "self.key.weight" },
        { { .H = 6, .G = 2, .E_value = 5 }, MHA_ERROR_SHAPE, "self.value.weight" },
        { { .H = 6, .G = 2, .E_out = 7 }, MHA_ERROR_SHAPE, "output.dense.weight" },
        { { .H = 6, .G = 2, .D = INT64_MAX / 2 }, MHA_ERROR_OVERFLOW, "heads" },
        { { .H = 6, .G = 2, .reserved = 1 }, MHA_ERROR_ARGUMENT, "reserved" },
    };
    struct making making = { "", { 0 }, 0 };
    make_separate(&making, MHA_NAMING_BERT, false, true);
    mha_safetensors *file = open_making(&making);
    struct mha_layer_source source = { .naming = MHA_NAMING_BERT, .fusion = MHA_FUSION_SEPARATE };
    for (int64_t i = 0; i < COUNT(cases); i++) {
        mha_layer *layer = (mha_layer *)&source;
        mha_status got = mha_layer_load(ctx, file, &source, &cases[i].shape, &layer);
        if (got != cases[i].want)
            print_error("case %d\n", (int)i);
        check_status(ctx, got, cases[i].want);
        if (got == MHA_OK) {
            mha_layer_free(layer);
        } else {
            assert_null(layer);
            check_contains(mha_context_message(ctx), "mha_layer_load: ");
            check_contains(mha_context_message(ctx), cases[i].part);
        }
    }
    /* The other way round nothing fits, and each of the two shapes is told. */
    source.orientation = MHA_IN_OUT;
    struct mha_layer_shape shape = { .E = 7, .H = 6, .G = 2, .D = 2 };
    mha_layer *layer;
    check_status(ctx, mha_layer_load(ctx, file, &source, &shape, &layer), MHA_ERROR_SHAPE);
    mha_safetensors_close(file);
}

static void fused_sizes_that_disagree(void **state)
{
    (void)state;
    static const struct {
        int32_t fusion;
        struct mha_layer_shape shape;
        mha_status want;
        const char *part;
    } cases[] = {
        { MHA_FUSION_BLOCKS, { .H = 2 }, MHA_OK, "" },
        { MHA_FUSION_BLOCKS, { .H = 3 }, MHA_ERROR_SHAPE, "H = 3" },
        { MHA_FUSION_BLOCKS, { .H = 4, .G = 2 }, MHA_ERROR_SHAPE, "H*D + G*D + G*Dv" },
        { MHA_FUSION_BLOCKS, { .H = 2, .D = 2 }, MHA_ERROR_SHAPE, "[24, 8]" },
        { MHA_FUSION_BLOCKS, { .H = 2, .Dv = 5 }, MHA_ERROR_SHAPE, "[26, 8]" },
        { MHA_FUSION_BLOCKS, { .H = 2, .D = 3, .Dv = 6 }, MHA_ERROR_SHAPE, "out_proj.weight" },
        { MHA_FUSION_BLOCKS, { .H = 2, .E = 6 }, MHA_ERROR_SHAPE, "in_proj_weight" },
        { MHA_FUSION_BLOCKS, { .H = 2, .E_key = 6 }, MHA_ERROR_SHAPE, "in_proj_weight" },
        { MHA_FUSION_BLOCKS, { .H = 2, .E_value = 6 }, MHA_ERROR_SHAPE, "in_proj_weight" },
        { MHA_FUSION_PER_HEAD, { .H = 2, .G = 1 }, MHA_ERROR_ARGUMENT, "per head" },
        { MHA_FUSION_PER_GROUP, { .H = 2, .D = INT64_MAX / 2 }, MHA_ERROR_OVERFLOW, "heads" },
        { 0, { .H = 2 }, MHA_ERROR_ARGUMENT, "source.fusion is 0" },
        { 5, { .H = 2 }, MHA_ERROR_ARGUMENT, "source.fusion is 5" },
        { MHA_FUSION_SEPARATE, { .H = 2 }, MHA_ERROR_NOT_FOUND, "q_proj_weight" },
    };
    struct making making = { "", { 0 }, 0 };
    add_matrix(&making, "in_proj_weight", 24, 8, 0, false);
    add_matrix(&making, "out_proj.weight", 8, 8, 0, false);
    mha_safetensors *file = open_making(&making);
    for (int64_t i = 0; i < COUNT(cases); i++) {
        struct mha_layer_source source = { .naming = MHA_NAMING_TORCH, .fusion = cases[i].fusion };
        mha_layer *layer = NULL;
        mha_status got = mha_layer_load(ctx, file, &source, &cases[i].shape, &layer);
        if (got != cases[i].want)
            print_error("case %d\n", (int)i);
        check_status(ctx, got, cases[i].want);
        if (got != MHA_OK)
            check_contains(mha_context_message(ctx), cases[i].part);
        mha_layer_free(layer);
    }
    mha_safetensors_close(file);
}

static void tensors_of_wrong_shape(void **state)
{
    (void)state;
    static const struct {
        const char *name, *right, *wrong[3];
        int64_t n, wrong_n[3];
    } cases[] = {
        { "in_proj_weight", "24,8", { "25,8", "8,24", "192" }, 192, { 200, 192, 192 } },
        { "out_proj.weight", "8,8", { "9,8", "8,9", "64" }, 64, { 72, 72, 64 } },
        { "in_proj_bias", "24", { "25", "8", "24,1" }, 24, { 25, 8, 24 } },
        { "out_proj.bias", "8", { "24", "7", "1,8" }, 8, { 24, 7, 8 } },
        { "bias_k", "1,1,8", { "1,1,9", "8", "1,8,1" }, 8, { 9, 8, 8 } },
        { "bias_v", "1,1,8", { "1,1,4", "2,4", "1,1,1,8" }, 8, { 4, 8, 8 } },
    };
    for (int64_t which = -1; which < COUNT(cases); which++)
        for (int how = 0; how < 3; how++) {
            struct making making = { "", { 0 }, 0 };
            for (int64_t t = 0; t < COUNT(cases); t++) {
                bool wrong = t == which;
                add_shaped(&making, cases[t].name, wrong ? cases[t].wrong[how] : cases[t].right,
                           wrong ? cases[t].wrong_n[how] : cases[t].n);
            }
            mha_safetensors *file = open_making(&making);
            struct mha_layer_source source = { .naming = MHA_NAMING_TORCH,
                                               .fusion = MHA_FUSION_BLOCKS };
            struct mha_layer_shape shape = { .E = 8, .E_out = 8, .H = 2 };
            mha_layer *layer;
            check_status(ctx, mha_layer_load(ctx, file, &source, &shape, &layer),
                         which < 0 ? MHA_OK : MHA_ERROR_SHAPE);
            if (which >= 0)
                check_contains(mha_context_message(ctx), cases[which].name);
            mha_layer_free(layer);
            mha_safetensors_close(file);
        }
}

/* A size of 0 in the shape struct would mean the usual one; in a file it is a size. */
static void matrices_without_elements(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = { { 0, 8, 0 }, { 8, 0, 8 }, { 8, 8, 0 } };
    for (int64_t i = 0; i < COUNT(sizes); i++)
        for (int variant = 0; variant < 4; variant++) {
            bool in_out = variant & 1, fused = variant & 2;
            static const char *const names[] = { "q_proj_weight", "k_proj_weight",
                                                 "v_proj_weight" };
            struct making making = { "", { 0 }, 0 };
            int64_t rows = sizes[i][0], width = sizes[i][1];
            if (fused)
                add_matrix(&making, "in_proj_weight", 3 * rows, width, 0, in_out);
            for (int p = 0; p < 3 && !fused; p++)
                add_matrix(&making, names[p], rows, width, 0, in_out);
            add_matrix(&making, "out_proj.weight", sizes[i][2], rows, 0, in_out);
            mha_safetensors *file = open_making(&making);
            struct mha_layer_source source = {
                .naming = MHA_NAMING_TORCH,
                .fusion = fused ? MHA_FUSION_BLOCKS : MHA_FUSION_SEPARATE,
                .orientation = in_out ? MHA_IN_OUT : MHA_OUT_IN,
            };
            struct mha_layer_shape shape = { .H = 2 };
            mha_layer *layer;
            check_status(ctx, mha_layer_load(ctx, file, &source, &shape, &layer), MHA_ERROR_SHAPE);
            check_contains(mha_context_message(ctx), "wanted a matrix with elements");
            mha_safetensors_close(file);
        }
}

static void arguments(void **state)
{
    (void)state;
    struct making making = { "", { 0 }, 0 };
    make_separate(&making, MHA_NAMING_BERT, false, false);
    mha_safetensors *file = open_making(&making);
    const struct mha_layer_source good = { .naming = MHA_NAMING_BERT,
                                           .fusion = MHA_FUSION_SEPARATE };
    struct mha_layer_shape shape = { .H = 6, .G = 2 };
    mha_layer *layer = (mha_layer *)&shape;
    check_status(NULL, mha_layer_load(NULL, file, &good, &shape, &layer), MHA_ERROR_ARGUMENT);
    assert_null(layer);
    check_status(ctx, mha_layer_load(ctx, NULL, &good, &shape, &layer), MHA_ERROR_ARGUMENT);
    check_status(ctx, mha_layer_load(ctx, file, NULL, &shape, &layer), MHA_ERROR_ARGUMENT);
    check_status(ctx, mha_layer_load(ctx, file, &good, NULL, &layer), MHA_ERROR_ARGUMENT);
    check_status(ctx, mha_layer_load(ctx, file, &good, &shape, NULL), MHA_ERROR_ARGUMENT);

    struct mha_layer_source source = good;
    source.naming = 0;
    check_status(ctx, mha_layer_load(ctx, file, &source, &shape, &layer), MHA_ERROR_ARGUMENT);
    check_contains(mha_context_message(ctx), "source.naming is 0");
    source = good;
    source.orientation = 2;
    check_status(ctx, mha_layer_load(ctx, file, &source, &shape, &layer), MHA_ERROR_ARGUMENT);
    check_contains(mha_context_message(ctx), "source.orientation is 2");
    source = good;
    source.reserved = 1;
    check_status(ctx, mha_layer_load(ctx, file, &source, &shape, &layer), MHA_ERROR_ARGUMENT);
    check_contains(mha_context_message(ctx), "source.reserved is 1");
    source = good;
    source.size = 8;
    check_status(ctx, mha_layer_load(ctx, file, &source, &shape, &layer), MHA_ERROR_ARGUMENT);
    source = good;
    source.fusion = MHA_FUSION_BLOCKS;
    check_status(ctx, mha_layer_load(ctx, file, &source, &shape, &layer), MHA_ERROR_ARGUMENT);
    check_contains(mha_context_message(ctx), "separate matrices only");
    source = good;
    source.prefix = "encoder\n.";
    check_status(ctx, mha_layer_load(ctx, file, &source, &shape, &layer), MHA_ERROR_NOT_FOUND);
    check_contains(mha_context_message(ctx), "\"encoder\\x0a.self.query.weight\"");
    source.prefix = "self."; /* a part of the name is no prefix of another */
    check_status(ctx, mha_layer_load(ctx, file, &source, &shape, &layer), MHA_ERROR_NOT_FOUND);
    assert_null(layer);
    mha_safetensors_close(file);
}

static void kind_18_case_123_every_allocation_fails_once(void **state)
{
    (void)state;
    struct making making = { "", { 0 }, 0 };
    add_matrix(&making, "in_proj_weight", 24, 8, 0, false);
    add_matrix(&making, "out_proj.weight", 8, 8, 0, false);
    mha_safetensors *file = open_making(&making);
    struct mha_layer_source source = { .naming = MHA_NAMING_TORCH, .fusion = MHA_FUSION_PER_HEAD };
    struct mha_layer_shape shape = { .H = 2 };
    struct counting counting;
    counting_init(&counting);
    mha_context *counted = context_counting(&counting);
    int64_t failures = 0;
    for (int64_t n = 1;; n++) {
        mha_layer *layer = (mha_layer *)&shape;
        int64_t own = counting.live;
        counting.fail_at = counting.calls + n;
        mha_status got = mha_layer_load(counted, file, &source, &shape, &layer);
        counting.fail_at = 0;
        if (got == MHA_OK) {
            mha_layer_free(layer);
            assert_int_equal(counting.live, own);
            break;
        }
        check_status(counted, got, MHA_ERROR_MEMORY);
        assert_null(layer);
        assert_int_equal(counting.live, own);
        failures++;
    }
    assert_true(failures >= 2);
    mha_context_free(counted);
    assert_int_equal(counting.live, 0);
    mha_safetensors_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fusion),
        cmocka_unit_test(kind_14_case_95_fused_layouts),
        cmocka_unit_test(kind_14_case_96_orientation),
        cmocka_unit_test(kind_14_case_97_key_and_value_widths),
        cmocka_unit_test(every_naming_of_separate_matrices),
        cmocka_unit_test(each_bias_by_itself),
        cmocka_unit_test(bias_k_and_bias_v),
        cmocka_unit_test(other_float_types),
        cmocka_unit_test(sizes_that_disagree),
        cmocka_unit_test(fused_sizes_that_disagree),
        cmocka_unit_test(tensors_of_wrong_shape),
        cmocka_unit_test(matrices_without_elements),
        cmocka_unit_test(arguments),
        cmocka_unit_test(kind_18_case_123_every_allocation_fails_once),
    };
    return cmocka_run_group_tests_name("load", tests, files_setup, files_teardown);
}
