"""`trl-r1 check --untrusted` shows the code of a stranger's recipes and runs none of it."""

import http.server
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from trl_r1.trust.findings import findings_of
from trl_r1.trust.listing import listing
from trl_r1.trust.visible_text import read_source, source_lines, visible

LEAVES_A_MARK = "import os\nopen(os.environ['MARKS'] + '/' + __name__, 'w').close()\n"
REWARD = LEAVES_A_MARK + "def short_reward(completions, **kwargs):\n    return [1.0]\n"
STAGE = """\
stage: grpo
model_name_or_path: nowhere
lerning_rate: 1.0
datasets:
  - {task: exam.yaml}
rewards:
  - {use: my_reward.py:short_reward}
  - {use: strange_package.rewards:short_reward, name: packaged}
  - {use: length_within_group, args: {grader: grader.py:short_reward}}
"""
TASK = """\
name: exam
source: exam.jsonl
prompt: "{question}"
solution: "{answer}"
grader: my_reward.py:short_reward
prepare: prepare.py:prepared
"""


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder whose every file of code leaves a mark when it is run, beside `tmp_path/marks`."""
    folder = tmp_path / "hostile"
    package = tmp_path / "installed" / "strange_package"
    for made in (folder, package, tmp_path / "marks"):
        made.mkdir(parents=True)
    (folder / "01_zero.yaml").write_text(STAGE)
    (folder / "exam.yaml").write_text(TASK)
    (folder / "exam.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')
    for name in ("my_reward.py", "grader.py"):
        (folder / name).write_text(REWARD)
    (folder / "prepare.py").write_text(
        LEAVES_A_MARK + "def prepared(row, split):\n    return row\n"
    )
    # What Python, pytest and imports of standard modules would pick up beside the recipe.
    for name in ("__init__", "conftest", "sitecustomize", "usercustomize", "yaml", "json", "torch"):
        (folder / f"{name}.py").write_text(LEAVES_A_MARK)
    (folder / "evil.pth").write_text("import os; open(os.environ['MARKS'] + '/pth', 'w').close()\n")
    for module in ("tokenize", "trl", "datasets"):
        (folder / module).mkdir()
        (folder / module / "__init__.py").write_text(LEAVES_A_MARK)
    (package / "__init__.py").write_text(LEAVES_A_MARK)
    (package / "rewards.py").write_text(REWARD)
    return folder


def check(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The command, started inside of the folder, as somebody would who has just unpacked it."""
    base = folder.parent
    environment = {
        **os.environ,
        "MARKS": str(base / "marks"),
        "PYTHONPATH": str(base / "installed"),
        "HF_HUB_OFFLINE": "1",
    }
    return subprocess.run(
        [str(Path(sys.executable).parent / "trl-r1"), "check", ".", *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def marks(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder.parent / "marks").iterdir())


def test_nothing_that_a_folder_holds_or_names_is_run(hostile):
    result = check(hostile, "--untrusted")
    assert marks(hostile) == []
    assert result.stderr == ""
    shown = result.stdout
    for name in ("my_reward.py", "grader.py", "prepare.py"):
        assert f"{name}\n  named by    " in shown
    assert "./01_zero.yaml: rewards[2].args.grader: grader.py:short_reward" in shown
    assert "./exam.yaml: prepare: prepare.py:prepared" in shown
    # Importing a module runs the package above it, too.
    assert str(hostile.parent / "installed" / "strange_package" / "__init__.py") in shown
    assert str(hostile.parent / "installed" / "strange_package" / "rewards.py") in shown
    assert "function    short_reward(completions, **kwargs)" in shown
    assert "look at     runs code as soon as it is loaded: line 2" in shown
    assert "2 | open(os.environ['MARKS'] + '/' + __name__, 'w').close()" in shown
    # The rest is checked: this is a mistake of the recipe.
    assert "./01_zero.yaml: unknown key 'lerning_rate'; did you mean 'learning_rate'?" in shown
    assert result.returncode == 1


def test_a_plain_check_does_load_rewards_and_tasks(hostile):
    check(hostile)
    names = marks(hostile)
    assert "strange_package" in names
    assert any(name.startswith("_trl_r1_reward_my_reward") for name in names)
    assert "prepare" in names
    # What lies beside a recipe unnamed is run by neither.
    assert not {"sitecustomize", "conftest", "yaml", "json", "torch", "trl", "pth"} & {*names}


def test_tags_of_python_in_yaml_make_nothing(hostile):
    (hostile / "02_tags.yaml").write_text(
        "stage: grpo\nmodel_name_or_path: !!python/object/apply:os.mkdir [made_by_yaml]\n"
        "rewards: !!python/name:os.system\n"
    )
    result = check(hostile, "--untrusted")
    assert "./02_tags.yaml: not YAML in line 2: could not determine a constructor" in result.stdout
    assert not (hostile / "made_by_yaml").exists()
    assert marks(hostile) == []


def test_no_address_is_asked_for_anything(hostile):
    asked = []

    class Listener(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(404)

        do_HEAD = do_POST = do_GET  # noqa: N815

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Listener) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        data = hostile / "data"
        data.mkdir()
        (data / "README.md").write_text(
            f"---\nconfigs:\n- config_name: default\n  data_files: {address}/rows.jsonl\n---\n"
        )
        (hostile / "01_zero.yaml").write_text(
            "stage: rejection_sampling\nmodel_name_or_path: owner/model\nengine: server\n"
            f"servers: ['{address}/v1']\nserver_key_variable: HF_TOKEN\npush_to_hub: true\n"
            "datasets:\n  - {dataset_name: data}\n"
            "rewards:\n  - {use: code_tests, args: {backend: piston, url: "
            f"'{address}/piston'}}}}\n"
        )
        result = check(hostile, "--untrusted")
        server.shutdown()
    assert asked == []
    assert f"servers[0]: {address}/v1: is read or sent to" in result.stdout
    assert (
        "server_key_variable: HF_TOKEN: what this environment variable holds is sent to the servers"
        in result.stdout
    )
    assert "owner/model not checked: nothing is asked of the Hub" in result.stdout


def test_a_stranger_cannot_hide_code_by_calling_it_a_secret(hostile):
    (hostile / "pipeline.yaml").write_text(
        "defaults: {hub_token: os.environ}\nsources: {password: 'return [1.0]'}\n"
    )
    (hostile / "my_reward.py").write_text(REWARD + "# PRIVATE KEY-----; hidden\n")
    shown = check(hostile, "--untrusted").stdout
    assert "2 | open(os.environ['MARKS'] + '/' + __name__, 'w').close()" in shown
    assert "return [1.0]" in shown
    assert "5 | # PRIVATE KEY-----; hidden" in shown


def test_a_recipe_that_cannot_be_read_yet_hides_no_code(tmp_path):
    (tmp_path / "01_x.yaml").write_text("stage: grop\nrewards:\n  - {us: hidden.py:f}\n")
    (tmp_path / "hidden.py").write_text("def f(completions, **kwargs): ...\n")
    shown = "\n".join(listing(tmp_path, "mine"))
    assert "named by    mine/01_x.yaml: rewards[0].us: hidden.py:f" in shown


def named(tmp_path: Path, *files: str) -> str:
    uses = "".join(f"  - {{use: '{file}:f'}}\n" for file in files)
    (tmp_path / "01_x.yaml").write_text(f"stage: grpo\nrewards:\n{uses}")
    return "\n".join(listing(tmp_path, "mine"))


def test_what_is_no_plain_file_of_source_is_told_and_never_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "device.py").symlink_to("/dev/zero")
    (tmp_path / "one.py").symlink_to("two.py")
    (tmp_path / "two.py").symlink_to("one.py")
    (tmp_path / "binary.py").write_bytes(b"\x7fELF\0\0\x01")
    (tmp_path / "broken.py").write_text("def f(:\n")
    names = ("pipe", "folder", "device", "one", "binary", "broken", "gone")
    shown = named(tmp_path, *(f"{name}.py" for name in names))
    for name, said in (
        ("pipe", "is no regular file"),
        ("folder", "Is a directory"),
        ("device", "is no regular file"),
        ("one", "Too many levels of symbolic links"),
    ):
        part = shown.partition(f"{tmp_path / name}.py\n")[2].partition("\n\n")[0]
        assert said in part, name
    assert "not a text: it holds zero bytes" in shown
    assert "not Python  line 1: invalid syntax" in shown
    assert "rewards[6].use: gone.py:f: there is no such file" in shown


