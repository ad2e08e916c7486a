"""Row options of an ingest: what a user can set, stored with the table so that a later sync applies the same."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypedDict

from penstock.codecs import IMAGE_CODECS, Compression, ImageCodec
from penstock.errors import InvalidInputError
from penstock.format import Column, SchemaLike, column_from_json, make_schema
from penstock.plan import Shuffle

Transform = Callable[[dict[str, Any]], dict[str, Any] | None]

_JSON_KEYS = {"image_size": "resize", "shuffle_seed": "shuffle"}
"""Attributes whose keys in stored documents have other names."""


class IngestKeywords(TypedDict, total=False):
    """Row options that a user passes to `penstock.ingest`."""

    columns: Sequence[str] | None
    """The columns to store, in this order; by default all."""
    schema: SchemaLike | None
    """The kinds of some columns, such as `{"x": "float32[14]"}`; the others are inferred from the first rows."""
    codecs: Mapping[str, str] | None
    """Column to codec: an image format with a quality (`jpeg:90`), or a compression of any column (`zstd`)."""
    decode: bool
    """Store images as tensors, ready to read, instead of the encoded bytes of the source."""
    image_size: tuple[int, int] | None
    """Resize images to this height and width."""
    nullable: Sequence[str]
    """Columns that may be null in later rows, even if the first rows have values."""
    transform: str | Transform | None
    """A function, or `module:function`, from a row (a dictionary) to the row to store, or to None to skip it."""
    shuffle: bool | Shuffle
    """Write files in random order and shuffle the rows in groups of about a thousand; `Shuffle` sets the seed."""
    link: bool
    """Store links to the values in the source instead of copies."""
    follow_links: bool
    """Follow symbolic links to folders, and to files outside of the source folder."""


@dataclass(frozen=True)
class IngestOptions:
    """Validated row options. Raises `InvalidInputError` for values out of range."""

    columns: tuple[str, ...] | None = None
    """The columns to store, in this order; by default all."""
    schema: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The columns whose kinds the user gave, as `Field.to_json` writes them, without id and name."""
    codecs: Mapping[str, str] = field(default_factory=dict)
    """Column to codec: an image format with a quality (`jpeg:90`), or a compression of any column (`zstd`)."""
    decode: bool = False
    """Whether images are stored as tensors instead of the encoded bytes of the source."""
    image_size: tuple[int, int] | None = None
    """Height and width to which images are resized."""
    nullable: tuple[str, ...] = ()
    """Columns that may be null in later rows, even if the first rows have values."""
    transform: str | None = None
    """`module:function`, from a row (a dictionary) to the row to store, or to None to skip it."""
    shuffle_seed: int | None = None
    """Seed of the order of the files and of the rows within a chunk; None keeps the order of the source."""
    link: bool = False
    """Whether the table stores links to the values in the source instead of copies."""
    follow_links: bool = False
    """Whether symbolic links to folders, and to files outside of the source folder, are followed."""

    def __post_init__(self) -> None:
        if self.link and (self.decode or self.image_size is not None):
            raise InvalidInputError("a linked image is stored unchanged: leave out decode and image_size, or link")
        if self.image_size is not None and (len(self.image_size) != 2 or min(self.image_size) < 1):
            raise InvalidInputError(f"image_size is a height and a width, such as 256x256, not {self.image_size}")
        for column, codec in self.codecs.items():
            if codec.partition(":")[0] not in IMAGE_CODECS:
                Compression.parse(codec)
            elif self.link:
                raise InvalidInputError(
                    f"column {column!r} is linked and stored unchanged: leave out its codec, or link"
                )

    @classmethod
    def from_keywords(cls, given: IngestKeywords) -> "IngestOptions":
        """Options from the keywords of `penstock.ingest`; a transform is stored by its name."""
        columns = given.get("columns")
        return cls(
            columns=None if columns is None else tuple(columns),
            schema=_schema_document(given.get("schema")),
            codecs={column: _codec(codec) for column, codec in (given.get("codecs") or {}).items()},
            decode=given.get("decode", False),
            image_size=given.get("image_size"),
            nullable=tuple(given.get("nullable", ())),
            transform=transform_name(given.get("transform")),
            shuffle_seed=_shuffle_seed(given.get("shuffle", False)),
            link=given.get("link", False),
            follow_links=given.get("follow_links", False),
        )

    @property
    def declared(self) -> dict[str, Column]:
        """The columns whose kinds the user gave."""
        return {name: column_from_json(document) for name, document in self.schema.items()}

    @property
    def transforms_rows(self) -> bool:
        """Whether rows need work before they are stored."""
        return self.decode or self.image_size is not None or self.transform is not None or bool(self.codecs)

    def to_json(self) -> dict[str, Any]:
        """The options that differ from the defaults."""
        defaults = asdict(IngestOptions())
        return {_JSON_KEYS.get(name, name): value for name, value in asdict(self).items() if value != defaults[name]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "IngestOptions":
        """Inverse of `to_json`; ignores unknown keys."""
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in document.items()
        }
        keys = {member.name: _JSON_KEYS.get(member.name, member.name) for member in fields(cls)}
        return cls(**{name: given[key] for name, key in keys.items() if key in given})


def _codec(text: str) -> str:
    """A codec under its own name: jpeg for jpg."""
    try:
        return ImageCodec.parse(text).spec
    except InvalidInputError:
        return text


def _schema_document(schema: SchemaLike | None) -> dict[str, dict[str, Any]]:
    documents = {} if schema is None else {field.name: field.to_json() for field in make_schema(schema)}
    return {
        name: {key: value for key, value in document.items() if key not in ("id", "name", "fill")}
        for name, document in documents.items()
    }


def transform_name(transform: str | Transform | None) -> str | None:
    """`module:function` of a function; raises `InvalidInputError` if it cannot be imported by that name."""
    if transform is None or isinstance(transform, str):
        return transform
    name = f"{transform.__module__}:{transform.__qualname__}"
    if "<" in name or "." in transform.__qualname__:
        raise InvalidInputError(
            f"a transform is stored by its name, and {name} cannot be imported; define it at the top of a module"
        )
    return name


def find_transform(name: str) -> Transform:
    """Import the function that `module:function` names; raises `InvalidInputError` if it cannot be imported."""
    module, separator, function = name.partition(":")
    if not separator or not function:
        raise InvalidInputError(f"a transform is written module:function, not {name!r}")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InvalidInputError(f"transform {name!r} cannot be imported: {error}") from error
    if not callable(found):
        raise InvalidInputError(f"transform {name!r} is not a function")
    return found  # type: ignore[no-any-return]


def _shuffle_seed(shuffle: bool | Shuffle) -> int | None:
    if isinstance(shuffle, bool):
        return Shuffle().seed if shuffle else None
    if not isinstance(shuffle, Shuffle):
        raise InvalidInputError(f"shuffle is True, False or penstock.Shuffle(seed=…), not {shuffle!r}")
    if shuffle != Shuffle(shuffle.seed):
        raise InvalidInputError("an ingest uses only the seed of a Shuffle: leave out block_bytes, spread and lanes")
    return shuffle.seed
