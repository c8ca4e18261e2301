"""The fake Hub by Xet: the client's own pipeline with the real `hf_xet`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fake_hub import FakeHub
from huggingface_hub import CommitOperationAdd, CommitOperationCopy, snapshot_download
from pushed_folder import MEGABYTE, downloaded, make_folder, sent, sha256, weights


def test_a_folder_comes_back_byte_for_byte(fake_xet_hub: FakeHub, tmp_path: Path) -> None:
    contents = make_folder(tmp_path / "model")
    api = fake_xet_hub.api
    api.create_repo("me/model", private=True)
    first = api.upload_folder(repo_id="me/model", folder_path=tmp_path / "model")
    assert downloaded(snapshot_download("me/model")) == contents
    again = api.upload_folder(repo_id="me/model", folder_path=tmp_path / "model")
    assert again.oid == first.oid
    [info] = api.get_paths_info("me/model", "model.safetensors")
    assert (info.lfs.sha256, info.size) == (sha256(weights()), MEGABYTE)
    assert info.xet_hash
    # Neither way went by git-LFS.
    assert not sent(fake_xet_hub, "POST", "/info/lfs/")
    assert all(request.origin == "hub" for request in fake_xet_hub.requests)


@pytest.mark.parametrize(("status", "num_requests"), [(403, 1), (429, 3), (500, 3)])
def test_a_refused_token_is_a_connection_error_to_the_client(
    fake_xet_hub: FakeHub, status: int, num_requests: int
) -> None:
    api = fake_xet_hub.api
    api.create_repo("me/model")
    fake_xet_hub.fail(path_regex="xet-write-token", status=status, times=None)
    # Not the client's HfHubHTTPError: `hf_xet` asks for the token itself.
    with pytest.raises(ConnectionError, match=str(status)):
        api.upload_file(repo_id="me/model", path_or_fileobj=weights(), path_in_repo="a.bin")
    assert len(sent(fake_xet_hub, "GET", "xet-write-token")) == num_requests
    assert "a.bin" not in fake_xet_hub.files("me/model")


def test_a_client_without_xet_downloads_the_same_bytes(
    fake_xet_hub: FakeHub, tmp_path: Path
) -> None:
    contents = make_folder(tmp_path / "model")
    fake_xet_hub.api.create_repo("me/model")
    fake_xet_hub.api.upload_folder(repo_id="me/model", folder_path=tmp_path / "model")
    script = "import huggingface_hub as hub; print(hub.snapshot_download('me/model'))"
    env = {**fake_xet_hub.env, "HF_HUB_DISABLE_XET": "1"}
    run = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True
    )
    assert downloaded(run.stdout.strip()) == contents
    sizes = [each.num_sent for each in fake_xet_hub.requests if each.origin == "storage"]
    assert sorted(sizes) == [1000, MEGABYTE]


def test_a_subprocess_uploads_what_this_process_reads(
    fake_xet_hub: FakeHub, tmp_path: Path
) -> None:
    contents = make_folder(tmp_path / "model")
    fake_xet_hub.api.create_repo("me/model")
    folder = str(tmp_path / "model")
    script = (
        f"import huggingface_hub as h; h.upload_folder(repo_id='me/model', folder_path={folder!r})"
    )
    command = [sys.executable, "-c", script]
    subprocess.run(command, env=fake_xet_hub.env, check=True)
    files = fake_xet_hub.files("me/model")
    del files[".gitattributes"]
    assert files == contents


def test_many_files_are_several_commits_of_upload_folder_and_one_of_create_commit(
    fake_xet_hub: FakeHub, tmp_path: Path
) -> None:
    pytest.importorskip("huggingface_hub._upload_pipeline", reason="not in this huggingface_hub")
    api = fake_xet_hub.api
    api.create_repo("me/model")
    (tmp_path / "many").mkdir()
    for i in range(260):
        (tmp_path / f"many/{i}.txt").write_text(str(i))
    api.upload_folder(repo_id="me/model", folder_path=tmp_path / "many")
    # The client commits 250 files at a time.
    titles = [commit.title for commit in fake_xet_hub.commits("me/model")]
    assert titles[0] == "Upload folder using huggingface_hub (part 2)"
    assert len(titles) == 3
    additions = [CommitOperationAdd(f"again/{i}.txt", str(i).encode()) for i in range(260)]
    api.create_commit("me/model", additions, commit_message="all at once")
    assert len(fake_xet_hub.commits("me/model")) == 4


def test_a_large_file_is_copied_to_another_repository(fake_xet_hub: FakeHub) -> None:
    api = fake_xet_hub.api
    api.create_repo("me/model")
    api.create_repo("lab/copy")
    api.upload_file(repo_id="me/model", path_or_fileobj=weights(), path_in_repo="a.bin")
    copy = CommitOperationCopy("a.bin", "b.bin", src_repo_id="me/model", src_repo_type="model")
    api.create_commit("lab/copy", [copy], commit_message="copy")
    assert fake_xet_hub.files("lab/copy")["b.bin"] == weights()
