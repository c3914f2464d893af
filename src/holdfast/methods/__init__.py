"""Methods against collapse. Each is a value: its settings, what it does to a batch, and what it says of itself."""
