"""Planted faults: masks, strides and tails. Rows of the neighbour, rows of nobody, rows that are left out."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
import triton_dist.language as dl
from fault_kit import TILE, TILE_ELEMS, Buf, Corpus, finds, wrong
from triton_dist.language.extra import libshmem_device

corpus = Corpus(globals())
ROWS = 12
"""Elements of a shard that does not fill its tile."""
TWO_MASKS = "seed 001, 2.3: the mask of the buffer and the mask of the source differ"
TAIL = "failure causes: tail handling; seed 001, 6: masks instead of padding"


def shards(xs, rank):
    """The first ROWS elements of every rank."""
    return torch.cat([x[:ROWS] for x in xs])


def own_head(xs, rank):
    """One's own first 20 of 32 elements."""
    return xs[rank][:20]


@triton.jit
def tail_in_the_neighbours_rows(x, data, out, rows, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    me = dl.rank()
    world = dl.num_ranks()
    last = rows if FIX else TILE
    for step in range(world):
        pe = (me + step) % world
        tl.store(dl.symm_at(data, pe) + me * rows + offs, tl.load(x + offs), mask=offs < last)  # <tail-store>
    libshmem_device.barrier_all()
    for source in range(world):
        got = tl.load(data + source * rows + offs, mask=offs < rows)
        tl.store(out + source * rows + offs, got, mask=offs < rows)


corpus.pair(
    tail_in_the_neighbours_rows,
    finds("race", "tail-store"),
    golden=shards,
    rows=ROWS,
    why="a tile of 16 for a shard of 12: its tail lands in the next rank's rows",
    source=TAIL,
)


@triton.jit
def row_of_the_other_program(x, data, out, rows, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    start = tl.program_id(0) * rows
    peer = (dl.rank() + 1) % dl.num_ranks()
    last = rows if FIX else rows + 1
    tl.store(dl.symm_at(data, peer) + start + offs, tl.load(x + start + offs), mask=offs < last)  # <row-store>
    libshmem_device.barrier_all()
    tl.store(out + start + offs, tl.load(data + start + offs, mask=offs < rows), mask=offs < rows)


corpus.pair(
    row_of_the_other_program,
    finds("race", "row-store"),
    golden=lambda xs, rank: xs[rank - 1][: 2 * ROWS],
    grid=2,
    tiles=2,
    rows=ROWS,
    why="the mask lets one element of the other program's share through; both store the same value there",
    source=TAIL,
)


@triton.jit
def one_lane_too_many(x, out, last, FIX: tl.constexpr):
    for start in range(0, last, TILE):
        offs = start + tl.arange(0, TILE)
        keep = offs < last if FIX else offs <= last
        tl.store(out + offs, tl.load(x + offs, mask=keep), mask=keep)  # <lane-store>


corpus.pair(
    one_lane_too_many,
    finds("out-of-bounds", "lane-store"),
    golden=own_head,
    tiles=2,
    last=20,
    why="`<=` instead of `<` lets one lane of the last tile through",
    source=TAIL,
)


@triton.jit
def last_tile_without_a_mask(x, out, last, FIX: tl.constexpr):
    for start in range(0, last, TILE):
        offs = start + tl.arange(0, TILE)
        if FIX:
            tl.store(out + offs, tl.load(x + offs), mask=offs < last)
        else:
            tl.store(out + offs, tl.load(x + offs))  # <unmasked>


corpus.pair(
    last_tile_without_a_mask,
    finds("out-of-bounds", "unmasked"),
    golden=own_head,
    tiles=2,
    last=20,
    why="the store of the last tile has no mask",
    source=TAIL,
)


@triton.jit
def rows_of_a_full_shard(x, data, out, shard, last, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    me = dl.rank()
    world = dl.num_ranks()
    mine = min(shard, last - me * shard) if FIX else shard
    for step in range(world):
        pe = (me + step) % world
        tl.store(dl.symm_at(data, pe) + me * shard + offs, tl.load(x + offs), mask=offs < mine)  # <full-shard>
    libshmem_device.barrier_all()
    for source in range(world):
        rows = source * shard + offs
        keep = (offs < shard) & (rows < last)
        tl.store(out + rows, tl.load(data + rows, mask=keep), mask=keep)


corpus.pair(
    rows_of_a_full_shard,
    finds("out-of-bounds", "full-shard"),
    golden=lambda xs, rank: shards(xs, rank)[:20],
    buffers={"data": Buf(20)},
    shard=ROWS,
    last=20,
    why="the last rank has 8 rows and sends 12, like the others",
    source="failure causes: different shapes on ranks; situations: uneven work",
)


@triton.jit
def mask_of_the_source(x, data, out, rows, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    world = dl.num_ranks()
    peer = (dl.rank() + 1) % world
    keep = offs < rows if FIX else dl.rank() * rows + offs < world * rows
    tl.store(dl.symm_at(data, peer) + offs, tl.load(x + offs), mask=keep)  # <source-mask>
    libshmem_device.barrier_all()
    tl.store(out + offs, tl.load(data + offs, mask=offs < rows), mask=offs < rows)


corpus.pair(
    mask_of_the_source,
    finds("out-of-bounds", "source-mask"),
    golden=lambda xs, rank: xs[rank - 1][:ROWS],
    buffers={"data": Buf(ROWS)},
    rows=ROWS,
    why="the mask counts rows of the whole tensor; the store goes to a buffer of one shard",
    source=TWO_MASKS,
)


@triton.jit
def mask_of_the_buffer(x, data, out, rows, last, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    peer = (dl.rank() + 1) % dl.num_ranks()
    keep = offs < last if FIX else offs < rows
    tl.store(dl.symm_at(data, peer) + offs, tl.load(x + offs, mask=keep, other=0.0))  # <padded>
    libshmem_device.barrier_all()
    tl.store(out + offs, tl.load(data + offs))


corpus.pair(
    mask_of_the_buffer,
    wrong((0, 0), (1, 0)),
    golden=lambda xs, rank: torch.cat([xs[rank - 1][:ROWS], torch.zeros(TILE_ELEMS - ROWS).to(xs[0])]),
    rows=ROWS - 4,
    last=ROWS,
    why="the load is masked with the bounds of the smaller buffer of the other side: rows arrive as zeros",
    source=TWO_MASKS,
)


@triton.jit
def stride_of_the_tile(x, data, out, columns, FIX: tl.constexpr):
    rows = tl.arange(0, 4)[:, None]
    lanes = tl.arange(0, TILE)[None, :]
    peer = (dl.rank() + 1) % dl.num_ranks()
    stride = columns if FIX else TILE
    keep = lanes < columns
    got = tl.load(x + rows * columns + lanes, mask=keep)
    tl.store(dl.symm_at(data, peer) + rows * stride + lanes, got, mask=keep)  # <stride>
    libshmem_device.barrier_all()
    tl.store(out + rows * columns + lanes, tl.load(data + rows * columns + lanes, mask=keep), mask=keep)


corpus.pair(
    stride_of_the_tile,
    finds("out-of-bounds", "stride"),
    golden="ring",
    buffers={"data": Buf(4 * ROWS)},
    tiles=3,
    columns=ROWS,
    why="rows of 12 elements are addressed with the stride of the tile, 16",
    source="seed 001, 1: pointer arithmetic with the tensor's strides",
)


@triton.jit
def stride_that_stays_inside(x, data, out, columns, FIX: tl.constexpr):
    rows = tl.arange(0, 4)[:, None]
    lanes = tl.arange(0, TILE)[None, :]
    peer = (dl.rank() + 1) % dl.num_ranks()
    stride = columns if FIX else TILE
    keep = lanes < columns
    got = tl.load(x + rows * columns + lanes, mask=keep)
    tl.store(dl.symm_at(data, peer) + rows * stride + lanes, got, mask=keep)
    libshmem_device.barrier_all()
    tl.store(out + rows * columns + lanes, tl.load(data + rows * columns + lanes, mask=keep), mask=keep)


corpus.pair(
    stride_that_stays_inside,
    wrong((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)),
    golden="ring",
    tiles=3,
    columns=ROWS,
    why="the same in a buffer that is large enough: only the values tell",
    source="seed 001, 1: pointer arithmetic with the tensor's strides",
)


@triton.jit
def mask_of_the_other_axis(x, out, m, columns, FIX: tl.constexpr):
    rows = tl.arange(0, TILE)[:, None]
    lanes = tl.arange(0, TILE)[None, :]
    keep = (rows < m) & (lanes < columns)
    got = tl.load(x + rows * columns + lanes, mask=keep)
    if not FIX:
        keep = (rows < columns) & (lanes < m)
    tl.store(out + rows * columns + lanes, got, mask=keep)  # <other-axis>


corpus.pair(
    mask_of_the_other_axis,
    finds("out-of-bounds", "other-axis"),
    golden="own",
    tiles=3,
    m=4,
    columns=ROWS,
    why="rows are compared with the number of columns",
    source="seed 001, 6: two-dimensional masks",
)


@triton.jit
def tiles_rounded_down(x, out, last, FIX: tl.constexpr):
    tiles = (last + TILE - 1) // TILE if FIX else last // TILE
    for tile in range(tiles):
        offs = tile * TILE + tl.arange(0, TILE)
        tl.store(out + offs, tl.load(x + offs, mask=offs < last), mask=offs < last)


corpus.pair(
    tiles_rounded_down,
    wrong((0, 1), (1, 1)),
    golden=own_head,
    tiles=2,
    last=20,
    why="n // BLOCK tiles leave the tail of the output unwritten",
    source=TAIL,
)


@triton.jit
def mask_that_shrank(x, data, out, rows, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    peer = (dl.rank() + 1) % dl.num_ranks()
    last = rows if FIX else rows - 1
    tl.store(dl.symm_at(data, peer) + offs, tl.load(x + offs), mask=offs < last)
    libshmem_device.barrier_all()
    tl.store(out + offs, tl.load(data + offs, mask=offs < rows), mask=offs < rows)


corpus.pair(
    mask_that_shrank,
    finds("uninitialised"),
    wrong((0, 0), (1, 0)),
    golden=lambda xs, rank: xs[rank - 1][:ROWS],
    buffers={"data": Buf(TILE_ELEMS, fill=None)},
    rows=ROWS,
    why="the push leaves out the last row, the copy reads it: memory that nobody wrote",
    source="mutations: shrink a mask",
)


@triton.jit
def tail_without_other(x, out, last, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if FIX:
        got = tl.load(x + offs, mask=offs < last, other=0.0)
    else:
        got = tl.load(x + offs, mask=offs < last, care_padding=False)
    tl.store(out + offs, got + tl.max(got, 0) * 0)


corpus.pair(
    tail_without_other,
    finds("uninitialised"),
    wrong((0, 0), (1, 0)),
    golden=lambda xs, rank: torch.where(torch.arange(TILE_ELEMS) < ROWS, xs[rank], 0),
    last=ROWS,
    why="lanes that the mask turned off hold whatever was there and reach the output",
    source="ordering model, uninitialised use",
)


@triton.jit
def rows_and_columns_swapped(x, data, out, columns, FIX: tl.constexpr):
    rows = tl.arange(0, 4)[:, None]
    lanes = tl.arange(0, TILE)[None, :]
    peer = (dl.rank() + 1) % dl.num_ranks()
    keep = lanes < columns
    got = tl.load(x + rows * columns + lanes, mask=keep)
    place = rows * columns + lanes if FIX else lanes * 4 + rows
    tl.store(dl.symm_at(data, peer) + place, got, mask=keep)
    libshmem_device.barrier_all()
    tl.store(out + rows * columns + lanes, tl.load(data + rows * columns + lanes, mask=keep), mask=keep)


corpus.pair(
    rows_and_columns_swapped,
    wrong((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)),
    golden="ring",
    tiles=3,
    columns=ROWS,
    why="the tile is stored with the strides of its transpose",
    source="seed 001, 1: pointer arithmetic with the tensor's strides",
)
