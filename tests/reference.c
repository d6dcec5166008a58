#include "reference.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------
 * Memory and tensors
 * --------------------------------------------------------------------------------------------- */

static double *new_array(int64_t n)
{
    double *array = calloc((size_t)(n > 0 ? n : 1), sizeof *array);
    if (!array) {
        fprintf(stderr, "reference: out of memory\n");
        exit(EXIT_FAILURE);
    }
    return array;
}

/* The element that lies `offset` elements behind the first one. */
static double element(const struct mha_tensor *tensor, int64_t offset)
{
    switch (tensor->type) {
    case MHA_FLOAT32: return (double)((const float *)tensor->data)[offset];
    case MHA_FLOAT64: return ((const double *)tensor->data)[offset];
    case MHA_BOOL:
    case MHA_UINT8: return (double)((const uint8_t *)tensor->data)[offset];
    case MHA_INT32: return (double)((const int32_t *)tensor->data)[offset];
    default: break;
    }
    fprintf(stderr, "reference: no arithmetic on element type %d\n", (int)tensor->type);
    exit(EXIT_FAILURE);
}

/* A copy of a tensor as contiguous doubles, row-major, whatever its type and strides; NULL for a
 * tensor that is not there. */
static double *values_of(const struct mha_tensor *tensor)
{
    if (!tensor)
        return NULL;
    int64_t n = 1;
    for (int32_t a = 0; a < tensor->rank; a++)
        n *= tensor->shape[a];
    double *values = new_array(n);
    for (int64_t e = 0; e < n; e++) {
        int64_t rest = e, offset = 0;
        for (int32_t a = tensor->rank - 1; a >= 0; a--) {
            offset += rest % tensor->shape[a] * tensor->strides[a];
            rest /= tensor->shape[a];
        }
        values[e] = element(tensor, offset);
    }
    return values;
}

/* Element b of a tensor of lengths or offsets, which a double could not always hold. */
static int64_t integer_at(const struct mha_tensor *tensor, int64_t b)
{
    int64_t offset = b * tensor->strides[0];
    return tensor->type == MHA_INT64 ? ((const int64_t *)tensor->data)[offset]
                                     : ((const int32_t *)tensor->data)[offset];
}

/* Element (b, h, i, j) of a mask [B, H, L, S]: "an axis of size 1 is broadcast". */
static double mask_at(const struct mha_tensor *mask, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const int64_t index[4] = { b, h, i, j };
    int64_t offset = 0;
    for (int a = 0; a < 4; a++)
        if (mask->shape[a] != 1)
            offset += index[a] * mask->strides[a];
    return element(mask, offset);
}

/* ------------------------------------------------------------------------------------------------
 * Attention of projected heads: what both roads share
 * --------------------------------------------------------------------------------------------- */

struct heads {
    int64_t B, L, S, H, G, D, Dv;
    int64_t keys;   /* S' */
    double *q;      /* [B, L, H, D] */
    double *k;      /* [B, S, G, D] */
    double *v;      /* [B, S, G, Dv] */
    double *bias_k; /* [G, D], or NULL */
    double *bias_v; /* [G, Dv], or NULL */
    double *zero;   /* max(D, Dv) zeros: the key and the value of the zero pair */
    bool zero_attention;
    const struct mha_options *options;
    const struct mha_tensor *query_lengths;
    const struct mha_tensor *key_lengths;
};

static int64_t query_length(const struct heads *x, int64_t b)
{
    return x->query_lengths ? integer_at(x->query_lengths, b) : x->L;
}

static int64_t key_length(const struct heads *x, int64_t b)
{
    return x->key_lengths ? integer_at(x->key_lengths, b) : x->S;
}

/* "Grouped heads": query head h reads key/value head h / (H/G). */
static int64_t group_of(const struct heads *x, int64_t h)
{
    return h / (x->H / x->G);
}

