/*
 * libmha - the Transformer's multi-head attention layer on CPUs.
 *
 *   head_h = softmax( q_h k_h^T * scale, masked ) v_h             h = 1..H, each of width D
 *   out    = concat(head_1..head_H) W_O^T + b_O                  [B, L, H*Dv] -> [B, L, E]
 *   y      = x + out                                             the residual: both are [B, L, E]
 *
 * (A. Vaswani et al., "Attention Is All You Need", 2017, sections 3.2.1 and 3.2.2.)
 *
 * The alphabet, used for sizes here and everywhere inside:
 *
 *   B  batch (samples)           E   model width (d_model)
 *   L  query length (rows)       H   query heads
 *   S  key/value length          G   key/value heads; query head h reads key/value head h / (H/G)
 *   D  head width (d_k)          Dv  value head width (d_v)
 *
 * Shapes are written [B, L, H, D], slowest axis first. Sizes and strides count elements, never
 * bytes, unless a name ends in _bytes. Everything computes in float32.
 *
 * A complete program: self attention with the residual, causal, on random-looking numbers.
 *
 *   #include <mha.h>
 *   #include <stdio.h>
 *
 *   int main(void)
 *   {
 *       enum { L = 4, E = 8, H = 2 };
 *       float x[L * E], y[L * E], w[E * E];
 *       for (int i = 0; i < L * E; i++) x[i] = (float)(i * 7 % 11) / 11;
 *       for (int i = 0; i < E * E; i++) w[i] = (float)(i * 5 % 13) / 13 - 0.5f;
 *
 *       mha_context *ctx = NULL;
 *       mha_layer *layer = NULL;
 *       struct mha_tensor tw = mha_tensor_2d_const(w, MHA_FLOAT32, E, E);
 *       struct mha_layer_shape shape = { .E = E, .H = H };
 *       struct mha_weights weights = { .w_q = &tw, .w_k = &tw, .w_v = &tw, .w_o = &tw };
 *       struct mha_tensor tx = mha_tensor_3d_const(x, MHA_FLOAT32, 1, L, E);
 *       struct mha_tensor ty = mha_tensor_3d(y, MHA_FLOAT32, 1, L, E);
 *       struct mha_inputs inputs = { .query = &tx, .residual = &tx };
 *       struct mha_options options = { .causal = 1 };
 *       struct mha_outputs outputs = { .out = &ty };
 *
 *       if (mha_context_create(NULL, &ctx)
 *           || mha_layer_create(ctx, &shape, &weights, MHA_COPY, &layer)
 *           || mha_forward(ctx, layer, &inputs, &options, &outputs))
 *           return fprintf(stderr, "%s\n", mha_context_message(ctx)), 1;
 *       printf("y[0] = %.6f\n", y[0]);
 *       mha_layer_free(layer);
 *       mha_context_free(ctx);
 *   }
 *
 * Rules that hold for every function:
 *
 * - A function that can fail returns mha_status. On failure nothing was written to any output and
 *   every object is as it was; mha_context_message tells which function, which argument, what it
 *   got and what it wanted. Nothing here prints, aborts, exits, or sets errno.
 * - An all-zero options struct means the plain thing. Structs whose first field is `size` may leave
 *   it 0 (the layout of the first release) or set it to sizeof; a longer struct from a later header
 *   is accepted while the fields that this library does not know are zero.
 * - A context serves one call at a time (a second one at the same moment gets MHA_ERROR_BUSY);
 *   layers and files are not changed by calls and may be shared by any number of contexts.
 * - The floating-point environment, the locale, signal handlers and the BLAS's thread setting are
 *   left as they were. Calls compute under the default environment (round to nearest, no flush to
 *   zero, no traps) on every thread, whatever the caller's is, and put the caller's back.
 * - No bit of a result depends on the number of threads.
 * - Nothing waits for another context. After fork() the child may use every context that was in no
 *   call at that moment; its threads are made anew. (A child that a raw clone system call made, past
 *   the C library, is not seen as one.)
 */
#ifndef MHA_H
#define MHA_H

#include <stddef.h>
#include <stdint.h>

#define MHA_VERSION_MAJOR 0
#define MHA_VERSION_MINOR 1
#define MHA_VERSION_PATCH 0
#define MHA_VERSION "0.1.0"

#if defined(__GNUC__)
#define MHA_API __attribute__((visibility("default")))
#define MHA_CHECK __attribute__((warn_unused_result))
#else
#define MHA_API
#define MHA_CHECK
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------
 * 1. Status
 * --------------------------------------------------------------------------------------------- */

