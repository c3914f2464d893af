"""The model hub, asked whether it is there at all before its client spends most of a minute on finding out."""

from __future__ import annotations

REACH_SECONDS = 5.0
"""How long the hub may take to say anything. Its client would try many times, longer each time."""


def unreachable() -> str | None:
    """`ENDPOINT cannot be reached (reason)` after one short request; None when the hub answers."""
    import huggingface_hub as hub

    endpoint = hub.constants.ENDPOINT
    try:
        hub.get_session().head(endpoint, timeout=REACH_SECONDS)
    except Exception as error:  # of httpx or of requests, by the client's version; or the client's own: offline mode
        return f"{endpoint} cannot be reached ({error})"
    return None
