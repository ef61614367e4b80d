"""Errors, configurations and tensors in device memory as JSON."""

from __future__ import annotations

import builtins
import dataclasses
from typing import Any

import torch

from tdist import errors
from tdist.errors import Place, TdistError, WorldStopped
from tdist.findings import Finding
from tdist.platforms.sim.device_tensors import View


def config_to_json(config: Any) -> dict[str, Any]:
    return dataclasses.asdict(config)


def config_from_json(data: dict[str, Any]) -> Any:
    from tdist.platforms.sim.world_config import WorldConfig

    choices = data["choices"]
    return WorldConfig(**{**data, "choices": None if choices is None else tuple(choices)})


def view_to_json(view: View) -> list[Any]:
    return [view.address, view.shape, view.strides, str(view.dtype).removeprefix("torch.")]


def view_from_json(data: list[Any]) -> View:
    address, shape, strides, dtype = data
    return View(address, tuple(shape), tuple(strides), getattr(torch, dtype))


def error_to_json(error: BaseException) -> dict[str, Any]:
    """Type, text and place; of a stopped world the findings, too."""
    data: dict[str, Any] = {"type": type(error).__name__, "text": str(error)}
    if isinstance(error, WorldStopped):
        data["findings"] = [found.to_json() for found in error.findings]
    if isinstance(error, TdistError) and error.place is not None:
        data["place"] = list(error.place)
    return data


def place_from_json(data: dict[str, Any]) -> Place | None:
    """Where in the user's source an error arose."""
    return tuple(data["place"]) if data.get("place") else None


def error_from_json(data: dict[str, Any]) -> BaseException:
    """The error again: one of ours, a built-in one, or a `TdistError` that names the type."""
    error = _error_from_json(data)
    return error.at(place_from_json(data)) if isinstance(error, TdistError) else error


def _error_from_json(data: dict[str, Any]) -> BaseException:
    name, text = data["type"], data["text"]
    kind = getattr(errors, name, None) or getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, WorldStopped):
        return kind(text, tuple(Finding.from_json(found) for found in data.get("findings", ())))
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(text)
        except TypeError:  # e.g. UnicodeDecodeError wants five arguments
            pass
    return TdistError(f"{name}: {text}")