/* What a call came to. The numbers are fixed for all releases. */
typedef enum mha_status {
    MHA_OK = 0,
    MHA_ERROR_ARGUMENT = 1,    /* a value no call accepts: NULL, a negative size, an unknown mode */
    MHA_ERROR_SHAPE = 2,       /* sizes of operands that do not fit each other */
    MHA_ERROR_TYPE = 3,        /* an element type that does not belong there */
    MHA_ERROR_LAYOUT = 4,      /* strides, a read-only output, memory that overlaps */
    MHA_ERROR_OVERFLOW = 5,    /* sizes whose product no 64-bit count or BLAS integer holds */
    MHA_ERROR_MEMORY = 6,      /* the allocator returned NULL */
    MHA_ERROR_UNSUPPORTED = 7, /* right, but not on this machine or in this release */
    MHA_ERROR_BUSY = 8,        /* the context is inside another call */
    MHA_ERROR_FILE = 9,        /* the system could not open, read or write a file */
    MHA_ERROR_FORMAT = 10,     /* a file that is not what it claims to be */
    MHA_ERROR_LIMIT = 11,      /* a file larger than the limit set for it */
    MHA_ERROR_NOT_FOUND = 12,  /* no tensor of that name */
    MHA_ERROR_BLAS = 13,       /* the BLAS failed its self-check (integers of another width?) */
    MHA_ERROR_THREAD = 14      /* the system would not make a thread */
} mha_status;

/* A short lower-case text for a status, such as "shape mismatch"; "unknown status" for a number
 * that is none. Never NULL; the text is static. */
MHA_API const char *mha_status_text(mha_status status);

/* The library's version, "MAJOR.MINOR.PATCH", as linked (MHA_VERSION is the header's). */
MHA_API const char *mha_version(void);

/* The BLAS that was linked, in its own words where it tells them ("OpenBLAS 0.3.21 ..."). */
MHA_API const char *mha_blas_text(void);

/* Owner of the threads, the allocator, the kernels, the scratch memory and the last message;
 * section 3. */
typedef struct mha_context mha_context;

/* ------------------------------------------------------------------------------------------------
 * 2. Tensors: views that carry shapes
 * --------------------------------------------------------------------------------------------- */

#define MHA_MAX_RANK 6

/* Element types. The attention core takes MHA_FLOAT32 operands, MHA_UINT8 or MHA_BOOL masks and
 * MHA_INT32 or MHA_INT64 lengths; the others are what files hold. Zero is no type. */
enum mha_type {
    MHA_FLOAT32 = 1,
    MHA_FLOAT64 = 2,
    MHA_FLOAT16 = 3,  /* IEEE binary16 */
    MHA_BFLOAT16 = 4, /* the upper half of a float32 */
    MHA_BOOL = 5,     /* one byte; nonzero is true */
    MHA_UINT8 = 6,
    MHA_INT8 = 7,
    MHA_INT16 = 8,
    MHA_UINT16 = 9,
    MHA_INT32 = 10,
    MHA_UINT32 = 11,
    MHA_INT64 = 12,
    MHA_UINT64 = 13
};

/* Bytes of one element, 0 for a number that is no type. */
MHA_API int64_t mha_type_bytes(int32_t type);

/* "float32", "bool", ...; "unknown type" for a number that is none. Static, never NULL. */
MHA_API const char *mha_type_text(int32_t type);

enum mha_tensor_flag {
    MHA_READ_ONLY = 1 /* refused as an output */
};

/*
 * A view of memory that belongs to somebody else: element (i0, i1, ...) of a tensor t is at
 * (type *)t.data + i0 * t.strides[0] + i1 * t.strides[1] + ...
 *
 * Plain data: copy it, keep it on the stack, change its fields. A view never owns or frees memory.
 * Operands of the computing functions need a last stride of 1 (an axis of size 0 or 1 may have any
 * stride); other strides are free but not negative; an input may repeat elements by stride 0, an
 * output may not. Fields lie as in a DLPack DLTensor, whose arrays are copied here.
 */
struct mha_tensor {
    void *data;                    /* may be NULL when the tensor has no elements */
    int32_t type;                  /* enum mha_type */
    int32_t rank;                  /* 0 (one element) .. MHA_MAX_RANK */
    int64_t shape[MHA_MAX_RANK];   /* sizes */
    int64_t strides[MHA_MAX_RANK]; /* in elements */
    int64_t flags;                 /* enum mha_tensor_flag, or-ed */
};

/*
 * Contiguous views, slowest axis first: mha_tensor_3d(data, MHA_FLOAT32, B, L, E) is [B, L, E].
 * The makers only note what they are given and cannot fail; the call that gets the tensor checks it.
 * The _const makers take read-only memory and mark the view so that no call writes to it.
 */
MHA_API struct mha_tensor mha_tensor_1d(void *data, int32_t type, int64_t n0);
MHA_API struct mha_tensor mha_tensor_2d(void *data, int32_t type, int64_t n0, int64_t n1);
MHA_API struct mha_tensor mha_tensor_3d(void *data, int32_t type, int64_t n0, int64_t n1,
                                        int64_t n2);
MHA_API struct mha_tensor mha_tensor_4d(void *data, int32_t type, int64_t n0, int64_t n1,
                                        int64_t n2, int64_t n3);
