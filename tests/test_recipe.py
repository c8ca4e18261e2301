"""Recipes: what a file says, over what, and what becomes of references, paths and numbers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import toy_stages
import yaml

from trl_r1.pipeline.check_batches import batch_fault
from trl_r1.pipeline.configs import build_configs, resolve
from trl_r1.pipeline.keys import as_yaml_float, check_keys, keys_of
from trl_r1.pipeline.mistakes import RecipeError
from trl_r1.pipeline.reading import load_pipeline
from trl_r1.pipeline.recipe import Pipeline
from trl_r1.stages.grpo import R1GRPOConfig
from trl_r1.training.arguments import ModelArguments


@pytest.fixture(autouse=True)
def with_toy_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    toy_stages.register(monkeypatch.setitem)


def recipes(folder: Path, **files: str) -> Path:
    """A folder of recipes; `a_01_zero` stands for `01_zero.yaml`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name.removeprefix('a_')}.yaml").write_text(text)
    return folder


BASE = "stage: toy_base\n"
ZERO = 'stage: toy_rl\nmodel_name_or_path: "@base"\ndatasets: [{task: digit_sums, num_rows: 8}]\n'


def load(folder: Path, *options: str, **keys: Any) -> Pipeline:
    return load_pipeline(folder, options, **keys)


def test_each_layer_wins_over_the_one_below_it(tmp_path: Path) -> None:
    def gain(zero: str = "", pipeline: str = "", *options: str) -> float | None:
        folder = recipes(tmp_path, a_01_base=BASE, a_02_zero=ZERO + zero, pipeline=pipeline)
        return load(folder, *options).stage("zero").values.get("gain")

    defaults = "defaults: {gain: 3.0}\n"
    assert gain() is None, "the config's own default applies when it is built"
    assert gain("preset: gentle\n") == 0.5
    assert gain("preset: gentle\n", defaults) == 3.0
    assert gain("preset: gentle\ngain: 4.0\n", defaults) == 4.0
    assert gain("gain: 4.0\n", defaults, "toy_rl.gain=5.0") == 5.0
    assert gain("gain: 4.0\n", defaults, "zero.gain=6.0") == 6.0
    assert gain("", defaults, "defaults.gain=7.0") == 7.0
    assert gain("gain: 4.0\n", defaults, "defaults.gain=7.0") == 4.0, "a default stays a default"


def test_a_default_goes_to_the_stages_that_know_it(tmp_path: Path) -> None:
    folder = recipes(
        tmp_path, a_01_base=BASE, a_02_zero=ZERO, pipeline="defaults: {reasoning_format: r1}"
    )
    pipeline = load(folder)
    assert "reasoning_format" not in pipeline.stage("base").values
    assert pipeline.stage("zero").values["reasoning_format"] == "r1"


def test_the_command_line_reaches_into_lists_evaluation_and_the_pipeline(tmp_path: Path) -> None:
    zero = ZERO + "rewards: [{use: math_answer, weight: 1.0}]\n"
    evaluation = "evaluation: {datasets: [{task: digit_sums, num_rows: 16}]}"
    folder = recipes(tmp_path, a_01_base=BASE, a_02_zero=zero, pipeline=evaluation)
    pipeline = load(
        folder,
        "zero.rewards.0.weight=0.5",
        "zero.datasets.0.num_rows=4",
        "evaluation.num_samples=2",
        "evaluation.datasets.0.num_rows=300",
        "pipeline.threads=2",
        "pipeline.name=other",
    )
    assert pipeline.stage("zero").rewards[0].weight == 0.5
    assert pipeline.stage("zero").values["datasets"] == [{"task": "digit_sums", "num_rows": 4}]
    assert pipeline.evaluation.num_samples == 2
    assert pipeline.evaluation.datasets[0]["num_rows"] == 300
    assert (pipeline.threads, pipeline.name) == (2, "other")


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ("zeroo.gain=1.0", "no stage or stage type 'zeroo'; did you mean 'zero'?"),
        ("zero.gian=1.0", "unknown key 'gian'; did you mean 'gain'?"),
        ("zero.gain=much", "gain should be a number, not 'much'"),
        ("zero.gain=1e-6", "write 1.0e-6"),
        ("zero.gain", "should look like NAME.key=value"),
        ("gain=1.0", "should look like NAME.key=value"),
        ("zero.rewards.3.weight=1.0", "rewards.3"),
        ("zero.gain=[", "not YAML"),
    ],
)
def test_a_wrong_option_is_named_with_its_mistake(option: str, line: str, tmp_path: Path) -> None:
    zero = ZERO + "rewards: [{use: math_answer}]\n"
    folder = recipes(tmp_path, a_01_base=BASE, a_02_zero=zero)
    with pytest.raises(RecipeError) as error:
        load(folder, option)
    (mistake,) = error.value.mistakes
    assert mistake.where == f"--set {option}"
    assert line in mistake.message