/* Key j as query head h sees it: 0..S-1 from the operand, then "extra keys after all others, bias
 * first". */
static const double *key_of(const struct heads *x, int64_t b, int64_t h, int64_t j)
{
    if (j < x->S)
        return x->k + ((b * x->S + j) * x->G + group_of(x, h)) * x->D;
    return j == x->S && x->bias_k ? x->bias_k + group_of(x, h) * x->D : x->zero;
}

static const double *value_of(const struct heads *x, int64_t b, int64_t h, int64_t j)
{
    if (j < x->S)
        return x->v + ((b * x->S + j) * x->G + group_of(x, h)) * x->Dv;
    return j == x->S && x->bias_v ? x->bias_v + group_of(x, h) * x->Dv : x->zero;
}

/* Position rule: "p is the row's position by `align`, j the key's index from 0", and visible iff
 * p - left <= j <= p + right, "`causal` makes right at most 0". Written with differences, because
 * p + right may be more than an int64 holds. */
static bool position_allows(const struct heads *x, int64_t b, int64_t i, int64_t j)
{
    const struct mha_options *o = x->options;
    int64_t p = i;
    if (o->align == MHA_ALIGN_BOTTOM_RIGHT)
        p = i + key_length(x, b) - query_length(x, b);
    if (o->align == MHA_ALIGN_OFFSETS)
        p = i + integer_at(o->offsets, b);

    if ((o->window & MHA_WINDOW_LEFT) && p - j > o->window_left)
        return false;
    if ((o->window & MHA_WINDOW_RIGHT) && j - p > o->window_right)
        return false;
    return !(o->causal && j > p);
}

/* The restrictions, which "combine by AND". They cover the keys of the operand; the extra keys are
 * "visible to every row within the query length whatever the restrictions say". */
static bool restrictions_allow(const struct heads *x, int64_t b, int64_t h, int64_t i, int64_t j)
{
    if (i >= query_length(x, b))
        return false;
    if (j >= x->S)
        return true;
    if (j >= key_length(x, b))
        return false;
    switch (x->options->mask_kind) {
    case MHA_MASK_KEEP:
        if (mask_at(x->options->mask, b, h, i, j) == 0)
            return false;
        break;
    case MHA_MASK_DROP:
        if (mask_at(x->options->mask, b, h, i, j) != 0)
            return false;
        break;
    case MHA_MASK_ADDITIVE: /* -inf excludes whatever the score is, also when that is NaN */
        if (mask_at(x->options->mask, b, h, i, j) == -INFINITY)
            return false;
        break;
    default: break;
    }
    return position_allows(x, b, i, j);
}

/* "A score is q.k * scale, then softcap, then + additive mask"; the last is for keys of the operand
 * only. */
static double score_of(const struct heads *x, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const struct mha_options *o = x->options;
    const double *q = x->q + ((b * x->L + i) * x->H + h) * x->D;
    const double *k = key_of(x, b, h, j);
    double s = 0;
    for (int64_t d = 0; d < x->D; d++)
        s += q[d] * k[d];
    s *= o->scale_mode == MHA_SCALE_VALUE ? (double)o->scale : 1 / sqrt((double)x->D);
    if (o->softcap_mode == MHA_SOFTCAP_TANH)
        s = (double)o->softcap * tanh(s / (double)o->softcap);
    if (o->mask_kind == MHA_MASK_ADDITIVE && j < x->S)
        s += mask_at(o->mask, b, h, i, j);
    return s;
}

/*
 * One row: scores, softmax over the visible keys, weighted sum of their values. "A key that is not
 * visible is absent: nothing in it, NaN and infinity included, has any influence", so its score is
 * not computed and its value not read. A visible NaN or +inf score makes every visible weight NaN.
 * "A row with no visible key gives 0 in out, 0 in weights and -inf in lse."
 */
