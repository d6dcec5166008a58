#include "fixture.h"

mha_context *ctx;
struct counting counter;

int open_context(void **state)
{
    (void)state;
    counting_init(&counter);
    ctx = context_counting(&counter);
    return 0;
}

int close_context(void **state)
{
    (void)state;
    mha_context_free(ctx);
    return counter.live == 0 && counter.live_bytes == 0 ? 0 : -1;
}