def test_sources_give_a_task_its_data_where_the_recipe_does_not(tmp_path: Path) -> None:
    zero = ZERO.replace(
        "[{task: digit_sums, num_rows: 8}]",
        "[{task: gsm8k}, {task: gsm8k, dataset_name: mine.jsonl}, {task: digit_sums}]",
    )
    pipeline = load(
        recipes(
            tmp_path,
            a_01_base=BASE,
            a_02_zero=zero,
            pipeline="sources: {gsm8k: gsm8k.jsonl}\nevaluation: {datasets: [{task: gsm8k}]}",
        )
    )
    names = [s.get("dataset_name") for s in pipeline.stage("zero").values["datasets"]]
    assert names == ["gsm8k.jsonl", "mine.jsonl", None]
    assert pipeline.evaluation.datasets == [{"task": "gsm8k", "dataset_name": "gsm8k.jsonl"}]


def test_stages_run_by_number_and_not_by_text(tmp_path: Path) -> None:
    folder = recipes(tmp_path, a_10_last=ZERO, a_9_middle=ZERO, a_01_base=BASE)
    assert [stage.name for stage in load(folder).stages] == ["base", "middle", "last"]


def test_what_was_read_can_not_be_changed(tmp_path: Path) -> None:
    pipeline = load(recipes(tmp_path, a_01_base=BASE))
    with pytest.raises(dataclasses.FrozenInstanceError):
        pipeline.seed = 1  # type: ignore[misc]


def test_other_files_may_lie_beside_the_recipes(tmp_path: Path) -> None:
    folder = recipes(tmp_path, a_01_base=BASE)
    (folder / "my_reward.py").write_text("")
    (folder / "README.md").write_text("")
    (folder / "rows").mkdir()
    assert len(load(folder).stages) == 1


def test_references_and_paths_become_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    zero = """\
stage: toy_rl
model_name_or_path: "@base/student"
datasets: [{dataset_name: beside.jsonl}, {dataset_name: here.jsonl}, {dataset_name: org/set}]
rewards:
  - {use: "mine.py:mine", args: {model: "@preference"}}
  - {use: math_answer}
"""
    folder = recipes(tmp_path / "recipes", a_01_base=BASE, a_02_zero=zero)
    for path in (folder / "beside.jsonl", folder / "mine.py", tmp_path / "here.jsonl"):
        path.write_text("")
    (tmp_path / "beside.jsonl").write_text("the one beside the recipe wins")
    recipe = load(folder).stage("zero")
    resolved = resolve(recipe, folder, lambda text: f"/run/{text[1:]}")
    assert resolved.values["model_name_or_path"] == "/run/base/student"
    assert [source["dataset_name"] for source in resolved.values["datasets"]] == [
        str(folder / "beside.jsonl"),
        str(tmp_path / "here.jsonl"),
        "org/set",
    ]
    assert resolved.rewards[0].use == f"{folder / 'mine.py'}:mine"
    assert resolved.rewards[0].args == {"model": "/run/preference"}
    assert resolved.rewards[1].use == "math_answer"
    assert recipe.values["model_name_or_path"] == "@base/student", "the recipe keeps its words"


