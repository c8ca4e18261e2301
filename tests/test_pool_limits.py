"""What the pool does with rewards and rows that hang, grow, crash or are wrong."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trl_r1.rewards.math_answer import math_answer_reward
from trl_r1.verification.bound_reward import RewardError
from trl_r1.verification.loading import RewardReferenceError
from trl_r1.verification.pool import RewardPool
from trl_r1.verification.pooled_reward import close_shared_pool, pooled

FILE = Path(__file__).with_name("pool_rewards.py")
HOSTILE = Path(__file__).parents[2] / "shared" / "data" / "labelled" / "hostile_cases.jsonl"
NEIGHBOURS = ["x" * n for n in range(1, 30)]


@pytest.fixture(scope="module")
def pool() -> Iterator[RewardPool]:
    with RewardPool(num_workers=2) as pool:
        yield pool


def make(pool: RewardPool, name: str, **settings: Any) -> Any:
    return pooled(f"{FILE}:{name}", pool=pool, **{"timeout": 0.5, "memory_mb": 256, **settings})


@pytest.mark.parametrize(
    ("trap", "verdict"),
    [
        ("<hang>", "timed out"),
        ("<sleep>", "timed out"),
        ("<grow>", "out of memory"),
        ("<huge>", "out of memory"),
        ("<segfault>", "crashed"),
        ("<exit>", "crashed"),
    ],
)
def test_a_hostile_row_costs_itself_alone(
    pool: RewardPool, trap: str, verdict: str, caplog: pytest.LogCaptureFixture
) -> None:
    metrics: dict[str, float] = {}
    # The time limit is wide where it is not what is tested: the machine may be busy.
    reward = make(pool, "length", timeout=0.5 if verdict == "timed out" else 30.0)
    texts = [*NEIGHBOURS[:14], trap, *NEIGHBOURS[14:]]
    pending = reward.submit(texts, prompts=["p"] * 30, log_metric=metrics.__setitem__)
    with caplog.at_level(logging.WARNING):
        rewards = pending.result()
    expected = [float(len(text)) for text in texts]
    expected[14] = 0.0
    assert rewards == expected
    assert pending.verdicts == ["ok"] * 14 + [verdict] + ["ok"] * 15
    key = "timed_out" if verdict == "timed out" else "crashed"
    assert metrics[f"rewards/length/{key}"] == pytest.approx(1 / 30)
    assert "reward 'length'" in caplog.text
    assert "row 14" in caplog.text


def test_a_killed_row_gets_none_or_stops_the_run_as_set(pool: RewardPool) -> None:
    texts = ["abc", "<hang>"]
    assert make(pool, "length", on_kill="none")(texts) == [3.0, None]
    with pytest.raises(RewardError, match=r"'length'.*row 1 of 2 timed out after 0.5 s"):
        make(pool, "length", on_kill="raise")(texts)
    with pytest.raises(RewardError, match=r"row 0 of 1 crashed its worker.*SIGSEGV"):
        make(pool, "length", on_kill="raise")(["<segfault>"])


def test_a_bug_is_an_error_that_names_the_row_and_the_line(pool: RewardPool) -> None:
    with pytest.raises(RewardError) as caught:
        make(pool, "length")(["x"] * 5 + ["<raise>"] + ["x"] * 3)
    message = str(caught.value)
    assert "reward 'length'" in message
    assert "KeyError: 'lost'" in message
    assert "pool_rewards.py:" in message
    assert "row 5 of 9" in message


def test_a_reward_that_calls_exit_is_a_bug_and_ends_nothing(pool: RewardPool) -> None:
    with pytest.raises(RewardError, match="SystemExit"):
        make(pool, "length")(["<system exit>"])
    assert make(pool, "length")(["ok"]) == [2.0]


def test_a_bug_becomes_none_and_a_warning_as_set(
    pool: RewardPool, caplog: pytest.LogCaptureFixture
) -> None:
    pending = make(pool, "length", on_error="none").submit(["x", "<raise>", "xy"])
    with caplog.at_level(logging.WARNING):
        assert pending.result() == [1.0, None, 2.0]
    assert pending.verdicts == ["ok", "error", "ok"]
    assert "KeyError" in caplog.text


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1.0, 2.0], "returned 2 rewards for 1 completions"),
        ([], "returned 0 rewards for 1 completions"),
        (None, "returned a NoneType"),
        (1.0, "returned a float"),
        (["1.0"], "returned '1.0' for row"),
        ([float("nan")], "returned nan for row"),
        ([float("inf")], "returned inf for row"),
        ([[1.0]], r"returned \[1.0\] for row"),
    ],
)
def test_an_unusable_result_is_an_error_that_names_the_reward(
    pool: RewardPool, value: Any, message: str
) -> None:
    with pytest.raises(
        RewardError, match=f"reward 'returns'.*{message}.*row [01] of 2 of the batch"
    ):
        make(pool, "returns", args={"value": value})(["a", "b"])


def test_a_reward_that_never_comes_back_stops_the_run(pool: RewardPool) -> None:
    with pytest.raises(RewardError, match="the reward itself is at fault"):
        make(pool, "always_sleeps", timeout=0.1)(["x"] * 32)


def test_a_leak_costs_no_row_its_grade(pool: RewardPool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        rewards = make(pool, "leaks", memory_mb=128, timeout=30.0)(["x"] * 60)
    assert rewards == [1.0] * 60
    assert "the reward may leak memory" in caplog.text


def test_workers_stay_within_their_memory(pool: RewardPool) -> None:
    peaks: dict[int, int] = {}
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.005):
            for pid in pool.worker_pids:
                try:
                    status = Path(f"/proc/{pid}/status").read_text()
                except OSError:
                    continue
                fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
                if "RssAnon" in fields:
                    peak_kb = int(fields["RssAnon"].split()[0])
                    peaks[pid] = max(peaks.get(pid, 0), peak_kb)

    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    thread = threading.Thread(target=watch)
    thread.start()
    rewards = make(pool, "length", timeout=30.0)(["ab", "<grow>", "abc", "<huge>"])
    is_over.set()
    thread.join()
    assert rewards == [2.0, 0.0, 3.0, 0.0]
    # The stack, and what the interpreter holds outside the limit, are a few MB more.
    assert max(peaks.values()) / 1024 < 256 + 16


def test_start_up_never_counts_against_a_row(pool: RewardPool, tmp_path: Path) -> None:
    slow = tmp_path / "slow_start.py"
    slow.write_text("import time\ntime.sleep(1.0)\ndef one(completions, **kwargs): return [1.0]\n")
    assert pooled(f"{slow}:one", timeout=0.3, pool=pool)(["x"] * 4) == [1.0] * 4


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("import ctypes; ctypes.string_at(0)", "crashed while it was loaded.*SIGSEGV"),
        ("raise SystemExit(4)", "SystemExit"),
        ("hoard = bytearray(b'x') * (1 << 30)", "MemoryError|memory"),
        ("import no_such_module", "no_such_module"),
    ],
)
def test_a_reward_that_does_not_load_says_why(
    pool: RewardPool, tmp_path: Path, body: str, message: str
) -> None:
    file = tmp_path / "broken.py"
    file.write_text(f"{body}\ndef one(completions, **kwargs): return [1.0]\n")
    with pytest.raises(RewardReferenceError, match=message):
        pooled(f"{file}:one", memory_mb=256, pool=pool)
    assert make(pool, "length")(["ok"]) == [2.0]


def test_a_reward_that_takes_for_ever_to_load_says_so(tmp_path: Path) -> None:
    file = tmp_path / "stuck.py"
    file.write_text("import time; time.sleep(3600)\ndef one(completions, **kwargs): return [1.0]\n")
    with (
        RewardPool(num_workers=1, startup_timeout=1.5) as own,
        pytest.raises(RewardReferenceError, match=r"not loaded within startup_timeout=1\.5 s"),
    ):
        pooled(f"{file}:one", pool=own)


def _hostile_rows() -> tuple[list[str], list[str]]:
    if not HOSTILE.exists():
        pytest.skip("shared/data/labelled is not beside the repository")
    rows = [json.loads(line) for line in HOSTILE.read_text(encoding="utf-8").splitlines()]
    return [row["pred"] for row in rows], [row["gold"] for row in rows]


def test_hostile_answers_end_the_same_in_the_main_thread_a_thread_and_the_pool(
    pool: RewardPool,
) -> None:
    completions, golds = _hostile_rows()
    here = math_answer_reward(completions, solution=golds)
    in_thread: list[Any] = []
    thread = threading.Thread(
        target=lambda: in_thread.extend(math_answer_reward(completions, solution=golds))
    )
    thread.start()
    thread.join(timeout=60)
    assert in_thread == here
    pending = pooled("math_answer", pool=pool, timeout=20.0).submit(completions, solution=golds)
    assert pending.result() == here
    assert set(pending.verdicts) <= {"ok", "not gradable", "malformed"}


def _naive_grader(tmp_path: Path) -> Path:
    naive = tmp_path / "naive.py"
    naive.write_text(
        "import logging\n"
        "from math_verify import parse, verify\n"
        "logging.disable()\n"
        "def naive(completions, solution, **kwargs):\n"
        "    return [float(verify(parse(s, parsing_timeout=None), parse(c, parsing_timeout=None),\n"
        "                         timeout_seconds=None)) for c, s in zip(completions, solution)]\n"
    )
    return naive


def test_a_grader_without_any_limits_of_its_own_survives_hostile_answers(
    pool: RewardPool, tmp_path: Path
) -> None:
    naive = _naive_grader(tmp_path)
    reward = pooled(f"{naive}:naive", pool=pool, timeout=1.5, memory_mb=512)
    traps = [r"\boxed{9^{9^9}}", r"\boxed{2^{10^9}}", rf"\boxed{{{'(' * 10**4}1{')' * 10**4}}}"]
    for trap in traps:
        rewards = reward(
            [r"\boxed{2}", r"\boxed{3}", trap, r"\boxed{2}"], solution=["2", "2", "1", "2"]
        )
        assert rewards == [1.0, 0.0, 0.0, 1.0]


def _script(tmp_path: Path, body: str) -> subprocess.Popen[str]:
    file = tmp_path / "run.py"
    file.write_text(
        "import os, signal, sys, threading, time\n"
        # A shell's background job starts with Ctrl-C ignored, and so would everything it starts.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from trl_r1.verification.pooled_reward import pooled, shared_pool\n"
        f"reward = pooled({str(FILE)!r} + ':length', timeout=600, num_workers=2)\n"
        f"{body}"
    )
    return subprocess.Popen(
        [sys.executable, file], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def _wait_until_gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + 120
    while any(map(_is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(_is_alive, pids))


REPORT = (
    "pending = reward.submit(['<hang>'] * 4 + ['<sleep>'])\n"
    "time.sleep(0.5)\n"
    "print(*shared_pool().worker_pids, flush=True)\n"
)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_the_trainer_however_it_ends(tmp_path: Path, how: int) -> None:
    process = _script(tmp_path, REPORT + "pending.result()\n")
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2
    assert all(map(_is_alive, pids))
    process.send_signal(how)
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    assert how != signal.SIGINT or errors.rstrip().endswith("KeyboardInterrupt")
    assert _wait_until_gone(pids)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_script_that_ends_with_work_under_way_ends(tmp_path: Path) -> None:
    process = _script(tmp_path, REPORT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert _wait_until_gone([int(pid) for pid in output.split()])


def test_a_worker_ignores_the_terminals_interrupt(pool: RewardPool) -> None:
    for pid in pool.worker_pids:
        os.kill(pid, signal.SIGINT)
    assert make(pool, "length")(["abc"]) == [3.0]


def test_a_worker_that_someone_kills_costs_nothing(pool: RewardPool) -> None:
    reward = make(pool, "pid", timeout=30.0)
    pending = reward.submit(["x"] * 12)
    time.sleep(0.1)
    os.kill(pool.worker_pids[0], signal.SIGKILL)
    assert all(value > 0 for value in pending.result())
    assert pending.verdicts == ["ok"] * 12


def test_a_forked_child_gets_workers_of_its_own(tmp_path: Path) -> None:
    process = _script(
        tmp_path,
        "first = reward(['abc'])\n"
        "mine = set(shared_pool().worker_pids)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    same = reward(['abcd'])\n"
        "    print(first, same, bool(mine & set(shared_pool().worker_pids)), flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "print(reward(['ab']))\n",
    )
    output, errors = process.communicate(timeout=60)
    assert output.splitlines() == ["[3.0] [4.0] False", "[2.0]"], errors


def test_nothing_is_left_of_the_shared_pool() -> None:
    reward = pooled(f"{FILE}:length", num_workers=1)
    assert reward(["abc"]) == [3.0]
    close_shared_pool()
    assert reward(["abcd"]) == [4.0]  # it starts anew
    close_shared_pool()


@pytest.mark.slow
def test_a_naive_grader_gets_over_all_hostile_answers_in_one_batch(
    pool: RewardPool, tmp_path: Path
) -> None:
    """Each that hangs costs its limit; the neighbours' rewards are what they are without them."""
    completions, golds = _hostile_rows()
    reward = pooled(
        f"{_naive_grader(tmp_path)}:naive",
        pool=pool,
        timeout=2.0,
        memory_mb=512,
        on_error="none",
    )
    neighbours = [rf"so \boxed{{{n % 5}}}" for n in range(len(completions))]
    mixed = [text for pair in zip(completions, neighbours, strict=True) for text in pair]
    solutions = [gold for own in golds for gold in (own, "3")]
    pending = reward.submit(mixed, solution=solutions, prompts=["p"] * len(mixed))
    assert pending.result()[1::2] == [float(n % 5 == 3) for n in range(len(completions))]
    assert "timed out" in pending.verdicts[0::2]
    assert set(pending.verdicts[1::2]) == {"ok"}
