"""The fake Hub, seen by the real client: what goes up comes back."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fake_hub import FakeHub
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationCopy,
    CommitOperationDelete,
    hf_hub_download,
    snapshot_download,
)
from huggingface_hub.errors import HfHubHTTPError, RemoteEntryNotFoundError, RevisionNotFoundError
from pushed_folder import MEGABYTE, downloaded, make_folder, sent, sha256, weights


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
    with pytest.raises(HfHubHTTPError, match="403"):
        api.delete_branch("me/model", branch="main")
    api.create_tag("me/model", tag="v1", revision="step-2")
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_tag("me/model", tag="v1", revision="step-1")
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
    with pytest.raises(RemoteEntryNotFoundError):
        list(api.list_repo_tree("me/model", "original"))
    api.super_squash_history("me/model")
    assert fake_hub.files("me/model") == files
    assert len(fake_hub.commits("me/model")) == 1


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


def test_a_folder_is_put_back_at_a_revision(fake_hub: FakeHub, tmp_path: Path) -> None:
    contents = make_folder(tmp_path / "data")
    api = fake_hub.api
    api.create_repo("me/data", repo_type="dataset")
    where = {"repo_id": "me/data", "repo_type": "dataset"}
    info = api.upload_folder(folder_path=tmp_path / "data", **where)
    api.upload_file(path_or_fileobj=b"later", path_in_repo="config.json", **where)
    back = tmp_path / "back"
    snapshot_download(local_dir=back, revision=info.oid, ignore_patterns=["*.txt"], **where)
    for path, content in contents.items():
        assert path == "empty.txt" or (back / path).read_bytes() == content


def test_media_are_large_files_in_datasets_alone(fake_hub: FakeHub) -> None:
    for kind, is_large in (("model", False), ("dataset", True)):
        fake_hub.api.create_repo("me/media", repo_type=kind)
        fake_hub.api.upload_file(
            repo_id="me/media", repo_type=kind, path_or_fileobj=b"text", path_in_repo="a.png"
        )
        [info] = fake_hub.api.get_paths_info("me/media", "a.png", repo_type=kind)
        assert (info.lfs is not None) == is_large


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
