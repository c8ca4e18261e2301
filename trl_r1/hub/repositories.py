"""Brings a repository on the Hub to hold given files, by one commit, and only where it has to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl_r1.hub.client import hub_errors
from trl_r1.hub.leaks import refuse_secrets
from trl_r1.hub.record import PushedRepo
from trl_r1.pipeline.hashing import FileHashes

if TYPE_CHECKING:
    from huggingface_hub import HfApi

CARD = "README.md"


class Repositories:
    """Writes to repositories.

    Args:
        api: the client.
        private: whether they are private; one that is not becomes it.
        overwrite_cards: put our card over one that was edited on the Hub.
    """

    def __init__(self, api: HfApi, private: bool = False, overwrite_cards: bool = False) -> None:
        self.api = api
        self.private = private
        self.overwrite_cards = overwrite_cards
        self.hashes = FileHashes()

    def bring(
        self,
        repo: PushedRepo,
        known: PushedRepo | None,
        files: Mapping[str, Path | bytes],
        card: str,
        message: str,
    ) -> tuple[PushedRepo, str]:
        """Bring a repository to hold these files and this card.

        Args:
            repo: which, and what it holds.
            known: what the last push left in it. Files of that which are wanted no more go; files
                that others added stay.
            files: contents, or where they lie, by their path in the repository.
            card: text of its card.
            message: of the commit.

        Returns:
            What is in it now, and what was done in words.

        Raises:
            PipelineError: a file holds a token.
            HubError: the Hub refuses, or can't be reached; then nothing of it has changed, or all.
        """
        refuse_secrets(repo.repo_id, {**files, CARD: card.encode()})
        hashes = {path: self._hash(content) for path, content in files.items()}
        hashes[CARD] = self._hash(card.encode())
        with hub_errors(f"pushing {repo.repo_id}"):
            head = self._make(repo)
            if known is not None and (known.commit, known.files) == (head, hashes):
                return known, "unchanged"
            operations, keeps_card = self._operations(repo, known, files, card)
            commit = self.api.create_commit(
                repo.repo_id,
                operations,
                repo_type=repo.repo_type,
                commit_message=f"trl_r1: {message}",
                parent_commit=head,
            ).oid
            blob = self._card_blob(repo, commit)
        how = "unchanged" if commit == head else f"pushed, {_count(known, hashes)}"
        if keeps_card:
            how += "; its card was edited on the Hub and is kept (--overwrite_cards puts ours back)"
            # Ours is not there: the next push has to look again.
            del hashes[CARD]
            blob = known.card if known is not None else ""
        return replace(repo, commit=commit, files=hashes, card=blob), how

    def _make(self, repo: PushedRepo) -> str:
        """Make a repository where there is none; returns the head of its main branch."""
        self.api.create_repo(
            repo.repo_id,
            repo_type=repo.repo_type,
            private=self.private or None,
            exist_ok=True,
            space_sdk="static" if repo.repo_type == "space" else None,
        )
        info = self.api.repo_info(repo.repo_id, repo_type=repo.repo_type)
        if self.private and not info.private:
            self.api.update_repo_settings(repo.repo_id, repo_type=repo.repo_type, private=True)
        return str(info.sha)

    def _operations(
        self,
        repo: PushedRepo,
        known: PushedRepo | None,
        files: Mapping[str, Path | bytes],
        card: str,
    ) -> tuple[list[Any], bool]:
        """What a commit does, and whether a card that was edited on the Hub is kept."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        operations: list[Any] = [
            CommitOperationAdd(path, str(content) if isinstance(content, Path) else content)
            for path, content in files.items()
        ]
        keeps_card = False
        if known is not None:
            there = set(self.api.list_repo_files(repo.repo_id, repo_type=repo.repo_type))
            gone = {path for path in known.files if path not in files and path != CARD}
            operations += [CommitOperationDelete(path) for path in sorted(gone & there)]
            blob = self._card_blob(repo, "main") if CARD in there else ""
            was_edited = bool(blob and known.card and blob != known.card)
            keeps_card = was_edited and not self.overwrite_cards
        if not keeps_card:
            operations.append(CommitOperationAdd(CARD, card.encode()))
        return operations, keeps_card

    def _card_blob(self, repo: PushedRepo, revision: str) -> str:
        infos = self.api.get_paths_info(
            repo.repo_id, [CARD], repo_type=repo.repo_type, revision=revision
        )
        return str(getattr(infos[0], "blob_id", "")) if infos else ""

    def _hash(self, content: Path | bytes) -> str:
        if isinstance(content, Path):
            return self.hashes.path(content)
        return hashlib.sha256(content).hexdigest()[:32]


def _count(known: PushedRepo | None, hashes: Mapping[str, str]) -> str:
    """How many files a push changes, in words."""
    old = known.files if known else {}
    changed = sum(old.get(path) != content for path, content in hashes.items())
    changed += sum(path not in hashes for path in old)
    return f"{changed} of {len(hashes)} files" if old else f"{len(hashes)} files"
