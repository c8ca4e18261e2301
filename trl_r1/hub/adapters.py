"""The base that an adapter's `adapter_config.json` names: a folder here, a repository on the Hub.

PEFT writes the base's absolute path. On the Hub that would name a folder of this machine, and be of
no use: there the file names the base's repository and commit, so that
`AutoPeftModelForCausalLM.from_pretrained("me/x")` works. What is pulled names the folder again in
which the base was put.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trl_r1.hub.card_usage import adapter_base, adapter_config
from trl_r1.hub.record import HUB_FILE, HubRecord, read_hub_record
from trl_r1.hub.subjects import Subject, hash_of
from trl_r1.pipeline.ledger import read_record, write_text

CONFIG = "adapter_config.json"
_BASE = "base_model_name_or_path"


def config_for_the_hub(subject: Subject) -> bytes | None:
    """An artifact's `adapter_config.json` as it is pushed; None where it is no adapter.

    A base that is not on the Hub is named by run, stage and artifact: no repository has such a
    name, so nothing of a stranger's is ever loaded in its place.
    """
    config = adapter_config(subject.folder)
    if not config:
        return None
    base = adapter_base(subject)
    if base is not None:
        config.update({_BASE: base[0], "revision": base[1]})
    elif Path(str(config.get(_BASE) or "")).is_absolute():
        stage, artifact = Path(str(config[_BASE])).parts[-2:]
        config.update({_BASE: f"{subject.run}/{stage}/{artifact}", "revision": None})
    return _text(config).encode()


def checkpoint_config(folder: Path, run_dir: Path) -> bytes | None:
    """The `adapter_config.json` of a checkpoint as it is pushed; None where it names no folder.

    While a stage trains, a base counts as being on the Hub if it was pushed as it is now.

    Args:
        folder: of the checkpoint.
        run_dir: folder of the run.
    """
    config = adapter_config(folder)
    base = Path(str(config.get(_BASE) or ""))
    if not base.is_absolute():
        return None
    stage, artifact = base.parts[-2:]
    config.update({_BASE: f"{run_dir.resolve().name}/{stage}/{artifact}", "revision": None})
    known = read_hub_record(run_dir / HUB_FILE)
    record = read_record(base.parent) if base.parents[1].resolve() == run_dir.resolve() else None
    for repo in known.repos.values() if known and record else ():
        is_it = (repo.repo_type, repo.stage, repo.artifact) == ("model", stage, artifact)
        if is_it and repo.hash == hash_of(record, artifact):
            config.update({_BASE: repo.repo_id, "revision": repo.commit})
    return _text(config).encode()


def put_local_base(folder: Path, pushed: HubRecord, run_dir: Path) -> None:
    """Have an adapter that was fetched name its base in the run, where the run holds that.

    Args:
        folder: of the adapter.
        pushed: what lies where.
        run_dir: folder of the run.
    """
    config = adapter_config(folder)
    named = str(config.get(_BASE) or "")
    for repo in pushed.repos.values():
        is_it = repo.repo_type == "model" and repo.stage and repo.repo_id == named
        if is_it and config.get("revision") in (None, repo.commit):
            base = run_dir.absolute() / repo.stage / repo.artifact
            config.update({_BASE: str(base), "revision": None})
            write_text(folder / CONFIG, _text(config))
            return


def _text(config: dict[str, Any]) -> str:
    return json.dumps(config, indent=2, sort_keys=True) + "\n"
