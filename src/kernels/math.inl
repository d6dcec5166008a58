/* Elementary functions with the same bits in every lane, width and instruction set: docs/numerics.md
 * gives the formulas; tests/canonical.c says them again in scalar code. */

/* x[i] becomes 2^x[i], for x[i] <= 0; 0 below 2^-126, NaN for NaN. The chains of the n vectors run side
 * by side. */
VEC_INLINE void exp2_nonpositive(vf *x, const int n)
{
    static const float c[6] = { 0x1.5bba14p-10f, 0x1.3cea88p-7f, 0x1.c6b752p-5f,
                                0x1.ebf9bcp-3f,  0x1.62e42ap-1f, 1.0f };
    vf whole[VEC_CHAINS], f[VEC_CHAINS], p[VEC_CHAINS];
    UNROLL
    for (int i = 0; i < n; i++) {
        whole[i] = vf_round(x[i]);
        f[i] = vf_sub(x[i], whole[i]);
        p[i] = vf_set1(c[0]);
    }
    UNROLL
    for (int term = 1; term < 6; term++)
        UNROLL
        for (int i = 0; i < n; i++)
            p[i] = vf_fma(p[i], f[i], vf_set1(c[term]));
    UNROLL
    for (int i = 0; i < n; i++)
        x[i] = vf_zero_if(vm_lt(x[i], vf_set1(-126.0f)), vf_scale2(p[i], whole[i]));
}

/* e^d for d <= 0. One multiplication after the caller's subtraction: e^0 is exactly 1. */
VEC_INLINE void exp_nonpositive_side_by_side(vf *d, const int n)
{
    UNROLL
    for (int i = 0; i < n; i++)
        d[i] = vf_mul(d[i], vf_set1(0x1.715476p+0f));
    exp2_nonpositive(d, n);
}

VEC_INLINE vf exp_nonpositive(vf d)
{
    exp_nonpositive_side_by_side(&d, 1);
    return d;
}

/* ln x for a positive normal x, +inf or NaN. The polynomial is that of Cephes' logf. */
VEC_INLINE vf ln(vf x)
{
    static const float c[9] = { 7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,
                                -1.2420140846e-1f, 1.4249322787e-1f,  -1.6668057665e-1f,
                                2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f };
    vf e, m = vf_split(x, &e);
    vm low = vm_lt(m, vf_set1(0.70710678f));
    m = vf_select(low, vf_add(m, m), m);
    e = vf_select(low, vf_sub(e, vf_set1(1.0f)), e);
    vf f = vf_sub(m, vf_set1(1.0f));
    vf z = vf_mul(f, f);
    vf p = vf_set1(c[0]);
    for (int i = 1; i < 9; i++)
        p = vf_fma(p, f, vf_set1(c[i]));
    vf y = vf_mul(vf_mul(f, z), p);
    y = vf_fma(e, vf_set1(-2.12194440e-4f), y);
    y = vf_fma(vf_set1(-0.5f), z, y);
    vf r = vf_fma(e, vf_set1(0.693359375f), vf_add(f, y));
    return vf_select(vm_lt(x, vf_set1(__builtin_inff())), r, x);
}

/* tanh(s * k / (2 log2 e)): t is the exponent of 2 in e^(-2|x|), and e = 2^t - 1. */
VEC_INLINE vf tanh_scaled(vf s, vf k)
{
    vf t = vf_mul(vf_sub(vf_set1(-0.0f), vf_abs(s)), k);
    t = vf_select(vm_lt(t, vf_set1(-30.0f)), vf_set1(-30.0f), t);
    vf n = vf_round(t);
    vf f = vf_sub(t, n);
    vf g = vf_mul(f, f);
    vf p = vf_set1(0x1.42985ep-13f);
    p = vf_fma(p, f, vf_set1(0x1.5ef136p-10f));
    p = vf_fma(p, f, vf_set1(0x1.3b2c3cp-7f));
    p = vf_fma(p, f, vf_set1(0x1.c6afa4p-5f));
    p = vf_fma(p, f, vf_set1(0x1.ebfbdep-3f));
    vf h = vf_fma(f, vf_set1(0x1.62e430p-1f), vf_mul(g, p));
    vf w = vf_scale2(vf_set1(1.0f), n);
    vf e = vf_fma(h, w, vf_sub(w, vf_set1(1.0f)));
    return vf_sign(vf_div(e, vf_add(e, vf_set1(2.0f))), s);
}
