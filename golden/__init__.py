"""References on torch.distributed, one file an operator, under the operator's name."""

from tdist.golden.ag_gemm import ag_gemm, ag_gemm_local, gemm_reference
from tdist.golden.all_gather import all_gather, all_gather_local
from tdist.golden.reference import Reference

__all__ = ["Reference", "ag_gemm", "ag_gemm_local", "all_gather", "all_gather_local", "gemm_reference"]
