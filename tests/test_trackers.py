"""`report_to`: TensorBoard, Trackio and Weights & Biases get the figures of `metrics.jsonl`.

Real packages, without a network; what is not installed is skipped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Killed, stage_context
from transformers.integrations.integration_utils import rewrite_logs

from trl_r1.stages import RewardSpec, grpo

# Steps, and by step what was logged there.
Figures = dict[int, dict[str, float]]
# Trackers put these beside the curves, not into them.
_OF_THE_WHOLE = ("train_runtime", "train_samples_per_second", "train_steps_per_second",
                 "train_loss", "total_flos")  # fmt: skip


def _settings() -> dict[str, Any]:
    return {
        "max_steps": 4,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 8,
        "learning_rate": 1e-3,
        "save_steps": 2,
    }


def train(
    folder: Path, model: Path, rows: Path, reward: str, tracker: str, stop_at: int | None = None
) -> None:
    """A GRPO stage of four steps; with `stop_at` it is killed there."""
    context = stage_context(
        folder,
        grpo,
        model,
        [{"dataset_name": str(rows)}],
        rewards=(RewardSpec(reward),),
        stop_at=stop_at,
        **{**_settings(), "report_to": tracker},
    )
    grpo.run(context)


def stored(folder: Path) -> Figures:
    """The figures of `metrics.jsonl`, under the names that transformers gives to trackers."""
    found: Figures = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        log = json.loads(line)
        step = log.pop("step")
        del log["time"]
        named = {k: v for k, v in log.items() if k not in _OF_THE_WHOLE and v is not None}
        found.setdefault(step, {}).update(rewrite_logs(named))
    return found


def of_tensorboard(run: Path) -> list[Figures]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    found: Figures = {}
    for name in events.Tags()["scalars"]:
        if name.removeprefix("train/") not in _OF_THE_WHOLE:
            for event in events.Scalars(name):
                # The last step's epoch is logged again at the end of the training.
                already = found.setdefault(event.step, {}).setdefault(name, event.value)
                assert already == event.value, "a step is there twice"
    return [found]


def _take_up(found: Figures, log: dict[str, Any]) -> None:
    """Add a log to what was found; TRL's logs of time taken have no figures of the training."""
    figures = {k: v for k, v in log.items() if k.startswith("train/")}
    step = figures.pop("train/global_step", None)
    if figures and step is not None:
        found.setdefault(int(step), {}).update(figures)


def of_trackio(run: Path) -> list[Figures]:
    from trackio.sqlite_storage import SQLiteStorage

    runs = []
    for name in SQLiteStorage.get_runs("huggingface"):
        found: Figures = {}
        for log in SQLiteStorage.get_logs("huggingface", name):
            _take_up(found, log)
        runs.append(found)
    return runs


def of_wandb(run: Path) -> list[Figures]:
    runs: dict[str, Figures] = {}
    for path in sorted((run.parent / "wandb").glob("offline-run-*/*.wandb")):
        found = runs.setdefault(path.name, {})
        for record in wandb_records(path.read_bytes()):
            items = {"/".join(i.nested_key) or i.key: i.value_json for i in record.history.item}
            _take_up(found, {k: json.loads(v) for k, v in items.items()})
    return list(runs.values())


def wandb_records(data: bytes) -> list[Any]:
    """The records of an offline run: LevelDB's log format behind a header of seven bytes."""
    from wandb.proto import wandb_internal_pb2

    records, whole, place = [], b"", 7
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:  # no record begins in the last bytes of a block
            place += 32768 - place % 32768
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            records.append(wandb_internal_pb2.Record.FromString(whole))
            whole = b""
    return records


TRACKERS: dict[str, Callable[[Path], list[Figures]]] = {
    "tensorboard": of_tensorboard,
    "trackio": of_trackio,
    "wandb": of_wandb,
}


@pytest.fixture(params=list(TRACKERS))
def tracker(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A tracker that is installed, keeping all it gets in `tmp_path`."""
    name: str = request.param
    package = pytest.importorskip(name, reason=f"{name} is not installed; pip install {name}")
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    variables = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(tmp_path)}
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    if name == "trackio":  # which has read its variable already
        for module in ("trackio.utils", "trackio.sqlite_storage"):
            monkeypatch.setattr(f"{module}.TRACKIO_DIR", tmp_path / "trackio")
    yield name
    if name == "wandb":
        package.teardown()


def test_a_tracker_gets_the_figures_of_the_metrics_file(
    tmp_path: Path, tracker: str, tiny_model_dir: Path, rows_file: Path, even_reward: str
) -> None:
    train(tmp_path / "zero", tiny_model_dir, rows_file, even_reward, tracker)
    expected = stored(tmp_path / "zero")
    assert set(expected) == {1, 2, 3, 4}
    assert {"train/reward", "train/kl", "train/completions/length_p90"} <= set(expected[4])
    (found,) = TRACKERS[tracker](tmp_path / "zero")
    assert set(found) == set(expected)
    for step, figures in expected.items():
        told = {k: v for k, v in found[step].items() if not math.isnan(v)}
        assert told == pytest.approx(figures, rel=1e-6)


def test_a_killed_stage_goes_on_in_its_own_run_and_the_next_stage_has_another(
    tmp_path: Path, tracker: str, tiny_model_dir: Path, rows_file: Path, even_reward: str
) -> None:
    given = (tiny_model_dir, rows_file, even_reward, tracker)
    with pytest.raises(Killed):
        train(tmp_path / "zero", *given, stop_at=3)
    train(tmp_path / "zero", *given)
    train(tmp_path / "other", *given)
    runs = TRACKERS[tracker](tmp_path / "zero")
    if tracker == "tensorboard":
        runs += TRACKERS[tracker](tmp_path / "other")
    assert [sorted(run) for run in runs] == [[1, 2, 3, 4], [1, 2, 3, 4]]
    assert not (tmp_path / "zero" / "checkpoints").exists()
