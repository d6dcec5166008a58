/* The vocabulary of vec_generic.h on AVX2 and FMA: sixteen floats are two ymm registers. */
#ifndef MHA_VEC_AVX2_H
#define MHA_VEC_AVX2_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#define VEC_ROWS 6
#define VEC_COLUMNS 1
#define VEC_FEW_ROWS 2
#define VEC_FEW_COLUMNS 2
#define VEC_CHAINS 1

#define VEC_INLINE static inline __attribute__((always_inline))

struct vf {
    __m256 a, b;
};
typedef struct vf vf;
typedef struct vf vm; /* all ones or all zeros in each lane */

VEC_INLINE vf vf_set1(float x)
{
    __m256 lanes = _mm256_set1_ps(x);
    return (vf){ lanes, lanes };
}

VEC_INLINE vf vf_load(const float *p)
{
    return (vf){ _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8) };
}

VEC_INLINE void vf_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}

VEC_INLINE __m256i first_lanes(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

VEC_INLINE vf vf_load_first(const float *p, int n)
{
    return (vf){ _mm256_maskload_ps(p, first_lanes(n)),
                 _mm256_maskload_ps(p + 8, first_lanes(n - 8)) };
}

VEC_INLINE void vf_store_first(float *p, vf x, int n)
{
    _mm256_maskstore_ps(p, first_lanes(n), x.a);
    _mm256_maskstore_ps(p + 8, first_lanes(n - 8), x.b);
}

VEC_INLINE vf vf_add(vf x, vf y)
{
    return (vf){ _mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b) };
}

VEC_INLINE vf vf_sub(vf x, vf y)
{
    return (vf){ _mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b) };
}

VEC_INLINE vf vf_mul(vf x, vf y)
{
    return (vf){ _mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b) };
}

VEC_INLINE vf vf_div(vf x, vf y)
{
    return (vf){ _mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b) };
}

VEC_INLINE vf vf_fma(vf x, vf y, vf z)
{
    return (vf){ _mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b) };
}

VEC_INLINE vf vf_max(vf x, vf y)
{
    return (vf){ _mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b) };
}

VEC_INLINE vf vf_select(vm m, vf x, vf y)
{
    return (vf){ _mm256_blendv_ps(y.a, x.a, m.a), _mm256_blendv_ps(y.b, x.b, m.b) };
}

VEC_INLINE vf vf_zero_if(vm m, vf x)
{
    return (vf){ _mm256_andnot_ps(m.a, x.a), _mm256_andnot_ps(m.b, x.b) };
}

VEC_INLINE vm vm_lt(vf x, vf y)
{
    return (vm){ _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ) };
}

VEC_INLINE vm vm_ne(vf x, vf y)
{
    return (vm){ _mm256_cmp_ps(x.a, y.a, _CMP_NEQ_UQ), _mm256_cmp_ps(x.b, y.b, _CMP_NEQ_UQ) };
}

VEC_INLINE vm vm_or(vm m, vm n)
{
    return (vm){ _mm256_or_ps(m.a, n.a), _mm256_or_ps(m.b, n.b) };
}

VEC_INLINE bool vm_any(vm m)
{
    return _mm256_movemask_ps(_mm256_or_ps(m.a, m.b)) != 0;
}

VEC_INLINE vf vf_abs(vf x)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (vf){ _mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b) };
}

VEC_INLINE vf vf_sign(vf x, vf y)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    vf size = vf_abs(x);
    return (vf){ _mm256_or_ps(size.a, _mm256_and_ps(sign, y.a)),
                 _mm256_or_ps(size.b, _mm256_and_ps(sign, y.b)) };
}

VEC_INLINE vf vf_round(vf x)
{
    enum { NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };
    return (vf){ _mm256_round_ps(x.a, NEAREST), _mm256_round_ps(x.b, NEAREST) };
}

/* The sum's low mantissa bits are n + 127, the biased exponent of 2^n. */
VEC_INLINE vf vf_scale2(vf x, vf n)
{
    vf sum = vf_add(n, vf_set1(12583039.0f));
    vf power = { _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(sum.a), 23)),
                 _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(sum.b), 23)) };
    return vf_mul(x, power);
}

VEC_INLINE __m256 split_half(__m256 x, __m256 *e)
{
    __m256i bits = _mm256_castps_si256(x);
    *e = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(bits, 23), _mm256_set1_epi32(126)));
    return _mm256_castsi256_ps(_mm256_or_si256(
        _mm256_and_si256(bits, _mm256_set1_epi32(0x007fffff)), _mm256_set1_epi32(0x3f000000)));
}

VEC_INLINE vf vf_split(vf x, vf *e)
{
    return (vf){ split_half(x.a, &e->a), split_half(x.b, &e->b) };
}

VEC_INLINE float vf_top(vf x)
{
    __m256 half = _mm256_max_ps(x.b, x.a);
    __m128 y = _mm_max_ps(_mm256_extractf128_ps(half, 1), _mm256_castps256_ps128(half));
    y = _mm_max_ps(_mm_movehl_ps(y, y), y);
    return _mm_cvtss_f32(_mm_max_ss(_mm_movehdup_ps(y), y));
}

VEC_INLINE float vf_sum(vf x)
{
    __m256 half = _mm256_add_ps(x.a, x.b);
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

/* Eight rows of eight: pairs, then quads of rows are interleaved, then the 128-bit parts swapped. */
VEC_INLINE void transpose_half(__m256 x[8])
{
    __m256 t[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        __m256 a = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        __m256 b = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        __m256 c = _mm256_shuffle_ps(t[i + 4], t[i + 6], 0x44);
        __m256 d = _mm256_shuffle_ps(t[i + 4], t[i + 6], 0xee);
        x[2 * i] = _mm256_permute2f128_ps(a, c, 0x20);
        x[2 * i + 1] = _mm256_permute2f128_ps(b, d, 0x20);
        x[2 * i + 4] = _mm256_permute2f128_ps(a, c, 0x31);
        x[2 * i + 5] = _mm256_permute2f128_ps(b, d, 0x31);
    }
}

VEC_INLINE void vf_transpose(vf x[16])
{
    __m256 corner[4][8]; /* upper left, upper right, lower left, lower right */
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        corner[0][i] = x[i].a;
        corner[1][i] = x[i].b;
        corner[2][i] = x[i + 8].a;
        corner[3][i] = x[i + 8].b;
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        transpose_half(corner[i]);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        x[i] = (vf){ corner[0][i], corner[2][i] };
        x[i + 8] = (vf){ corner[1][i], corner[3][i] };
    }
}

VEC_INLINE vf vf_keep(vf x)
{
    __asm__("" : "+x"(x.a), "+x"(x.b));
    return x;
}

#endif
