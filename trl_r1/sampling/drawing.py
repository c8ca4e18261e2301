"""The loop over a job's shards: claim, sample, hand over, go on.

Where completions are made elsewhere, the next shard is sampled while this one is graded and its
longest completions are waited for. Left out: what becomes of a shard, which is the caller's.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from trl_r1.sampling import RemoteSampler, Sample
from trl_r1.sampling.processes import ShardQueue

_LOOK_AGAIN_SECONDS = 0.5

Drawn = list[list[Sample]]


@contextmanager
def drawn_ahead(
    queue: ShardQueue, sample: Callable[[int], Drawn], remote: RemoteSampler | None
) -> Iterator[Iterator[tuple[int, Drawn]]]:
    """Each shard of the queue with its samples, in a `with` so that an error or Ctrl-C ends what is
    under way.

    Args:
        queue: shards to make; a claim is held until the shard after it is asked for.
        sample: draws the samples of a shard.
        remote: the sampler where completions are made elsewhere; shards are then drawn
            `shards_ahead` at a time, each in a thread of its own.
    """
    if remote is None:
        yield _one_by_one(queue, sample)
        return
    executor = ThreadPoolExecutor(remote.shards_ahead)
    try:
        yield _several(queue, sample, executor, remote.shards_ahead)
    except BaseException:
        remote.close()  # else the threads would wait for their answers to the end
        raise
    finally:
        executor.shutdown(cancel_futures=True)


def _one_by_one(queue: ShardQueue, sample: Callable[[int], Drawn]) -> Iterator[tuple[int, Drawn]]:
    while True:
        work = queue.take()
        if work is not None:
            index, claim = work
            yield index, sample(index)
            claim.release()
        elif queue.is_done():
            return
        else:
            time.sleep(_LOOK_AGAIN_SECONDS)


def _several(
    queue: ShardQueue, sample: Callable[[int], Drawn], executor: ThreadPoolExecutor, number: int
) -> Iterator[tuple[int, Drawn]]:
    under_way: deque[tuple[int, Future[Drawn], Callable[[], None]]] = deque()
    while True:
        while len(under_way) < number and (work := queue.take()) is not None:
            index, claim = work
            under_way.append((index, executor.submit(sample, index), claim.release))
        if under_way:
            index, future, release = under_way.popleft()
            yield index, future.result()
            release()
        elif queue.is_done():
            return
        else:
            time.sleep(_LOOK_AGAIN_SECONDS)
