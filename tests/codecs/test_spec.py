"""Codec specs parse and round trip."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codecs import Compression, ImageCodec
from penstock.errors import InvalidInputError

Choice = type[Compression] | type[ImageCodec]


def choices(names: dict[str, range | None]) -> st.SearchStrategy[tuple[str, int | None]]:
    return st.one_of(
        [
            st.tuples(st.just(name), st.none() | st.sampled_from(levels) if levels else st.none())
            for name, levels in names.items()
        ]
    )


@given(choices({"none": None, "lz4": range(1, 13), "zstd": range(1, 23)}))
def test_compression_round_trip(choice: tuple[str, int | None]) -> None:
    compression = Compression(*choice)
    assert Compression.parse(compression.spec) == compression == pickle.loads(pickle.dumps(compression))


@given(choices({"jpeg": range(1, 101), "webp": range(101), "png": range(10), "tiff": None, "bmp": None, "gif": None}))
def test_image_round_trip(choice: tuple[str, int | None]) -> None:
    codec = ImageCodec(*choice)
    assert ImageCodec.parse(codec.spec) == codec == pickle.loads(pickle.dumps(codec))


@pytest.mark.parametrize("text", ["", "zstd:", "zstd:0", "zstd:23", "zstd:-1", "zstd:3:3", "Zstd", " zstd", "zstd:٣",
                                  "lz4:13", "none:1", "gzip", "jpeg"])  # fmt: skip
def test_invalid_compression_specs_are_rejected(text: str) -> None:
    with pytest.raises(InvalidInputError):
        Compression.parse(text)


@pytest.mark.parametrize("text", ["jpeg:0", "jpeg:101", "png:10", "gif:1", "heic", "zstd", "jpeg:9.5"])
def test_invalid_image_specs_are_rejected(text: str) -> None:
    with pytest.raises(InvalidInputError):
        ImageCodec.parse(text)


@given(st.text() | st.from_regex(r"[a-z0-9]+(:[0-9]+)?", fullmatch=True), st.sampled_from([Compression, ImageCodec]))
def test_any_text_parses_or_is_rejected(text: str, choice: Choice) -> None:
    try:
        parsed = choice.parse(text)
    except InvalidInputError:
        return
    assert choice.parse(parsed.spec) == parsed
