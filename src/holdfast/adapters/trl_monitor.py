"""TRL: `holdfast diagnose` while a trainer runs."""

from holdfast.adapters.trl.monitor import Monitoring

__all__ = ["Monitoring"]
