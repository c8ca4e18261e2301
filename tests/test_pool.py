"""The reward pool: same rewards as without it, whatever the reward needs, wherever it is called."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trl_r1.rewards.math_answer import math_answer_reward
from trl_r1.stages import RewardSpec
from trl_r1.verification.bound_reward import RewardError
from trl_r1.verification.loading import RewardReferenceError, build_reward, required_columns
from trl_r1.verification.pool import PoolError, RewardPool, default_num_workers
from trl_r1.verification.pooled_reward import close_shared_pool, pooled, shared_pool

FILE = Path(__file__).with_name("pool_rewards.py")


@pytest.fixture(scope="module")
def pool() -> Iterator[RewardPool]:
    with RewardPool(num_workers=2) as pool:
        yield pool


def make(pool: RewardPool, name: str, **settings: Any) -> Any:
    return pooled(f"{FILE}:{name}", pool=pool, **settings)


def test_rewards_are_those_of_the_function_itself(pool: RewardPool) -> None:
    completions = [rf"so \boxed{{{n}}}" for n in range(40)]
    messages = [[{"role": "assistant", "content": text}] for text in completions]
    golds = [str(n // 2 * 2) for n in range(38)] + ["", ""]
    reward = pooled("math_answer", pool=pool)
    for rows in (completions, messages):
        assert reward(rows, solution=golds) == math_answer_reward(rows, solution=golds)


def test_a_row_reward_sees_one_row_a_group_reward_its_group_a_batch_reward_all(
    pool: RewardPool,
) -> None:
    prompts = ["a"] * 3 + ["b"] * 2 + ["a"]
    texts = ["x"] * 6
    assert make(pool, "num_seen")(texts, prompts=prompts) == [1.0] * 6
    seen = make(pool, "num_seen_of_group")(texts, prompts=prompts)
    assert seen == [3.0, 3.0, 3.0, 2.0, 2.0, 1.0]
    assert make(pool, "num_seen_of_batch")(texts, prompts=prompts) == [6.0] * 6


def test_a_coroutine_reward_gets_the_batch_so_that_it_can_await_its_rows_together(
    pool: RewardPool,
) -> None:
    assert make(pool, "awaits")(["x"] * 5) == [5.0] * 5


def test_work_is_spread_over_the_workers(pool: RewardPool) -> None:
    pids = make(pool, "pid")(["x"] * 8, prompts=["p"] * 8)
    assert set(map(int, pids)) == set(pool.worker_pids)
    assert len(set(pids)) == 2


def test_the_rows_of_a_prompt_go_to_one_worker_where_there_is_work_for_all(
    pool: RewardPool,
) -> None:
    reward = make(pool, "pid")
    reward(["x"] * 8)  # how long a row takes is known from now on
    groups = [number // 4 for number in range(32)]
    pids = reward(["x"] * 32, prompts=[f"prompt {group}" for group in groups])
    assert len(set(pids)) == 2
    by_group = [set(pids[4 * group : 4 * group + 4]) for group in range(8)]
    whole = sum(len(workers) == 1 for workers in by_group)
    assert whole >= 6, by_group  # one may be shared at the end, and one more on a busy machine


def test_workers_import_neither_torch_nor_trl(pool: RewardPool) -> None:
    assert make(pool, "has_torch")(["x", "y"]) == [0.0, 0.0]


def test_only_columns_that_the_function_can_see_are_sent(pool: RewardPool) -> None:
    lock = threading.Lock()  # can't be pickled
    assert make(pool, "length")(["ab"], unused=[lock]) == [2.0]
    reads_all = make(pool, "by_column")
    assert reads_all(["ab"], target=[1.0], other=["z"], unused=[lock]) == [2.0]
    with pytest.raises(RewardError, match=r"'by_column'.*column 'target'.*another process"):
        reads_all(["ab"], target=[lock])


def test_arguments_steps_tasks_and_name_of_a_recipe_entry_hold(pool: RewardPool) -> None:
    spec = RewardSpec(
        use="pool_rewards.py:returns",
        args={"value": [2.5]},
        from_step=3,
        until_step=5,
        tasks=("math",),
        name="fixed",
    )
    reward = pooled(spec, base_dir=FILE.parent, pool=pool)
    assert reward.__name__ == "fixed"
    task = ["math", "code", "math"]

    def at(step: int) -> Any:
        return reward(["x"] * 3, task=task, trainer_state=SimpleNamespace(global_step=step))

    assert at(2) == at(5) == [None] * 3
    assert at(3) == at(4) == reward(["x"] * 3, task=task) == [2.5, None, 2.5]
    with pytest.raises(RewardError, match="no 'task' column"):
        reward(["x"])
    bound = build_reward(spec, FILE.parent)
    assert pooled(bound, pool=pool)(["x"] * 3, task=task) == [2.5, None, 2.5]
    assert required_columns(reward) == required_columns(bound) == {"task"}


def test_the_columns_a_reward_requires_can_be_asked_for(pool: RewardPool) -> None:
    assert required_columns(pooled("math_answer", pool=pool)) == {"solution"}


def test_the_trainers_state_goes_as_plain_numbers(pool: RewardPool) -> None:
    state = SimpleNamespace(global_step=7, log_history=[{"loss": 1.0}], callback=lambda: None)
    assert make(pool, "step")(["x", "y"], trainer_state=state) == [7.0, 7.0]


def test_what_a_reward_logs_reaches_the_trainer_once_a_batch(pool: RewardPool) -> None:
    extra: list[tuple[str, list[Any]]] = []
    metrics: dict[str, float] = {}
    reward = make(pool, "logs")
    reward(
        ["a", "bcd"],
        log_extra=lambda column, values: extra.append((column, values)),
        log_metric=metrics.__setitem__,
    )
    assert extra == [("upper", ["A", "BCD"])]
    assert metrics["mean_length"] == 2.0
    assert metrics["rewards/logs/not_gradable"] == 0.0


def test_shares_of_verdicts_are_logged(pool: RewardPool) -> None:
    metrics: dict[str, float] = {}
    reward = make(pool, "by_column")
    pending = reward.submit(
        ["x"] * 4, target=[1.0, None, None, 0.0], log_metric=metrics.__setitem__
    )
    assert pending.result() == [1.0, None, None, 0.0]
    assert pending.verdicts == ["ok", "not gradable", "not gradable", "ok"]
    shares = {key.rpartition("/")[2]: value for key, value in metrics.items()}
    assert shares == {"not_gradable": 0.5, "timed_out": 0.0, "crashed": 0.0}


def test_the_share_of_malformed_responses_is_logged_with_the_pool_and_without(
    pool: RewardPool,
) -> None:
    texts = ["[1]", "[2]", "one", "", "[2]", "one"]
    golds = ["1", "1", "1", "1", "", ""]
    rewards = [1.0, 0.0, 0.0, 0.0, None, None]
    reward = make(pool, "by_box")
    for _ in range(2):  # the second time from the cache
        metrics: dict[str, float] = {}
        pending = reward.submit(texts, solution=golds, log_metric=metrics.__setitem__)
        assert pending.result() == rewards
        assert pending.verdicts == ["ok", "ok", *["malformed"] * 2, *["not gradable"] * 2]
        assert metrics["rewards/by_box/malformed"] == pytest.approx(2 / 6)
        assert metrics["rewards/by_box/not_gradable"] == pytest.approx(2 / 6)
    alone: dict[str, float] = {}
    bound = build_reward(RewardSpec(use=f"{FILE}:by_box"))
    assert bound(texts, solution=golds, log_metric=alone.__setitem__) == rewards
    assert alone == {
        "rewards/by_box/not_gradable": pytest.approx(2 / 6),
        "rewards/by_box/malformed": pytest.approx(2 / 6),
    }


def test_equal_rows_of_a_pure_reward_are_graded_once(pool: RewardPool) -> None:
    metrics: dict[str, float] = {}
    pure = make(pool, "draws_once")
    first = pure(["a", "b", "a", "a"], log_metric=metrics.__setitem__)
    assert first[0] == first[2] == first[3] != first[1]
    assert metrics["rewards/draws_once/cached"] == 0.5
    assert pure(["b", "a"]) == [first[1], first[0]]
    other = make(pool, "draws")
    assert len(set(other(["a"] * 4))) == 4
    assert len(set(make(pool, "draws", cache=True)(["a"] * 4))) == 1


def test_built_in_rewards_are_pure_and_a_changed_gold_answer_is_another_row(
    pool: RewardPool,
) -> None:
    reward = pooled("math_answer", pool=pool)
    assert reward.description.is_pure
    assert reward([r"\boxed{2}"] * 2, solution=["2", "3"]) == [1.0, 0.0]
    assert reward([r"\boxed{2}"] * 2, solution=["3", "2"]) == [0.0, 1.0]


def test_threads_share_a_pool(pool: RewardPool) -> None:
    reward = make(pool, "length")
    results: dict[int, Any] = {}

    def call(n: int) -> None:
        results[n] = [reward(["x" * n] * 9) for _ in range(5)]

    threads = [threading.Thread(target=call, args=(n,)) for n in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: [[float(n)] * 9] * 5 for n in range(1, 7)}


def test_grading_goes_on_while_the_caller_does_something_else(pool: RewardPool) -> None:
    reward = make(pool, "length")
    pending = [reward.submit(["x" * n] * 4) for n in range(5)]
    assert [each.result() for each in pending] == [[float(n)] * 4 for n in range(5)]
    assert all(each.done() for each in pending)


def test_a_pickled_copy_grades_like_the_original(pool: RewardPool) -> None:
    copy = pickle.loads(pickle.dumps(make(pool, "length", timeout=7.0)))
    assert copy.__name__ == "length"
    assert copy.limits.timeout == 7.0
    try:
        assert copy(["abc"]) == [3.0]
    finally:
        close_shared_pool()


def test_a_function_of_a_module_is_passed_by_name(pool: RewardPool) -> None:
    assert pooled(math_answer_reward, pool=pool)(["Answer: 4"], solution=["4"]) == [1.0]


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("math_anser", r"unknown reward 'math_anser'; did you mean 'math_answer'\?"),
        (f"{FILE}:lenght", r"no function 'lenght'; did you mean 'length'\?"),
        (f"{FILE}:needs_nonsense", "needs is 'half'; it must be one of rows, group, batch"),
        (lambda completions, **kwargs: [0.0], "can't be found by name"),
    ],
)
def test_a_reward_that_is_not_there_is_said_so_at_once(
    pool: RewardPool, reference: Any, message: str
) -> None:
    with pytest.raises(RewardReferenceError, match=message):
        pooled(reference, pool=pool)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"timeout": 0}, "timeout=0"),
        ({"memory_mb": 10}, "memory_mb=10"),
        ({"on_kill": "stop"}, "on_kill='stop': it must be one of zero, none, raise"),
        ({"on_error": "zero"}, "on_error='zero': it must be one of raise, none"),
        ({"num_workers": 3}, "num_workers is the pool's"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    pool: RewardPool, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make(pool, "length", **settings)


def test_ranks_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = default_num_workers()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(alone))
    assert default_num_workers() == 1


def test_a_closed_pool_says_so() -> None:
    own = RewardPool(num_workers=1)
    reward = make(own, "length")
    pending = make(own, "length", timeout=600).submit(["<sleep>"])
    own.close()
    with pytest.raises(PoolError, match="closed"):
        pending.result()
    with pytest.raises(PoolError, match="closed"):
        reward(["x"])
    assert own.worker_pids == []


def test_the_shared_pool_grows_to_what_is_asked() -> None:
    try:
        one = shared_pool(1)
        assert shared_pool(3) is one
        assert one.num_workers == 3
    finally:
        close_shared_pool()


def test_a_script_needs_no_main_guard_and_its_own_functions_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from trl_r1.verification.pooled_reward import pooled\n"
        "print('script runs')\n"
        "def mine(completions, **kwargs): return [0.0]\n"
        f"print(pooled({str(FILE)!r} + ':length')(['abc'] * 4))\n"
        "try: pooled(mine)\n"
        "except ValueError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["script runs", "[3.0, 3.0, 3.0, 3.0]"]
    assert "Move it to a file of its own" in lines[2]


def test_a_missing_column_is_named(pool: RewardPool, tmp_path: Path) -> None:
    path = tmp_path / "needs.py"
    path.write_text("def reward(completions, answer, **kwargs): return [1.0] * len(completions)\n")
    here = build_reward(RewardSpec(use=f"{path}:reward"), None)
    for reward in (here, pooled(f"{path}:reward", pool=pool)):
        with pytest.raises(RewardError, match="needs answer, which the rows do not have"):
            reward(completions=["a", "b"], solution=["1", "2"])
    with_args = pooled(f"{path}:reward", pool=pool, args={"answer": "x"})
    assert with_args(completions=["a"]) == [1.0]


def test_what_a_reward_says_when_it_raises_is_cut(pool: RewardPool, tmp_path: Path) -> None:
    path = tmp_path / "wordy.py"
    path.write_text("def reward(completions, **kwargs): raise ValueError('z' * 10_000_000)\n")
    here = build_reward(RewardSpec(use=f"{path}:reward"), None)
    for reward in (here, pooled(f"{path}:reward", pool=pool)):
        with pytest.raises(RewardError, match="10000000 characters") as caught:
            reward(completions=["a"])
        assert len(str(caught.value)) < 2000


def test_a_relative_import_is_answered_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 1.0\n")
    (tmp_path / "relative.py").write_text(
        "from .beside import VALUE\ndef reward(completions, **kwargs): return [VALUE]\n"
    )
    with pytest.raises(RewardReferenceError, match="stands alone: put both in one file"):
        build_reward(RewardSpec(use=f"{tmp_path}/relative.py:reward"), None)


def test_files_beside_the_users_data_do_not_stand_in_for_standard_modules(tmp_path: Path) -> None:
    """An interpreter started with -c looks in the working folder first."""
    for name in ("json", "random", "types", "socket", "token"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not the one that is meant')\n")
    script = tmp_path / "scripts" / "train.py"
    script.parent.mkdir()
    script.write_text(
        "from trl_r1 import pooled\n"
        "print(pooled('math_answer', num_workers=1)(['\\\\boxed{4}'], solution=['4']))\n"
    )
    run = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert run.stdout.strip() == "[1.0]", run.stderr


def test_a_shared_pool_that_broke_down_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    close_shared_pool()
    monkeypatch.setattr("trl_r1.verification.worker_process._BOOT", "raise SystemExit(1)")
    with pytest.raises(PoolError, match="do not start"):
        pooled("math_answer", num_workers=1)(["x"], solution=["1"])
    monkeypatch.undo()
    assert pooled("math_answer", num_workers=1)([r"\boxed{1}"], solution=["1"]) == [1.0]
    close_shared_pool()
