"""Which vendor's machine this is, and which platform is active."""

from __future__ import annotations

import shutil

from tdist.platforms.base import current


def is_ascend() -> bool:
    """Whether this machine has the Ascend tools."""
    return shutil.which("npu-smi") is not None


def is_cuda() -> bool:
    """Whether this machine has the NVIDIA tools."""
    return shutil.which("nvidia-smi") is not None


def is_hip() -> bool:
    """Whether this machine has the ROCm tools."""
    return shutil.which("rocm-smi") is not None


def is_maca() -> bool:
    """Whether this machine has the MetaX tools."""
    return shutil.which("mx-smi") is not None


def active_is_ascend() -> bool:
    """Whether kernels are compiled for Ascend: as the active runtime says; without one, by what the machine has.

    A machine that has no vendor's tools at all compiles for Ascend, the default target of the simulated platform.
    """
    runtime = current()
    if runtime is not None:
        return runtime.target.startswith("Ascend")
    return is_ascend() or not (is_cuda() or is_hip() or is_maca())
