"""Runs with fake secrets everywhere at once leave none in any file, nor in what they print."""

import asyncio
import base64
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest
from fake_server import FakeServer, in_background

SECRETS = {
    "HF_TOKEN": "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345",
    "HUGGING_FACE_HUB_TOKEN": "hf_ZyXwVuTsRqPoNmLkJiHgFeDcBa543210",
    "OPENAI_API_KEY": "sk-proj-FakeFakeFakeFake1234567890",
    "TRL_R1_API_KEY": "server/key+without=shape 77",
    "MY_SERVER": "a-key-in-a-variable-of-another-name",
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "E2B_API_KEY": "e2b_0123456789abcdef0123456789",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "GITHUB_TOKEN": "ghp_FakeFakeFakeFakeFakeFakeFakeFake12",
}
IN_RECIPE, IN_ARGS, ON_COMMAND_LINE = "recipe-token-0001", "reward-args-token-0002", "set-token-03"
IN_FILE, STORED = "file-token-plain-0004", "stored-token-plain-0005"
ALL = (*SECRETS.values(), IN_RECIPE, IN_ARGS, ON_COMMAND_LINE, IN_FILE, STORED)

PIPELINE = f"""\
name: mine
threads: 1
defaults:
  {{reasoning_format: zero_bare, chat_template: compact, save_steps: 1, hub_token: {IN_RECIPE}}}
evaluation:
  datasets: [{{task: digit_sums, split: test, num_rows: 4}}]
  max_new_tokens: 8
"""
STAGES = {
    "01_base": "stage: tiny_base\nmax_steps: 2\n",
    "02_cold_start": """\
stage: cold_start
model_name_or_path: "@base"
datasets: [{task: small_talk, num_rows: 16}]
max_length: 128
max_steps: 2
""",
    "03_zero": f"""\
stage: grpo
model_name_or_path: "@cold_start"
datasets: [{{task: digit_sums, num_rows: 8}}]
rewards:
  - {{use: math_answer}}
  - {{use: 'my_reward.py:chatty_reward', args: {{api_key: {IN_ARGS}}}}}
num_generations: 2
per_device_train_batch_size: 4
gradient_accumulation_steps: 1
max_completion_length: 8
max_steps: 3
""",
    "04_samples": """\
stage: rejection_sampling
model_name_or_path: "@zero"
engine: server
servers: [ADDRESS]
server_key_variable: MY_SERVER
datasets: [{task: digit_sums, num_rows: 4}]
rewards: [{use: think_format}]
num_samples: 2
max_new_tokens: 8
""",
}
# Prints past Python as well, from a worker process; fails where it is told to.
REWARD = """\
import logging, os, subprocess, sys, warnings
from pathlib import Path

def chatty_reward(completions, api_key, trainer_state=None, **kwargs):
    print("environment", dict(os.environ), api_key)
    subprocess.run(["env"])
    subprocess.run([sys.executable, "-c", "import os; os.write(2, os.environb[b'HF_TOKEN'])"])
    logging.getLogger("strange").warning("key %s", api_key)
    warnings.warn(f"key {api_key}")
    if (Path(__file__).parent / "fails").exists() and trainer_state.global_step >= 1:
        raise ValueError(f"401 for {api_key} and {os.environ['HF_TOKEN']} at "
                         f"https://me:{os.environ['AWS_SECRET_ACCESS_KEY']}@host/?token={api_key}")
    return [float(i) for i, _ in enumerate(completions)]
"""


