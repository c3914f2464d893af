"""TRL: `holdfast diagnose` while a trainer runs."""

from holdfast.adapters.trl.callback import Monitoring

__all__ = ["Monitoring"]
