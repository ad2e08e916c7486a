"""Detect the kind of a source from the names and sizes of its files."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from penstock.errors import InvalidInputError
from penstock.ingest._source import Source, SourceListing, extension
from penstock.storage import ObjectInfo

_MAX_LISTED = 8


def detect_source(objects: Sequence[ObjectInfo], sources: Mapping[str, Source], kind: str | None, uri: str) -> Source:
    """The source of a kind, or the first one that recognises the files; raises `InvalidInputError` if none does."""
    if kind is not None:
        if kind not in sources:
            raise InvalidInputError(f"there is no kind of source called {kind!r}; there are {', '.join(sources)}")
        return sources[kind]
    found = _recognise(objects, sources)
    if found is None:
        raise InvalidInputError(_describe(objects, sources, uri))
    return found


def _recognise(objects: Sequence[ObjectInfo], sources: Mapping[str, Source]) -> Source | None:
    listing = SourceListing(objects)
    return next((source for source in sources.values() if source.recognise(listing)), None)


def _describe(objects: Sequence[ObjectInfo], sources: Mapping[str, Source], uri: str) -> str:
    """Which kinds of files there are, and how to choose one."""
    kind_of: dict[str, str] = {}
    for source in sources.values():
        for ending in source.extensions:
            kind_of.setdefault(ending, source.name)
    endings = Counter(extension(item.key) for item in objects)
    kinds = Counter[str]()
    for ending, count in endings.items():
        if ending in kind_of:
            kinds[kind_of[ending]] += count
    others = Counter({ending or "no ending": count for ending, count in endings.items() if ending not in kind_of})
    unpack = "; unpack the .zip files first" if ".zip" in others else ""
    if not kinds:
        listed = ", ".join(ending for ending, _ in others.most_common(_MAX_LISTED))
        return (
            f"{uri} has no files of a known kind (their names end in {listed}){unpack}; name the kind with --as"
            f" (kind=…): {', '.join(sources)}"
        )
    held = [f"{count:,} {kind}" for kind, count in kinds.most_common()]
    if others:
        listed = ", ".join(f"{count:,} {ending}" for ending, count in others.most_common(_MAX_LISTED))
        held.append(f"{others.total():,} of no known kind ({listed})")
    folders = _folders(objects, sources)
    return (
        f"{uri} holds files of several kinds: {', '.join(held)}{unpack}; choose the kind to ingest with --as, such as"
        f" --as {kinds.most_common(1)[0][0]} (kind=…){f', or ingest one of its folders: {folders}' if folders else ''}"
    )


def _folders(objects: Sequence[ObjectInfo], sources: Mapping[str, Source]) -> str:
    """The outermost folders that hold files of one kind, with their kinds."""
    by_folder: dict[str, list[ObjectInfo]] = defaultdict(list)
    for item in objects:
        folder, slash, _ = item.key.partition("/")
        if slash:
            by_folder[folder].append(item)
    kinds = ((folder, _recognise(files, sources)) for folder, files in by_folder.items())
    found = [f"{folder} ({source.name})" for folder, source in kinds if source is not None]
    return ", ".join(found[:_MAX_LISTED]) + (", …" if len(found) > _MAX_LISTED else "")
