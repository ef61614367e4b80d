"""The built-in operators: one line each."""

BUILTIN: dict[str, str] = {
    "ag_gemm": "tdist.verify.operators.ag_gemm",
    "all_gather": "tdist.verify.operators.all_gather",
}
"""Operator name → the module that declares it under that name; imported when it is asked for."""
