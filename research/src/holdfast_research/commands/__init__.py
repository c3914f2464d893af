"""Commands that this package adds to `holdfast`: the entry points of its pyproject.toml."""
