/*
 * Is what the benchmark measures right?
 *
 * A row of a layer would need the keys and values of its whole sample. In exact arithmetic the
 * projections can be moved to the query's side, which makes a row cheap: with a head's query q,
 *
 *     q . (W_k x_j + b_k) = (W_k^T q) . x_j + q . b_k
 *     sum_j p_j (W_v x_j + b_v) = W_v (sum_j p_j x_j) + b_v
 */
#include "bench_check.h"

#include <math.h>
#include <stdlib.h>

enum { SAMPLED_ROWS = 16 };

/* The keys lo <= j < hi that query l of sample b sees. */
static void visible(const struct bench_scene *scene, int64_t b, int64_t l, int64_t *lo, int64_t *hi)
{
    int64_t length = scene->lengths ? scene->lengths[b] : scene->S;
    *lo = scene->window && l + 1 > scene->window ? l + 1 - scene->window : 0;
    *hi = scene->causal && l + 1 < length ? l + 1 : length;
    if (scene->lengths && l >= scene->lengths[b])
        *hi = *lo;
}

/* scores[0..n-1] become their softmax. */
static void softmax(double *scores, int64_t n)
{
    double highest = -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; j++)
        highest = fmax(highest, scores[j]);
    for (int64_t j = 0; j < n; j++) {
        scores[j] = exp(scores[j] - highest);
        sum += scores[j];
    }
    for (int64_t j = 0; j < n; j++)
        scores[j] /= sum;
}

static double dot(const double *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * (double)b[i];
    return sum;
}

/* y += a x */
static void add_scaled(double *y, double a, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += a * (double)x[i];
}

static void clear(double *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = 0;
}

/* One row of one head: `expected` gets D numbers. */
static void expect_attention(const struct bench_case *made, int64_t b, int64_t h, int64_t l,
                             double *scores, double *expected)
{
    const struct bench_scene *scene = &made->scene;
    int64_t D = scene->D, S = scene->S, lo, hi;
    int64_t head = b * scene->G + h / (scene->H / scene->G);
    const float *query = made->query + ((b * scene->H + h) * scene->L + l) * D;
    const float *key = made->key + head * S * D, *value = made->value + head * S * D;
    visible(scene, b, l, &lo, &hi);
    clear(expected, D);
    clear(scores, hi - lo);
    for (int64_t j = lo; j < hi; j++) {
        for (int64_t d = 0; d < D; d++)
            scores[j - lo] += (double)query[d] * (double)key[j * D + d];
        scores[j - lo] /= sqrt((double)D);
        if (made->bias)
            scores[j - lo] += (double)made->bias[(h * scene->L + l) * S + j];
    }
    softmax(scores, hi - lo);
    for (int64_t j = lo; j < hi; j++)
        add_scaled(expected, scores[j - lo], value + j * D, D);
}

/* One row of a layer: `expected` gets E numbers. `scores` has room for S, `rest` for 3 E. */
static void expect_layer(const struct bench_case *made, int64_t b, int64_t l, double *scores,
                         double *rest, double *expected)
{
    enum { Q, K, V, O };
    const struct bench_scene *scene = &made->scene;
    int64_t E = scene->E, D = scene->D, lo, hi;
    const float *rows = made->query + b * scene->L * E;
    float *const *w = made->weights, *const *bias = made->biases;
    double *key_side = rest, *mean = rest + E, *heads = rest + 2 * E;
    visible(scene, b, l, &lo, &hi);
    for (int64_t h = 0; h < scene->H; h++) {
        double constant = 0;
        clear(key_side, E);
        for (int64_t i = h * D; i < (h + 1) * D; i++) {
            double q = (double)bias[Q][i];
            for (int64_t e = 0; e < E; e++)
                q += (double)w[Q][i * E + e] * (double)rows[l * E + e];
            add_scaled(key_side, q, w[K] + i * E, E);
            constant += q * (double)bias[K][i];
        }
        for (int64_t j = lo; j < hi; j++)
            scores[j - lo] = (dot(key_side, rows + j * E, E) + constant) / sqrt((double)D);
        softmax(scores, hi - lo);
        clear(mean, E);
        for (int64_t j = lo; j < hi; j++)
            add_scaled(mean, scores[j - lo], rows + j * E, E);
        for (int64_t i = h * D; i < (h + 1) * D; i++)
            heads[i] = dot(mean, w[V] + i * E, E) + (double)bias[V][i];
    }
    for (int64_t e = 0; e < E; e++)
        expected[e] = dot(heads, w[O] + e * E, E) + (double)bias[O][e];
}

static bool all_numbers(const float *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(out[i]))
            return false;
    return true;
}

/* The sampled rows are spread evenly, the first and the last one among them; they differ in sample,
 * head and position. */
static void compare_rows(const struct bench_case *made, double *room, struct bench_verdict *verdict)
{
    const struct bench_scene *scene = &made->scene;
    int64_t width = made->layer ? scene->E : scene->D;
    int64_t rows = bench_case_results(made) / width;
    int64_t samples = rows < SAMPLED_ROWS ? rows : SAMPLED_ROWS;
    double *expected = room, *rest = room + width, *scores = rest + 3 * width;
    for (int64_t i = 0; i < samples; i++) {
        int64_t row = samples > 1 ? i * (rows - 1) / (samples - 1) : 0;
        int64_t l = row % scene->L, head = row / scene->L;
        if (made->layer)
            expect_layer(made, head, l, scores, rest, expected);
        else
            expect_attention(made, head / scene->H, head % scene->H, l, scores, expected);
        for (int64_t d = 0; d < width; d++) {
            double got = (double)made->out[row * width + d];
            verdict->error = fmax(verdict->error, fabs(got - expected[d]));
            verdict->bound = fmax(verdict->bound, 2e-6 * fabs(expected[d]));
        }
    }
}

bool bench_check(const struct bench_case *made, struct bench_verdict *verdict)
{
    *verdict = (struct bench_verdict){ 0 };
    int64_t width = made->layer ? made->scene.E : made->scene.D;
    double *room = malloc((size_t)(4 * width + made->scene.S) * sizeof *room);
    if (!room)
        return false;
    compare_rows(made, room, verdict);
    free(room);
    return all_numbers(made->out, bench_case_results(made)) && verdict->error <= verdict->bound;
}
