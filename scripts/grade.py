#!/usr/bin/env python
"""False positives and false negatives of a reward on a labelled file.

    python scripts/grade.py FILE.jsonl [...] [--reward math_answer] [--args '{"prefilled": true}']

A line is a JSON object with `gold`, `pred` (the completion) and `label` (true where it is right).
Other keys go to the reward as columns. With --box a `pred` that is an answer alone, without a box
or an "Answer:" around it, is put in one. A row graded None counts as wrong, and is counted by
itself too. Exit status 1 where the errors exceed --max_fp or --max_fn.

Labels of different sources contradict each other. --contradicted names a file of such rows (`gold`,
`pred`, `label` and `why`): they are graded and shown like all others, and the agreement is printed
a second time without them. For the pairs taken from the tests of other graders:

    python scripts/grade.py grader_unit_pairs.jsonl \\
        --args '{"extraction": "lenient", "accept_unevaluated": true}' \\
        --contradicted scripts/grader_unit_pairs_contradicted.jsonl
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from trl_r1.verification.pooled_reward import pooled

_MAX_SHOWN = 200


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.jsonl")
    parser.add_argument("--reward", default="math_answer", help="name or reference")
    parser.add_argument("--args", type=json.loads, default={}, help="its arguments, as JSON")
    parser.add_argument("--max_fp", type=int, help="false positives allowed, over all files")
    parser.add_argument("--max_fn", type=int, help="false negatives allowed, over all files")
    parser.add_argument("--box", action="store_true", help="put answers that stand alone in a box")
    parser.add_argument("--contradicted", type=Path, help="rows whose label others contradict")
    parser.add_argument("--quiet", action="store_true", help="counts only, not the rows")
    options = parser.parse_args()
    reward = pooled(options.reward, args=options.args)
    excused = read(options.contradicted) if options.contradicted else []
    contradicted = {row_key(row) for row in excused}
    num_positives = num_negatives = 0
    for path in options.files:
        rows = read(path)
        if options.box:
            rows = [{**row, "completion": boxed(row["pred"])} for row in rows]
        false_positives, false_negatives = grade(path, rows, reward, options.quiet, contradicted)
        num_positives += false_positives
        num_negatives += false_negatives
    too_many = [
        limit is not None and number > limit
        for number, limit in ((num_positives, options.max_fp), (num_negatives, options.max_fn))
    ]
    return int(any(too_many))


def boxed(answer: str) -> str:
    around = r"\\boxed|####|\banswer\b|\bA:|\n"
    is_alone = len(answer) <= 200 and not re.search(around, answer, re.IGNORECASE)
    return rf"\boxed{{{answer}}}" if is_alone else answer


def row_key(row: dict[str, Any]) -> str:
    return json.dumps([row["gold"], row["pred"], row["label"]])


def grade(
    path: Path, rows: list[dict[str, Any]], reward: Any, quiet: bool, contradicted: set[str]
) -> tuple[int, int]:
    """Grade a file and print what differs from its labels.

    Returns:
        Number of false positives and of false negatives.
    """
    taken = ("gold", "pred", "label", "completion")
    columns = {
        key: [row.get(key) for row in rows] for row in rows[:1] for key in row if key not in taken
    }
    columns["solution"] = [row["gold"] for row in rows]
    completions = [row.get("completion", row["pred"]) for row in rows]
    pending = reward.submit(completions, **columns)
    rewards = pending.result()
    wrong: dict[str, list[int]] = {"false positive": [], "false negative": []}
    num_none = 0
    for number, (row, value) in enumerate(zip(rows, rewards, strict=True)):
        num_none += value is None
        is_right = value is not None and value > 0.5
        if is_right != bool(row["label"]):
            wrong["false positive" if is_right else "false negative"].append(number)
    false_positives, false_negatives = map(len, wrong.values())
    agreement = 1 - (false_positives + false_negatives) / len(rows)
    print(
        f"{path}: {len(rows)} rows: {false_positives} false positives, {false_negatives} false "
        f"negatives, agreement {agreement:.4f}, {num_none} graded None"
    )
    left = [n for n, row in enumerate(rows) if row_key(row) not in contradicted]
    if len(left) < len(rows):
        num_wrong = len(set(left) & {*wrong["false positive"], *wrong["false negative"]})
        print(
            f"  without {len(rows) - len(left)} rows whose label is contradicted: "
            f"{len(left)} rows, "
            f"{num_wrong} wrong, agreement {1 - num_wrong / len(left):.4f}"
        )
    if not quiet:
        for kind, numbers in wrong.items():
            for number in numbers:
                row = rows[number]
                verdict = pending.verdicts[number]
                note = "" if verdict == "ok" else f"  ({verdict})"
                print(f"  {kind}, line {number + 1}: {row['gold']!r} | {tail(row['pred'])}{note}")
    return false_positives, false_negatives


def read(path: Path) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        row = json.loads(line)
        missing = [key for key in ("gold", "pred", "label") if key not in row]
        if missing:
            raise SystemExit(f"{path}:{number}: it has no {', '.join(missing)}")
        rows.append(row)
    if not rows:
        raise SystemExit(f"{path}: it has no rows")
    return rows


def tail(text: str) -> str:
    return repr(text if len(text) <= _MAX_SHOWN else "..." + text[-_MAX_SHOWN:])


if __name__ == "__main__":
    sys.exit(main())
