"""What a Hub keeps: accounts, repositories with their git history, large files and collections.

Files, trees and commits have the ids that git gives them; a large file lies in its tree as a
git-LFS pointer and is found by its sha256. Everything is in memory. There is no HTTP here, no
permissions (routes.py asks before it acts), no merging, and no history graph: a commit has at
most one parent.
"""

from __future__ import annotations

import fnmatch
import hashlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

LFS_ATTRIBUTES = "filter=lfs diff=lfs merge=lfs -text"
# What the Hub writes into every new repository.
NEW_ATTRIBUTES = Path(__file__).with_name("gitattributes.txt").read_bytes()
# Large in datasets only, whatever their size.
MEDIA = (
    *("aac", "flac", "m4a", "mp3", "ogg", "pcm", "raw", "sam", "wav"),
    *("bmp", "gif", "jpeg", "jpg", "mp4", "png", "tiff", "webm", "webp"),
)
# A regular file may not be larger.
MAX_REGULAR_BYTES = 10 * 1024 * 1024


def git_id(kind: str, content: bytes) -> str:
    """The sha1 by which git knows an object of `kind` (blob, tree or commit)."""
    return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content).hexdigest()


@dataclass(frozen=True)
class File:
    """A file of a tree: its bytes if regular, its sha256 and size if large."""

    content: bytes = b""
    sha256: str | None = None
    large_size: int = 0

    @property
    def git_content(self) -> bytes:
        """What git itself stores: the content, or the pointer to it."""
        if self.sha256 is None:
            return self.content
        lines = ("version https://git-lfs.github.com/spec/v1", f"oid sha256:{self.sha256}")
        return "\n".join((*lines, f"size {self.large_size}\n")).encode()

    @property
    def git_id(self) -> str:
        """The id of the blob."""
        return git_id("blob", self.git_content)

    @property
    def size(self) -> int:
        """In bytes, of the real content."""
        return len(self.content) if self.sha256 is None else self.large_size


Tree = dict[str, File]


def tree_ids(tree: Tree) -> dict[str, str]:
    """The git id of every folder of a tree by its path; `""` is the root."""
    children: dict[str, dict[str, tuple[str, str]]] = {"": {}}
    for path, file in tree.items():
        parts = path.split("/")
        for i in range(1, len(parts)):
            children.setdefault("/".join(parts[:i]), {})
        children["/".join(parts[:-1])][parts[-1]] = ("100644", file.git_id)
    ids: dict[str, str] = {}
    # Deepest first, so that the folders of a folder have their ids.
    for folder in sorted(children, key=lambda path: (path != "", path.count("/")), reverse=True):
        entries = sorted(
            children[folder].items(), key=lambda entry: entry[0] + "/" * (entry[1][0] == "40000")
        )
        content = b"".join(
            f"{mode} {name}\0".encode() + bytes.fromhex(oid) for name, (mode, oid) in entries
        )
        ids[folder] = git_id("tree", content)
        if folder:
            parent, _, name = folder.rpartition("/")
            children[parent][name] = ("40000", ids[folder])
    return ids


@dataclass(frozen=True)
class Commit:
    """A snapshot of a repository with the commit before it."""

    id: str
    title: str
    message: str
    author: str
    date: datetime
    tree: Tree
    parent: Commit | None = None

    def history(self) -> Iterable[Commit]:
        """This commit and those before it, the newest first."""
        commit: Commit | None = self
        while commit is not None:
            yield commit
            commit = commit.parent

    def last_change(self, path: str) -> Commit:
        """The newest commit in which the file or folder at `path` is not what it was before."""

        def files(commit: Commit) -> Tree:
            inside = (path, path + "/")
            return {k: v for k, v in commit.tree.items() if k == path or k.startswith(inside[1])}

        for commit in self.history():
            if commit.parent is None or files(commit) != files(commit.parent):
                return commit
        raise AssertionError("a history without a first commit")


