"""What holdfast raises on purpose."""

from holdfast.base.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    GuardStop,
    HoldfastError,
    MissingExtra,
    ModelError,
    RetrievalError,
    RetrieverGarbled,
    RetrieverRefused,
    RetrieverTimeout,
    RetrieverUnreachable,
    RolloutError,
)

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "GuardStop",
    "HoldfastError",
    "MissingExtra",
    "ModelError",
    "RetrievalError",
    "RetrieverGarbled",
    "RetrieverRefused",
    "RetrieverTimeout",
    "RetrieverUnreachable",
    "RolloutError",
]
