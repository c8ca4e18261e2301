"""The fake Hub, seen by the real client: what goes up comes back, and errors are its own."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fake_hub import FakeHub
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationCopy,
    CommitOperationDelete,
    DatasetCard,
    ModelCard,
    constants,
    hf_hub_download,
    snapshot_download,
    whoami,
)
from huggingface_hub.errors import (
    BadRequestError,
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

# The HTTP library that the client is made with: httpx or httpx2, by its version.
TRANSPORT_ERROR = sys.modules[HfHubHTTPError.__mro__[1].__module__.partition(".")[0]].TransportError
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


# What goes up comes back


@pytest.mark.parametrize("chunk_size", [None, 300_000])
def test_a_folder_comes_back_byte_for_byte(
    fake_hub: FakeHub, tmp_path: Path, chunk_size: int | None
) -> None:
    contents = make_folder(tmp_path / "model")
    fake_hub.site.chunk_size = chunk_size
    fake_hub.api.create_repo("me/model")
    info = fake_hub.api.upload_folder(repo_id="me/model", folder_path=tmp_path / "model")
    assert info.oid == fake_hub.api.model_info("me/model").sha
    assert info.repo_url.repo_id == "me/model"
    assert downloaded(snapshot_download("me/model")) == contents
    # A megabyte goes up whole, or as 3 x 300 kB and the rest.
    puts = Counter(sent(fake_hub, "PUT", sha256(contents["model.safetensors"])))
    assert list(puts.values()) == [1 if chunk_size is None else 4]
    assert fake_hub.uploaded[sha256(contents["model.safetensors"])] == MEGABYTE


def test_only_the_hub_sees_the_token(fake_hub: FakeHub, tmp_path: Path) -> None:
    make_folder(tmp_path / "model")
    fake_hub.api.create_repo("me/model", private=True)
    fake_hub.api.upload_folder(repo_id="me/model", folder_path=tmp_path / "model")
    snapshot_download("me/model")
    tokens = {origin: set() for origin in ("hub", "storage")}
    for request in fake_hub.requests:
        tokens[request.origin].add(request.token)
    assert tokens == {"hub": {fake_hub.token}, "storage": {None}}


def test_a_second_upload_commits_nothing_and_a_changed_file_goes_alone(
    fake_hub: FakeHub, tmp_path: Path
) -> None:
    contents = make_folder(tmp_path / "model")
    api = fake_hub.api
    api.create_repo("me/model")
    first = api.upload_folder(repo_id="me/model", folder_path=tmp_path / "model")
    before = dict(fake_hub.uploaded)
    again = api.upload_folder(repo_id="me/model", folder_path=tmp_path / "model")
    assert again.oid == first.oid
    assert fake_hub.uploaded == before
    (tmp_path / "model/original/weights.bin").write_bytes(weights(2000, seed=2))
    api.upload_folder(repo_id="me/model", folder_path=tmp_path / "model")
    new = {oid: size for oid, size in fake_hub.uploaded.items() if before.get(oid) != size}
    assert new == {sha256(weights(2000, seed=2)): 2000}
    assert len(fake_hub.commits("me/model")) == 3
    assert downloaded(snapshot_download("me/model", revision=first.oid)) == contents


def test_every_step_has_a_branch_and_tags_stay(fake_hub: FakeHub) -> None:
    api = fake_hub.api
    api.create_repo("me/model")
    base = api.model_info("me/model").sha
    for step in (1, 2):
        api.create_branch("me/model", branch=f"step-{step}", revision=base)
        content = weights(500, seed=step)
        api.upload_file(
            repo_id="me/model",
            path_or_fileobj=content,
            path_in_repo="model.safetensors",
            revision=f"step-{step}",
        )
    api.create_branch("me/model", branch="step-1", exist_ok=True)
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_branch("me/model", branch="step-1")
    with pytest.raises(RevisionNotFoundError):
        api.create_branch("me/model", branch="step-3", revision="no-such")
    api.create_tag("me/model", tag="v1", revision="step-2")
    api.delete_branch("me/model", branch="step-2")
    refs = api.list_repo_refs("me/model")
    assert [branch.name for branch in refs.branches] == ["main", "step-1"]
    assert [commit.title for commit in api.list_repo_commits("me/model", revision="step-1")] == [
        "Upload model.safetensors with huggingface_hub",
        "initial commit",
    ]
    tagged = hf_hub_download("me/model", "model.safetensors", revision="v1")
    assert Path(tagged).read_bytes() == weights(500, seed=2)
    assert "model.safetensors" not in fake_hub.files("me/model")


def test_a_commit_adds_deletes_and_copies(fake_hub: FakeHub, tmp_path: Path) -> None:
    make_folder(tmp_path / "model")
    api = fake_hub.api
    api.create_repo("me/model")
    api.upload_folder(repo_id="me/model", folder_path=tmp_path / "model")
    operations = [
        CommitOperationAdd("new.txt", b"new"),
        CommitOperationCopy("model.safetensors", "copy.safetensors"),
        CommitOperationCopy("config.json", "copy.json"),
        CommitOperationDelete("original/"),
        CommitOperationDelete("empty.txt"),
    ]
    api.create_commit("me/model", operations, commit_message="all kinds")
    files = fake_hub.files("me/model")
    assert files["copy.safetensors"] == weights()
    assert files["copy.json"] == b"{}\n"
    assert files.keys() == {
        *(".gitattributes", "README.md", "config.json", "copy.json", "copy.safetensors"),
        *("model.safetensors", "new.txt"),
    }
    with pytest.raises(RemoteEntryNotFoundError):
        api.delete_file("no-such.txt", "me/model")


def test_delete_patterns_and_gitignore_are_followed(fake_hub: FakeHub, tmp_path: Path) -> None:
    make_folder(tmp_path / "model")
    api = fake_hub.api
    api.create_repo("me/model")
    for name in ("old-1.json", "old-2.json", "kept.txt"):
        api.upload_file(repo_id="me/model", path_or_fileobj=b"x", path_in_repo=name)
    (tmp_path / "model/.gitignore").write_text("# not these\noriginal/\n*.json\n!config.json\n")
    (tmp_path / "model/secret.json").write_text("{}")
    api.upload_folder(
        repo_id="me/model", folder_path=tmp_path / "model", delete_patterns="old-*.json"
    )
    assert fake_hub.files("me/model").keys() == {
        *(".gitattributes", ".gitignore", "README.md", "config.json", "empty.txt", "kept.txt"),
        "model.safetensors",
    }


def test_a_commit_on_a_parent_that_is_no_longer_the_newest_is_refused(fake_hub: FakeHub) -> None:
    api = fake_hub.api
    api.create_repo("me/model")
    parent = api.model_info("me/model").sha
    settings = {"repo_id": "me/model", "path_in_repo": "a.txt", "parent_commit": parent}
    api.upload_file(path_or_fileobj=b"1", **settings)
    with pytest.raises(HfHubHTTPError, match=r"(?s)412.*A commit has happened since"):
        api.upload_file(path_or_fileobj=b"2", **settings)


def test_a_pull_request_leaves_main_alone(fake_hub: FakeHub) -> None:
    fake_hub.api.create_repo("me/model")
    stranger = fake_hub.api_of(fake_hub.stranger_token)
    info = stranger.upload_file(
        repo_id="me/model", path_or_fileobj=b"1", path_in_repo="a.txt", create_pr=True
    )
    assert info.pr_revision == "refs/pr/1"
    assert "a.txt" in stranger.list_repo_files("me/model", revision=info.pr_revision)
    assert "a.txt" not in stranger.list_repo_files("me/model")


def test_git_knows_the_ids(fake_hub: FakeHub, tmp_path: Path) -> None:
    make_folder(tmp_path / "model")
    api = fake_hub.api
    api.create_repo("me/model")
    api.upload_folder(repo_id="me/model", folder_path=tmp_path / "model")
    checkout = tmp_path / "checkout"
    for path, file in fake_hub.commits("me/model")[0].tree.items():
        (checkout / path).parent.mkdir(parents=True, exist_ok=True)
        (checkout / path).write_bytes(file.git_content)
    git = ["git", "-c", "core.autocrlf=false", "-C", str(checkout)]
    subprocess.run([*git, "init", "-q"], check=True)
    # Without its own .gitattributes git takes the pointers for what they are: text.
    subprocess.run([*git, "add", "-A"], check=True, env={**os.environ, "GIT_ATTR_SOURCE": ""})
    listing = subprocess.run([*git, "ls-files", "-s"], check=True, capture_output=True, text=True)
    by_git = {line.split("\t")[1]: line.split()[1] for line in listing.stdout.splitlines()}
    tree = {each.path: each for each in api.list_repo_tree("me/model", recursive=True)}
    assert by_git == {path: each.blob_id for path, each in tree.items() if path != "original"}
    written = subprocess.run(
        [*git, "write-tree", "--prefix=original"], check=True, capture_output=True, text=True
    )
    assert tree["original"].tree_id == written.stdout.strip()


def test_listings_come_in_pages_with_sizes_and_last_commits(fake_hub: FakeHub) -> None:
    api = fake_hub.api
    api.create_repo("me/data", repo_type="dataset")
    operations = [CommitOperationAdd(f"a/{i}.txt", b"x" * i) for i in range(7)]
    api.create_commit("me/data", operations, commit_message="seven", repo_type="dataset")
    api.upload_file(
        repo_id="me/data", repo_type="dataset", path_or_fileobj=b"y", path_in_repo="a/3.txt"
    )
    fake_hub.site.page_size = 3
    fake_hub.requests.clear()
    listed = list(api.list_repo_tree("me/data", "a", repo_type="dataset", expand=True))
    assert [each.size for each in listed] == [0, 1, 2, 1, 4, 5, 6]
    titles = [each.last_commit.title for each in listed]
    assert titles == ["seven"] * 3 + ["Upload a/3.txt with huggingface_hub"] + ["seven"] * 3
    assert len(sent(fake_hub, "GET", "/tree/main/a")) == 3
    infos = api.get_paths_info("me/data", ["a", "a/2.txt", "b"], repo_type="dataset")
    assert [each.path for each in infos] == ["a", "a/2.txt"]
    assert len(api.list_repo_commits("me/data", repo_type="dataset")) == 3


def test_a_large_file_without_a_pattern_gets_one(fake_hub: FakeHub) -> None:
    api = fake_hub.api
    api.create_repo("me/model")
    api.upload_file(repo_id="me/model", path_or_fileobj=b"\x00\x01", path_in_repo="odd.xyz")
    [info] = api.get_paths_info("me/model", "odd.xyz")
    assert info.lfs.sha256 == sha256(b"\x00\x01")
    last = fake_hub.files("me/model")[".gitattributes"].decode().splitlines()[-1]
    assert last == "odd.xyz filter=lfs diff=lfs merge=lfs -text"


def test_uploads_from_many_threads_all_arrive(fake_hub: FakeHub) -> None:
    fake_hub.api.create_repo("me/model")

    def upload(i: int) -> None:
        fake_hub.api.upload_file(
            repo_id="me/model", path_or_fileobj=weights(100, seed=i), path_in_repo=f"{i}.bin"
        )

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(upload, range(16)))
    files = fake_hub.files("me/model")
    assert {files[f"{i}.bin"] for i in range(16)} == {weights(100, seed=i) for i in range(16)}
    assert len(fake_hub.commits("me/model")) == 17


# Who may do what


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
    api.delete_repo("me/model")
    with pytest.raises(RepositoryNotFoundError):
        api.delete_repo("me/model")
    api.delete_repo("me/model", missing_ok=True)


# Collections, Spaces and cards


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


def test_a_static_space_keeps_its_page(fake_hub: FakeHub) -> None:
    api = fake_hub.api
    url = api.create_repo("me/report", repo_type="space", space_sdk="static")
    assert (url.repo_type, url.repo_id) == ("space", "me/report")
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
    with pytest.raises(ValueError, match="size_categories"):
        DatasetCard("---\nsize_categories: [tiny]\n---\n# x").validate()
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


# Trouble


def test_an_injected_error_is_the_client_s_own(fake_hub: FakeHub) -> None:
    api = fake_hub.api
    api.create_repo("me/model")
    path = "/api/models/me/model"
    cases = [
        ({"status": 404, "error_code": "RepoNotFound"}, RepositoryNotFoundError),
        ({"status": 404, "error_code": "RevisionNotFound"}, RevisionNotFoundError),
        ({"status": 404, "error_code": "EntryNotFound"}, RemoteEntryNotFoundError),
        ({"status": 403, "error_code": "GatedRepo"}, GatedRepoError),
        ({"status": 400}, BadRequestError),
        *(({"status": status}, HfHubHTTPError) for status in (401, 403, 409, 429, 500)),
    ]
    for settings, error in cases:
        fake_hub.fail(method="GET", path_regex=path, message="as told", **settings)
        with pytest.raises(error) as caught:
            api.model_info("me/model")
        assert type(caught.value) is error
        assert caught.value.response.status_code == settings["status"]
        assert "as told" in str(caught.value)
    assert api.model_info("me/model").id == "me/model"


def test_what_the_client_retries_it_retries_at_once(fake_hub: FakeHub) -> None:
    api = fake_hub.api
    api.create_repo("me/model")
    file = {"repo_id": "me/model", "path_in_repo": "a.bin"}
    fake_hub.fail(path_regex="preupload", status=429, retry_after=300, times=2)
    fake_hub.fail(origin="storage", method="PUT", status=500, times=5)
    api.upload_file(path_or_fileobj=b"\x00", **file)
    assert len(sent(fake_hub, "POST", "preupload")) == 3
    assert [r.status for r in fake_hub.requests if r.origin == "storage"] == [500] * 5 + [200]
    # Six times in all, then it gives up; a commit is sent once.
    fake_hub.fail(path_regex="preupload", status=503, times=6)
    with pytest.raises(HfHubHTTPError, match="503"):
        api.upload_file(path_or_fileobj=b"\x01", **file)
    fake_hub.fail(path_regex="/commit/", status=503)
    with pytest.raises(HfHubHTTPError, match="503"):
        api.upload_file(path_or_fileobj=b"\x01", **file)
    assert fake_hub.files("me/model")["a.bin"] == b"\x00"


@pytest.mark.parametrize("reset", [False, True])
def test_a_dropped_download_goes_on_where_it_stopped(
    fake_hub: FakeHub, reset: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The client writes, and so keeps, no less than this at a time.
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100_000)
    api = fake_hub.api
    api.create_repo("me/model")
    api.upload_file(repo_id="me/model", path_or_fileobj=weights(), path_in_repo="a.bin")
    fake_hub.drop(origin="storage", method="GET", response_bytes=400_000, reset=reset)
    if reset:
        # The client takes an orderly end for a mishap, and a reset for an error.
        with pytest.raises(TRANSPORT_ERROR):
            hf_hub_download("me/model", "a.bin")
    assert Path(hf_hub_download("me/model", "a.bin")).read_bytes() == weights()
    first, second = [r for r in fake_hub.requests if (r.origin, r.method) == ("storage", "GET")]
    assert (first.num_sent, first.headers.get("range")) == (400_000, None)
    if not reset:
        assert second.headers["range"] == "bytes=400000-"
        assert second.num_sent == MEGABYTE - 400_000


def test_a_dropped_upload_is_sent_again_and_a_dropped_commit_is_not(fake_hub: FakeHub) -> None:
    api = fake_hub.api
    api.create_repo("me/model")
    file = {"repo_id": "me/model", "path_in_repo": "a.bin"}
    fake_hub.drop(origin="storage", method="PUT", request_bytes=100_000)
    api.upload_file(path_or_fileobj=weights(), **file)
    puts = [request for request in fake_hub.requests if request.method == "PUT"]
    assert [request.status for request in puts] == [None, 200]
    assert 100_000 <= puts[0].num_received < MEGABYTE
    fake_hub.drop(path_regex="/commit/")
    with pytest.raises(TRANSPORT_ERROR):
        api.upload_file(path_or_fileobj=b"\x00", **file)
    assert fake_hub.files("me/model")["a.bin"] == weights()
    # Here the commit is made and only the answer is lost.
    fake_hub.drop(path_regex="/commit/", response_bytes=0)
    with pytest.raises(TRANSPORT_ERROR):
        api.upload_file(path_or_fileobj=b"\x00", **file)
    assert fake_hub.files("me/model")["a.bin"] == b"\x00"


PUSH = (
    "import sys, huggingface_hub as hub;"
    "hub.upload_folder(repo_id='me/model', folder_path=sys.argv[1], ignore_patterns=['*.json'])"
)


def test_a_process_killed_while_it_uploads_can_begin_again(
    fake_hub: FakeHub, tmp_path: Path
) -> None:
    contents = make_folder(tmp_path / "model")
    fake_hub.api.create_repo("me/model")
    stall = fake_hub.stall(path_regex=sha256(contents["model.safetensors"]), request_bytes=500_000)
    command = [sys.executable, "-c", PUSH, str(tmp_path / "model")]
    with subprocess.Popen(command, env=fake_hub.env) as process:
        stall.wait()
        process.kill()
    stall.release()
    assert len(fake_hub.commits("me/model")) == 1
    subprocess.run(command, env=fake_hub.env, check=True)
    del contents["config.json"]
    assert downloaded(snapshot_download("me/model")) == contents
    assert fake_hub.uploaded[sha256(contents["model.safetensors"])] == MEGABYTE


def test_a_held_request_goes_on_when_it_is_released(fake_hub: FakeHub) -> None:
    api = fake_hub.api
    api.create_repo("me/model")
    before, after = (
        fake_hub.stall(path_regex="/commit/"),
        fake_hub.stall(path_regex="/commit/", response_bytes=0),
    )
    for stall, num_commits in ((before, 1), (after, 3)):
        thread = threading.Thread(
            target=api.upload_file,
            kwargs={
                "repo_id": "me/model",
                "path_or_fileobj": str(num_commits).encode(),
                "path_in_repo": "a.txt",
            },
        )
        thread.start()
        stall.wait()
        assert len(fake_hub.commits("me/model")) == num_commits
        stall.release()
        thread.join()
    assert len(fake_hub.commits("me/model")) == 3


def test_offline_is_only_a_switch_of_the_client(
    fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(OfflineModeIsEnabled):
        fake_hub.api.whoami()
    assert fake_hub.requests == []
