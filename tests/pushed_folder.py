"""A model's folder to push to the fake Hub, and what the tests of the Hub compare it with."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fake_hub import FakeHub

MEGABYTE = 1_000_000


def weights(num_bytes: int = MEGABYTE, seed: int = 0) -> bytes:
    """Bytes that no compression or text check takes for anything else."""
    block = hashlib.sha256(str(seed).encode()).digest()
    return (block * (num_bytes // len(block) + 1))[:num_bytes]


def make_folder(folder: Path) -> dict[str, bytes]:
    """A model's folder with regular and large files; returns what is in it."""
    contents = {
        "README.md": b"---\nlicense: mit\n---\n# A model\n",
        "config.json": b"{}\n",
        "model.safetensors": weights(),
        "original/weights.bin": weights(1000, seed=1),
        "empty.txt": b"",
    }
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return contents


def downloaded(folder: str) -> dict[str, bytes]:
    """The files of a snapshot by path, without the Hub's own .gitattributes."""
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    contents = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    contents.pop(".gitattributes")
    return contents


def sent(hub: FakeHub, method: str, part: str) -> list[str]:
    """The paths of the requests with a method whose path has a part."""
    return [each.path for each in hub.requests if each.method == method and part in each.path]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
