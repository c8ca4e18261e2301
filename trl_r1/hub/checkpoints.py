"""Pushes checkpoints while a stage trains: each on a branch `step-N` of the stage's repository.

What is pushed is what loads - weights, config, tokenizer - never the optimizer's state, which is of
use only here. A checkpoint's files are linked into an outbox beside it, so that Trainer may drop it
while it is on its way, and a thread sends them. Nothing waits for it, and no failure of it ends a
training: what is still in the outbox when a stage is done, or after a kill, is sent by the runner.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trl_r1.hub.adapters import CONFIG, checkpoint_config
from trl_r1.hub.client import hub_errors, make_api, token_name
from trl_r1.pipeline.lock import RunLock
from trl_r1.pipeline.mistakes import PipelineError

OUTBOX = ".outbox"
_KEPT_OUT = ("optimizer", "scheduler", "rng_state", "training_args", "global_step", "scaler")
_SENT = (".safetensors", ".json", ".jinja", ".model", ".txt")
# Threads of one process don't exclude one another by a lock of the system.
_one_sender = threading.Lock()
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckpointRepo:
    """Where the checkpoints of a stage go.

    Attributes:
        name: `owner/name`, or a name alone: then the token's account is the owner.
        private: whether a new repository is private.
        token: over that of `hf auth login`.
    """

    name: str
    private: bool = False
    token: str | None = None

    def __repr__(self) -> str:
        return f"CheckpointRepo({self.name!r}, private={self.private})"


def checkpoint_repo(values: Mapping[str, Any], default: str) -> CheckpointRepo | None:
    """Where a stage's recipe has its checkpoints go; None where it has none pushed.

    Args:
        values: its keys: `push_to_hub`, and those of TRL that begin with `hub_`.
        default: name where the recipe has no `hub_model_id`.
    """
    if not values.get("push_to_hub"):
        return None
    return CheckpointRepo(
        values.get("hub_model_id") or default,
        bool(values.get("hub_private_repo")),
        values.get("hub_token"),
    )


class PushCheckpoints(TrainerCallback):
    """Puts each checkpoint into the outbox and has a thread send it.

    Args:
        outbox: folder `.outbox` of the stage.
        repo: where they go.
    """

    def __init__(self, outbox: Path, repo: CheckpointRepo) -> None:
        self.outbox = outbox
        self.repo = repo

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        checkpoint = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        if not state.is_world_process_zero or not checkpoint.is_dir():
            return
        if put_in_outbox(checkpoint, self.outbox, state.global_step):
            threading.Thread(target=self._send, daemon=True).start()

    def _send(self) -> None:
        try:
            send_outbox(self.outbox, self.repo, _log.info)
        except PipelineError as error:
            _log.warning("%s. The training goes on; it is sent when the stage is done.", error)
        except Exception:  # noqa: BLE001 - see below
            # A thread of a training that lasts days: whatever a library raises is logged, and the
            # checkpoint stays in the outbox.
            _log.exception("a checkpoint was not pushed; it is sent when the stage is done")


def put_in_outbox(checkpoint: Path, outbox: Path, step: int) -> bool:
    """Link a checkpoint's files into the outbox; whether it holds weights that load anywhere."""
    files = [path for path in sorted(checkpoint.iterdir()) if _is_sent(path)]
    if not any(path.suffix == ".safetensors" for path in files):
        _log.warning("%s has no safetensors, so it is not pushed", checkpoint.name)
        return False
    partial = outbox / f".step-{step}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for path in files:
        try:
            os.link(path, partial / path.name)
        except OSError:  # a file system without links
            shutil.copyfile(path, partial / path.name)
    target = outbox / f"step-{step}"
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    return True


def send_outbox(outbox: Path, repo: CheckpointRepo, say: Callable[[str], None]) -> None:
    """Send what is in the outbox, the oldest first; each goes when it has arrived.

    Args:
        outbox: the folder; it need not exist.
        repo: where to.
        say: gets a line for each.

    Raises:
        HubError: the Hub refuses, or can't be reached; what was not sent stays.
    """
    with _one_sender:
        if not _waiting(outbox):
            return
        with RunLock(outbox / ".lock", wait_seconds=60):
            repo_id = repo.name if "/" in repo.name else f"{token_name(repo.token)}/{repo.name}"
            while waiting := _waiting(outbox):  # more may come while one is on its way
                _send_one(waiting[0], repo_id, repo)
                shutil.rmtree(waiting[0])
                say(f"{repo_id}: checkpoint pushed on branch {waiting[0].name}")
            (outbox / ".lock").unlink()
        with suppress(OSError):  # a checkpoint that has come just now
            outbox.rmdir()


def _waiting(outbox: Path) -> list[Path]:
    if not outbox.is_dir():
        return []
    folders = [p for p in outbox.iterdir() if p.is_dir() and re.fullmatch(r"step-[0-9]+", p.name)]
    return sorted(folders, key=lambda path: int(path.name.rpartition("-")[2]))


def _send_one(folder: Path, repo_id: str, repo: CheckpointRepo) -> None:
    from huggingface_hub import CommitOperationAdd

    files: dict[str, str | bytes] = {p.name: str(p) for p in sorted(folder.iterdir())}
    config = checkpoint_config(folder, folder.parents[2])  # RUN/STAGE/.outbox/step-N
    if config is not None:
        files[CONFIG] = config
    api = make_api(repo.token)
    with hub_errors(f"pushing {folder.name} to {repo_id}"):
        api.create_repo(repo_id, private=repo.private or None, exist_ok=True)
        api.create_branch(repo_id, branch=folder.name, exist_ok=True)
        api.create_commit(
            repo_id,
            [CommitOperationAdd(name, content) for name, content in files.items()],
            commit_message=f"trl_r1: checkpoint of {folder.name.replace('-', ' ')}",
            revision=folder.name,
        )


def _is_sent(path: Path) -> bool:
    return path.is_file() and path.suffix in _SENT and not path.name.startswith(_KEPT_OUT)
