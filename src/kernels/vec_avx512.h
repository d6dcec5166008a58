/* The vocabulary of vec_generic.h on AVX-512 (F, DQ, BW, VL): sixteen floats are one zmm register. */
#ifndef MHA_VEC_AVX512_H
#define MHA_VEC_AVX512_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#define VEC_ROWS 8
#define VEC_COLUMNS 3
#define VEC_FEW_ROWS 6
#define VEC_FEW_COLUMNS 4
#define VEC_CHAINS 4

#define VEC_INLINE static inline __attribute__((always_inline))

typedef __m512 vf;
typedef __mmask16 vm;

VEC_INLINE vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}

VEC_INLINE vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

VEC_INLINE void vf_store(float *p, vf x)
{
    _mm512_storeu_ps(p, x);
}

VEC_INLINE vm first_lanes(int n)
{
    return (vm)((1u << n) - 1);
}

VEC_INLINE vf vf_load_first(const float *p, int n)
{
    return _mm512_maskz_loadu_ps(first_lanes(n), p);
}

VEC_INLINE void vf_store_first(float *p, vf x, int n)
{
    _mm512_mask_storeu_ps(p, first_lanes(n), x);
}

VEC_INLINE vf vf_add(vf x, vf y)
{
    return _mm512_add_ps(x, y);
}

VEC_INLINE vf vf_sub(vf x, vf y)
{
    return _mm512_sub_ps(x, y);
}

VEC_INLINE vf vf_mul(vf x, vf y)
{
    return _mm512_mul_ps(x, y);
}

VEC_INLINE vf vf_div(vf x, vf y)
{
    return _mm512_div_ps(x, y);
}

VEC_INLINE vf vf_fma(vf x, vf y, vf z)
{
    return _mm512_fmadd_ps(x, y, z);
}

VEC_INLINE vf vf_max(vf x, vf y)
{
    return _mm512_max_ps(x, y);
}

VEC_INLINE vf vf_select(vm m, vf x, vf y)
{
    return _mm512_mask_blend_ps(m, y, x);
}

VEC_INLINE vf vf_zero_if(vm m, vf x)
{
    return _mm512_maskz_mov_ps((vm)~m, x);
}

VEC_INLINE vm vm_lt(vf x, vf y)
{
    return _mm512_cmp_ps_mask(x, y, _CMP_LT_OQ);
}

VEC_INLINE vm vm_ne(vf x, vf y)
{
    return _mm512_cmp_ps_mask(x, y, _CMP_NEQ_UQ);
}

VEC_INLINE vm vm_or(vm m, vm n)
{
    return (vm)(m | n);
}

VEC_INLINE bool vm_any(vm m)
{
    return m != 0;
}

VEC_INLINE vf vf_abs(vf x)
{
    return _mm512_abs_ps(x);
}

VEC_INLINE vf vf_sign(vf x, vf y)
{
    __m512 sign = _mm512_set1_ps(-0.0f);
    return _mm512_or_ps(vf_abs(x), _mm512_and_ps(sign, y));
}

VEC_INLINE vf vf_round(vf x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

VEC_INLINE vf vf_scale2(vf x, vf n)
{
    return _mm512_scalef_ps(x, n);
}

VEC_INLINE vf vf_split(vf x, vf *e)
{
    *e = _mm512_add_ps(_mm512_getexp_ps(x), _mm512_set1_ps(1.0f));
    return _mm512_getmant_ps(x, _MM_MANT_NORM_p5_1, _MM_MANT_SIGN_src);
}

VEC_INLINE float vf_top(vf x)
{
    __m256 half = _mm256_max_ps(_mm512_extractf32x8_ps(x, 1), _mm512_castps512_ps256(x));
    __m128 y = _mm_max_ps(_mm256_extractf128_ps(half, 1), _mm256_castps256_ps128(half));
    y = _mm_max_ps(_mm_movehl_ps(y, y), y);
    return _mm_cvtss_f32(_mm_max_ss(_mm_movehdup_ps(y), y));
}

VEC_INLINE float vf_sum(vf x)
{
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

/* Pairs, then quads of rows are interleaved within 128-bit parts, then the parts change places. */
VEC_INLINE void vf_transpose(vf x[16])
{
    vf t[16], u[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        u[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        vf a = _mm512_shuffle_f32x4(u[i], u[i + 4], 0x88);
        vf b = _mm512_shuffle_f32x4(u[i], u[i + 4], 0xdd);
        vf c = _mm512_shuffle_f32x4(u[i + 8], u[i + 12], 0x88);
        vf d = _mm512_shuffle_f32x4(u[i + 8], u[i + 12], 0xdd);
        x[i] = _mm512_shuffle_f32x4(a, c, 0x88);
        x[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
        x[i + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
        x[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
}

VEC_INLINE vf vf_keep(vf x)
{
    __asm__("" : "+v"(x));
    return x;
}

#endif
