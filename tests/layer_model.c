#include "layer_model.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "support.h"

static const double U = 0x1p-24;

/* Numbers and what float32 may be off by. */
struct numbers {
    double *value, *error;
};

static double *new_array(int64_t n)
{
    double *array = calloc((size_t)(n + 1), sizeof *array);
    if (!array)
        fail_msg("out of memory");
    return array;
}

static struct numbers numbers_make(int64_t n)
{
    return (struct numbers){ new_array(n), new_array(n) };
}

static void numbers_free(struct numbers *numbers)
{
    free(numbers->value);
    free(numbers->error);
}

struct model {
    const char *text;
    int64_t B, L, S, H, G, D, Dv, keys, width;
    const struct mha_weights *weights;
    const struct mha_inputs *inputs;
    const struct mha_options *options;
    const struct reference_result *want;
    struct numbers q, k, v;         /* [B, L, H, D], [B, S + 2, G, D], [B, S + 2, G, Dv] */
    struct numbers heads;           /* [H, Dv] of one row */
    double *score_error;            /* [keys] */
    double mean_error;              /* of the scores, by weight */
    double growth;                  /* of first-order errors by the exponential */
    double weight_error, lse_error; /* of one row of one head */
};

static double weight_at(const struct mha_tensor *t, int64_t row, int64_t column)
{
    return (double)((const float *)t->data)[row * t->strides[0] + column];
}

/* ---- projections ----------------------------------------------------------------------------- */

/* One element of x W^T + b with its error. */
static void project_element(const float *x, const struct mha_tensor *w, const struct mha_tensor *b,
                            int64_t n, double *value, double *error)
{
    double sum = 0, size = 0;
    int64_t K = w->shape[1];
    for (int64_t e = 0; e < K; e++) {
        double term = (double)x[e] * weight_at(w, n, e);
        sum += term;
        size += fabs(term);
    }
    *value = sum + (b ? (double)((const float *)b->data)[n] : 0);
    *error = U * ((sqrt((double)K) + 1) * size + fabs(*value));
}

/* Rows x [B, rows, K] to [B, room, N]; what is behind the rows is left for extra keys. */
static struct numbers project(const struct mha_tensor *x, const struct mha_tensor *w,
                              const struct mha_tensor *b, int64_t room)
{
    int64_t B = x->shape[0], rows = x->shape[1], N = w->shape[0];
    struct numbers y = numbers_make(B * room * N);
    for (int64_t i = 0; i < B * rows; i++) {
        const float *row = (const float *)x->data + i / rows * x->strides[0]
                           + i % rows * x->strides[1];
        int64_t at = (i / rows * room + i % rows) * N;
        for (int64_t n = 0; n < N; n++)
            project_element(row, w, b, n, &y.value[at + n], &y.error[at + n]);
    }
    return y;
}

/* The bias pair as key number S; the zero pair is what calloc left. */
static void append_extra(const struct model *m, const struct mha_tensor *extra, int64_t width,
                         struct numbers *to)
{
    for (int64_t b = 0; b < m->B && extra; b++)
        for (int64_t g = 0; g < m->G; g++)
            for (int64_t x = 0; x < width; x++)
                to->value[((b * (m->S + 2) + m->S) * m->G + g) * width + x] = weight_at(extra, g,
                                                                                        x);
}

static struct model model_make(const struct mha_layer_shape *s, const struct mha_weights *w,
                               const struct mha_inputs *in)
{
    const struct mha_tensor *key = in->key ? in->key : in->query;
    const struct mha_tensor *value = in->value ? in->value : in->query;
    struct model m = { .B = in->query->shape[0], .L = in->query->shape[1], .S = key->shape[1] };
    m.H = s->H;
    m.G = s->G ? s->G : s->H;
    m.D = s->D ? s->D : s->E / s->H;
    m.Dv = s->Dv ? s->Dv : m.D;
    m.width = w->w_o ? w->w_o->shape[0] : m.H * m.Dv;
    m.weights = w;
    m.inputs = in;
    m.q = project(in->query, w->w_q, w->b_q, m.L);
    m.k = project(key, w->w_k, w->b_k, m.S + 2);
    m.v = project(value, w->w_v, w->b_v, m.S + 2);
    append_extra(&m, w->bias_k ? w->bias_k : in->bias_k, m.D, &m.k);
    append_extra(&m, w->bias_v ? w->bias_v : in->bias_v, m.Dv, &m.v);
    m.heads = numbers_make(m.H * m.Dv);
    return m;
}

