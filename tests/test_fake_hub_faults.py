"""The fake Hub, seen by the real client: injected trouble is what the client makes of it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from fake_hub import FakeHub
from huggingface_hub import constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    BadRequestError,
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from pushed_folder import MEGABYTE, downloaded, make_folder, sent, sha256, weights

# The HTTP library that the client is made with: httpx or httpx2, by its version.
TRANSPORT_ERROR = sys.modules[HfHubHTTPError.__mro__[1].__module__.partition(".")[0]].TransportError


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
    assert fake_hub.requests[-1].status is None
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


def test_a_hub_that_is_down_refuses_and_what_was_downloaded_stays(fake_hub: FakeHub) -> None:
    api = fake_hub.api
    api.create_repo("me/model")
    api.upload_file(repo_id="me/model", path_or_fileobj=b"1", path_in_repo="a.txt")
    path = hf_hub_download("me/model", "a.txt")
    fake_hub.close()
    with pytest.raises(TRANSPORT_ERROR):
        api.model_info("me/model")
    assert hf_hub_download("me/model", "a.txt") == path


def test_a_rate_limit_is_told_with_its_headers(fake_hub: FakeHub) -> None:
    limit = {"RateLimit": '"api";r=0;t=55', "RateLimit-Policy": '"fixed window";"api";q=500;w=300'}
    fake_hub.fail(path_regex="whoami", status=429, headers=limit)
    fake_hub.fail(path_regex="/repos/create", status=429, headers=limit)
    with pytest.raises(HfHubHTTPError, match="rate limit"):
        fake_hub.api.whoami()
    with pytest.raises(HfHubHTTPError, match="Retry after 55 seconds"):
        fake_hub.api.create_repo("me/model")


def test_a_fault_skips_passes_and_ends(fake_hub: FakeHub) -> None:
    fault = fake_hub.fail(method="GET", path_regex="whoami", status=500, skip=1, times=2)
    statuses = []
    for _ in range(5):
        try:
            fake_hub.api.whoami()
            statuses.append(200)
        except HfHubHTTPError as error:
            statuses.append(error.response.status_code)
    assert statuses == [200, 500, 500, 200, 200]
    assert fault.num_hits == 2
    unmet = fake_hub.fail(method="GET", path_regex="never")
    assert fake_hub.unmet_faults() == [unmet]
    unmet.num_hits = 1


def test_offline_is_only_a_switch_of_the_client(
    fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(OfflineModeIsEnabled):
        fake_hub.api.whoami()
    assert fake_hub.requests == []
