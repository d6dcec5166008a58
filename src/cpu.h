/* What this machine can run, and the state of its floating-point unit. The only file that asks the
 * CPU. */
#ifndef MHA_CPU_H
#define MHA_CPU_H

#include "common.h"

/* Does this CPU, under this operating system, run the level of that name ("generic", "avx2", ...)? */
bool mha_cpu_runs(const char *isa);

/* The processor's own name, or the architecture where it tells none; cut to `bytes`. */
void mha_cpu_name(char *text, size_t bytes);

/*
 * mha_cpu_floats_default puts the calling thread under the default floating-point environment (round
 * to nearest, subnormals kept, no traps) and returns what was there, control and flags;
 * mha_cpu_floats_restore puts that back. Both must stay calls of another file's functions: the
 * compiler knows of no environment and would move inlined arithmetic across them.
 */
uint64_t mha_cpu_floats_default(void);
void mha_cpu_floats_restore(uint64_t floats);

/* For loops that wait for another thread: some tens of nanoseconds, gentle to the other thread of
 * the core. */
void mha_cpu_pause(void);

#endif
