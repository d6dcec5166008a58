/*
 * Loads the library that is the argument and calls it, and looks whether the processor's
 * floating-point state is what it was: neither loading nor a call may set flush-to-zero, and a
 * rounding mode that the host chose stays.
 */
#include <dlfcn.h>
#include <fenv.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <mha.h>

#if defined(__x86_64__)
#include <xmmintrin.h>

/* Control bits only: the flags below may be raised by any arithmetic. */
static uint64_t control_word(void)
{
    return _mm_getcsr() & ~(unsigned)_MM_EXCEPT_MASK;
}
#elif defined(__aarch64__)
static uint64_t control_word(void)
{
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    return fpcr;
}
#else
static uint64_t control_word(void)
{
    return (uint64_t)fegetround();
}
#endif

static int failures;

static void check(const char *when, uint64_t want)
{
    volatile double tiny = 1e-310;
    volatile double one = 1;
    if (control_word() != want || tiny * one == 0) {
        printf("%s: the control word is %#llx, wanted %#llx; 1e-310 * 1 is %g\n", when,
               (unsigned long long)control_word(), (unsigned long long)want, tiny * one);
        failures++;
    }
}

static void *library;

/* The function of that name, put into *function, which is a pointer to some function. */
static void find(const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    if (!symbol) {
        printf("%s\n", dlerror());
        failures++;
    }
    memcpy(function, &symbol, sizeof symbol);
}

static void attend(void)
{
    enum { L = 5, S = 67, H = 2, D = 8 };
    static float q[L * H * D], k[S * H * D], out[L * H * D];
    mha_status (*create)(const struct mha_context_options *, mha_context **);
    mha_status (*attention)(mha_context *, const struct mha_inputs *, const struct mha_options *,
                            const struct mha_outputs *);
    void (*release)(mha_context *);
    struct mha_tensor (*tensor)(void *, int32_t, int64_t, int64_t, int64_t, int64_t);
    find("mha_context_create", &create);
    find("mha_attention", &attention);
    find("mha_context_free", &release);
    find("mha_tensor_4d", &tensor);
    if (failures)
        return;

    struct mha_tensor tq = tensor(q, MHA_FLOAT32, 1, L, H, D);
    struct mha_tensor tk = tensor(k, MHA_FLOAT32, 1, S, H, D);
    struct mha_tensor to = tensor(out, MHA_FLOAT32, 1, L, H, D);
    struct mha_inputs inputs = { .query = &tq, .key = &tk, .value = &tk };
    struct mha_options options = { .causal = 1 };
    struct mha_outputs outputs = { .out = &to };
    for (int i = 0; i < S * H * D; i++)
        k[i] = (float)(i * 7 % 11) / 11;
    memcpy(q, k, sizeof q);

    mha_context *ctx = NULL;
    if (create(NULL, &ctx) != MHA_OK || attention(ctx, &inputs, &options, &outputs) != MHA_OK) {
        printf("the call failed\n");
        failures++;
    }
    release(ctx);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    uint64_t before = control_word();
    library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        printf("%s\n", dlerror());
        return 1;
    }
    check("after loading", before);
    attend();
    check("after a call", before);

    fesetround(FE_UPWARD);
    uint64_t upward = control_word();
    if (upward == before) {
        printf("the rounding mode cannot be set, so nothing is shown\n");
        failures++;
    }
    attend();
    check("after a call under another rounding mode", upward);
    fesetround(FE_TONEAREST);
    return failures != 0;
}
