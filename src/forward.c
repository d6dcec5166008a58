#include "attend.h"
#include "project.h"

/* Scratch of a call, laid out by the plan alone: the workspace query measures what the call uses. */
struct scratch {
    struct mha_attend_scratch attend;
    struct mha_gemm *problems;
};

/* ---- attention without projections ------------------------------------------------------------ */

mha_status mha_attention(mha_context *ctx, const struct mha_inputs *inputs,
                         const struct mha_options *options, const struct mha_outputs *outputs)
{
    if (!ctx)
        return MHA_ERROR_ARGUMENT;
    mha_status status = mha_context_enter(ctx, "mha_attention");
    if (status != MHA_OK)
        return status;
    struct mha_plan plan;
    struct scratch scratch;
    struct mha_arena arena = { 0 };
    TRY(mha_plan_attention(ctx, inputs, options, outputs, MHA_PLAN_CALL, &plan));
    mha_attend_lay_out(&plan, &arena, &scratch.attend);
    TRY(mha_context_grow(ctx, arena.used));
    arena = (struct mha_arena){ .base = ctx->scratch };
    mha_attend_lay_out(&plan, &arena, &scratch.attend);
    mha_attend(ctx->kernels, &plan, &scratch.attend);
done:
    return mha_context_leave(ctx, status);
}

mha_status mha_attention_workspace(mha_context *ctx, const struct mha_inputs *inputs,
                                   const struct mha_options *options,
                                   const struct mha_outputs *outputs, int64_t *bytes)
{
    if (!ctx)
        return MHA_ERROR_ARGUMENT;
    mha_status status = mha_context_enter(ctx, "mha_attention_workspace");
    if (status != MHA_OK)
        return status;
    struct mha_plan plan;
    struct scratch scratch;
    struct mha_arena arena = { 0 };
    REQUIRE(ctx, bytes, MHA_ERROR_ARGUMENT, "bytes is NULL");
    TRY(mha_plan_attention(ctx, inputs, options, outputs, MHA_PLAN_QUERY, &plan));
    mha_attend_lay_out(&plan, &arena, &scratch.attend);
    TRY(mha_context_check_scratch(ctx, arena.used));
    *bytes = arena.used;
done:
    return mha_context_leave(ctx, status);
}

/* ---- the layer -------------------------------------------------------------------------------- */

static struct mha_view packed(float *data, int64_t L, int64_t heads, int64_t width)
{
    return (struct mha_view){ data, L * heads * width, heads * width, width };
}

static struct mha_projection projection(const mha_layer *layer, enum mha_weight w,
                                        enum mha_weight b, int64_t B, int64_t L,
                                        struct mha_view x, struct mha_view y)
{
    const struct mha_tensor *weight = &layer->weight[w];
    return (struct mha_projection){
        .B = B,
        .L = L,
        .K = weight->shape[1],
        .N = weight->shape[0],
        .x = x,
        .w = weight->data,
        .w_stride = weight->shape[0] > 1 ? weight->strides[0] : weight->shape[1],
        .b = mha_layer_data(layer, b),
        .y = y,
    };
}

/* The steps of a forward pass around the core. */
struct steps {
    struct mha_projection in[3]; /* to q, k and v */
    struct mha_projection out; /* W_O, with the residual */
    int64_t n_out;             /* 0 when the output is the core's own */
};

/* Takes the scratch from the arena, points the plan's views of the core at it, and makes the steps. */
static void forward_lay_out(const mha_layer *layer, struct mha_plan *p, struct mha_arena *arena,
                            struct scratch *s, struct steps *steps)
{
    int64_t rows = p->B * p->L, keys = p->B * p->S;
    bool wants_out = p->out_rows.data != NULL;
    bool has_w_o = mha_layer_data(layer, MHA_W_O) != NULL;
    mha_attend_lay_out(p, arena, &s->attend);
    p->q = packed(mha_arena_floats(arena, rows, p->H, p->D), p->L, p->H, p->D);
    p->k = packed(mha_arena_floats(arena, keys, p->G, p->D), p->S, p->G, p->D);
    /* v also where only weights are wanted: which products the BLAS gets together may decide how it
     * rounds, and asking for one output must change no bit of another. */
    p->v = packed(mha_arena_floats(arena, keys, p->G, p->Dv), p->S, p->G, p->Dv);
    steps->in[0] = projection(layer, MHA_W_Q, MHA_B_Q, p->B, p->L, p->query_rows, p->q);
    steps->in[1] = projection(layer, MHA_W_K, MHA_B_K, p->B, p->S, p->key_rows, p->k);
    steps->in[2] = projection(layer, MHA_W_V, MHA_B_V, p->B, p->S, p->value_rows, p->v);
    steps->n_out = wants_out && has_w_o ? 1 : 0;
    if (steps->n_out) {
        p->out = packed(mha_arena_floats(arena, rows, p->H, p->Dv), p->L, p->H, p->Dv);
        steps->out = projection(layer, MHA_W_O, MHA_B_O, p->B, p->L, p->out, p->out_rows);
        steps->out.residual = p->residual_rows;
    } else {
        p->out = p->out_rows;
        p->out.h = p->Dv;
        p->residual = p->residual_rows;
        p->residual.h = p->Dv;
    }
    int64_t problems = max_i64(mha_project_count(steps->in, 3),
                               mha_project_count(&steps->out, steps->n_out));
    s->problems = mha_arena_take(arena, problems, sizeof *s->problems);
}

mha_status mha_forward(mha_context *ctx, const mha_layer *layer, const struct mha_inputs *inputs,
                       const struct mha_options *options, const struct mha_outputs *outputs)
{
    if (!ctx)
        return MHA_ERROR_ARGUMENT;
    mha_status status = mha_context_enter(ctx, "mha_forward");
    if (status != MHA_OK)
        return status;
    struct mha_plan plan;
    struct scratch scratch;
    struct steps steps;
    struct mha_arena arena = { 0 };
    TRY(mha_plan_forward(ctx, layer, inputs, options, outputs, MHA_PLAN_CALL, &plan));
    forward_lay_out(layer, &plan, &arena, &scratch, &steps);
    TRY(mha_context_grow(ctx, arena.used));
    arena = (struct mha_arena){ .base = ctx->scratch };
    forward_lay_out(layer, &plan, &arena, &scratch, &steps);

    mha_project(steps.in, 3, scratch.problems);
    mha_attend(ctx->kernels, &plan, &scratch.attend);
    mha_project(&steps.out, steps.n_out, scratch.problems);
done:
    return mha_context_leave(ctx, status);
}

mha_status mha_forward_workspace(mha_context *ctx, const mha_layer *layer,
                                 const struct mha_inputs *inputs, const struct mha_options *options,
                                 const struct mha_outputs *outputs, int64_t *bytes)
{
    if (!ctx)
        return MHA_ERROR_ARGUMENT;
    mha_status status = mha_context_enter(ctx, "mha_forward_workspace");
    if (status != MHA_OK)
        return status;
    struct mha_plan plan;
    struct scratch scratch;
    struct steps steps;
    struct mha_arena arena = { 0 };
    REQUIRE(ctx, bytes, MHA_ERROR_ARGUMENT, "bytes is NULL");
    TRY(mha_plan_forward(ctx, layer, inputs, options, outputs, MHA_PLAN_QUERY, &plan));
    forward_lay_out(layer, &plan, &arena, &scratch, &steps);
    TRY(mha_context_check_scratch(ctx, arena.used));
    *bytes = arena.used;
done:
    return mha_context_leave(ctx, status);
}
