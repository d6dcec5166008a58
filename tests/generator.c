#include "generator.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support.h"

#define PICK(array) ((array)[random_below(COUNT(array))])

/* Multiply-adds a case may cost, so that thousands of cases take seconds. */
static const int64_t WORK_LIMIT = 3000000;

static bool chance(int64_t percent)
{
    return random_below(100) < percent;
}

__attribute__((format(printf, 2, 3))) static void note(struct generated_case *c, const char *format,
                                                       ...)
{
    size_t used = strlen(c->text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(c->text + used, sizeof c->text - used, format, arguments);
    va_end(arguments);
}

/* ------------------------------------------------------------------------------------------------
 * Memory and layouts
 * --------------------------------------------------------------------------------------------- */

static void *new_block(struct generated_case *c, int64_t bytes)
{
    if (c->block_count == COUNT(c->blocks))
        fail_msg("a generated case has too many blocks");
    return c->blocks[c->block_count++] = guarded(bytes);
}

static float *new_floats(struct generated_case *c, int64_t n)
{
    float *data = new_block(c, n * (int64_t)sizeof *data);
    for (int64_t i = 0; i < n; i++)
        data[i] = NAN;
    return data;
}

/* [n[0], n[1], n[2], n[3]] in memory with the first three axes in any order and now and then a gap
 * between rows; the last element is the last before the unreadable page. */
static struct mha_tensor any_layout(struct generated_case *c, int64_t n0, int64_t n1, int64_t n2,
                                    int64_t n3)
{
    static const int orders[][3] = {
        { 0, 1, 2 }, { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 }, { 2, 0, 1 }
    };
    struct mha_tensor t = mha_tensor_4d_const(NULL, MHA_FLOAT32, n0, n1, n2, n3);
    const int *order = PICK(orders);
    int64_t gap = chance(25) ? 1 + random_below(7) : 0;
    int64_t count = n3 + gap;
    for (int axis = 2; axis >= 0; axis--) {
        t.strides[order[axis]] = count;
        count *= t.shape[order[axis]];
    }
    t.data = new_floats(c, count > gap ? count - gap : 0);
    return t;
}

/* Columns first..first+heads*width-1 of rows [B, rows, total], as [B, rows, heads, width]. */
static struct mha_tensor columns(float *data, int64_t B, int64_t rows, int64_t total, int64_t first,
                                 int64_t heads, int64_t head_stride, int64_t width)
{
    struct mha_tensor t = mha_tensor_4d_const(NULL, MHA_FLOAT32, B, rows, heads, width);
    t.data = B * rows > 0 ? data + first : data;
    t.strides[0] = rows * total;
    t.strides[1] = total;
    t.strides[2] = head_stride;
    return t;
}

static float *element(const struct mha_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3)
{
    return (float *)t->data + i0 * t->strides[0] + i1 * t->strides[1] + i2 * t->strides[2]
           + i3 * t->strides[3];
}

/* ------------------------------------------------------------------------------------------------
 * Sizes
 * --------------------------------------------------------------------------------------------- */

enum form { SEPARATE, SELF, PACKED_QKV, PACKED_KV };

static int64_t any_key_count(void)
{
    static const int64_t block_edges[] = { 63, 64, 65, 127, 128, 129, 191, 192, 193 };
    static const int64_t split_edges[] = { 511,  512,  513,  575,  576, 577,
                                           1023, 1024, 1025, 1087, 1100 };
    if (chance(1))
        return 0;
    if (chance(10))
        return PICK(block_edges);
    return chance(5) ? PICK(split_edges) : 1 + random_below(149);
}

static int64_t any_row_count(void)
{
    static const int64_t edges[] = { 1, 1, 1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 50, 59 };
    if (chance(1))
        return 0;
    return chance(40) ? PICK(edges) : 1 + random_below(59);
}

static int64_t any_width(void)
{
    static const int64_t usual[] = { 1, 2, 8, 16, 32, 64, 80 };
    if (chance(3))
        return 129 + random_below(72);
    return chance(30) ? PICK(usual) : 1 + random_below(80);
}

static enum form any_sizes(struct generated_case *c)
{
    static const enum form forms[] = { SEPARATE, SEPARATE, SEPARATE,   SEPARATE,
                                       SEPARATE, SELF,     PACKED_QKV, PACKED_KV };
    enum form form = PICK(forms);
    c->B = chance(1) ? 0 : 1 + random_below(3);
    c->G = 1 + random_below(3);
    c->H = form == SELF ? c->G : c->G * (1 + random_below(3));
    c->S = any_key_count();
    c->L = any_row_count();
    c->D = any_width();
    c->Dv = form == SELF || chance(50) ? c->D : any_width();
    if (form == SELF || form == PACKED_QKV) {
        if (c->S > 200 || chance(50))
            c->S = c->L;
        c->L = c->S;
    }
    bool tied = c->L == c->S;
    while (c->B * c->H * c->L * c->S * (c->D + c->Dv) > WORK_LIMIT) {
        if (c->B > 1)
            c->B--;
        else if (c->H > c->G)
            c->H -= c->G;
        else if (c->L > 1 && !tied)
            c->L = (c->L + 1) / 2;
        else if (c->D > 3 || c->Dv > 3)
            c->Dv = c->D = 3;
        else
            break;
    }
    static const char *const names[] = { "separate", "self", "qkv", "kv" };
    note(c,
         "B %" PRId64 " L %" PRId64 " S %" PRId64 " H %" PRId64 " G %" PRId64 " D %" PRId64
         " Dv %" PRId64 " %s",
         c->B, c->L, c->S, c->H, c->G, c->D, c->Dv, names[form]);
    return form;
}

/* One to thirteen rows of all heads that share keys, and more than one split of keys. */
static enum form few_rows(struct generated_case *c)
{
    static const int64_t split_edges[] = { 513,  514,  576,  577,  1023, 1024,
                                           1025, 1088, 1535, 1536, 1537, 2049 };
    static const int64_t widths[] = { 1, 3, 8, 16, 17, 32, 64 };
    c->B = 1 + random_below(2);
    c->G = 1 + random_below(3);
    c->H = c->G * (1 + random_below(4));
    c->L = 1 + random_below(13);
    c->S = chance(50) ? PICK(split_edges) : 513 + random_below(1600);
    c->D = PICK(widths);
    c->Dv = chance(50) ? c->D : PICK(widths);
    note(c,
         "B %" PRId64 " L %" PRId64 " S %" PRId64 " H %" PRId64 " G %" PRId64 " D %" PRId64
         " Dv %" PRId64,
         c->B, c->L, c->S, c->H, c->G, c->D, c->Dv);
    return chance(25) ? PACKED_KV : SEPARATE;
}

/* ------------------------------------------------------------------------------------------------
 * Values
 * --------------------------------------------------------------------------------------------- */

/* Eighths make ties, exact scores and exact zeros. */
enum pattern { ORDINARY, EIGHTHS };

static void fill(const struct mha_tensor *t, enum pattern pattern, float amplitude)
{
    for (int64_t i0 = 0; i0 < t->shape[0]; i0++)
        for (int64_t i1 = 0; i1 < t->shape[1]; i1++)
            for (int64_t i2 = 0; i2 < t->shape[2]; i2++)
                for (int64_t i3 = 0; i3 < t->shape[3]; i3++) {
                    float value = pattern == EIGHTHS ? (float)(random_below(17) - 8) / 8
                                                     : random_float();
                    *element(t, i0, i1, i2, i3) = value * amplitude;
                }
}

static void make_operands(struct generated_case *c, enum form form)
{
    struct mha_tensor *q = &c->query, *k = &c->key, *v = &c->value;
    int64_t B = c->B, L = c->L, S = c->S, H = c->H, G = c->G, D = c->D, Dv = c->Dv;
    *k = *v = (struct mha_tensor){ 0 };
    if (form == PACKED_QKV) {
        int64_t total = H * D + G * D + G * Dv;
        float *data = new_floats(c, B * L * total);
        *q = columns(data, B, L, total, 0, H, D, D);
        *k = columns(data, B, L, total, H * D, G, D, D);
        *v = columns(data, B, L, total, (H + G) * D, G, Dv, Dv);
    } else {
        *q = any_layout(c, B, L, H, D);
    }
    if (form == PACKED_KV) {
        int64_t pair = D + Dv;
        float *data = new_floats(c, B * S * G * pair);
        *k = columns(data, B, S, G * pair, 0, G, pair, D);
        *v = columns(data, B, S, G * pair, D, G, pair, Dv);
    } else if (form == SEPARATE) {
        bool shared = B > 0 && chance(5); /* one sample's keys for the whole batch */
        *k = any_layout(c, shared ? 1 : B, S, G, D);
        *v = any_layout(c, shared ? 1 : B, S, G, Dv);
        k->shape[0] = v->shape[0] = B;
        if (shared)
            k->strides[0] = v->strides[0] = 0;
    }
    c->inputs.query = q;
    if (form != SELF) {
        c->inputs.key = k;
        c->inputs.value = v;
    }
}

static void fill_operands(struct generated_case *c)
{
    static const float score_amplitudes[] = { 1, 1, 1, 1, 1, 1, 1, 4, 30, 1000, 10000 };
    static const float value_amplitudes[] = { 1, 1, 1, 1, 1, 1, 1e30f, 0x1p-120f, 0x1p-146f };
    enum pattern pattern = chance(25) ? EIGHTHS : ORDINARY;
    float query = PICK(score_amplitudes);
    float key = chance(10) ? 0x1p-20f : 1;
    float value = PICK(value_amplitudes);
    if (!c->inputs.key)
        query = key = value = chance(10) ? 30 : 1;
    fill(&c->query, pattern, query);
    if (c->inputs.key) {
        fill(&c->key, pattern, key);
        fill(&c->value, pattern, value);
    }
    if (chance(20)) {
        c->bias_k = any_layout(c, 1, 1, c->G, c->D);
        c->bias_v = any_layout(c, 1, 1, c->G, c->Dv);
        fill(&c->bias_k, pattern, key);
        fill(&c->bias_v, pattern, value);
        struct mha_tensor *pair[2] = { &c->bias_k, &c->bias_v };
        for (int i = 0; i < 2; i++) { /* [1, 1, G, n] to [G, n] */
            pair[i]->rank = 2;
            for (int axis = 0; axis < 2; axis++) {
                pair[i]->shape[axis] = pair[i]->shape[axis + 2];
                pair[i]->strides[axis] = pair[i]->strides[axis + 2];
            }
        }
        c->inputs.bias_k = &c->bias_k;
        c->inputs.bias_v = &c->bias_v;
        note(c, " bias_kv");
    }
    if (chance(25)) {
        c->residual = any_layout(c, c->B, c->L, c->H, c->Dv);
        fill(&c->residual, pattern, value);
        c->inputs.residual = &c->residual;
        note(c, " residual");
    }
    c->moderate = query * key <= 4;
    note(c, " qk %g v %g", (double)(query * key), (double)value);
}

/* ------------------------------------------------------------------------------------------------
 * Options
 * --------------------------------------------------------------------------------------------- */

static struct mha_tensor integers(struct generated_case *c, const int64_t *values)
{
    struct mha_tensor t;
    if (chance(50)) {
        int32_t *data = new_block(c, c->B * (int64_t)sizeof *data);
        for (int64_t b = 0; b < c->B; b++)
            data[b] = (int32_t)values[b];
        t = mha_tensor_1d_const(data, MHA_INT32, c->B);
    } else {
        int64_t *data = new_block(c, c->B * (int64_t)sizeof *data);
        for (int64_t b = 0; b < c->B; b++)
            data[b] = values[b];
        t = mha_tensor_1d_const(data, MHA_INT64, c->B);
    }
    return t;
}

int64_t integer_at(const struct mha_tensor *t, int64_t b)
{
    return t->type == MHA_INT32 ? ((const int32_t *)t->data)[b] : ((const int64_t *)t->data)[b];
}

static void make_lengths(struct generated_case *c)
{
    int64_t rows[3], keys[3];
    for (int64_t b = 0; b < c->B; b++) {
        rows[b] = chance(30) ? c->L : random_below(c->L + 1);
        keys[b] = chance(20) ? c->S : random_below(c->S + 1);
    }
    if (chance(25)) {
        c->query_lengths = integers(c, rows);
        c->inputs.query_lengths = &c->query_lengths;
        note(c, " rows");
        for (int64_t b = 0; b < c->B; b++)
            note(c, " %" PRId64, rows[b]);
    }
    if (chance(35)) {
        c->key_lengths = integers(c, keys);
        c->inputs.key_lengths = &c->key_lengths;
        note(c, " keys");
        for (int64_t b = 0; b < c->B; b++)
            note(c, " %" PRId64, keys[b]);
    }
}

static void make_positions(struct generated_case *c)
{
    struct mha_options *o = &c->options;
    o->causal = chance(35);
    o->align = (int32_t)random_below(3);
    if (o->align == MHA_ALIGN_OFFSETS) {
        int64_t values[3];
        for (int64_t b = 0; b < c->B; b++) {
            values[b] = random_below(2 * c->S + 1) - c->S / 2;
            note(c, "%s%" PRId64, b == 0 ? " offsets " : " ", values[b]);
        }
        c->offsets = integers(c, values);
        if (c->offsets.type == MHA_INT64 && c->B > 0 && chance(5)) {
            int64_t far = INT64_C(1) << 62;
            ((int64_t *)c->offsets.data)[0] = chance(50) ? far : -far;
            note(c, " (first far)");
        }
        o->offsets = &c->offsets;
    }
    if (chance(30)) {
        int64_t widths[] = { 0, 1, random_below(20), c->S / 2, c->S, INT64_MAX };
        o->window = (int32_t)(1 + random_below(3));
        o->window_left = PICK(widths);
        o->window_right = PICK(widths);
        note(c, " window %d: %" PRId64 " %" PRId64, (int)o->window, o->window_left,
             o->window_right);
    }
    note(c, " align %d%s", (int)o->align, o->causal ? " causal" : "");
}

static void make_scores(struct generated_case *c)
{
    static const float scales[] = { 0, 1, 0.125f, -0.5f, 0.7f };
    static const float caps[] = { 2, 0.5f, 30, 50, 1e-3f, 0x1p-126f, 0x1p126f };
    struct mha_options *o = &c->options;
    if (chance(30)) {
        o->scale_mode = MHA_SCALE_VALUE;
        o->scale = PICK(scales);
        note(c, " scale %g", (double)o->scale);
    } else {
        o->scale = NAN; /* not read */
    }
    if (chance(20)) {
        o->softcap_mode = MHA_SOFTCAP_TANH;
        o->softcap = PICK(caps);
        note(c, " softcap %g", (double)o->softcap);
    }
    o->zero_attention = chance(20);
    if (o->zero_attention)
        note(c, " zero");
    c->extra = (c->inputs.bias_k != NULL) + o->zero_attention;
}

/* A mask is drawn as what it removes: single elements, whole rows, and a range of keys. */
struct removal {
    int64_t keep_percent, empty_percent;
    float low; /* what an additive mask adds to some kept keys */
};

static void fill_mask(struct generated_case *c, const struct removal *removal)
{
    struct mha_tensor *m = &c->mask;
    int32_t kind = c->options.mask_kind;
    for (int64_t row = 0; row < m->shape[0] * m->shape[1] * m->shape[2]; row++) {
        int64_t b = row / (m->shape[1] * m->shape[2]);
        int64_t h = row / m->shape[2] % m->shape[1];
        int64_t i = row % m->shape[2];
        int64_t start = b * m->strides[0] + h * m->strides[1] + i * m->strides[2];
        bool empty = chance(removal->empty_percent);
        for (int64_t j = 0; j < m->shape[3]; j++) {
            bool keep = !empty && (j < c->hidden_from || j >= c->hidden_to)
                        && chance(removal->keep_percent);
            if (kind == MHA_MASK_ADDITIVE) {
                float bias = chance(10) ? removal->low : random_float() * 3;
                ((float *)m->data)[start + j] = keep ? bias : -INFINITY;
            } else {
                bool set = keep == (kind == MHA_MASK_KEEP);
                ((uint8_t *)m->data)[start + j] = set ? (uint8_t)(1 + random_below(255)) : 0;
            }
        }
    }
}

static void make_mask(struct generated_case *c)
{
    static const int64_t percents[] = { 100, 95, 80, 50, 5 };
    static const float lows[] = { 0, 0, -1e4f, -3.40282347e38f };
    struct mha_options *o = &c->options;
    int64_t n[4] = { c->B, c->H, c->L, c->S };
    o->mask_kind = (int32_t)(1 + random_below(3));
    for (int axis = 0; axis < 4; axis++)
        if (chance(axis == 3 ? 15 : 50))
            n[axis] = 1;
    if (n[3] > 1 && chance(40)) {
        c->hidden_from = random_below(n[3]);
        c->hidden_to = c->hidden_from + 1 + random_below(n[3] - c->hidden_from);
    }
    if (o->mask_kind == MHA_MASK_ADDITIVE) {
        c->mask = any_layout(c, n[0], n[1], n[2], n[3]);
    } else {
        int32_t type = chance(50) ? MHA_BOOL : MHA_UINT8;
        c->mask = mha_tensor_4d_const(NULL, type, n[0], n[1], n[2], n[3]);
        c->mask.data = new_block(c, n[0] * n[1] * n[2] * n[3]);
    }
    struct removal removal = { PICK(percents), chance(30) ? 15 : 0, PICK(lows) };
    if (o->softcap > 1e30f)
        removal.low = 0; /* the sum with -FLT_MAX would overflow in float32 alone */
    fill_mask(c, &removal);
    o->mask = &c->mask;
    c->moderate = c->moderate && removal.low == 0;
    note(c, " mask %d [%d %d %d %d] keep %d%% low %g without %" PRId64 "..%" PRId64,
         (int)o->mask_kind, (int)n[0], (int)n[1], (int)n[2], (int)n[3], (int)removal.keep_percent,
         (double)removal.low, c->hidden_from, c->hidden_to);
}

/* ------------------------------------------------------------------------------------------------
 * NaN and infinity
 * --------------------------------------------------------------------------------------------- */

static float poison(void)
{
    static const float poisons[] = { NAN, NAN, INFINITY, -INFINITY, 3e38f };
    return PICK(poisons);
}

static void poison_row(const struct mha_tensor *t, int64_t b, int64_t row)
{
    float value = poison();
    for (int64_t head = 0; head < t->shape[2]; head++)
        for (int64_t x = 0; x < t->shape[3]; x++)
            *element(t, b, row, head, x) = value;
}

/* Whether no row can see key j of sample b: beyond its length, in the range that the mask takes
 * away, or too far from every position. */
static bool key_is_hidden(const struct generated_case *c, int64_t b, int64_t j)
{
    const struct mha_options *o = &c->options;
    int64_t keys = c->inputs.key_lengths ? integer_at(&c->key_lengths, b) : c->S;
    int64_t rows = c->inputs.query_lengths ? integer_at(&c->query_lengths, b) : c->L;
    int64_t first = 0;
    if (o->align == MHA_ALIGN_BOTTOM_RIGHT)
        first = keys - rows;
    else if (o->align == MHA_ALIGN_OFFSETS)
        first = integer_at(&c->offsets, b);
    int64_t last = first + rows - 1;
    return j >= keys || (j >= c->hidden_from && j < c->hidden_to) || (o->causal && j > last)
           || ((o->window & MHA_WINDOW_RIGHT) && j - last > o->window_right)
           || ((o->window & MHA_WINDOW_LEFT) && first - j > o->window_left);
}

static void poison_hidden(struct generated_case *c)
{
    if (!c->inputs.key || (c->B > 1 && c->key.strides[0] == 0))
        return; /* the rows are also queries, or keys of other samples */
    note(c, " poison hidden");
    for (int64_t b = 0; b < c->B; b++) {
        for (int64_t j = 0; j < c->S; j++)
            if (key_is_hidden(c, b, j)) {
                poison_row(&c->key, b, j);
                poison_row(&c->value, b, j);
            }
        int64_t rows = c->inputs.query_lengths ? integer_at(&c->query_lengths, b) : c->L;
        for (int64_t i = rows; i < c->L; i++)
            poison_row(&c->query, b, i);
    }
}

/* One element that somebody may see. An infinite value needs probabilities that do not underflow:
 * 0 * inf is NaN in float32 where the oracle in double has a tiny weight times inf. */
static void poison_element(struct generated_case *c, const struct mha_tensor *t, const char *name)
{
    if (mha_tensor_count(t) <= 0)
        return;
    float value = poison();
    if (!isinf(value) || (t == &c->value && !c->moderate))
        value = NAN;
    int64_t index[4];
    for (int axis = 0; axis < 4; axis++)
        index[axis] = random_below(t->shape[axis]);
    *element(t, index[0], index[1], index[2], index[3]) = value;
    note(c, " %g in %s at %d %d %d %d", (double)value, name, (int)index[0], (int)index[1],
         (int)index[2], (int)index[3]);
}

static void make(struct generated_case *c, enum form (*sizes)(struct generated_case *c))
{
    static int64_t number;
    memset(c, 0, sizeof *c);
    note(c, "case %" PRId64 ": ", number++);
    enum form form = sizes(c);
    make_operands(c, form);
    fill_operands(c);
    make_lengths(c);
    make_positions(c);
    make_scores(c);
    if (chance(45))
        make_mask(c);
    if (chance(60))
        poison_hidden(c);
    if (chance(6))
        poison_element(c, &c->query, "query");
    if (c->inputs.key && chance(6))
        poison_element(c, &c->key, "key");
    if (c->inputs.key && chance(6))
        poison_element(c, &c->value, "value");
    note(c, "; ");
}

void generated_make(struct generated_case *c)
{
    make(c, any_sizes);
}

void generated_make_few_rows(struct generated_case *c)
{
    make(c, few_rows);
}

void generated_free(struct generated_case *c)
{
    for (int64_t i = 0; i < c->block_count; i++)
        guarded_free(c->blocks[i]);
    memset(c, 0, sizeof *c);
}
