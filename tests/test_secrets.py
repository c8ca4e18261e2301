"""What counts as a secret, and texts, values, streams and files without it."""

import base64
import copy
import io
import json
import pickle
from pathlib import Path

import pytest

from trl_r1.pipeline.configs import build_configs
from trl_r1.pipeline.keys import keys_of
from trl_r1.stages import STAGES, load_stage
from trl_r1.trust.masked_streams import MaskedStream, scrub
from trl_r1.trust.secrets import (
    Secret,
    clean,
    guarded,
    is_secret,
    mask,
    nested_secrets,
    only_own_masked,
    remember,
    without_secrets,
)

TOKEN = "hf_QwErTyUiOpAsDfGhJkLzXcVbNm"


def test_secrets_are_known_by_their_names_and_token_settings_are_none():
    secrets = ("hub_token", "push_to_hub_token", "token", "api_key", "OPENAI_API_KEY", "x-api-key",
               "password", "client_secret", "Authorization", "aws_secret_access_key")  # fmt: skip
    settings = ("eos_token", "pad_token", "max_new_tokens", "tokenizer_name", "token_ids", "key",
                "server_key_variable", "keys", "tokens", "secretary")  # fmt: skip
    assert [key for key in secrets if not is_secret(key)] == []
    assert [key for key in settings if is_secret(key)] == []


def test_of_all_keys_of_recipes_only_hub_token_is_a_secret():
    keys = {key for name in STAGES for key in keys_of(*load_stage(name).SPEC.configs)}
    assert [key for key in keys if is_secret(key)] == ["hub_token"]


def test_values_are_stored_without_secrets_at_any_depth():
    values = {
        "a": [{"api_key": "x", "url": "https://u:pw@h/?token=abc&n=1"}],
        "hub_token": "y",
        "empty_token": None,
        "eos_token": "</s>",
    }
    assert without_secrets(values) == {
        "a": [{"api_key": "(not stored)", "url": "https://***@h/?token=***&n=1"}],
        "hub_token": "(not stored)",
        "empty_token": None,
        "eos_token": "</s>",
    }
    assert clean((1, TOKEN)) == [1, "***"]


@pytest.mark.parametrize(
    "secret",
    [
        TOKEN,
        "sk-proj-abcdefghijklmnop1234",
        "ghp_abcdefghijklmnopqrstuvwxyz0123",
        "github_pat_11ABCDEFG0123456789_abcdef",
        "AKIAABCDEFGHIJKLMNOP",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-_123",
    ],
)
def test_secrets_are_known_by_their_shape(secret):
    for text in ("{}", "key={}, ", "'{}'", "https://host/{}/x", "line\n{}\n"):
        assert mask(text.format(secret)) == text.format("***")


def test_headers_addresses_and_queries_keep_all_but_the_secret():
    assert mask("Authorization: Bearer abc.DEF-123") == "Authorization: Bearer ***"
    assert mask("GET http://me:pw@host:80/v1?api_key=k%20k&n=2") == (
        "GET http://***@host:80/v1?api_key=***&n=2"
    )


@pytest.mark.parametrize(
    "text",
    [
        "eos_token: <|im_end|>, 12 tokens, http://localhost:8000/v1, me@host",
        "a desk-sized-thing-with-long-name and task-1234567890-1234567890 hf_home",
        "sha256 0123456789abcdef0123456789abcdef, step 12/100: loss 0.1234",
        "basic training of bearer bonds; what? key=value&more",
    ],
)
def test_what_is_no_secret_stays(text):
    assert mask(text) == text


def test_what_variables_hold_is_masked_in_every_form_it_travels_in(monkeypatch):
    value = 'pa/ss+w"ord 42'
    monkeypatch.setenv("MY_SERVER_API_KEY", value)
    told = [value, "pa%2Fss%2Bw%22ord%2042", "pa%2Fss%2Bw%22ord+42", 'pa/ss+w\\"ord 42']
    assert [mask(f"<{text}>") for text in told] == ["<***>"] * 4
    assert json.loads(mask(json.dumps({"a": value}))) == {"a": "***"}
    for before in ("", "a", "ab", "user:"):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            coded = mask(encode(f"{before}{value}, and after".encode()).decode())
            decoded = base64.b64decode(coded.partition("***")[2][-8:] + "==")
            assert "***" in coded
            assert b"after" in decoded or b"fter" in decoded
            assert "cGEvc3M" not in coded