MHA_API struct mha_tensor mha_tensor_1d_const(const void *data, int32_t type, int64_t n0);
MHA_API struct mha_tensor mha_tensor_2d_const(const void *data, int32_t type, int64_t n0,
                                              int64_t n1);
MHA_API struct mha_tensor mha_tensor_3d_const(const void *data, int32_t type, int64_t n0,
                                              int64_t n1, int64_t n2);
MHA_API struct mha_tensor mha_tensor_4d_const(const void *data, int32_t type, int64_t n0,
                                              int64_t n1, int64_t n2, int64_t n3);

/* Number of elements; -1 when the tensor is malformed or the product overflows. */
MHA_API int64_t mha_tensor_count(const struct mha_tensor *tensor);

/*
 * Views of views. `view` receives the result and may be `tensor` itself; memory is not touched;
 * read-only stays read-only. `ctx` only receives the message and may be NULL.
 *
 *   slice    `length` elements of `axis` from `start`: 0 <= start, start + length <= shape[axis]
 *   permute  axis i of the view is axis axes[i] of the tensor; `axes` holds each of 0..rank-1 once.
 *            [B, H, L, D] memory as [B, L, H, D]: axes = {0, 2, 1, 3}
 *   reshape  the same elements in row-major order under another shape; the product must be the
 *            same. Splits and joins axes of strided views where strides can say it:
 *            [B, L, H*D] becomes [B, L, H, D]; refused (MHA_ERROR_LAYOUT) where it needs a copy.
 *
 * Return MHA_ERROR_ARGUMENT for an axis or range that is not there, MHA_ERROR_SHAPE for a product
 * that differs. Cost: a few instructions.
 */
MHA_API MHA_CHECK mha_status mha_tensor_slice(mha_context *ctx, const struct mha_tensor *tensor,
                                              int32_t axis, int64_t start, int64_t length,
                                              struct mha_tensor *view);
MHA_API MHA_CHECK mha_status mha_tensor_permute(mha_context *ctx, const struct mha_tensor *tensor,
                                                const int32_t *axes, struct mha_tensor *view);
MHA_API MHA_CHECK mha_status mha_tensor_reshape(mha_context *ctx, const struct mha_tensor *tensor,
                                                int32_t rank, const int64_t *shape,
                                                struct mha_tensor *view);

/* Writes the shape as "[2, 5, 384]" (a rank of 0 is "[]"), cut to `bytes` with a closing NUL;
 * returns the length of the whole text, as snprintf does. Works on any struct, malformed or not. */
MHA_API int64_t mha_tensor_shape_text(const struct mha_tensor *tensor, char *text, int64_t bytes);

/* ------------------------------------------------------------------------------------------------
 * 3. Context
 * --------------------------------------------------------------------------------------------- */

/* Memory from the host. All memory of a context, and of the objects made with it, comes from here.
 * allocate returns `bytes` bytes at a multiple of `alignment` (a power of two), or NULL; release
 * gets what allocate returned, and the same number of bytes. Both must outlive the objects. */
struct mha_allocator {
    void *(*allocate)(void *user, size_t bytes, size_t alignment);
    void (*release)(void *user, void *block, size_t bytes);
    void *user;
};

/*
 * Threads from the host. run calls fn(arg, i) once for every 0 <= i < n, in any order, on any number
 * of threads (one is fine, also the calling one), and returns when all of them have returned. It is
 * called from inside calls on the context; using that same context in it is MHA_ERROR_BUSY.
 */
struct mha_executor {
    void (*run)(void *user, void (*fn)(void *arg, int64_t i), void *arg, int64_t n);
    void *user;
};

#define MHA_MAX_THREADS 1024
#define MHA_THREADS_ALL (-1)

struct mha_context_options {
    int64_t size;
    const struct mha_allocator *allocator; /* copied; NULL: the C library's, with transparent huge
                                            * pages asked for under blocks of 4 MiB and more */
    const char *isa;       /* "generic", "avx2", "avx512" or "neon"; NULL or "": what the
                            * environment variable MHA_ISA says, or the best this machine runs */
    char *message;         /* where to explain a failure of mha_context_create, or NULL */
    int64_t message_bytes; /* its room, closing NUL included */
    const struct mha_executor *executor; /* copied; NULL: the context makes threads of its own */

    /* How many threads a call may use, the calling one included: 1..MHA_MAX_THREADS, 0 is 1,
     * MHA_THREADS_ALL what this process may use: its affinity and its control group's quota, as they
     * are now. With an executor: the largest n that its run is called with. */
    int64_t threads;
};

