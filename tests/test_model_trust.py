"""Code that a model brings and pickles for weights are run only where a recipe asks for them."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from toy_pickles import Evil
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from trl_r1.cli import main
from trl_r1.fitting.tiny_models import stand_in_tokenizer
from trl_r1.reasoning_format import get_format
from trl_r1.rewards.preference_model import PreferenceModelReward
from trl_r1.sampling.engines import EngineArguments, open_sampler
from trl_r1.training.arguments import ModelArguments
from trl_r1.training.models import load_policy, load_scorer, load_tokenizer
from trl_r1.trust.model_files import Allowed, ModelTrustError, folder_fault, weights_fault

CODE = """\
from pathlib import Path
from transformers import Qwen2Config, Qwen2ForCausalLM
Path({mark!r}).touch()

class OwnConfig(Qwen2Config):
    model_type = "own_kind"

class OwnModel(Qwen2ForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A tiny model with safetensors."""
    folder = tmp_path / "plain"
    tokenizer = stand_in_tokenizer("Qwen/Qwen2.5-0.5B")
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """A file that is there once a stranger's code has run."""
    return tmp_path / "mark"


@pytest.fixture
def with_code(plain: Path, mark: Path) -> Path:
    """A model of a kind that only its own code knows."""
    folder = plain.with_name("with_code")
    shutil.copytree(plain, folder)
    values = json.loads((folder / "config.json").read_text())
    own = {"AutoConfig": "own_code.OwnConfig", "AutoModelForCausalLM": "own_code.OwnModel"}
    values.update(model_type="own_kind", architectures=["OwnModel"], auto_map=own)
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "own_code.py").write_text(CODE.format(mark=str(mark)))
    return folder


