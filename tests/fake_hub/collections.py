"""Routes of collections: lists of repositories with a title and an owner."""

from __future__ import annotations

import re
from typing import Any

from fake_hub.routes import RefusalError, Request, Response, Site, route

SLUG = r"(?P<slug>[^/]+/[^/]+)"
# A list of collections shows no more items of each.
NUM_ITEMS_LISTED = 4


def _date(site: Site) -> str:
    return site.store.now().strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _visible(site: Site, request: Request, slug: str) -> dict[str, Any]:
    """A collection that whoever asks may see."""
    account = site.account(request)
    collection = site.store.collections.get(slug)
    owner = slug.split("/")[0]
    mine = account is not None and owner in (account.name, *account.orgs)
    if collection is None or (collection["private"] and not mine):
        raise RefusalError(404, "Collection not found")
    return collection


def _writable(site: Site, request: Request, slug: str) -> dict[str, Any]:
    collection = _visible(site, request, slug)
    site.writer(request, slug.split("/")[0], "change a collection")
    collection["lastUpdated"] = _date(site)
    return collection


def _renumber(items: list[dict[str, Any]]) -> None:
    for position, item in enumerate(items):
        item["position"] = position


def _item(collection: dict[str, Any], item_id: str) -> Any:
    for item in collection["items"]:
        if item["_id"] == item_id:
            return item
    raise RefusalError(404, "Collection item not found")


@route("POST", "/api/collections")
def create(site: Site, request: Request) -> Any:
    body = request.json()
    owner, title = body["namespace"], body["title"]
    site.writer(request, owner, "create a collection")
    if not 0 < len(title) < 60:
        raise RefusalError(400, '"title" length must be less than 60 characters long')
    if len(body.get("description") or "") > 150:
        raise RefusalError(
            400, '"description" length must be less than or equal to 150 characters long'
        )
    for slug, other in site.store.collections.items():
        if slug.split("/")[0] == owner and other["title"] == title:
            raise RefusalError(409, "You already have a collection with this title", slug=slug)
    words = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    slug = f"{owner}/{words}-{site.store.new_id(title)}"
    collection = {
        "slug": slug,
        "title": title,
        "description": body.get("description"),
        "owner": {"name": owner, "fullname": owner, "type": "user"},
        "items": [],
        "lastUpdated": _date(site),
        "position": len(site.store.collections),
        "private": bool(body.get("private")),
        "theme": "orange",
        "upvotes": 0,
    }
    site.store.collections[slug] = collection
    return collection


@route("GET", "/api/collections")
def list_all(site: Site, request: Request) -> Response:
    account = site.account(request)
    owners = request.query.get("owner", [])
    wanted = request.first("item")
    found = []
    for slug, collection in site.store.collections.items():
        owner = slug.split("/")[0]
        mine = account is not None and owner in (account.name, *account.orgs)
        names = {f"{item['type']}s/{item['id']}" for item in collection["items"]}
        if (owners and owner not in owners) or (wanted and wanted not in names):
            continue
        if mine or not collection["private"]:
            shown = {**collection, "items": collection["items"][:NUM_ITEMS_LISTED]}
            # The client counts positions itself.
            del shown["position"]
            found.append(shown)
    return site.page(request, found)


@route("GET", f"/api/collections/{SLUG}")
def get(site: Site, request: Request, slug: str) -> Any:
    return _visible(site, request, slug)


@route("PATCH", f"/api/collections/{SLUG}")
def change(site: Site, request: Request, slug: str) -> Any:
    collection = _writable(site, request, slug)
    allowed = ("title", "description", "position", "private", "theme")
    collection.update({k: v for k, v in request.json().items() if k in allowed})
    return {"success": True, "data": collection}


@route("DELETE", f"/api/collections/{SLUG}")
def delete(site: Site, request: Request, slug: str) -> Any:
    _writable(site, request, slug)
    del site.store.collections[slug]
    return {"success": True}


@route("POST", f"/api/collections/{SLUG}/items")
def add_item(site: Site, request: Request, slug: str) -> Any:
    collection = _writable(site, request, slug)
    body = request.json()
    kind, name = body["item"]["type"], body["item"]["id"]
    if kind in ("model", "dataset", "space"):
        site.repo(request, kind, name)
    if any((item["type"], item["id"]) == (kind, name) for item in collection["items"]):
        raise RefusalError(409, "Item is already in the collection")
    item = {"_id": site.store.new_id(name), "id": name, "type": kind}
    if body.get("note"):
        item["note"] = {"text": body["note"], "html": body["note"]}
    collection["items"].append(item)
    _renumber(collection["items"])
    return collection


@route("PATCH", f"/api/collections/{SLUG}/items/(?P<item>[^/]+)")
def change_item(site: Site, request: Request, slug: str, item: str) -> Any:
    collection = _writable(site, request, slug)
    found = _item(collection, item)
    body = request.json()
    if "note" in body:
        found["note"] = {"text": body["note"], "html": body["note"]}
    if "position" in body:
        collection["items"].remove(found)
        collection["items"].insert(body["position"], found)
        _renumber(collection["items"])
    return {"success": True}


@route("DELETE", f"/api/collections/{SLUG}/items/(?P<item>[^/]+)")
def delete_item(site: Site, request: Request, slug: str, item: str) -> Any:
    collection = _writable(site, request, slug)
    collection["items"].remove(_item(collection, item))
    _renumber(collection["items"])
    return {"success": True}