/* ---- attention ------------------------------------------------------------------------------- */

static int64_t key_index(const struct model *m, int64_t b, int64_t h, int64_t j, int64_t width)
{
    return ((b * (m->S + 2) + j) * m->G + h / (m->H / m->G)) * width;
}

static double mask_bias(const struct model *m, int64_t b, int64_t h, int64_t i, int64_t j)
{
    if (m->options->mask_kind != MHA_MASK_ADDITIVE || j >= m->S)
        return 0;
    const struct mha_tensor *mask = m->options->mask;
    const int64_t index[4] = { b, h, i, j };
    int64_t offset = 0;
    for (int axis = 0; axis < 4; axis++)
        offset += mask->shape[axis] == 1 ? 0 : index[axis] * mask->strides[axis];
    return (double)((const float *)mask->data)[offset];
}

/* The error of the exponent of key j, everything that multiplies its weight included. */
static double exponent_error(const struct model *m, int64_t b, int64_t h, int64_t i, int64_t j,
                             double distance)
{
    const struct mha_options *o = m->options;
    double scale = o->scale_mode == MHA_SCALE_VALUE ? (double)o->scale : 1 / sqrt((double)m->D);
    int64_t q = ((b * m->L + i) * m->H + h) * m->D, k = key_index(m, b, h, j, m->D);
    double score = 0, size = 0, squares = 0;
    for (int64_t x = 0; x < m->D; x++) {
        double term = m->q.value[q + x] * m->k.value[k + x] * scale;
        score += term;
        size += fabs(term);
        squares += pow(m->q.error[q + x] * m->k.value[k + x] * scale, 2)
                   + pow(m->q.value[q + x] * m->k.error[k + x] * scale, 2);
    }
    double error = U * (sqrt((double)m->D) + 2) * size + sqrt(squares);
    if (o->softcap_mode == MHA_SOFTCAP_TANH) {
        double cap = (double)o->softcap;
        score = cap * tanh(score / cap);
        error = fmin(error, 2 * cap) + 5 * U * fabs(score) + cap * 0x1p-148;
    }
    double bias = mask_bias(m, b, h, i, j);
    if (fabs(bias) < 1e30) /* beyond, every score is absorbed without a trace of its error */
        error += U * fabs(score + bias);
    return error + U * (6 * distance + 3 + 3 * sqrt((double)(m->S / 64 + 2)));
}

/* Raises a largest error; what the model cannot say bounds nothing. */
static void raise_to(double *largest, double error)
{
    if (!(error <= *largest))
        *largest = isnan(error) ? INFINITY : error;
}

static void score_errors(struct model *m, int64_t b, int64_t h, int64_t i, const double *weights)
{
    double top = 0, largest = 0;
    for (int64_t j = 0; j < m->keys; j++)
        top = fmax(top, weights[j]);
    m->mean_error = 0;
    for (int64_t j = 0; j < m->keys; j++) {
        m->score_error[j] = 0;
        if (!(weights[j] > 1e-40))
            continue; /* absent, NaN, or so far below the maximum that no error brings it back */
        m->score_error[j] = exponent_error(m, b, h, i, j, log(top / weights[j]));
        m->mean_error += weights[j] * m->score_error[j];
        raise_to(&largest, m->score_error[j]);
    }
    m->growth = exp(8 * largest); /* the bound is four times these errors, up and down */
}

