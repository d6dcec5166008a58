#include "error_model.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "support.h"

static const double U = 0x1p-24;

/* One row of one head and what the model says of it. */
struct model {
    const struct generated_case *c;
    int64_t b, h, i, keys;
    const double *weights; /* the oracle's */
    const double *out;     /* the oracle's, residual included */
    double *score_error;   /* [keys] */
    double mean_error;     /* of the scores, by weight */
    double growth;         /* of first-order errors by the exponential */
    double chain;          /* sqrt of the roundings on a value's way to the output */
    double out_error, lse_error, weight_error;
};

static float element(const struct mha_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3)
{
    return ((const float *)t->data)[i0 * t->strides[0] + i1 * t->strides[1] + i2 * t->strides[2]
                                    + i3 * t->strides[3]];
}

static float key_element(const struct model *m, int64_t j, int64_t x)
{
    const struct generated_case *c = m->c;
    int64_t g = m->h / (c->H / c->G);
    if (j < c->S)
        return element(c->inputs.key ? c->inputs.key : c->inputs.query, m->b, j, g, x);
    if (j == c->S && c->inputs.bias_k)
        return ((const float *)c->bias_k.data)[g * c->bias_k.strides[0] + x];
    return 0;
}

static float value_element(const struct model *m, int64_t j, int64_t y)
{
    const struct generated_case *c = m->c;
    int64_t g = m->h / (c->H / c->G);
    if (j < c->S)
        return element(c->inputs.value ? c->inputs.value : c->inputs.query, m->b, j, g, y);
    if (j == c->S && c->inputs.bias_v)
        return ((const float *)c->bias_v.data)[g * c->bias_v.strides[0] + y];
    return 0;
}

static double mask_bias(const struct model *m, int64_t j)
{
    const struct mha_tensor *mask = &m->c->mask;
    const int64_t index[4] = { m->b, m->h, m->i, j };
    if (m->c->options.mask_kind != MHA_MASK_ADDITIVE || j >= m->c->S)
        return 0;
    int64_t offset = 0;
    for (int axis = 0; axis < 4; axis++)
        offset += mask->shape[axis] == 1 ? 0 : index[axis] * mask->strides[axis];
    return (double)((const float *)mask->data)[offset];
}

/* The error of the exponent of key j, everything that multiplies its weight included. */
static double exponent_error(const struct model *m, int64_t j, double top)
{
    const struct generated_case *c = m->c;
    const struct mha_options *o = &c->options;
    double scale = o->scale_mode == MHA_SCALE_VALUE ? (double)o->scale : 1 / sqrt((double)c->D);
    double sum = 0, score = 0;
    for (int64_t x = 0; x < c->D; x++) {
        double q = (double)element(&c->query, m->b, m->i, m->h, x);
        double term = q * (double)key_element(m, j, x) * scale;
        score += term;
        sum += fabs(term);
    }
    double error = U * (sqrt((double)c->D) + 2) * sum;
    if (o->softcap_mode == MHA_SOFTCAP_TANH) {
        double cap = (double)o->softcap;
        score = cap * tanh(score / cap);
        error = fmin(error, 2 * cap) + 5 * U * fabs(score) + cap * 0x1p-148;
    }
    double bias = mask_bias(m, j);
    if (fabs(bias) < 1e30) /* beyond, every score is absorbed without a trace of its error */
        error += U * fabs(score + bias);
    /* exp and the rescalings after it: their arguments add up to no more than the distance to the
     * maximum, and each has its own few roundings. */
    double distance = log(top / m->weights[j]);
    return error + U * (6 * distance + 3 + 3 * sqrt((double)(c->S / 64 + 2)));
}

/* Raises a largest error; what the model cannot say (0 * inf) bounds nothing. */
static void raise_to(double *largest, double error)
{
    if (!(error <= *largest))
        *largest = isnan(error) ? INFINITY : error;
}

