"""The fake Hub, seen by the real client: who may do what, collections, Spaces and cards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_hub import FakeHub
from huggingface_hub import (
    CommitOperationAdd,
    DatasetCard,
    ModelCard,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    whoami,
)
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import get_session
from pushed_folder import sha256, weights


def test_a_private_repository_is_not_there_for_strangers(fake_hub: FakeHub) -> None:
    fake_hub.api.create_repo("me/model", private=True)
    assert fake_hub.api.model_info("me/model").private
    for token in (False, fake_hub.stranger_token):
        with pytest.raises(RepositoryNotFoundError):
            fake_hub.api_of(token).model_info("me/model")
        with pytest.raises(RepositoryNotFoundError):
            hf_hub_download("me/model", "README.md", token=token)
    assert fake_hub.api_of(fake_hub.reader_token).model_info("me/model").id == "me/model"
    with pytest.raises(RepositoryNotFoundError):
        fake_hub.api.model_info("me/no-such")


def test_rights_are_those_of_the_token_and_the_organization(fake_hub: FakeHub) -> None:
    assert [org["name"] for org in whoami()["orgs"]] == ["lab", "club"]
    with pytest.raises(HfHubHTTPError, match="Invalid user token") as caught:
        fake_hub.api_of("hf_wrong").whoami()
    assert caught.value.response.status_code == 401
    fake_hub.api.create_repo("lab/model")
    with pytest.raises(HfHubHTTPError, match=r"(?s)403.*rights to create.*club"):
        fake_hub.api.create_repo("club/model")
    with pytest.raises(HfHubHTTPError, match=r"(?s)403.*write token"):
        fake_hub.api_of(fake_hub.reader_token).create_repo("me/model")
    for token, status in ((fake_hub.reader_token, "403"), (fake_hub.stranger_token, "403")):
        with pytest.raises(HfHubHTTPError, match=status):
            fake_hub.api_of(token).upload_file(
                repo_id="lab/model", path_or_fileobj=b"x", path_in_repo="x"
            )


def test_what_is_missing_has_its_own_error(fake_hub: FakeHub) -> None:
    api = fake_hub.api
    url = api.create_repo("me/model")
    assert api.create_repo("me/model", exist_ok=True) == url
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_repo("me/model")
    with pytest.raises(RevisionNotFoundError):
        api.model_info("me/model", revision="no-such")
    with pytest.raises(RemoteEntryNotFoundError):
        hf_hub_download("me/model", "no-such.json")
    assert not api.file_exists("me/model", "no-such.json")
    assert api.file_exists("me/model", ".gitattributes")
    api.update_repo_settings("me/model", gated="manual")
    for token in (False, fake_hub.stranger_token):
        with pytest.raises(GatedRepoError):
            hf_hub_download("me/model", ".gitattributes", token=token)
    assert [each.id for each in api.list_models(author="me", search="MOD")] == ["me/model"]
    assert list(api.list_models(author="lab")) == []
    api.delete_repo("me/model")
    with pytest.raises(RepositoryNotFoundError):
        api.delete_repo("me/model")
    api.delete_repo("me/model", missing_ok=True)


def test_only_what_was_uploaded_in_full_can_be_committed(fake_hub: FakeHub, tmp_path: Path) -> None:
    api = fake_hub.api
    api.create_repo("me/model")
    path = tmp_path / "a.bin"
    path.write_bytes(weights(1000))
    addition = CommitOperationAdd("a.bin", path)
    assert addition.upload_info.sha256.hex() == sha256(weights(1000))
    # Another process writes the file after it was hashed.
    path.write_bytes(weights(1000, seed=1))
    with pytest.raises(RuntimeError, match=r"uploading 'a\.bin'") as caught:
        api.create_commit("me/model", [addition], commit_message="changed meanwhile")
    assert "BadDigest" in str(caught.value.__cause__)
    lines = [
        {"key": "header", "value": {"summary": "never uploaded"}},
        {"key": "lfsFile", "value": {"path": "a.bin", "oid": sha256(weights(1000)), "size": 1000}},
    ]
    response = get_session().post(
        f"{fake_hub.endpoint}/api/models/me/model/commit/main",
        content="\n".join(map(json.dumps, lines)).encode(),
        headers={"Authorization": f"Bearer {fake_hub.token}"},
    )
    assert response.status_code == 400
    assert "pointed to a file that does not exist" in response.json()["error"]
    assert len(fake_hub.commits("me/model")) == 1


def test_the_storage_takes_signed_addresses_alone(fake_hub: FakeHub) -> None:
    api = fake_hub.api
    api.create_repo("me/model")
    api.upload_file(repo_id="me/model", path_or_fileobj=weights(1000), path_in_repo="a.bin")
    url = hf_hub_url("me/model", "a.bin")
    signed = get_hf_file_metadata(url).location
    assert get_session().get(signed).content == weights(1000)
    part = get_session().get(signed, headers={"Range": "bytes=-10"})
    assert (part.status_code, part.content) == (206, weights(1000)[-10:])
    assert get_session().get(signed, headers={"Range": "bytes=1000-"}).status_code == 416
    assert get_session().put(signed, content=weights(1000)).status_code == 403
    assert get_session().get(signed.replace("Signature=", "Signature=0")).status_code == 403
    assert get_session().get(signed.partition("?")[0]).status_code == 403


def test_a_collection_lists_repositories_once(fake_hub: FakeHub) -> None:
    api = fake_hub.api
    api.create_repo("me/model")
    api.create_repo("me/data", repo_type="dataset")
    made = api.create_collection("A run", namespace="me", description="All of it")
    assert api.create_collection("A run", namespace="me", exists_ok=True).slug == made.slug
    api.add_collection_item(made.slug, "me/model", "model", note="the model")
    api.add_collection_item(made.slug, "me/data", "dataset")
    api.add_collection_item(made.slug, "me/data", "dataset", exists_ok=True)
    with pytest.raises(HfHubHTTPError, match="409"):
        api.add_collection_item(made.slug, "me/data", "dataset")
    with pytest.raises(RepositoryNotFoundError):
        api.add_collection_item(made.slug, "me/no-such", "model")
    model, data = api.get_collection(made.slug).items
    assert (model.item_id, model.note, data.item_type) == ("me/model", "the model", "dataset")
    api.update_collection_item(made.slug, data.item_object_id, position=0, note="the data")
    notes = [item.note for item in api.get_collection(made.slug).items]
    assert notes == ["the data", "the model"]
    api.delete_collection_item(made.slug, model.item_object_id)
    assert [each.slug for each in api.list_collections(owner="me")] == [made.slug]
    api.update_collection_metadata(made.slug, private=True)
    with pytest.raises(HfHubHTTPError, match="404"):
        fake_hub.api_of(fake_hub.stranger_token).get_collection(made.slug)
    api.delete_collection(made.slug)
    assert list(api.list_collections(owner="me")) == []


def test_a_list_of_collections_shows_four_items_of_each(fake_hub: FakeHub) -> None:
    api = fake_hub.api
    slug = api.create_collection("Five", namespace="lab").slug
    for i in range(5):
        api.create_repo(f"lab/{i}")
        api.add_collection_item(slug, f"lab/{i}", "model")
    [listed] = api.list_collections(owner="lab")
    assert (len(listed.items), len(api.get_collection(slug).items)) == (4, 5)


def test_a_static_space_keeps_its_page(fake_hub: FakeHub) -> None:
    api = fake_hub.api
    url = api.create_repo("me/report", repo_type="space", space_sdk="static")
    assert (url.repo_type, url.repo_id) == ("space", "me/report")
    # What the Hub puts into a new one, to be written over.
    assert {"README.md", "index.html", "style.css"} <= fake_hub.files("me/report", "space").keys()
    page = b"<!doctype html><title>x</title>"
    api.upload_file(
        repo_id="me/report", repo_type="space", path_or_fileobj=page, path_in_repo="index.html"
    )
    assert fake_hub.files("me/report", "space")["index.html"] == page
    info = api.space_info("me/report")
    assert (info.sdk, info.card_data.sdk) == ("static", "static")


def test_cards_are_checked_for_what_the_hub_checks(fake_hub: FakeHub) -> None:
    good = "---\nlicense: apache-2.0\nbase_model: me/base\npipeline_tag: text-generation\n---\n# x"
    ModelCard(good).validate()
    DatasetCard("---\nlicense: mit\nsize_categories: [n<1K]\n---\n# x").validate()
    for wrong in ("license: apache2", "pipeline_tag: chat", "language: [no]", "tags: [1]"):
        with pytest.raises(ValueError, match="must be"):
            ModelCard(f"---\n{wrong}\n---\n# x").validate()
    for wrong in ("size_categories: [tiny]", "configs: [{data_files: a}]", "language: english"):
        with pytest.raises(ValueError, match=r"must be|is required"):
            DatasetCard(f"---\n{wrong}\n---\n# x").validate()
    for wrong in ("title: x", "sdk: flask", "{sdk: static, colorFrom: black}"):
        with pytest.raises(ValueError, match=r"must be|is required"):
            ModelCard(f"---\n{wrong}\n---\n# x").validate(repo_type="space")
    card = ModelCard(f"---\nsdk: static\nshort_description: {'long ' * 20}\n---\n")
    with pytest.raises(ValueError, match="60 characters"):
        card.validate(repo_type="space")
    fake_hub.api.create_repo("me/model")
    readme = {"repo_id": "me/model", "path_in_repo": "README.md"}
    index = b"model-index:\n- name: x\n  results:\n  - task: {type: text-generation}\n"
    with pytest.raises(ValueError, match=r"model-index\[0\].results\[0\].metrics"):
        fake_hub.api.upload_file(path_or_fileobj=b"---\n" + index + b"---\n", **readme)
    with pytest.warns(UserWarning, match="empty or missing yaml metadata"):
        fake_hub.api.upload_file(path_or_fileobj=b"# x", **readme)
    fake_hub.api.upload_file(path_or_fileobj=good.encode(), **readme)
    info = fake_hub.api.model_info("me/model")
    assert info.card_data.license == "apache-2.0"
    assert {"text-generation", "base_model:me/base"} <= set(info.tags)
