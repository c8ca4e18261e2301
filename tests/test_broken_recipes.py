"""Broken recipes: each gives its one clear line, loads no model and shows no traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trl_r1.cli import main

GOOD = {
    "pipeline.yaml": """\
name: good
seed: 1
defaults:
  reasoning_format: zero_bare
  max_steps: 4
evaluation:
  datasets:
    - {task: digit_sums, num_rows: 16}
  max_new_tokens: 16
""",
    "01_zero.yaml": """\
stage: grpo
preset: zero
model_name_or_path: ./model
datasets:
  - {task: digit_sums, num_rows: 32}
rewards:
  - {use: math_answer}
  - {use: think_format, weight: 0.2, args: {profile: answer_tags}}
num_generations: 8
per_device_train_batch_size: 16
generation_batch_size: 16
gradient_accumulation_steps: 1
learning_rate: 1.0e-4
""",
    "02_data.yaml": """\
stage: rejection_sampling
model_name_or_path: "@zero"
datasets:
  - {task: digit_sums, num_rows: 32}
rewards:
  - {use: math_answer}
""",
    "03_cold_start.yaml": """\
stage: cold_start
model_name_or_path: ./model
datasets:
  - {dataset_name: "@data"}
""",
    "04_preference.yaml": """\
stage: reward_model
model_name_or_path: "@cold_start"
datasets:
  - {task: small_talk_preferences, num_rows: 16}
