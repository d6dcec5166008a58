#include "sparse.h"

#include <inttypes.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support.h"

struct sparse sparse_make(int64_t rows, int64_t stride, int64_t width)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t span = (size_t)((rows - 1) * stride + width) * sizeof(float);
    size_t data = (span + page - 1) / page * page;
    struct sparse sparse = { .bytes = data + page };
    /* Address space alone, so that no machine's overcommit rules are asked for these sizes. */
    sparse.map = mmap(NULL, sparse.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                      -1, 0);
    if (sparse.map == MAP_FAILED)
        fail_msg("no address space of %zu bytes", sparse.bytes);
    sparse.data = (float *)(void *)((char *)sparse.map + data - span);
    for (int64_t row = 0; row < rows; row++) {
        uintptr_t from = (uintptr_t)(sparse.data + row * stride) / page * page;
        uintptr_t end = (uintptr_t)(sparse.data + row * stride + width);
        if (mprotect((void *)from, end - from, PROT_READ | PROT_WRITE) != 0)
            fail_msg("no memory for row %" PRId64, row);
    }
    return sparse;
}

void sparse_free(struct sparse *sparse)
{
    if (sparse->map)
        munmap(sparse->map, sparse->bytes);
    *sparse = (struct sparse){ 0 };
}
