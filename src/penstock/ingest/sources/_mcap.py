"""Robot logs: the cameras, joints and other topics of MCAP files, aligned into rows.

The contract; if the code disagrees with this list, the code is wrong:

- A file is an episode. There is a row for each message of one topic, the reference: the camera with the most messages
  in the first file that has a camera, else the topic with the most messages.
- Times are log times. Every other topic gives the row its last message at or before the row's time, and nothing if that
  is older than a second, if there is none yet, or if it cannot be read (which is then told as a reject).
- Columns are `timestamp`, `episode` (the file's key), and for each topic: pictures as they are (CompressedImage) or as
  tensors (Image); `joint_angles`, `joint_velocities` and `joint_efforts` of joint states, in one order of the joints,
  or with `joint_names` beside them where those change; of any other message a column for each number, array and text,
  and JSON for the rest. Its `header` is left out.
- A topic is named by its parts, without last ones that say nothing: `/camera/rgb/image_raw/compressed` is `camera_rgb`,
  and the field `linear.x` of `/odom/twist` is `odom_twist_linear_x`. The columns of joints have no topic in their names
  unless there are several topics of joints.
- The columns are settled by `open`: by the summaries of all files, and by messages from the beginning (and end) of the
  first file that has a topic. What a later file has beyond them is left out.
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
from penstock.ingest._bucket import Bucket
from penstock.ingest._source import Found, Reading, Reject, Row, Source, suffix
from penstock.ingest.sources._mcap_columns import Path, Sketch, name_columns, sketch
from penstock.ingest.sources._mcap_log import Channel, Limits, Message, Summary, messages, read_summary, sample
from penstock.ingest.sources._mcap_messages import BadMessage, Decoder, decoder_of
from penstock.storage import ObjectInfo, run_all

_MAX_AGE_S = 1.0
_LIMITS = Limits()
_FILES_AT_ONCE = 64
_SAMPLED_MESSAGES = 16
_SAMPLED_PER_CHUNK = 8
_SAMPLED_BYTES = 8 << 20
_TIME_END_NS = 1 << 63


class _Held:
    """The last message of a topic, and its values once a row has asked for them."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self.values: dict[str, Any] | None = None


class _Decoders:
    """The decoders of a file's channels, made when they are needed."""

    def __init__(self) -> None:
        self._made: dict[Channel, Decoder] = {}

    def decode(self, message: Message) -> dict[str, Any]:
        decode = self._made.get(message.channel)
        if decode is None:
            decode = self._made[message.channel] = decoder_of(message.channel)
        return decode(message.data)


@dataclass(frozen=True)
class _Logs(Reading):
    """Robot logs whose topics are known."""

    files: Sequence[ObjectInfo]
    columns: Mapping[str, ColumnLike]
    sketches: Mapping[str, Sketch]
    names: Mapping[tuple[str, Path], str]
    reference: str
    max_age_ns: int
    limits: Limits

    def rows(self, bucket: Bucket, files: Sequence[ObjectInfo]) -> Iterator[Found]:
        for file in files:
            lost = True
            for found in self._rows_of(bucket, file):
                lost = lost and isinstance(found, Reject) and found.name != file.key
                yield found
            if lost:
                yield Reject(file.key, f"it has no messages on {self.reference}, which rows follow, that can be read")

    def _rows_of(self, bucket: Bucket, file: ObjectInfo) -> Iterator[Found]:
        latest: dict[str, _Held] = {}
        decoders = _Decoders()
        for found in messages(bucket, file, last=self.reference, limits=self.limits):
            if isinstance(found, Reject):
                yield found
            elif found.channel.topic == self.reference:
                yield from self._row(file, found, latest, decoders)
            elif found.channel.topic in self.sketches:
                latest[found.channel.topic] = _Held(found)

    def _row(
        self, file: ObjectInfo, message: Message, latest: Mapping[str, _Held], decoders: _Decoders
    ) -> Iterator[Found]:
        name = f"{file.key}@{message.time_ns}"
        if message.time_ns >= _TIME_END_NS:
            yield Reject(name, "its time is later than a timestamp can say")
            return
        values: dict[str, Any] = dict.fromkeys(self.columns)
        values["timestamp"] = np.datetime64(message.time_ns, "ns")
        values["episode"] = file.key
        try:
            values.update(self._values(message, decoders))
        except BadMessage as error:
            yield Reject(name, str(error))
            return
        for topic, held in latest.items():
            if message.time_ns - held.message.time_ns > self.max_age_ns:
                continue
            if held.values is None:
                try:
                    held.values = self._values(held.message, decoders)
                except BadMessage as error:
                    held.values = {}
                    yield Reject(f"{file.key}@{held.message.time_ns} {topic}", str(error))
            values.update(held.values)
        yield Row(name, values)

    def _values(self, message: Message, decoders: _Decoders) -> dict[str, Any]:
        topic = message.channel.topic
        found = self.sketches[topic].read(decoders.decode(message))
        return {self.names[topic, path]: value for path, value in found.items()}


