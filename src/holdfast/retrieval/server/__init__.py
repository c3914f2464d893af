"""A `/retrieve` server over an index folder."""
