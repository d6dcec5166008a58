/*
 * The vocabulary in portable C (GCC's and Clang's vector extension): sixteen floats in whatever
 * registers the baseline has. This page is also its dictionary; the other vec_*.h say the same words.
 *
 *   vf                    sixteen floats              vm              sixteen truth values
 *   vf_set1(x)            x in every lane             vm_lt(a, b)     a < b, false with a NaN
 *   vf_load(p)            sixteen floats at p         vm_ne(a, b)     a != b, true with a NaN
 *   vf_store(p, x)        ... and back                vm_or(m, n)     either
 *   vf_load_first(p, n)   the n < 16 floats at p, then zeros; vf_store_first(p, x, n) stores n of them
 *   vf_add sub mul div    lane by lane                vm_any(m)       is any lane true?
 *   vf_max(a, b)          the larger; if one is NaN, either
 *   vf_abs(x)             without the sign            vf_sign(a, b)   |a| with the sign of b
 *   vf_fma(a, b, c)       a * b + c, rounded once (here twice: the generic level has bits of its own)
 *   vf_round(x)           nearest integer, ties to even, for |x| < 2^22
 *   vf_scale2(x, n)       x * 2^n for an integer -126 <= n <= 127; NaN for a NaN x, else any number for
 *                         any other n
 *   vf_split(x, &e)       x = m * 2^e for a positive normal x: returns m in [0.5, 1)
 *   vf_select(m, a, b)    m ? a : b
 *   vf_zero_if(m, x)      m ? +0 : x
 *   vf_top(x)             the largest lane; if one is NaN, any
 *   vf_sum(x)             the sum of the lanes by halves: x[i] + x[i + 8], of that [i] + [i + 4], ...
 *   vf_transpose(x[16])   x[i] lane j and x[j] lane i change places
 *   vf_keep(x)            x, in a register: keeps the compiler from reading memory again at each use
 *
 * VEC_ROWS x VEC_COLUMNS is the largest register tile of products: that many broadcast rows times
 * that many vectors stay in registers with their operands; VEC_FEW_ROWS x VEC_FEW_COLUMNS is that for a
 * few rows, with more vectors instead; VEC_FEW_COLUMNS is 1, 2 or 4. VEC_CHAINS, 1, 2 or 4, is how many vectors
 * an exponential takes side by side to hide how long each step takes.
 */
#ifndef MHA_VEC_GENERIC_H
#define MHA_VEC_GENERIC_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define VEC_ROWS 2
#define VEC_COLUMNS 1
#define VEC_FEW_ROWS 2
#define VEC_FEW_COLUMNS 1
#define VEC_CHAINS 1

#define VEC_INLINE static inline __attribute__((always_inline))

/* Four lanes, in one register of any 128-bit machine; a vf is four of them. */
typedef float quad __attribute__((vector_size(16)));
typedef int32_t quad_bits __attribute__((vector_size(16)));

struct vf {
    quad a, b, c, d;
};
struct vm {
    quad_bits a, b, c, d; /* all ones or all zeros in each lane */
};
typedef struct vf vf;
typedef struct vm vm;

VEC_INLINE quad quad_select(quad_bits m, quad x, quad y)
{
    return (quad)(((quad_bits)x & m) | ((quad_bits)y & ~m));
}

VEC_INLINE vf vf_set1(float x)
{
    quad q = { x, x, x, x };
    return (vf){ q, q, q, q };
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
    return (vf){ x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d };
}

VEC_INLINE vf vf_sub(vf x, vf y)
{
    return (vf){ x.a - y.a, x.b - y.b, x.c - y.c, x.d - y.d };
}

VEC_INLINE vf vf_mul(vf x, vf y)
{
    return (vf){ x.a * y.a, x.b * y.b, x.c * y.c, x.d * y.d };
}

VEC_INLINE vf vf_div(vf x, vf y)
{
    return (vf){ x.a / y.a, x.b / y.b, x.c / y.c, x.d / y.d };
}

