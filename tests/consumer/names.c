/* Names that a program may well have for itself. Were the library to call one of them instead of
 * its own function, the program would end here. */
#include <stdlib.h>

#define MINE(name)                                                                                 \
    void name(void);                                                                               \
    void name(void)                                                                                \
    {                                                                                              \
        exit(3);                                                                                   \
    }

MINE(softmax)
MINE(dot)
MINE(transpose)
MINE(attend)
MINE(attend_f32)
MINE(forward)
MINE(project)
MINE(visible)
MINE(min_i64)
MINE(status_text)
