"""Launch options of a kernel, and the flags of the vendor's programs that they stand for.

Names, defaults and flags are those of triton-ascend's `NPUOptions` and its stages for A2 and A3 chips, so that a kernel
is compiled as its launch on a card would compile it. A default of None leaves the choice to the vendor's compiler.

Source:
    triton-ascend 3.2.0, `backends/ascend/compiler.py`: `NPUOptions`, `ttir_to_linalg`,
    `linalg_to_bin_enable_npu_compile_A2_A3`; a test compares the defaults with the installed back end's, and another
    shows every flag to AscendNPU-IR's compiler.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from tdist.errors import UsageError
from tdist.platforms.ascend.targets import Target


@dataclass(frozen=True)
class _Kind:
    """What an option's value may be."""

    fits: Callable[[Any], bool]
    expects: str


_SWITCH = _Kind(lambda value: isinstance(value, bool), "True or False")
_COUNT = _Kind(lambda value: isinstance(value, int) and not isinstance(value, bool) and value > 0, "a whole number > 0")


def _one_of(*words: str) -> _Kind:
    return _Kind(lambda value: value in words, " or ".join(repr(word) for word in words))


def _option(default: Any, kind: _Kind, flag: str | None = None, *, open: bool = True) -> Any:
    """A field; `flag` is bishengir-compile's. `open`: None is allowed, and leaves the flag out."""
    return field(default=default, metadata={"kind": kind, "flag": flag, "open": open})


@dataclass(frozen=True)
class CompileOptions:
    """How a kernel is compiled. Each field is a launch option of triton-ascend.

    Attributes:
        multibuffer: buffers of loops twice, so that transfers and arithmetic overlap.
        enable_auto_bind_sub_block: a mix kernel's vector half shared out to the two vector cores.
        sync_solver: flags between pipes by the graph solver.
        unit_flag: cube and fix pipe ordered through the unit flag.
        inject_barrier_all: a barrier over all pipes before each operation instead of flags between pipes.
        inject_block_all: a barrier over all cores around each store of a mix kernel.
        disable_auto_inject_block_sync: no synchronisation between cube and vector cores.

    Raises:
        UsageError: a value that the option does not take.
    """

    multibuffer: bool | None = _option(True, _SWITCH, "--enable-auto-multi-buffer")
    enable_auto_bind_sub_block: bool | None = _option(True, _SWITCH, "--enable-auto-bind-sub-block")
    enable_hivm_auto_cv_balance: bool | None = _option(None, _SWITCH, "--enable-hivm-auto-cv-balance")
    sync_solver: bool | None = _option(None, _SWITCH, "--enable-hivm-graph-sync-solver")
    unit_flag: bool | None = _option(None, _SWITCH, "--enable-hivm-unit-flag-sync")
    inject_barrier_all: bool | None = _option(None, _SWITCH, "--enable-hivm-inject-barrier-all-sync")
    inject_block_all: bool | None = _option(None, _SWITCH, "--enable-hivm-inject-block-all-sync")
    limit_auto_multi_buffer_only_for_local_buffer: bool | None = _option(
        None, _SWITCH, "--limit-auto-multi-buffer-only-for-local-buffer"
    )
    set_workspace_multibuffer: int | None = _option(None, _COUNT, "--set-workspace-multibuffer")
    tile_mix_vector_loop: int | None = _option(None, _COUNT, "--tile-mix-vector-loop")
    tile_mix_cube_loop: int | None = _option(None, _COUNT, "--tile-mix-cube-loop")
    limit_auto_multi_buffer_of_local_buffer: str | None = _option(
        None, _one_of("no-limit", "no-l0c"), "--limit-auto-multi-buffer-of-local-buffer"
    )
    disable_auto_inject_block_sync: bool | None = _option(None, _SWITCH, "--disable-auto-inject-block-sync")
    enable_linearize: bool = _option(False, _SWITCH, open=False)
    enable_nd2nz_on_vector: bool = _option(False, _SWITCH, open=False)
    enable_select_analysis: bool = _option(False, _SWITCH, open=False)
    force_simt_template: bool = _option(False, _SWITCH, open=False)
    compile_mode: str = _option("simd", _one_of("simd", "unstructured_in_simt"), open=False)

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            value, kind = getattr(self, each.name), each.metadata["kind"]
            if not (kind.fits(value) or (value is None and each.metadata["open"])):
                default = " or None (the compiler's choice)" if each.metadata["open"] else ""
                raise UsageError(f"launch option {each.name} must be {kind.expects}{default}, got {value!r}")

    @classmethod
    def of_launch(cls, options: Mapping[str, Any], *, barrier_all: bool | None = None) -> Self:
        """The options of `kernel[grid](…, **options)`.

        Args:
            options: by name; those of `NPUOptions` that change nothing here (`num_warps`, …) may be among them.
            barrier_all: takes the place of `inject_barrier_all`, as a mode of the gate does.

        Raises:
            UsageError: a name or value that triton-ascend's back end does not have.
        """
        names = [each.name for each in dataclasses.fields(cls)]
        for name, value in options.items():
            if name in _OTHER_FAMILY:
                if value:
                    raise UsageError(f"launch option {name}={value!r} is for chips of the 950 family only")
            elif name not in names and name not in _WITHOUT_EFFECT:
                near = difflib.get_close_matches(name, [*names, *_WITHOUT_EFFECT], n=1)
                meant = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(names)}"
                raise UsageError(f"{name!r} is not a launch option of triton-ascend's back end{meant}")
        chosen = {name: options[name] for name in names if name in options}
        if barrier_all is not None:
            chosen["inject_barrier_all"] = barrier_all
        return cls(**chosen)

    def changed(self) -> dict[str, Any]:
        """What differs from the defaults, for reports and replay lines."""
        fields = dataclasses.fields(self)
        return {each.name: getattr(self, each.name) for each in fields if getattr(self, each.name) != each.default}


