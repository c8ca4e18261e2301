"""Sampling from OpenAI-compatible servers: vLLM, SGLang, llama.cpp, `transformers serve`, others.

A request is one completion, with a seed of its own, so that a server that is lost costs no more
than the completions it was at, and a completion is the same whichever server makes it (as far as
the server keeps to seeds). With a tokenizer the prompt is rendered here and sent to
`/v1/completions`, so that every engine sees the same prompt; without one the messages go to
`/v1/chat/completions` and the server's own template counts. Left out: streaming, tools and images.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from trl_r1.sampling import Sample, TokenSource, derive_seed
from trl_r1.sampling.answer_log import AnswerLog
from trl_r1.sampling.dialects import TAKES_TOKEN_IDS, answer_text, sampling_fields
from trl_r1.sampling.prompts import encode_prompt, render_prompt, without_room
from trl_r1.sampling.server import NoRoomError, Server, ServerError
from trl_r1.sampling.server_address import ServerAddress
from trl_r1.sampling.server_pool import PoolSettings, ServerPool

_Result = TypeVar("_Result")
_MAX_SEED = 2**31


class ServerSampler:
    """Draws completions from servers that all have the same model.

    Args:
        addresses: at least one.
        tokenizer: of the model, with the chat template to use; None to leave both to the servers.
        settings: of the pool.
    """

    shards_ahead = 2

    def __init__(
        self,
        addresses: Sequence[ServerAddress],
        tokenizer: Any = None,
        settings: PoolSettings | None = None,
    ) -> None:
        if not addresses:
            raise ValueError("there are no servers to sample from")
        self.tokenizer = tokenizer
        self._folder: Path | None = None
        self._closing, self._is_closed = threading.Lock(), False
        self._loop = asyncio.new_event_loop()
        self._pool = ServerPool(addresses, settings or PoolSettings())
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    @property
    def servers(self) -> list[Server]:
        """The servers and how many completions each has made."""
        return self._pool.servers

    def check(self) -> None:
        """Ask every server once which models it has.

        Raises:
            ServerError: one lacks the model, or none of them answers.
        """
        self._run(self._pool.check())

    def keep_answers_in(self, folder: Path | None) -> None:
        """See `RemoteSampler.keep_answers_in`."""
        self._folder = folder

    def forget_answers(self, seed: int) -> None:
        """See `RemoteSampler.forget_answers`."""
        if self._folder is not None:
            self._answers_path(self._folder, seed).unlink(missing_ok=True)

    def close(self) -> None:
        """Give up what is under way, in other threads, too; the sampler is of no use after that."""
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
        asyncio.run_coroutine_threadsafe(self._give_up(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _give_up(self) -> None:
        await self._pool.close()
        # Also what had not asked yet: no server would ever answer it.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def sample(
        self,
        prompts: Sequence[Any],
        num_samples: int = 1,
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_new_tokens: int = 1024,
        seed: int = 0,
    ) -> list[list[Sample]]:
        """Draw `num_samples` completions of each prompt; see `Sampler.sample`.

        Raises:
            ServerError: a server refused a request, or none can be reached.
        """
        if num_samples < 1:
            raise ValueError(f"num_samples is {num_samples}; it has to be at least 1")
        settings = {"temperature": temperature, "top_p": top_p, "max_new_tokens": max_new_tokens}
        path = None if self._folder is None else self._answers_path(self._folder, seed)
        with nullcontext() if path is None else AnswerLog(path) as log:
            coroutine = self._sample_all(prompts, num_samples, settings, seed, log)
            return self._run(coroutine)

    def _run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """Have the loop's thread do something; Ctrl-C here gives it up there."""
        with self._closing:
            if self._is_closed:
                coroutine.close()
                raise ServerError("sampling was given up")
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise ServerError("sampling was given up") from None
        except KeyboardInterrupt:
            future.cancel()
            raise

    async def _sample_all(
        self,
        prompts: Sequence[Any],
        num_samples: int,
        settings: Mapping[str, Any],
        seed: int,
        log: AnswerLog | None,
    ) -> list[list[Sample]]:
        # The prompt's place is part of its seed: the same prompt twice is to be drawn twice.
        parts = [
            (prompt, derive_seed(seed, place, number) % _MAX_SEED)
            for place, prompt in enumerate(prompts)
            for number in range(num_samples)
        ]
        tasks = [
            asyncio.create_task(self._sample_one(prompt, own_seed, settings, log))
            for prompt, own_seed in parts
        ]
        try:
            samples = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return [
            list(samples[start : start + num_samples])
            for start in range(0, len(samples), num_samples)
        ]

    async def _sample_one(
        self, prompt: Any, seed: int, settings: Mapping[str, Any], log: AnswerLog | None
    ) -> Sample:
        key = sha256(json.dumps([prompt, seed, settings], sort_keys=True).encode()).hexdigest()
        if log is not None and key in log.answers:
            return log.answers[key]
        sample = await self._asked(prompt, seed, settings)
        if log is not None:
            log.add(key, sample)
        return sample

    async def _asked(self, prompt: Any, seed: int, settings: Mapping[str, Any]) -> Sample:
        # A server that renders the prompt itself refuses a limit that goes beyond its context; its
        # own limit is what there is room for.
        is_chat = self.tokenizer is None and not isinstance(prompt, str)
        for limits in [{}, {"max_new_tokens": None}] if is_chat else [{}]:
            build = partial(self._request, prompt, seed, {**settings, **limits})
            try:
                sample: Sample = await self._pool.ask(build, partial(self._read, seed))
                return sample
            except NoRoomError as error:
                if not (is_chat or error.is_counted):
                    raise
        return replace(without_room(1)[0], seed=seed)

    def _request(
        self, prompt: Any, seed: int, settings: Mapping[str, Any], server: Server
    ) -> tuple[str, dict[str, Any]]:
        limit = settings["max_new_tokens"]
        body: dict[str, Any] = {"model": server.model}
        if self.tokenizer is None:
            if isinstance(prompt, str):
                path, body["prompt"] = "completions", prompt
            else:
                path, body["messages"] = "chat/completions", prompt
            if None not in (limit, server.max_length) and limit >= server.max_length:
                limit = None  # the server's own limit is what its context has room for
        else:
            path, ids = "completions", encode_prompt(self.tokenizer, prompt)
            takes_ids = server.dialect in TAKES_TOKEN_IDS
            body["prompt"] = ids if takes_ids else render_prompt(self.tokenizer, prompt)
            if server.max_length is not None:
                limit = _room(limit, len(ids), server.max_length)
        fields = sampling_fields(
            server.dialect, settings["temperature"], settings["top_p"], limit, seed
        )
        return path, {**body, **fields}

    def _read(self, seed: int, server: Server, answer: Mapping[str, Any]) -> Sample:
        choice = answer["choices"][0]
        text, reason = _storable(answer_text(choice)), choice.get("finish_reason")
        ids = choice.get("token_ids")
        source: TokenSource = "engine"
        if ids is None and self.tokenizer is not None:
            source = "retokenized"
            ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
            if reason == "stop" and self.tokenizer.eos_token_id is not None:
                ids.append(int(self.tokenizer.eos_token_id))
        elif ids is None:
            source = "unknown"
        elif not isinstance(ids, list) or not all(isinstance(token, int) for token in ids):
            raise TypeError("token_ids is no list of numbers")
        usage = answer.get("usage")
        count = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
        count = count if isinstance(count, int) else None
        return Sample(text, ids, reason != "stop", reason, seed, source, count)

    @staticmethod
    def _answers_path(folder: Path, seed: int) -> Path:
        return folder / f".answers-{seed}.jsonl"


def _room(limit: int, prompt_length: int, context: int) -> int:
    if prompt_length >= context:
        raise NoRoomError(f"a prompt of {prompt_length} tokens fills a context of {context}", True)
    return min(limit, context - prompt_length)


def _storable(text: Any) -> str:
    """A text that can be written: half characters, which JSON can carry, are replaced."""
    if not isinstance(text, str):
        raise TypeError(f"its text is of type {type(text).__name__}")
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
