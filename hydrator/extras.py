"""What an optional extra brings, imported where it is used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hydrator.errors import HydratorError


def extra(module: str, name: str = "bench", error: type[HydratorError] = HydratorError) -> Any:
    """Import a module of the extra ``name``, or raise the error that says how to install it."""
    try:
        return import_module(module)
    except ImportError as missing:
        raise error(
            f"{module.partition('.')[0]} is not installed",
            hint=f"Install it with: pip install 'hydrator[{name}]'",
        ) from missing
