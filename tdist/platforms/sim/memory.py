"""Device memory of the simulated ranks: symmetric heaps, private allocations, and the addresses that lead to them.

A simulated address is a plain integer. Every rank's symmetric heap starts at a base of its own, so that a pointer of
one rank means nothing on another; offsets into the heaps agree on all ranks. The bytes of a heap lie in a memfd, which
rank processes map; private allocations borrow the storage of a tensor.

Source: Distributed Architecture Design §5.3 (heap bases); docs/ordering-model.md, "Signals" (16-byte rounding).
"""

from __future__ import annotations

import bisect
import mmap
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import torch

from tdist.errors import UsageError

if TYPE_CHECKING:
    from tdist.platforms.sim.lines import GuardedSpan, OwnLines
    from tdist.platforms.sim.products import PutOff
    from tdist.platforms.sim.symbolic_access import Digests
    from tdist.platforms.sim.words import Word

ROUNDING_BYTES: Final = 16
LINE_BYTES: Final = 64
CANARY_BYTE: Final = 0xC5

_HEAP_BASE: Final = 0x12_0000_0000_0000
_PRIVATE_BASE: Final = 0x34_0000_0000_0000
_RANK_SPAN: Final = 1 << 42
_MAX_GRAVES: Final = 4096
_BASE_STEP: Final = 2 << 20
_WRITES_KEPT: Final = 32
_PRIVATE_ALIGNMENT_BYTES: Final = 512
_WORD_FORMATS: Final[dict[int, Literal["b", "h", "i", "q"]]] = {1: "b", 2: "h", 4: "i", 8: "q"}


_NOTHING: Final = torch.empty(0, dtype=torch.uint8)


