/* Products on register tiles: the one inner loop of everything here. A few broadcast rows times a few
 * vectors of sixteen stay in registers while the chain of multiply-adds runs. */

enum {
    LANES = 16,
    MOST_ROWS = 8, /* of a register tile, on any level */
    MOST_COLUMNS = 4
};

/*
 * acc[r][c] += sum over i < n of a[r * a_row + i * a_step] * b[i * b_step + c * b_column], ascending in
 * i, where b is read in vectors: one register tile. `rows` and `columns` are literals at each call.
 */
VEC_INLINE void multiply(vf acc[MOST_ROWS][MOST_COLUMNS], const float *a, int64_t a_row,
                         int64_t a_step, const float *b, int64_t b_step, int64_t b_column,
                         int64_t n, const int rows, const int columns)
{
    for (int64_t i = 0; i < n; i++) {
        vf bc[MOST_COLUMNS];
        UNROLL
        for (int c = 0; c < columns; c++)
            bc[c] = vf_keep(vf_load(b + i * b_step + c * b_column));
        UNROLL
        for (int r = 0; r < rows; r++) {
            vf ar = vf_set1(a[r * a_row + i * a_step]);
            UNROLL
            for (int c = 0; c < columns; c++)
                acc[r][c] = vf_fma(ar, bc[c], acc[r][c]);
        }
    }
}

VEC_INLINE void clear(vf acc[MOST_ROWS][MOST_COLUMNS])
{
    UNROLL
    for (int r = 0; r < MOST_ROWS; r++)
        UNROLL
        for (int c = 0; c < MOST_COLUMNS; c++)
            acc[r][c] = vf_set1(0.0f);
}

static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* n floats filled up to whole vectors. */
static inline int64_t whole_vectors(int64_t n)
{
    return ceil_div(n, LANES) * LANES;
}

/* How many of `rest` rows the next register tile takes, at most `most`: a remainder of seven is 4 + 3,
 * not 6 + 1. */
static inline int64_t take_rows(int64_t rest, const int64_t most)
{
    if (rest >= 2 * most || rest <= most)
        return rest < most ? rest : most;
    return (rest + 1) / 2;
}

/* Calls do(n) with n a literal, 1 <= n <= most; the cases above `most` vanish. */
#define WITH_LITERAL(n, most, do)                                                                  \
    switch (n) {                                                                                   \
    case 1: do(1); break;                                                                          \
    case 2: if ((most) >= 2) do(2); break;                                                         \
    case 3: if ((most) >= 3) do(3); break;                                                         \
    case 4: if ((most) >= 4) do(4); break;                                                         \
    case 5: if ((most) >= 5) do(5); break;                                                         \
    case 6: if ((most) >= 6) do(6); break;                                                         \
    case 7: if ((most) >= 7) do(7); break;                                                         \
    default: if ((most) >= 8) do(8); break;                                                        \
    }
