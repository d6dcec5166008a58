#include "generated_layer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

/* Strides from here on are laid out in sparse memory; the BLAS cannot step by them. */
#define FAR_STRIDE ((int64_t)INT32_MAX + 2)

static bool chance(int64_t percent)
{
    return random_below(100) < percent;
}

__attribute__((format(printf, 2, 3))) static void note(struct generated_layer *g,
                                                       const char *format, ...)
{
    size_t used = strlen(g->text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(g->text + used, sizeof g->text - used, format, arguments);
    va_end(arguments);
}

/* ---- rows [B, L, width] ---------------------------------------------------------------------- */

enum layout { PLAIN, GAPS, SEQUENCE_FIRST, ONE_SAMPLE, ONE_ROW, FAR_APART };

static float *row_at(const struct mha_tensor *t, int64_t b, int64_t l)
{
    return (float *)t->data + b * t->strides[0] + l * t->strides[1];
}

float *rows_gather(const struct mha_tensor *rows)
{
    int64_t n = rows->shape[2];
    float *elements = malloc((size_t)(mha_tensor_count(rows) + 1) * sizeof *elements);
    if (!elements)
        fail_msg("out of memory");
    for (int64_t b = 0; b < rows->shape[0]; b++)
        for (int64_t l = 0; l < rows->shape[1]; l++)
            memcpy(elements + (b * rows->shape[1] + l) * n, row_at(rows, b, l),
                   (size_t)n * sizeof *elements);
    return elements;
}

void rows_scatter(const struct mha_tensor *rows, const float *elements)
{
    int64_t n = rows->shape[2];
    for (int64_t b = 0; b < rows->shape[0]; b++)
        for (int64_t l = 0; l < rows->shape[1]; l++)
            memcpy(row_at(rows, b, l), elements + (b * rows->shape[1] + l) * n,
                   (size_t)n * sizeof *elements);
}

static void fill_rows(const struct mha_tensor *rows, float amplitude)
{
    for (int64_t b = 0; b < rows->shape[0]; b++)
        for (int64_t l = 0; l < rows->shape[1]; l++)
            for (int64_t x = 0; x < rows->shape[2]; x++)
                row_at(rows, b, l)[x] = random_float() * amplitude;
}

static float *new_floats(struct generated_layer *g, int64_t n)
{
    if (g->block_count == COUNT(g->blocks))
        fail_msg("a generated layer has too many blocks");
    float *data = g->blocks[g->block_count++] = guarded(n * (int64_t)sizeof *data);
    for (int64_t i = 0; i < n; i++)
        data[i] = NAN;
    return data;
}

/* Memory for a view whose shape and strides are set. */
static void place(struct generated_layer *g, struct mha_tensor *t)
{
    int64_t span = 0;
    if (mha_tensor_count(t) > 0)
        span = (t->shape[0] - 1) * t->strides[0] + (t->shape[1] - 1) * t->strides[1] + t->shape[2];
    if (t->strides[1] < FAR_STRIDE) {
        t->data = new_floats(g, span);
        return;
    }
    if (g->sparse_count == COUNT(g->sparse))
        fail_msg("a generated layer has too many sparse blocks");
    struct sparse *sparse = &g->sparse[g->sparse_count++];
    *sparse = sparse_make(t->shape[0] * t->shape[1], t->strides[1], t->shape[2]);
    t->data = sparse->data;
}

struct mha_tensor generated_layer_twin(struct generated_layer *g, const struct mha_tensor *like)
{
    struct mha_tensor twin = *like;
    place(g, &twin);
    twin.flags = 0;
    return twin;
}

static enum layout any_layout(int64_t rows, bool distinct)
{
    static const enum layout layouts[] = { PLAIN,          PLAIN,     GAPS,       GAPS,
                                           SEQUENCE_FIRST, FAR_APART, ONE_SAMPLE, ONE_ROW };
    enum layout layout = layouts[random_below(distinct ? 6 : 8)];
    /* A far row costs address space only, but 48 bits of it are soon full. */
    return layout == FAR_APART && (rows == 0 || rows > 6) ? GAPS : layout;
}

static struct mha_tensor any_rows(struct generated_layer *g, const char *name, int64_t width,
                                  int64_t L, bool distinct)
{
    static const char *const names[] = { "plain",      "gaps",    "sequence-first",
                                         "one sample", "one row", "far" };
    int64_t B = g->core.B;
    struct mha_tensor t = mha_tensor_3d(NULL, MHA_FLOAT32, B, L, width);
    enum layout layout = any_layout(B * L, distinct);
    switch (layout) {
    case PLAIN: break;
    case GAPS:
        t.strides[1] = width + random_below(5);
        t.strides[0] = L * t.strides[1] + random_below(3);
        break;
    case SEQUENCE_FIRST:
        t.strides[0] = width;
        t.strides[1] = B * width;
        break;
    case ONE_SAMPLE: t.strides[0] = 0; break;
    case ONE_ROW:
        t.strides[0] = width;
        t.strides[1] = 0;
        break;
    case FAR_APART:
        t.strides[1] = FAR_STRIDE + random_below(9);
        t.strides[0] = L * t.strides[1];
        break;
    }
    place(g, &t);
    fill_rows(&t, 1);
    note(g, " %s %s", name, names[layout]);
    return t;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

enum residual { NONE, OWN, QUERY };

/* Four different primes for E, E_key, E_value, E_out; fewer where the form ties them. */
static void any_sizes(struct generated_layer *g, bool has_w_o, enum residual residual)
{
    int64_t primes[] = { 2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41 };
    for (int64_t i = 0; i < 4; i++) {
        int64_t other = i + random_below(COUNT(primes) - i), kept = primes[i];
        primes[i] = primes[other];
        primes[other] = kept;
    }
    const struct generated_case *c = &g->core;
    struct mha_layer_shape *s = &g->shape;
    int64_t joined = c->H * c->Dv;
    *s = (struct mha_layer_shape){ .E = primes[0],
                                   .E_key = primes[1],
                                   .E_value = primes[2],
                                   .E_out = primes[3],
                                   .H = c->H,
                                   .G = c->G,
                                   .D = c->D,
                                   .Dv = c->Dv };
    if (!has_w_o)
        s->E_out = joined;
    if (residual == QUERY && has_w_o)
        s->E_out = s->E;
    else if (residual == QUERY)
        s->E = joined;
    if (g->self)
        s->E_key = s->E_value = s->E;
    note(g, "E %" PRId64 " E_key %" PRId64 " E_value %" PRId64 " E_out %" PRId64 "%s%s", s->E,
         s->E_key, s->E_value, s->E_out, has_w_o ? "" : " no W_O", g->self ? " self" : "");
}

/* Zeros where a zero means the same. */
static void leave_defaults(struct mha_layer_shape *s, bool has_w_o)
{
    if (s->E_key == s->E && s->E_value == s->E && chance(50))
        s->E_key = s->E_value = 0;
    if ((s->E_out == s->E || !has_w_o) && chance(50))
        s->E_out = 0;
    if (s->G == s->H && chance(50))
        s->G = 0;
    if (s->Dv == s->D && chance(50))
        s->Dv = 0;
    s->size = chance(50) ? (int64_t)sizeof *s : 0;
}

/* ---- weights --------------------------------------------------------------------------------- */

static const struct mha_tensor *any_matrix(struct generated_layer *g, int which, int64_t out,
                                           int64_t in)
{
    struct mha_tensor *t = &g->w[which];
    *t = mha_tensor_2d_const(NULL, MHA_FLOAT32, out, in);
    if (chance(40))
        t->strides[0] += 1 + random_below(5);
    float *data = new_floats(g, (out - 1) * t->strides[0] + in);
    t->data = data;
    float amplitude = 1.7f / sqrtf((float)in);
    for (int64_t r = 0; r < out; r++)
        for (int64_t x = 0; x < in; x++)
            data[r * t->strides[0] + x] = random_float() * amplitude;
    return t;
}

static const struct mha_tensor *any_bias(struct generated_layer *g, int which, int64_t n)
{
    if (chance(35))
        return NULL;
    float *data = new_floats(g, n);
    for (int64_t i = 0; i < n; i++)
        data[i] = random_float() * 0.5f;
    g->w[which] = mha_tensor_1d_const(data, MHA_FLOAT32, n);
    return &g->w[which];
}

static void make_weights(struct generated_layer *g, bool has_w_o)
{
    const struct mha_layer_shape *s = &g->shape;
    struct mha_weights *w = &g->weights;
    w->w_q = any_matrix(g, 0, s->H * s->D, s->E);
    w->w_k = any_matrix(g, 1, s->G * s->D, s->E_key);
    w->w_v = any_matrix(g, 2, s->G * s->Dv, s->E_value);
    w->b_q = any_bias(g, 4, s->H * s->D);
    w->b_k = any_bias(g, 5, s->G * s->D);
    w->b_v = any_bias(g, 6, s->G * s->Dv);
    if (has_w_o) {
        w->w_o = any_matrix(g, 3, s->E_out, s->H * s->Dv);
        w->b_o = any_bias(g, 7, s->E_out);
    }
    g->ownership = chance(50) ? MHA_COPY : MHA_BORROW;
    note(g, " biases %d%d%d%d %s", w->b_q != NULL, w->b_k != NULL, w->b_v != NULL, w->b_o != NULL,
         g->ownership == MHA_COPY ? "copy" : "borrow");
}

void generated_layer_spoil_weights(struct generated_layer *g)
{
    for (int64_t i = 0; i < COUNT(g->w); i++) {
        const struct mha_tensor *t = &g->w[i];
        int64_t n = t->rank == 2   ? (t->shape[0] - 1) * t->strides[0] + t->shape[1]
                    : t->rank == 1 ? t->shape[0]
                                   : 0;
        for (int64_t x = 0; x < n; x++)
            ((float *)t->data)[x] = NAN;
    }
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static int64_t length_at(const struct mha_tensor *lengths, int64_t b, int64_t all)
{
    if (!lengths)
        return all;
    return lengths->type == MHA_INT32 ? ((const int32_t *)lengths->data)[b]
                                      : ((const int64_t *)lengths->data)[b];
}

static void poison_row(const struct mha_tensor *t, int64_t b, int64_t l)
{
    static const float poisons[] = { NAN, INFINITY, -INFINITY, 3e38f };
    float value = poisons[random_below(COUNT(poisons))];
    for (int64_t x = 0; x < t->shape[2]; x++)
        row_at(t, b, l)[x] = value;
}

/* In rows that must not matter: keys beyond their length or hidden from all by the mask, queries
 * beyond theirs. */
static void poison_hidden(struct generated_layer *g)
{
    const struct generated_case *c = &g->core;
    if (g->self || g->inputs.residual == &g->query)
        return;
    note(g, " poison");
    const struct mha_tensor *keys[] = { &g->key, &g->value };
    for (int64_t b = 0; b < c->B; b++) {
        for (int i = 0; i < 2; i++)
            for (int64_t j = 0; j < c->S; j++)
                if (keys[i]->strides[0] && keys[i]->strides[1]
                    && (j >= length_at(c->inputs.key_lengths, b, c->S)
                        || (j >= c->hidden_from && j < c->hidden_to)))
                    poison_row(keys[i], b, j);
        for (int64_t i = length_at(c->inputs.query_lengths, b, c->L); i < c->L; i++)
            if (g->query.strides[0] && g->query.strides[1])
                poison_row(&g->query, b, i);
    }
}

static void make_inputs(struct generated_layer *g, enum residual residual)
{
    const struct generated_case *c = &g->core;
    const struct mha_layer_shape *s = &g->shape;
    struct mha_inputs *in = &g->inputs;
    g->query = any_rows(g, "query", s->E, c->L, residual == QUERY);
    in->query = &g->query;
    if (!g->self) {
        g->key = any_rows(g, "key", s->E_key, c->S, false);
        g->value = any_rows(g, "value", s->E_value, c->S, false);
        in->key = &g->key;
        in->value = &g->value;
    }
    if (residual == OWN) {
        bool distinct = chance(70);
        g->residual = any_rows(g, "residual", s->E_out, c->L, distinct);
        in->residual = &g->residual;
        g->may_be_in_place = distinct;
    } else if (residual == QUERY) {
        in->residual = &g->query;
        g->may_be_in_place = true;
        note(g, " residual = query");
    }
    in->query_lengths = c->inputs.query_lengths;
    in->key_lengths = c->inputs.key_lengths;
    poison_hidden(g);
    if (chance(8) && mha_tensor_count(&g->query) > 0) {
        row_at(&g->query, random_below(c->B), random_below(c->L))[random_below(s->E)] = NAN;
        note(g, " NaN in query");
    }
}

/* The extra keys belong to the layer or to the call. */
static void place_extras(struct generated_layer *g)
{
    struct generated_case *c = &g->core;
    if (c->inputs.bias_k && chance(50)) {
        g->weights.bias_k = &c->bias_k;
        g->weights.bias_v = &c->bias_v;
        note(g, " layer's pair");
    } else {
        g->inputs.bias_k = c->inputs.bias_k;
        g->inputs.bias_v = c->inputs.bias_v;
    }
    if (c->options.zero_attention && chance(60)) {
        g->shape.zero_attention = 1;
        g->options.zero_attention = chance(50);
        note(g, " layer's zero");
    }
}

void generated_layer_make(struct generated_layer *g)
{
    static const enum residual residuals[] = { NONE, NONE, OWN, OWN, QUERY };
    memset(g, 0, sizeof *g);
    generated_make(&g->core);
    note(g, "%s", g->core.text);
    g->options = g->core.options;
    g->self = !g->core.inputs.key || (g->core.L == g->core.S && chance(50));
    bool has_w_o = chance(75);
    enum residual residual = residuals[random_below(COUNT(residuals))];
    any_sizes(g, has_w_o, residual);
    make_weights(g, has_w_o);
    make_inputs(g, residual);
    g->out = any_rows(g, "out", g->shape.E_out, g->core.L, true);
    place_extras(g);
    leave_defaults(&g->shape, has_w_o);
    note(g, ": ");
}

void generated_layer_free(struct generated_layer *g)
{
    for (int64_t i = 0; i < g->block_count; i++)
        guarded_free(g->blocks[i]);
    for (int64_t i = 0; i < g->sparse_count; i++)
        sparse_free(&g->sparse[i]);
    generated_free(&g->core);
    memset(g, 0, sizeof *g);
}
