"""A Triton kernel that crops, flips, scales, casts and lays out images in one pass."""

import triton
import triton.language as tl

# mypy: disable-error-code="misc, no-untyped-def, untyped-decorator"


@triton.jit
def image_kernel(
    images,
    out,
    crops,
    factors,
    offsets,
    image_stride,
    row_stride,
    column_stride,
    channel_stride,
    height,
    width,
    blocks,
    CHANNELS: tl.constexpr,  # noqa: N803
    CROPPED: tl.constexpr,  # noqa: N803
    SCALED: tl.constexpr,  # noqa: N803
    CHANNELS_LAST: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Compute one of the `blocks` blocks of one output image of this height and width.

    `crops` has three values for each image: the first row, the first column, and 1 if the image is flipped.
    """
    image = (tl.program_id(0) // blocks).to(tl.int64)
    index = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    mask = index < height * width * CHANNELS
    if CHANNELS_LAST:
        channel, column, row = index % CHANNELS, index // CHANNELS % width, index // CHANNELS // width
    else:
        channel, column, row = index // width // height, index % width, index // width % height
    source_column, source_row = column, row
    if CROPPED:
        flipped = tl.load(crops + 3 * image + 2) != 0
        source_row = tl.load(crops + 3 * image) + row
        source_column = tl.load(crops + 3 * image + 1) + tl.where(flipped, width - 1 - column, column)
    source = image * image_stride + source_row * row_stride + source_column * column_stride + channel * channel_stride
    values = tl.load(images + source, mask=mask)
    if SCALED:
        scaled = values.to(tl.float32) * tl.load(factors + channel, mask=mask)
        values = scaled + tl.load(offsets + channel, mask=mask)
    tl.store(out + image * height * width * CHANNELS + index, values.to(out.dtype.element_ty), mask=mask)