@pytest.fixture
def pickled(plain: Path, mark: Path) -> Path:
    """A model whose only weights are a pickle that runs code."""
    folder = plain.with_name("pickled")
    shutil.copytree(plain, folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({**weights, "evil": Evil(mark)}, folder / "pytorch_model.bin")
    return folder


def recipe(folder: Path, model: Path, *lines: str) -> Path:
    folder.mkdir()
    (folder / "01_zero.yaml").write_text(
        f"stage: grpo\nmodel_name_or_path: {model}\nreasoning_format: zero_bare\n"
        "chat_template: chatml\ndatasets: [{task: digit_sums, num_rows: 8}]\n"
        "rewards: [{use: math_answer}]\nnum_generations: 2\nper_device_train_batch_size: 4\n"
        "gradient_accumulation_steps: 1\nmax_completion_length: 4\nmax_steps: 1\nbeta: 0.04\n"
        + "".join(f"{line}\n" for line in lines)
    )
    return folder


def test_the_pickle_does_run_code_where_it_is_unpickled(pickled, mark):
    torch.load(pickled / "pytorch_model.bin", weights_only=False)
    assert mark.exists()


def test_code_of_a_model_is_refused_by_name_in_check_and_wherever_models_are_loaded(
    with_code, mark, tmp_path, capsys
):
    mine = recipe(tmp_path / "mine", with_code)
    said = "it needs code of its own, own_code.py, which is not run unless it is asked for"
    for options in (["check", str(mine)], ["check", str(mine), "--untrusted"]):
        assert main(options) == 1
        out = capsys.readouterr().out
        assert said in out
        assert "set trust_remote_code: true" in out
    arguments = ModelArguments()
    for load in (
        lambda: load_policy(str(with_code), arguments, trainable=True),
        lambda: load_policy(str(with_code), arguments, trainable=False),
        lambda: load_scorer(str(with_code), arguments, seed=0),
        lambda: open_sampler(
            EngineArguments(), str(with_code), arguments, get_format("zero_bare"), 1
        ),
    ):
        with pytest.raises(ModelTrustError, match="trust_remote_code: true"):
            load()
    # The tokenizer is a known one, and needs none of it.
    load_tokenizer(str(with_code), ModelArguments(chat_template="chatml"), get_format("zero"))
    assert main(["plan", str(mine), "--vram", "8", "--cpu"]) in (0, 1)
    assert not mark.exists()


def test_no_question_is_asked_of_the_terminal(with_code, mark, tmp_path, monkeypatch, capsys):
    def asked(*_):
        raise AssertionError("transformers asked whether to run the code")

    monkeypatch.setattr("builtins.input", asked)
    data = tmp_path / "rows.jsonl"
    data.write_text('{"prompt": "1+1?", "solution": "2"}\n')
    for command in (
        ["sample", with_code, "--data", data, "--output", tmp_path / "samples"],
        ["eval", with_code, "--data", data, "--output", tmp_path / "scores"],
        ["rehearse", recipe(tmp_path / "mine", with_code)],
    ):
        assert main([str(word) for word in command]) == 1
    with pytest.raises(ValueError, match="code"):
        PreferenceModelReward(str(with_code))(["1"], ["<think>1</think>2"])
    assert not mark.exists()


def test_code_of_a_tokenizer_is_refused_too(plain, mark, tmp_path, capsys):
    config = json.loads((plain / "tokenizer_config.json").read_text())
    own = {"AutoTokenizer": ["own_code.OwnTokenizer", None]}
    config.update(tokenizer_class="OwnTokenizer", auto_map=own)
    (plain / "tokenizer_config.json").write_text(json.dumps(config))
    values = json.loads((plain / "config.json").read_text())
    values.update(model_type="own_kind", auto_map={"AutoConfig": "own_code.OwnConfig"})
    (plain / "config.json").write_text(json.dumps(values))
    (plain / "own_code.py").write_text(CODE.format(mark=str(mark)))
    with pytest.raises(ModelTrustError, match="trust_remote_code: true"):
        load_tokenizer(str(plain), ModelArguments(), get_format("zero_bare"))
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1+1?", "completion": "2"}\n')
    assert main(["data", "stats", str(rows), "--tokenizer", str(plain)]) == 1
    assert f"no tokenizer {plain}" in capsys.readouterr().out
    assert not mark.exists()


def test_code_of_a_model_runs_where_the_recipe_asks_for_it(with_code, mark, tmp_path, capsys):
    mine = recipe(tmp_path / "mine", with_code, "trust_remote_code: true")
    assert main(["check", str(mine)]) == 0
    assert not mark.exists()
    assert main(["check", str(mine), "--untrusted"]) == 0
    out = capsys.readouterr().out
    assert "own_code.py\n  named by    " in out
    assert "class OwnModel" in out
    assert not mark.exists()
    assert main(["run", str(mine), "--output_dir", str(tmp_path / "run")]) == 0
    assert mark.exists()
    assert (tmp_path / "run" / "zero" / "model" / "model.safetensors").is_file()


def test_a_model_that_transformers_knows_needs_no_code_although_it_brings_some(plain, mark):
    values = json.loads((plain / "config.json").read_text())
    values["auto_map"] = {"AutoModelForCausalLM": "own_code.OwnModel"}
    (plain / "config.json").write_text(json.dumps(values))
    (plain / "own_code.py").write_text(CODE.format(mark=str(mark)))
    assert folder_fault("x", plain, Allowed()) is None
    model, _ = load_policy(str(plain), ModelArguments(), trainable=False)
    assert type(model) is Qwen2ForCausalLM
    assert not mark.exists()


def test_pickles_are_refused_by_name_in_check_and_never_read(pickled, mark, tmp_path, capsys):
    mine = recipe(tmp_path / "mine", pickled)
    assert main(["check", str(mine)]) == 1
    out = capsys.readouterr().out
    assert "its weights are no safetensors but pytorch_model.bin" in out
    assert "save_pretrained(...)), or set use_safetensors: false" in out
    for load in (
        lambda: load_policy(str(pickled), ModelArguments(), trainable=False),
        lambda: load_scorer(str(pickled), ModelArguments(), seed=0),
    ):
        with pytest.raises(ModelTrustError, match=r"pytorch_model\.bin"):
            load()
    with pytest.raises(OSError, match="safetensors"):
        PreferenceModelReward(str(pickled))(["1"], ["<think>1</think>2"])
    assert not mark.exists()


def test_pickles_of_plain_tensors_are_read_where_the_recipe_asks_and_others_even_then_not(
    pickled, mark, tmp_path
):
    allowed = ModelArguments(use_safetensors=False)
    # transformers reads them with `weights_only`.
    with pytest.raises(pickle.UnpicklingError):
        load_policy(str(pickled), allowed, trainable=False)
    assert not mark.exists()
    weights = torch.load(pickled / "pytorch_model.bin", weights_only=False)
    mark.unlink()
    weights.pop("evil")
    torch.save(weights, pickled / "pytorch_model.bin")
    model, _ = load_policy(str(pickled), allowed, trainable=False)
    assert torch.equal(model.lm_head.weight, weights["lm_head.weight"])
    mine = recipe(tmp_path / "mine", pickled, "use_safetensors: false")
    assert main(["check", str(mine)]) == 0


def test_an_adapter_of_pickles_is_refused(plain, mark, tmp_path):
    adapter = tmp_path / "adapter"
    model = AutoModelForCausalLM.from_pretrained(plain)
    get_peft_model(model, LoraConfig(target_modules=["q_proj"])).save_pretrained(str(adapter))
    AutoTokenizer.from_pretrained(plain).save_pretrained(adapter)
    load_policy(str(adapter), ModelArguments(), trainable=False)
    weights = load_file(adapter / "adapter_model.safetensors")
    (adapter / "adapter_model.safetensors").unlink()
    torch.save({**weights, "evil": Evil(mark)}, adapter / "adapter_model.bin")
    with pytest.raises(ModelTrustError, match=r"adapter_model\.bin"):
        load_policy(str(adapter), ModelArguments(), trainable=False)
    assert main(["merge", str(adapter), str(tmp_path / "merged")]) == 1
    assert main(["check", str(recipe(tmp_path / "mine", adapter))]) == 1
    with pytest.raises(ValueError, match="no safetensors"):
        PreferenceModelReward(str(adapter))(["1"], ["<think>1</think>2"])
    assert not mark.exists()


def test_an_index_of_shards_leads_neither_to_pickles_nor_out_of_the_folder(plain):
    save_file({"a": torch.zeros(1)}, plain / "model-00001-of-00001.safetensors")
    index = plain / "model.safetensors.index.json"
    for shard in ("pytorch_model.bin", "../other/model.safetensors", "/etc/x.safetensors"):
        index.write_text(json.dumps({"weight_map": {"a": shard}}))
        assert shard in str(folder_fault("x", plain, Allowed()))
    index.write_text(json.dumps({"weight_map": {"a": "model-00001-of-00001.safetensors"}}))
    assert folder_fault("x", plain, Allowed()) is None


@pytest.mark.parametrize(
    ("files", "is_fine"),
    [
        (["config.json", "model.safetensors", "pytorch_model.bin"], True),
        (["model-00001-of-00002.safetensors", "training_args.bin", "optimizer.pt"], True),
        (["config.json", "pytorch_model-00001-of-00002.bin"], False),
        (["adapter_model.bin", "model.safetensors"], False),
        (["adapter_model.safetensors", "training_args.bin"], True),
        (["config.json", "tf_model.h5"], False),
        (["model.gguf", "config.json"], True),
    ],
)
def test_what_a_folder_would_be_loaded_from_is_told_by_names(files, is_fine):
    assert (weights_fault("x", files) is None) == is_fine
