/* What this machine can run. The only file that asks the CPU. */
#ifndef MHA_CPU_H
#define MHA_CPU_H

#include "common.h"

/* Does this CPU, under this operating system, run the level of that name ("generic", "avx2", ...)? */
bool mha_cpu_runs(const char *isa);

/* The processor's own name, or the architecture where it tells none; cut to `bytes`. */
void mha_cpu_name(char *text, size_t bytes);

#endif