/*
 * Makes a context; `options` may be NULL. Returns MHA_ERROR_ARGUMENT for an unknown instruction-set
 * level or a number of threads out of range, MHA_ERROR_UNSUPPORTED for a level this machine lacks,
 * MHA_ERROR_MEMORY; *ctx is then NULL.
 *
 * The first context of a process also leaves a handler with pthread_atfork, which counts forks.
 *
 * Cost: one allocation; scratch memory and threads come with the first call that needs them. A call
 * wakes threads for work enough only, about 30 microseconds each, and the first that does may
 * fail with MHA_ERROR_THREAD. Between calls the context's threads sleep, with all signals blocked
 * that are not faults of their own.
 */
MHA_API MHA_CHECK mha_status mha_context_create(const struct mha_context_options *options,
                                                mha_context **ctx);

/* Frees a context, its threads and its scratch memory; objects made with it live on. NULL is fine,
 * a context that is inside a call is not. */
MHA_API void mha_context_free(mha_context *ctx);

/* What the last failed call on this context had to say, at most 511 bytes; "" when none failed yet.
 * Never NULL, not even for a NULL context. Valid until the next call on the context. */
MHA_API const char *mha_context_message(const mha_context *ctx);

/* The instruction-set level in use ("generic", "avx2", "avx512", "neon"), and the processor's own name. */
MHA_API const char *mha_context_isa(const mha_context *ctx);
MHA_API const char *mha_context_cpu(const mha_context *ctx);

/* How many threads a call may use, the calling one included: the option `threads` with 0 and
 * MHA_THREADS_ALL resolved; 0 for a NULL context. */
MHA_API int64_t mha_context_threads(const mha_context *ctx);

/*
 * Grows the scratch memory to `bytes`, the answer of a workspace query, so that no later call that
 * needs no more allocates anything. Never shrinks. Without it the first call of each larger size
 * grows the scratch by itself. Returns MHA_ERROR_ARGUMENT for a negative size, MHA_ERROR_MEMORY.
 */
MHA_API MHA_CHECK mha_status mha_context_reserve(mha_context *ctx, int64_t bytes);

/* ------------------------------------------------------------------------------------------------
 * 4. One set of inputs, options and outputs for every road
 * --------------------------------------------------------------------------------------------- */

/*
 * What goes in. The shapes depend on the road:
 *
 *              mha_attention      mha_forward
 *   query      [B, L, H, D]       [B, L, E]
 *   key        [B, S, G, D]       [B, S, E_key]
 *   value      [B, S, G, Dv]      [B, S, E_value]
 *   residual   [B, L, H, Dv]      [B, L, E_out], or [B, L, H*Dv] for a layer without W_O
 *
 * key and value both NULL: self attention, both are the query. One of them NULL is an error.
 * The residual needs the very shape of the output: it is never broadcast, cut or padded.
 */
struct mha_inputs {
    int64_t size;
    const struct mha_tensor *query;
    const struct mha_tensor *key;
    const struct mha_tensor *value;
    const struct mha_tensor *residual;      /* added to the output; NULL: none */
    const struct mha_tensor *query_lengths; /* [B] int32 or int64, 0..L each; NULL: L */
    const struct mha_tensor *key_lengths;   /* [B] int32 or int64, 0..S each; NULL: S */
    const struct mha_tensor *bias_k;        /* [G, D]: one more key for every sample, projected */
    const struct mha_tensor *bias_v;        /* [G, Dv]: its value; both or neither */
};

enum mha_scale_mode {
    MHA_SCALE_DEFAULT = 0, /* 1/sqrt(D) */
    MHA_SCALE_VALUE = 1    /* the field `scale`; 0 and negative values are legal */
};

enum mha_softcap_mode {
    MHA_SOFTCAP_OFF = 0,
    MHA_SOFTCAP_TANH = 1 /* s becomes c * tanh(s / c) with c the field `softcap` */
};

enum mha_mask_kind {
    MHA_MASK_OFF = 0,
    MHA_MASK_KEEP = 1,    /* bool or uint8; nonzero: the query may attend to the key */
    MHA_MASK_DROP = 2,    /* bool or uint8; nonzero: it may not */
    MHA_MASK_ADDITIVE = 3 /* float32, added to the score; -inf excludes the key, and any finite
                           * number, however low, is only a bias (whose sum with the score may
                           * still leave float32's range and be -inf) */
};

enum mha_align_mode {
    MHA_ALIGN_TOP_LEFT = 0,     /* query row i stands at position i */
    MHA_ALIGN_BOTTOM_RIGHT = 1, /* at i + S_b - L_b, with the lengths of the sample: the last query
                                 * row meets the last key */
    MHA_ALIGN_OFFSETS = 2       /* at i + offsets[b] */
};

enum mha_window_flag {
    MHA_WINDOW_OFF = 0,
    MHA_WINDOW_LEFT = 1, /* window_left counts */
    MHA_WINDOW_RIGHT = 2 /* window_right counts */
};

