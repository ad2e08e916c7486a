"""Tests of managed tables by name."""