@dataclass
class Repo:
    """A repository: refs by name, commits by id, large files by sha256.

    Those that came by Xet are `chunked`, with their Xet hash and size, and are read when wanted.
    """

    kind: str
    name: str
    private: bool
    sdk: str | None = None
    gated: str | bool = False
    branches: dict[str, Commit] = field(default_factory=dict)
    tags: dict[str, Commit] = field(default_factory=dict)
    pulls: dict[str, Commit] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    chunked: dict[str, tuple[str, int]] = field(default_factory=dict)

    @property
    def namespace(self) -> str:
        """The user or organization that owns it."""
        return self.name.partition("/")[0]

    @property
    def web_path(self) -> str:
        """Its place on the site: `datasets/me/name`, without a prefix for models."""
        return self.name if self.kind == "model" else f"{self.kind}s/{self.name}"

    def find(self, revision: str) -> Commit | None:
        """The commit of a branch, tag, full ref, or (part of a) commit id."""
        for refs, prefix in ((self.branches, "refs/heads/"), (self.tags, "refs/tags/")):
            commit = refs.get(revision.removeprefix(prefix))
            if commit is not None:
                return commit
        if revision in self.pulls:
            return self.pulls[revision]
        if len(revision) >= 7:
            return next((c for id, c in self.commits.items() if id.startswith(revision)), None)
        return None

    def add_commit(
        self, ref: str, tree: Tree, title: str, message: str, author: str, date: datetime
    ) -> Commit:
        """Put a new commit on a branch or pull request, and return it."""
        refs = self.pulls if ref in self.pulls else self.branches
        parent = refs.get(ref)
        stamp = f"{author} <{author}@users.noreply> {int(date.timestamp())} +0000"
        lines = [f"tree {tree_ids(tree)['']}"]
        lines += [f"parent {parent.id}"] if parent else []
        lines += [f"author {stamp}", f"committer {stamp}", "", f"{title}\n\n{message}".strip(), ""]
        commit_id = git_id("commit", "\n".join(lines).encode())
        commit = Commit(commit_id, title, message, author, date, dict(tree), parent)
        self.commits[commit_id] = refs[ref] = commit
        return commit

    def has(self, sha256: str) -> bool:
        """Whether a large file is there."""
        return sha256 in self.large or sha256 in self.chunked

    def is_large(self, tree: Tree, path: str, size: int, sample: bytes) -> bool:
        """Whether a file has to come as a large one: by .gitattributes, size or binary content."""
        if matches_attributes(tree, path) or size > MAX_REGULAR_BYTES:
            return True
        # A sample may end inside a character.
        text = sample.decode("utf-8", errors="replace").rstrip("\ufffd")
        return "\0" in text or "\ufffd" in text


def matches_attributes(tree: Tree, path: str) -> bool:
    """Whether .gitattributes of the tree makes `path` a large file."""
    lines = tree.get(".gitattributes", File()).content.decode().splitlines()
    patterns = [line.split()[0] for line in lines if "filter=lfs" in line]
    return any(
        fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path.split("/")[-1], pattern)
        for pattern in patterns
    )


def is_ignored(patterns: str, path: str) -> bool:
    """Whether the text of a .gitignore leaves `path` out; the last line that matches decides."""
    ignored = False
    parts = path.split("/")
    for raw in patterns.splitlines():
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        pattern = line.lstrip("!").rstrip("/")
        # The file itself counts only where the pattern is not for folders alone.
        above = ["/".join(parts[: i + 1]) for i in range(len(parts) - line.endswith("/"))]
        if "/" in pattern:
            found = any(fnmatch.fnmatchcase(each, pattern.lstrip("/")) for each in above)
        else:
            found = any(fnmatch.fnmatchcase(each.split("/")[-1], pattern) for each in above)
        if found:
            ignored = not line.startswith("!")
    return ignored


@dataclass
class Account:
    """A person: the organizations with the role in each (`read`, `write` or `admin`)."""

    name: str
    orgs: dict[str, str] = field(default_factory=dict)


@dataclass
class Store:
    """Everything there is; tokens with their account and role, repositories by (kind, name)."""

    accounts: dict[str, Account] = field(default_factory=dict)
    tokens: dict[str, tuple[Account, str]] = field(default_factory=dict)
    repos: dict[tuple[str, str], Repo] = field(default_factory=dict)
    collections: dict[str, dict[str, Any]] = field(default_factory=dict)
    _ticks: Any = field(default_factory=itertools.count)

    def now(self) -> datetime:
        """A clock that moves a second each time it is read, so that dates are ordered and fixed."""
        start = datetime(2026, 1, 1, tzinfo=timezone.utc)
        return start + timedelta(seconds=next(self._ticks))

    def new_id(self, text: str) -> str:
        """24 hexadecimal digits, as the Hub's database gives them."""
        return hashlib.sha1(f"{text}{next(self._ticks)}".encode()).hexdigest()[:24]

    def create_repo(
        self, kind: str, name: str, private: bool, author: str, sdk: str | None
    ) -> Repo:
        """A repository with the first commit that the Hub makes in it."""
        repo = Repo(kind, name, private, sdk)
        tree = {".gitattributes": File(NEW_ATTRIBUTES)}
        if kind == "dataset":
            media = "".join(f"*.{suffix} {LFS_ATTRIBUTES}\n" for suffix in MEDIA)
            tree[".gitattributes"] = File(NEW_ATTRIBUTES + media.encode())
        if kind == "space":
            card = f"---\ntitle: {name.split('/')[1]}\nsdk: {sdk}\ncolorFrom: red\ncolorTo: blue\n"
            tree["README.md"] = File(f"{card}pinned: false\n---\n".encode())
        if sdk == "static":
            tree["index.html"] = File(b"<!doctype html>\n<p>Welcome to your static Space!</p>\n")
            tree["style.css"] = File(b"body { padding: 2rem; }\n")
        repo.add_commit("main", tree, "initial commit", "", author, self.now())
        self.repos[kind, name] = repo
        return repo
