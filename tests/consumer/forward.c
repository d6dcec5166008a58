/* Two equal queries see two rows with equal weights: out is their mean, doubled by W_O, and the
 * residual is added. Written so that C++11 compiles it too. */
#include <mha.h>
#include <stdio.h>

int main(void)
{
    const float x[4] = { 1, 2, 3, 4 }, zero[4] = { 0, 0, 0, 0 };
    const float one[4] = { 1, 0, 0, 1 }, two[4] = { 2, 0, 0, 2 }, want[4] = { 5, 8, 7, 10 };
    float y[4];
    struct mha_tensor t0 = mha_tensor_2d_const(zero, MHA_FLOAT32, 2, 2);
    struct mha_tensor t1 = mha_tensor_2d_const(one, MHA_FLOAT32, 2, 2);
    struct mha_tensor t2 = mha_tensor_2d_const(two, MHA_FLOAT32, 2, 2);
    struct mha_tensor tx = mha_tensor_3d_const(x, MHA_FLOAT32, 1, 2, 2);
    struct mha_tensor ty = mha_tensor_3d(y, MHA_FLOAT32, 1, 2, 2);

    static struct mha_layer_shape shape;
    static struct mha_weights weights;
    struct mha_inputs inputs = { 0, &tx, NULL, NULL, &tx, NULL, NULL, NULL, NULL };
    struct mha_outputs outputs = { 0, &ty, NULL, NULL, NULL };
    shape.E = 2;
    shape.H = 1;
    weights.w_q = weights.w_k = &t0;
    weights.w_v = &t1;
    weights.w_o = &t2;

    mha_context *ctx = NULL;
    mha_layer *layer = NULL;
    if (mha_context_create(NULL, &ctx) || mha_layer_create(ctx, &shape, &weights, MHA_COPY, &layer)
        || mha_forward(ctx, layer, &inputs, NULL, &outputs)) {
        fprintf(stderr, "%s\n", mha_context_message(ctx));
        return 1;
    }
    mha_layer_free(layer);
    mha_context_free(ctx);
    for (int i = 0; i < 4; i++)
        if (y[i] != want[i]) {
            fprintf(stderr, "y[%d] is %g, wanted %g\n", i, (double)y[i], (double)want[i]);
            return 1;
        }
    printf("libmha %s works\n", mha_version());
    return 0;
}
