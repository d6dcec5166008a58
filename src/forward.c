#include "attend.h"
#include "project.h"

/* A call on its way: its plan, its scratch, and for a layer the projections around the core. */
struct call {
    const mha_layer *layer; /* NULL in mha_attention */
    struct mha_plan plan;
    struct mha_attend_scratch attend;

    struct mha_projection in[3]; /* to q, k and v */
    int64_t n_in;
    struct mha_projection out;          /* W_O, with the residual */
    int64_t n_out;                      /* 0 when the output is the core's own */
    struct mha_project_scratch project; /* of a packed layer */
    struct mha_gemm *problems;          /* of any other */
};

/* ---- projections ------------------------------------------------------------------------------ */

/* [B, L, heads, width] with each row's heads side by side, as a matrix of rows wants it. */
static struct mha_view row_major(float *data, int64_t L, int64_t heads, int64_t width)
{
    return (struct mha_view){ data, L * heads * width, heads * width, width };
}

/* The same with each head's rows side by side, as the core likes its keys and values best. */
static struct mha_view head_major(float *data, int64_t L, int64_t heads, int64_t width)
{
    return (struct mha_view){ data, L * heads * width, width, L * width };
}

static struct mha_projection projection(const mha_layer *layer, enum mha_weight w,
                                        enum mha_weight b, int64_t B, int64_t L, struct mha_view x,
                                        struct mha_view y, int64_t width)
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
        .panels = layer->panels[w],
        .b = mha_layer_data(layer, b),
        .y = y,
        .width = width,
    };
}

/* q, k and v into scratch. The BLAS gets v also where only weights are wanted: which products it gets
 * together may decide how it rounds, and asking for one output must change no bit of another. */
static void lay_out_inputs(struct call *c, struct mha_arena *arena)
{
    struct mha_plan *p = &c->plan;
    int64_t rows = p->B * p->L, keys = p->B * p->S;
    bool packed = c->layer->packed != NULL;
    struct mha_view (*lay)(float *, int64_t, int64_t, int64_t) = packed ? head_major : row_major;
    c->n_in = packed && !p->out_rows.data ? 2 : 3;
    p->q = lay(mha_arena_floats(arena, rows, p->H, p->D), p->L, p->H, p->D);
    p->k = lay(mha_arena_floats(arena, keys, p->G, p->D), p->S, p->G, p->D);
    if (c->n_in == 3)
        p->v = lay(mha_arena_floats(arena, keys, p->G, p->Dv), p->S, p->G, p->Dv);
    c->in[0] = projection(c->layer, MHA_W_Q, MHA_B_Q, p->B, p->L, p->query_rows, p->q, p->D);
    c->in[1] = projection(c->layer, MHA_W_K, MHA_B_K, p->B, p->S, p->key_rows, p->k, p->D);
    c->in[2] = projection(c->layer, MHA_W_V, MHA_B_V, p->B, p->S, p->value_rows, p->v, p->Dv);
}

/* The heads into scratch and W_O after them; without W_O, or without an output, there is no step. */
static void lay_out_output(struct call *c, struct mha_arena *arena)
{
    struct mha_plan *p = &c->plan;
    c->n_out = p->out_rows.data && mha_layer_has(c->layer, MHA_W_O) ? 1 : 0;
    if (c->n_out) {
        p->out = row_major(mha_arena_floats(arena, p->B * p->L, p->H, p->Dv), p->L, p->H, p->Dv);
        c->out = projection(c->layer, MHA_W_O, MHA_B_O, p->B, p->L, p->out, p->out_rows,
                            c->layer->shape.E_out);
        c->out.residual = p->residual_rows;
    } else {
        p->out = p->out_rows;
        p->out.h = p->Dv;
        p->residual = p->residual_rows;
        p->residual.h = p->Dv;
    }
}

/* What the engine needs; both steps share it. */
static void lay_out_engine(const mha_context *ctx, struct call *c, struct mha_arena *arena)
{
    struct mha_projection all[4];
    int64_t n = 0;
    for (; n < c->n_in; n++)
        all[n] = c->in[n];
    if (c->n_out)
        all[n++] = c->out;
    if (c->layer->packed)
        mha_project_lay_out(all, n, &ctx->threads, arena, &c->project);
    else
        c->problems = mha_arena_take(
            arena, max_i64(mha_project_count(c->in, c->n_in), mha_project_count(&c->out, c->n_out)),
            sizeof *c->problems);
}

