"""Faults planted into kernels, and which of them the runs of an operator catch."""