static void attend_row(const struct heads *x, int64_t b, int64_t h, int64_t i, double *weights,
                       double *lse, double *out)
{
    double *scores = new_array(x->keys);
    double top = -INFINITY, sum = 0;
    bool poisoned = false;
    for (int64_t j = 0; j < x->keys; j++) {
        scores[j] = restrictions_allow(x, b, h, i, j) ? score_of(x, b, h, i, j) : -INFINITY;
        top = fmax(top, scores[j]);
        poisoned |= isnan(scores[j]) || scores[j] == INFINITY;
    }
    for (int64_t j = 0; j < x->keys; j++)
        if (scores[j] != -INFINITY)
            sum += poisoned ? NAN : exp(scores[j] - top);

    bool empty = sum == 0; /* the top key alone gives 1 */
    *lse = empty ? -INFINITY : top + log(sum);
    for (int64_t j = 0; j < x->keys; j++) {
        weights[j] = 0;
        if (scores[j] == -INFINITY)
            continue;
        weights[j] = exp(scores[j] - top) / sum;
        for (int64_t d = 0; d < x->Dv; d++)
            out[d] += weights[j] * value_of(x, b, h, j)[d];
    }
    free(scores);
}

static void attend(const struct heads *x, struct reference_result *r)
{
    r->out_count = x->B * x->L * x->H * x->Dv;
    r->lse_count = x->B * x->H * x->L;
    r->weights_count = x->B * x->H * x->L * x->keys;
    r->weights_mean_count = x->B * x->L * x->keys;
    r->out = new_array(r->out_count);
    r->lse = new_array(r->lse_count);
    r->weights = new_array(r->weights_count);
    r->weights_mean = new_array(r->weights_mean_count);
    for (int64_t b = 0; b < x->B; b++)
        for (int64_t h = 0; h < x->H; h++)
            for (int64_t i = 0; i < x->L; i++) {
                int64_t row = (b * x->H + h) * x->L + i;
                double *weights = r->weights + row * x->keys;
                attend_row(x, b, h, i, weights, r->lse + row,
                           r->out + ((b * x->L + i) * x->H + h) * x->Dv);
                for (int64_t j = 0; j < x->keys; j++)
                    r->weights_mean[(b * x->L + i) * x->keys + j] += weights[j] / (double)x->H;
            }
}

/* "The residual": added to the output, element by element, both of one shape. Last of all, so the
 * scale is taken here. */
static void finish(const struct mha_tensor *residual, struct reference_result *r)
{
    double *added = values_of(residual);
    r->scale = 0;
    for (int64_t e = 0; e < r->out_count; e++) {
        if (added)
            r->out[e] += added[e];
        if (isfinite(r->out[e]))
            r->scale = fmax(r->scale, fabs(r->out[e]));
    }
    free(added);
}

static const struct mha_options plain = { 0 };

/* Counts the keys once all parts of `x` are known. */
static void complete(struct heads *x, const struct mha_inputs *inputs,
                     const struct mha_options *options)
{
    x->options = options ? options : &plain;
    x->query_lengths = inputs->query_lengths;
    x->key_lengths = inputs->key_lengths;
    x->zero_attention |= x->options->zero_attention != 0;
    x->keys = x->S + (x->bias_k ? 1 : 0) + (x->zero_attention ? 1 : 0);
    x->zero = new_array(x->D > x->Dv ? x->D : x->Dv);
}

static void free_heads(struct heads *x)
{
    free(x->q);
    free(x->k);
    free(x->v);
    free(x->bias_k);
    free(x->bias_v);
    free(x->zero);
}

