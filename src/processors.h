/* How many processors this process may use. */
#ifndef MHA_PROCESSORS_H
#define MHA_PROCESSORS_H

#include "common.h"

/* The processors of the calling thread's affinity, or as many as the quota of the control group
 * pays for when that is less; at least 1. */
int64_t mha_processors_allowed(void);

/*
 * The quota by itself: ceil(quota / period), the smallest of the control group and all above it, of
 * version 2 (cpu.max) and 1 (cpu.cfs_quota_us); INT64_MAX without any. `root` is put before
 * /proc/self/cgroup and /sys/fs/cgroup, so that tests can have their own: "" otherwise.
 */
int64_t mha_processors_quota(const char *root);

#endif
