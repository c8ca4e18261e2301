"""What every route of the fake Hub shares: requests and answers, who may do what, pages of a list.

A refusal has the status, the `X-Error-Code` and the `X-Error-Message` of the real Hub, which is
what the client makes its exceptions of. One difference: without a token the real Hub answers a
request for a repository that is not there with a bare 401, which the client takes for "not found"
because of its `https` address; here, over `http`, the code `RepoNotFound` says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode

from fake_hub.store import Account, Commit, File, Repo, Store
from fake_hub.xet import read_file

KINDS = r"(?P<kind>model|dataset|space)s"
NAME = r"(?P<name>[^/]+/[^/]+?)"
API_REPO = rf"/api/{KINDS}/{NAME}"
WEB_REPO = rf"/(?:(?P<kind>dataset|space)s/)?{NAME}"
REVISION = r"(?P<revision>[^/]+)"


@dataclass
class Request:
    """A request, also as an entry of the log.

    Attributes:
        origin: `hub`, or `storage` for the second address, where large files lie.
        path: as it came, still quoted, without the query.
        headers: by lower-case name; `authorization` is kept.
        num_received: bytes of the body that came in.
        status: that it was answered with; None where the connection was dropped instead.
        num_sent: bytes of the body that went out.
    """

    origin: str
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes = field(default=b"", repr=False)
    num_received: int = 0
    status: int | None = None
    num_sent: int = 0

    @property
    def token(self) -> str | None:
        """The token that it brings."""
        kind, _, token = self.headers.get("authorization", "").partition(" ")
        return token if kind == "Bearer" else None

    def json(self) -> Any:
        """The body as JSON."""
        try:
            return json.loads(self.body or b"{}")
        except ValueError as error:
            raise RefusalError(400, f"the body is no JSON: {error}") from error

    def first(self, key: str, default: str = "") -> str:
        """The first value of a parameter of the query."""
        return self.query.get(key, [default])[0]

    def is_set(self, key: str) -> bool:
        """Whether a parameter of the query says yes."""
        return self.first(key).lower() in ("1", "true")

    def expands(self) -> list[str]:
        """What `expand` asks for."""
        return [*self.query.get("expand", []), *self.query.get("expand[]", [])]


@dataclass
class Response:
    """An answer; anything but bytes becomes JSON."""

    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    def content(self) -> bytes:
        """The body as it goes out."""
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


class RefusalError(Exception):
    """An answer that says no; `code` is the Hub's own name for the reason."""

    def __init__(self, status: int, message: str, code: str | None = None, **fields: Any) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.fields = status, message, code, fields
        self.headers: dict[str, str] = {}

    def response(self) -> Response:
        """The answer with the headers that the client reads."""
        headers = {**self.headers, "X-Error-Message": self.message.replace("\n", " ")}
        if self.code:
            headers["X-Error-Code"] = self.code
        return Response({"error": self.message, **self.fields}, self.status, headers)


Handler = Callable[..., Any]
ROUTES: list[tuple[str, str, re.Pattern[str], Handler]] = []


def route(method: str, pattern: str, origin: str = "hub") -> Callable[[Handler], Handler]:
    """Register a function as what answers requests whose whole path matches `pattern`.

    It gets the site, the request, and the pattern's named groups, unquoted.
    """

    def register(handler: Handler) -> Handler:
        ROUTES.append((origin, method, re.compile(pattern), handler))
        return handler

    return register


