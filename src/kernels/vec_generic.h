/*
 * The vocabulary in portable C (GCC's and Clang's vector extension): sixteen floats in whatever
 * registers the baseline has. This page is also its dictionary; the other vec_*.h say the same words.
 *
 *   vf                    sixteen floats              vm              sixteen truth values
 *   vf_set1(x)            x in every lane             vm_lt(a, b)     a < b, false with a NaN
 *   vf_load(p)            sixteen floats at p         vm_ne(a, b)     a != b, true with a NaN
 *   vf_store(p, x)        ... and back                vm_or(m, n)     either
 *   vf_add sub mul div    lane by lane                vm_any(m)       is any lane true?
 *   vf_max(a, b)          the larger; if one is NaN, either
 *   vf_abs(x)             without the sign            vf_sign(a, b)   |a| with the sign of b
 *   vf_fma(a, b, c)       a * b + c, rounded once (here twice: the generic level has bits of its own)
 *   vf_round(x)           nearest integer, ties to even, for |x| < 2^22
 *   vf_pow2(n)            2^n for an integer -126 <= n <= 127; any number for any other n
 *   vf_split(x, &e)       x = m * 2^e for a positive normal x: returns m in [0.5, 1)
 *   vf_select(m, a, b)    m ? a : b
 *   vf_keep(x)            x, in a register: keeps the compiler from reading memory again at each use
 *
 * VEC_ROWS x VEC_COLUMNS is the largest register tile of products: that many broadcast rows times
 * that many vectors stay in registers with their operands.
 */
#ifndef MHA_VEC_GENERIC_H
#define MHA_VEC_GENERIC_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define VEC_ROWS 2
#define VEC_COLUMNS 1

#define VEC_INLINE static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(64)));
typedef int32_t vm __attribute__((vector_size(64)));

VEC_INLINE vf vf_set1(float x)
{
    return (vf){ x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x };
}

VEC_INLINE vf vf_load(const float *p)
{
    vf x;
    memcpy(&x, p, sizeof x);
    return x;
}

VEC_INLINE void vf_store(float *p, vf x)
{
    memcpy(p, &x, sizeof x);
}

VEC_INLINE vf vf_add(vf a, vf b)
{
    return a + b;
}

VEC_INLINE vf vf_sub(vf a, vf b)
{
    return a - b;
}

VEC_INLINE vf vf_mul(vf a, vf b)
{
    return a * b;
}

VEC_INLINE vf vf_div(vf a, vf b)
{
    return a / b;
}

VEC_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return a * b + c;
}

VEC_INLINE vf vf_select(vm m, vf a, vf b)
{
    return (vf)(((vm)a & m) | ((vm)b & ~m));
}

VEC_INLINE vm vm_lt(vf a, vf b)
{
    return a < b;
}

VEC_INLINE vm vm_ne(vf a, vf b)
{
    return a != b;
}

VEC_INLINE vm vm_or(vm m, vm n)
{
    return m | n;
}

VEC_INLINE bool vm_any(vm m)
{
    int32_t any = 0;
    for (int i = 0; i < 16; i++)
        any |= m[i];
    return any != 0;
}

VEC_INLINE vf vf_max(vf a, vf b)
{
    return vf_select(a > b, a, b);
}

VEC_INLINE vf vf_abs(vf x)
{
    return (vf)((vm)x & 0x7fffffff);
}

VEC_INLINE vf vf_sign(vf a, vf b)
{
    return (vf)(((vm)a & 0x7fffffff) | ((vm)b & ~0x7fffffff));
}

/* 1.5 * 2^23: a float of this size has no fraction, so adding it rounds. */
VEC_INLINE vf vf_round(vf x)
{
    return x + 12582912.0f - 12582912.0f;
}

/* The sum's low mantissa bits are n + 127, the biased exponent of 2^n. */
VEC_INLINE vf vf_pow2(vf n)
{
    return (vf)((vm)(n + 12583039.0f) << 23);
}

VEC_INLINE vf vf_split(vf x, vf *e)
{
    *e = __builtin_convertvector(((vm)x >> 23) - 126, vf);
    return (vf)(((vm)x & 0x007fffff) | 0x3f000000);
}

VEC_INLINE vf vf_keep(vf x)
{
    return x;
}

#endif