class _Survey:
    """What is known about the topics of files, learned from one after the other."""

    def __init__(self, bucket: Bucket, limits: Limits) -> None:
        self._bucket, self._limits = bucket, limits
        self.sketches: dict[str, Sketch] = {}
        self.left_out: dict[str, str] = {}
        """Topics that cannot be read, and why."""
        self.reference = ""

    def look(self, file: ObjectInfo, summary: Summary | None) -> None:
        """Learn what a file tells; one that does not describe itself is only read while nothing is known."""
        counts = summary.topics() if summary is not None else {}
        if self.sketches and counts.keys() <= self.sketches.keys() | self.left_out.keys():
            return
        samples: dict[str, list[Message]] = {}
        seen = Counter[str]()
        for some in sample(self._bucket, file, summary, self._limits):
            seen.update(message.channel.topic for message in some)
            _keep(some, samples)
        decoders = _Decoders()
        for topic in sorted(samples.keys() - self.sketches.keys()):
            self._learn(samples[topic], decoders)
        for topic in counts.keys() - self.sketches.keys():
            self.left_out.setdefault(topic, "none of its messages is where they were looked for")
        self._choose(counts or seen)

    def _learn(self, samples: Sequence[Message], decoders: _Decoders) -> None:
        channel, decoded, reason = samples[0].channel, [], "its messages are empty"
        for message in samples:
            try:
                decoded.append(decoders.decode(message))
            except BadMessage as error:
                reason = str(error)
        found = sketch(channel, decoded)
        if found is None:
            self.left_out[channel.topic] = reason
        else:
            self.sketches[channel.topic] = found
            self.left_out.pop(channel.topic, None)

    def _choose(self, counts: Mapping[str, int]) -> None:
        able = [topic for topic in counts if topic in self.sketches]
        best = min(able, key=lambda topic: (not self.sketches[topic].is_camera, -counts[topic], topic), default="")
        known = self.sketches.get(self.reference)
        if best and (known is None or (self.sketches[best].is_camera and not known.is_camera)):
            self.reference = best


def _keep(found: Sequence[Message], samples: dict[str, list[Message]]) -> None:
    """Add a few messages of each topic of a chunk to those that will be looked at."""
    taken = Counter[str]()
    for message in found:
        topic = message.channel.topic
        kept = samples.setdefault(topic, [])
        room = len(kept) < _SAMPLED_MESSAGES and sum(len(one.data) for one in kept) < _SAMPLED_BYTES
        if taken[topic] < _SAMPLED_PER_CHUNK and room:
            taken[topic] += 1
            kept.append(message)


def open_mcap(
    bucket: Bucket,
    files: Sequence[ObjectInfo],
    *,
    reference: str | None = None,
    max_age_s: float = _MAX_AGE_S,
    limits: Limits = _LIMITS,
) -> Reading:
    """Settle the columns; rows follow the topic `reference`, and have no values of others older than `max_age_s`."""
    logs = [file for file in files if _is_log(file)]
    survey = _Survey(bucket, limits)
    for start in range(0, len(logs), _FILES_AT_ONCE):
        some = logs[start : start + _FILES_AT_ONCE]
        summaries = run_all(lambda file: read_summary(bucket, file, limits), some, max_workers=bucket.readers)
        for file, summary in zip(some, summaries, strict=True):
            survey.look(file, summary)
    told = "; ".join(f"{topic}: {reason}" for topic, reason in sorted(survey.left_out.items()))
    if not survey.sketches:
        reason = f": {told}" if told else ""
        raise InvalidInputError(f"no MCAP file in {bucket.store.uri} has messages that can be read{reason}")
    if told:
        warnings.warn(f"topics are left out of the table: {told}", PenstockWarning, stacklevel=2)
    chosen = survey.reference if reference is None else reference
    if chosen not in survey.sketches:
        raise InvalidInputError(f"there is no topic {chosen!r}; the files have {', '.join(sorted(survey.sketches))}")
    names = name_columns(survey.sketches.values(), ("timestamp", "episode"))
    columns: dict[str, ColumnLike] = {"timestamp": Tensor("datetime64[ns]"), "episode": Text()}
    for known in survey.sketches.values():
        for path, kind in known.kinds.items():
            certain = known.topic == chosen and path in known.certain
            columns[names[known.topic, path]] = Column(kind, nullable=not certain)
    return _Logs(logs, columns, survey.sketches, names, chosen, int(max_age_s * 10**9), limits)


def _is_log(file: ObjectInfo) -> bool:
    return suffix(file.key) == ".mcap"


MCAP = Source(
    name="mcap",
    about="robot logs (.mcap): cameras, joint states and other topics, aligned into rows",
    recognise=lambda listing: listing.has([".mcap"]),
    open=open_mcap,
)
