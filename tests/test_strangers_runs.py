"""Runs, checkpoints, data and templates of strangers: nothing of them runs, or leads elsewhere."""

import json
import subprocess
import sys

import pytest
import torch
from toy_pickles import Evil

from trl_r1.cli import main
from trl_r1.hub.contents import visible_files
from trl_r1.pipeline.ledger import StageRecord, read_record, write_record
from trl_r1.pipeline.mistakes import PipelineError
from trl_r1.reasoning_format import get_format
from trl_r1.tasks import DatasetSource, load_rows
from trl_r1.tasks.row_templates import fill
from trl_r1.tasks.sources import read_source
from trl_r1.training.arguments import ModelArguments
from trl_r1.training.models import load_tokenizer


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "../x"}, "'../x' is no name that a run gives"),
        ({"artifacts": {"../../secrets": {}}}, "'../../secrets' is no name that a run gives"),
        ({"artifacts": {"/etc": {}}}, "'/etc' is no name that a run gives"),
        ({"artifacts": {".hidden": {}}}, "'.hidden' is no name that a run gives"),
        ({"artifacts": {"model": {"sizes": {"../../x": 1}}}}, "'../../x' leads out"),
        ({"artifacts": {"model": {"sizes": {"/etc/passwd": 1}}}}, "'/etc/passwd' leads out"),
    ],
)
def test_a_record_with_a_name_that_leads_elsewhere_is_refused(tmp_path, change, said):
    write_record(tmp_path, StageRecord("zero", "grpo", "finished"))
    assert read_record(tmp_path) is not None
    path = tmp_path / "stage.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(PipelineError, match=said):
        read_record(tmp_path)


def test_a_link_in_an_artifact_that_leads_out_of_it_is_not_pushed(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "private").write_text("mine")
    (folder / "weights").write_text("w")
    (folder / "alias").symlink_to(folder / "weights")
    assert visible_files(folder) == ["alias", "weights"]
    (folder / "config.json").symlink_to(tmp_path / "private")
    with pytest.raises(PipelineError, match="leads out"):
        visible_files(folder)


PIPELINE = """\
name: mine
threads: 1
defaults: {reasoning_format: zero_bare, chat_template: compact, save_steps: 1}
"""
ZERO = """\
stage: grpo
model_name_or_path: "@base"
datasets: [{task: digit_sums, num_rows: 8}]
rewards: [{use: 'stops.py:stopping_reward'}]
num_generations: 2
per_device_train_batch_size: 4
gradient_accumulation_steps: 1
max_completion_length: 4
max_steps: 3
"""
STOPS = """\
from pathlib import Path

def stopping_reward(completions, trainer_state=None, **kwargs):
    if trainer_state.global_step >= 1 and not (Path(__file__).parent / "goes_on").exists():
        raise ValueError("stops here")
    return [float(i) for i, _ in enumerate(completions)]
"""


@pytest.mark.parametrize("name", ["rng_state.pth", "optimizer.pt", "scheduler.pt"])
def test_a_pickle_put_into_a_checkpoint_is_not_run_by_going_on_from_it(tmp_path, name):
    mine, mark = tmp_path / "mine", tmp_path / "mark"
    mine.mkdir()
    (mine / "pipeline.yaml").write_text(PIPELINE)
    (mine / "01_base.yaml").write_text("stage: tiny_base\nmax_steps: 1\n")
    (mine / "02_zero.yaml").write_text(ZERO)
    (mine / "stops.py").write_text(STOPS)
    command = [sys.executable, "-m", "trl_r1", "run", str(mine), "--output_dir", "run"]
    first = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "stops here" in first.stdout
    (mine / "goes_on").touch()
    checkpoint = tmp_path / "run" / "zero" / "checkpoints" / "checkpoint-1"
    torch.save(Evil(mark), checkpoint / name)
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    log = (tmp_path / "run" / "zero" / "log.txt").read_text()
    assert "resume" in again.stdout
    assert "Weights only load failed" in again.stdout + log
    assert not mark.exists()


def test_data_that_is_pickled_or_comes_with_a_script_is_not_read(tmp_path):
    mark = tmp_path / "mark"
    (tmp_path / "pickles").mkdir()
    (tmp_path / "script").mkdir()
    torch.save(Evil(mark), tmp_path / "pickles" / "train.pkl")
    (tmp_path / "script" / "script.py").write_text(f"open({str(mark)!r}, 'w')\n")
    for name in ("pickles", "script", "pickles/train.pkl", "script/script.py"):
        with pytest.raises((ValueError, OSError)):
            read_source(DatasetSource(str(tmp_path / name)))
    assert not mark.exists()


def test_a_task_s_templates_reach_columns_and_no_attributes(tmp_path):
    for template in ("{a.__class__}", "{a[0].__init__.__globals__}", "{a.upper}"):
        with pytest.raises((KeyError, ValueError, TypeError)):
            fill(template, {"a": ["x"]})
    (tmp_path / "rows.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')
    task = tmp_path / "exam.yaml"
    task.write_text(
        'name: exam\nsource: rows.jsonl\nprompt: "{question.__class__}"\nsolution: "{answer}"\n'
    )
    with pytest.raises(ValueError, match="exam"):
        load_rows(DatasetSource(task=str(task)), get_format("zero"))
    (tmp_path / "tagged.yaml").write_text("name: !!python/object/apply:os.getcwd []\n")
    with pytest.raises(ValueError, match="not YAML"):
        load_rows(DatasetSource(task=str(tmp_path / "tagged.yaml")), get_format("zero"))


def test_a_chat_template_runs_in_a_sandbox(tmp_path):
    from trl_r1.fitting.tiny_models import stand_in_tokenizer

    mark = tmp_path / "mark"
    tokenizer = stand_in_tokenizer("Qwen/Qwen2.5-0.5B")
    tokenizer.chat_template = (
        "{{ cycler.__init__.__globals__.os.system('touch " + str(mark) + "') }}"
    )
    tokenizer.save_pretrained(tmp_path / "model")
    with pytest.raises(Exception, match=r"unsafe|undefined"):
        load_tokenizer(str(tmp_path / "model"), ModelArguments(), get_format("zero"))
    assert not mark.exists()


def test_a_stranger_s_recipe_is_not_run_by_being_copied(tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "pipeline.yaml").write_text("name: x\n")
    (mine / "reward.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\n")
    assert main(["copy", str(mine), str(tmp_path / "copied")]) == 0
    assert not (tmp_path / "mark").exists()
