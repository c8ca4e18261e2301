"""What a file of Python would do, as far as its syntax tells: nothing of it is run or imported.

A help to the eye and no proof: who wants to hide something can, so the source is shown as well.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_RUNS_PROGRAMS = "starts programs"
_RUNS_TEXT = "runs text as code"
_UNPICKLES = "unpickles, which runs what the data says"
_NETWORK = "uses the network"
_ENVIRONMENT = "reads environment variables, where tokens are"
_FILES = "opens or changes files"
_INTERPRETER = "reaches into the interpreter"
_UNPACKS = "unpacks hidden data"

# By dotted name; a name stands for all that begins with it and a point.
_MEANING = {
    **dict.fromkeys(
        ("subprocess", "pty", "multiprocessing", "os.system", "os.popen", "os.fork", "os.startfile",
         "os.posix_spawn", "os.posix_spawnp", "asyncio.create_subprocess_exec",
         "asyncio.create_subprocess_shell"), _RUNS_PROGRAMS),
    **dict.fromkeys(
        ("exec", "eval", "compile", "__import__", "importlib", "imp", "runpy", "code", "codeop",
         "types.FunctionType", "types.CodeType", "builtins"), _RUNS_TEXT),
    **dict.fromkeys(
        ("pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "torch.load",
         "numpy.load", "yaml.load", "yaml.unsafe_load"), _UNPICKLES),
    **dict.fromkeys(
        ("socket", "ssl", "urllib", "http", "ftplib", "smtplib", "telnetlib", "xmlrpc", "requests",
         "httpx", "aiohttp", "urllib3", "websocket", "websockets", "paramiko", "huggingface_hub"),
        _NETWORK),
    **dict.fromkeys(("os.environ", "os.environb", "os.getenv", "os.putenv"), _ENVIRONMENT),
    **dict.fromkeys(
        ("open", "io.open", "os.open", "os.remove", "os.unlink", "os.rename", "os.replace",
         "os.rmdir", "os.makedirs", "os.mkdir", "os.symlink", "os.chmod", "os.walk", "os.listdir",
         "shutil", "pathlib", "tempfile", "glob"), _FILES),
    **dict.fromkeys(
        ("ctypes", "cffi", "mmap", "gc", "atexit", "signal", "sys.modules", "sys.path",
         "sys.meta_path", "sys.settrace", "sys.setprofile", "sys._getframe", "inspect.stack",
         "globals", "vars", "setattr", "delattr"), _INTERPRETER),
    **dict.fromkeys(
        ("base64", "binascii", "codecs", "zlib", "lzma", "bz2", "bytes.fromhex"), _UNPACKS),
}  # fmt: skip
_OS_RUNS = ("os.exec", "os.spawn")
_INNER = frozenset(
    ("__globals__", "__builtins__", "__subclasses__", "__code__", "__mro__", "__bases__",
     "__loader__", "__spec__", "__getattribute__", "f_globals", "f_back", "gi_frame")
)  # fmt: skip
_PLAIN = (ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.Name, ast.Load, ast.UnaryOp,
          ast.unaryop, ast.BinOp, ast.operator)  # fmt: skip


@dataclass(frozen=True)
class Findings:
    """What the syntax of a file says.

    Attributes:
        signatures: of the functions defined at the top, by name: `f(completions, **kwargs)`.
        imports: modules that it imports, wherever in it.
        remarks: what to look at, with the lines.
        fault: why the file can't be read as Python; None where it can.
    """

    signatures: Mapping[str, str]
    imports: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    fault: str | None = None


def findings_of(text: str) -> Findings:
    """What the syntax of a source says."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes in it
            tree = ast.parse(text)
    except SyntaxError as error:
        return Findings({}, fault=f"line {error.lineno or '?'}: {error.msg}")
    except (RecursionError, MemoryError, ValueError) as error:
        return Findings({}, fault=f"{type(error).__name__}: too deep, or no text")
    names = dict(_imported(tree))
    places: dict[str, list[tuple[int, str]]] = {}
    for node in ast.walk(tree):
        for meaning, name in _meanings(node, names):
            places.setdefault(meaning, []).append((getattr(node, "lineno", 0), name))
    remarks = [_remark(meaning, found) for meaning, found in places.items()]
    if lines := [node.lineno for node in tree.body if not _only_defines(node)]:
        remarks.append(f"runs code as soon as it is loaded: {_lines(lines)}")
    modules = dict.fromkeys(module for module in _modules(tree))
    return Findings(dict(_signatures(tree)), tuple(modules), tuple(remarks))


def _signatures(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            try:
                yield node.name, f"{node.name}({ast.unparse(node.args)})"
            except RecursionError:
                yield node.name, f"{node.name}(...)"
        elif isinstance(node, ast.ClassDef):
            yield node.name, f"class {node.name}"


def _modules(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names of the file that stand for something imported, and what."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                full = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or full, full
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _meanings(node: ast.AST, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Import):
        found = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module:
        found = [f"{node.module}.{alias.name}" for alias in node.names]
    elif isinstance(node, (ast.Attribute, ast.Name)):
        found = [_dotted(node, names)]
        if isinstance(node, ast.Attribute) and node.attr in _INNER:
            yield _INTERPRETER, node.attr
    else:
        return
    for name in found:
        if meaning := _meaning(name):
            yield meaning, name


def _dotted(node: ast.expr, names: Mapping[str, str]) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([names.get(node.id, node.id), *reversed(parts)])


def _meaning(name: str) -> str | None:
    if name.startswith(_OS_RUNS):
        return _RUNS_PROGRAMS
    parts = name.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((_MEANING[prefix] for prefix in prefixes if prefix in _MEANING), None)


def _remark(meaning: str, found: list[tuple[int, str]]) -> str:
    names = list(dict.fromkeys(name for _, name in sorted(found)))
    shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    return f"{meaning}: {_lines([line for line, _ in found])} ({shown})"


def _lines(numbers: list[int]) -> str:
    ordered = sorted(set(numbers))
    shown = ", ".join(map(str, ordered[:6])) + (", ..." if len(ordered) > 6 else "")
    return f"line{'s' if len(ordered) > 1 else ''} {shown}"


def _only_defines(node: ast.stmt) -> bool:
    """Whether loading the file does nothing here but give things names."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
        return not node.decorator_list and all(map(_is_plain, defaults))
    if isinstance(node, ast.ClassDef):
        return not (node.decorator_list or node.keywords) and all(map(_only_defines, node.body))
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.Pass)):
        return True
    value = getattr(node, "value", None)
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.Expr)):
        return value is None or _is_plain(value)
    return False


def _is_plain(value: ast.expr) -> bool:
    return all(isinstance(part, _PLAIN) for part in ast.walk(value))
