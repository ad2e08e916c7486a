"""Robot logs: the cameras, joints and other topics of MCAP files, aligned into rows.

The contract; if the code disagrees with this list, the code is wrong:

- A file is an episode. There is a row for each message of one topic, the reference: the camera with the most messages
  in the first file that has a camera, else the topic with the most messages.
- Times are log times. Every other topic contributes its last message at or before the time of the row, or null if that
  is older than a second, if there is none yet, or if it cannot be decoded (which is reported as a reject).
- Columns are `timestamp`, `episode` (the key of the file), and for each topic: encoded images (CompressedImage) or
  tensors (Image); `joint_angles`, `joint_velocities` and `joint_efforts` of joint states, in a fixed joint order, or
  with a column `joint_names` if the joints vary; for any other message a column for each number, array and string, and
  JSON for the rest. The `header` is omitted.
- A column name joins the parts of the topic without generic last parts: `/camera/rgb/image_raw/compressed` is
  `camera_rgb`, and the field `linear.x` of `/odom/twist` is `odom_twist_linear_x`. Joint columns include the topic only
  if there are several joint topics.
- `open` decides the columns from the summaries of all files, and from messages at the beginning (and end) of the first
  file that has a topic. Other topics of later files are ignored.
"""

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import InvalidInputError, PenstockWarning
from penstock.format import Column, ColumnLike
from penstock.format.kinds import Tensor, Text
from penstock.ingest._reader import SourceReader
from penstock.ingest._source import Reject, Row, Source, SourceItem, SourceScan, suffix
from penstock.ingest.sources._mcap_columns import Path, TopicPlan, name_columns, plan_topic
from penstock.ingest.sources._mcap_log import (
    Channel,
    McapLimits,
    McapSummary,
    Message,
    read_messages,
    read_summary,
    sample_messages,
)
from penstock.ingest.sources._mcap_messages import BadMessageError, Decoder, decoder_of
from penstock.storage import ObjectInfo, thread_map

_MAX_AGE_S = 1.0
_LIMITS = McapLimits()
_SUMMARY_BATCH = 64
_SAMPLED_MESSAGES = 16
_SAMPLED_PER_CHUNK = 8
_SAMPLED_BYTES = 8 << 20
_TIME_END_NS = 1 << 63


