/* The context that all tests of a program share, as set-up and tear-down of a group for CMocka. Not
 * in support.h: most of what includes that has contexts of its own, by the same name. */
#ifndef FIXTURE_H
#define FIXTURE_H

#include "support.h"

extern mha_context *ctx;
extern struct counting counter; /* the allocator of ctx */

int open_context(void **state);
int close_context(void **state); /* fails when memory was not given back */

#endif
