"""What a loader reads, a table or a mixture of tables, and in which order."""

from penstock.engine.sources._mixed_rows import MixedRowReader
from penstock.engine.sources._orders import MixedOrder, TableOrder
from penstock.engine.sources._source import MixtureSource, Source, schema_of

__all__ = ["MixedOrder", "MixedRowReader", "MixtureSource", "Source", "TableOrder", "schema_of"]