/*
 * How to attend. All restrictions combine by AND: a key is visible to a query row iff
 *
 *   - it lies within the sample's key length, and the row within the query length;
 *   - the mask does not exclude it;
 *   - p - left <= j <= p + right, where p is the row's position by `align`, j the key's index from
 *     0, left is window_left (MHA_WINDOW_LEFT) or unlimited, right is window_right
 *     (MHA_WINDOW_RIGHT) or unlimited, and `causal` makes right at most 0. Windows are inclusive
 *     distances: a left of W shows W + 1 keys, the row's own among them;
 *   - its final score is not -inf.
 *
 * A key that is not visible is absent: nothing in it, NaN and infinity included, has any influence.
 * A row with no visible key gives 0 in out, 0 in weights and -inf in lse; after W_O it is b_O (plus
 * the residual).
 *
 * A score is q.k * scale, then softcap, then + additive mask, then masked. The pair bias_k/bias_v
 * and the zero pair are extra keys after all others, bias first: no restriction hides them from a row
 * within the query length; they are scaled and softcapped, never masked; their weights are the last
 * columns. A zero pair that both the layer and the call ask for is one pair.
 */
struct mha_options {
    int64_t size;
    int32_t scale_mode;               /* enum mha_scale_mode */
    float scale;                      /* finite */
    int32_t softcap_mode;             /* enum mha_softcap_mode */
    float softcap;                    /* finite, 2^-126 <= softcap <= 2^126 */
    int32_t mask_kind;                /* enum mha_mask_kind */
    int32_t causal;                   /* 0 or 1 */
    const struct mha_tensor *mask;    /* [B, H, L, S]; an axis of size 1 is broadcast */
    int32_t align;                    /* enum mha_align_mode */
    int32_t window;                   /* enum mha_window_flag, or-ed */
    const struct mha_tensor *offsets; /* [B] int32 or int64, within +-2^62; may be negative */
    int64_t window_left;              /* >= 0 */
    int64_t window_right;             /* >= 0 */
    int32_t zero_attention;           /* 1: one more key and value, all zero */
    int32_t reserved;                 /* 0 */
};

/*
 * What comes out; NULL is not wanted, but one of them must be. Asking for one output changes no bit
 * of another. S' is S plus the extra keys (bias pair, zero pair). All float32.
 *
 *                 mha_attention       mha_forward
 *   out           [B, L, H, Dv]       [B, L, E_out], or [B, L, H*Dv] for a layer without W_O
 *   lse           [B, H, L]           log-sum-exp of each row's final scores, natural logarithm
 *   weights       [B, H, L, S']       softmax of each head
 *   weights_mean  [B, L, S']          their mean over the heads
 *
 * Outputs must not overlap an input, another output or themselves. One exception: `out` may be the
 * very view that is the residual, also when that is the query (x = x + mha(x)); in mha_attention
 * only while key and value are other memory.
 */
struct mha_outputs {
    int64_t size;
    const struct mha_tensor *out;
    const struct mha_tensor *lse;
    const struct mha_tensor *weights;
    const struct mha_tensor *weights_mean;
};

/* ------------------------------------------------------------------------------------------------
 * 5. Attention without projections
 * --------------------------------------------------------------------------------------------- */

/*
 * Scaled dot-product attention of all heads: out = softmax(q k^T * scale, masked) v (+ residual).
 *
 *   ctx       context
 *   inputs    query, key, value, ... as in struct mha_inputs
 *   options   as in struct mha_options; NULL: plain attention
 *   outputs   as in struct mha_outputs
 *
 * H, G, D and Dv are read off the operands; H must be a multiple of G. B, L and S may be 0; zero
 * heads or widths are errors. Streams over blocks of keys with an online softmax (M. Milakov and
 * N. Gimelshein, "Online normalizer calculation for softmax", 2018; T. Dao et al.,
 * "FlashAttention", 2022), so no [L, S] matrix ever exists but the weights the caller asks for.
 * On the levels other than generic every output bit is fixed by docs/numerics.md: it depends on
 * the values, the options and the positions, not on strides, the batch around a sample, the level or
 * the threads.
 *
 * Returns MHA_OK, or ARGUMENT, SHAPE, TYPE, LAYOUT, OVERFLOW, MEMORY, THREAD, BUSY, or UNSUPPORTED
 * for a struct whose unknown fields are not zero; then nothing was written.
 * Cost: 2 B H L S (D + Dv) floating-point operations for pairs that the causal rule, window and
 * lengths leave (nothing is computed elsewhere but at the edges of blocks); weights cost half as
 * much again. Threads share the work by tiles of 48 rows of heads with the same keys. Scratch memory:
 * mha_attention_workspace, about one tile a thread, and the sums of every 512 keys of every row
 * where few rows make the threads share their keys. No allocation when the scratch suffices.
 */
MHA_API MHA_CHECK mha_status mha_attention(mha_context *ctx, const struct mha_inputs *inputs,
                                           const struct mha_options *options,
                                           const struct mha_outputs *outputs);

