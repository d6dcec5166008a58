/* The colours of weights. */
#include "colour.h"

#include <math.h>
#include <stddef.h>

struct range colour_range(const struct mha_tensor *cells)
{
    struct range range = { 0 };
    bool has_nan = false;
    bool has_infinity = false;
    for (int64_t panel = 0; panel < cells->shape[0]; panel++) {
        for (int64_t i = 0; i < cells->shape[1]; i++) {
            const float *row = (const float *)cells->data + panel * cells->strides[0]
                               + i * cells->strides[1];
            for (int64_t j = 0; j < cells->shape[2]; j++) {
                has_nan |= isnan(row[j]) != 0;
                has_infinity |= isinf(row[j]) != 0;
                if (isfinite(row[j])) {
                    range.low = fmin(range.low, row[j]);
                    range.high = fmax(range.high, row[j]);
                }
            }
        }
    }
    if (range.low == range.high)
        range.high = 1;
    range.has_others = has_nan || has_infinity;
    range.others = !has_infinity ? "NaN" : has_nan ? "NaN, infinite" : "infinite";
    return range;
}

int32_t colour_shade(struct range range, float value)
{
    if (!isfinite(value))
        return COLOUR_OTHER;
    return (int32_t)lround((value - range.low) / (range.high - range.low) * COLOUR_TOP);
}

/* CIE L*a*b* (white point D65) to sRGB, IEC 61966-2-1. */
static double from_lab(double t)
{
    return t > 6.0 / 29 ? t * t * t : 3 * (6.0 / 29) * (6.0 / 29) * (t - 4.0 / 29);
}

static double to_srgb(double linear)
{
    double value = linear <= 0.0031308 ? 12.92 * linear : 1.055 * pow(linear, 1 / 2.4) - 0.055;
    return fmin(1, fmax(0, value));
}

static struct colour lab(double lightness, double a, double b)
{
    double fy = (lightness + 16) / 116;
    double x = 0.95047 * from_lab(fy + a / 500);
    double y = from_lab(fy);
    double z = 1.08883 * from_lab(fy - b / 200);
    return (struct colour){
        .red = to_srgb(3.2404542 * x - 1.5371385 * y - 0.4985314 * z),
        .green = to_srgb(-0.9692660 * x + 1.8760108 * y + 0.0415560 * z),
        .blue = to_srgb(0.0556434 * x - 0.2040259 * y + 1.0572252 * z),
    };
}

/* Lightness falls in equal steps, which is what the eye takes for equal steps of the value; colour
 * swells in the middle and turns from green-blue to violet-blue, so that neighbours differ in more
 * than lightness. */
void colour_palette(struct colour palette[COLOUR_SHADES])
{
    for (int32_t shade = 0; shade <= COLOUR_TOP; shade++) {
        double t = (double)shade / COLOUR_TOP;
        double chroma = 2 + 38 * sin(2.7 * t);
        double hue = (225 + 70 * t) * atan(1) / 45;
        palette[shade] = lab(98 - 78 * t, chroma * cos(hue), chroma * sin(hue));
    }
    palette[COLOUR_OTHER] = lab(66, 38, 56);
}
