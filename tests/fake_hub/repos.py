"""Routes about who asks, repositories, their refs and history, and collections."""

from __future__ import annotations

from typing import Any

from fake_hub.cards import card_metadata, check_card
from fake_hub.routes import API_REPO, KINDS, REVISION, RefusalError, Request, Response, Site, route
from fake_hub.store import Commit, File, Repo


@route("GET", "/api/whoami-v2")
def whoami(site: Site, request: Request) -> Any:
    account = site.member(request)
    role = site.store.tokens[request.token or ""][1]
    orgs = [
        {"type": "org", "name": org, "fullname": org, "roleInOrg": kind}
        for org, kind in account.orgs.items()
    ]
    token = {"displayName": "test", "role": role}
    auth = {"type": "access_token", "accessToken": token}
    return {
        "type": "user",
        "name": account.name,
        "fullname": account.name,
        "orgs": orgs,
        "auth": auth,
    }


@route("GET", "/api/agent-harnesses")
def agent_harnesses(site: Site, request: Request) -> Any:
    """A list that the client asks for to name its host program; none is known here."""
    return {"standardEnvVars": [], "harnesses": {}}


@route("GET", "/api/telemetry/.*")
def telemetry(site: Site, request: Request) -> Any:
    return {}


@route("POST", "/api/validate-yaml")
def validate_yaml(site: Site, request: Request) -> Response:
    body = request.json()
    errors, warnings = check_card(body["content"], body.get("repoType") or "model")
    answer = {
        "errors": [{"message": text} for text in errors],
        "warnings": [{"message": text} for text in warnings],
    }
    return Response(answer, 400 if errors else 200)


def _full_name(site: Site, request: Request, body: dict[str, Any]) -> str:
    return f"{body.get('organization') or site.member(request).name}/{body['name']}"


@route("POST", "/api/repos/create")
def create_repo(site: Site, request: Request) -> Any:
    body = request.json()
    kind = body.get("type") or "model"
    name = _full_name(site, request, body)
    account = site.writer(request, name.split("/")[0], f"create a {kind}")
    existing = site.store.repos.get((kind, name))
    if existing is not None:
        url = f"{site.endpoint}/{existing.web_path}"
        raise RefusalError(409, f"You already created this {kind} repo", url=url)
    if kind == "space" and body.get("sdk") not in ("gradio", "streamlit", "docker", "static"):
        raise RefusalError(400, '"sdk" must be one of [gradio, streamlit, docker, static]')
    private = body.get("visibility") == "private" or body.get("private") is True
    repo = site.store.create_repo(kind, name, private, account.name, body.get("sdk"))
    return {"url": f"{site.endpoint}/{repo.web_path}", "name": name, "id": site.store.new_id(name)}


@route("DELETE", "/api/repos/delete")
def delete_repo(site: Site, request: Request) -> Any:
    body = request.json()
    kind, name = body.get("type") or "model", _full_name(site, request, body)
    site.writable(request, kind, name, f"delete a {kind}")
    del site.store.repos[kind, name]
    return {}


@route("PUT", rf"{API_REPO}/settings")
def change_settings(site: Site, request: Request, kind: str, name: str) -> Any:
    repo = site.writable(request, kind, name, "change settings")
    body = request.json()
    if "visibility" in body or "private" in body:
        repo.private = body.get("visibility") == "private" or body.get("private") is True
    repo.gated = body.get("gated", repo.gated)
    return {"private": repo.private, "gated": repo.gated}


@route("GET", rf"{API_REPO}/auth-check(?P<write>/write)?")
def check_access(site: Site, request: Request, kind: str, name: str, write: str | None) -> Any:
    site.downloadable(request, kind, name)
    if write:
        site.writable(request, kind, name, "write")
    return {}


@route("GET", f"/api/{KINDS}")
def list_repos(site: Site, request: Request, kind: str) -> Response:
    account = site.account(request)
    found = []
    for repo in site.store.repos.values():
        seen = repo.kind == kind and (not repo.private or site.belongs(account, repo))
        asked = repo.namespace == request.first("author", repo.namespace)
        if seen and asked and request.first("search").lower() in repo.name.lower():
            info = repo_facts(repo, repo.branches["main"], False)
            if set(request.query.get("filter", [])) <= set(info["tags"]):
                found.append(
                    {key: info[key] for key in info if key not in ("siblings", "cardData")}
                )
    return site.page(request, found)


@route("GET", rf"{API_REPO}(?:/revision/{REVISION})?")
def repo_info(
    site: Site, request: Request, kind: str, name: str, revision: str | None
) -> dict[str, Any]:
    repo = site.repo(request, kind, name)
    info = repo_facts(repo, site.commit(repo, revision or "main"), request.is_set("blobs"))
    expand = request.expands()
    return {k: v for k, v in info.items() if not expand or k in ("_id", "id", *expand)}


