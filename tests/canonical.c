#include "canonical.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#if FLT_EVAL_METHOD != 0
#error "the bit oracle needs float arithmetic in float (on x86: SSE, not x87)"
#endif

enum { BLOCK = 64, SPLIT = 512 };

static const float LOG2E = 0x1.715476p+0f;

/* ------------------------------------------------------------------------------------------------
 * Functions
 * --------------------------------------------------------------------------------------------- */

float canonical_exp2(float t)
{
    if (isnan(t))
        return t;
    if (t < -126)
        return 0;
    float n = rintf(t);
    float f = t - n;
    float p = 0x1.5bba14p-10f;
    p = fmaf(p, f, 0x1.3cea88p-7f);
    p = fmaf(p, f, 0x1.c6b752p-5f);
    p = fmaf(p, f, 0x1.ebf9bcp-3f);
    p = fmaf(p, f, 0x1.62e42ap-1f);
    p = fmaf(p, f, 1);
    return ldexpf(p, (int)n);
}

float canonical_ln(float x)
{
    static const float coefficients[] = {
        0x1.204376p-4f, -0x1.d7a37p-4f, 0x1.de4a34p-4f,  -0x1.fcba9ep-4f, 0x1.23d37ep-3f,
        -0x1.555cap-3f, 0x1.999d58p-3f, -0x1.fffff8p-3f, 0x1.555554p-2f,
    };
    if (isnan(x) || isinf(x))
        return x;
    int exponent;
    float m = frexpf(x, &exponent);
    if (m < 0x1.6a09e6p-1f) {
        m = m + m;
        exponent--;
    }
    float e = (float)exponent;
    float f = m - 1;
    float z = f * f;
    float p = coefficients[0];
    for (int i = 1; i < 9; i++)
        p = fmaf(p, f, coefficients[i]);
    float y = f * z;
    y = y * p;
    y = fmaf(e, -0x1.bd0106p-13f, y);
    y = fmaf(-0.5f, z, y);
    float r = f + y;
    return fmaf(e, 0x1.63p-1f, r);
}

float canonical_tanh(float s, float k)
{
    float t = -fabsf(s) * k;
    if (t < -30)
        t = -30;
    if (isnan(t))
        return t;
    float n = rintf(t);
    float f = t - n;
    float g = f * f;
    float p = 0x1.42985ep-13f;
    p = fmaf(p, f, 0x1.5ef136p-10f);
    p = fmaf(p, f, 0x1.3b2c3cp-7f);
    p = fmaf(p, f, 0x1.c6afa4p-5f);
    p = fmaf(p, f, 0x1.ebfbdep-3f);
    float h = fmaf(f, 0x1.62e430p-1f, g * p);
    float w = ldexpf(1, (int)n);
    float e = fmaf(h, w, w - 1);
    return copysignf(e / (e + 2), s);
}

/* e(d) of the specification. */
static float natural_exp(float d)
{
    return canonical_exp2(d * LOG2E);
}

/* ------------------------------------------------------------------------------------------------
 * Operands
 * --------------------------------------------------------------------------------------------- */

/* A problem in plain numbers. Keys 0..S-1 are the given ones, S..S+extra-1 the extra ones. */
struct problem {
    int64_t B, L, S, H, G, D, Dv, extra;
    const struct mha_inputs *inputs;
    struct mha_options options;
    const struct mha_tensor *query, *key, *value;
    float scale;
    float tanh_factor; /* k of tanh_k */
};

/* Elements of one head's row. */
struct vector {
    const float *data;
    int64_t stride;
};

static float at(struct vector v, int64_t x)
{
    return v.data[x * v.stride];
}

static struct vector row_of(const struct mha_tensor *t, int64_t i0, int64_t i1, int64_t i2)
{
    const float *data = t->data;
    return (struct vector){ data + i0 * t->strides[0] + i1 * t->strides[1] + i2 * t->strides[2],
                            t->strides[3] };
}

/* Row j of keys or of values; `bias` is the learned one among the extra rows. */
static struct vector key_row(const struct problem *p, const struct mha_tensor *rows,
                             const struct mha_tensor *bias, int64_t b, int64_t j, int64_t g)
{
    static const float zero = 0;
    if (j < p->S)
        return row_of(rows, b, j, g);
    if (j == p->S && bias)
        return (struct vector){ (const float *)bias->data + g * bias->strides[0],
                                bias->strides[1] };
    return (struct vector){ &zero, 0 };
}

