"""Routes of files: what is to be uploaded how, commits, listings and downloads."""

from __future__ import annotations

import base64
import json
from typing import Any

from fake_hub.cards import check_card
from fake_hub.large_files import ranged, storage_address
from fake_hub.routes import (
    API_REPO,
    REVISION,
    WEB_REPO,
    RefusalError,
    Request,
    Response,
    Site,
    parse_query,
    route,
)
from fake_hub.store import (
    LFS_ATTRIBUTES,
    MAX_REGULAR_BYTES,
    Commit,
    File,
    Repo,
    Tree,
    is_ignored,
    matches_attributes,
    tree_ids,
)
from fake_hub.xet import known_files


def _committable(site: Site, request: Request, kind: str, name: str) -> Repo:
    """A repository that whoever asks may commit to; a pull request needs no right to write."""
    if request.is_set("create_pr"):
        site.member(request)
        return site.repo(request, kind, name)
    return site.writable(request, kind, name, "upload to a repository")


@route("POST", rf"{API_REPO}/preupload/{REVISION}")
def preupload(site: Site, request: Request, kind: str, name: str, revision: str) -> Any:
    """Says of every file whether it comes as a large one, and what lies at its path already."""
    repo = _committable(site, request, kind, name)
    tree = site.commit(repo, revision).tree
    body = request.json()
    ignored = body.get("gitIgnore")
    if ignored is None:
        ignored = tree.get(".gitignore", File()).content.decode()
    answers = []
    for file in body["files"]:
        path = file["path"]
        sample = base64.b64decode(file["sample"])
        mode = "lfs" if repo.is_large(tree, path, file["size"], sample) else "regular"
        answer = {"path": path, "uploadMode": mode, "shouldIgnore": is_ignored(ignored, path)}
        if path in tree:
            answer["oid"] = tree[path].sha256 or tree[path].git_id
        answers.append(answer)
    return {"files": answers}


@route("POST", rf"{API_REPO}/commit/{REVISION}")
def commit(site: Site, request: Request, kind: str, name: str, revision: str) -> Any:
    """One commit of the lines of the body: a header, then files, deletions and copies.

    Like the real one it takes a commit without changes, and one whose `parentCommit` is no longer
    the newest is refused with 412.
    """
    repo = _committable(site, request, kind, name)
    account = site.member(request)
    ref, parent = _target(site, request, repo, revision)
    lines = [json.loads(line) for line in request.body.splitlines() if line.strip()]
    header = next(line["value"] for line in lines if line["key"] == "header")
    if not header.get("summary"):
        raise RefusalError(400, '"value.summary" is not allowed to be empty')
    wanted = header.get("parentCommit")
    if wanted and not parent.id.startswith(wanted):
        raise RefusalError(412, "A commit has happened since. Please refresh and try again.")
    tree = dict(parent.tree)
    for line in lines:
        if line["key"] != "header":
            _apply(site, repo, tree, line["key"], line["value"])
    _track_large_files(tree)
    text = tree.get("README.md", File()).content
    if text != parent.tree.get("README.md", File()).content:
        errors, _ = check_card(text.decode(errors="replace"), repo.kind)
        if errors:
            raise RefusalError(400, "Invalid metadata in README.md: " + "; ".join(errors))
    url = f"{site.endpoint}/{repo.web_path}"
    pull = None
    if request.is_set("create_pr"):
        number = len(repo.pulls) + 1
        ref, pull = f"refs/pr/{number}", f"{url}/discussions/{number}"
        repo.pulls[ref] = parent
    title, message = header["summary"], header.get("description") or ""
    made = repo.add_commit(ref, tree, title, message, account.name, site.store.now())
    address = f"{url}/commit/{made.id}"
    return {"success": True, "commitOid": made.id, "commitUrl": address, "pullRequestUrl": pull}


