"""Rows that can't be sampled for are told before anything is sampled; one row of many ends no
job."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiohttp import web
from fake_server import FakeServer, in_background
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_r1.cli import main
from trl_r1.reasoning_format import get_format
from trl_r1.sampling import Sample
from trl_r1.sampling.engines import Unopened, closing_sampler
from trl_r1.sampling.prompt_rows import PromptRows
from trl_r1.sampling.server_address import ServerAddress
from trl_r1.sampling.server_sampler import ServerSampler
from trl_r1.sampling.shards import ShardFolder, read_shards
from trl_r1.sampling.transformers_sampler import TransformersSampler
from trl_r1.stages import RewardSpec
from trl_r1.stages.rejection_sampling import RejectionSampler, RejectionSamplingConfig

ASK = [{"role": "user", "content": "1+1=?"}]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "a text"}, "row 1: its prompt is of another kind"),
        ({"prompt": [{"role": "user", "content": None}]}, "row 1: its prompt is .*both texts"),
        ({"prompt": [{"role": "user", "content": [{"type": "text"}]}]}, "row 1: .*both texts"),
        ({"prompt": [{"role": 1, "content": "a"}]}, "row 1: its prompt is .*both texts"),
        ({"prompt": [{"content": "a"}]}, "row 1: its prompt is .*both texts"),
        ({"prompt": []}, "row 1: its prompt is empty"),
        ({"prompt": ASK, "task": 7}, "row 1: its task is 7; it has to be a name"),
    ],
)
def test_a_row_that_is_none_is_named(row: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PromptRows([{"prompt": ASK}, row])


def test_columns_of_a_samples_own_names_do_not_reach_the_rewards() -> None:
    row = {"prompt": ASK, "completions": "c", "prompts": "p", "completion_ids": [1], "solution": 2}
    rows = PromptRows([row])
    assert rows.columns == ("prompt", "solution")
    assert rows.part(0, 1) == [{"prompt": ASK, "solution": 2}]


def test_a_column_that_a_reward_needs_is_missed_before_anything_is_sampled(tmp_path: Path) -> None:
    made = RejectionSampler(Unopened(), get_format("zero"), [RewardSpec(use="math_answer")])
    with pytest.raises(
        ValueError, match=r"math_answer_reward needs solution.*they have prompt, id"
    ):
        made.run([{"prompt": ASK, "id": 1}], tmp_path)


def test_the_command_says_it_in_a_line(
    tmp_path: Path, tiny_model_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps({"prompt": ASK, "answer": "2"}))
    command = ["sample", str(tiny_model_dir), "--data", str(data), "--output", str(tmp_path / "o")]
    assert main(command) == 1
    (line,) = [text for text in capfd.readouterr().out.splitlines() if "trl-r1:" in text]
    assert "needs solution" in line
    assert not list((tmp_path / "o").glob("**/*.parquet"))


def sampled(sampler: Any, contents: list[str], folder: Path, limit: int = 8) -> dict[str, set[str]]:
    config = RejectionSamplingConfig(
        num_samples=2, shard_size=2, max_new_tokens=limit, language=None, require_format=False
    )
    made = RejectionSampler(sampler, get_format("zero_bare"), [], config)
    rows = [{"prompt": [{"role": "user", "content": content}]} for content in contents]
    made.draw(rows, folder)
    figures = made.assemble(rows, folder, must_keep=False)
    found: dict[str, set[str]] = {}
    for row in pq.read_table(folder / "samples").to_pylist():
        found.setdefault(row["prompt"][0]["content"][:3], set()).add(row["verdict"])
    assert figures["samples"] == 2 * len(contents)
    return found


def test_a_prompt_longer_than_the_context_is_counted_and_the_job_goes_on(
    tmp_path: Path, tiny_model_dir: Path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    sampler = TransformersSampler(model, AutoTokenizer.from_pretrained(tiny_model_dir), 3)
    found = sampled(sampler, ["abc", "long" * 500, "def"], tmp_path)
    assert found.pop("lon") == {"no_room"}
    assert all("no_room" not in verdicts for verdicts in found.values())
    assert set(found) == {"abc", "def"}


class Strict(FakeServer):
    """A server of a context of 100 characters, which counts what a request asks for."""

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        length = len(json.dumps(body["messages"]))
        if length + body.get("max_tokens", 1) > 100:
            return web.Response(
                status=400, text="This model's maximum context length is 100 tokens. Reduce it."
            )
        return await super()._complete(request)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "fake", "owned_by": "vllm"}]})


def test_a_server_without_room_for_limit_or_prompt_ends_no_job(tmp_path: Path) -> None:
    server = Strict()
    url, loop = in_background(lambda: server.start(0))
    try:
        with closing_sampler(ServerSampler([ServerAddress(url)])) as sampler:
            found = sampled(sampler, ["abc", "tig" * 10, "long" * 50], tmp_path, limit=40)
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
    assert found["lon"] == {"no_room"}
    assert found["abc"] <= {"kept", "duplicate"}
    assert found["tig"] <= {"kept", "duplicate"}
    limits = {json.dumps(b["messages"])[30:33]: b.get("max_tokens") for b in server.bodies}
    assert sorted(limits.values(), key=str) == [40, None]


def test_samples_are_of_the_prompt_they_are_for_where_some_have_no_room(
    tiny_model_dir: Path,
) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    sampler = TransformersSampler(model, AutoTokenizer.from_pretrained(tiny_model_dir), 8)
    settings = {"num_samples": 1, "temperature": 0.0, "max_new_tokens": 6}
    alone: list[list[Sample]] = sampler.sample(["1+1", "hello you"], **settings)
    mixed = sampler.sample(["x" * 900, "1+1", "y" * 900, "hello you"], **settings)
    assert [mixed[1][0].text, mixed[3][0].text] == [group[0].text for group in alone]


def test_a_dataset_goes_with_the_samples_it_is_of(tmp_path: Path) -> None:
    """Who deletes `samples/` to start over with other settings gets a `dataset/` of these."""

    class Saying:
        def __init__(self, text: str) -> None:
            self.text = text

        def sample(self, prompts: Any, num_samples: int, **_: Any) -> list[list[Sample]]:
            return [[Sample(self.text, [1], False)] * num_samples for _ in prompts]

    def run(text: str) -> None:
        config = RejectionSamplingConfig(num_samples=1, language=None, require_format=False)
        RejectionSampler(Saying(text), get_format("zero_bare"), [], config).run(
            [{"prompt": ASK}], tmp_path
        )

    run("one")
    shutil.rmtree(tmp_path / "samples")
    run("two")
    (row,) = pq.read_table(tmp_path / "dataset").to_pylist()
    assert row["completion"][0]["content"] == "two"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "some of the 1 shards of .*samples have gone; rename it"),
        (lambda path: path.write_bytes(b"PAR1"), "damaged .*delete it, rename .* and run again"),
        (lambda path: path.with_name(".settings.json").write_text("[1]"), "record can't be read"),
        (lambda path: path.with_name(".settings.json").write_text(""), "record can't be read"),
    ],
)
def test_finished_samples_that_are_damaged_are_told(
    tmp_path: Path, damage: Any, message: str
) -> None:
    folder = tmp_path / "samples"
    shards = ShardFolder(folder, 1, pa.schema([("x", pa.int64())]), {"a": 1})
    shards.write(0, [{"x": 2}])
    shards.finish()
    damage(next(folder.glob("*.parquet")))
    with pytest.raises(ValueError, match=message):
        list(read_shards(ShardFolder(folder, 1, shards.schema, {"a": 1}).folder))
