"""What a loader reads, a table or a mixture of tables, and in which order."""

from penstock.engine.sources._orders import Layouts, Order, OrderedSource, make_order
from penstock.engine.sources._source import MixtureSource, Source, schema_of

__all__ = ["Layouts", "MixtureSource", "Order", "OrderedSource", "Source", "make_order", "schema_of"]
