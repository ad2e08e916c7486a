"""Managed tables: what the server costs, and what its credentials cost a stream."""
