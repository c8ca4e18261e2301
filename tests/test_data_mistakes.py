"""What people do wrong with `trl-r1 data`, and with the files they name, is told in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trl_r1.cli import main
from trl_r1.data.mixture_sources import split_source
from trl_r1.data.output import OutputFolder
from trl_r1.data.texts import question_of
from trl_r1.tasks import DatasetSource
from trl_r1.tasks.sources import read_source

ROW = json.dumps({"prompt": "What is 1 + 1?", "completion": "<think>a</think> 2"})


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{ROW}\n", encoding="utf-8")
    return path


def told(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    try:
        status = main(["data", *map(str, arguments)])
    except SystemExit as error:
        status = int(str(error.code))
    assert status in (1, 2)
    told = capsys.readouterr()
    last = (told.err.strip() or told.out.strip()).splitlines()[-1]
    assert "Traceback" not in last
    return last


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", f'{ROW}\n{{"prompt": \n{ROW}\n', r"a.jsonl: line 2 can't be read as JSON"),
        ("a.csv", "prompt;answer\nx;y\n", "parted by semicolons; part them by commas"),
        ("a.csv", b"prompt,answer\nM\xfcller,2\n", "write it as UTF-8"),
        ("a.csv", 'prompt,answer\n"x,y\n', "it can't be read"),
        ("a.csv", "prompt,answer\n", "there are no rows in its split train"),
        ("a.json", "[]", "there are no rows in its split train"),
        ("a.jsonl", "\n \n", "is empty"),
    ],
)
def test_a_file_that_cant_be_read_is_named_with_what_is_wrong(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message) as caught:
        read_source(DatasetSource(dataset_name=str(path)))
    assert str(path) in str(caught.value)


def test_what_is_meant_as_a_path_is_not_looked_for_on_the_hub() -> None:
    for name in ("./nowhere", "nowhere.jsonl", "a/b/c", "/no/such"):
        with pytest.raises(ValueError, match=f"{name}: no such file or folder"):
            read_source(DatasetSource(dataset_name=name))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["filter"], "nothing to filter by"),
        (["filter", "--min-length", "5", "--max-length", "3"], "--min-length 5 is over"),
        (["filter", "--min-pass-rate", "0.5"], "need --pass-rates"),
        (["filter", "--min-pass-rate", "7"], "'7' is no number from 0 to 1"),
        (["dedup", "--near", "0"], "0 would make all rows alike"),
        (["dedup", "--near", "nan"], "'nan' is no number from 0 to 1"),
        (["decontaminate", "--against", "x.jsonl", "--ngram", "0"], "'0' is no whole number"),
        (["decontaminate", "--against", "x.jsonl"], "x.jsonl: no such file or folder"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    rows: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    action, *options = arguments
    out = rows.parent / "out"
    assert message in told(capsys, action, rows, "--output", out, *options)
    assert [path.name for path in rows.parent.iterdir()] == ["rows.jsonl"], "nothing is left"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("share=2", "share is 2; it is over 0 and at most 1"),
        ("share=nan", "share is nan"),
        ("num_rows=-3", "num_rows is -3; it has to be at least 1"),
        ("max_rows=0", "max_rows is 0; it has to be at least 1"),
        ("kind", "kind has no value; write kind=..."),
    ],
)
def test_sources_of_a_mixture_are_checked(
    rows: Path, capsys: pytest.CaptureFixture[str], values: str, message: str
) -> None:
    assert message in told(capsys, "mix", f"{rows},{values}", "--output", rows.parent / "out")


def test_a_column_of_texts_gives_no_pass_rates(
    rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--pass-rates", rows, "--reward", "prompt", "--output", rows.parent / "out")
    assert "'What is 1 + 1?' is no score" in told(capsys, "filter", rows, *options)


def test_rows_without_a_question_are_left_out_of_a_mixture(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [{"prompt": 1, "completion": 2}, {"prompt": None, "completion": "x"}]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    assert main(["data", "mix", str(path), "--output", str(tmp_path / "out")]) == 0
    made = read_source(DatasetSource(dataset_name=str(tmp_path / "out")))
    assert made["messages"][:] == [
        [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]
    ]


def test_changed_samples_are_not_taken_for_those_of_a_finished_filter(
    rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = rows.parent / "rates.jsonl"
    rates.write_text('{"prompt": "What is 1 + 1?", "pass_rate": 0.5}\n', encoding="utf-8")
    options = ("--pass-rates", str(rates), "--output", str(rows.parent / "out"))
    assert main(["data", "filter", str(rows), *options]) == 0
    assert main(["data", "filter", str(rows), *options]) == 0
    assert "is finished already" in capsys.readouterr().out
    rates.write_text('{"prompt": "What is 1 + 1?", "pass_rate": 0.25}\n', encoding="utf-8")
    assert "made with other settings or data" in told(capsys, "filter", rows, *options)


def test_a_folder_that_another_process_makes_is_left_alone(tmp_path: Path) -> None:
    import subprocess
    import sys

    holder = (
        "import fcntl, os, sys\n"
        "lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "fcntl.lockf(lock, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    partial = tmp_path / ".out.partial"
    partial.mkdir()
    (partial / "train-00000.parquet").write_text("the other's", encoding="utf-8")
    command = [sys.executable, "-c", holder, str(partial / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(ValueError, match="another command is making"):
            OutputFolder(tmp_path / "out", {"a": 1})
        assert (partial / "train-00000.parquet").exists()
        process.communicate()
    OutputFolder(tmp_path / "out", {"a": 1})
    assert not (partial / "train-00000.parquet").exists(), "made with other settings"


def test_an_output_that_is_something_else_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(ValueError, match="exists already and is something else"):
        OutputFolder(tmp_path / "file", {})
    with pytest.raises(ValueError, match="name a folder in it"):
        OutputFolder(Path("/"), {})


@pytest.mark.parametrize("turns", ["a text", ["a", "b"]])
def test_turns_that_are_no_messages_are_named(
    tmp_path: Path, turns: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd.jsonl").write_text(json.dumps({"messages": turns}), encoding="utf-8")
    said = told(capsys, "mix", tmp_path / "odd.jsonl", "--output", tmp_path / "out")
    first = turns if isinstance(turns, str) else turns[0]
    assert f"mix: odd: {first!r} is no message; turns are a list of mappings" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["odd.jsonl"]


def test_steps_that_would_leave_no_row_say_so_and_make_no_folder(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = told(capsys, "filter", rows, "--min-length", 500, "--output", tmp_path / "out")
    assert "no row has 500 to any number of words; the rows have 8 to 8" in said
    (tmp_path / "plain.jsonl").write_text('{"prompt": "Hello?", "completion": "Hi."}')
    source = f"{tmp_path / 'plain.jsonl'},kind=reasoning"
    assert "no row is fit for its kind" in told(capsys, "mix", source, "--output", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_table_without_rows_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "none.parquet"
    pq.write_table(pa.table({"problem": pa.array([], pa.string())}), path)
    with pytest.raises(ValueError, match=r"none\.parquet: there are no rows in it"):
        read_source(DatasetSource(dataset_name=str(path)))


def test_names_may_have_commas_and_spaces(tmp_path: Path) -> None:
    path = tmp_path / "my rows, cleaned.jsonl"
    path.write_text(f"{ROW}\n", encoding="utf-8")
    assert split_source(f"{path},share=1.0,kind=general") == (
        str(path),
        ["share=1.0", "kind=general"],
    )
    assert split_source("owner/name,share=0.5") == ("owner/name", ["share=0.5"])
    out = tmp_path / "out, 1"
    assert main(["data", "mix", f"{path},share=1.0", "--output", str(out)]) == 0
    assert len(read_source(DatasetSource(dataset_name=str(out)))) == 1


def test_content_in_parts_is_its_text() -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "2?"}]
    assert question_of([{"role": "user", "content": parts}]) == "What is 2?"


_FULL_DISK = """
import hashlib, resource, sys
from pathlib import Path
from datasets import Dataset
from trl_r1.data.card import DataLog
from trl_r1.data.output import OutputFolder
texts = [hashlib.sha256(b"%d" % i).hexdigest() * 3 for i in range(45_000)]
rows = Dataset.from_dict({"problem": texts})
output = OutputFolder(Path(sys.argv[1]), {})
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    output.finish(rows, "rows", DataLog())
except OSError as error:
    print("told:", error.strerror)
"""


def test_rows_that_find_no_room_end_in_an_error_and_not_in_an_abort(tmp_path: Path) -> None:
    work = subprocess.run(
        [sys.executable, "-c", _FULL_DISK, str(tmp_path / "out")], capture_output=True, text=True
    )
    assert work.returncode == 0, work.stderr[-2000:]
    assert "told: File too large" in work.stdout
    assert not (tmp_path / "out").exists()


def test_a_task_is_data_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "stats", "digit_sums", "--split", "test"]) == 0
    assert "rows; columns prompt, solution, task" in capsys.readouterr().out