/* The scratch memory that mha_attention needs for these arguments, exactly, for
 * mha_context_reserve. Like mha_attention, but looks at shapes, strides and options only: data
 * pointers may be NULL and the contents of lengths and offsets are not read. */
MHA_API MHA_CHECK mha_status mha_attention_workspace(mha_context *ctx,
                                                     const struct mha_inputs *inputs,
                                                     const struct mha_options *options,
                                                     const struct mha_outputs *outputs,
                                                     int64_t *bytes);

/* ------------------------------------------------------------------------------------------------
 * 6. The layer
 * --------------------------------------------------------------------------------------------- */

/* The four projections and their sizes. Opaque. */
typedef struct mha_layer mha_layer;

/* Sizes of a layer, all independent; a zero takes what stands behind it. */
struct mha_layer_shape {
    int64_t size;
    int64_t E;              /* width of the query rows; needed */
    int64_t E_key;          /* width of the key rows; 0: E */
    int64_t E_value;        /* width of the value rows; 0: E_key given ? E_key : E */
    int64_t E_out;          /* width after W_O; 0: E. Must be 0 or H*Dv in a layer without W_O */
    int64_t H;              /* query heads; needed */
    int64_t G;              /* key/value heads, a divisor of H; 0: H */
    int64_t D;              /* head width; 0: E / H, which must divide exactly */
    int64_t Dv;             /* value head width; 0: D */
    int32_t zero_attention; /* 1: every call appends a zero key and value */
    int32_t reserved;       /* 0 */
};

/*
 * Weights, float32, [out, in]: y = x W^T + b. Rows lie any distance of at least their width apart;
 * the last stride is 1. The rows of W_Q are those of head 0, then of head 1, and so on; likewise W_K,
 * W_V, and the columns of W_O.
 */
struct mha_weights {
    int64_t size;
    const struct mha_tensor *w_q;    /* [H*D, E] */
    const struct mha_tensor *w_k;    /* [G*D, E_key] */
    const struct mha_tensor *w_v;    /* [G*Dv, E_value] */
    const struct mha_tensor *w_o;    /* [E_out, H*Dv]; NULL: the layer's output is the concat */
    const struct mha_tensor *b_q;    /* [H*D]; each bias may be NULL */
    const struct mha_tensor *b_k;    /* [G*D] */
    const struct mha_tensor *b_v;    /* [G*Dv] */
    const struct mha_tensor *b_o;    /* [E_out]; only with w_o */
    const struct mha_tensor *bias_k; /* [G, D]: one learned key after all others; both or neither */
    const struct mha_tensor *bias_v; /* [G, Dv]: its value */
};

enum mha_ownership {
    MHA_COPY = 0,  /* the layer keeps its own copy of the weights */
    MHA_BORROW = 1 /* the layer reads the caller's memory, which must outlive it */
};

/*
 * Makes a layer from its sizes and weights; a size that disagrees with a weight is an error that
 * names both. The layer keeps the allocator of `ctx`, but not `ctx` itself.
 *
 *   ctx        context
 *   shape      sizes, see struct mha_layer_shape
 *   weights    see struct mha_weights
 *   ownership  MHA_COPY or MHA_BORROW
 *   layer      receives the layer, NULL on failure
 *
 * Returns ARGUMENT, SHAPE, TYPE, LAYOUT, OVERFLOW, MEMORY, BUSY, UNSUPPORTED (see mha_attention), or
 * BLAS when a tiny product shows
 * that the linked BLAS does not work as declared. Cost: one allocation; with MHA_COPY two, and one
 * pass over the weights.
 */
MHA_API MHA_CHECK mha_status mha_layer_create(mha_context *ctx, const struct mha_layer_shape *shape,
                                              const struct mha_weights *weights, int32_t ownership,
                                              mha_layer **layer);

/* Frees a layer, not the weights it borrowed. NULL is fine. */
MHA_API void mha_layer_free(mha_layer *layer);

/* The sizes of a layer, every zero replaced by what it stood for; E_out is H*Dv without W_O. */
MHA_API struct mha_layer_shape mha_layer_get_shape(const mha_layer *layer);

/* What happens to a layer's matrices when they are packed. */
enum mha_originals { MHA_PACK_KEEP = 0, MHA_PACK_DROP = 1 };

/*
 * Packs the layer's matrices for inference: panels of sixteen outputs that the library's own kernels
 * read straight through, the same bytes on every instruction-set level. From then on mha_forward
 * projects without the BLAS, faster, most of all with few rows, and its bits follow docs/numerics.md.
 *
 *   ctx        context
 *   layer      layer; no call may use it meanwhile
 *   originals  MHA_PACK_KEEP leaves the matrices where they are; MHA_PACK_DROP frees the layer's
 *              copies, or forgets the borrowed ones, and mha_layer_get_weights no longer has them
 *
 * After matrices were written to, pack again, or call mha_layer_changed. Returns ARGUMENT, MEMORY,
 * BUSY; the layer is then as it was. Cost: one pass over the matrices, and their size in memory.
 */
