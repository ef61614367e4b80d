"""Runs the cases of test modules under Triton's interpreter: `python ops_interpreter.py RESULTS MODULE…`."""

from __future__ import annotations

import importlib
import sys

import torch
from ops_kit import interpret


def _loop_bounds_are_arrays() -> None:
    """The interpreter keeps scalars as arrays of one element, which numpy 2.4 no longer converts to an index."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor):
        patch(tensor)
        tensor.__index__ = lambda self: self.handle.data.item()

    interpreter._patch_lang_tensor = patched


def main(file: str, *modules: str) -> None:
    torch.set_num_threads(1)
    _loop_bounds_are_arrays()
    results = {}
    for module in modules:
        for case in getattr(importlib.import_module(module), "CASES", ()):
            if not case.no_interpreter:
                results[f"{module}::{case.name}"] = interpret(case)
    torch.save(results, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
