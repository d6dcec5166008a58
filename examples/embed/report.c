#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { E = ENCODER_WIDTH, TEXT_COLUMNS = 44, TEXT_BYTES = 512 };

void report_numbers(const float embedding[E])
{
    for (int i = 0; i < E; i++)
        printf("%.9g%c", (double)embedding[i], i + 1 < E ? ' ' : '\n');
}

int report_fit(const char *text, size_t bytes, int columns, char *fitted, size_t room)
{
    static const char ellipsis[] = "\u2026";
    size_t end = 0, cut = 0; /* cut: where the ellipsis still fits in */
    int used = 0, cut_used = 0;
    for (size_t at = 0; at < bytes;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t length = utf8proc_iterate((const utf8proc_uint8_t *)text + at,
                                                   (utf8proc_ssize_t)(bytes - at), &c);
        at += length > 0 ? (size_t)length : 1;
        if (length <= 0)
            c = 0xFFFD;
        else if (utf8proc_category(c) == UTF8PROC_CATEGORY_CC)
            c = ' ';
        int width = utf8proc_charwidth(c);
        if (used + width > columns || end + 4 + sizeof ellipsis > room) {
            memcpy(fitted + cut, ellipsis, sizeof ellipsis);
            return cut_used + 1;
        }
        end += (size_t)utf8proc_encode_char(c, (utf8proc_uint8_t *)fitted + end);
        used += width;
        if (used < columns) {
            cut = end;
            cut_used = used;
        }
    }
    fitted[end] = '\0';
    return used;
}

static double cosine(const float *a, const float *b)
{
    double sum = 0;
    for (int i = 0; i < E; i++)
        sum += (double)a[i] * b[i];
    return fabs(sum) < 0.0005 ? 0 : sum; /* no "-0.000" */
}

void report_cosines(const struct sentence *sentences, float (*embeddings)[E], int64_t count)
{
    char text[TEXT_BYTES];
    int widest = 0, digits = snprintf(NULL, 0, "%lld", (long long)count);
    for (int64_t i = 0; i < count; i++) {
        int used = report_fit(sentences[i].text, sentences[i].bytes, TEXT_COLUMNS, text,
                              sizeof text);
        widest = used > widest ? used : widest;
    }

    if (count > 0)
        printf("%*s", digits + 2 + widest, "");
    for (int64_t j = 0; j < count; j++)
        printf("%8lld%s", (long long)j + 1, j + 1 < count ? "" : "\n");
    for (int64_t i = 0; i < count; i++) {
        int used = report_fit(sentences[i].text, sentences[i].bytes, TEXT_COLUMNS, text,
                              sizeof text);
        printf("%*lld  %s%*s", digits, (long long)i + 1, text, widest - used, "");
        for (int64_t j = 0; j < count; j++)
            printf("%8.3f%s", cosine(embeddings[i], embeddings[j]), j + 1 < count ? "" : "\n");
    }
}

bool report_difference(mha_context *ctx, const char *path, float (*embeddings)[E], int64_t count,
                       double *largest, struct reason *why)
{
    mha_safetensors *file = NULL;
    float *recorded = malloc((size_t)count * sizeof *embeddings + 1);
    struct mha_tensor tensor = mha_tensor_2d(recorded, MHA_FLOAT32, count, E);
    bool ok = recorded || failed(why, "out of memory");
    ok = ok
         && ((!mha_safetensors_open(ctx, path, 0, &file)
              && !mha_safetensors_read(ctx, file, "sentences/out.embedding", &tensor))
             || failed(why, "%s: %s", path, mha_context_message(ctx)));
    const float *got = count > 0 ? embeddings[0] : NULL;
    *largest = 0;
    for (int64_t i = 0; ok && i < count * E; i++) {
        double difference = fabs((double)got[i] - recorded[i]);
        if (!(difference <= *largest) && !isnan(*largest))
            *largest = difference;
    }
    mha_safetensors_close(file);
    free(recorded);
    return ok;
}