MHA_API MHA_CHECK mha_status mha_layer_pack(mha_context *ctx, mha_layer *layer, int32_t originals);

/* Says that the matrices were written to: panels are discarded, and the layer goes through the BLAS
 * until it is packed again. Returns ARGUMENT when the originals were dropped, BUSY. */
MHA_API MHA_CHECK mha_status mha_layer_changed(mha_context *ctx, mha_layer *layer);

/* What does the layer's projections: "blas" or "packed". */
MHA_API const char *mha_layer_engine(const mha_layer *layer);

/* Views of a layer's weights, NULL for those it does not have. The tensors belong to the layer;
 * copied weights may be written through them while no call uses the layer, borrowed ones keep the
 * flags they came with. */
MHA_API struct mha_weights mha_layer_get_weights(const mha_layer *layer);

/*
 * The multi-head attention layer: project query, key and value, attend, join the heads, apply W_O
 * and b_O, add the residual.
 *
 *   q = query W_Q^T + b_Q, k = key W_K^T + b_K, v = value W_V^T + b_V
 *   out = concat_h(softmax(q_h k_h^T * scale, masked) v_h) W_O^T + b_O + residual
 *
 *   ctx       context
 *   layer     layer
 *   inputs    as in struct mha_inputs; bias_k and bias_v only when the layer has none of its own
 *   options   as in struct mha_options; NULL: plain
 *   outputs   as in struct mha_outputs
 *
 * The shapes are checked before any work. A residual [B, L, E] fits exactly when W_O brings H*Dv
 * back to E; else the message names both shapes and the cause: that there is no W_O, or where it
 * leads to. In memory `out` may be the residual, also when that is the query, key or value.
 *
 * Returns as mha_attention. Cost: 2 B (L E H D + S E_key G D + S E_value G Dv + L H Dv E_out)
 * operations for the projections beside the cost of mha_attention: of a packed layer on the context's
 * threads, of any other by the BLAS in the calling thread under the host's own BLAS settings.
 * Scratch: mha_forward_workspace.
 */
MHA_API MHA_CHECK mha_status mha_forward(mha_context *ctx, const mha_layer *layer,
                                         const struct mha_inputs *inputs,
                                         const struct mha_options *options,
                                         const struct mha_outputs *outputs);

/* Like mha_attention_workspace, but for mha_forward. */
MHA_API MHA_CHECK mha_status mha_forward_workspace(mha_context *ctx, const mha_layer *layer,
                                                   const struct mha_inputs *inputs,
                                                   const struct mha_options *options,
                                                   const struct mha_outputs *outputs,
                                                   int64_t *bytes);

/*
 * The residual sum by itself: out = x + y, element by element.
 *
 * All three are float32 of exactly the same shape, any rank; there is no broadcasting. `out` may be
 * the very view of x or of y. Returns ARGUMENT, SHAPE (the message names both shapes and the first
 * axis that differs), TYPE, LAYOUT, BUSY; nothing was written. Cost: one pass, no scratch.
 */
MHA_API MHA_CHECK mha_status mha_residual_add(mha_context *ctx, const struct mha_tensor *x,
                                              const struct mha_tensor *y,
                                              const struct mha_tensor *out);

/* ------------------------------------------------------------------------------------------------
 * 7. Files
 * --------------------------------------------------------------------------------------------- */

/*
 * NumPy's .npy (format versions 1, 2 and 3; NEP 1).
 *
 * mha_npy_shape fills `tensor` with the type and contiguous shape of the array in the file, data
 * NULL; allocate mha_tensor_count elements, set data, and mha_npy_read reads the file into it.
 * Reading converts byte order (big-endian files) and storage order (column-major files), and between
 * the float types, where `into` has another float type than the file; any other difference in type or
 * shape is an error. Types: bool, signed and unsigned integers of 1 to 8 bytes, float16, 32 and 64.
 * Refused: objects, records, text, complex numbers, a size that differs from what the header says.
 * `into` needs a last stride of 1. On failure it is untouched, except that MHA_ERROR_FILE in the middle may leave part of it.
 *
 * mha_npy_write writes version 1, little-endian, row-major, from a view of any strides, all types
 * but bfloat16; a file of that name is replaced only once the new one is whole.
 *
 * Return FILE, FORMAT, LIMIT (more than 6 axes), ARGUMENT, SHAPE, TYPE, LAYOUT, BUSY.
 */
MHA_API MHA_CHECK mha_status mha_npy_shape(mha_context *ctx, const char *path,
                                           struct mha_tensor *tensor);
MHA_API MHA_CHECK mha_status mha_npy_read(mha_context *ctx, const char *path,
                                          const struct mha_tensor *into);
MHA_API MHA_CHECK mha_status mha_npy_write(mha_context *ctx, const char *path,
                                           const struct mha_tensor *tensor);

