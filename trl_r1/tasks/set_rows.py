"""What column names alone don't say about some known sets: a function from row to row each.

`None` leaves a row out. Tests become what the reward `code_tests` reads.
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import re
import zlib
from typing import Any

Row = dict[str, Any]

_MBPP_SPLITS = {"test": (11, 510), "validation": (511, 600), "train": (601, 974)}
_DAPO_INSTRUCTIONS = re.compile(
    r"^Solve the following math problem step by step\..*?\n\n(?P<question>.*?)"
    r'(?:\n\nRemember to put your answer on its own line after "Answer:"\.?)?\s*$',
    re.DOTALL,
)
_CHINESE = re.compile(r"[\u4e00-\u9fff]")


def dapo_row(row: Row, split: str) -> Row | None:
    """DAPO-Math-17k: the mended form (`prompt`, `solution`) or the first one (`prompt` as messages,
    `reward_model`)."""
    prompt = row["prompt"]
    question = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    match = _DAPO_INSTRUCTIONS.match(question)
    question = match["question"] if match else question
    answer = row.get("solution") or (row.get("reward_model") or {}).get("ground_truth")
    if not answer:
        return None
    language = "zh" if _CHINESE.search(question) else "en"
    return {**row, "question": question.strip(), "answer": answer, "language": language}


def openr1_row(row: Row, split: str) -> Row | None:
    """OpenR1-Math: the first trace that is complete and was verified, by rules or by a judge."""
    traces = row["generations"]
    complete = row.get("is_reasoning_complete") or [True] * len(traces)
    for key in ("correctness_math_verify", "correctness_llama"):
        right = row.get(key) or [False] * len(traces)
        for trace, is_whole, is_right in zip(traces, complete, right, strict=False):
            if is_whole and is_right and "</think>" in trace:
                return {**row, "trace": trace}
    return None


def human_eval_row(row: Row, split: str) -> Row:
    """HumanEval: one source with a `check(candidate)`."""
    return {**row, "tests": json.dumps([row["test"]])}


def mbpp_row(row: Row, split: str) -> Row | None:
    """MBPP: a file that holds all of it is split by the paper's numbers (arXiv 2108.07732)."""
    low, high = _MBPP_SPLITS.get(split, (0, 10**9))
    if not low <= int(row.get("task_id", low)) <= high:
        return None
    shown = "\n".join(row["test_list"])
    return {**row, "shown_tests": shown, "test_setup_code": row.get("test_setup_code") or ""}


def apps_row(row: Row, split: str) -> Row | None:
    """APPS and sets of its form: `input_output` is JSON of inputs, outputs and maybe `fn_name`."""
    given = row["input_output"]
    tests = json.loads(given) if isinstance(given, str) and given else given
    if not tests or not tests.get("inputs"):
        return None
    starter = (row.get("starter_code") or "").strip()
    return {
        **row,
        "tests": json.dumps([tests]),
        "starter": f" Start from:\n```python\n{starter}\n```" if starter else "",
        "difficulty": row.get("difficulty"),
    }


def live_code_bench_row(row: Row, split: str) -> Row:
    """LiveCodeBench: public and private tests; of functions, arguments are a JSON value a line."""
    cases = [
        *json.loads(row["public_test_cases"]),
        *_private_tests(row["private_test_cases"]),
    ]
    metadata = json.loads(row.get("metadata") or "{}")
    name = metadata.get("func_name")
    tests = [
        {
            "fn_name": name,
            "input": [json.loads(line) for line in case["input"].split("\n") if line.strip()],
            "output": json.loads(case["output"]),
        }
        if case.get("testtype") == "functional" and name
        else {"input": case["input"], "output": case["output"]}
        for case in cases
    ]
    starter = (row.get("starter_code") or "").strip()
    return {
        **row,
        "tests": json.dumps(tests),
        "starter": f" Start from:\n```python\n{starter}\n```" if starter else "",
        "difficulty": row.get("difficulty"),
    }


class _TextOnly(pickle.Unpickler):
    """Reads the one text that such a pickle holds, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f"the private tests ask for {module}.{name}; they should be a plain text")


def _private_tests(text: str) -> list[Row]:
    """Tests as JSON, or as LiveCodeBench packs them: base64 of zlib of a pickled text."""
    try:
        cases: list[Row] = json.loads(text)
    except json.JSONDecodeError:
        packed = zlib.decompress(base64.b64decode(text))
        cases = json.loads(_TextOnly(io.BytesIO(packed)).load())
    return cases


def ifeval_row(row: Row, split: str) -> Row:
    """IFEval: its two columns as the one that the reward `instruction` reads."""
    arguments = [
        {key: value for key, value in (given or {}).items() if value is not None}
        for given in row["kwargs"]
    ]
    constraints = {"instruction_id_list": row["instruction_id_list"], "kwargs": arguments}
    return {**row, "constraints": json.dumps(constraints)}
