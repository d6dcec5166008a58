# The instruction-set levels of this architecture, weakest first, and the kernels of each.
# src/kernels/kernels.c is compiled once a level, told its name by MHA_ISA.

set(MHA_LEVELS generic)
set(MHA_FLAGS_generic)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
    list(APPEND MHA_LEVELS avx2 avx512)
    set(MHA_FLAGS_avx2 -mavx2 -mfma)
    set(MHA_FLAGS_avx512 -mavx512f -mavx512dq -mavx512bw -mavx512vl -mfma
        -mprefer-vector-width=512)
endif()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
    list(APPEND MHA_LEVELS neon)
    # The register tile fills 31 of 32 registers; loads moved up before registers are given out
    # would push accumulators into memory.
    set(MHA_FLAGS_neon $<$<C_COMPILER_ID:GNU>:-fno-schedule-insns>)
endif()

# The object library mha_kernels_LEVEL.
function(mha_add_level level)
    add_library(mha_kernels_${level} OBJECT src/kernels/kernels.c)
    mha_dialect(mha_kernels_${level})
    target_compile_definitions(mha_kernels_${level} PRIVATE MHA_ISA=${level})
    # GCC warns that functions with wide vectors are called in another way elsewhere; none of them
    # leaves its unit.
    target_compile_options(mha_kernels_${level} PRIVATE -Wno-psabi ${MHA_FLAGS_${level}})
endfunction()
