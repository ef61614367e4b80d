"""Kernel source → `KernelIR` → xDSL. The front end in use is triton-ascend's."""

from tdist.frontend.environment import FrontEnd, check_front_end
from tdist.frontend.kernel_ir import KernelArg, KernelIR
from tdist.frontend.triton_ascend import compile_source

__all__ = ["FrontEnd", "KernelArg", "KernelIR", "check_front_end", "compile_source"]