VEC_INLINE vf vf_fma(vf x, vf y, vf z)
{
    return vf_add(vf_mul(x, y), z);
}

VEC_INLINE vf vf_select(vm m, vf x, vf y)
{
    return (vf){ quad_select(m.a, x.a, y.a), quad_select(m.b, x.b, y.b), quad_select(m.c, x.c, y.c),
                 quad_select(m.d, x.d, y.d) };
}

VEC_INLINE vf vf_zero_if(vm m, vf x)
{
    return vf_select(m, vf_set1(0.0f), x);
}

VEC_INLINE vm vm_lt(vf x, vf y)
{
    return (vm){ x.a < y.a, x.b < y.b, x.c < y.c, x.d < y.d };
}

VEC_INLINE vm vm_ne(vf x, vf y)
{
    return (vm){ x.a != y.a, x.b != y.b, x.c != y.c, x.d != y.d };
}

VEC_INLINE vm vm_or(vm m, vm n)
{
    return (vm){ m.a | n.a, m.b | n.b, m.c | n.c, m.d | n.d };
}

VEC_INLINE bool vm_any(vm m)
{
    quad_bits any = m.a | m.b | m.c | m.d;
    return (any[0] | any[1] | any[2] | any[3]) != 0;
}

VEC_INLINE vf vf_max(vf x, vf y)
{
    return vf_select(vm_lt(y, x), x, y);
}

VEC_INLINE vf vf_sign(vf x, vf y)
{
    const quad_bits size = { INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX };
    return (vf){ quad_select(size, x.a, y.a), quad_select(size, x.b, y.b),
                 quad_select(size, x.c, y.c), quad_select(size, x.d, y.d) };
}

VEC_INLINE vf vf_abs(vf x)
{
    return vf_sign(x, vf_set1(0.0f));
}

/* 1.5 * 2^23: a float of this size has no fraction, so adding it rounds. */
VEC_INLINE vf vf_round(vf x)
{
    return vf_sub(vf_add(x, vf_set1(12582912.0f)), vf_set1(12582912.0f));
}

/* The sum's low mantissa bits are n + 127, the biased exponent of 2^n. */
VEC_INLINE vf vf_scale2(vf x, vf n)
{
    vf sum = vf_add(n, vf_set1(12583039.0f));
    vf power = { (quad)((quad_bits)sum.a << 23), (quad)((quad_bits)sum.b << 23),
                 (quad)((quad_bits)sum.c << 23), (quad)((quad_bits)sum.d << 23) };
    return vf_mul(x, power);
}

VEC_INLINE quad split_quad(quad x, quad *e)
{
    *e = __builtin_convertvector(((quad_bits)x >> 23) - 126, quad);
    return (quad)(((quad_bits)x & 0x007fffff) | 0x3f000000);
}

VEC_INLINE vf vf_split(vf x, vf *e)
{
    return (vf){ split_quad(x.a, &e->a), split_quad(x.b, &e->b), split_quad(x.c, &e->c),
                 split_quad(x.d, &e->d) };
}

VEC_INLINE float vf_top(vf x)
{
    vf y = vf_max(x, (vf){ x.c, x.d, x.a, x.b });
    vf z = vf_max(y, (vf){ y.b, y.a, y.d, y.c });
    float a = z.a[0] < z.a[2] ? z.a[2] : z.a[0], b = z.a[1] < z.a[3] ? z.a[3] : z.a[1];
    return a < b ? b : a;
}

VEC_INLINE float vf_sum(vf x)
{
    quad half = (x.a + x.c) + (x.b + x.d);
    return (half[0] + half[2]) + (half[1] + half[3]);
}

VEC_INLINE void vf_transpose(vf x[16])
{
    float from[16][16], to[16][16];
    memcpy(from, x, sizeof from);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++)
            to[j][i] = from[i][j];
    memcpy(x, to, sizeof to);
}

VEC_INLINE vf vf_keep(vf x)
{
    return x;
}

#endif
