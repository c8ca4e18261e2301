"""The versions of packages that a record names."""

from __future__ import annotations

import platform
from importlib import metadata

_PACKAGES = ("trl-r1", "trl", "transformers", "torch", "peft", "accelerate", "datasets")


def package_versions() -> dict[str, str]:
    """The versions a stage runs with."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions
