/* What went wrong, in one line: every function here that can fail returns false and says why. */
#ifndef REASON_H
#define REASON_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

struct reason {
    char text[1024];
};

/* Notes the reason and returns false: `return failed(why, "%s: %s", path, strerror(errno));` */
__attribute__((format(printf, 2, 3))) static inline bool failed(struct reason *why,
                                                                const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why->text, sizeof why->text, format, arguments);
    va_end(arguments);
    return false;
}

#endif
