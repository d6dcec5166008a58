/*
 * Packed projections: y = x W^T + b (+ residual), by rule: one chain of fused multiply-adds over k, then
 * the bias, then the residual. Weights lie in panels of sixteen outputs, [ceil(N/16)][K][16], so that a
 * panel is read straight through; rows of x are the broadcast operands. A deep product runs in several
 * blocks of k, whose sums wait in `partial` as they are.
 */

/* Offset in a row of y or the residual of output n. */
static inline int64_t output_at(const struct mha_project_tile *t, int64_t n, int64_t head_stride)
{
    return n / t->width * head_stride + n % t->width;
}

/* Sixteen finished sums of a row, outputs n and on, to where they belong. */
VEC_INLINE void finish_outputs(const struct mha_project_tile *t, int64_t row, int64_t n, vf sum)
{
    const float *residual = t->residual ? t->residual[row] : NULL;
    if (n + LANES <= t->n_end && n % t->width + LANES <= t->width) {
        if (t->b)
            sum = vf_add(sum, vf_load(t->b + n));
        if (residual)
            sum = vf_add(sum, vf_load(residual + output_at(t, n, t->residual_head)));
        vf_store(t->y[row] + output_at(t, n, t->y_head), sum);
        return;
    }
    float value[LANES];
    vf_store(value, sum);
    for (int i = 0; i < LANES && n + i < t->n_end; i++) {
        if (t->b)
            value[i] = value[i] + t->b[n + i];
        if (residual)
            value[i] = value[i] + residual[output_at(t, n + i, t->residual_head)];
        t->y[row][output_at(t, n + i, t->y_head)] = value[i];
    }
}

/* Some rows against some panels: one register tile from its first product to its end. */
VEC_INLINE void project_rows(const struct mha_project_tile *t, int64_t row, int64_t panel,
                             const int rows, const int columns)
{
    vf acc[MOST_ROWS][MOST_COLUMNS];
    float *partial = t->partial + row * t->partial_stride + panel * LANES;
    clear(acc);
    if (!t->first) {
        UNROLL
        for (int r = 0; r < rows; r++)
            UNROLL
            for (int c = 0; c < columns; c++)
                acc[r][c] = vf_load(partial + r * t->partial_stride + c * LANES);
    }
    multiply(acc, t->x + row * t->x_stride, t->x_stride, 1, t->panels + panel * t->panel_stride,
             LANES, t->panel_stride, t->depth, rows, columns);
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
        for (int c = 0; c < columns; c++) {
            if (t->last)
                finish_outputs(t, row + r, t->n_begin + (panel + c) * LANES, acc[r][c]);
            else
                vf_store(partial + r * t->partial_stride + c * LANES, acc[r][c]);
        }
}

VEC_INLINE void project_columns(const struct mha_project_tile *t, int64_t panel, const int columns)
{
    for (int64_t row = 0, n; row < t->rows; row += n) {
        n = take_rows(t->rows - row, VEC_ROWS);
#define DO(rows) project_rows(t, row, panel, rows, columns)
        WITH_LITERAL(n, VEC_ROWS, DO)
#undef DO
    }
}

static void project_f32(const struct mha_project_tile *t)
{
    int64_t panels = ceil_div(t->n_end - t->n_begin, LANES);
    for (int64_t panel = 0, n; panel < panels; panel += n) {
        n = panels - panel < VEC_COLUMNS ? panels - panel : VEC_COLUMNS;
#define DO(columns) project_columns(t, panel, columns)
        WITH_LITERAL(n, VEC_COLUMNS, DO)
#undef DO
    }
}
