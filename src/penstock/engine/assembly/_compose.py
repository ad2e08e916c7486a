"""Choose the collator for rows, or for samples that are composed of rows."""

from penstock.device import Accelerator
from penstock.engine._options import DecodeOptions
from penstock.engine.assembly._collate import Collator
from penstock.engine.assembly._collate_packed import PackedCollator
from penstock.engine.assembly._collate_windows import WindowCollator
from penstock.engine.assembly._image_cache import ImageCache
from penstock.engine.planning import Layout, PackedSamples, WindowSamples
from penstock.table import Reader


def new_collator(
    reader: Reader,
    layout: Layout,
    options: DecodeOptions,
    accelerator: Accelerator | None = None,
    *,
    images: ImageCache | None = None,
) -> Collator:
    """A collator; `images` are those that windows share."""
    if isinstance(layout.composition, WindowSamples):
        return WindowCollator(reader, layout, options, accelerator, layout.composition, images)
    if isinstance(layout.composition, PackedSamples):
        return PackedCollator(reader, layout, options, layout.composition)
    return Collator(reader, layout, options, accelerator)
