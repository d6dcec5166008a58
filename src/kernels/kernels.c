/*
 * The kernels of one instruction-set level: compiled once per level with -DMHA_ISA=<level>, a
 * vocabulary vec_<level>.h and the families over its words. Exports one symbol, the table.
 */
#include "kernels.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)

#include TEXT(JOIN(vec_, MHA_ISA).h)

/* Before loops over arrays of vectors: they must vanish, or the vectors would lie in memory. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

#include "math.inl"
#include "product.inl"

#include "attend.inl"
#include "ahead.inl"
#include "many.inl"
#include "few.inl"
#include "tile.inl"

#include "project.inl"

const struct mha_kernels JOIN(mha_kernels_, MHA_ISA) = {
    .isa = TEXT(MHA_ISA),
    .attend_f32 = attend_f32,
    .attend_split_f32 = attend_split_f32,
    .attend_join_f32 = attend_join_f32,
    .project_f32 = project_f32,
};
