"""Settings of sampling and distillation that mean nothing are refused before any model loads."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from trl_r1.cli import main
from trl_r1.sampling.assistants import AssistantArguments
from trl_r1.sampling.engines import EngineArguments
from trl_r1.stages.distillation import OnPolicyArguments
from trl_r1.stages.rejection_sampling import RejectionSamplingConfig

SERVERS = {"engine": "server", "servers": ["http://a/v1"]}


@pytest.mark.parametrize(
    ("settings", "values", "message"),
    [
        (RejectionSamplingConfig, {"temperature": -1.0}, "temperature is -1.0"),
        (RejectionSamplingConfig, {"top_p": 0.0}, "top_p is 0.0"),
        (RejectionSamplingConfig, {"repetition_ngram": 0}, "repetition_ngram is 0"),
        (RejectionSamplingConfig, {"max_ngram_repeats": -1}, "max_ngram_repeats is -1"),
        (RejectionSamplingConfig, {"max_paragraph_words": 0}, "max_paragraph_words is 0"),
        (RejectionSamplingConfig, {"language": "xx"}, "unknown language 'xx'; known: ar"),
        (EngineArguments, {"served_name": "a"}, "served_name is for `engine: server`"),
        (EngineArguments, {"vllm_options": {"a": 1}}, "vllm_options is for `engine: vllm`"),
        (EngineArguments, {**SERVERS, "server_timeout": -1.0}, "server_timeout is -1.0"),
        (EngineArguments, {**SERVERS, "server_patience": 0.0}, "server_patience is 0.0"),
        (EngineArguments, {**SERVERS, "servers": ["http://a:99999"]}, "is no server"),
        (AssistantArguments, {"judge_max_new_tokens": 0}, "judge_max_new_tokens is 0"),
        (AssistantArguments, {"judge_served_name": "a"}, "judge_servers names none"),
        (AssistantArguments, {"rewrite_served_name": "a"}, "rewrite_servers names none"),
        (OnPolicyArguments, {"teacher_server": "http://a"}, "is for on_policy `server`, not none"),
        (OnPolicyArguments, {"teacher_model_name_or_path": "a"}, "`distillation` or `gold`"),
        (OnPolicyArguments, {"on_policy": "server", "teacher_server": "a"}, "write http://"),
        (
            OnPolicyArguments,
            {
                "on_policy": "distillation",
                "teacher_model_name_or_path": "a",
                "on_policy_args": {"max_stepz": 3},
            },
            "unknown key 'max_stepz' in on_policy_args; did you mean 'max_steps'",
        ),
    ],
)
def test_a_setting_that_means_nothing_is_refused(
    settings: Any, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        settings(**values)


def test_regions_of_a_language_are_known_with_it() -> None:
    assert RejectionSamplingConfig(language="pt_BR").language == "pt_BR"


def test_check_names_a_reward_that_samples_are_chosen_by_and_that_is_not_there(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "recipe"
    shutil.copytree(Path(__file__).parents[1] / "recipes" / "tiny-cpu", folder)
    recipe = folder / "03_cold_start_data.yaml"
    text = recipe.read_text(encoding="utf-8") + "policy: best_reward\nbest_by: "
    recipe.write_text(f"{text}math_answer_reward\n", encoding="utf-8")
    assert main(["check", str(folder)]) == 0
    recipe.write_text(f"{text}math_answers\n", encoding="utf-8")
    assert main(["check", str(folder)]) == 1
    told = "".join(capfd.readouterr())
    assert "best_by: no reward is called 'math_answers'; did you mean 'math_answer_reward'" in told