/* Element b of a vector of integers. */
static int64_t integer_at(const struct mha_tensor *t, int64_t b)
{
    int64_t index = b * t->strides[0];
    return t->type == MHA_INT32 ? ((const int32_t *)t->data)[index]
                                : ((const int64_t *)t->data)[index];
}

/* Where the mask holds (b, h, i, j); axes of size 1 are broadcast. */
static int64_t mask_index(const struct mha_tensor *mask, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const int64_t index[4] = { b, h, i, j };
    int64_t sum = 0;
    for (int axis = 0; axis < 4; axis++)
        if (mask->shape[axis] != 1)
            sum += index[axis] * mask->strides[axis];
    return sum;
}

static struct problem problem_of(const struct mha_inputs *inputs, const struct mha_options *options)
{
    struct problem p = { .inputs = inputs, .query = inputs->query };
    if (options)
        p.options = *options;
    p.key = inputs->key ? inputs->key : inputs->query;
    p.value = inputs->value ? inputs->value : inputs->query;
    p.B = p.query->shape[0];
    p.L = p.query->shape[1];
    p.H = p.query->shape[2];
    p.D = p.query->shape[3];
    p.S = p.key->shape[1];
    p.G = p.key->shape[2];
    p.Dv = p.value->shape[3];
    p.extra = (inputs->bias_k != NULL) + (p.options.zero_attention != 0);
    p.scale = p.options.scale_mode == MHA_SCALE_VALUE ? p.options.scale
                                                      : (float)(1.0 / sqrt((double)p.D));
    if (p.options.softcap_mode == MHA_SOFTCAP_TANH)
        p.tanh_factor = (2 * LOG2E) / p.options.softcap;
    return p;
}

/* ------------------------------------------------------------------------------------------------
 * Which keys a row sees, and their scores
 * --------------------------------------------------------------------------------------------- */

static bool rows_length_allows(const struct problem *p, int64_t b, int64_t i)
{
    const struct mha_tensor *lengths = p->inputs->query_lengths;
    return !lengths || i < integer_at(lengths, b);
}

static int64_t position_of(const struct problem *p, int64_t b, int64_t i)
{
    const struct mha_tensor *rows = p->inputs->query_lengths;
    const struct mha_tensor *keys = p->inputs->key_lengths;
    switch (p->options.align) {
    case MHA_ALIGN_BOTTOM_RIGHT:
        return i + (keys ? integer_at(keys, b) : p->S) - (rows ? integer_at(rows, b) : p->L);
    case MHA_ALIGN_OFFSETS: return i + integer_at(p->options.offsets, b);
    default: return i;
    }
}

/* Lengths, causal rule, window, mask: whether they leave key j < S to row i. */
static bool restrictions_allow(const struct problem *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const struct mha_options *o = &p->options;
    const struct mha_tensor *lengths = p->inputs->key_lengths;
    int64_t position = position_of(p, b, i);
    if (lengths && j >= integer_at(lengths, b))
        return false;
    if (o->causal && j > position)
        return false;
    if ((o->window & MHA_WINDOW_LEFT) && position - j > o->window_left)
        return false;
    if ((o->window & MHA_WINDOW_RIGHT) && j - position > o->window_right)
        return false;
    if (o->mask_kind == MHA_MASK_OFF)
        return true;
    int64_t index = mask_index(o->mask, b, h, i, j);
    if (o->mask_kind == MHA_MASK_ADDITIVE)
        return ((const float *)o->mask->data)[index] != -INFINITY;
    bool set = ((const uint8_t *)o->mask->data)[index] != 0;
    return set == (o->mask_kind == MHA_MASK_KEEP);
}

/* One query row of one head at work. */
struct row {
    int64_t b, h, i, g;
    float *query;  /* [D], scaled */
    float *score;  /* [S + extra]; -inf: not visible */
    float *value;  /* [Dv]: output of one block */
    float *split;  /* [Dv]: output of one split */
    float *merged; /* [Dv]: output of the splits so far */
};

