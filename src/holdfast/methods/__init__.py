"""Methods against collapse: their settings, what they say of themselves, and what they do to a batch."""