class Place:
    """A folder with a pipeline, a run, a home of the Hub and temporary files, all of its own."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.recipes, self.home, self.temporary = base / "mine", base / "hf", base / "tmp"
        for folder in (self.recipes, self.home, self.temporary):
            folder.mkdir()
        (self.home / "token").write_text(IN_FILE)
        (self.home / "stored_tokens").write_text(f"[mine]\nhf_token = {STORED}\n")
        (self.recipes / "pipeline.yaml").write_text(PIPELINE)
        (self.recipes / "my_reward.py").write_text(REWARD)
        self.printed = ""
        self.secrets = dict(SECRETS)

    def stages(self, *names: str, address: str = "") -> None:
        for name in names:
            path = self.recipes / f"{name}.yaml"
            path.write_text(STAGES[name].replace("ADDRESS", address))

    def command(self, *arguments: object, status: int | None = 0) -> str:
        """Run `trl-r1` with every secret set; what it prints is kept and given back."""
        environment = {
            **os.environ,
            **self.secrets,
            "HF_HOME": str(self.home),
            "HF_HUB_OFFLINE": "1",
            "TMPDIR": str(self.temporary),
        }
        result = subprocess.run(
            [sys.executable, "-m", "trl_r1", *map(str, arguments)],
            cwd=self.base,
            env={**environment, "PYTHONPATH": str(Path(__file__).parents[1])},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        self.printed += result.stdout
        assert status is None or result.returncode == status, result.stdout
        return result.stdout

    def leaks(self) -> list[str]:
        """Where a secret is: files written, and what was printed."""
        written = {"printed": self.printed.encode()}
        own = {self.home / "token", self.home / "stored_tokens"}
        for path in self.base.rglob("*"):
            if path.is_file() and path not in own and self.recipes not in path.parents:
                written[str(path)] = path.read_bytes()
                if path.suffix == ".parquet":
                    written[f"{path}, read"] = str(pq.read_table(path).to_pylist()).encode()
        forms = [(secret, form) for secret in ALL for form in forms_of(secret)]
        return [
            f"{secret} in {name}"
            for name, data in written.items()
            for secret, form in forms
            if form in data
        ]


def forms_of(secret: str) -> list[bytes]:
    """A secret as it is, as in an address, and the middle of it as base64 in its three places."""
    coded = [base64.b64encode(b" " * i + secret.encode())[4:-4] for i in range(3)]
    return list(dict.fromkeys([secret.encode(), quote(secret, safe="").encode(), *coded]))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def server() -> Iterator[tuple[str, FakeServer]]:
    """A server that wants the key and, refusing another one, says which it got."""
    made = FakeServer(key=SECRETS["MY_SERVER"])
    address, loop = in_background(made.start)
    yield address, made
    asyncio.run_coroutine_threadsafe(made.stop(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)


def test_the_search_finds_a_secret_that_is_there(place):
    assert place.leaks() == []
    (place.base / "log.txt").write_bytes(base64.b64encode(b"user:" + SECRETS["HF_TOKEN"].encode()))
    place.printed = IN_ARGS
    assert [text.partition(" in ")[0] for text in place.leaks()] == [IN_ARGS, SECRETS["HF_TOKEN"]]


def test_a_run_that_works_leaves_no_secret_anywhere(place, server):
    address, made = server
    place.stages(*STAGES, address=address)
    place.command("check", "mine")
    place.command("run", "mine", "--set", f"zero.hub_token={ON_COMMAND_LINE}")
    assert made.bodies, "the server was asked, and took the key"
    log = "".join(path.read_text() for path in place.base.glob("runs/mine/*/log.txt"))
    assert "HF_TOKEN=***" in log, "what a child process printed came into a log"
    assert "environment {" in log
    place.command("report", "runs/mine")
    place.command("table", "runs/mine")
    place.command("plan", "mine", "--vram", 8, "--cpu", status=None)
    place.command("rehearse", "mine", status=None)
    place.command("merge", "runs/mine/zero/model", "merged", status=1)
    place.command("push", "runs/mine", "--org", "me", status=1)  # there is no Hub here
    recipe = (place.base / "runs/mine/zero/recipe.yaml").read_text()
    assert "hub_token: (not stored)" in recipe
    assert place.leaks() == []


_TWO = ("--accelerate_config", "ddp", "--num_processes", 2)


@pytest.mark.parametrize("launcher", [(), pytest.param(_TWO, marks=pytest.mark.slow)])
def test_a_run_that_a_reward_stops_leaves_no_secret_in_checkpoints_either(place, launcher):
    place.stages("01_base", "02_cold_start", "03_zero")
    (place.recipes / "fails").touch()
    place.secrets.pop("MY_SERVER")  # which nothing names as a secret here
    place.command("run", "mine", "--until", "cold_start")
    out = place.command("run", "mine", *launcher, status=1)
    assert "zero:" in out
    assert "401 for ***" in out
    checkpoints = list((place.base / "runs/mine/zero/checkpoints").glob("*/training_args.bin"))
    assert checkpoints, "the arguments of Trainer are pickled there"
    assert place.leaks() == []


def test_a_server_that_repeats_the_key_it_refuses_is_quoted_without_it(place, server):
    address, made = server
    made.key = "another-key-0123"
    place.stages("01_base")
    sampling = STAGES["04_samples"].replace("@zero", "@base").replace("ADDRESS", address)
    (place.recipes / "02_samples.yaml").write_text(sampling)
    out = place.command("run", "mine", status=1)
    assert "refused a request with 401: wrong key Bearer ***" in out
    questions = place.base / "questions.jsonl"
    questions.write_text('{"prompt": [{"role": "user", "content": "1+1?"}], "solution": "2"}\n')
    for command in ("sample", "eval"):
        arguments = (command, address, "--data", questions, "--format", "zero")
        named = ("--key_variable", "MY_SERVER", "--output", place.base / command)
        out = place.command(*arguments, *named, "--n", 2, status=1)
        assert "401: wrong key Bearer ***" in out
        made.key, before = SECRETS["MY_SERVER"], made.key
        place.command(*arguments, *named, "--n", 2)
        made.key = before
    place.command("data", "stats", place.base / "sample" / "dataset", status=None)
    assert place.leaks() == []


def test_mistakes_in_recipes_are_told_without_the_secrets_in_them(place):
    (place.recipes / "01_x.yaml").write_text(
        f"stage: grpo\nmodel_name_or_path: 'https://me:{IN_ARGS}@host/x?token={IN_FILE}'\n"
        f"hub_tokn: {SECRETS['HF_TOKEN']}\nhub_token: [{IN_RECIPE}]\n"
        f"model_init_kwargs: {{token: {STORED}}}\n"
        f"vllm_server_base_url: http://me:{IN_ARGS}@host\n"
        f"datasets: [{{dataset_name: 'hf://x?api_key={IN_FILE}'}}]\n"
        f"rewards: [{{use: math_answer, args: {{api_key: {IN_ARGS}}}}}]\n"
    )
    for command in ("check", "run", "plan", "rehearse"):
        out = place.command(
            command, "mine", "--set", f"x.hub_token=[{ON_COMMAND_LINE}]", status=None
        )
    out = place.command("check", "mine", status=1)
    assert "model_init_kwargs.token: a secret that libraries would write down" in out
    assert "vllm_server_base_url: http://***@host holds a secret" in out
    for command in (
        ("run", "nowhere"),
        ("sample", f"http://me:{IN_ARGS}@host", "--task", "gsm8k", "--output", "o"),
    ):
        place.command(*command, status=1)
    assert place.leaks() == []
