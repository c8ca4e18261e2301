"""A Hugging Face Hub on this machine, which the real client talks to unmodified.

    def test_a_model_is_pushed(fake_hub):
        fake_hub.api.create_repo("me/model")
        fake_hub.fail(method="POST", path_regex="/commit/", status=500)
        subprocess.run([...], env=fake_hub.env)
        assert fake_hub.files("me/model")["config.json"] == b"{}"

The client reads its settings (HF_ENDPOINT, HF_HUB_OFFLINE, HF_HUB_DISABLE_XET, HF_HOME) when it is
imported. So a subprocess gets them by `env`. In this process, whose tests run offline, `connect`
patches what was read, in `huggingface_hub.constants` and `datasets.config`, which are asked at each
call. Offline is no more than that: while `constants.HF_HUB_OFFLINE` is true every request of the
client's session raises `OfflineModeIsEnabled`, and transformers look no further than the cache.

Large files go by git-LFS, which faults can befall; with `offer_xet` by Xet, as most users' do.
There is no search beyond author, name and tag, there are no discussions, and a Space does not run.
"""

from __future__ import annotations

import os
import runpy
import secrets
import threading
from pathlib import Path
from typing import Any, TypeVar

import pytest

from fake_hub import collections, files, large_files, repos
from fake_hub.faults import Drop, Fail, Fault, Stall
from fake_hub.routes import Request, Response, Site
from fake_hub.server import serve
from fake_hub.store import Account, Commit, Repo, Store

__all__ = ["FakeHub", "Request", "Stall"]

AnyFault = TypeVar("AnyFault", bound=Fault)
# Each registers its routes when it is imported.
ROUTE_MODULES = (collections, files, large_files, repos)
# `hf_xet` would ask for a token for minutes before it gives up.
XET_PATIENCE = {
    "HF_XET_CLIENT_RETRY_BASE_DELAY": "10ms",
    "HF_XET_CLIENT_RETRY_MAX_ATTEMPTS": "2",
    "HF_XET_TELEMETRY_ENABLED": "0",
}
PATIENCE = Path(__file__).parent / "patience"
RESOLVE = "{repo_id}/resolve/{revision}/{filename}"
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
# Where a user keeps things, which the folder of the test stands in for.
PLACES = (
    *("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_ASSETS_CACHE", "HF_DATASETS_CACHE"),
    *("HF_TOKEN_PATH", "HF_STORED_TOKENS_PATH"),
)
OTHER_SWITCHES = ("TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HUGGING_FACE_HUB_TOKEN")


