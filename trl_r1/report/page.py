"""The page: data and assets in one HTML document that asks for nothing and runs nothing else.

Texts of models are hostile: they stand in a JSON block, in which no angle bracket, ampersand or
line separator is left, and the script puts them into the page as text only. The content security
policy allows this script and this style, by their hashes, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.resources import files
from pathlib import Path
from typing import Any

from trl_r1 import __version__
from trl_r1.pipeline.ledger import write_text
from trl_r1.report.curves import stage_curves
from trl_r1.report.evaluations import evaluation_table, is_evaluation
from trl_r1.report.lineage import draw_lineage
from trl_r1.report.outcomes import sampling_outcomes
from trl_r1.report.reading import Run, visible
from trl_r1.report.samples import choose_samples
from trl_r1.report.stage_table import SCORES, table_rows
from trl_r1.trust.secrets import mask

_SCRIPTS = ("charts.js", "samples.js", "page.js")


def collect(runs: Sequence[Run]) -> dict[str, Any]:
    """What the page shows of some runs, as plain data.

    Args:
        runs: the runs; notes are added to them.
    """
    shown: list[dict[str, Any]] = []
    for run in runs:
        curves: dict[str, Any] = {}
        for stage in run.stages:
            own = stage_curves(stage, run.notes)
            if own is not None:
                curves[visible(stage.name)] = own
        shown.append(
            {
                "label": run.label,
                "pipeline": run.pipeline,
                "is_evaluation": is_evaluation(run),
                "versions": _versions(run),
                "table": table_rows(run),
                "outcomes": sampling_outcomes(run),
                "lineage": draw_lineage(run),
                "curves": curves,
            }
        )
    samples, evaluations = choose_samples(runs), evaluation_table(runs)
    for entry, run in zip(shown, runs, strict=True):
        entry["notes"] = list(dict.fromkeys(map(visible, run.notes)))
    return {"runs": shown, "samples": samples, "evaluations": evaluations}


def _versions(run: Run) -> str:
    newest = next((s.record.versions for s in reversed(run.stages) if s.record.versions), {})
    return visible(", ".join(f"{name} {version}" for name, version in newest.items()))


def render(data: dict[str, Any]) -> str:
    """The document.

    Args:
        data: as `collect` gives it.
    """
    import jinja2

    style = _asset("page.css")
    script = "\n".join(map(_asset, _SCRIPTS))
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    scores = [heading for _, heading, *_ in SCORES]
    used = [any(row["cells"][i]["text"] for r in data["runs"] for row in r["table"]) for i in
            range(len(scores))]  # fmt: skip
    for_script = {
        "samples": data["samples"],
        "runs": [
            {
                "label": run["label"],
                "curves": run["curves"],
                "boxes": [
                    {"name": box["name"], "facts": box["facts"]}
                    for box in (run["lineage"] or {"boxes": []})["boxes"]
                ],
            }
            for run in data["runs"]
        ],
    }
    return environment.from_string(_asset("page.html")).render(
        runs=data["runs"],
        scores=scores,
        used=used,
        evaluations=data["evaluations"],
        is_evaluation=all(run["is_evaluation"] for run in data["runs"]),
        sources=data["samples"]["sources"],
        title=" and ".join(run["label"] for run in data["runs"][:3]),
        made=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        version=__version__,
        style=_markup(style),
        script=_markup(script),
        data=_markup(json_block(for_script)),
        policy=f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'",
    )


def json_block(data: Any) -> str:
    """JSON that can stand inside of a script element, whatever its texts hold."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def write_report(data: dict[str, Any], path: Path) -> int:
    """Write the document in one piece; returns its size in bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, mask(render(data)))
    return path.stat().st_size


def _asset(name: str) -> str:
    return (files("trl_r1.report") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _markup(text: str) -> Any:
    from markupsafe import Markup

    return Markup(text)