def round_up(value: int, step: int) -> int:
    return -(-value // step) * step


class Allocation:
    """One piece of device memory: `[lo, hi)` in simulated addresses, as requested, not rounded.

    `version` counts writes, and `writes` has the latest of those that said where they were (tile caches ask for both).
    `peers` holds the same allocation of each PE, or is empty for
    private memory. `sync` holds the synchronisation words that live here, by byte offset; `guards` the pieces of it
    that lie in lines which signals write back. `marks`: where patterns of symbolic tiles
    may lie; `digests`: those of its tiles (`symbolic_access.py`). `put_off`: stores of products that are made before
    anybody sees the memory (`products.py`). `aliases`: private memory that shares bytes with it, such as one host
    tensor that is given to kernels of two ranks.
    """

    __slots__ = (
        "__weakref__",
        "_bytes",
        "_views",
        "_words",
        "aliases",
        "digests",
        "freed",
        "freed_at",
        "guards",
        "hi",
        "lo",
        "marks",
        "name",
        "offset_bytes",
        "peers",
        "put_off",
        "rank",
        "slack",
        "symmetric",
        "sync",
        "version",
        "writes",
    )

    def __init__(self, rank: int, lo: int, storage: torch.Tensor, name: str | None, offset_bytes: int = -1) -> None:
        self.rank = rank
        self.lo = lo
        self.hi = lo + storage.numel()
        self.name = name
        self.offset_bytes = offset_bytes
        self.symmetric = offset_bytes >= 0
        self.version = 0
        self.writes: deque[tuple[int, int, int]] = deque(maxlen=_WRITES_KEPT)
        self.freed = False
        self.freed_at = ""
        self.peers: tuple[Allocation, ...] = ()
        self.sync: dict[int, Word] = {}
        self.guards: list[OwnLines | GuardedSpan] = []
        self.slack: torch.Tensor | None = None
        self.marks: dict[tuple[str, int, int], list[int]] | None = None
        self.digests: Digests | None = None
        self.put_off: PutOff | None = None
        self.aliases: list[Allocation] = []
        self._bytes = storage
        self._views: dict[torch.dtype, torch.Tensor] = {}
        self._words: dict[int, memoryview] = {}

    def __len__(self) -> int:
        return self.hi - self.lo

    def __repr__(self) -> str:
        return f"Allocation(rank={self.rank}, {self.label}, {self.lo:#x}+{len(self)})"

    @property
    def label(self) -> str:
        """What messages call it."""
        return self.name or (f"heap+{self.offset_bytes:#x}" if self.symmetric else f"private@{self.lo:#x}")

    @property
    def fate(self) -> str:
        """What messages say of freed memory: who it was, and the line of the free where it is known."""
        return f"{self.label} was freed{self.freed_at and f' at {self.freed_at}'}"

    def note_write(self, lo: int, hi: int) -> None:
        """Bytes `[lo, hi)` have changed, or are to change before anybody sees them."""
        self.version += 1
        self.writes.append((self.version, lo, hi))
        for other in self.aliases:
            other.version += 1

    def unchanged(self, version: int, lo: int, hi: int) -> bool:
        """Whether bytes `[lo, hi)` are known to be as they were when it was of that version."""
        left = self.version - version
        for written, first, end in reversed(self.writes):
            if written <= version:
                break
            if first < hi and lo < end:
                return False
            left -= 1
        return left == 0

    def view(self, dtype: torch.dtype) -> torch.Tensor:
        """1-D tensor of `dtype` over the whole allocation; a tail shorter than one element is left out. Cached."""
        if self.put_off is not None:
            self.settle()
        found = self._views.get(dtype)
        if found is None:
            whole_bytes = len(self) // dtype.itemsize * dtype.itemsize
            # A storage of its own: `as_strided` counts offsets from the storage's start, and stops at its end.
            own = torch.from_numpy(self._bytes[:whole_bytes].numpy())
            found = self._views[dtype] = own.view(dtype)
        return found

    def settle(self) -> None:
        """Make the stores that were put off."""
        stores, self.put_off = self.put_off, None
        if stores is not None:
            stores.settle(self)

    def detach(self) -> None:
        """Let go of the bytes; what others hold of them stays theirs."""
        self.settle()
        self._bytes = _NOTHING
        self._views.clear()
        self._words.clear()
        self.sync.clear()
        self.guards.clear()
        self.slack = None
        self.freed = True

    def words(self, nbytes: int) -> memoryview:
        """Signed integers of `nbytes` (1, 2, 4 or 8) over the whole allocation, for scalar access. Cached."""
        if self.put_off is not None:
            self.settle()
        found = self._words.get(nbytes)
        if found is None:
            whole_bytes = len(self) // nbytes * nbytes
            raw = memoryview(self._bytes[:whole_bytes].numpy())  # pyright: ignore[reportArgumentType]
            found = self._words[nbytes] = raw.cast(_WORD_FORMATS[nbytes])
        return found


def _jitter_bytes(rank: int) -> int:
    """Keeps bases off an arithmetic progression, which pointer arithmetic over ranks could hit."""
    return (1 + (5 * rank * rank + 3 * rank) % 251) * _BASE_STEP


def null_allocation(rank: int) -> Allocation:
    """What a null pointer points to: nothing, so that every access through it is out of bounds."""
    return Allocation(rank, 0, torch.empty(0, dtype=torch.uint8), "null")


@dataclass(frozen=True)
class Block:
    """A piece of heap that is in use."""

    offset_bytes: int
    nbytes: int
    rounded_bytes: int


class BestFit:
    """Best-fit allocator over heap offsets, rounding to 16 bytes and aligning no further unless asked, as the real one.

    So two one-element signal tensors share a 64-byte line.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._free: list[tuple[int, int]] = [(0, capacity_bytes)] if capacity_bytes else []
        self.used: dict[int, Block] = {}

    @property
    def free_bytes(self) -> int:
        return sum(nbytes for _, nbytes in self._free)

    def allocate(self, nbytes: int, alignment_bytes: int) -> Block | None:
        """A block for `nbytes`, or None if no free piece is large enough."""
        need = round_up(nbytes, ROUNDING_BYTES)
        fits = [(size, start) for start, size in self._free if round_up(start, alignment_bytes) + need <= start + size]
        if not fits:
            return None
        size, start = min(fits)
        block = Block(round_up(start, alignment_bytes), nbytes, need)
        self._take(start, size, block)
        return block

    def release(self, offset_bytes: int) -> Block | None:
        """Give a block back and merge it with its neighbours; None if none starts there."""
        block = self.used.pop(offset_bytes, None)
        if block is None:
            return None
        bisect.insort(self._free, (block.offset_bytes, block.rounded_bytes))
        self._merge()
        return block

    def _take(self, start: int, size: int, block: Block) -> None:
        self._free.remove((start, size))
        end = block.offset_bytes + block.rounded_bytes
        for lo, hi in ((start, block.offset_bytes), (end, start + size)):
            if hi > lo:
                bisect.insort(self._free, (lo, hi - lo))
        self.used[block.offset_bytes] = block

    def _merge(self) -> None:
        merged: list[tuple[int, int]] = []
        for start, size in self._free:
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((start, size))
        self._free = merged


class RankMemory:
    """The symmetric heap of one rank, in a memfd that other processes can map (`fd`, `heap_bytes`)."""

    def __init__(self, rank: int, heap_bytes: int) -> None:
        self.rank = rank
        self.heap_bytes = heap_bytes
        self.base = _HEAP_BASE + rank * _RANK_SPAN + _jitter_bytes(rank)
        mapped_bytes = max(round_up(heap_bytes, mmap.PAGESIZE), mmap.PAGESIZE)
        self.fd = os.memfd_create(f"tdist-heap-{rank}", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, mapped_bytes)
        self.bytes = _mapped(self.fd, mapped_bytes)
        self._next_private = _PRIVATE_BASE + rank * _RANK_SPAN + _jitter_bytes(rank + 7)

    def allocation(self, block: Block, name: str | None, poison: int) -> Allocation:
        """The rank's view of `block`, poisoned, with canaries in what rounding left over."""
        lo, hi = block.offset_bytes, block.offset_bytes + block.nbytes
        made = Allocation(self.rank, self.base + lo, self.bytes[lo:hi], name, offset_bytes=lo)
        made.slack = self.bytes[hi : lo + block.rounded_bytes]
        self.bytes[lo:hi] = poison
        made.slack.fill_(CANARY_BYTE)
        return made

    def private_address(self, nbytes: int) -> int:
        """A simulated address for private storage, never used before."""
        address = self._next_private
        gap_bytes = _PRIVATE_ALIGNMENT_BYTES
        self._next_private += round_up(max(nbytes, 1), _PRIVATE_ALIGNMENT_BYTES) + gap_bytes
        return address

    def close(self) -> None:
        """Close the descriptor and let go of the bytes; the mapping itself goes with the last tensor over it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self.bytes = _NOTHING


def _mapped(fd: int, nbytes: int) -> torch.Tensor:
    """The bytes of a file, 1-D uint8; the mapping goes with the last tensor over it.

    By torch where it can, which holds no descriptor meanwhile: Python's own mapping keeps one, and worlds that wait for
    the garbage collector are many.
    """
    try:
        return torch.from_file(f"/proc/self/fd/{fd}", shared=True, size=nbytes, dtype=torch.uint8, device="cpu")
    except RuntimeError:  # no /proc; or no room, which the other way says better
        return torch.frombuffer(mmap.mmap(fd, nbytes), dtype=torch.uint8)


def broken_canary(allocation: Allocation) -> tuple[int, int] | None:
    """Byte offset past the allocation's start and value of the first canary that was overwritten."""
    slack = allocation.slack
    if slack is None or not slack.numel():
        return None
    bad = (slack != CANARY_BYTE).nonzero()
    if not len(bad):
        return None
    first = int(bad[0])
    return len(allocation) + first, int(slack[first])


class AddressSpace:
    """All ranks' memory: symmetric allocations (one block, N allocations), private ones, and address lookup."""

    def __init__(self, nranks: int, heap_bytes: int, poison: int) -> None:
        self.poison = poison
        self.ranks = [RankMemory(rank, heap_bytes) for rank in range(nranks)]
        self.heap = BestFit(heap_bytes)
        self._starts: list[int] = []
        self._by_start: dict[int, Allocation] = {}
        self._hosts: dict[int, tuple[int, int]] = {}  # where private memory lies in this process, by simulated address
        self._graves: deque[tuple[int, int, str]] = deque(maxlen=_MAX_GRAVES)

    def __iter__(self) -> Iterator[Allocation]:
        return (self._by_start[start] for start in self._starts)

    def lookup(self, address: int) -> Allocation | None:
        """The allocation that `address` lies in; one past the end still belongs to it, for pointer arithmetic."""
        at = bisect.bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        found = self._by_start[self._starts[at]]
        return found if address <= found.hi else None

    def between(self, lo: int, hi: int) -> list[Allocation]:
        """Allocations with bytes in `[lo, hi)`."""
        first = max(bisect.bisect_right(self._starts, lo) - 1, 0)
        near = (self._by_start[start] for start in self._starts[first : bisect.bisect_left(self._starts, hi)])
        return [al for al in near if al.hi > lo]

    def fate_of(self, address: int) -> str:
        """What was freed last at `address` and where ("buf was freed at …"); empty if nothing was."""
        return next((fate for lo, hi, fate in reversed(self._graves) if lo <= address < hi), "")

    def rank_of(self, address: int) -> int | None:
        """Whose heap or private memory `address` would lie in, allocated or not."""
        for base in (_PRIVATE_BASE, _HEAP_BASE):
            rank = (address - base) // _RANK_SPAN
            if address >= base and rank < len(self.ranks):
                return rank
        return None

    def malloc(self, nbytes: int, alignment_bytes: int, name: str | None) -> tuple[Allocation, ...] | None:
        """One symmetric allocation on every rank; None if the heap has no room for it.

        Raises:
            UsageError: `nbytes` is not positive, or the alignment is no power of two.
        """
        if nbytes <= 0:
            raise UsageError(f"symmetric allocation of {nbytes} bytes: the size must be positive")
        if alignment_bytes <= 0 or alignment_bytes & (alignment_bytes - 1):
            raise UsageError(f"symmetric allocation aligned to {alignment_bytes} bytes: must be a power of two")
        block = self.heap.allocate(nbytes, max(alignment_bytes, ROUNDING_BYTES))
        if block is None:
            return None
        peers = tuple(memory.allocation(block, name, self.poison) for memory in self.ranks)
        for allocation in peers:
            allocation.peers = peers
            self._insert(allocation)
        return peers

    def free(self, offset_bytes: int, where: str = "") -> tuple[Allocation, ...]:
        """Free the block at `offset_bytes` on every rank and poison it; empty if none starts there.

        `where` is the line that asks for it, for those who come later.
        """
        block = self.heap.release(offset_bytes)
        if block is None:
            return ()
        gone = self._by_start[self.ranks[0].base + offset_bytes].peers
        for allocation in gone:
            self._remove(allocation)
            allocation.view(torch.uint8).fill_(self.poison)
            allocation.freed_at = where
            self._graves.append((allocation.lo, allocation.hi, allocation.fate))
        return gone

    def register(self, rank: int, storage: torch.Tensor, name: str | None) -> Allocation:
        """Give private storage (1-D uint8) a simulated address of `rank`."""
        allocation = Allocation(rank, self.ranks[rank].private_address(storage.numel()), storage, name)
        self._insert(allocation)
        self._find_aliases(allocation, storage)
        return allocation

    def _find_aliases(self, allocation: Allocation, storage: torch.Tensor) -> None:
        """Introduce private memory to that which shares bytes with it."""
        first = storage.data_ptr()
        self._hosts[allocation.lo] = first, first + storage.numel()
        for lo, (other, end) in self._hosts.items():
            if other < first + storage.numel() and first < end and lo != allocation.lo:
                alias = self._by_start[lo]
                alias.settle()
                alias.aliases.append(allocation)
                allocation.aliases.append(alias)

    def unregister(self, address: int) -> Allocation | None:
        """Take private storage out of the address space; None if nothing starts at `address`."""
        allocation = self._by_start.get(address)
        if allocation is None or allocation.symmetric:
            return None
        self._remove(allocation)
        return allocation

    def close(self) -> None:
        """Give everything back now, and not when a garbage collection comes round: heaps are large mappings."""
        for allocation in self._by_start.values():
            allocation.detach()
            allocation.peers = ()  # a cycle: it is one of them
        for memory in self.ranks:
            memory.close()

    def _insert(self, allocation: Allocation) -> None:
        bisect.insort(self._starts, allocation.lo)
        self._by_start[allocation.lo] = allocation

    def _remove(self, allocation: Allocation) -> None:
        del self._starts[bisect.bisect_left(self._starts, allocation.lo)]
        del self._by_start[allocation.lo]
        self._hosts.pop(allocation.lo, None)
        for alias in allocation.aliases:
            alias.aliases.remove(allocation)
        allocation.freed = True
