"""All sources, in the order in which they are tried; a new source is a file of this room and a line here."""

from penstock.ingest._source import Source
from penstock.ingest.sources._arrow import ARROW
from penstock.ingest.sources._images import IMAGES
from penstock.ingest.sources._mcap import MCAP
from penstock.ingest.sources._mds import MDS
from penstock.ingest.sources._numpy import NUMPY, NUMPY_ROWS, NUMPY_SAMPLES
from penstock.ingest.sources._parquet import PARQUET
from penstock.ingest.sources._safetensors import SAFETENSORS
from penstock.ingest.sources._text import CSV, JSONL
from penstock.ingest.sources._texts import LINES, TEXT
from penstock.ingest.sources._torch_files import TORCH_FILES
from penstock.ingest.sources._webdataset import WEBDATASET

_ALL: tuple[Source, ...] = (
    WEBDATASET, MDS, MCAP, PARQUET, ARROW, NUMPY, NUMPY_ROWS, NUMPY_SAMPLES, SAFETENSORS, TORCH_FILES, IMAGES, JSONL,
    CSV, TEXT, LINES,
)  # fmt: skip
SOURCES = {source.name: source for source in _ALL}
