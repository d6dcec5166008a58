/* The vocabulary of vec_generic.h on 64-bit Arm's Advanced SIMD: sixteen floats, four registers. */
#ifndef MHA_VEC_NEON_H
#define MHA_VEC_NEON_H

#include <arm_neon.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define VEC_ROWS 6
#define VEC_COLUMNS 1
#define VEC_FEW_ROWS 2
#define VEC_FEW_COLUMNS 2
#define VEC_CHAINS 2

#define VEC_INLINE static inline __attribute__((always_inline))

struct vf {
    float32x4_t a, b, c, d;
};
struct vm {
    uint32x4_t a, b, c, d; /* all ones or all zeros in each lane */
};
typedef struct vf vf;
typedef struct vm vm;

VEC_INLINE vf vf_set1(float x)
{
    float32x4_t lanes = vdupq_n_f32(x);
    return (vf){ lanes, lanes, lanes, lanes };
}

VEC_INLINE vf vf_load(const float *p)
{
    return (vf){ vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12) };
}

VEC_INLINE void vf_store(float *p, vf x)
{
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
    vst1q_f32(p + 8, x.c);
    vst1q_f32(p + 12, x.d);
}

VEC_INLINE vf vf_load_first(const float *p, int n)
{
    float lanes[16] = { 0 };
    memcpy(lanes, p, (size_t)n * sizeof *p);
    return vf_load(lanes);
}

VEC_INLINE void vf_store_first(float *p, vf x, int n)
{
    float lanes[16];
    vf_store(lanes, x);
    memcpy(p, lanes, (size_t)n * sizeof *p);
}

VEC_INLINE vf vf_add(vf x, vf y)
{
    return (vf){ vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b), vaddq_f32(x.c, y.c),
                 vaddq_f32(x.d, y.d) };
}

VEC_INLINE vf vf_sub(vf x, vf y)
{
    return (vf){ vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b), vsubq_f32(x.c, y.c),
                 vsubq_f32(x.d, y.d) };
}

VEC_INLINE vf vf_mul(vf x, vf y)
{
    return (vf){ vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b), vmulq_f32(x.c, y.c),
                 vmulq_f32(x.d, y.d) };
}

VEC_INLINE vf vf_div(vf x, vf y)
{
    return (vf){ vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b), vdivq_f32(x.c, y.c),
                 vdivq_f32(x.d, y.d) };
}

/* The addend comes first here. */
VEC_INLINE vf vf_fma(vf x, vf y, vf z)
{
    return (vf){ vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c),
                 vfmaq_f32(z.d, x.d, y.d) };
}

/* FMAXNM, not FMAX: of a NaN and a number it takes the number. */
VEC_INLINE vf vf_max(vf x, vf y)
{
    return (vf){ vmaxnmq_f32(x.a, y.a), vmaxnmq_f32(x.b, y.b), vmaxnmq_f32(x.c, y.c),
                 vmaxnmq_f32(x.d, y.d) };
}

VEC_INLINE vf vf_select(vm m, vf x, vf y)
{
    return (vf){ vbslq_f32(m.a, x.a, y.a), vbslq_f32(m.b, x.b, y.b), vbslq_f32(m.c, x.c, y.c),
                 vbslq_f32(m.d, x.d, y.d) };
}

VEC_INLINE float32x4_t quad_clear(uint32x4_t m, float32x4_t x)
{
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x), m));
}

VEC_INLINE vf vf_zero_if(vm m, vf x)
{
    return (vf){ quad_clear(m.a, x.a), quad_clear(m.b, x.b), quad_clear(m.c, x.c),
                 quad_clear(m.d, x.d) };
}

VEC_INLINE vm vm_lt(vf x, vf y)
{
    return (vm){ vcltq_f32(x.a, y.a), vcltq_f32(x.b, y.b), vcltq_f32(x.c, y.c),
                 vcltq_f32(x.d, y.d) };
}

VEC_INLINE vm vm_ne(vf x, vf y)
{
    return (vm){ vmvnq_u32(vceqq_f32(x.a, y.a)), vmvnq_u32(vceqq_f32(x.b, y.b)),
                 vmvnq_u32(vceqq_f32(x.c, y.c)), vmvnq_u32(vceqq_f32(x.d, y.d)) };
}

VEC_INLINE vm vm_or(vm m, vm n)
{
    return (vm){ vorrq_u32(m.a, n.a), vorrq_u32(m.b, n.b), vorrq_u32(m.c, n.c),
                 vorrq_u32(m.d, n.d) };
}

