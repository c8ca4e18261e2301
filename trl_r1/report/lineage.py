"""The lineage of a run as a drawing: stages in layers, what flows from one to another as lines.

Layers are the longest way from a start; a line over several layers runs through places of its own,
so that it crosses no box. Left out: styles, which are the page's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from statistics import fmean
from typing import Any

from trl_r1.report.reading import Run, time_text, visible
from trl_r1.report.stage_table import stage_roles

BOX, HEIGHT, GAP, LAYER = 112.0, 40.0, 10.0, 78.0
_LANE = 12.0
Edge = tuple[str, str, str]


def draw_lineage(run: Run) -> dict[str, Any] | None:
    """Boxes, lines and size of a run's lineage; None where there is no stage.

    Args:
        run: the run.
    """
    if not run.stages:
        return None
    names = [stage.name for stage in run.stages]
    edges, outside = _edges(run)
    nodes = [*outside, *names]
    layers = _layers(nodes, edges)
    chains, rows = _chains(edges, layers, nodes)
    centres = _place(rows, chains)
    width = max(centres[n] + _width(n, nodes) / 2 for row in rows for n in row) + GAP
    roles = stage_roles(run)
    records = {stage.name: stage.record for stage in run.stages}
    boxes = []
    for name in nodes:
        record = records.get(name)
        boxes.append(
            {
                "name": visible(name),
                "label": _short(visible(name)),
                "x": round(centres[name] - BOX / 2, 1),
                "y": _top(layers[name]),
                "kind": record.stage if record else "outside",
                "below": (record.stage.replace("_", " ") if record else "from outside"),
                "facts": _facts(record, roles[name]) if record else [["source", visible(name)]],
                "open": bool(record and record.status != "finished"),
            }
        )
    lines = [
        {"kind": role, "d": _path(chain, centres, layers), "from": visible(a), "to": visible(b)}
        for (a, b, role), chain in zip(edges, chains, strict=True)
    ]
    height = _top(max(layers.values())) + HEIGHT + GAP
    return {"boxes": boxes, "lines": lines, "width": round(width, 1), "height": height}


def _edges(run: Run) -> tuple[list[Edge], list[str]]:
    """Lines between stages, and the weights and data that come from outside of the run."""
    names = {stage.name for stage in run.stages}
    found: dict[Edge, None] = {}
    outside: dict[str, None] = {}
    for stage in run.stages:
        for item in stage.record.inputs:
            if item.stage in names and item.stage != stage.name:
                found[(str(item.stage), stage.name, item.role)] = None
            elif item.stage is None and item.role == "weights" and item.source not in names:
                outside[item.source] = None
                found[(item.source, stage.name, item.role)] = None
    return list(found), list(outside)


def _layers(nodes: list[str], edges: list[Edge]) -> dict[str, int]:
    layers = dict.fromkeys(nodes, 0)
    # A damaged ledger may hold a circle; as many rounds as there are stages are enough without one.
    for _ in nodes:
        for a, b, _role in edges:
            if layers[a] + 1 > layers[b] and layers[a] + 1 < len(nodes):
                layers[b] = layers[a] + 1
    return layers


def _chains(
    edges: list[Edge], layers: Mapping[str, int], nodes: list[str]
) -> tuple[list[list[str]], list[list[str]]]:
    """Each line as the places it runs through, and the places of each layer from left to right."""
    rows: list[list[str]] = [[] for _ in range(max(layers.values()) + 1)]
    for name in nodes:
        rows[layers[name]].append(name)
    chains = []
    for a, b, role in edges:
        # Long lines of one kind from one box share their way.
        middle = [f"\0{a}\0{role}\0{layer}" for layer in range(layers[a] + 1, layers[b])]
        for offset, place in enumerate(middle, layers[a] + 1):
            if place not in rows[offset]:
                rows[offset].append(place)
        chains.append([a, *middle, b])
    for _ in range(6):
        for order in (rows, rows[::-1]):
            _sort_by_neighbours(order, chains)
    return chains, rows


def _neighbours(chains: list[list[str]]) -> dict[str, set[str]]:
    near: dict[str, set[str]] = {}
    for chain in chains:
        for a, b in pairwise(chain):
            near.setdefault(a, set()).add(b)
            near.setdefault(b, set()).add(a)
    return near


def _sort_by_neighbours(rows: list[list[str]], chains: list[list[str]]) -> None:
    near = _neighbours(chains)
    for before, row in pairwise(rows):
        share = {name: (i + 0.5) / len(before) for i, name in enumerate(before)}
        own = {name: (i + 0.5) / len(row) for i, name in enumerate(row)}
        wanted = {
            name: fmean([share[m] for m in near.get(name, ()) if m in share] or [own[name]])
            for name in row
        }
        row.sort(key=wanted.__getitem__)


def _place(rows: list[list[str]], chains: list[list[str]]) -> dict[str, float]:
    """The middle of each place: as near to its neighbours as boxes beside it allow."""
    near, centres = _neighbours(chains), {}
    nodes = [name for row in rows for name in row if not name.startswith("\0")]
    for row in rows:
        left = 0.0
        for name in row:
            width = _width(name, nodes)
            centres[name] = left + width / 2
            left += width + GAP
    for _ in range(30):
        for row in rows:
            wanted = [
                fmean([centres[m] for m in near.get(name, ())] or [centres[name]]) for name in row
            ]
            _settle(row, wanted, centres, nodes)
    shift = GAP - min(centres[n] - _width(n, nodes) / 2 for row in rows for n in row)
    return {name: centre + shift for name, centre in centres.items()}


def _settle(
    row: list[str], wanted: list[float], centres: dict[str, float], nodes: list[str]
) -> None:
    """Give a row its wanted places, pushed apart to both sides alike."""
    widths = [_width(name, nodes) for name in row]
    right, left = list(wanted), list(wanted)
    for i in range(1, len(row)):
        right[i] = max(right[i], right[i - 1] + (widths[i] + widths[i - 1]) / 2 + GAP)
    for i in range(len(row) - 2, -1, -1):
        left[i] = min(left[i], left[i + 1] - (widths[i] + widths[i + 1]) / 2 - GAP)
    for name, a, b in zip(row, left, right, strict=True):
        centres[name] = (a + b) / 2


def _width(name: str, nodes: list[str]) -> float:
    return _LANE if name.startswith("\0") else BOX


def _top(layer: int) -> float:
    return GAP + layer * LAYER


def _path(chain: list[str], centres: Mapping[str, float], layers: Mapping[str, int]) -> str:
    x, y = centres[chain[0]], _top(layers[chain[0]]) + HEIGHT
    path = [f"M{x:.1f} {y:.1f}"]
    for name in chain[1:]:
        layer = layers[name] if name in layers else int(name.rsplit("\0", 1)[1])
        end_x, end_y = centres[name], _top(layer)
        bend = (y + end_y) / 2
        path.append(f"C{x:.1f} {bend:.1f} {end_x:.1f} {bend:.1f} {end_x:.1f} {end_y:.1f}")
        if name not in layers:
            path.append(f"V{end_y + HEIGHT:.1f}")
        x, y = end_x, end_y + (0 if name in layers else HEIGHT)
    return "".join(path)


def _short(name: str) -> str:
    return name if len(name) <= 15 else f"{name[:7]}\u2026{name[-7:]}"


def _facts(record: Any, role: str) -> list[list[str]]:
    """What the ledger says of a stage, as rows of a heading and a text."""
    facts = [["stage", record.stage], ["status", record.status]]
    facts += [["in the paper", role]] if role else []
    facts += [["time", time_text(record)], ["seed", str(record.seed)]]
    for item in record.inputs:
        mark = f" \u00b7 {item.hash[:12]}" if item.hash else ""
        facts.append([item.role, f"{item.source}{mark}"])
    for name, artifact in record.artifacts.items():
        facts.append([f"made: {name}", str(artifact.get("hash") or "")])
    facts.append(["versions", ", ".join(f"{k} {v}" for k, v in record.versions.items())])
    settings = {k: v for k, v in record.recipe.items() if k != "stage"}
    facts.append(["settings", json.dumps(settings, indent=1, ensure_ascii=False, default=str)])
    return [[visible(key), visible(text)[:6000]] for key, text in facts if text]