def test_a_large_file_is_shown_in_part_and_hashed_whole(tmp_path):
    (tmp_path / "large.py").write_bytes(b"x = 1\n" * (10 << 20) + b"import os\n")
    shown = named(tmp_path, "large.py")
    assert "size        62,914,570 bytes" in shown
    assert "only its first 1 MiB are looked at" in shown
    assert " 200 | x = 1\n  ... " in shown
    assert "--lines 0 shows all" in shown
    assert len(shown) < 8000


def test_a_terminal_cannot_be_fooled_by_a_source(tmp_path):
    (tmp_path / "sly.py").write_text(
        "x = 1 \x1b[1A\x1b[2K# repainted\n"
        "admin = '\u202e \u2066# user\u2069 \u2066'\n"
        "a = 1 \u200b\r\u0131mport = 2\x0cy = 3\n" + "z = 1" + " " * 500 + "; import os\n"
    )
    shown = named(tmp_path, "sly.py")
    assert "1 | x = 1 \\x1b[1A\\x1b[2K# repainted" in shown
    assert "admin = '\\u202e \\u2066# user\\u2069 \\u2066'" in shown
    # A bare carriage return ends a line for Python; a form feed does not.
    assert "3 | a = 1 \\u200b" in shown
    assert "\u0131mport = 2\\x0cy = 3" in shown
    assert "written out below: line 1, 2, 3" in shown
    assert "letters beyond ASCII, which may look like others: line 2, 3, 4" in shown
    assert "(356 more characters)" in shown
    assert not any(c in shown for c in "\x1b\u202e\u2066\u200b\r\x0c")