def test_masking_never_fails_for_what_the_environment_is_like(monkeypatch):
    monkeypatch.setenv("X_TOKEN", "no\udcfftext-0123456789")
    monkeypatch.delenv("HF_HOME", raising=False)
    monkeypatch.setenv("HOME", "/nowhere")
    assert mask("a no\udcfftext-0123456789 b") == "a *** b"
    monkeypatch.delenv("HOME")
    monkeypatch.setenv("HF_TOKEN_PATH", "~nobody-of-this-name/token")
    assert mask("a") == "a"


def test_short_or_plain_values_of_variables_are_not_masked(monkeypatch):
    for number, value in enumerate(("1", "true", "reasoning", "12345678", "/etc/credentials.json")):
        monkeypatch.setenv(f"X_TOKEN_{number}", value)
    text = "1 true reasoning 12345678 /etc/credentials.json"
    assert mask(text) == text


def test_the_hub_s_token_files_are_known(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert mask("filetoken-one filetoken-two") == "filetoken-one filetoken-two"
    (tmp_path / "token").write_text("filetoken-one\n")
    (tmp_path / "stored_tokens").write_text("[mine]\nhf_token = filetoken-two\n")
    assert mask("filetoken-one filetoken-two") == "*** ***"


def test_a_stranger_s_recipe_cannot_call_its_code_a_secret_to_hide_it(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hidden = "PRIVATE KEY-----; import this_evil_module"
    remember("this_evil_module")
    with only_own_masked():
        assert mask(hidden) == hidden
        assert mask(f"x = {TOKEN}") == "x = ***"
    assert mask(hidden) == "PRIVATE KEY-----***"


def test_a_secret_is_a_text_to_whoever_uses_it_and_is_neither_shown_nor_pickled():
    values = guarded({"hub_token": "mytoken-0001", "run_name": "x"})
    token = values["hub_token"]
    assert token == "mytoken-0001"
    assert f"Bearer {token}" == "Bearer mytoken-0001"
    assert type(values["run_name"]) is str
    assert repr(values) == "{'hub_token': '***', 'run_name': 'x'}"
    assert pickle.loads(pickle.dumps(token)) == "(not stored)"
    assert copy.deepcopy(values)["hub_token"] == "mytoken-0001"
    assert mask("said mytoken-0001") == "said ***"
    assert isinstance(token, Secret)


def test_the_arguments_that_trainer_pickles_hold_no_token():
    for name in ("grpo", "cold_start", "reward_model"):
        values = {"hub_token": "pickled-token-1", "model_name_or_path": "x", "use_cpu": True}
        configs = build_configs(load_stage(name).SPEC, values, Path("out"), 0)
        args = next(config for config in configs if hasattr(config, "hub_token"))
        assert args.hub_token == "pickled-token-1"
        assert b"pickled-token" not in pickle.dumps(args)
        assert "pickled-token" not in repr(args) + args.to_json_string()


def test_secrets_inside_of_settings_are_found():
    values = {"hub_token": "a", "model_init_kwargs": {"token": "b", "x": [{"api_key": "c"}]}}
    assert list(nested_secrets(values)) == [
        "model_init_kwargs.token",
        "model_init_kwargs.x[0].api_key",
    ]


def test_a_stream_masks_what_is_written_and_is_else_the_stream_itself():
    inner = io.StringIO()
    stream = MaskedStream(inner)
    print("token", TOKEN, file=stream)
    stream.writelines([TOKEN, "\n"])
    assert stream.getvalue() == "token ***\n***\n"
    assert stream.isatty() is False


def test_a_log_is_scrubbed_and_one_without_secrets_is_left_alone(tmp_path):
    path = tmp_path / "log.txt"
    path.write_bytes(b"a \xff\r\n" + TOKEN.encode() + b"\r\n")
    scrub(path)
    assert path.read_bytes() == b"a \xff\r\n***\r\n"
    before = path.stat().st_ino
    scrub(path)
    assert path.stat().st_ino == before
    scrub(tmp_path / "none")