def _target(site: Site, request: Request, repo: Repo, revision: str) -> tuple[str, Commit]:
    """The branch or pull request that a commit goes to, with its newest commit."""
    ref = revision.removeprefix("refs/heads/")
    if ref in repo.branches or ref in repo.pulls or request.is_set("create_pr"):
        return ref, site.commit(repo, ref)
    raise RefusalError(404, f"Invalid rev id: {revision}", "RevisionNotFound")


def _apply(site: Site, repo: Repo, tree: Tree, key: str, value: dict[str, Any]) -> None:
    path = value.get("path", "")
    if path.startswith("/") or not all(part.strip(".") for part in path.rstrip("/").split("/")):
        raise RefusalError(400, f'"path" with value "{path}" is no valid path')
    if key == "file":
        content = value["content"]
        raw = base64.b64decode(content) if value.get("encoding") == "base64" else content.encode()
        if len(raw) > MAX_REGULAR_BYTES or (raw and matches_attributes(tree, path)):
            raise RefusalError(400, f"Your push was rejected because {path} has to be a large file")
        tree[path] = File(raw)
        oid = tree[path].git_id
        site.uploaded[oid] = site.uploaded.get(oid, 0) + len(raw)
    elif key == "lfsFile":
        tree[path] = _large_file(site, repo, value["oid"], path)
    elif key == "deletedFile":
        _delete(tree, [path] if path in tree else [], "file", path)
    elif key == "deletedFolder":
        folder = path.rstrip("/") + "/"
        _delete(tree, [each for each in tree if each.startswith(folder)], "folder", path)
    elif key == "copyFile":
        source = value["srcPath"]
        found = site.commit(repo, value["srcRevision"]).tree if value.get("srcRevision") else tree
        if source not in found:
            raise RefusalError(
                404, f"A file with this name doesn't exist: {source}", "EntryNotFound"
            )
        tree[path] = found[source]
    else:
        raise RefusalError(400, f"unknown operation of a commit: {key}")


def _large_file(site: Site, repo: Repo, oid: str, path: str) -> File:
    """A large file that has been uploaded before."""
    if not repo.has(oid) and site.chunks is not None:
        repo.chunked.update({k: v for k, v in known_files(site.chunks).items() if k == oid})
    if not repo.has(oid):
        raise RefusalError(
            400,
            "Your push was rejected because an LFS pointer pointed to a file that does not exist."
            f" Offending file: - {path}",
        )
    size = repo.chunked[oid][1] if oid in repo.chunked else len(repo.large[oid])
    return File(sha256=oid, large_size=size)


def _delete(tree: Tree, paths: list[str], kind: str, path: str) -> None:
    if not paths:
        raise RefusalError(404, f"A {kind} with this name doesn't exist: {path}", "EntryNotFound")
    for each in paths:
        del tree[each]


def _track_large_files(tree: Tree) -> None:
    """Add to .gitattributes what is large without a pattern of its own, as the Hub does."""
    untracked = [k for k, f in sorted(tree.items()) if f.sha256 and not matches_attributes(tree, k)]
    if untracked:
        lines = "".join(f"{path} {LFS_ATTRIBUTES}\n" for path in untracked)
        tree[".gitattributes"] = File(tree.get(".gitattributes", File()).content + lines.encode())


def _entry(
    repo: Repo, commit: Commit, path: str, oids: dict[str, str], expand: bool
) -> dict[str, Any]:
    """A file or folder as the listing shows it."""
    entry: dict[str, Any] = {"type": "directory", "oid": oids.get(path), "size": 0, "path": path}
    file = commit.tree.get(path)
    if file is not None:
        entry.update(type="file", oid=file.git_id, size=file.size)
        if file.sha256:
            pointer_size = len(file.git_content)
            entry["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": pointer_size}
        if file.sha256 in repo.chunked:
            entry["xetHash"] = repo.chunked[file.sha256][0]
    if expand:
        last = commit.last_change(path)
        date = last.date.strftime("%Y-%m-%dT%H:%M:%S.000Z")
        entry["lastCommit"] = {"id": last.id, "title": last.title, "date": date}
        scan = {"status": "safe", "message": None}
        status = {"status": "safe", "avScan": scan, "pickleImportScan": scan}
        if file is not None:
            entry["securityFileStatus"] = status
    return entry