class FakeHub:
    """A Hub with the user `me`, who is in the organizations `lab` (write) and `club` (read).

    Args:
        folder: for the client's caches and its token.

    Attributes:
        site: settings and state; `site.chunk_size` and `site.page_size` may be set by a test.
        requests: all that came in, in order, also what was dropped.
        token: of `me`.
        reader_token: of `me` too, but for reading only.
        stranger_token: of `stranger`, who has nothing to do with `me`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = Site(Store(), secret=secrets.token_bytes(16))
        self.requests: list[Request] = []
        self._faults: list[Fault] = []
        self._lock = threading.RLock()
        self.endpoint, self._stop_hub = serve(self, "hub")
        self.storage, self._stop_storage = serve(self, "storage")
        self.site.endpoint, self.site.storage = self.endpoint, self.storage
        self.token = self.add_user("me", {"lab": "write", "club": "read"})
        self.reader_token = self.add_token("me", "read")
        self.stranger_token = self.add_user("stranger", {})

    def close(self) -> None:
        """Stop serving, as a Hub that is down; what is held goes on and fails."""
        for fault in self._faults:
            if isinstance(fault, Stall):
                fault.release()
        self._stop_hub()
        self._stop_storage()

    # Accounts, and what a test looks at

    def add_user(self, name: str, orgs: dict[str, str]) -> str:
        """A user with a role in each organization; returns a token to write with."""
        self.site.store.accounts[name] = Account(name, orgs)
        return self.add_token(name, "write")

    def add_token(self, name: str, role: str) -> str:
        """A further token of a user, `read` or `write`."""
        token = f"hf_{name}_{role}_{len(self.site.store.tokens)}"
        self.site.store.tokens[token] = (self.site.store.accounts[name], role)
        return token

    def repo(self, name: str, kind: str = "model") -> Repo:
        """A repository; KeyError if there is none."""
        return self.site.store.repos[kind, name]

    def files(self, name: str, kind: str = "model", revision: str = "main") -> dict[str, bytes]:
        """The bytes of all files of a revision by path; `.gitattributes` is among them."""
        repo = self.repo(name, kind)
        return {
            k: self.site.content(repo, f) for k, f in self.site.commit(repo, revision).tree.items()
        }

    def commits(self, name: str, kind: str = "model", revision: str = "main") -> list[Commit]:
        """The commits of a revision, newest first; the last is the Hub's own, empty one."""
        return list(self.site.commit(self.repo(name, kind), revision).history())

    @property
    def uploaded(self) -> dict[str, int]:
        """Bytes received by object: by sha256 of large files, by git id of regular ones.

        What came of a request that was cut short is not among them, but in its `num_received`.
        """
        return self.site.uploaded

    # Trouble

    def fail(self, **settings: Any) -> Fail:
        """Answer with an error; the arguments are those of `faults.Fail`."""
        return self._add(Fail(**settings))

    def drop(self, **settings: Any) -> Drop:
        """Close connections; the arguments are those of `faults.Drop`."""
        return self._add(Drop(**settings))

    def stall(self, **settings: Any) -> Stall:
        """Hold requests until `release`; the arguments are those of `faults.Stall`."""
        return self._add(Stall(**settings))

    def _add(self, fault: AnyFault) -> AnyFault:
        with self._lock:
            self._faults.append(fault)
        return fault

    def unmet_faults(self) -> list[Fault]:
        """The faults that have befallen nothing."""
        return [fault for fault in self._faults if not fault.num_hits]

    # What the servers ask

    def receive(self, request: Request) -> Fault | None:
        """Log a request; returns what befalls it."""
        with self._lock:
            self.requests.append(request)
            return next((fault for fault in self._faults if fault.takes(request)), None)

    def answer(self, request: Request) -> Response:
        """Answer a request, one at a time."""
        with self._lock:
            return self.site.answer(request)

    # Clients

    @property
    def api(self) -> Any:
        """A client with the token of `me`."""
        return self.api_of(self.token)

    def api_of(self, token: str | bool) -> Any:
        """A client with another token; False for none."""
        from huggingface_hub import HfApi

        return HfApi(endpoint=self.endpoint, token=token)

    @property
    def env(self) -> dict[str, str]:
        """The environment for a subprocess, with the token of `me` and short waits for retries."""
        dropped = {*PROXIES, *(name.upper() for name in PROXIES), *PLACES, *OTHER_SWITCHES}
        env = {key: value for key, value in os.environ.items() if key not in dropped}
        paths = [str(PATIENCE), *filter(None, [env.get("PYTHONPATH")])]
        return {
            **env,
            "HF_ENDPOINT": self.endpoint,
            "HF_TOKEN": self.token,
            "HF_HOME": str(self.folder),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1" if self.site.chunks is None else "0",
            "HF_XET_CACHE": str(self.folder / "xet"),
            **XET_PATIENCE,
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "PYTHONPATH": os.pathsep.join(paths),
        }

    def _constants(self) -> dict[str, Any]:
        """What the client has read from its environment, as it is to be."""
        home = str(self.folder)
        return {
            "ENDPOINT": self.endpoint,
            "HUGGINGFACE_CO_URL_TEMPLATE": f"{self.endpoint}/{RESOLVE}",
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DISABLE_XET": self.site.chunks is None,
            "HF_HUB_DISABLE_TELEMETRY": True,
            "HF_HOME": home,
            "HF_HUB_CACHE": f"{home}/hub",
            "HUGGINGFACE_HUB_CACHE": f"{home}/hub",
            "HF_TOKEN_PATH": f"{home}/token",
            "HF_STORED_TOKENS_PATH": f"{home}/stored_tokens",
            "AGENT_HARNESSES_PATH": f"{home}/.agent_harnesses.json",
        }

    def offer_xet(self) -> None:
        """Take and give large files by Xet; to be called before `connect`."""
        self.site.chunks = self.folder.with_name("chunks")
        self.site.chunks.mkdir()

    def connect(self, patch: pytest.MonkeyPatch) -> None:
        """Make this the Hub of everything in this process that uses `huggingface_hub`."""
        # First: these read the environment when imported, and keep that for later tests.
        import datasets.config
        import transformers.utils.hub
        from huggingface_hub import HfFileSystem, close_session, constants, hf_api

        for name in (*PROXIES, *OTHER_SWITCHES):
            patch.delenv(name, raising=False)
            patch.delenv(name.upper(), raising=False)
        patch.setenv("HF_TOKEN", self.token)
        patch.setenv("HF_XET_CACHE", str(self.folder / "xet"))
        for name, value in XET_PATIENCE.items():
            patch.setenv(name, value)
        for name, value in self._constants().items():
            patch.setattr(constants, name, value, raising=False)
        patch.setattr(hf_api.api, "endpoint", self.endpoint)
        # A client that is made at the first call, and keeps its address.
        patch.setattr(transformers.utils.hub, "_hf_api", None, raising=False)
        patch.setattr(datasets.config, "HF_ENDPOINT", self.endpoint)
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
        patch.setattr(datasets.config, "HF_DATASETS_OFFLINE", False, raising=False)
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", self.folder / "datasets")
        patience = runpy.run_path(str(PATIENCE / "sitecustomize.py"))
        patch.setattr("time.sleep", patience["quick_sleep"])
        # Clients that an earlier test has made are for its own Hub.
        HfFileSystem.clear_instance_cache()
        close_session()
