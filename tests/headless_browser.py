"""Chromium without a screen, driven by the DevTools protocol: opens a file, clicks, listens."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-sync", "--disable-background-networking", "--disable-component-update"),
    *("--disable-dev-shm-usage", "--remote-debugging-port=0", "--hide-scrollbars"),
)
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """A tab. `complaints` holds errors and warnings of the console, `requests` every address asked
    for but the file itself."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._socket = socket
        self._count = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            found = json.loads(message.data)
            if "id" in found:
                self._answers.pop(found["id"]).set_result(found)
            else:
                self._heard(found["method"], found["params"])

    def _heard(self, method: str, told: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded.set()
        elif method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning"):
            self.complaints.append(json.dumps(told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(told["entry"]["text"])
        elif method == "Page.javascriptDialogOpening":
            self.complaints.append(f"dialog: {told['message']}")

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        answer = asyncio.get_running_loop().create_future()
        self._answers[self._count] = answer
        await self._socket.send_json({"id": self._count, "method": method, "params": params})
        found = await asyncio.wait_for(answer, 60)
        assert "error" not in found, found
        result: dict[str, Any] = found["result"]
        return result

    async def open(self, file: Path, width: int = 1440, dark: bool = False) -> None:
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self.call(f"{domain}.enable")
        await self.resize(width, dark=dark)
        self._loaded.clear()
        await self.call("Page.navigate", url=file.resolve().as_uri())
        await asyncio.wait_for(self._loaded.wait(), 60)
        assert self.requests[0] == file.resolve().as_uri()
        del self.requests[0]

    async def resize(self, width: int, height: int = 900, dark: bool = False) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def ask(self, script: str) -> Any:
        """The value of a JavaScript expression, after a frame was drawn."""
        whole = (
            f"(async () => {{ await new Promise(r => setTimeout(r, 30)); return ({script}); }})()"
        )
        found = await self.call(
            "Runtime.evaluate", expression=whole, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def click(self, selector: str, place: int = 0) -> None:
        """Click where the middle of an element is, as a mouse does."""
        x, y = await self._middle(selector, place)
        for kind in ("mousePressed", "mouseReleased"):
            await self.call(
                "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1
            )

    async def point(self, selector: str, place: int = 0) -> None:
        x, y = await self._middle(selector, place)
        await self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    async def _middle(self, selector: str, place: int) -> tuple[float, float]:
        found = await self.ask(
            f"(() => {{ const e = document.querySelectorAll({json.dumps(selector)})[{place}];"
            "e.scrollIntoView({block: 'center', inline: 'center', behavior: 'instant'});"
            "const b = e.getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        return found[0], found[1]

    async def picture(self, path: Path, whole: bool = False) -> None:
        found = await self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))


@contextlib.asynccontextmanager
async def browser_page() -> AsyncIterator[Page]:
    """A tab in a browser of its own."""
    assert CHROMIUM is not None
    profile = Path(tempfile.mkdtemp(prefix="chromium-"))
    process = await asyncio.create_subprocess_exec(
        CHROMIUM,
        *FLAGS,
        f"--user-data-dir={profile}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        while b"DevTools listening on ws://" not in (line := await process.stderr.readline()):
            assert line, "chromium ended before it listened"
        port = line.decode().split("127.0.0.1:")[1].split("/")[0]
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                tabs = [tab for tab in await answer.json() if tab["type"] == "page"]
            async with session.ws_connect(
                tabs[0]["webSocketDebuggerUrl"], max_msg_size=0
            ) as socket:
                page = Page(socket)
                yield page
                page._reader.cancel()
    finally:
        process.terminate()
        await process.communicate()
        shutil.rmtree(profile, ignore_errors=True)
