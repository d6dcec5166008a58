/* A call with every operand and every option in it, on either road, for tests that change one thing
 * at a time; and the checks of what the door then says. */
#ifndef PROBLEM_H
#define PROBLEM_H

#include "fixture.h"

enum { B = 2, L = 3, S = 5, H = 4, G = 2, D = 7, Dv = 11 };
enum { E = 13, E_KEY = 17, E_VALUE = 19, E_OUT = 23 };

enum operand {
    QUERY,
    KEY,
    VALUE,
    RESIDUAL,
    QUERY_LENGTHS,
    KEY_LENGTHS,
    BIAS_K,
    BIAS_V,
    MASK,
    OFFSETS,
    OUT, /* the outputs are the last four */
    LSE,
    WEIGHTS,
    WEIGHTS_MEAN,
    OPERANDS
};
extern const char *const operand_names[OPERANDS];

/* A set of operands that are left out. */
#define NONE 0u
#define WITHOUT(operand) (1u << (operand))

enum road { ATTENTION, FORWARD, ROADS };

struct problem {
    enum road road;
    const mha_layer *layer;
    struct mha_tensor t[OPERANDS];
    struct mha_inputs inputs;
    struct mha_options options;
    struct mha_outputs outputs;
};

/* Each operand has floats of its own, with MARGIN of them before and room behind. */
enum { MARGIN = 320, ROOM = 3 * MARGIN };
extern float problem_memory[OPERANDS][ROOM];

/* Set-up and tear-down of a group of tests: those of fixture.h, and the layer. */
int problem_open(void **state);
int problem_close(void **state);
extern mha_layer *problem_layer; /* without biases, its weights borrowed */
extern struct mha_tensor problem_weights[4];

/* Random operands, outputs full of NaN. The fields of inputs and outputs are still empty: */
struct problem problem_make(enum road road);
/* points every field at its tensor, but for the operands that are left out. */
void problem_give(struct problem *p, uint32_t absent);
const struct mha_tensor **problem_field(struct problem *p, int operand);

mha_status problem_call(const struct problem *p);
mha_status problem_query(const struct problem *p, int64_t *bytes);

/* The call is refused so, with a message that has `text` in it, having written and allocated
 * nothing; and the workspace query is refused in the same words. */
void check_refused(const struct problem *p, mha_status want, const char *text);
/* The same of a call alone, for what only a call looks at: data, lengths, overlap. */
void check_refused_call(const struct problem *p, mha_status want, const char *text);
/* check_refused with a message about that operand. */
void check_operand(const struct problem *p, int operand, mha_status want, const char *text);

/* Accepted, and right: compared with float64 on the operands as they were before. */
void check_accepted(const struct problem *p);

/* Between the two nothing in problem_memory has changed. */
void problem_remember(void);
void check_untouched(void);

/* The last message is that of this road's call, and has `text` in it. */
void check_call_message(const struct problem *p, const char *text);

/* Contiguous strides for the shape as it is. */
void pack_strides(struct mha_tensor *tensor);

#endif