/* One row of one head: its part of `heads`, and the errors of its weights and log-sum-exp. */
static void attend_row(struct model *m, int64_t b, int64_t h, int64_t i, const double *weights,
                       double lse)
{
    double chain = sqrt(64 + (double)m->keys / 64) + 3;
    score_errors(m, b, h, i, weights);
    for (int64_t y = 0; y < m->Dv; y++) {
        double value = 0, size = 0, error = 0, squares = 0;
        for (int64_t j = 0; j < m->keys; j++)
            if (weights[j] != 0) /* NaN too */
                value += weights[j] * m->v.value[key_index(m, b, h, j, m->Dv) + y];
        for (int64_t j = 0; j < m->keys; j++) {
            double w = weights[j];
            if (!(w > 0))
                continue;
            int64_t at = key_index(m, b, h, j, m->Dv) + y;
            error += w * m->score_error[j] * fabs(m->v.value[at] - value);
            if (w < 0x1p-120) /* may be flushed to zero */
                error += w * fabs(m->v.value[at]);
            size += w * fabs(m->v.value[at]);
            squares += pow(w * m->v.error[at], 2);
        }
        m->heads.value[h * m->Dv + y] = value;
        m->heads.error[h * m->Dv + y] = error * m->growth + sqrt(squares)
                                        + U * (chain * size + fabs(value)) + chain * 0x1p-149;
    }
    m->weight_error = m->lse_error = 0;
    for (int64_t j = 0; j < m->keys; j++)
        if (weights[j] > 0)
            raise_to(&m->weight_error,
                     m->growth * weights[j] * (m->score_error[j] + m->mean_error + U * chain));
    if (isfinite(lse))
        raise_to(&m->lse_error, m->growth * m->mean_error + U * (chain + 8 + fabs(lse)));
}

/* ---- output ---------------------------------------------------------------------------------- */

static double out_error(const struct model *m, int64_t b, int64_t i, int64_t e, double want)
{
    const struct mha_weights *w = m->weights;
    const struct mha_tensor *r = m->inputs->residual;
    double start = 0, error = 0, size = 0;
    if (r)
        start = (double)((const float *)r->data)[b * r->strides[0] + i * r->strides[1] + e];
    if (!w->w_o)
        return m->heads.error[e] + U * fabs(want);
    if (w->b_o)
        start += (double)((const float *)w->b_o->data)[e];
    for (int64_t y = 0; y < m->H * m->Dv; y++) {
        double weight = fabs(weight_at(w->w_o, e, y));
        error += weight * m->heads.error[y];
        size += weight * fabs(m->heads.value[y]);
    }
    return error + U * ((sqrt((double)(m->H * m->Dv)) + 1) * size + fabs(start) + fabs(want));
}

static void check_row(const struct model *m, const char *array, const float *got,
                      const double *want, int64_t index, int64_t n, double error)
{
    char what[1200];
    snprintf(what, sizeof what, "%s%s row %" PRId64, m->text, array, index);
    if (got)
        check_close(what, got + index * n, want + index * n, n,
                    bound_of(want + index * n, n, error));
}

static void check_position(struct model *m, int64_t b, int64_t i, const struct float_arrays *got)
{
    double mean_error = 0, largest = 0;
    for (int64_t h = 0; h < m->H; h++) {
        int64_t row = (b * m->H + h) * m->L + i;
        attend_row(m, b, h, i, m->want->weights + row * m->keys, m->want->lse[row]);
        mean_error += m->weight_error / (double)m->H + U;
        check_row(m, "lse", got->lse, m->want->lse, row, 1, m->lse_error);
        check_row(m, "weights", got->weights, m->want->weights, row, m->keys, m->weight_error);
    }
    int64_t row = b * m->L + i;
    check_row(m, "weights_mean", got->weights_mean, m->want->weights_mean, row, m->keys,
              mean_error);
    for (int64_t e = 0; e < m->width; e++) {
        double want = m->want->out[row * m->width + e];
        if (isfinite(want))
            raise_to(&largest, out_error(m, b, i, e, want));
    }
    check_row(m, "out", got->out, m->want->out, row, m->width, largest);
}

void layer_model_check(const char *text, const struct mha_layer_shape *shape,
                       const struct mha_weights *weights, const struct mha_inputs *inputs,
                       const struct mha_options *options, const struct reference_result *want,
                       const struct float_arrays *got)
{
    static const struct mha_options plain;
    struct model m = model_make(shape, weights, inputs);
    int64_t rows = m.B * m.H * m.L;
    m.text = text;
    m.options = options ? options : &plain;
    m.want = want;
    m.keys = rows > 0 ? want->weights_count / rows : 0;
    m.score_error = new_array(m.keys);
    for (int64_t b = 0; b < m.B; b++)
        for (int64_t i = 0; i < m.L; i++)
            check_position(&m, b, i, got);
    numbers_free(&m.q);
    numbers_free(&m.k);
    numbers_free(&m.v);
    numbers_free(&m.heads);
    free(m.score_error);
}