def grpo(folder: Path, text: str = "", *options: str) -> Pipeline:
    stage = "stage: grpo\nmodel_name_or_path: ./model\nrewards: [{use: math_answer}]\n"
    return load(recipes(folder, a_01_zero=stage + text), *options)


def test_configs_get_the_runner_s_settings_under_the_recipe_s(tmp_path: Path) -> None:
    pipeline = grpo(tmp_path, "max_steps: 40\nlearning_rate: 1\nsave_total_limit: 5\n")
    recipe = pipeline.stage("zero")
    configs = build_configs(recipe.spec, recipe.values, tmp_path / "out", seed=7)
    args = next(c for c in configs if isinstance(c, R1GRPOConfig))
    model_args = next(c for c in configs if isinstance(c, ModelArguments))
    assert args.output_dir == str(tmp_path / "out" / "checkpoints")
    assert not (tmp_path / "out").exists()
    assert (args.seed, args.max_steps, args.save_steps, args.save_total_limit) == (7, 40, 10, 5)
    assert args.learning_rate == 1.0
    assert isinstance(args.learning_rate, float), "a whole number is a number"
    assert args.disable_tqdm
    assert args.report_to == []
    assert model_args.model_name_or_path == "./model"


def test_a_stage_s_own_seed_wins_over_the_pipeline_s(tmp_path: Path) -> None:
    recipe = grpo(tmp_path, "seed: 11\n").stage("zero")
    configs = build_configs(recipe.spec, recipe.values, tmp_path, seed=7)
    assert next(c for c in configs if isinstance(c, R1GRPOConfig)).seed == 11


def test_batches_are_counted_over_the_processes(tmp_path: Path) -> None:
    text = "per_device_train_batch_size: 4\ngradient_accumulation_steps: 1\nnum_generations: 8\n"
    recipe = grpo(tmp_path, text).stage("zero")
    fault = batch_fault(recipe, processes=1)
    assert fault == (
        "a batch of 4 completions (per_device_train_batch_size 4 x 1 accumulated steps) is not "
        "divisible by num_generations 8; num_generations 2 or 4 would work, or "
        "per_device_train_batch_size 8"
    )
    assert batch_fault(recipe, processes=2) is None
    build_configs(recipe.spec, recipe.values, tmp_path, seed=0, processes=2)
    three = batch_fault(recipe, processes=3)
    assert three is not None
    assert "4 x 3 processes" in three


def test_every_suggestion_for_a_batch_works(tmp_path: Path) -> None:
    for group, size in ((6, 8), (8, 12), (5, 4), (16, 4)):
        text = f"per_device_train_batch_size: {size}\ngradient_accumulation_steps: 2\n"
        pipeline = grpo(tmp_path, text + f"num_generations: {group}\n")
        fault = batch_fault(pipeline.stage("zero"), 1)
        if fault is None:
            assert size * 2 % group == 0
            continue
        _, _, hints = fault.partition("; ")
        groups, _, sizes = hints.rpartition(", or ")
        for key, words in (("num_generations", groups), ("per_device_train_batch_size", sizes)):
            for number in [word for word in words.split() if word.isdigit()]:
                again = grpo(tmp_path, text + f"num_generations: {group}\n", f"zero.{key}={number}")
                assert batch_fault(again.stage("zero"), 1) is None, f"{key} {number}"


def test_a_field_of_an_earlier_config_hides_its_namesake() -> None:
    @dataclasses.dataclass
    class First:
        size: int = 1

    @dataclasses.dataclass
    class Second:
        size: str = "one"
        other: float | None = None

    globals().update(First=First, Second=Second)
    keys = keys_of(First, Second)
    assert keys["size"].owner is First
    values, messages = check_keys({"size": 2, "other": 3}, keys)
    assert (values, messages) == ({"size": 2, "other": 3.0}, [])


@pytest.mark.parametrize("text", ["1e-6", "3E5", "-2e-4", "1.5e3"])
def test_the_hint_for_a_number_reads_as_that_number(text: str) -> None:
    assert isinstance(yaml.safe_load(text), str), "YAML reads it as text"
    assert yaml.safe_load(as_yaml_float(text)) == float(text)
