# The language that every file of the project is written in, and its warnings.

# Promises about numbers hold only if the compiler neither fuses a multiplication with an addition
# by itself nor sees several files at once; these flags come after the user's own.
set(MHA_ARITHMETIC -ffp-contract=off -fno-math-errno -fno-lto)

set(MHA_WARNINGS -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla)
if(MHA_WERROR)
    list(APPEND MHA_WARNINGS -Werror)
endif()

function(mha_dialect target)
    set_target_properties(${target} PROPERTIES
        C_STANDARD 11
        C_STANDARD_REQUIRED ON
        C_EXTENSIONS ON # POSIX calls and GNU attributes
        C_VISIBILITY_PRESET hidden
        POSITION_INDEPENDENT_CODE ON
        INTERPROCEDURAL_OPTIMIZATION OFF)
    target_compile_options(${target} PRIVATE ${MHA_ARITHMETIC} ${MHA_WARNINGS})
endfunction()