def repo_facts(repo: Repo, commit: Commit, with_blobs: bool) -> dict[str, Any]:
    """What the Hub tells of a repository at a commit."""
    try:
        card = card_metadata(commit.tree.get("README.md", File()).content.decode())
    except ValueError:
        card = {}
    *_, first = commit.history()
    facts: dict[str, Any] = {
        "_id": first.id[:24],
        "id": repo.name,
        "author": repo.namespace,
        "sha": commit.id,
        "lastModified": _date(commit),
        "createdAt": _date(first),
        "private": repo.private,
        "gated": repo.gated,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": _tags(card),
        "cardData": card,
        "siblings": [_sibling(k, f, with_blobs) for k, f in sorted(commit.tree.items())],
        "usedStorage": sum(file.size for file in commit.tree.values()),
    }
    if repo.kind == "model":
        facts["modelId"] = repo.name
        facts.update(
            {k: card[k] for k in ("library_name", "pipeline_tag", "model-index") if k in card}
        )
    if repo.kind == "space":
        host = repo.name.replace("/", "-").lower()
        stage = {
            "stage": "RUNNING",
            "hardware": {"current": None, "requested": None},
            "storage": None,
        }
        facts.update(sdk=repo.sdk, subdomain=host, host=f"https://{host}.static.hf.space")
        facts["runtime"] = {**stage, "gcTimeout": None, "replicas": {"requested": 1}}
    return facts


def _date(commit: Commit) -> str:
    return commit.date.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _tags(card: dict[str, Any]) -> list[str]:
    def listed(key: str) -> list[Any]:
        value = card.get(key) or []
        return value if isinstance(value, list) else [value]

    tags = [*listed("library_name"), *listed("tags"), *listed("language"), *listed("pipeline_tag")]
    for key, prefix in (
        ("license", "license"),
        ("base_model", "base_model"),
        ("datasets", "dataset"),
    ):
        tags += [f"{prefix}:{each}" for each in listed(key)]
    return list(dict.fromkeys(tags))


def _sibling(path: str, file: File, with_blobs: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {"rfilename": path}
    if with_blobs:
        entry.update(size=file.size, blobId=file.git_id)
        if file.sha256:
            pointer_size = len(file.git_content)
            entry["lfs"] = {"size": file.size, "sha256": file.sha256, "pointerSize": pointer_size}
    return entry


@route("GET", rf"{API_REPO}/refs")
def list_refs(site: Site, request: Request, kind: str, name: str) -> Any:
    repo = site.repo(request, kind, name)

    def listed(refs: dict[str, Commit], prefix: str) -> list[dict[str, str]]:
        return [
            {"name": each, "ref": f"{prefix}{each}", "targetCommit": commit.id}
            for each, commit in refs.items()
        ]

    return {
        "branches": listed(repo.branches, "refs/heads/"),
        "converts": [],
        "tags": listed(repo.tags, "refs/tags/"),
        "pullRequests": listed(repo.pulls, "") if request.is_set("include_prs") else [],
    }


@route("POST", rf"{API_REPO}/branch/(?P<branch>[^/]+)")
def create_branch(site: Site, request: Request, kind: str, name: str, branch: str) -> Any:
    repo = site.writable(request, kind, name, "create a branch")
    commit = site.commit(repo, request.json().get("startingPoint") or "main")
    if branch in repo.branches:
        raise RefusalError(409, f"Reference already exists: refs/heads/{branch}")
    repo.branches[branch] = commit
    return {}


@route("DELETE", rf"{API_REPO}/branch/(?P<branch>[^/]+)")
def delete_branch(site: Site, request: Request, kind: str, name: str, branch: str) -> Any:
    repo = site.writable(request, kind, name, "delete a branch")
    if branch == "main":
        raise RefusalError(403, "Cannot delete the default branch")
    if repo.branches.pop(branch, None) is None:
        raise RefusalError(404, f"Invalid rev id: {branch}", "RevisionNotFound")
    return {}


@route("POST", rf"{API_REPO}/tag/{REVISION}")
def create_tag(site: Site, request: Request, kind: str, name: str, revision: str) -> Any:
    repo = site.writable(request, kind, name, "create a tag")
    commit = site.commit(repo, revision)
    tag = request.json()["tag"]
    if tag in repo.tags:
        raise RefusalError(409, f"Tag already exists: {tag}")
    repo.tags[tag] = commit
    return {}


@route("DELETE", rf"{API_REPO}/tag/(?P<tag>[^/]+)")
def delete_tag(site: Site, request: Request, kind: str, name: str, tag: str) -> Any:
    repo = site.writable(request, kind, name, "delete a tag")
    if repo.tags.pop(tag, None) is None:
        raise RefusalError(404, f"Invalid rev id: {tag}", "RevisionNotFound")
    return {}


@route("GET", rf"{API_REPO}/commits/{REVISION}")
def list_commits(site: Site, request: Request, kind: str, name: str, revision: str) -> Response:
    repo = site.repo(request, kind, name)
    entries = []
    for commit in site.commit(repo, revision).history():
        entry: dict[str, Any] = {"id": commit.id, "title": commit.title, "message": commit.message}
        entry.update(authors=[{"user": commit.author}], date=_date(commit))
        if "formatted" in request.expands():
            entry["formatted"] = {"title": commit.title, "message": commit.message}
        entries.append(entry)
    return site.page(request, entries)


@route("POST", rf"{API_REPO}/super-squash/(?P<branch>[^/]+)")
def squash(site: Site, request: Request, kind: str, name: str, branch: str) -> Any:
    repo = site.writable(request, kind, name, "squash a branch")
    tree = site.commit(repo, branch).tree
    del repo.branches[branch]
    message = request.json().get("message", "Super-squash")
    repo.add_commit(branch, tree, message, "", site.member(request).name, site.store.now())
    return {}