/* An open .safetensors file. Opaque; keeps the allocator of the context that opened it. */
typedef struct mha_safetensors mha_safetensors;

/*
 * Opens a .safetensors file ("Format" in the safetensors project's README) and checks its whole header:
 * sizes against the file, names unique, offsets that tile the data exactly, without overlap, hole or
 * tail, every product checked. `header_limit` is the longest header to accept in bytes; 0 is 100 MB.
 * Tensor data need not be aligned. Tensors of types that are not in enum mha_type (float8 and
 * the like) are listed with type 0 and cannot be read. Up to 6 axes.
 *
 * Returns FILE, FORMAT, LIMIT (a header over the limit, more than 6 axes), MEMORY, ARGUMENT, BUSY;
 * *file is then NULL. Cost: linear in the header; the data is not read.
 */
MHA_API MHA_CHECK mha_status mha_safetensors_open(mha_context *ctx, const char *path,
                                                  int64_t header_limit, mha_safetensors **file);

/* Closes the file. NULL is fine. */
MHA_API void mha_safetensors_close(mha_safetensors *file);

/* Number of tensors, in the order of their data, and the name of one (NULL outside 0..count-1). The
 * name belongs to the file object; it is UTF-8 as in the file, with JSON escapes resolved. */
MHA_API int64_t mha_safetensors_count(const mha_safetensors *file);
MHA_API const char *mha_safetensors_name(const mha_safetensors *file, int64_t index);

/* Type and contiguous shape of a tensor in the file, data NULL. NOT_FOUND when there is none of
 * that name. */
MHA_API MHA_CHECK mha_status mha_safetensors_shape(mha_context *ctx, const mha_safetensors *file,
                                                   const char *name, struct mha_tensor *tensor);

/* Reads a tensor into memory of the same shape, converting between float types where they differ.
 * Returns NOT_FOUND, SHAPE, TYPE, LAYOUT, FILE, ARGUMENT, BUSY. */
MHA_API MHA_CHECK mha_status mha_safetensors_read(mha_context *ctx, const mha_safetensors *file,
                                                  const char *name, const struct mha_tensor *into);

/* How the weights are called in a file. Each name follows the prefix directly. */
enum mha_naming {
    MHA_NAMING_TORCH = 1, /* in_proj_weight, or q_proj_weight, k_proj_weight, v_proj_weight;
                           * in_proj_bias; out_proj.weight, out_proj.bias; bias_k, bias_v */
    MHA_NAMING_BERT = 2   /* self.query.weight, self.query.bias, self.key..., self.value...;
                           * output.dense.weight, output.dense.bias */
};

/* How the rows of the three projections lie in the file. Never guessed: a square or equal size says
 * nothing. */
enum mha_fusion {
    MHA_FUSION_SEPARATE = 1, /* three matrices */
    MHA_FUSION_BLOCKS = 2,   /* one: all rows of Q, then of K, then of V (PyTorch's in_proj) */
    MHA_FUSION_PER_HEAD = 3, /* one: q, k, v rows of head 0, then of head 1, ...; needs G = H */
    MHA_FUSION_PER_GROUP = 4 /* one: for each key/value head the q rows of its query heads, then its
                               * k rows, then its v rows */
};

enum mha_orientation {
    MHA_OUT_IN = 0, /* matrices are [out, in], as everywhere in this library */
    MHA_IN_OUT = 1  /* matrices are [in, out] in the file (GPT-2's Conv1D) and are transposed */
};

struct mha_layer_source {
    int64_t size;
    const char
        *prefix;    /* before every name, with its dot: "encoder.layer.0.attention."; NULL: "" */
    int32_t naming; /* enum mha_naming; needed */
    int32_t fusion; /* enum mha_fusion; needed. PyTorch's bias is in_proj_bias also beside
                          * separate matrices, where it is always in blocks */
    int32_t orientation; /* enum mha_orientation */
    int32_t reserved;    /* 0 */
};

/*
 * Makes a layer from the tensors of a file, converted to float32. `shape` needs H; a zero E, E_key,
 * E_value, D, Dv, E_out is taken from the matrices, a zero G is H; sizes given must agree with the
 * file. W_O is required; biases and bias_k/bias_v are loaded when the file has them.
 *
 *   ctx      context
 *   file     open file
 *   source   where and how the weights lie
 *   shape    sizes
 *   layer    receives the layer, NULL on failure
 *
 * Returns NOT_FOUND naming the tensor, SHAPE naming the tensor with what it is and should be, and as
 * mha_layer_create and mha_safetensors_read.
 */
MHA_API MHA_CHECK mha_status mha_layer_load(mha_context *ctx, const mha_safetensors *file,
                                            const struct mha_layer_source *source,
                                            const struct mha_layer_shape *shape, mha_layer **layer);

#ifdef __cplusplus
}
#endif

#endif /* MHA_H */