@route("GET", rf"{API_REPO}/tree/{REVISION}(?:/(?P<path>.+))?")
def list_tree(
    site: Site, request: Request, kind: str, name: str, revision: str, path: str | None
) -> Response:
    repo = site.downloadable(request, kind, name)
    commit = site.commit(repo, revision)
    folder = (path or "").strip("/")
    oids = tree_ids(commit.tree)
    if folder not in oids:
        raise RefusalError(404, f'{folder} does not exist on "{revision}"', "EntryNotFound")
    prefix = folder and folder + "/"
    inside = [each for each in [*oids, *commit.tree] if each and each.startswith(prefix)]
    if not request.is_set("recursive"):
        inside = [each for each in inside if "/" not in each.removeprefix(prefix)]
    expand = request.is_set("expand")
    return site.page(request, [_entry(repo, commit, each, oids, expand) for each in sorted(inside)])


@route("POST", rf"{API_REPO}/paths-info/{REVISION}")
def paths_info(site: Site, request: Request, kind: str, name: str, revision: str) -> Any:
    """What lies at the given paths; those where nothing lies are left out."""
    repo = site.downloadable(request, kind, name)
    commit = site.commit(repo, revision)
    if "json" in request.headers.get("content-type", ""):
        body = request.json()
        paths, expand = body.get("paths", []), bool(body.get("expand"))
    else:
        form = parse_query(request.body.decode())
        paths, expand = form.get("paths", []), form.get("expand", [""])[0].lower() == "true"
    oids = tree_ids(commit.tree)
    found = [path.strip("/") for path in paths]
    found = [path for path in found if path in commit.tree or (path and path in oids)]
    return [_entry(repo, commit, path, oids, expand) for path in found]


def _find(site: Site, repo: Repo, revision: str, path: str) -> tuple[Commit, File]:
    commit = site.commit(repo, revision)
    if path not in commit.tree:
        refusal = RefusalError(404, "Entry not found", "EntryNotFound")
        refusal.headers["X-Repo-Commit"] = commit.id
        raise refusal
    return commit, commit.tree[path]


@route("GET", rf"{WEB_REPO}/resolve/{REVISION}/(?P<path>.+)")
def resolve(
    site: Site, request: Request, kind: str | None, name: str, revision: str, path: str
) -> Response:
    """The file itself, or the way to the storage for a large one."""
    repo = site.downloadable(request, kind, name)
    commit, file = _find(site, repo, revision, path)
    disposition = f'inline; filename="{path.split("/")[-1]}";'
    headers = {"X-Repo-Commit": commit.id, "Content-Disposition": disposition}
    if file.sha256 is None:
        return ranged(request, file.content, {**headers, "ETag": f'"{file.git_id}"'})
    etag = f'"{file.sha256}"'
    headers.update({"X-Linked-Size": str(file.size), "X-Linked-Etag": etag, "ETag": etag})
    headers["Location"] = storage_address(site, repo, file.sha256, "read")
    if file.sha256 in repo.chunked:
        headers["X-Xet-Hash"] = repo.chunked[file.sha256][0]
        place = f"{site.endpoint}/api/{repo.kind}s/{repo.name}/xet-read-token/{commit.id}"
        headers["Link"] = f'<{place}>; rel="xet-auth"'
    text = f"Found. Redirecting to {headers['Location']}"
    return Response(text.encode(), 302, headers)


@route("GET", rf"{WEB_REPO}/raw/{REVISION}/(?P<path>.+)")
def raw(
    site: Site, request: Request, kind: str | None, name: str, revision: str, path: str
) -> Response:
    """What git stores: for a large file the pointer."""
    repo = site.downloadable(request, kind, name)
    commit, file = _find(site, repo, revision, path)
    return Response(file.git_content, headers={"X-Repo-Commit": commit.id})