_WITHOUT_EFFECT = frozenset(
    (
        "debug",
        "sanitize_overflow",
        "llvm_version",
        "kernel_name",
        "cluster_dims",
        "num_warps",
        "num_ctas",
        "num_stages",
        "warp_size",
        "num_buffers_warp_spec",
        "num_consumer_groups",
        "reg_dec_producer",
        "reg_inc_consumer",
        "enable_warp_specialization",
        "enable_persistent",
        "optimize_epilogue",
        "enable_fp_fusion",
        "allow_fp8e4nv",
        "allowed_dot_input_precisions",
        "max_num_imprecise_acc_default",
        "extern_libs",
        "stream",
        "parallel_mode",
    )
)
"""Fields of `NPUOptions` that choose no flag of the stages for A2 and A3."""
_OTHER_FAMILY = ("compile_on_910_95", "force_simt_only")


ONE_THREAD = "--mlir-disable-threading"
"""For all of the vendor's programs: with a thread pool, AscendNPU-IR 1.2.0 crashes now and then on kernels that it
compiles, and the order of what is said depends on chance. What is made is the same."""


def bishengir_flags(options: CompileOptions, target: Target) -> tuple[str, ...]:
    """The flags of `bishengir-compile` for a kernel, in the order in which triton-ascend gives them."""
    chosen = tuple(
        f"{each.metadata['flag']}={_spelt(value)}"
        for each in dataclasses.fields(options)
        if each.metadata["flag"] is not None and (value := getattr(options, each.name)) is not None
    )
    always = ("--enable-hfusion-compile=true", "--enable-hivm-compile=true", "--enable-triton-kernel-compile=true")
    return (f"--target={target.name}", *chosen, *always, ONE_THREAD)


def adapter_flags(options: CompileOptions) -> tuple[str, ...]:
    """The flags of `triton-adapter-opt`: its passes in order, with what a kernel's options say to them."""
    simt = options.force_simt_template or options.compile_mode == "unstructured_in_simt"
    access = f"compile-on-910-95=False force-simt-template={simt}"
    linalg = {
        "global-kernel": "false",
        "named-ops": True,
        "enable-nd2nz-on-vector": options.enable_nd2nz_on_vector,
        "enable-select-analysis": options.enable_select_analysis,
        "compile-on-910-95": False,
    }
    return (
        ONE_THREAD,
        *(("--triton-linearize",) if options.enable_linearize else ()),
        f"--discrete-mask-access-conversion={access}",
        "--triton-to-annotation",
        f"--triton-to-unstructure={access}",
        "--triton-to-hivm",
        "--triton-to-hfusion",
        "--triton-to-llvm",
        "--bubble-up-operation",
        f"--triton-to-linalg={' '.join(f'{name}={value}' for name, value in linalg.items())}",
    )


def _spelt(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
