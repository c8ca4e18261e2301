"""Rewards that harm the process they run in: a row costs itself alone, and nothing is left."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trl_r1.verification.bound_reward import RewardError
from trl_r1.verification.pool import PoolError, RewardPool
from trl_r1.verification.pooled_reward import pooled
from trl_r1.verification.process_family import family_of, memory_mb

FILE = Path(__file__).with_name("pool_traps.py")
needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.fixture(scope="module")
def pool() -> Iterator[RewardPool]:
    with RewardPool(num_workers=2) as pool:
        yield pool


def make(pool: RewardPool, name: str = "trapped", **settings: Any) -> Any:
    # The time limit is wide where it is not what is tested: the machine may be busy.
    return pooled(f"{FILE}:{name}", pool=pool, **{"timeout": 60.0, "memory_mb": 256, **settings})


@pytest.mark.parametrize(
    ("trap", "verdict", "words"),
    [
        ("<numpy>", "out of memory", "took more than memory_mb=256 MB"),
        ("<threads>", "out of memory", "took more than memory_mb=256 MB"),
        pytest.param("<shared memory>", "out of memory", "memory_mb=256 MB", marks=needs_proc),
        pytest.param("<child grows>", "out of memory", "memory_mb=256 MB", marks=needs_proc),
        ("<fork and exit>", "crashed", "ended with exit status 3"),
        ("<close and go on>", "crashed", "closed its line to the trainer and went on"),
        ("<close>", "crashed", "ended with exit status 1"),
        ("<abort>", "crashed", "was ended by SIGABRT"),
        ("<bad pointer>", "crashed", "was ended by SIGSEGV"),
        ("<kill group>", "crashed", "was ended by SIGKILL"),
    ],
)
def test_a_row_that_breaks_its_worker_costs_itself_alone_and_says_how(
    pool: RewardPool, trap: str, verdict: str, words: str
) -> None:
    texts = ["a", "bb", trap, "ccc", "dddd"]
    pending = make(pool).submit(texts)
    assert pending.result() == [1.0, 2.0, 0.0, 3.0, 4.0]
    assert pending.verdicts == ["ok", "ok", verdict, "ok", "ok"]
    assert words in pending.details[2]


@pytest.mark.parametrize("trap", ["<fork bomb>", "<daemon>", "<stop>"])
def test_a_row_that_never_ends_is_killed_with_all_it_started(pool: RewardPool, trap: str) -> None:
    pending = make(pool, timeout=0.5).submit(["a", trap, "bb"])
    assert pending.result() == [1.0, 0.0, 2.0]
    assert pending.verdicts[1] == "timed out"
    assert "86399" not in _commands()
    assert all(family_of(pid) == [pid] for pid in pool.worker_pids)


@pytest.mark.parametrize(
    "trap",
    [
        "<fork>",
        "<surroundings>",
        "<close streams>",
        "<flood>",  # after the one that closes what it writes to
        "<flood by a child>",
        "<thread>",
    ],
)
def test_what_a_row_does_to_its_surroundings_changes_no_reward(pool: RewardPool, trap: str) -> None:
    texts = ["a", "bb", trap, "ccc", "dddd"] * 2
    pending = make(pool).submit(texts)
    assert pending.result() == [float(len(text)) for text in texts]
    assert set(pending.verdicts) == {"ok"}
    assert make(pool)(["x" * n for n in range(20)]) == [float(n) for n in range(20)]
    assert make(pool, "where")(["x"] * 4) == [1.0] * 4


@pytest.mark.parametrize(
    ("trap", "words"),
    [
        ("<recursion>", "RecursionError"),
        ("<no text>", "its text can't be had"),
        ("<interrupt>", "KeyboardInterrupt"),
    ],
)
def test_an_odd_exception_is_a_bug_like_any_other(pool: RewardPool, trap: str, words: str) -> None:
    with pytest.raises(RewardError, match=rf"'trapped'.*{words}.*row 1 of 3"):
        make(pool)(["a", trap, "b"])
    assert make(pool, on_error="none")(["a", trap, "bb"]) == [1.0, None, 2.0]


def test_the_row_of_a_batch_that_raises_is_named(pool: RewardPool) -> None:
    with pytest.raises(RewardError, match=r"ZeroDivisionError.*row 3 of 5 of the batch"):
        make(pool, "fails_at_once")(["a", "b", "c", "<raise>", "d"])


def test_an_error_is_no_timeout_though_looking_for_its_row_takes_long(pool: RewardPool) -> None:
    with pytest.raises(RewardError, match=r"KeyError: 'lost'.*rows 0 to 3 of 4"):
        make(pool, "fails_late", timeout=1.0)(["a", "b", "c", "<raise>"])


def test_a_call_that_logs_without_measure_is_an_error_that_says_so(pool: RewardPool) -> None:
    reward = make(pool, "logs_much", memory_mb=1024)
    with pytest.raises(RewardError, match=r"'logs_much'.*logged 20,\d+,\d+ characters.*row 0 of 1"):
        reward(["a"], log_extra=lambda *_: None)


class Local:
    """Of this module, which a worker can't import."""


