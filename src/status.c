#include "common.h"

const char *mha_status_text(mha_status status)
{
    switch (status) {
    case MHA_OK: return "ok";
    case MHA_ERROR_ARGUMENT: return "bad argument";
    case MHA_ERROR_SHAPE: return "shape mismatch";
    case MHA_ERROR_TYPE: return "wrong element type";
    case MHA_ERROR_LAYOUT: return "unusable memory layout";
    case MHA_ERROR_OVERFLOW: return "size overflow";
    case MHA_ERROR_MEMORY: return "out of memory";
    case MHA_ERROR_UNSUPPORTED: return "unsupported";
    case MHA_ERROR_BUSY: return "context busy";
    case MHA_ERROR_FILE: return "file error";
    case MHA_ERROR_FORMAT: return "malformed file";
    case MHA_ERROR_LIMIT: return "file over a limit";
    case MHA_ERROR_NOT_FOUND: return "not found";
    case MHA_ERROR_BLAS: return "unusable BLAS";
    case MHA_ERROR_THREAD: return "no thread";
    }
    return "unknown status";
}

const char *mha_version(void)
{
    return MHA_VERSION;
}
