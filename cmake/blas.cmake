# Finds the CBLAS that MHA_BLAS names and makes the target mha::blas of it. Sets
#   MHA_BLAS_DEFINITIONS  for src/blas.c: which calls beyond the standard ones it has
#   MHA_BLAS_NAME, MHA_BLAS_DIR  for the package files: how a user of libmha.a finds it again

include(CheckSymbolExists)
include(CMakePushCheckState)

# A choice that changed is looked for and looked at anew.
if(NOT MHA_BLAS STREQUAL "${MHA_BLAS_FOUND_FOR}")
    foreach(variable LIBRARY INCLUDE_DIR HAS_SGEMM HAS_SGEMM_BATCH HAS_CONFIG)
        unset(MHA_BLAS_${variable} CACHE)
    endforeach()
    set(MHA_BLAS_FOUND_FOR "${MHA_BLAS}" CACHE INTERNAL "")
endif()

if(IS_ABSOLUTE "${MHA_BLAS}")
    set(MHA_BLAS_LIBRARY "${MHA_BLAS}" CACHE FILEPATH "The BLAS library" FORCE)
    cmake_path(GET MHA_BLAS PARENT_PATH blas_directories)
    cmake_path(GET blas_directories PARENT_PATH blas_prefix)
    set(blas_includes "${blas_prefix}/include")
else()
    find_package(PkgConfig)
    if(PkgConfig_FOUND)
        pkg_check_modules(MHA_BLAS_MODULE QUIET "${MHA_BLAS}")
    endif()
    set(blas_names "${MHA_BLAS}")
    if(MHA_BLAS_MODULE_FOUND)
        list(GET MHA_BLAS_MODULE_LIBRARIES 0 blas_names)
        set(blas_directories ${MHA_BLAS_MODULE_LIBRARY_DIRS})
        set(blas_includes ${MHA_BLAS_MODULE_INCLUDE_DIRS})
    endif()
    find_library(MHA_BLAS_LIBRARY NAMES ${blas_names} HINTS ${blas_directories} REQUIRED
        DOC "The BLAS library")
endif()
find_path(MHA_BLAS_INCLUDE_DIR cblas.h HINTS ${blas_includes} PATH_SUFFIXES ${MHA_BLAS} REQUIRED
    DOC "Directory of cblas.h")

cmake_push_check_state(RESET)
set(CMAKE_REQUIRED_INCLUDES ${MHA_BLAS_INCLUDE_DIR})
set(CMAKE_REQUIRED_LIBRARIES ${MHA_BLAS_LIBRARY} m)
check_symbol_exists(cblas_sgemm cblas.h MHA_BLAS_HAS_SGEMM)
check_symbol_exists(cblas_sgemm_batch cblas.h MHA_BLAS_HAS_SGEMM_BATCH)
check_symbol_exists(openblas_get_config cblas.h MHA_BLAS_HAS_CONFIG)
cmake_pop_check_state()

if(NOT MHA_BLAS_HAS_SGEMM)
    message(FATAL_ERROR "No program links with cblas_sgemm of ${MHA_BLAS_LIBRARY} "
        "(MHA_BLAS is \"${MHA_BLAS}\").")
endif()
set(MHA_BLAS_DEFINITIONS)
if(MHA_BLAS_HAS_SGEMM_BATCH)
    list(APPEND MHA_BLAS_DEFINITIONS MHA_HAVE_SGEMM_BATCH)
endif()
if(MHA_BLAS_HAS_CONFIG)
    list(APPEND MHA_BLAS_DEFINITIONS MHA_HAVE_OPENBLAS_CONFIG)
endif()

cmake_path(GET MHA_BLAS_LIBRARY PARENT_PATH MHA_BLAS_DIR)
cmake_path(GET MHA_BLAS_LIBRARY STEM MHA_BLAS_NAME)
string(REGEX REPLACE "^lib" "" MHA_BLAS_NAME "${MHA_BLAS_NAME}")

add_library(mha::blas INTERFACE IMPORTED GLOBAL)
target_include_directories(mha::blas INTERFACE ${MHA_BLAS_INCLUDE_DIR})
target_link_libraries(mha::blas INTERFACE ${MHA_BLAS_LIBRARY} m) # a static one needs libm after it
