/* Draws matrices of weights as panels of coloured cells, by cairo. */
#ifndef PICTURE_H
#define PICTURE_H

#include <stdbool.h>
#include <stdint.h>

#include "mha.h"

struct picture {
    struct mha_tensor cells;    /* [panels, rows, columns] float32 */
    int64_t first_head;         /* panels are titled "head N" from here on; negative: no titles */
    const char *title;          /* above everything; NULL: none */
    char *const *row_labels;    /* one a row; NULL: numbers */
    char *const *column_labels; /* one a column; NULL: numbers */
};

enum picture_format { PICTURE_PNG = 1, PICTURE_SVG = 2 };

/* The format that the suffix of `path` names, 0 for any other. */
int32_t picture_format(const char *path);

/* Draws and writes the picture; returns an exit code. All texts are valid UTF-8. */
int picture_save(const struct picture *picture, const char *path);

#endif
