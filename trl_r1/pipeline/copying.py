"""`trl-r1 copy`: a pipeline's recipes in a folder of one's own, to edit."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from trl_r1.pipeline.mistakes import PipelineError
from trl_r1.pipeline.yaml_files import PIPELINE_FILE


def copy_pipeline(folder: Path, shown: str, target: Path) -> None:
    """Copy a pipeline's folder, in one piece.

    Args:
        folder: the pipeline's.
        shown: the folder as the user named it.
        target: a folder that does not exist yet; the copy is named after it.

    Raises:
        PipelineError: there is no such folder, `target` is there or inside of it, or it can't be
            written.
    """
    if target.exists():
        raise PipelineError(f"{target} exists already; name a folder that does not")
    if not folder.is_dir():
        raise PipelineError(f"{shown}: no such folder")
    if target.resolve().is_relative_to(folder.resolve()):
        raise PipelineError(f"{target} is inside of {shown}; name a folder beside it")
    partial = target.with_name(f".{target.name}.partial")
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(folder, partial, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        _name_after_folder(partial / PIPELINE_FILE, target.resolve().name)
        partial.rename(target)
    except OSError as error:
        raise PipelineError(f"can't copy to {target}: {error}") from error


def _name_after_folder(header: Path, name: str) -> None:
    """Give a copied pipeline its folder's name, so that it does not share the original's runs."""
    if not header.is_file():
        return
    text = header.read_text(encoding="utf-8")
    # Without a line the folder's name counts, too; one is written where YAML takes it as text.
    line = f"name: {name}\n" if re.fullmatch(r"[A-Za-z][A-Za-z0-9._-]*", name) else ""
    header.write_text(re.sub(r"(?m)^name:.*\n?", line, text, count=1), encoding="utf-8")
