/* mha_attention on random cases of every option: against the bit oracle where the level keeps the
 * canonical order, against float64 on every level; bits that must not depend on what else is asked
 * for. What else they must not depend on is in test_bits.c. */
#include "fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "canonical.h"
#include "error_model.h"
#include "generator.h"

static bool is_canonical(void)
{
    return strcmp(mha_context_isa(ctx), "generic") != 0;
}

/* All outputs of a case, contiguous and guarded. */
struct results {
    float *out, *lse, *weights, *weights_mean;
    int64_t out_count, lse_count, weights_count, mean_count;
    struct mha_tensor t_out, t_lse, t_weights, t_mean;
    struct mha_outputs outputs;
};

static void results_make(const struct generated_case *c, struct results *r)
{
    int64_t keys = c->S + c->extra;
    r->out_count = c->B * c->L * c->H * c->Dv;
    r->lse_count = c->B * c->H * c->L;
    r->weights_count = c->B * c->H * c->L * keys;
    r->mean_count = c->B * c->L * keys;
    r->out = guarded_floats(r->out_count);
    r->lse = guarded_floats(r->lse_count);
    r->weights = guarded_floats(r->weights_count);
    r->weights_mean = guarded_floats(r->mean_count);
    r->t_out = mha_tensor_4d(r->out, MHA_FLOAT32, c->B, c->L, c->H, c->Dv);
    r->t_lse = mha_tensor_3d(r->lse, MHA_FLOAT32, c->B, c->H, c->L);
    r->t_weights = mha_tensor_4d(r->weights, MHA_FLOAT32, c->B, c->H, c->L, keys);
    r->t_mean = mha_tensor_3d(r->weights_mean, MHA_FLOAT32, c->B, c->L, keys);
    r->outputs = (struct mha_outputs){
        .out = &r->t_out, .lse = &r->t_lse, .weights = &r->t_weights, .weights_mean = &r->t_mean
    };
}

static void results_free(struct results *r)
{
    guarded_free(r->out);
    guarded_free(r->lse);
    guarded_free(r->weights);
    guarded_free(r->weights_mean);
}

static void same(const struct generated_case *c, const char *what, const float *got,
                 const float *want, int64_t n)
{
    char text[704];
    snprintf(text, sizeof text, "%s: %s", c->text, what);
    check_same_bits(text, got, want, n);
}

static void run(const struct generated_case *c, const struct mha_outputs *outputs)
{
    mha_status status = mha_attention(ctx, &c->inputs, &c->options, outputs);
    if (status != MHA_OK)
        fail_msg("%s: %s", c->text, mha_context_message(ctx));
}

static void check_case(const struct generated_case *c)
{
    struct results r;
    results_make(c, &r);
    run(c, &r.outputs);

    struct reference_result want;
    reference_attention(&c->inputs, &c->options, &want);
    error_model_check(c, &want, &(struct float_arrays){ r.out, r.lse, r.weights, r.weights_mean });
    reference_free(&want);

    if (is_canonical()) {
        struct canonical_result bits;
        canonical_attention(&c->inputs, &c->options, &bits);
        same(c, "out", r.out, bits.out, r.out_count);
        same(c, "lse", r.lse, bits.lse, r.lse_count);
        same(c, "weights", r.weights, bits.weights, r.weights_count);
        same(c, "weights_mean", r.weights_mean, bits.weights_mean, r.mean_count);
        canonical_free(&bits);
    }

    /* Each output alone has the same bits as with all others. */
    struct results alone;
    results_make(c, &alone);
    run(c, &(struct mha_outputs){ .out = alone.outputs.out });
    run(c, c->inputs.residual
               ? &(struct mha_outputs){ .out = alone.outputs.out, .lse = alone.outputs.lse }
               : &(struct mha_outputs){ .lse = alone.outputs.lse });
    if (!c->inputs.residual) {
        run(c, &(struct mha_outputs){ .weights = alone.outputs.weights });
        run(c, &(struct mha_outputs){ .weights_mean = alone.outputs.weights_mean });
        same(c, "weights alone", alone.weights, r.weights, r.weights_count);
        same(c, "weights_mean alone", alone.weights_mean, r.weights_mean, r.mean_count);
    }
    same(c, "out alone", alone.out, r.out, r.out_count);
    same(c, "lse alone", alone.lse, r.lse, r.lse_count);
    results_free(&alone);
    results_free(&r);
}

static void random_cases(void **state)
{
    (void)state;
    int64_t cases = case_count(1500);
    for (int64_t i = 0; i < cases; i++) {
        struct generated_case c;
        generated_make(&c);
        check_case(&c);
        generated_free(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_cases),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