VEC_INLINE bool vm_any(vm m)
{
    return vmaxvq_u32(vorrq_u32(vorrq_u32(m.a, m.b), vorrq_u32(m.c, m.d))) != 0;
}

VEC_INLINE vf vf_abs(vf x)
{
    return (vf){ vabsq_f32(x.a), vabsq_f32(x.b), vabsq_f32(x.c), vabsq_f32(x.d) };
}

VEC_INLINE vf vf_sign(vf x, vf y)
{
    uint32x4_t sign = vdupq_n_u32(0x80000000u);
    return vf_select((vm){ sign, sign, sign, sign }, y, x);
}

VEC_INLINE vf vf_round(vf x)
{
    return (vf){ vrndnq_f32(x.a), vrndnq_f32(x.b), vrndnq_f32(x.c), vrndnq_f32(x.d) };
}

VEC_INLINE float32x4_t power_quad(float32x4_t sum)
{
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(sum), 23));
}

/* The sum's low mantissa bits are n + 127, the biased exponent of 2^n. */
VEC_INLINE vf vf_scale2(vf x, vf n)
{
    vf sum = vf_add(n, vf_set1(12583039.0f));
    return vf_mul(
        x, (vf){ power_quad(sum.a), power_quad(sum.b), power_quad(sum.c), power_quad(sum.d) });
}

VEC_INLINE float32x4_t split_quad(float32x4_t x, float32x4_t *e)
{
    uint32x4_t bits = vreinterpretq_u32_f32(x);
    int32x4_t exponent = vreinterpretq_s32_u32(vshrq_n_u32(bits, 23));
    *e = vcvtq_f32_s32(vsubq_s32(exponent, vdupq_n_s32(126)));
    return vreinterpretq_f32_u32(
        vorrq_u32(vandq_u32(bits, vdupq_n_u32(0x007fffff)), vdupq_n_u32(0x3f000000)));
}

VEC_INLINE vf vf_split(vf x, vf *e)
{
    return (vf){ split_quad(x.a, &e->a), split_quad(x.b, &e->b), split_quad(x.c, &e->c),
                 split_quad(x.d, &e->d) };
}

/* Four rows of four: pairs of lanes are interleaved, then pairs of pairs. */
VEC_INLINE void transpose_quads(float32x4_t x[4])
{
    float64x2_t t[4];
    t[0] = vreinterpretq_f64_f32(vtrn1q_f32(x[0], x[1]));
    t[1] = vreinterpretq_f64_f32(vtrn2q_f32(x[0], x[1]));
    t[2] = vreinterpretq_f64_f32(vtrn1q_f32(x[2], x[3]));
    t[3] = vreinterpretq_f64_f32(vtrn2q_f32(x[2], x[3]));
    x[0] = vreinterpretq_f32_f64(vtrn1q_f64(t[0], t[2]));
    x[1] = vreinterpretq_f32_f64(vtrn1q_f64(t[1], t[3]));
    x[2] = vreinterpretq_f32_f64(vtrn2q_f64(t[0], t[2]));
    x[3] = vreinterpretq_f32_f64(vtrn2q_f64(t[1], t[3]));
}

VEC_INLINE float vf_top(vf x)
{
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.a, x.c), vmaxq_f32(x.b, x.d)));
}

VEC_INLINE float vf_sum(vf x)
{
    float32x4_t y = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
    float32x2_t z = vadd_f32(vget_low_f32(y), vget_high_f32(y));
    return vget_lane_f32(z, 0) + vget_lane_f32(z, 1);
}

/* Sixteen squares of four by four, each transposed and put in the place of its mirror image. */
VEC_INLINE void vf_transpose(vf x[16])
{
    float32x4_t square[4][4][4]; /* row of squares, column of squares, row */
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        square[i / 4][0][i % 4] = x[i].a;
        square[i / 4][1][i % 4] = x[i].b;
        square[i / 4][2][i % 4] = x[i].c;
        square[i / 4][3][i % 4] = x[i].d;
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        transpose_quads(square[i / 4][i % 4]);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        x[i] = (vf){ square[0][i / 4][i % 4], square[1][i / 4][i % 4], square[2][i / 4][i % 4],
                     square[3][i / 4][i % 4] };
}

VEC_INLINE vf vf_keep(vf x)
{
    __asm__("" : "+w"(x.a), "+w"(x.b), "+w"(x.c), "+w"(x.d));
    return x;
}

#endif