@dataclass
class Site:
    """What a handler works with: the store, the two addresses, and the limits that a test sets.

    Attributes:
        page_size: entries in a page of a list.
        chunk_size: bytes above which a large file is uploaded in parts of that size; None: never.
        chunks: the folder for what comes by Xet; None where Xet is not offered.
        uploaded: bytes received by object, by sha256 of large files and git id of regular ones.
        parts: by upload and number, until the upload is completed.
    """

    store: Store
    endpoint: str = ""
    storage: str = ""
    page_size: int = 1000
    chunk_size: int | None = None
    chunks: Path | None = None
    secret: bytes = b""
    uploaded: dict[str, int] = field(default_factory=dict)
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)

    def answer(self, request: Request) -> Response:
        """The answer to a request; a refusal is one too."""
        method = "GET" if request.method == "HEAD" else request.method
        try:
            for origin, wanted, pattern, handler in ROUTES:
                match = pattern.fullmatch(request.path)
                if match and (origin, wanted) == (request.origin, method):
                    groups = {k: v and unquote(v) for k, v in match.groupdict().items()}
                    result = handler(self, request, **groups)
                    return result if isinstance(result, Response) else Response(result)
            raise RefusalError(
                404, f"Sorry, we can't find the page you are looking for: {request.path}"
            )
        except RefusalError as refusal:
            return refusal.response()

    def account(self, request: Request) -> Account | None:
        """Who asks; None without a token. A wrong token is refused everywhere."""
        if request.token is None:
            return None
        if request.token not in self.store.tokens:
            raise RefusalError(401, "Invalid credentials in Authorization header")
        return self.store.tokens[request.token][0]

    def member(self, request: Request) -> Account:
        """Who asks, which has to be known."""
        account = self.account(request)
        if account is None:
            raise RefusalError(401, "Invalid username or password.")
        return account

    def writer(self, request: Request, namespace: str, act: str) -> Account:
        """Who asks, with the right to write in a namespace."""
        account = self.member(request)
        if self.store.tokens[request.token or ""][1] != "write":
            raise RefusalError(403, f"You must use a write token to {act}")
        role = "admin" if account.name == namespace else account.orgs.get(namespace)
        if role not in ("write", "admin"):
            raise RefusalError(
                403, f'You don\'t have the rights to {act} under the namespace "{namespace}"'
            )
        return account

    def repo(self, request: Request, kind: str | None, name: str) -> Repo:
        """A repository that whoever asks may see; a private one is not there for others."""
        account = self.account(request)
        repo = self.store.repos.get((kind or "model", name))
        if repo is not None and (not repo.private or self.belongs(account, repo)):
            return repo
        if account is None:
            raise RefusalError(401, "Invalid username or password.", "RepoNotFound")
        raise RefusalError(404, "Repository not found", "RepoNotFound")

    def writable(self, request: Request, kind: str | None, name: str, act: str) -> Repo:
        """A repository that whoever asks may change."""
        repo = self.repo(request, kind, name)
        self.writer(request, repo.namespace, act)
        return repo

    def downloadable(self, request: Request, kind: str | None, name: str) -> Repo:
        """A repository whose files whoever asks may read: a gated one is for its owners."""
        repo = self.repo(request, kind, name)
        account = self.account(request)
        if repo.gated and not self.belongs(account, repo):
            text = f"Access to {repo.kind} {name} is restricted"
            hint = "you are not in the authorized list" if account else "you must be authenticated"
            raise RefusalError(403 if account else 401, f"{text} and {hint}.", "GatedRepo")
        return repo

    @staticmethod
    def belongs(account: Account | None, repo: Repo) -> bool:
        """Whether someone is the owner of a repository or of its organization."""
        return account is not None and repo.namespace in (account.name, *account.orgs)

    def content(self, repo: Repo, file: File) -> bytes:
        """The real bytes of a file."""
        if file.sha256 is None:
            return file.content
        if file.sha256 not in repo.large:
            assert self.chunks is not None
            repo.large[file.sha256] = read_file(self.chunks, *repo.chunked[file.sha256])
        return repo.large[file.sha256]

    @staticmethod
    def commit(repo: Repo, revision: str) -> Commit:
        """The commit that a revision names."""
        commit = repo.find(revision)
        if commit is None:
            raise RefusalError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit

    def page(self, request: Request, items: list[Any]) -> Response:
        """A page of a list, with the address of the next one in the header `Link`."""
        size = min(int(request.first("limit", str(self.page_size))), self.page_size)
        start = int(request.first("cursor", "0"))
        headers = {}
        if start + size < len(items):
            query = {**request.query, "cursor": [str(start + size)]}
            address = f"{self.endpoint}{request.path}?{urlencode(query, doseq=True)}"
            headers["Link"] = f'<{address}>; rel="next"'
        return Response(items[start : start + size], headers=headers)


def parse_query(text: str) -> dict[str, list[str]]:
    """The parameters of a query or of a form."""
    return parse_qs(text, keep_blank_values=True)
