/* An open .safetensors file, as the other file roads see it. */
#ifndef MHA_IO_SAFETENSORS_H
#define MHA_IO_SAFETENSORS_H

#include "io/header.h"

struct mha_safetensors {
    struct mha_allocator allocator;
    struct mha_file file;
    struct mha_header header; /* nothing here changes until the file is closed */
};

#endif
