"""What to tell a user whose kernel has an operation that we do not read."""

from __future__ import annotations

_CURES = {
    "tt.make_tensor_descriptor": "address the tile with tl.make_block_ptr, or with offsets and a mask",
    "tt.descriptor_load": "load with tl.make_block_ptr, or with offsets and a mask",
    "tt.descriptor_store": "store with tl.make_block_ptr, or with offsets and a mask",
    "tt.elementwise_inline_asm": "write it with tl operations: tdist does not see into inline assembly",
    "tt.dot_scaled": "convert and scale the operands, then use tl.dot",
    "tt.index_select_simd": "use tl.load with pointers computed from the indices",
    "tt.embedding_gather": "use tl.load with pointers computed from the indices",
    "tt.gather_out_to_ub": "use tl.load with pointers computed from the indices",
    "tt.indirect_load": "use tl.load with pointers computed from the indices",
    "tt.index_put": "use tl.store with pointers computed from the indices",
    "tt.indirect_store": "use tl.store with pointers computed from the indices",
    "tt.custom": "use tdist's barriers and signals between cores and ranks",
}
_OLDER_NAMES = "experimental_"
_ANY = "express it with operations of tl that tdist knows, or guard it by the active platform"


def unsupported(name: str) -> str:
    """The text of the error for an operation. The simulated ranks and the gate read the same operations."""
    cure = _CURES.get(name.replace(_OLDER_NAMES, ""), _ANY)
    return f"tdist does not support {name}: {cure}"
