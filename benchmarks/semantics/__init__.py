"""Mixtures, windows, packed sequences and weighted draws against plain streaming, limits and peers."""