static void model_scores(struct model *m)
{
    double top = 0, largest = 0;
    for (int64_t j = 0; j < m->keys; j++)
        if (m->weights[j] > top)
            top = m->weights[j];
    m->mean_error = 0;
    for (int64_t j = 0; j < m->keys; j++) {
        m->score_error[j] = 0;
        if (!(m->weights[j] > 1e-40))
            continue; /* absent, NaN, or so far below the maximum that no error brings it back */
        m->score_error[j] = exponent_error(m, j, top);
        m->mean_error += m->weights[j] * m->score_error[j];
        raise_to(&largest, m->score_error[j]);
    }
    m->growth = exp(8 * largest); /* the bound is four times these errors, up and down */
    m->chain = sqrt(64 + (double)m->keys / 64) + 3;
}

static void model_row(struct model *m, double lse)
{
    const struct generated_case *c = m->c;
    model_scores(m);
    m->out_error = m->lse_error = m->weight_error = 0;
    if (!isfinite(lse))
        return; /* empty or NaN: nothing is rounded */
    for (int64_t y = 0; y < c->Dv; y++) {
        double residual = 0, error = 0, sum = 0;
        if (c->inputs.residual)
            residual = (double)element(&c->residual, m->b, m->i, m->h, y);
        double heads = m->out[y] - residual;
        for (int64_t j = 0; j < m->keys; j++) {
            double w = m->weights[j];
            if (!(w > 0))
                continue;
            double v = (double)value_element(m, j, y);
            error += w * m->score_error[j] * fabs(v - heads);
            if (w < 0x1p-120) /* may be flushed to zero */
                error += w * fabs(v);
            sum += w * fabs(v);
        }
        error = error * m->growth + U * (m->chain * sum + fabs(m->out[y])) + m->chain * 0x1p-149;
        if (isfinite(m->out[y]))
            raise_to(&m->out_error, error);
    }
    for (int64_t j = 0; j < m->keys; j++)
        if (m->weights[j] > 0)
            raise_to(&m->weight_error, m->growth * m->weights[j]
                                           * (m->score_error[j] + m->mean_error + U * m->chain));
    raise_to(&m->lse_error, m->growth * m->mean_error + U * (m->chain + 8 + fabs(lse)));
}

static void check_row(const struct generated_case *c, const char *array, const float *got,
                      const double *want, int64_t index, int64_t n, double error)
{
    char what[sizeof c->text + 64];
    snprintf(what, sizeof what, "%s%s row %" PRId64, c->text, array, index);
    if (got)
        check_close(what, got + index * n, want + index * n, n,
                    bound_of(want + index * n, n, error));
}

void error_model_check(const struct generated_case *c, const struct reference_result *want,
                       const struct float_arrays *got)
{
    struct model m = { .c = c, .keys = c->S + c->extra };
    m.score_error = malloc((size_t)(m.keys + 1) * sizeof *m.score_error);
    if (!m.score_error)
        fail_msg("out of memory");
    for (m.b = 0; m.b < c->B; m.b++)
        for (m.i = 0; m.i < c->L; m.i++) {
            double mean_error = 0;
            for (m.h = 0; m.h < c->H; m.h++) {
                int64_t row = (m.b * c->H + m.h) * c->L + m.i;
                int64_t out_row = (m.b * c->L + m.i) * c->H + m.h;
                m.weights = want->weights + row * m.keys;
                m.out = want->out + out_row * c->Dv;
                model_row(&m, want->lse[row]);
                mean_error += m.weight_error / (double)c->H + U;
                check_row(c, "out", got->out, want->out, out_row, c->Dv, m.out_error);
                check_row(c, "lse", got->lse, want->lse, row, 1, m.lse_error);
                check_row(c, "weights", got->weights, want->weights, row, m.keys, m.weight_error);
            }
            check_row(c, "weights_mean", got->weights_mean, want->weights_mean, m.b * c->L + m.i,
                      m.keys, mean_error);
        }
    free(m.score_error);
}