def test_names_in_a_recipe_cannot_move_the_cursor_either(tmp_path):
    (tmp_path / "01_x.yaml").write_text('stage: "\\e[2Jgrpo"\nrewards: [{use: "a\\eb.py:f"}]\n')
    result = subprocess.run(
        [sys.executable, "-m", "trl_r1", "check", "--untrusted", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "\x1b" not in result.stdout
    assert "a\\x1bb.py:f: there is no such file" in result.stdout


def test_a_source_is_shown_in_the_encoding_that_python_would_take(tmp_path):
    path = tmp_path / "coded.py"
    path.write_bytes(b"# coding: utf-7\n+AGkAbQBwAG8AcgB0- os\n")
    source = read_source(path)
    assert "import os" in source.text
    assert source.remarks == ("its encoding is utf-7; shown is what Python would read",)


def test_unseen_characters_are_written_out_and_others_left():
    assert visible("a\x00\x1b\x9b\u2028\u00a0\u3164é中\ttab") == (
        "a\\x00\\x1b\\x9b\\u2028\\xa0\\u3164é中\\ttab"
    )
    assert source_lines("a\x0bb\r\nc\rd\n") == ["a\x0bb", "c", "d"]


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        ("import subprocess as s\ndef f(): s.run([])", "starts programs: lines 1, 2"),
        ("from os import system as f\n", "starts programs: line 1 (os.system)"),
        ("import os\nos.execvp('a', [])", "starts programs: line 2 (os.execvp)"),
        ("def f(x): return eval(x)", "runs text as code: line 1 (eval)"),
        ("def f(): __import__('os')", "runs text as code: line 1 (__import__)"),
        ("import pickle", "unpickles, which runs what the data says: line 1 (pickle)"),
        ("def f():\n    import socket", "uses the network: line 2 (socket)"),
        ("import os\nx = os.environ", "reads environment variables, where tokens are: line 2"),
        ("def f(p): return open(p)", "opens or changes files: line 1 (open)"),
        ("def f(): return ().__class__.__subclasses__()", "reaches into the interpreter: line 1"),
        ("import base64", "unpacks hidden data: line 1 (base64)"),
        ("def f(x=print('hi')): ...", "runs code as soon as it is loaded: line 1"),
        ("class A:\n    print('hi')", "runs code as soon as it is loaded: line 1"),
    ],
)
def test_what_a_source_would_do_is_found_in_its_syntax(code, remark):
    assert any(found.startswith(remark) for found in findings_of(code).remarks)


def test_a_harmless_reward_has_nothing_to_look_at():
    code = (
        "import math\n\nLIMIT = -256\n\ndef f(completions, n=LIMIT, **kwargs):\n    return [1.0]\n"
    )
    found = findings_of(code)
    assert found.remarks == ()
    assert found.imports == ("math",)
    assert found.signatures == {"f": "f(completions, n=LIMIT, **kwargs)"}


def test_a_source_too_deep_for_python_is_told():
    assert findings_of("(" * 100_000).fault
    assert findings_of("x = " + "-" * 100_000 + "1").fault
