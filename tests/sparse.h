/* Rows that lie far apart: huge strides without huge memory. */
#ifndef SPARSE_H
#define SPARSE_H

#include <stddef.h>
#include <stdint.h>

/* `rows` rows of `width` floats, `stride` floats from one to the next: at `data`, zeroed. Only the
 * pages of rows can be touched; the last row ends at an unreadable page. */
struct sparse {
    float *data;
    void *map;
    size_t bytes;
};
struct sparse sparse_make(int64_t rows, int64_t stride, int64_t width);
void sparse_free(struct sparse *sparse);

#endif