static void project(mha_context *ctx, const struct call *c,
                    const struct mha_projection *projections, int64_t n)
{
    if (c->layer->packed)
        mha_project_packed(ctx, projections, n, &c->project);
    else
        mha_project(projections, n, c->problems);
}

/* ---- the way of every call -------------------------------------------------------------------- */

static void lay_out(const mha_context *ctx, struct call *c, struct mha_arena *arena)
{
    mha_attend_lay_out(&c->plan, &ctx->threads, arena, &c->attend);
    if (!c->layer)
        return;
    lay_out_inputs(c, arena);
    lay_out_output(c, arena);
    lay_out_engine(ctx, c, arena);
}

/* Checks everything and measures the scratch. A query ends here. */
static mha_status plan_call(mha_context *ctx, const struct mha_inputs *inputs,
                            const struct mha_options *options, const struct mha_outputs *outputs,
                            enum mha_plan_purpose purpose, struct call *c, int64_t *bytes)
{
    mha_status status = MHA_OK;
    struct mha_arena arena = { 0 };
    TRY(mha_plan(ctx, c->layer, inputs, options, outputs, purpose, &c->plan));
    lay_out(ctx, c, &arena);
    TRY(mha_context_check_scratch(ctx, arena.used));
    *bytes = arena.used;
done:
    return status;
}

/* Checks everything and takes the scratch. What comes after cannot fail. */
static mha_status prepare_call(mha_context *ctx, const struct mha_inputs *inputs,
                               const struct mha_options *options, const struct mha_outputs *outputs,
                               struct call *c)
{
    mha_status status = MHA_OK;
    int64_t bytes = 0;
    TRY(plan_call(ctx, inputs, options, outputs, MHA_PLAN_CALL, c, &bytes));
    TRY(mha_context_grow(ctx, bytes));
    lay_out(ctx, c, &(struct mha_arena){ .base = ctx->scratch });
    TRY(mha_attend_prepare(ctx, &c->plan, &c->attend));
    if (c->layer && c->layer->packed)
        TRY(mha_context_prepare_threads(ctx, c->project.lanes));
done:
    return status;
}

/* ---- doors ------------------------------------------------------------------------------------ */

mha_status mha_attention(mha_context *ctx, const struct mha_inputs *inputs,
                         const struct mha_options *options, const struct mha_outputs *outputs)
{
    if (!ctx)
        return MHA_ERROR_ARGUMENT;
    mha_status status = mha_context_enter(ctx, "mha_attention");
    if (status != MHA_OK)
        return status;
    struct call c = { 0 };
    TRY(prepare_call(ctx, inputs, options, outputs, &c));
    mha_attend(ctx, &c.plan, &c.attend);
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
    struct call c = { 0 };
    REQUIRE(ctx, bytes, MHA_ERROR_ARGUMENT, "bytes is NULL");
    TRY(plan_call(ctx, inputs, options, outputs, MHA_PLAN_QUERY, &c, bytes));
done:
    return mha_context_leave(ctx, status);
}

mha_status mha_forward(mha_context *ctx, const mha_layer *layer, const struct mha_inputs *inputs,
                       const struct mha_options *options, const struct mha_outputs *outputs)
{
    if (!ctx)
        return MHA_ERROR_ARGUMENT;
    mha_status status = mha_context_enter(ctx, "mha_forward");
    if (status != MHA_OK)
        return status;
    struct call c = { .layer = layer };
    REQUIRE(ctx, layer, MHA_ERROR_ARGUMENT, "layer is NULL");
    TRY(prepare_call(ctx, inputs, options, outputs, &c));
    project(ctx, &c, c.in, c.n_in);
    mha_attend(ctx, &c.plan, &c.attend);
    project(ctx, &c, &c.out, c.n_out);
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
    struct call c = { .layer = layer };
    REQUIRE(ctx, layer, MHA_ERROR_ARGUMENT, "layer is NULL");
    REQUIRE(ctx, bytes, MHA_ERROR_ARGUMENT, "bytes is NULL");
    TRY(plan_call(ctx, inputs, options, outputs, MHA_PLAN_QUERY, &c, bytes));
done:
    return mha_context_leave(ctx, status);
}