static float score_of(const struct problem *p, const struct row *row, int64_t j)
{
    struct vector key = key_row(p, p->key, p->inputs->bias_k, row->b, j, row->g);
    float s = 0;
    for (int64_t x = 0; x < p->D; x++)
        s = fmaf(row->query[x], at(key, x), s);
    if (p->options.softcap_mode == MHA_SOFTCAP_TANH)
        s = p->options.softcap * canonical_tanh(s, p->tanh_factor);
    if (p->options.mask_kind == MHA_MASK_ADDITIVE && j < p->S) {
        int64_t index = mask_index(p->options.mask, row->b, row->h, row->i, j);
        s = s + ((const float *)p->options.mask->data)[index];
    }
    return s;
}

/* A final score of -inf takes a key away as a restriction does, so -inf can stand for both. */
static void score_row(const struct problem *p, struct row *row)
{
    struct vector query = row_of(p->query, row->b, row->i, row->h);
    bool in_length = rows_length_allows(p, row->b, row->i);
    for (int64_t x = 0; in_length && x < p->D; x++)
        row->query[x] = at(query, x) * p->scale;
    for (int64_t j = 0; j < p->S + p->extra; j++) {
        bool allowed = in_length && (j >= p->S || restrictions_allow(p, row->b, row->h, row->i, j));
        row->score[j] = allowed ? score_of(p, row, j) : -INFINITY;
    }
}

/* ------------------------------------------------------------------------------------------------
 * Softmax and output of one row
 * --------------------------------------------------------------------------------------------- */

/* Running state of a split, or of the merge of splits: maximum, sum, output before the division. */
struct state {
    float m, l;
    float *o;
};

static void state_start(struct state *state, float *o, int64_t Dv)
{
    *state = (struct state){ -INFINITY, 0, o };
    for (int64_t y = 0; y < Dv; y++)
        o[y] = 0;
}

/* The fixed tree over the 64 probabilities of a block. */
static float block_sum(const float *p)
{
    float t[16];
    for (int i = 0; i < 16; i++)
        t[i] = ((p[i] + p[i + 16]) + p[i + 32]) + p[i + 48];
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            t[i] = t[i] + t[i + half];
    return t[0];
}

/* Joins keys first..first+count-1, which are one block, to a split. */
static void join_block(const struct problem *p, struct row *row, int64_t first, int64_t count,
                       struct state *split)
{
    const float *score = row->score + first;
    bool any = false;
    float mn = split->m;
    for (int64_t i = 0; i < count; i++) {
        any = any || score[i] != -INFINITY;
        if (score[i] > mn)
            mn = score[i];
    }
    if (!any)
        return;
    float mr = mn == -INFINITY ? 0 : mn; /* -inf: all visible scores are NaN */
    float alpha = natural_exp(split->m - mr);
    float probability[BLOCK] = { 0 };
    for (int64_t y = 0; y < p->Dv; y++)
        row->value[y] = 0;
    for (int64_t i = 0; i < count; i++) {
        if (score[i] == -INFINITY)
            continue;
        probability[i] = natural_exp(score[i] - mr);
        struct vector v = key_row(p, p->value, p->inputs->bias_v, row->b, first + i, row->g);
        for (int64_t y = 0; y < p->Dv; y++)
            row->value[y] = fmaf(probability[i], at(v, y), row->value[y]);
    }
    split->l = fmaf(split->l, alpha, block_sum(probability));
    for (int64_t y = 0; y < p->Dv; y++)
        split->o[y] = fmaf(split->o[y], alpha, row->value[y]);
    split->m = mn;
}

static void merge_split(const struct state *split, int64_t Dv, struct state *total)
{
    float mn = split->m > total->m ? split->m : total->m;
    float mr = mn == -INFINITY ? 0 : mn;
    float a = natural_exp(total->m - mr);
    float b = natural_exp(split->m - mr);
    total->l = fmaf(total->l, a, split->l * b);
    for (int64_t y = 0; y < Dv; y++)
        total->o[y] = fmaf(total->o[y], a, split->o[y] * b);
    total->m = mn;
}

static void attend_row(const struct problem *p, struct row *row, struct state *total)
{
    struct state split;
    state_start(total, row->merged, p->Dv);
    for (int64_t start = 0; start < p->S; start += SPLIT) {
        int64_t end = start + SPLIT < p->S ? start + SPLIT : p->S;
        state_start(&split, row->split, p->Dv);
        for (int64_t first = start; first < end; first += BLOCK)
            join_block(p, row, first, first + BLOCK < end ? BLOCK : end - first, &split);
        merge_split(&split, p->Dv, total);
    }
    if (p->extra > 0) {
        state_start(&split, row->split, p->Dv);
        join_block(p, row, p->S, p->extra, &split);
        merge_split(&split, p->Dv, total);
    }
}

