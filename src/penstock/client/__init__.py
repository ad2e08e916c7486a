"""Managed tables by name: the tables of a workspace, in the embedded catalog or on a server."""

from penstock.client._client import Client
from penstock.client._table_info import TableInfo

__all__ = ["Client", "TableInfo"]
