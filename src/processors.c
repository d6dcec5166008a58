#define _GNU_SOURCE /* cpu_set_t */
#include "processors.h"

#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- affinity --------------------------------------------------------------------------------- */

static int64_t count_affinity(void)
{
    cpu_set_t sets[8]; /* the kernel knows 8192 processors at most */
    if (sched_getaffinity(0, sizeof sets, sets) == 0)
        return CPU_COUNT_S(sizeof sets, sets);
    return sysconf(_SC_NPROCESSORS_ONLN);
}

/* ---- quota of the control group --------------------------------------------------------------- */

/* The beginning of a file as a text, empty when there is none. */
__attribute__((format(printf, 3, 4))) static void read_text(char *text, size_t bytes,
                                                            const char *format, ...)
{
    char path[PATH_MAX];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(path, sizeof path, format, arguments);
    va_end(arguments);
    text[0] = '\0';
    if (length < 0 || (size_t)length >= sizeof path)
        return;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    size_t used = 0;
    for (ssize_t got; (got = read(file, text + used, bytes - 1 - used)) > 0;)
        used += (size_t)got;
    text[used] = '\0';
    close(file);
}

/* The number at the beginning of a text, which moves behind it; -1 when there is none ("max"). */
static int64_t read_number(const char **text)
{
    int64_t number = -1;
    for (; **text >= '0' && **text <= '9'; (*text)++)
        number = min_i64(max_i64(number, 0), INT64_MAX / 10 - 1) * 10 + (**text - '0');
    return number;
}

static int64_t whole_processors(int64_t quota, int64_t period)
{
    if (quota <= 0 || period <= 0)
        return INT64_MAX;
    return (quota - 1) / period + 1;
}

/* Version 2: "QUOTA PERIOD" in one file, QUOTA "max" when there is none. */
static int64_t read_quota_2(const char *root, const char *group)
{
    char text[64];
    read_text(text, sizeof text, "%s/sys/fs/cgroup%s/cpu.max", root, group);
    const char *at = text;
    int64_t quota = read_number(&at);
    at += *at == ' ';
    return whole_processors(quota, read_number(&at));
}

/* Version 1: two files, a quota of -1 when there is none. */
static int64_t read_quota_1(const char *root, const char *group)
{
    char quota[32], period[32];
    read_text(quota, sizeof quota, "%s/sys/fs/cgroup/cpu%s/cpu.cfs_quota_us", root, group);
    read_text(period, sizeof period, "%s/sys/fs/cgroup/cpu%s/cpu.cfs_period_us", root, group);
    const char *q = quota, *p = period;
    return whole_processors(read_number(&q), read_number(&p));
}

/* The smallest quota of a group and the groups above it; the group's path is used up. A container
 * may see paths of the host here: of those only the topmost exists. */
static int64_t smallest_quota(const char *root, char *group,
                              int64_t (*read_quota)(const char *root, const char *group))
{
    int64_t least = read_quota(root, group);
    for (char *slash; (slash = strrchr(group, '/'));) {
        *slash = '\0';
        least = min_i64(least, read_quota(root, group));
    }
    return least;
}

/* Is "cpu" one of the controllers "cpu,cpuacct"? */
static bool names_cpu(const char *controllers)
{
    for (const char *at = controllers; at; at = strchr(at, ','), at += at != NULL)
        if (strncmp(at, "cpu", 3) == 0 && (at[3] == ',' || at[3] == '\0'))
            return true;
    return false;
}

int64_t mha_processors_quota(const char *root)
{
    char text[8192];
    int64_t least = INT64_MAX;
    read_text(text, sizeof text, "%s/proc/self/cgroup", root);
    /* Lines are ID:CONTROLLERS:PATH, with no controllers for version 2. */
    char *line = text;
    for (char *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        if (*++controllers == '\0')
            least = min_i64(least, smallest_quota(root, group, read_quota_2));
        else if (names_cpu(controllers))
            least = min_i64(least, smallest_quota(root, group, read_quota_1));
    }
    return least;
}

int64_t mha_processors_allowed(void)
{
    return max_i64(1, min_i64(count_affinity(), mha_processors_quota("")));
}
