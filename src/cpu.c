#include "cpu.h"

#include <stdio.h>
#include <string.h>

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

#else

bool mha_cpu_runs(const char *isa)
{
    return strcmp(isa, "generic") == 0;
}

void mha_cpu_name(char *text, size_t bytes)
{
#if defined(__aarch64__)
    snprintf(text, bytes, "aarch64");
#else
    snprintf(text, bytes, "unknown processor");
#endif
}

#endif
