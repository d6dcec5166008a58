/* The header as other people's files meet it: after macros as in windows.h, and twice. Compiled as
 * C and as C++, where "restrict" is a name like any other. */
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define small char
#define near
#define far
#include <mha.h>
#include <mha.h>

#ifdef __cplusplus
static int same(int restrict)
{
    return restrict;
}
#else
static int same(int value)
{
    return value;
}
#endif

int main(void)
{
    struct mha_tensor tensor = mha_tensor_1d(NULL, MHA_FLOAT32, same(0));
    return (int)mha_tensor_count(&tensor);
}
