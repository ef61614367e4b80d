"""The Ascend platform: what the vendor's compiler and device library expect of a kernel, and what they make of it."""
