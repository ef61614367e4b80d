"""Source to runnable generator with an empty cache: about 250 TTIR lines, and about 4,000 operations. CPU time."""

from __future__ import annotations

import os
import tempfile
import time

import measure


def source_of(tiles: int) -> str:
    """A kernel of `tiles` unrolled tile updates, no two alike."""
    lines = ["import triton", "import triton.language as tl", "", "", "@triton.jit", "def wide(x_ptr, y_ptr, n):"]
    for i in range(tiles):
        lines += [
            f"    o{i} = tl.program_id(0) * {64 + i} + tl.arange(0, 64)",
            f"    v{i} = tl.load(x_ptr + o{i}, mask=o{i} < n, other=0.0)",
            f"    tl.store(y_ptr + o{i} + {i}, tl.exp(v{i}) * {i + 2}.5, mask=o{i} < n)",
        ]
    return "\n".join(lines) + "\n"


def load(path: str):
    import importlib.util

    spec = importlib.util.spec_from_file_location("wide_kernel", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.wide


def main() -> None:
    measure.one_thread()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TDIST_CACHE_DIR"] = os.path.join(folder, "cache")
        from tdist.frontend.triton_ascend import compile_source
        from tdist.platforms.sim.compiler import SimOptions, compile_kernel

        print(measure.machine_line())
        signature = {"x_ptr": "*fp16", "y_ptr": "*fp16", "n": "i32"}
        compile_source(load_written(folder, 1), signature, {})
        for tiles, goal in ((6, 0.4), (148, 3.0)):
            kernel = load_written(folder, tiles)
            start = time.process_time()
            ir = compile_source(kernel, signature, {})
            front = time.process_time() - start
            compile_kernel(ir, SimOptions(detect=True))
            cold = time.process_time() - start
            body = [line for line in ir.ttir.splitlines() if " = " in line and not line.startswith("#")]
            measure.print_ratio(
                f"{len(ir.ttir.splitlines())} TTIR lines, {len(body)} ops: seconds / goal",
                cold / goal,
                "<= 1",
                f"{cold:.2f} s, Triton {front:.2f} s of it",
            )


def load_written(folder: str, tiles: int):
    path = os.path.join(folder, f"wide_{tiles}.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(source_of(tiles))
    return load(path)


if __name__ == "__main__":
    main()