class _LastMessage:
    """The last message of a topic, decoded on first use."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self.values: dict[str, Any] | None = None


class _Decoders:
    """The decoders of the channels of a file, created on first use."""

    def __init__(self) -> None:
        self._by_channel: dict[Channel, Decoder] = {}

    def decode(self, message: Message) -> dict[str, Any]:
        decode = self._by_channel.get(message.channel)
        if decode is None:
            decode = self._by_channel[message.channel] = decoder_of(message.channel)
        return decode(message.data)


@dataclass(frozen=True)
class _Logs(SourceScan):
    """The scan of robot logs."""

    files: Sequence[ObjectInfo]
    columns: Mapping[str, ColumnLike]
    topics: Mapping[str, TopicPlan]
    names: Mapping[tuple[str, Path], str]
    reference: str
    max_age_ns: int
    limits: McapLimits

    def rows(self, reader: SourceReader, files: Sequence[ObjectInfo]) -> Iterator[SourceItem]:
        for file in files:
            empty = True
            for found in self._rows_of(reader, file):
                empty = empty and isinstance(found, Reject) and found.name != file.key
                yield found
            if empty:
                yield Reject(file.key, f"it has no readable messages on the reference topic {self.reference}")

    def _rows_of(self, reader: SourceReader, file: ObjectInfo) -> Iterator[SourceItem]:
        latest: dict[str, _LastMessage] = {}
        decoders = _Decoders()
        for found in read_messages(reader, file, last=self.reference, limits=self.limits):
            if isinstance(found, Reject):
                yield found
            elif found.channel.topic == self.reference:
                yield from self._row(file, found, latest, decoders)
            elif found.channel.topic in self.topics:
                latest[found.channel.topic] = _LastMessage(found)

    def _row(
        self, file: ObjectInfo, message: Message, latest: Mapping[str, _LastMessage], decoders: _Decoders
    ) -> Iterator[SourceItem]:
        name = f"{file.key}@{message.time_ns}"
        if message.time_ns >= _TIME_END_NS:
            yield Reject(name, "its time exceeds the range of a timestamp")
            return
        values: dict[str, Any] = dict.fromkeys(self.columns)
        values["timestamp"] = np.datetime64(message.time_ns, "ns")
        values["episode"] = file.key
        try:
            values.update(self._values(message, decoders))
        except BadMessageError as error:
            yield Reject(name, str(error))
            return
        for topic, recent in latest.items():
            if message.time_ns - recent.message.time_ns > self.max_age_ns:
                continue
            if recent.values is None:
                try:
                    recent.values = self._values(recent.message, decoders)
                except BadMessageError as error:
                    recent.values = {}
                    yield Reject(f"{file.key}@{recent.message.time_ns} {topic}", str(error))
            values.update(recent.values)
        yield Row(name, values)

    def _values(self, message: Message, decoders: _Decoders) -> dict[str, Any]:
        topic = message.channel.topic
        found = self.topics[topic].read(decoders.decode(message))
        return {self.names[topic, path]: value for path, value in found.items()}


class _Survey:
    """Discovers topics, file by file."""

    def __init__(self, reader: SourceReader, limits: McapLimits) -> None:
        self._reader, self._limits = reader, limits
        self.topics: dict[str, TopicPlan] = {}
        self.skipped: dict[str, str] = {}
        """Unreadable topics and the reasons."""
        self.reference = ""

    def inspect(self, file: ObjectInfo, summary: McapSummary | None) -> None:
        """Add the topics of a file; a file without a summary is read only while no topic is known."""
        counts = summary.topics() if summary is not None else {}
        if self.topics and counts.keys() <= self.topics.keys() | self.skipped.keys():
            return
        samples: dict[str, list[Message]] = {}
        seen = Counter[str]()
        for batch in sample_messages(self._reader, file, summary, self._limits):
            seen.update(message.channel.topic for message in batch)
            _add_samples(batch, samples)
        decoders = _Decoders()
        for topic in sorted(samples.keys() - self.topics.keys()):
            self._plan(samples[topic], decoders)
        for topic in counts.keys() - self.topics.keys():
            self.skipped.setdefault(topic, "none of its messages is in the sampled chunks")
        self._choose(counts or seen)

    def _plan(self, samples: Sequence[Message], decoders: _Decoders) -> None:
        channel, decoded, reason = samples[0].channel, [], "its messages are empty"
        for message in samples:
            try:
                decoded.append(decoders.decode(message))
            except BadMessageError as error:
                reason = str(error)
        found = plan_topic(channel, decoded)
        if found is None:
            self.skipped[channel.topic] = reason
        else:
            self.topics[channel.topic] = found
            self.skipped.pop(channel.topic, None)

    def _choose(self, counts: Mapping[str, int]) -> None:
        readable = [topic for topic in counts if topic in self.topics]
        best = min(readable, key=lambda topic: (not self.topics[topic].is_camera, -counts[topic], topic), default="")
        current = self.topics.get(self.reference)
        if best and (current is None or (self.topics[best].is_camera and not current.is_camera)):
            self.reference = best


def _add_samples(batch: Sequence[Message], samples: dict[str, list[Message]]) -> None:
    """Add a few messages of each topic of a chunk to the samples."""
    added = Counter[str]()
    for message in batch:
        topic = message.channel.topic
        chosen = samples.setdefault(topic, [])
        room = len(chosen) < _SAMPLED_MESSAGES and sum(len(one.data) for one in chosen) < _SAMPLED_BYTES
        if added[topic] < _SAMPLED_PER_CHUNK and room:
            added[topic] += 1
            chosen.append(message)


def open_mcap(
    reader: SourceReader,
    files: Sequence[ObjectInfo],
    *,
    reference: str | None = None,
    max_age_s: float = _MAX_AGE_S,
    limits: McapLimits = _LIMITS,
) -> SourceScan:
    """Decide the columns; the topic `reference` defines the rows, and older values than `max_age_s` are null."""
    logs = [file for file in files if _is_log(file)]
    survey = _Survey(reader, limits)
    for start in range(0, len(logs), _SUMMARY_BATCH):
        group = logs[start : start + _SUMMARY_BATCH]
        summaries = thread_map(
            lambda file: read_summary(reader, file, limits), group, max_workers=reader.max_concurrency
        )
        for file, summary in zip(group, summaries, strict=True):
            survey.inspect(file, summary)
    reasons = "; ".join(f"{topic}: {reason}" for topic, reason in sorted(survey.skipped.items()))
    if not survey.topics:
        detail = f": {reasons}" if reasons else ""
        raise InvalidInputError(f"no MCAP file in {reader.store.uri} has readable messages{detail}")
    if reasons:
        warnings.warn(f"topics are skipped: {reasons}", PenstockWarning, stacklevel=2)
    chosen = survey.reference if reference is None else reference
    if chosen not in survey.topics:
        raise InvalidInputError(f"there is no topic {chosen!r}; the files have {', '.join(sorted(survey.topics))}")
    names = name_columns(survey.topics.values(), ("timestamp", "episode"))
    columns: dict[str, ColumnLike] = {"timestamp": Tensor("datetime64[ns]"), "episode": Text()}
    for plan in survey.topics.values():
        for path, kind in plan.kinds.items():
            required = plan.topic == chosen and path in plan.required
            columns[names[plan.topic, path]] = Column(kind, nullable=not required)
    return _Logs(logs, columns, survey.topics, names, chosen, int(max_age_s * 10**9), limits)


def _is_log(file: ObjectInfo) -> bool:
    return suffix(file.key) == ".mcap"


MCAP = Source(
    name="mcap",
    about="robot logs (.mcap): cameras, joint states and other topics, aligned into rows",
    extensions=(".mcap",),
    recognise=lambda listing: listing.has([".mcap"]),
    open=open_mcap,
)
