#include "cpu.h"

#include <fenv.h>
#include <stdio.h>
#include <string.h>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#if defined(__x86_64__)
#include <cpuid.h>

bool mha_cpu_runs(const char *isa)
{
    if (strcmp(isa, "generic") == 0)
        return true;
    /* The builtin also asks the operating system (XGETBV) whether it saves the registers. */
    if (strcmp(isa, "avx2") == 0)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (strcmp(isa, "avx512") == 0)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")
               && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    return false;
}

void mha_cpu_name(char *text, size_t bytes)
{
    char name[49] = "";
    unsigned int words[12];
    unsigned int top = (unsigned int)__get_cpuid_max(0x80000000u, NULL);
    if (top >= 0x80000004u) {
        for (unsigned int leaf = 0; leaf < 3; leaf++)
            __cpuid(0x80000002u + leaf, words[4 * leaf], words[4 * leaf + 1], words[4 * leaf + 2],
                    words[4 * leaf + 3]);
        memcpy(name, words, 48);
    }
    /* Some names are padded with spaces on either side. */
    const char *start = name + strspn(name, " ");
    size_t length = strlen(start);
    while (length > 0 && start[length - 1] == ' ')
        length--;
    if (length == 0)
        snprintf(text, bytes, "x86-64");
    else
        snprintf(text, bytes, "%.*s", (int)length, start);
}

/* MXCSR; x87 computes nothing here. The bits set are those that mask all exceptions. */
#define DEFAULT_MXCSR 0x1f80u

uint64_t mha_cpu_floats_default(void)
{
    unsigned int found = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(DEFAULT_MXCSR);
    return found;
}

void mha_cpu_floats_restore(uint64_t floats)
{
    __builtin_ia32_ldmxcsr((unsigned int)floats);
}

void mha_cpu_pause(void)
{
    __builtin_ia32_pause();
}

#elif defined(__aarch64__)

/* Every 64-bit Arm processor has Advanced SIMD with fused multiply-add. */
bool mha_cpu_runs(const char *isa)
{
    return strcmp(isa, "generic") == 0 || strcmp(isa, "neon") == 0;
}

/* The register that names the processor, where the system lets programs read it; else 0. */
static uint64_t identification(void)
{
    uint64_t midr = 0;
#if defined(__linux__)
    if (getauxval(AT_HWCAP) & HWCAP_CPUID)
        __asm__("mrs %0, midr_el1" : "=r"(midr));
#endif
    return midr;
}

/* The register holds numbers; some common ones of Arm's own list have names here. */
void mha_cpu_name(char *text, size_t bytes)
{
    static const struct {
        unsigned int implementer, part;
        const char *name;
    } known[] = {
        { 0x41, 0xd08, "Arm Cortex-A72" },  { 0x41, 0xd0b, "Arm Cortex-A76" },
        { 0x41, 0xd0c, "Arm Neoverse N1" }, { 0x41, 0xd40, "Arm Neoverse V1" },
        { 0x41, 0xd49, "Arm Neoverse N2" }, { 0x41, 0xd4f, "Arm Neoverse V2" },
    };
    uint64_t midr = identification();
    unsigned int implementer = (unsigned int)(midr >> 24) & 0xff;
    unsigned int part = (unsigned int)(midr >> 4) & 0xfff;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].implementer == implementer && known[i].part == part) {
            snprintf(text, bytes, "%s", known[i].name);
            return;
        }
    if (midr != 0)
        snprintf(text, bytes, "aarch64, implementer 0x%02x, part 0x%03x", implementer, part);
    else
        snprintf(text, bytes, "aarch64");
}

/* FPCR in the lower half, the flags of FPSR in the upper one. */
uint64_t mha_cpu_floats_default(void)
{
    uint64_t control, flags;
    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(control), "=r"(flags) : : "memory");
    __asm__ volatile("msr fpcr, %0" : : "r"(UINT64_C(0)) : "memory");
    return (flags << 32) | (control & UINT32_MAX);
}

void mha_cpu_floats_restore(uint64_t floats)
{
    __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1"
                     :
                     : "r"(floats & UINT32_MAX), "r"(floats >> 32)
                     : "memory");
}

void mha_cpu_pause(void)
{
    __asm__ volatile("isb" : : : "memory");
}

#else

bool mha_cpu_runs(const char *isa)
{
    return strcmp(isa, "generic") == 0;
}

void mha_cpu_name(char *text, size_t bytes)
{
    snprintf(text, bytes, "unknown processor");
}

uint64_t mha_cpu_floats_default(void)
{
    int found = fegetround();
    fesetround(FE_TONEAREST);
    return (uint64_t)found;
}

void mha_cpu_floats_restore(uint64_t floats)
{
    fesetround((int)floats);
}

void mha_cpu_pause(void)
{
}

#endif
