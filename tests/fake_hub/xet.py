"""The Xet way, by which the client uploads and downloads wherever `hf_xet` is installed.

`hf_xet` can keep its chunks in a folder (an address `local://FOLDER`) instead of on a server. The
Hub gives out that address with its tokens, so chunking, deduplication and the client's pipeline of
commits are the real ones. Only the transfer over HTTP is not there, and no fault befalls it.

At a commit the client names a file by its sha256 alone. The Xet hash that belongs to it is in the
shards: lists of files that `hf_xet` leaves in the folder.
"""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Any

# Of a shard: the header, and every entry of the list of files.
ENTRY_BYTES = 48
# What follows the segments of a file.
HAS_VERIFICATION, HAS_SHA256 = 1 << 31, 1 << 30
SECONDS_VALID = 3600


def _hex(raw: bytes) -> str:
    """A hash as `hf_xet` writes it: four numbers of 64 bits."""
    return "".join(f"{number:016x}" for number in struct.unpack("<4Q", raw))


def known_files(chunks: Path) -> dict[str, tuple[str, int]]:
    """The Xet hash and the size of every file in the folder by its sha256."""
    found = {}
    for path in sorted(chunks.glob("xet/xorbs/shards/*.mdb")):
        shard = path.read_bytes()
        entry = ENTRY_BYTES
        # The list ends with an entry of ones.
        while shard[entry : entry + 32] != b"\xff" * 32:
            flags, num_segments = struct.unpack_from("<II", shard, entry + 32)
            segments = [entry + ENTRY_BYTES * (1 + i) for i in range(num_segments)]
            size = sum(struct.unpack_from("<I", shard, each + 36)[0] for each in segments)
            end = entry + ENTRY_BYTES * (1 + num_segments * (2 if flags & HAS_VERIFICATION else 1))
            if flags & HAS_SHA256:
                found[_hex(shard[end : end + 32])] = (_hex(shard[entry : entry + 32]), size)
                end += ENTRY_BYTES
            entry = end
    return found


def read_file(chunks: Path, xet_hash: str, size: int) -> bytes:
    """The bytes of a file, put together by `hf_xet`."""
    import hf_xet
    from huggingface_hub.utils._xet import get_xet_session

    settings: dict[str, Any] = {"endpoint": f"local://{chunks}", "token": "xet-read"}
    expires = int(time.time()) + SECONDS_VALID
    session, place = get_xet_session(), chunks / "assembled"
    with session.new_file_download_group(**settings, token_expiry_unix_secs=expires) as group:
        group.start_download_file(hf_xet.XetFileInfo(xet_hash, size), str(place))
    return place.read_bytes()