void reference_attention(const struct mha_inputs *inputs, const struct mha_options *options,
                         struct reference_result *result)
{
    const struct mha_tensor *query = inputs->query;
    /* "key and value both NULL: self attention, both are the query" */
    const struct mha_tensor *key = inputs->key ? inputs->key : query;
    const struct mha_tensor *value = inputs->value ? inputs->value : query;
    struct heads x = {
        .B = query->shape[0],
        .L = query->shape[1],
        .S = key->shape[1],
        .H = query->shape[2],
        .G = key->shape[2],
        .D = query->shape[3],
        .Dv = value->shape[3],
        .q = values_of(query),
        .k = values_of(key),
        .v = values_of(value),
        .bias_k = values_of(inputs->bias_k),
        .bias_v = values_of(inputs->bias_v),
    };
    complete(&x, inputs, options);
    attend(&x, result);
    finish(inputs->residual, result);
    free_heads(&x);
}

/* ------------------------------------------------------------------------------------------------
 * The layer
 * --------------------------------------------------------------------------------------------- */

/* "y = x W^T + b", W being [out, in]: the rows of x, n of them, all at once. */
static double *project(const double *x, int64_t n, int64_t in, int64_t out,
                       const struct mha_tensor *weight, const struct mha_tensor *bias)
{
    double *w = values_of(weight), *b = values_of(bias);
    double *y = new_array(n * out);
    for (int64_t r = 0; r < n; r++)
        for (int64_t o = 0; o < out; o++) {
            double sum = 0;
            for (int64_t e = 0; e < in; e++)
                sum += x[r * in + e] * w[o * in + e];
            y[r * out + o] = sum + (b ? b[o] : 0);
        }
    free(w);
    free(b);
    return y;
}

static double *project_tensor(const struct mha_tensor *x, int64_t out,
                              const struct mha_tensor *weight, const struct mha_tensor *bias)
{
    double *rows = values_of(x);
    double *y = project(rows, x->shape[0] * x->shape[1], x->shape[2], out, weight, bias);
    free(rows);
    return y;
}

void reference_forward(const struct mha_layer_shape *shape, const struct mha_weights *weights,
                       const struct mha_inputs *inputs, const struct mha_options *options,
                       struct reference_result *result)
{
    const struct mha_tensor *query = inputs->query;
    const struct mha_tensor *key = inputs->key ? inputs->key : query;
    const struct mha_tensor *value = inputs->value ? inputs->value : query;
    struct heads x = { .B = query->shape[0], .L = query->shape[1], .S = key->shape[1] };
    x.H = shape->H;
    x.G = shape->G ? shape->G : shape->H;
    x.D = shape->D ? shape->D : shape->E / shape->H;
    x.Dv = shape->Dv ? shape->Dv : x.D;
    x.zero_attention = shape->zero_attention != 0;

    /* "q = query W_Q^T + b_Q, k = key W_K^T + b_K, v = value W_V^T + b_V". The rows of W_Q are
     * those of head 0, then of head 1: each projection is [B, rows, heads, width] as it stands. */
    x.q = project_tensor(query, x.H * x.D, weights->w_q, weights->b_q);
    x.k = project_tensor(key, x.G * x.D, weights->w_k, weights->b_k);
    x.v = project_tensor(value, x.G * x.Dv, weights->w_v, weights->b_v);
    /* The extra pair is the layer's, or the call's when the layer has none; already projected. */
    x.bias_k = values_of(weights->bias_k ? weights->bias_k : inputs->bias_k);
    x.bias_v = values_of(weights->bias_v ? weights->bias_v : inputs->bias_v);
    complete(&x, inputs, options);
    attend(&x, result);

    /* "out = concat_h(...) W_O^T + b_O": heads [B, L, H, Dv] are already joined as [B, L, H*Dv]. */
    if (weights->w_o) {
        double *joined = result->out;
        int64_t E_out = weights->w_o->shape[0];
        result->out_count = x.B * x.L * E_out;
        result->out = project(joined, x.B * x.L, x.H * x.Dv, E_out, weights->w_o, weights->b_o);
        free(joined);
    }
    finish(inputs->residual, result);
    free_heads(&x);
}

void reference_free(struct reference_result *result)
{
    free(result->out);
    free(result->lse);
    free(result->weights);
    free(result->weights_mean);
    memset(result, 0, sizeof *result);
}
