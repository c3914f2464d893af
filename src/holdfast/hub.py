"""A quick check whether the model hub answers. Its own client takes most of a minute to find out that it does not."""

from __future__ import annotations

REACH_SECONDS = 5.0
"""Timeout of the check."""


def unreachable() -> str | None:
    """`ENDPOINT cannot be reached (reason)` after one short request; None when the hub answers."""
    import huggingface_hub as hub

    endpoint = hub.constants.ENDPOINT
    try:
        hub.get_session().head(endpoint, timeout=REACH_SECONDS)
    except Exception as error:  # from httpx, requests or the client itself (offline mode)
        return f"{endpoint} cannot be reached ({error})"
    return None
