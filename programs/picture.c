/*
 * Draws matrices of weights as panels of coloured cells, by cairo.
 *
 * The origin is the upper left corner of the first panel; everything else is placed around the
 * panels, to the left at negative x and above at negative y. The whole is drawn twice: first on a
 * recording surface, which tells the extents of all ink, then on a surface of that size. So nothing
 * can be cut, whatever the labels and fonts are.
 */
#include "picture.h"

#include <cairo-svg.h>
#include <cairo.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "colour.h"
#include "command.h"

enum { MOST_PIXELS = 16384, MOST_DRAFTS = 100 };

static const double MARGIN = 16;
static const double LABEL_GAP = 6;   /* between a panel and its labels */
static const double CAPTION_GAP = 8; /* between labels and the caption beyond them */
static const double PANEL_GAP = 18;
static const double CAPTION_FONT = 12;
static const double HEAD_FONT = 13;
static const double TITLE_FONT = 16;
static const double BAR_WIDTH = 12;

/* The labels along one side of every panel. */
struct axis {
    char *const *labels; /* NULL: numbers */
    int64_t count;
    int64_t step; /* only each step-th is drawn */
    double font;
    double longest; /* of the labels drawn */
};

struct layout {
    const struct picture *picture;
    struct range range;
    struct colour palette[COLOUR_SHADES];
    struct axis rows, columns;
    double cell;             /* side of a cell */
    double slant;            /* angle of the column labels; they rise to the right */
    int64_t across, down;    /* panels */
    double width, height;    /* of a panel */
    double pitch_x, pitch_y; /* from panel to panel */
    double column_label_height;
};

int32_t picture_format(const char *path)
{
    const char *suffix = strrchr(path, '.');
    if (suffix && strcasecmp(suffix, ".png") == 0)
        return PICTURE_PNG;
    return suffix && strcasecmp(suffix, ".svg") == 0 ? PICTURE_SVG : 0;
}

/* ---- text ---- */

