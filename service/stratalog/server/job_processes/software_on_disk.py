"""The software as it lies on the disk, which an upgrade in place changes below a server that runs.

A process that starts then would have other code than the server: other fields of what they send each other,
and other rules for what may be deleted.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os

_SUFFIXES = (".py", ".so")


def software_digest() -> str:
    """A digest, in hexadecimal, of the names, sizes and times of change of all modules that an import finds
    now. Another install has another one, also of the same version."""
    spec = importlib.util.find_spec("stratalog")
    assert spec is not None, "this module is in it"
    found: dict[str, tuple[int, int]] = {}
    for root in spec.submodule_search_locations or ():
        for directory, _, names in os.walk(root):
            for name in names:
                if name.endswith(_SUFFIXES):
                    path = os.path.join(directory, name)
                    status = os.stat(path)
                    # Of two modules of a name the first one is imported.
                    found.setdefault(os.path.relpath(path, root), (status.st_size, status.st_mtime_ns))
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()