""",
}
REWARDS = GOOD["01_zero.yaml"].partition("rewards:")[2].partition("num_gen")[0]
REWARDS = f"rewards:{REWARDS}"
FILES = {
    "model/config.json": "{}",
    "rows.jsonl": "\n".join(
        json.dumps({"prompt": f"{i}+1=?", "solution": str(i + 1), "note": "x"}) for i in range(200)
    ),
    "bad_gold.jsonl": "\n".join(
        json.dumps({"prompt": f"{i}+1=?", "solution": "" if i % 4 == 2 else str(i + 1)})
        for i in range(20)
    ),
    "not_rows.jsonl": "this is not JSON\n",
    "strict.py": "def strict(completions, solution):\n    return [0.0] * len(completions)\n",
    "needy.py": "def needy(completions, tests, **kwargs):\n    return [0.0] * len(completions)\n",
    "broken.py": "import nothing_of_the_kind\n",
}
ZERO, DATA, COLD, PREF, PIPE = (
    "01_zero.yaml",
    "02_data.yaml",
    "03_cold_start.yaml",
    "04_preference.yaml",
    "pipeline.yaml",
)

Changes = dict[str, tuple[str, str] | str | None]

# (id, {file: (text to replace, replacement) or a whole text}, the line without the folder)
CASES: list[tuple[str, Changes, str]] = [
    ("misspelt_key", {ZERO: ("num_generations: 8", "num_generation: 8")},
     "01_zero.yaml: unknown key 'num_generation'; did you mean 'num_generations'?"),
    ("unknown_key_without_a_neighbour", {ZERO: ("learning_rate", "zzz")},
     "01_zero.yaml: unknown key 'zzz'"),
    ("misspelt_lora_key", {ZERO: ("learning_rate: 1.0e-4", "use_peft: true\nlora_rank: 8")},
     "01_zero.yaml: unknown key 'lora_rank'"),
    ("misspelt_lora_modules",
     {ZERO: ("learning_rate: 1.0e-4", "use_peft: true\nlora_target_module: [q]")},
     "01_zero.yaml: unknown key 'lora_target_module'; did you mean 'lora_target_modules'?"),
    ("lora_without_peft", {ZERO: ("learning_rate: 1.0e-4", "lora_r: 8")},
     "01_zero.yaml: lora_r has no effect without use_peft: true"),
    ("misspelt_reward_key", {ZERO: ("weight: 0.2", "wieght: 0.2")},
     "01_zero.yaml: unknown key 'wieght' in rewards[1]; did you mean 'weight'?"),
    ("misspelt_reward_argument", {ZERO: ("profile: answer_tags", "profil: answer_tags")},
     "01_zero.yaml: rewards[1]: reward 'think_format': args: it has no argument 'profil'; "
     "did you mean 'profile'?"),
    ("misspelt_dataset_key", {ZERO: ("num_rows: 32", "num_row: 32")},
     "01_zero.yaml: unknown key 'num_row' in datasets[0]; did you mean 'num_rows'?"),
    ("misspelt_evaluation_key", {PIPE: ("max_new_tokens", "max_new_token")},
     "pipeline.yaml: unknown key 'max_new_token' in evaluation; did you mean 'max_new_tokens'?"),
    ("misspelt_evaluation_source", {PIPE: ("num_rows: 16", "rows: 16")},
     "pipeline.yaml: unknown key 'rows' in evaluation.datasets[0]"),
    ("misspelt_pipeline_key", {PIPE: ("seed: 1", "sed: 1")},
     "pipeline.yaml: unknown key 'sed'; did you mean 'seed'?"),
    ("default_that_no_stage_knows", {PIPE: ("max_steps: 4", "max_step: 4")},
     "pipeline.yaml: unknown key 'max_step' in defaults; did you mean 'max_steps'?"),
    ("text_for_a_number", {ZERO: ("num_generations: 8", "num_generations: eight")},
     "01_zero.yaml: num_generations should be a whole number, not 'eight'"),
    ("number_without_a_point", {ZERO: ("1.0e-4", "1e-4")},
     "01_zero.yaml: learning_rate holds '1e-4', which YAML reads as text"),
    ("number_without_a_point_inside",
     {ZERO: ("learning_rate: 1.0e-4", "lr_scheduler_kwargs: {min_lr: 1e-7}")},
     "01_zero.yaml: lr_scheduler_kwargs holds '1e-7', which YAML reads as text, not as a number; "
     "write 1.0e-7"),
    ("fraction_for_a_whole_number", {ZERO: ("num_generations: 8", "num_generations: 8.5")},
     "01_zero.yaml: num_generations should be a whole number, not 8.5"),
    ("text_for_a_truth_value", {ZERO: ("learning_rate: 1.0e-4", 'use_peft: "yes"')},
     "01_zero.yaml: use_peft should be true or false, not 'yes'"),
    ("None_for_nothing", {ZERO: ("learning_rate: 1.0e-4", "lora_r: None")},
     "01_zero.yaml: lora_r should be a whole number, not 'None'; write null for nothing"),
    ("mapping_for_a_list", {COLD: ('  - {dataset_name: "@data"}', '  dataset_name: "@data"')},
     "03_cold_start.yaml: datasets should be a list"),
    ("text_as_a_dataset", {COLD: ('  - {dataset_name: "@data"}', '  - "@data"')},
     "03_cold_start.yaml: datasets should be a list of mappings, not ['@data']"),
    ("wrong_type_in_the_pipeline", {PIPE: ("seed: 1", "seed: one")},
     "pipeline.yaml: seed should be a whole number, not 'one'"),
    ("wrong_type_in_defaults", {PIPE: ("max_steps: 4", "max_steps: four")},
     "pipeline.yaml: max_steps should be a whole number, not 'four'"),
    ("reference_to_no_stage", {DATA: ("@zero", "@zeroo")},
     "02_data.yaml: model_name_or_path: @zeroo: no stage 'zeroo'; did you mean 'zero'?"),
    ("reference_to_a_later_stage", {ZERO: ("./model", '"@cold_start"')},
     "01_zero.yaml: model_name_or_path: @cold_start comes later than this stage"),
    ("reference_to_itself", {DATA: ("@zero", "@data")},
     "02_data.yaml: model_name_or_path: @data is this stage itself"),
    ("data_where_a_model_is_needed", {PREF: ("@cold_start", "@data")},
     "04_preference.yaml: model_name_or_path: @data is a dataset, and a model is needed; there is "
     "@zero, @cold_start"),
    ("model_where_data_is_needed", {COLD: ("@data", "@zero")},
     "03_cold_start.yaml: datasets[0].dataset_name: @zero is a model, and a dataset is needed; "
     "there is @zero/rollouts, @data, @data/samples"),
    ("artifact_that_is_not_made", {COLD: ("@data", "@data/samplez")},
     "03_cold_start.yaml: datasets[0].dataset_name: @data/samplez: stage 'data' leaves no "
     "'samplez'; did you mean 'samples'?"),
    ("model_as_preference_model",
     {DATA: ("  - {use: math_answer}", '  - {use: preference_model, args: {model: "@zero"}}')},
     "02_data.yaml: rewards[0].args.model: @zero is a model, and a reward model is needed"),
    ("evaluation_by_an_unknown_stage", {PIPE: ("max_new_tokens: 16", 'preference_model: "@pref"')},
     "pipeline.yaml: evaluation.preference_model: @pref: no stage 'pref'"),
    ("evaluation_on_own_data",
     {PIPE: ("{task: digit_sums, num_rows: 16}", '{dataset_name: "@data"}')},
     "pipeline.yaml: evaluation.datasets[0]: @data: held-out problems can't be what a stage"),
    ("batch_not_divisible", {ZERO: ("num_generations: 8", "num_generations: 7")},
     "01_zero.yaml: generation_batch_size 16 is not divisible by num_generations 7; "
     "num_generations 2 or 4 or 8 would work, or generation_batch_size 112"),
    ("batch_no_multiple_of_a_step",
     {ZERO: ("per_device_train_batch_size: 16", "per_device_train_batch_size: 12")},
     "01_zero.yaml: generation_batch_size 16 is not divisible by the 12 completions of a step"),
    ("group_of_one", {ZERO: ("num_generations: 8", "num_generations: 1")},
     "01_zero.yaml: num_generations should be at least 2"),
    ("unknown_reward", {ZERO: ("use: math_answer", "use: math_anwser")},
     "01_zero.yaml: rewards[0]: unknown reward 'math_anwser'; did you mean 'math_answer'?"),
    ("reward_file_missing", {ZERO: ("use: math_answer", "use: gone.py:gone")},
     "01_zero.yaml: rewards[0]: reward 'gone.py:gone': there is no file 'gone.py'"),
    ("reward_function_missing", {ZERO: ("use: math_answer", "use: needy.py:nedy")},
     "01_zero.yaml: rewards[0]: reward 'needy.py:nedy'"),
    ("reward_that_can_not_be_imported", {ZERO: ("use: math_answer", "use: broken.py:broken")},
     "01_zero.yaml: rewards[0]: reward 'broken.py:broken'"),
    ("reward_without_kwargs", {ZERO: ("use: math_answer", "use: strict.py:strict")},
     "01_zero.yaml: rewards[0]: reward 'strict.py:strict': it lacks **kwargs"),
    ("reward_package_missing", {ZERO: ("use: math_answer", "use: no_such.module:f")},
     "01_zero.yaml: rewards[0]: reward 'no_such.module:f': no module 'no_such' is installed"),
    ("reward_for_no_rows", {ZERO: ("{use: math_answer}", "{use: math_answer, tasks: [digit_sum]}")},
     "01_zero.yaml: rewards[0].tasks: no rows of task 'digit_sum'; did you mean 'digit_sums'?"),
    ("reward_twice", {ZERO: ("{use: math_answer}", "{use: think_format}")},
     "01_zero.yaml: rewards[1] and rewards[0] are both called 'think_format_reward'"),
    ("reward_window_that_never_opens",
     {ZERO: ("{use: math_answer}", "{use: math_answer, from_step: 4, until_step: 2}")},
     "01_zero.yaml: rewards[0]: until_step 2 is not after from_step 4"),
    ("reward_without_use", {ZERO: ("{use: math_answer}", "{weight: 1.0}")},
     "01_zero.yaml: rewards[0] should be a mapping like {use: math_answer}"),
    ("no_rewards",
     {ZERO: (REWARDS, "")},
     "01_zero.yaml: rewards is missing; a grpo stage needs one at least"),
    ("rewards_where_none_are_used",
     {COLD: ("stage: cold_start", "stage: cold_start\nrewards: [{use: math_answer}]")},
     "03_cold_start.yaml: rewards: a cold_start stage uses none"),
    ("column_that_the_reward_needs", {ZERO: ("use: math_answer", "use: needy.py:needy")},
     "01_zero.yaml: rewards[0] (needy.py:needy) needs a column 'tests' of the rows"),
    ("column_that_sft_needs", {COLD: ('"@data"', "rows.jsonl")},
     "03_cold_start.yaml: datasets[0] has no column 'completion', which a cold_start stage needs; "
     "it has 'note', 'prompt', 'solution'"),
    ("column_that_pairs_need", {PREF: ("task: small_talk_preferences", "task: digit_sums")},
     "04_preference.yaml: datasets[0] has no column 'chosen', 'rejected'"),
    ("gold_answers_that_can_not_be_graded",
     {ZERO: ("{task: digit_sums, num_rows: 32}", "{dataset_name: bad_gold.jsonl}")},
     "01_zero.yaml: datasets[0]: 5 of 20 gold answers (25.0%) can't be graded: row 2 '' is not "
     "gradable because it is empty; row 6"),
    ("model_folder_missing", {ZERO: ("./model", "./modell")},
     "01_zero.yaml: model_name_or_path: ./modell does not exist"),
    ("model_folder_without_a_model", {ZERO: ("./model", "./rows.jsonl")},
     "01_zero.yaml: model_name_or_path: ./rows.jsonl is a file; a model is a folder"),
    ("no_model", {ZERO: ("model_name_or_path: ./model", "")},
     "01_zero.yaml: model_name_or_path is missing"),
    ("data_file_missing",
     {ZERO: ("{task: digit_sums, num_rows: 32}", "{dataset_name: data/rows.jsonl}")},
     "01_zero.yaml: datasets[0].dataset_name: data/rows.jsonl does not exist"),
    ("data_file_that_is_no_data",
     {ZERO: ("{task: digit_sums, num_rows: 32}", "{dataset_name: not_rows.jsonl}")},
     "01_zero.yaml: datasets[0]: "),
    ("unknown_task", {ZERO: ("task: digit_sums", "task: digit_sum")},
     "01_zero.yaml: datasets[0]: unknown task 'digit_sum'; did you mean 'digit_sums'?"),
    ("unknown_task_argument", {ZERO: ("num_rows: 32", "num_rows: 32, args: {digits: 3}")},
     "01_zero.yaml: datasets[0].args: task 'digit_sums' has no argument 'digits'"),
    ("more_rows_than_there_are", {ZERO: ("num_rows: 32", "num_rows: 9000")},
     "01_zero.yaml: datasets[0]: digit_sums: num_rows is 9000"),
    ("no_such_split", {ZERO: ("num_rows: 32", "num_rows: 32, split: dev")},
     "01_zero.yaml: datasets[0]: digit_sums: unknown split 'dev'"),
    ("shares_over_one", {ZERO: ("num_rows: 32", "num_rows: 32, share: 1.5")},
     "01_zero.yaml: datasets[0].share is 1.5; it should be over 0 and at most 1"),
    ("no_datasets", {COLD: ('datasets:\n  - {dataset_name: "@data"}', "")},
     "03_cold_start.yaml: datasets is missing"),
    ("source_of_nothing", {COLD: ('{dataset_name: "@data"}', "{split: train}")},
     "03_cold_start.yaml: datasets[0]: dataset_name is missing"),
    ("two_stages_in_one_folder", {"05_zero.yaml": "stage: cold_start\n"},
     "05_zero.yaml: stage 'zero' is already 01_zero.yaml; both would write to the folder 'zero'"),
    ("own_output_dir", {ZERO: ("learning_rate: 1.0e-4", "output_dir: elsewhere")},
     "01_zero.yaml: output_dir can't be set in a recipe"),
    ("same_number_twice",
     {COLD: None, "02_cold_start.yaml": GOOD[COLD].replace("@data", "@zero/rollouts")},
     "02_data.yaml: number 02 is taken by 02_cold_start.yaml"),
    ("file_without_a_number", {"extra.yaml": "stage: cold_start\n"},
     "extra.yaml: not a stage file; a stage file is a number, an underscore and a name in small "
     "letters: 01_extra.yaml"),
    ("file_with_capitals", {"05_Extra.yaml": "stage: cold_start\n"},
     "05_Extra.yaml: not a stage file"),
    ("key_written_twice", {ZERO: ("learning_rate: 1.0e-4", "num_generations: 4")},
     "01_zero.yaml: key 'num_generations' is written twice (again in line 13); keep one"),
    ("not_yaml", {PREF: ("datasets:", "datasets: [")},
     "04_preference.yaml: not YAML in line"),
    ("a_list_as_a_stage", {PREF: "- stage: reward_model\n"},
     "04_preference.yaml: should hold `key: value` lines"),
    ("unknown_stage", {PREF: ("stage: reward_model", "stage: reward_modell")},
     "04_preference.yaml: unknown stage 'reward_modell'; did you mean 'reward_model'?"),
    ("no_stage", {PREF: ("stage: reward_model\n", "")},
     "04_preference.yaml: stage is missing"),
    ("unknown_preset", {ZERO: ("preset: zero", "preset: zeros")},
     "01_zero.yaml: unknown preset 'zeros' of grpo; did you mean 'zero'?"),
    ("rl_weights_in_cold_start", {COLD: ("./model", '"@zero"')},
     "03_cold_start.yaml: the weights of cold_start come from RL: cold_start <- zero"),
    ("unknown_format", {ZERO: ("learning_rate: 1.0e-4", "reasoning_format: zero_bar")},
     "01_zero.yaml: unknown reasoning_format 'zero_bar'; did you mean 'zero_bare'?"),
    ("unknown_chat_template", {ZERO: ("learning_rate: 1.0e-4", "chat_template: chat_ml")},
     "01_zero.yaml: unknown chat_template 'chat_ml'; did you mean 'chatml'?"),
    ("unknown_scheduler", {ZERO: ("learning_rate: 1.0e-4", "lr_scheduler_type: cosin")},
     "01_zero.yaml: cosin is not a valid SchedulerType"),
    ("both_quantisations",
     {ZERO: ("learning_rate: 1.0e-4", "use_peft: true\nload_in_4bit: true\nload_in_8bit: true")},
     "01_zero.yaml: "),
    ("unknown_source_task", {PIPE: ("seed: 1", "sources: {gsm9k: rows.jsonl}")},
     "pipeline.yaml: sources: unknown task 'gsm9k'; did you mean 'gsm8k'?"),
    ("pipeline_name_with_a_slash", {PIPE: ("name: good", "name: a/b")},
     "pipeline.yaml: name 'a/b' has to serve as a folder name"),
]  # fmt: skip


def write_recipes(folder: Path, changes: Changes) -> Path:
    """The good pipeline with changes."""
    texts = {**GOOD, **FILES}
    for name, change in changes.items():
        if change is None:
            del texts[name]
        elif isinstance(change, str):
            texts[name] = change
        else:
            assert change[0] in texts[name], f"{change[0]!r} is not in {name}"
            texts[name] = texts[name].replace(*change)
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture(autouse=True)
def no_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading anything pretrained is an error here."""
    import transformers

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a check must not load a model")

    for name in ("AutoModelForCausalLM", "AutoModelForSequenceClassification", "AutoTokenizer"):
        monkeypatch.setattr(getattr(transformers, name), "from_pretrained", refuse)
    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", refuse)


def test_the_good_pipeline_has_no_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_recipes(tmp_path / "good", {})
    assert main(["check", "good"]) == 0
    assert capsys.readouterr().out == "ok: good, 4 stages: zero, data, cold_start, preference\n"


def test_there_are_at_least_forty_broken_recipes() -> None:
    assert len({name for name, _, _ in CASES}) == len(CASES) >= 40


@pytest.mark.parametrize(("changes", "line"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_broken_recipe_gives_its_one_clear_line(
    changes: Changes,
    line: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_recipes(tmp_path / "recipes" / "x", changes)
    assert main(["check", "recipes/x"]) == 1
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert "Traceback" not in out + err
    assert lines[-1] == "1 mistake; nothing was run", out
    assert len(lines) == 2, out
    assert lines[0].startswith(f"recipes/x/{line}"), out
