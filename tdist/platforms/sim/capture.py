"""What a graph keeps of a rank's stream: launches, writes and copies with their arguments, to be run again."""

from __future__ import annotations

from collections.abc import Callable

from tdist.errors import UsageError


class Capture:
    """Stream operations of one rank, in order; `SimRank.capturing` fills it.

    Tensors among their arguments are held, so that the addresses stay what they were.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._operations: list[Callable[[], None]] = []

    def add(self, operation: Callable[[], None]) -> None:
        """Note an operation as a function that queues it once more."""
        self._operations.append(operation)

    def refuse(self, op: str) -> None:
        """Called where the host would wait: a graph holds nothing of the host.

        Raises: UsageError.
        """
        raise UsageError(
            f"rank {self._rank}: {op} while its launches are captured: what is replayed with frozen arguments must not "
            "wait for the device, allocate or meet other ranks on the host"
        )

    def replay(self) -> None:
        """Queue all of it again."""
        for operation in self._operations:
            operation()
