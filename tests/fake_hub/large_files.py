"""Routes of large files: git-LFS batches on the Hub, and the storage at an address of its own.

The storage takes no token: its addresses are signed, as those of the real one are. An object is
kept for its repository alone, and only where its content has the sha256 it was announced with.

Uploading, the client does not negotiate: it takes Xet wherever `hf_xet` is installed, so without
`FakeHub.offer_xet` it is told not to, by HF_HUB_DISABLE_XET. Downloading, it takes Xet where the
answer to `resolve` has `X-Xet-Hash`, which is the case for files that came by Xet.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from math import ceil
from typing import Any
from urllib.parse import quote, urlencode

from fake_hub.routes import (
    API_REPO,
    REVISION,
    WEB_REPO,
    RefusalError,
    Request,
    Response,
    Site,
    route,
)
from fake_hub.store import File, Repo
from fake_hub.xet import SECONDS_VALID

OBJECT = r"/(?P<kind>model|dataset|space)/(?P<name>[^/]+/[^/]+)/(?P<oid>[0-9a-f]{64})"


def _signature(site: Site, *parts: object) -> str:
    return hmac.new(site.secret, repr(parts).encode(), hashlib.sha256).hexdigest()


def storage_address(site: Site, repo: Repo, oid: str, act: str, part: int = 0) -> str:
    """The signed address of an object in the storage, for one act: `read` or `write`."""
    path = f"/{repo.kind}/{quote(repo.name)}/{oid}"
    signature = _signature(site, repo.kind, repo.name, oid, act, part)
    query: dict[str, Any] = {"act": act, "part": part, "X-Amz-Signature": signature}
    return f"{site.storage}{path}?{urlencode(query)}"


def _signed_repo(
    site: Site, request: Request, act: str, kind: str, name: str, oid: str
) -> tuple[Repo, int]:
    """The repository and the part that a signed address is good for."""
    part = int(request.first("part", "0"))
    signature = _signature(site, kind, name, oid, act, part)
    if not hmac.compare_digest(signature, request.first("X-Amz-Signature")):
        raise RefusalError(403, "SignatureDoesNotMatch")
    repo = site.store.repos.get((kind, name))
    if repo is None:
        raise RefusalError(404, "NoSuchBucket")
    return repo, part


@route("POST", rf"{WEB_REPO}\.git/info/lfs/objects/batch")
def batch(site: Site, request: Request, kind: str | None, name: str) -> Response:
    """Where each object is to be uploaded; an object that is there has no actions."""
    body = request.json()
    if body.get("operation") != "upload":
        raise RefusalError(400, f"operation {body.get('operation')!r} is not served here")
    repo = site.repo(request, kind, name)
    if body.get("ref"):
        # Without a ref it is for a pull request, which anybody may make.
        site.writable(request, kind, name, "upload to a repository")
    site.member(request)
    in_parts = site.chunk_size is not None and "multipart" in body.get("transfers", [])
    objects = [_instructions(site, repo, each, in_parts) for each in body["objects"]]
    answer = {"transfer": "multipart" if in_parts else "basic", "objects": objects}
    return Response(answer, headers={"Content-Type": "application/vnd.git-lfs+json"})


def _instructions(site: Site, repo: Repo, asked: dict[str, Any], in_parts: bool) -> dict[str, Any]:
    oid, size = asked["oid"], asked["size"]
    entry = {"oid": oid, "size": size, "authenticated": True}
    if repo.has(oid):
        return entry
    upload: dict[str, Any] = {"href": storage_address(site, repo, oid, "write")}
    if in_parts and site.chunk_size and size > site.chunk_size:
        numbers = range(1, ceil(size / site.chunk_size) + 1)
        parts = {str(i): storage_address(site, repo, oid, "write", i) for i in numbers}
        upload["header"] = {"chunk_size": str(site.chunk_size), **parts}
        query = {"oid": oid, "signature": _signature(site, repo.kind, repo.name, oid, "complete")}
        place = f"/{repo.web_path}.git/info/lfs/objects/complete"
        upload["href"] = f"{site.endpoint}{place}?{urlencode(query)}"
    verify = {"href": f"{site.endpoint}/{repo.web_path}.git/info/lfs/objects/verify"}
    return {**entry, "actions": {"upload": upload, "verify": verify}}


@route("GET", rf"{API_REPO}/xet-(?P<act>read|write)-token/{REVISION}")
def xet_token(
    site: Site, request: Request, kind: str, name: str, act: str, revision: str
) -> Response:
    """A short-lived token for the chunks, with their address."""
    if site.chunks is None:
        raise RefusalError(404, "Xet is not offered here")
    if act == "write" and not request.is_set("create_pr"):
        site.writable(request, kind, name, "upload to a repository")
    else:
        site.downloadable(request, kind, name)
    address, expires = f"local://{site.chunks}", int(time.time()) + SECONDS_VALID
    headers = {
        "X-Xet-Cas-Url": address,
        "X-Xet-Access-Token": f"xet-{act}",
        "X-Xet-Token-Expiration": str(expires),
    }
    body = {"casUrl": address, "exp": expires, "accessToken": f"xet-{act}"}
    return Response(body, headers=headers)


@route("POST", rf"{API_REPO}/lfs-files/duplicate")
def duplicate(site: Site, request: Request, kind: str, name: str) -> Any:
    """Make large files of one repository known to another, which a commit there may then name."""
    source = site.downloadable(request, kind, name)
    body = request.json()
    target = body["target"]
    repo = site.writable(request, target["type"], target["name"], "upload to a repository")
    failed = []
    for file in body["files"]:
        oid = file["sha256"]
        if not source.has(oid):
            failed.append({"sha256": oid, "error": "not found"})
        for held, wanted in ((source.large, repo.large), (source.chunked, repo.chunked)):
            wanted.update({oid: held[oid]} if oid in held else {})
    return {"failed": failed}


def _keep(repo: Repo, oid: str, content: bytes) -> None:
    if hashlib.sha256(content).hexdigest() != oid:
        raise RefusalError(
            400, f"BadDigest: the {len(content)} bytes received do not have sha256 {oid}"
        )
    repo.large[oid] = content


@route("PUT", OBJECT, origin="storage")
def put(site: Site, request: Request, kind: str, name: str, oid: str) -> Response:
    """An object, or a part of one."""
    repo, part = _signed_repo(site, request, "write", kind, name, oid)
    site.uploaded[oid] = site.uploaded.get(oid, 0) + len(request.body)
    if part:
        site.parts.setdefault(f"{repo.web_path}/{oid}", {})[part] = request.body
    else:
        _keep(repo, oid, request.body)
    etag = hashlib.md5(request.body, usedforsecurity=False).hexdigest()
    return Response(headers={"ETag": f'"{etag}"'})


@route("POST", rf"{WEB_REPO}\.git/info/lfs/objects/complete")
def complete(site: Site, request: Request, kind: str | None, name: str) -> Any:
    """Put the parts of an object together; the address is signed and needs no token."""
    oid = request.first("oid")
    signature = _signature(site, kind or "model", name, oid, "complete")
    if not hmac.compare_digest(signature, request.first("signature")):
        raise RefusalError(403, "SignatureDoesNotMatch")
    repo = site.store.repos[kind or "model", name]
    parts = site.parts.get(f"{repo.web_path}/{oid}", {})
    named = [part["partNumber"] for part in request.json()["parts"]]
    if named != sorted(parts):
        raise RefusalError(400, f"InvalidPart: parts {named} named, {sorted(parts)} received")
    _keep(repo, oid, b"".join(parts[number] for number in named))
    del site.parts[f"{repo.web_path}/{oid}"]
    return {}


@route("POST", rf"{WEB_REPO}\.git/info/lfs/objects/verify")
def verify(site: Site, request: Request, kind: str | None, name: str) -> Any:
    """Whether an object is there in full."""
    repo = site.repo(request, kind, name)
    body = request.json()
    if len(repo.large.get(body["oid"], b"")) != body["size"]:
        raise RefusalError(404, f"object {body['oid']} is not there with {body['size']} bytes")
    return {}


@route("GET", OBJECT, origin="storage")
def get(site: Site, request: Request, kind: str, name: str, oid: str) -> Response:
    """An object, or the range of it that is asked for."""
    repo, _ = _signed_repo(site, request, "read", kind, name, oid)
    if not repo.has(oid):
        raise RefusalError(404, "NoSuchKey")
    content = site.content(repo, File(sha256=oid))
    return ranged(request, content, {"ETag": f'"{oid}"'})


def ranged(request: Request, content: bytes, headers: dict[str, str]) -> Response:
    """The part of a content that the header `Range` asks for."""
    headers = {"Accept-Ranges": "bytes", **headers}
    wanted = request.headers.get("range", "").removeprefix("bytes=")
    if not wanted:
        return Response(content, headers=headers)
    first, _, last = wanted.partition("-")
    size = len(content)
    start = int(first) if first else max(size - int(last), 0)
    stop = min(int(last) + 1, size) if first and last else size
    if start >= stop:
        return Response(status=416, headers={**headers, "Content-Range": f"bytes */{size}"})
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    return Response(content[start:stop], 206, headers)
