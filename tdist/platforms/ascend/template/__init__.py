"""Source of the device library that lowered kernels link to: C++ wrappers over ACLSHMEM's device functions.

`device_library.cpp` is the one translation unit; headers hold a family each; `instances.inc` has a line for each
function and element type and is generated from the symbol table (`generate.py`); `build.py` makes bitcode of it where
CANN and ACLSHMEM are.
"""
