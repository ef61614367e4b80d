"""All-gather by torch.distributed, and from all shards where no process group exists."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from tdist.golden.reference import Reference


def all_gather(shard: torch.Tensor, rows: int, group: dist.ProcessGroup | None = None) -> Reference:
    """Gather the shards of all ranks of `group` along the first axis.

    Args:
        shard: this rank's rows; ranks may hold fewer rows than `ceil(rows / R)` or none.
        rows: rows of the gathered tensor.

    Shape: shard [s, ...] with s <= S = ceil(rows / R); value [rows, ...].
    Dtype: the shard's own, any: bytes travel, so nothing is rounded and no back end has to know the type.
    """
    nranks = dist.get_world_size(group)
    capacity = -(-rows // nranks)
    padded = shard.new_zeros((capacity, *shard.shape[1:]))
    padded[: shard.shape[0]] = shard
    sent = padded.reshape(-1).view(torch.uint8)
    gathered = [torch.empty_like(sent) for _ in range(nranks)]
    dist.all_gather(gathered, sent, group=group)
    return Reference(torch.cat(gathered).view(shard.dtype).reshape(nranks * capacity, *shard.shape[1:])[:rows])


def all_gather_local(shards: Sequence[torch.Tensor], rows: int) -> Reference:
    """The same from the shards of all ranks at hand, for worlds without a process group.

    Raises: ValueError if the shards do not add up to `rows`.
    """
    value = torch.cat(list(shards))
    if value.shape[0] != rows:
        raise ValueError(f"the shards have {value.shape[0]} rows together, expected {rows}")
    return Reference(value)
