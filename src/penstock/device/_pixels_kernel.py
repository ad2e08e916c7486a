"""All that is done to pictures on a GPU in one pass over them: where plain torch takes ten, and as many calls."""

import triton
import triton.language as tl

# mypy: disable-error-code="misc, no-untyped-def, untyped-decorator"


@triton.jit
def one_pass(
    pictures,
    out,
    places,
    factors,
    offsets,
    picture_stride,
    row_stride,
    column_stride,
    colour_stride,
    height,
    width,
    blocks,
    COLOURS: tl.constexpr,  # noqa: N803
    PLACED: tl.constexpr,  # noqa: N803
    SCALED: tl.constexpr,  # noqa: N803
    COLOURS_LAST: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Some values of one picture of the result, of this height and width: one of so many `blocks` of them.

    `places` has three numbers for each picture: its first row, its first column, and whether it is mirrored.
    """
    picture = (tl.program_id(0) // blocks).to(tl.int64)
    at = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = at < height * width * COLOURS
    if COLOURS_LAST:
        colour, column, row = at % COLOURS, at // COLOURS % width, at // COLOURS // width
    else:
        colour, column, row = at // width // height, at % width, at // width % height
    across, down = column, row
    if PLACED:
        mirrored = tl.load(places + 3 * picture + 2) != 0
        down = tl.load(places + 3 * picture) + row
        across = tl.load(places + 3 * picture + 1) + tl.where(mirrored, width - 1 - column, column)
    where = picture * picture_stride + down * row_stride + across * column_stride + colour * colour_stride
    values = tl.load(pictures + where, mask=inside)
    if SCALED:
        scaled = values.to(tl.float32) * tl.load(factors + colour, mask=inside)
        values = scaled + tl.load(offsets + colour, mask=inside)
    tl.store(out + picture * height * width * COLOURS + at, values.to(out.dtype.element_ty), mask=inside)