static void finish_row(const struct problem *p, const struct row *row, const struct state *total,
                       struct canonical_result *result)
{
    float inverse = total->l == 0 ? 0 : 1 / total->l;
    float *out = result->out + ((row->b * p->L + row->i) * p->H + row->h) * p->Dv;
    for (int64_t y = 0; y < p->Dv; y++)
        out[y] = total->l == 0 ? 0 : fmaf(total->o[y], inverse, 0);
    if (p->inputs->residual) {
        struct vector residual = row_of(p->inputs->residual, row->b, row->i, row->h);
        for (int64_t y = 0; y < p->Dv; y++)
            out[y] = out[y] + at(residual, y);
    }
    int64_t index = (row->b * p->H + row->h) * p->L + row->i;
    result->lse[index] = total->l == 0 ? -INFINITY : total->m + canonical_ln(total->l);
    for (int64_t j = 0; j < result->S; j++) {
        bool visible = row->score[j] != -INFINITY;
        float weight = visible ? natural_exp(row->score[j] - total->m) * inverse : 0;
        result->weights[index * result->S + j] = weight;
    }
}

/* ------------------------------------------------------------------------------------------------
 * The whole call
 * --------------------------------------------------------------------------------------------- */

static float *floats(int64_t n)
{
    float *data = malloc((size_t)(n > 0 ? n : 1) * sizeof *data);
    if (!data)
        abort();
    return data;
}

static void mean_weights(const struct problem *p, struct canonical_result *result)
{
    for (int64_t b = 0; b < p->B; b++)
        for (int64_t i = 0; i < p->L; i++)
            for (int64_t j = 0; j < result->S; j++) {
                float sum = 0;
                for (int64_t h = 0; h < p->H; h++)
                    sum = sum + result->weights[((b * p->H + h) * p->L + i) * result->S + j];
                result->weights_mean[(b * p->L + i) * result->S + j] = sum / (float)p->H;
            }
}

void canonical_attention(const struct mha_inputs *inputs, const struct mha_options *options,
                         struct canonical_result *result)
{
    const struct problem p = problem_of(inputs, options);
    *result = (struct canonical_result){
        .B = p.B, .L = p.L, .S = p.S + p.extra, .H = p.H, .Dv = p.Dv
    };
    result->out = floats(p.B * p.L * p.H * p.Dv);
    result->lse = floats(p.B * p.H * p.L);
    result->weights = floats(p.B * p.H * p.L * result->S);
    result->weights_mean = floats(p.B * p.L * result->S);

    struct row row = {
        .query = floats(p.D),
        .score = floats(result->S),
        .value = floats(p.Dv),
        .split = floats(p.Dv),
        .merged = floats(p.Dv),
    };
    for (row.b = 0; row.b < p.B; row.b++)
        for (row.h = 0; row.h < p.H; row.h++)
            for (row.i = 0; row.i < p.L; row.i++) {
                struct state total;
                row.g = row.h / (p.H / p.G);
                score_row(&p, &row);
                attend_row(&p, &row, &total);
                finish_row(&p, &row, &total, result);
            }
    mean_weights(&p, result);
    free(row.query);
    free(row.score);
    free(row.value);
    free(row.split);
    free(row.merged);
}

void canonical_free(struct canonical_result *result)
{
    free(result->out);
    free(result->lse);
    free(result->weights);
    free(result->weights_mean);
    *result = (struct canonical_result){ 0 };
}

/* ---- packed projections ----------------------------------------------------------------------- */

void canonical_project(const float *x, const float *w, const float *b, const float *residual,
                       int64_t rows, int64_t K, int64_t N, float *y)
{
    for (int64_t row = 0; row < rows; row++)
        for (int64_t n = 0; n < N; n++) {
            float sum = 0;
            for (int64_t k = 0; k < K; k++)
                sum = fmaf(x[row * K + k], w[n * K + k], sum);
            if (b)
                sum = sum + b[n];
            if (residual)
                sum = sum + residual[row * N + n];
            y[row * N + n] = sum;
        }
}
