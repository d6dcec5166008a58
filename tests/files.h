/* Files for the tests of src/io: a directory that lives as long as the test program, and what is
 * put into it. */
#ifndef FILES_H
#define FILES_H

#include <stdint.h>

#include "mha.h"

/* Group set-up and tear-down for CMocka: those of fixture.h, and the directory is made, and removed
 * with all that is in it. */
int files_setup(void **state);
int files_teardown(void **state);

/* The path of a file in the directory. The text lives until the eighth next call. */
const char *file_path(const char *name);

/* Number of files in the directory whose name starts with `start`. */
int64_t files_count(const char *start);

/* Replaces a file, or fails the test; returns its path. */
const char *file_write(const char *name, const void *bytes, int64_t n);

/* Changes one byte of a file. */
void file_poke(const char *path, int64_t at, char byte);

/* Reads a whole file into memory to be freed, or fails the test. */
char *file_read(const char *path, int64_t *n);

/* Writes a .safetensors file of the header's text and `n` bytes of data; returns its path. */
const char *file_write_safetensors(const char *name, const char *header, const void *data,
                                   int64_t n);

/* Writes an .npy file of version 1 from the header's text, which is not padded. */
const char *file_write_npy(const char *name, const char *header, const void *data, int64_t n);

/* Switches to an installed locale whose decimal point is a comma, or skips the running test. */
void locale_with_comma(void);

/* Back from there to "C"; fails the test when somebody else has changed the locale meanwhile. */
void locale_back(void);

#endif