def test_a_column_that_only_the_trainer_can_read_is_an_error_that_says_so(
    pool: RewardPool,
) -> None:
    Local.__module__ = "no_such_module_in_a_worker"
    sys.modules["no_such_module_in_a_worker"] = sys.modules[__name__]
    try:
        with pytest.raises(RewardError, match="columns can't be read in a worker process: Module"):
            make(pool, "reads_values")(["a", "b"], value=[Local(), Local()])
    finally:
        del sys.modules["no_such_module_in_a_worker"]


@needs_proc
def test_memory_is_that_of_a_process_and_all_it_started() -> None:
    grown = "x = bytearray(b'x') * (60 << 20); print(flush=True); input()"
    parent = (
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {grown!r}], check=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    assert len(family_of(process.pid)) == 2
    assert 60 < memory_mb(process.pid, 50) < 100
    process.communicate(b"\n")
    assert memory_mb(process.pid, 50) == 0


@needs_proc
def test_forks_share_their_memory_in_the_count() -> None:
    script = (
        "import os, time\n"
        "x = bytearray(b'x') * (60 << 20)\n"
        "children = [os.fork() for _ in range(1)]\n"
        "if 0 in children: time.sleep(3600)\n"
        "print(flush=True); input(); os.kill(children[0], 9)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    assert memory_mb(process.pid, 90) < 90
    process.communicate(b"\n")


def test_many_hanging_rows_in_one_batch_cost_a_limit_each_and_no_neighbour(
    pool: RewardPool, caplog: pytest.LogCaptureFixture
) -> None:
    texts = ["<stop>" if n % 2 else "x" * n for n in range(20)]
    with caplog.at_level(logging.WARNING):
        rewards = make(pool, timeout=0.3)(texts, prompts=["p"] * 20)
    assert rewards == [0.0 if n % 2 else float(n) for n in range(20)]
    assert "10 of 20 calls of a batch of 20 rows failed" in caplog.text
    assert "and 6 more" in caplog.text


def test_a_fork_of_the_trainer_never_waits_for_a_lock_of_its_parent(pool: RewardPool) -> None:
    """As a data loader's worker does, forked while another thread is handing work over."""
    reward = make(pool)
    is_over = threading.Event()

    def keep_busy() -> None:
        while not is_over.is_set():
            reward(["a"] * 4)

    thread = threading.Thread(target=keep_busy)
    thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                os._exit(_status_of_use_in_a_fork(reward))
            assert os.waitstatus_to_exitcode(_wait(child)) == 7
    finally:
        is_over.set()
        thread.join()
    assert reward(["abc"]) == [3.0]


def _status_of_use_in_a_fork(reward: Any) -> int:
    try:
        reward(["a"])
    except PoolError as error:
        return 7 if "belongs to the parent process" in str(error) else 8
    return 9


def _wait(pid: int) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    raise AssertionError("the fork hangs")


def _commands() -> str:
    texts = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            texts.append(file.read_text().replace("\0", " "))
        except OSError:
            continue
    return "\n".join(texts)


def test_a_trainer_without_standard_streams_has_a_pool_too(tmp_path: Path) -> None:
    script, result = tmp_path / "run.py", tmp_path / "result"
    script.write_text(
        "from pathlib import Path\n"
        "from trl_r1.verification.pooled_reward import pooled\n"
        f"reward = pooled({f'{FILE}:trapped'!r}, num_workers=1)\n"
        f"Path({str(result)!r}).write_text(str(reward(['abc', '<flood>', 'a'])))\n"
    )
    command = f"exec {sys.executable} {script} <&- >&- 2>&-"
    subprocess.run(["sh", "-c", command], check=True, timeout=120)
    assert result.read_text() == "[3.0, 7.0, 1.0]"
