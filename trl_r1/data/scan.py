"""Going through a data set chunk by chunk, in several processes, with results that outlive a kill.

A chunk's result is a table that is written in one piece; a second run reads it instead of computing
it again. Left out: what is computed.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from trl_r1.sampling.shards import write_atomically

if TYPE_CHECKING:
    from datasets import Dataset

# Rows of a chunk, and its first row's number, to a table. It has to pickle where there are several
# processes.
Compute = Callable[[dict[str, list[Any]], int], pa.Table]

CHUNK_SIZE = 10_000


def scan(
    rows: Dataset,
    columns: list[str],
    compute: Compute,
    workspace: Path | None = None,
    num_proc: int = 1,
    chunk_size: int = CHUNK_SIZE,
) -> Iterator[pa.Table]:
    """The results of all chunks, in order, one in memory at a time.

    Args:
        rows: to go through.
        columns: to read of them.
        compute: what to do with a chunk.
        workspace: folder where results are kept, and found by another run; None to keep none.
        num_proc: processes; 1 for this one.
        chunk_size: rows.
    """
    if workspace is not None:
        workspace.mkdir(parents=True, exist_ok=True)
    job = _Job(rows.select_columns(columns), compute, workspace, chunk_size)
    num_chunks = -(-len(rows) // chunk_size)
    if num_proc <= 1 or num_chunks < 2:
        yield from map(job, range(num_chunks))
        return
    # Not forked: arrow's threads do not survive that.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(num_proc, num_chunks), context, _start, (job,)) as pool:
        yield from pool.map(_run, range(num_chunks))


class _Job:
    def __init__(
        self, rows: Dataset, compute: Compute, workspace: Path | None, chunk_size: int
    ) -> None:
        self.rows, self.compute = rows, compute
        self.workspace, self.chunk_size = workspace, chunk_size

    def __call__(self, index: int) -> pa.Table:
        start = index * self.chunk_size
        if self.workspace is None:
            return self._make(start)
        path = self.workspace / f"{index:06d}.parquet"
        if path.exists():
            return pq.read_table(path)
        table = self._make(start)
        write_atomically(path, lambda temporary: pq.write_table(table, temporary))
        return table

    def _make(self, start: int) -> pa.Table:
        return self.compute(self.rows[start : start + self.chunk_size], start)


_job: _Job | None = None


def _start(job: _Job) -> None:
    global _job  # a process of the pool serves one scan
    _job = job


def _run(index: int) -> pa.Table:
    assert _job is not None
    return _job(index)
