"""Kernel source → TTIR text, with triton-ascend 3.2's own front end and no device.

Only symbol-dce runs here. Everything that acts on effects runs after the carriers have become `distributed.*` ops, over
that dialect's effects: Triton's own CSE and LICM would treat carriers wrongly, and MLIR's inliner canonicalizes, which
deletes a polling loop without a word. Calls are inlined by `tdist.passes.inline_calls`.

Source:
    Distributed Architecture Design §4.1 (where the distributed ops are made);
    triton-ascend 3.2.0, `compiler/code_generator.py`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from tdist.errors import KernelError, UsageError
from tdist.frontend.diagnostics import kernel_error, mlir_diagnostics, remember_site
from tdist.frontend.kernel_ir import KernelArg, KernelIR
from tdist.frontend.masked_loads import undefined_padding

_compiling = threading.RLock()


def compile_source(fn: Any, signature: Mapping[str, str], constexprs: Mapping[str, Any]) -> KernelIR:
    """Compile a kernel as far as TTIR.

    No argument is specialised by its value: an argument of value 1, or one divisible by 16, stays an argument.

    Args:
        fn: a `triton.JITFunction`.
        signature: parameter name → Triton type string (`"*fp16"`, `"i32"`, …) for every parameter that stays one.
        constexprs: parameter name → value, for the others. Parameters in neither take their Python default.

    Raises:
        KernelError: Triton or the distributed language refuses the kernel; names the kernel's own file:line.
        UsageError: `fn` is no kernel, or a parameter has neither a type nor a value.
    """
    __tracebackhide__ = True
    types, constants = _bind(fn, signature, constexprs)
    with _compiling:
        text = _ttir(fn, types, constants)
    return KernelIR(fn.__name__, text, tuple(KernelArg(name, _plain(ty)) for name, ty in types.items()))


def _plain(ty: str) -> str:
    """Triton's spelling without the `k` of a pointer to const, which only its own front end checks."""
    return ty.replace("*k", "*", 1)


def _bind(
    fn: Any, signature: Mapping[str, str], constexprs: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, Any]]:
    from triton.runtime import JITFunction

    if not isinstance(fn, JITFunction):
        raise UsageError(f"a kernel is a function under @triton.jit, got {fn!r}")
    unknown = [name for name in (*signature, *constexprs) if name not in fn.arg_names]
    if unknown:
        raise UsageError(f"kernel `{fn.__name__}` has no parameter `{unknown[0]}`; it has: {', '.join(fn.arg_names)}")
    defaults = {p.name: p.default for p in fn.params if p.has_default}
    constants = {n: constexprs.get(n, defaults.get(n)) for n in fn.arg_names if n in constexprs or n not in signature}
    missing = [name for name in constants if name not in constexprs and name not in defaults]
    if missing:
        raise UsageError(f"kernel `{fn.__name__}`: parameter `{missing[0]}` has neither a type nor a value")
    types = {name: signature[name] for name in fn.arg_names if name not in constants}
    for name, ty in types.items():
        _check_type(fn, name, ty)
    return types, constants


_TYPE_NAMES = "fp16, bf16, fp32, fp64, i1, i8, i16, i32, i64, u8, u16, u32, u64"


def _check_type(fn: Any, name: str, ty: str) -> None:
    from triton.language import str_to_ty

    try:
        str_to_ty(ty)
    except (KeyError, ValueError):
        raise UsageError(
            f"kernel `{fn.__name__}`, parameter `{name}`: there is no type {ty!r}; types are {_TYPE_NAMES}, "
            "and pointers to them with a *"
        ) from None


def _ttir(fn: Any, types: dict[str, str], constants: dict[str, Any]) -> str:
    __tracebackhide__ = True
    from triton._C.libtriton import ir
    from triton.compiler import ASTSource
    from triton.compiler.errors import CompilationError

    backend, options = _backend()
    context = ir.context()
    context.disable_multithreading()  # its threads would not survive a fork of this process
    ir.load_dialects(context)
    source = ASTSource(fn=fn, signature=types, constants=constants)
    try:
        with _our_generator(), undefined_padding():
            module = source.make_ir(options, backend.get_codegen_implementation(), backend.get_module_map(), context)
    except CompilationError as error:
        raise kernel_error(fn, error) from None
    _verify(fn, module, context)
    return str(module)


@functools.cache
def _backend() -> tuple[Any, Any]:
    from triton.backends.ascend.compiler import AscendBackend
    from triton.backends.compiler import GPUTarget

    backend = AscendBackend(GPUTarget("npu", "Ascend910B3", 0))
    # `debug` keeps `tl.device_assert`; without the second, it would also add Triton's own overflow assertions.
    return backend, backend.parse_options({"debug": True, "sanitize_overflow": False})


def _verify(fn: Any, module: Any, context: Any) -> None:
    __tracebackhide__ = True
    from triton._C.libtriton import ir, passes

    manager = ir.pass_manager(context)
    passes.common.add_symbol_dce(manager)
    try:
        manager.run(module)
    except RuntimeError as error:
        detail = mlir_diagnostics(module) or str(error)
        raise KernelError(f"kernel `{fn.__name__}`: Triton's IR of it does not verify.\n{detail}") from None


@contextlib.contextmanager
def _our_generator() -> Iterator[None]:
    """Let Triton use our subclass of its code generator for the length of the block (under the lock)."""
    from triton.compiler import code_generator
    from triton.language import core

    pointer_type: Any = core.pointer_type
    original, unhashable = code_generator.CodeGenerator, pointer_type.__hash__
    code_generator.CodeGenerator = _generator_class(original)
    # 3.2 forgot the hash: no table of `extern_call` could have a pointer type in a key, as upstream's have.
    pointer_type.__hash__ = unhashable or (lambda self: hash(str(self)))
    try:
        yield
    finally:
        code_generator.CodeGenerator, pointer_type.__hash__ = original, unhashable


@functools.cache
def _generator_class(base: Any) -> type:
    class Generator(base):
        """Triton's code generator with three corrections that the simulated platform needs."""

        def __init__(self, context: Any, prototype: Any, gscope: dict[str, Any], *args: Any, **kwargs: Any) -> None:
            # A kernel defined inside a function sees that function's variables; `noinline` only keeps calls apart.
            enclosing = inspect.getclosurevars(kwargs["jit_fn"].fn).nonlocals
            kwargs["noinline"] = False
            super().__init__(context, prototype, {**gscope, **enclosing}, *args, **kwargs)

        def visit(self, node: Any) -> Any:
            # 3.2 leaves the location at the last operand visited: a call over several lines would get its last line.
            __tracebackhide__ = True
            location = self.builder.get_loc()
            try:
                value = super().visit(node)
            except Exception as error:
                remember_site(error, self.file_name, self.begin_line, self.jit_fn)
                raise
            if location:
                self.builder.set_loc(location)
            return value

    return Generator