static void use_font(cairo_t *cr, double size, bool bold)
{
    cairo_select_font_face(cr, "sans-serif", CAIRO_FONT_SLANT_NORMAL,
                           bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(cr, size);
}

static double text_width(cairo_t *cr, const char *text)
{
    cairo_text_extents_t extents;
    cairo_text_extents(cr, text, &extents);
    return extents.x_advance;
}

/* Text turned by `angle` against the clock, so that the point `along` its length (0 is the start, 1
 * the end) and halfway up is at (x, y). */
static void put_text(cairo_t *cr, const char *text, double x, double y, double along, double angle)
{
    cairo_font_extents_t font;
    cairo_font_extents(cr, &font);
    cairo_save(cr);
    cairo_translate(cr, x, y);
    cairo_rotate(cr, -angle);
    cairo_move_to(cr, -along * text_width(cr, text), (font.ascent - font.descent) / 2);
    cairo_show_text(cr, text);
    cairo_restore(cr);
}

static const char *axis_label(const struct axis *axis, int64_t i, char number[24])
{
    if (axis->labels)
        return axis->labels[i];
    snprintf(number, 24, "%lld", (long long)i);
    return number;
}

/* ---- layout ---- */

static void measure_axis(cairo_t *cr, struct axis *axis)
{
    char number[24];
    use_font(cr, axis->font, false);
    axis->longest = 0;
    for (int64_t i = 0; i < axis->count; i += axis->step)
        axis->longest = fmax(axis->longest, text_width(cr, axis_label(axis, i, number)));
}

/* Given labels are all drawn; numbers in steps of 1, 2, 5, 10, ... that leave room between them. */
static void make_axis(cairo_t *cr, struct axis *axis, double cell, bool across)
{
    axis->font = axis->labels ? fmin(14, cell * 0.74) : fmin(11, fmax(9, cell * 0.7));
    axis->step = 1;
    if (!axis->labels) {
        char number[24];
        use_font(cr, axis->font, false);
        double room = across ? text_width(cr, axis_label(axis, axis->count, number)) + 6
                             : axis->font * 1.3;
        for (int64_t i = 0; (double)axis->step * cell < room; i++)
            axis->step = i % 3 == 1 ? axis->step / 2 * 5 : axis->step * 2;
    }
    measure_axis(cr, axis);
}

/* The number of panels across that brings the whole nearest to 4:3 with few places left over. */
static int64_t panels_across(int64_t panels, double pitch_x, double pitch_y)
{
    int64_t best = 1;
    double least = INFINITY;
    for (int64_t across = 1; across <= panels; across++) {
        int64_t down = (panels + across - 1) / across;
        double shape = (double)across * pitch_x / ((double)down * pitch_y);
        double left_over = (double)(across * down - panels) / (double)panels;
        double badness = fabs(log(shape * 3 / 4)) + left_over;
        if (badness < least) {
            least = badness;
            best = across;
        }
    }
    return best;
}

static double head_width(cairo_t *cr, const struct picture *picture)
{
    char head[40];
    if (picture->first_head < 0)
        return 0;
    use_font(cr, HEAD_FONT, false);
    snprintf(head, sizeof head, "head %lld",
             (long long)(picture->first_head + picture->cells.shape[0]));
    return text_width(cr, head);
}

static struct layout make_layout(cairo_t *cr, const struct picture *picture)
{
    int64_t panels = picture->cells.shape[0];
    struct layout layout = {
        .picture = picture,
        .range = colour_range(&picture->cells),
        .rows = { .labels = picture->row_labels, .count = picture->cells.shape[1] },
        .columns = { .labels = picture->column_labels, .count = picture->cells.shape[2] },
    };
    colour_palette(layout.palette);
    bool labelled = layout.rows.labels || layout.columns.labels;
    double longer = (double)(layout.rows.count > layout.columns.count ? layout.rows.count
                                                                      : layout.columns.count);
    layout.cell = fmin(48, ceil((panels == 1 ? 720 : 280) / longer));
    if (labelled)
        layout.cell = fmax(layout.cell, panels == 1 ? 16 : 14);
    make_axis(cr, &layout.rows, layout.cell, false);
    make_axis(cr, &layout.columns, layout.cell, true);

    layout.width = (double)layout.columns.count * layout.cell;
    layout.height = (double)layout.rows.count * layout.cell;
    layout.pitch_x = ceil(fmax(layout.width, head_width(cr, picture)) + PANEL_GAP);
    layout.pitch_y = layout.height + PANEL_GAP + (picture->first_head < 0 ? 0 : HEAD_FONT + 6);
    layout.across = panels_across(panels, layout.pitch_x, layout.pitch_y);
    layout.down = (panels + layout.across - 1) / layout.across;

    /* Slanted labels would reach below the panel to the left, where there can be another one. */
    if (layout.columns.labels && layout.columns.longest > layout.cell - 4)
        layout.slant = panels == 1 ? atan(1) : 2 * atan(1);
    layout.column_label_height = layout.columns.longest * sin(layout.slant)
                                 + layout.columns.font * cos(layout.slant);
    return layout;
}

/* ---- drawing ---- */

static void use_colour(cairo_t *cr, struct colour colour)
{
    cairo_set_source_rgb(cr, colour.red, colour.green, colour.blue);
}

static void use_grey(cairo_t *cr, double light)
{
    cairo_set_source_rgb(cr, light, light, light);
}

static void draw_frame(cairo_t *cr, double x, double y, double width, double height)
{
    use_grey(cr, 0.55);
    cairo_set_line_width(cr, 1);
    cairo_rectangle(cr, x - 0.5, y - 0.5, width + 1, height + 1);
    cairo_stroke(cr);
}

/*
 * One panel's cells; neighbours of the same colour in a row become one rectangle. Each rectangle
 * reaches a little under those drawn after it, to the right and below, or the seams would shine
 * through where a viewer enlarges an SVG.
 */
static void draw_cells(cairo_t *cr, const struct layout *layout, int64_t panel)
{
    const struct mha_tensor *cells = &layout->picture->cells;
    cairo_save(cr);
    cairo_set_antialias(cr, CAIRO_ANTIALIAS_NONE);
    for (int64_t i = 0; i < cells->shape[1]; i++) {
        const float *row = (const float *)cells->data + panel * cells->strides[0]
                           + i * cells->strides[1];
        double y = (double)i * layout->cell;
        double bottom = fmin(layout->height, y + layout->cell + 0.5);
        for (int64_t j = 0; j < cells->shape[2];) {
            int32_t shade = colour_shade(layout->range, row[j]);
            double x = (double)j * layout->cell;
            while (j < cells->shape[2] && colour_shade(layout->range, row[j]) == shade)
                j++;
            double right = fmin(layout->width, (double)j * layout->cell + 0.5);
            use_colour(cr, layout->palette[shade]);
            cairo_rectangle(cr, x, y, right - x, bottom - y);
            cairo_fill(cr);
        }
    }
    cairo_restore(cr);
}

static void draw_row_labels(cairo_t *cr, const struct layout *layout)
{
    char number[24];
    use_grey(cr, 0.13);
    use_font(cr, layout->rows.font, false);
    for (int64_t i = 0; i < layout->rows.count; i += layout->rows.step)
        put_text(cr, axis_label(&layout->rows, i, number), -LABEL_GAP,
                 ((double)i + 0.5) * layout->cell, 1, 0);
}

/* Level labels are centred below their columns, others end there. */
static void draw_column_labels(cairo_t *cr, const struct layout *layout)
{
    char number[24];
    double along = layout->slant > 0 ? 1 : 0.5;
    double y = layout->height + LABEL_GAP + cos(layout->slant) * layout->columns.font / 2;
    use_grey(cr, 0.13);
    use_font(cr, layout->columns.font, false);
    for (int64_t j = 0; j < layout->columns.count; j += layout->columns.step)
        put_text(cr, axis_label(&layout->columns, j, number), ((double)j + 0.5) * layout->cell, y,
                 along, layout->slant);
}

/* The outer panels carry the labels: the first of each row, the last of each column. */
static void draw_panel(cairo_t *cr, const struct layout *layout, int64_t panel, bool with_cells)
{
    const struct picture *picture = layout->picture;
    cairo_save(cr);
    cairo_translate(cr, (double)(panel % layout->across) * layout->pitch_x,
                    (double)(panel / layout->across) * layout->pitch_y);
    if (with_cells)
        draw_cells(cr, layout, panel);
    draw_frame(cr, 0, 0, layout->width, layout->height);
    if (picture->first_head >= 0) {
        char head[40];
        snprintf(head, sizeof head, "head %lld", (long long)(picture->first_head + panel));
        use_grey(cr, 0.13);
        use_font(cr, HEAD_FONT, false);
        put_text(cr, head, layout->width / 2, -6 - HEAD_FONT / 2, 0.5, 0);
    }
    if (panel % layout->across == 0)
        draw_row_labels(cr, layout);
    if (panel + layout->across >= picture->cells.shape[0])
        draw_column_labels(cr, layout);
    cairo_restore(cr);
}

static void draw_captions(cairo_t *cr, const struct layout *layout)
{
    double right = (double)(layout->across - 1) * layout->pitch_x + layout->width;
    double bottom = (double)(layout->down - 1) * layout->pitch_y + layout->height;
    double beyond = LABEL_GAP + CAPTION_GAP + CAPTION_FONT / 2;
    use_grey(cr, 0.4);
    use_font(cr, CAPTION_FONT, false);
    put_text(cr, "key", right / 2, bottom + layout->column_label_height + beyond, 0.5, 0);
    put_text(cr, "query", -layout->rows.longest - beyond, bottom / 2, 0.5, 2 * atan(1));
    if (layout->picture->title) {
        double head = layout->picture->first_head < 0 ? 0 : HEAD_FONT + 6;
        use_grey(cr, 0);
        use_font(cr, TITLE_FONT, true);
        put_text(cr, layout->picture->title, 0, -head - 14 - TITLE_FONT / 2, 0, 0);
    }
}

/* The scale, to the right of the panels: the highest value above, the lowest below. */
static void draw_scale(cairo_t *cr, const struct layout *layout)
{
    enum { STEPS = 64 };
    char number[32];
    double x = (double)(layout->across - 1) * layout->pitch_x + layout->width + 24;
    double bottom = (double)(layout->down - 1) * layout->pitch_y + layout->height;
    double step = fmax(1, fmin(3, floor(bottom / STEPS)));
    double height = STEPS * step;
    cairo_save(cr);
    cairo_set_antialias(cr, CAIRO_ANTIALIAS_NONE);
    for (int i = 0; i < STEPS; i++) {
        use_colour(cr, layout->palette[(STEPS - 1 - i) * COLOUR_TOP / (STEPS - 1)]);
        cairo_rectangle(cr, x, i * step, BAR_WIDTH, height - i * step);
        cairo_fill(cr);
    }
    cairo_restore(cr);
    draw_frame(cr, x, 0, BAR_WIDTH, height);

    use_grey(cr, 0.13);
    use_font(cr, 11, false);
    snprintf(number, sizeof number, "%.3g", layout->range.high);
    put_text(cr, number, x + BAR_WIDTH + LABEL_GAP, 4, 0, 0);
    snprintf(number, sizeof number, "%.3g", layout->range.low);
    put_text(cr, number, x + BAR_WIDTH + LABEL_GAP, height - 4, 0, 0);
    if (layout->range.has_others) {
        double y = height + 14;
        use_colour(cr, layout->palette[COLOUR_OTHER]);
        cairo_rectangle(cr, x, y, BAR_WIDTH, BAR_WIDTH);
        cairo_fill(cr);
        draw_frame(cr, x, y, BAR_WIDTH, BAR_WIDTH);
        use_grey(cr, 0.13);
        put_text(cr, layout->range.others, x + BAR_WIDTH + LABEL_GAP, y + BAR_WIDTH / 2, 0, 0);
    }
}

static void draw(cairo_t *cr, const struct layout *layout, bool with_cells)
{
    for (int64_t panel = 0; panel < layout->picture->cells.shape[0]; panel++)
        draw_panel(cr, layout, panel, with_cells);
    draw_captions(cr, layout);
    draw_scale(cr, layout);
}

/* ---- surfaces and files ---- */

/* Glyphs keep their true widths, so that both surfaces measure the same. */
static cairo_t *open_surface(cairo_surface_t *surface)
{
    cairo_t *cr = cairo_create(surface);
    cairo_font_options_t *options = cairo_font_options_create();
    cairo_font_options_set_hint_metrics(options, CAIRO_HINT_METRICS_OFF);
    cairo_font_options_set_antialias(options, CAIRO_ANTIALIAS_GRAY);
    cairo_set_font_options(cr, options);
    cairo_font_options_destroy(options);
    return cr;
}

/* Cairo's output goes here first, so that a picture that cannot be made leaves the old file. */
struct sink {
    unsigned char *bytes;
    size_t used, room;
};

static cairo_status_t pour(void *closure, const unsigned char *data, unsigned length)
{
    struct sink *sink = closure;
    if (sink->room - sink->used < length) {
        size_t room = 2 * sink->room + length;
        unsigned char *bytes = realloc(sink->bytes, room);
        if (!bytes)
            return CAIRO_STATUS_NO_MEMORY;
        sink->bytes = bytes;
        sink->room = room;
    }
    memcpy(sink->bytes + sink->used, data, length);
    sink->used += length;
    return CAIRO_STATUS_SUCCESS;
}

/* Opens the first of the names "PLACE.part0", "PLACE.part1", ... that is free. */
static FILE *open_draft(const char *place, char draft[COMMAND_PATH_BYTES])
{
    FILE *file = NULL;
    for (int number = 0; !file && number < MOST_DRAFTS; number++) {
        if (snprintf(draft, COMMAND_PATH_BYTES, "%s.part%d", place, number) >= COMMAND_PATH_BYTES) {
            errno = ENAMETOOLONG;
            break;
        }
        file = fopen(draft, "wbx");
        if (!file && errno != EEXIST)
            break;
    }
    return file;
}

/* The picture takes its place when it is whole: a failure leaves what was there. */
static int write_file(const char *path, const struct sink *sink)
{
    char place[COMMAND_PATH_BYTES], draft[COMMAND_PATH_BYTES];
    struct stat old;
    bool replaces = stat(path, &old) == 0;
    if (replaces && !S_ISREG(old.st_mode))
        return command_fail("%s: not a regular file", path);
    FILE *file = command_destination(path, place) ? open_draft(place, draft) : NULL;
    if (!file)
        return command_fail("%s: %s", path, strerror(errno));
    errno = 0;
    bool written = (!replaces || fchmod(fileno(file), old.st_mode & 0777) == 0)
                   && fwrite(sink->bytes, 1, sink->used, file) == sink->used;
    int error = errno;
    if (fclose(file) != 0 && written) {
        written = false;
        error = errno;
    }
    if (written && rename(draft, place) == 0)
        return COMMAND_OK;
    if (written)
        error = errno;
    remove(draft);
    return command_fail("%s: %s", path, error ? strerror(error) : "write error");
}

/* Where the ink of the whole is, margins included, on whole pixels. */
static int measure(cairo_t *cr, const struct layout *layout, cairo_rectangle_t *whole)
{
    draw(cr, layout, false);
    cairo_status_t status = cairo_status(cr);
    if (status != CAIRO_STATUS_SUCCESS)
        return command_fail("the picture could not be drawn: %s", cairo_status_to_string(status));
    double x, y, width, height;
    cairo_recording_surface_ink_extents(cairo_get_target(cr), &x, &y, &width, &height);
    whole->x = floor(x) - MARGIN;
    whole->y = floor(y) - MARGIN;
    whole->width = ceil(x + width) + MARGIN - whole->x;
    whole->height = ceil(y + height) + MARGIN - whole->y;
    if (whole->width > MOST_PIXELS || whole->height > MOST_PIXELS)
        return command_fail("the picture would have %.0f x %.0f pixels, more than %d a side; draw "
                            "fewer cells with --rows and --columns, or one --head",
                            whole->width, whole->height, MOST_PIXELS);
    return COMMAND_OK;
}

static int paint(const struct layout *layout, cairo_rectangle_t whole, int32_t format,
                 struct sink *sink)
{
    cairo_surface_t *surface;
    if (format == PICTURE_SVG) {
        surface = cairo_svg_surface_create_for_stream(pour, sink, whole.width, whole.height);
        cairo_svg_surface_set_document_unit(surface, CAIRO_SVG_UNIT_PX);
    } else {
        surface = cairo_image_surface_create(CAIRO_FORMAT_RGB24, (int)whole.width,
                                             (int)whole.height);
    }
    cairo_t *cr = open_surface(surface);
    use_grey(cr, 1);
    cairo_paint(cr);
    cairo_translate(cr, -whole.x, -whole.y);
    draw(cr, layout, true);
    cairo_status_t status = cairo_status(cr);
    cairo_destroy(cr);
    if (format == PICTURE_PNG && status == CAIRO_STATUS_SUCCESS)
        status = cairo_surface_write_to_png_stream(surface, pour, sink);
    cairo_surface_finish(surface);
    if (status == CAIRO_STATUS_SUCCESS)
        status = cairo_surface_status(surface);
    cairo_surface_destroy(surface);
    if (status != CAIRO_STATUS_SUCCESS)
        return command_fail("the picture could not be drawn: %s", cairo_status_to_string(status));
    return COMMAND_OK;
}

int picture_save(const struct picture *picture, const char *path)
{
    cairo_surface_t *ruler = cairo_recording_surface_create(CAIRO_CONTENT_COLOR, NULL);
    cairo_t *cr = open_surface(ruler);
    struct layout layout = make_layout(cr, picture);
    struct sink sink = { 0 };
    cairo_rectangle_t whole = { 0 };
    int code = measure(cr, &layout, &whole);
    if (code == COMMAND_OK)
        code = paint(&layout, whole, picture_format(path), &sink);
    if (code == COMMAND_OK)
        code = write_file(path, &sink);
    free(sink.bytes);
    cairo_destroy(cr);
    cairo_surface_destroy(ruler);
    return code;
}
