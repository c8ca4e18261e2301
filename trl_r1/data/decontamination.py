"""10-gram decontamination: rows that share a run of ten words with an evaluation problem go.

The paper's rule (arXiv 2501.12948, supplement, "Decontamination"). White space, case, punctuation
and LaTeX layout don't count (`texts.words`). Problems of fewer than ten words, which no 10-gram can
find, hit where a row's problem, or a paragraph of it, ends with the whole of one, or is the same
without any punctuation. Every hit is compared word by word, so that no row goes by a collision of
hashes, and reported. Left out: paraphrases in other words, which no n-gram finds.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from trl_r1.data.card import DataLog
from trl_r1.data.ngrams import Array, WordHashes, run_hashes
from trl_r1.data.scan import scan
from trl_r1.data.texts import (
    TextColumns,
    operators,
    problem_texts,
    response_texts,
    rows_of,
    squeezed,
    text_columns,
    words,
)

if TYPE_CHECKING:
    from datasets import Dataset

RUN_LENGTH = 10
# `Question:` or `Solve the following problem.` may come before a short problem.
_MAX_WORDS_BEFORE = 8
# Letters of a problem without punctuation: with fewer, sameness is chance.
_MIN_SQUEEZED = 8
_WORDS_SHOWN = 300  # characters


@dataclass(frozen=True)
class Hit:
    """A row that overlaps with an evaluation problem.

    Attributes:
        row: its number.
        evaluation: name of the evaluation set.
        problem: number of the problem there.
        rule: `n-gram`, `short` or `same`.
        coverage: share of the problem's n-grams that the row has; 1.0 by the other rules. Near 1
            the row holds the problem, near 0 a phrase of it.
        words: the first run of words that is shared.
        num_problems: problems that the row overlaps with; this is the one of the most coverage.
        text: beginning of the row's problem.
    """

    row: int
    evaluation: str
    problem: int
    rule: str
    coverage: float
    words: str
    num_problems: int
    text: str


class EvaluationIndex:
    """The problems of evaluation sets, by their runs of words.

    Args:
        problems: texts of each set, by its name.
        run_length: words of a run.
    """

    def __init__(self, problems: Mapping[str, Sequence[str]], run_length: int = RUN_LENGTH) -> None:
        self.run_length = run_length
        self.names = list(problems)
        self.num_runs: dict[tuple[int, int], int] = {}
        self.runs: dict[tuple[str, ...], list[tuple[int, int]]] = {}
        # Problems, and their operators, by all of their words.
        self.short: dict[tuple[str, ...], list[tuple[tuple[int, int], str]]] = {}
        self.same: dict[str, list[tuple[tuple[int, int], str]]] = {}
        known = WordHashes()
        hashes = []
        for number, texts in enumerate(problems.values()):
            for index, text in enumerate(texts):
                tokens = words(text)
                self._add((number, index), tokens, text)
                hashes.append(run_hashes(known.of(tokens), run_length))
        self.hashes = np.unique(np.concatenate(hashes or [np.empty(0, np.uint64)]))

    def _add(self, place: tuple[int, int], tokens: list[str], text: str) -> None:
        n = self.run_length
        runs = {tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)}
        self.num_runs[place] = len(runs)
        for run in runs:
            self.runs.setdefault(run, []).append(place)
        signs = operators(text)
        if tokens and not runs:
            self.short.setdefault(tuple(tokens), []).append((place, signs))
        whole = squeezed(tokens)
        if len(whole) >= _MIN_SQUEEZED:
            self.same.setdefault(whole, []).append((place, signs))

    def whole(self, tokens: Sequence[str], text: str) -> tuple[str, tuple[int, int], str] | None:
        """The rule, the problem and its words, where a paragraph holds one as a whole.

        Other operators make another problem of the same words (2 + 2 and 2 - 2); none at all are
        taken for lost punctuation.
        """
        for length in range(1, min(self.run_length, len(tokens) + 1)):
            tail = tuple(tokens[-length:])
            if len(tokens) - length <= _MAX_WORDS_BEFORE and tail in self.short:
                place = _with_operators(self.short[tail], operators(text))
                if place is not None:
                    return "short", place, " ".join(tail)
        found = self.same.get(squeezed(tokens))
        place = _with_operators(found, operators(text)) if found else None
        return None if place is None else ("same", place, " ".join(tokens))


def _with_operators(
    problems: Sequence[tuple[tuple[int, int], str]], signs: str
) -> tuple[int, int] | None:
    """The first of the problems that has these operators, or where either has none."""
    fitting = (place for place, own in problems if not own or not signs or signs.endswith(own))
    return next(fitting, None)


@dataclass
class Decontamination:
    """Result of `decontaminate`.

    Attributes:
        rows: what is left.
        hits: one of each row that overlaps, dropped or not, in order.
        evaluations: names of the evaluation sets and their problems.
        num_dropped: rows that went.
    """

    rows: Dataset
    hits: list[Hit]
    evaluations: dict[str, int]
    num_dropped: int


def decontaminate(
    rows: Dataset,
    evaluations: Mapping[str, Dataset | Sequence[str]],
    columns: Sequence[str] = (),
    run_length: int = RUN_LENGTH,
    min_coverage: float = 0.0,
    log: DataLog | None = None,
    workspace: Path | None = None,
    num_proc: int = 1,
) -> Decontamination:
    """The rows without those that overlap with a problem of an evaluation set.

    Args:
        rows: training rows.
        evaluations: evaluation sets by name: texts, or a data set with a column of problems.
        columns: looked at in the rows; by default problem and response.
        run_length: words of a run; the paper's ten.
        min_coverage: share of a problem's n-grams that a row needs to be dropped; 0 for the paper's
            rule, a single one. Rows under it stay in the report.
        log: gets a record of the step.
        workspace: folder for what a killed run does not have to do again.
        num_proc: processes.

    Raises:
        ValueError: an evaluation set without problems, wrong columns or numbers.
    """
    texts = text_columns(rows.column_names, columns)
    problems = {name: _problems(name, given) for name, given in evaluations.items()}
    if not problems:
        raise ValueError("decontaminate: name at least one evaluation set")
    if run_length < 1 or not 0 <= min_coverage <= 1:
        raise ValueError(
            f"decontaminate: run_length is {run_length} and min_coverage {min_coverage}; the first "
            "is at least 1 word, the second a share from 0 to 1"
        )
    index = EvaluationIndex(problems, run_length)
    log = log or DataLog()
    settings = {
        "against": {name: len(given) for name, given in problems.items()},
        "columns": texts.names,
        "run_length": run_length,
        "min_coverage": min_coverage,
    }
    with log.step("decontamination", len(rows), settings) as record:
        tables = scan(rows, texts.names, _FindHits(index, texts), workspace, num_proc)
        hits = [Hit(**json.loads(text)) for t in tables for text in t["hit"].to_pylist()]
        is_kept = np.ones(len(rows), dtype=bool)
        is_kept[[hit.row for hit in hits if hit.coverage >= min_coverage]] = False
        kept = rows.select(np.flatnonzero(is_kept))
        record.rows_after = len(kept)
        num_dropped = len(rows) - len(kept)
        record.text = (
            f"dropped {num_dropped:,} rows that share {run_length} words in a row with a problem "
            f"of {', '.join(problems)}"
        )
        if min_coverage:
            record.text += f", at least {min_coverage:.0%} of it"
    counts = {name: len(given) for name, given in problems.items()}
    return Decontamination(kept, hits, counts, num_dropped)


def _problems(name: str, given: Dataset | Sequence[str]) -> list[str]:
    from datasets import Dataset

    if isinstance(given, Dataset):
        try:
            texts = text_columns(given.column_names)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        asked = TextColumns(problem=texts.problem, turns=texts.turns)
        columns = given.select_columns(asked.names)
        found = ["\n".join(problem_texts(row, asked)) for row in columns]
    else:
        found = list(given)
    if not any(words(text) for text in found):
        raise ValueError(f"{name}: this evaluation set has no problems")
    return found


@dataclass(frozen=True)
class _FindHits:
    index: EvaluationIndex
    texts: TextColumns

    def __call__(self, batch: dict[str, list[Any]], start: int) -> pa.Table:
        hits = [json.dumps(asdict(hit)) for hit in self._hits(rows_of(batch), start)]
        return pa.table({"hit": pa.array(hits, pa.string())})

    def _hits(self, rows: list[dict[str, Any]], start: int) -> Iterator[Hit]:
        asked = [problem_texts(row, self.texts) for row in rows]
        tokens: list[str] = []
        owners: list[int] = []
        ends: list[int] = []
        found: dict[int, dict[tuple[int, int], set[tuple[str, ...]]]] = defaultdict(dict)
        whole: dict[int, tuple[str, tuple[int, int], str]] = {}
        for number, row in enumerate(rows):
            problems = [words(text) for text in asked[number]]
            for own in (*problems, *map(words, response_texts(row, self.texts))):
                tokens += own
                owners.append(number)
                ends.append(len(tokens))
            held = self._whole(asked[number], problems)
            if held is not None:
                whole[number] = held
        for owner, run in self._shared_runs(tokens, owners, ends):
            for place in self.index.runs[run]:
                found[owner].setdefault(place, set()).add(run)
        for number in sorted({*found, *whole}):
            text = asked[number][0][:_WORDS_SHOWN] if asked[number] else ""
            yield self._hit(start + number, found.get(number, {}), whole.get(number), text)

    def _whole(
        self, texts: Sequence[str], problems: Sequence[list[str]]
    ) -> tuple[str, tuple[int, int], str] | None:
        """A problem that one of the texts, given with their words, is or has as a paragraph."""
        for text, tokens in zip(texts, problems, strict=True):
            lines = text.split("\n")
            paragraphs = [(words(line), line) for line in lines] if len(lines) > 1 else []
            for part, own in ((tokens, text), *paragraphs):
                held = self.index.whole(part, own)
                if held is not None:
                    return held
        return None

    def _shared_runs(
        self, tokens: list[str], owners: list[int], ends: list[int]
    ) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Rows and their runs of words that an evaluation problem has, too."""
        n = self.index.run_length
        runs = run_hashes(WordHashes().of(tokens), n)
        places = np.flatnonzero(_is_in(runs, self.index.hashes))
        texts = np.searchsorted(ends, places, side="right")
        for place, text in zip(places.tolist(), texts.tolist(), strict=True):
            run = tuple(tokens[place : place + n])
            if place + n <= ends[text] and run in self.index.runs:
                yield owners[text], run

    def _hit(
        self,
        row: int,
        found: Mapping[tuple[int, int], set[tuple[str, ...]]],
        whole: tuple[str, tuple[int, int], str] | None,
        text: str,
    ) -> Hit:
        shares = {place: len(runs) / self.index.num_runs[place] for place, runs in found.items()}
        num_problems = len({*found, *([whole[1]] if whole else [])})
        if whole is not None:
            rule, (number, problem), run = whole
            share = 1.0
        else:
            place = max(shares, key=lambda p: (shares[p], -p[0], -p[1]))
            rule, (number, problem), share = "n-gram", place, shares[place]
            run = " ".join(min(found[place]))
        name = self.index.names[number]
        return Hit(row, name, problem, rule, round(share, 4), run, num_problems, text)


def _is_in(values: Array, ordered: Array) -> Array:
    if not len(ordered):
        return np.zeros(len(values), dtype=bool)
    places = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    result: Array = ordered[places] == values
    return result


def report_lines(result: Decontamination, num_phrases: int = 10) -> list[str]:
    """What hit, in Markdown: rows and problems by evaluation set, coverage, commonest phrases."""
    lines = [
        "| evaluation set | problems | hit | rows | at least half of the problem |",
        "|---|---|---|---|---|",
    ]
    for name, count in result.evaluations.items():
        hits = [hit for hit in result.hits if hit.evaluation == name]
        problems = len({hit.problem for hit in hits})
        large = sum(hit.coverage >= 0.5 for hit in hits)
        lines.append(f"| {name} | {count:,} | {problems:,} | {len(hits):,} | {large:,} |")
    phrases = Counter(hit.words for hit in result.hits).most_common(num_phrases)
    if phrases:
        lines += ["", "Commonest shared words:", ""]
        lines += [f"- {count:,} times {text[:120]}" for text, count in phrases]
    return lines
