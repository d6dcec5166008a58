/* How many processors the process may use: quotas of control groups, from made-up systems. */
#define _GNU_SOURCE /* mkdtemp */
#include "support.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "processors.h"

/* A file of a made-up system; NULL ends them. */
struct file {
    const char *path, *text;
};

struct made_up {
    const char *what;
    struct file files[6];
    int64_t quota;
};

#define GROUPS "/proc/self/cgroup"
#define V2 "/sys/fs/cgroup"
#define V1 "/sys/fs/cgroup/cpu"

static char long_groups[12000];

static const struct made_up systems[] = {
    { "nothing there", { { 0 } }, INT64_MAX },
    { "version 2 without a limit",
      { { GROUPS, "0::/a\n" }, { V2 "/a/cpu.max", "max 100000\n" } },
      INT64_MAX },
    { "two and a half are three",
      { { GROUPS, "0::/a\n" }, { V2 "/a/cpu.max", "250000 100000\n" } },
      3 },
    { "two are two", { { GROUPS, "0::/a\n" }, { V2 "/a/cpu.max", "200000 100000\n" } }, 2 },
    { "a tenth is one", { { GROUPS, "0::/a\n" }, { V2 "/a/cpu.max", "10000 100000\n" } }, 1 },
    { "another period", { { GROUPS, "0::/a\n" }, { V2 "/a/cpu.max", "35000 5000\n" } }, 7 },
    { "the group above has less",
      { { GROUPS, "0::/a/b/c\n" },
        { V2 "/a/b/c/cpu.max", "900000 100000\n" },
        { V2 "/a/b/cpu.max", "max 100000\n" },
        { V2 "/a/cpu.max", "400000 100000\n" } },
      4 },
    { "the group above has more",
      { { GROUPS, "0::/a/b\n" },
        { V2 "/a/b/cpu.max", "300000 100000\n" },
        { V2 "/a/cpu.max", "900000 100000\n" } },
      3 },
    { "the root of a container",
      { { GROUPS, "0::/\n" }, { V2 "/cpu.max", "600000 100000\n" } },
      6 },
    { "a path of the host in a container",
      { { GROUPS, "0::/docker/0123\n" }, { V2 "/cpu.max", "500000 100000\n" } },
      5 },
    { "version 1",
      { { GROUPS, "12:pids:/x\n4:cpu,cpuacct:/a\n3:memory:/y\n" },
        { V1 "/a/cpu.cfs_quota_us", "450000\n" },
        { V1 "/a/cpu.cfs_period_us", "100000\n" } },
      5 },
    { "version 1 without a limit",
      { { GROUPS, "4:cpuacct,cpu:/a\n" },
        { V1 "/a/cpu.cfs_quota_us", "-1\n" },
        { V1 "/a/cpu.cfs_period_us", "100000\n" } },
      INT64_MAX },
    { "version 1, the group above",
      { { GROUPS, "4:cpuacct,cpu:/a/b\n" },
        { V1 "/cpu.cfs_quota_us", "200000\n" },
        { V1 "/cpu.cfs_period_us", "100000\n" } },
      2 },
    { "cpuset is not cpu",
      { { GROUPS, "4:cpuset,cpuacct:/a\n" },
        { V1 "/a/cpu.cfs_quota_us", "200000\n" },
        { V1 "/a/cpu.cfs_period_us", "100000\n" } },
      INT64_MAX },
    { "both versions",
      { { GROUPS, "4:cpu:/a\n0::/b\n" },
        { V1 "/a/cpu.cfs_quota_us", "300000\n" },
        { V1 "/a/cpu.cfs_period_us", "100000\n" },
        { V2 "/b/cpu.max", "800000 100000\n" } },
      3 },
    { "nonsense in cpu.max", { { GROUPS, "0::/a\n" }, { V2 "/a/cpu.max", "-3 x\n" } }, INT64_MAX },
    { "no period", { { GROUPS, "0::/a\n" }, { V2 "/a/cpu.max", "200000\n" } }, INT64_MAX },
    { "a period of 0", { { GROUPS, "0::/a\n" }, { V2 "/a/cpu.max", "200000 0\n" } }, INT64_MAX },
    { "a quota of 0", { { GROUPS, "0::/a\n" }, { V2 "/a/cpu.max", "0 100000\n" } }, INT64_MAX },
    { "nothing in cpu.max", { { GROUPS, "0::/a\n" }, { V2 "/a/cpu.max", "" } }, INT64_MAX },
    { "a number beyond 64 bits",
      { { GROUPS, "0::/a\n" }, { V2 "/a/cpu.max", "99999999999999999999999999 1\n" } },
      INT64_MAX / 10 * 10 - 1 },
    { "lines without colons",
      { { GROUPS, "x\n\n4\n4:cpu\n:\n0::/a\n" }, { V2 "/a/cpu.max", "200000 100000\n" } },
      2 },
    { "a path longer than paths are", { { GROUPS, long_groups } }, INT64_MAX },
};

/* Writes a file below `root`, with its directories. */
static void put(const char *root, const struct file *file)
{
    char path[512];
    snprintf(path, sizeof path, "%s%s", root, file->path);
    for (char *slash = strchr(path + strlen(root) + 1, '/'); slash;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *stream = fopen(path, "w");
    assert_non_null(stream);
    fputs(file->text, stream);
    assert_int_equal(fclose(stream), 0);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *ftw)
{
    (void)info;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static void quotas(void **state)
{
    (void)state;
    memset(long_groups, 'a', sizeof long_groups - 1);
    memcpy(long_groups, "0::/", 4);
    for (int64_t i = 0; i < COUNT(systems); i++) {
        char root[] = "/tmp/mha-test-XXXXXX";
        assert_non_null(mkdtemp(root));
        for (const struct file *file = systems[i].files; file->path; file++)
            put(root, file);
        int64_t got = mha_processors_quota(root);
        nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
        if (got != systems[i].quota)
            fail_msg("%s: got %lld, wanted %lld", systems[i].what, (long long)got,
                     (long long)systems[i].quota);
    }
}

static void allowed_here(void **state)
{
    (void)state;
    assert_in_range(mha_processors_allowed(), 1, sysconf(_SC_NPROCESSORS_CONF));
    assert_true(mha_processors_allowed() <= mha_processors_quota(""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quotas),
        cmocka_unit_test(allowed_here),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
