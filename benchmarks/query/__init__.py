"""Questions: filters, vector and text search, hybrid ranking and filtered views, in turns with Lance."""
