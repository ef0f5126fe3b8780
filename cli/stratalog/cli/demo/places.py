"""Where a demonstration puts its things, and how they go away again."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import click

from stratalog.base.errors import LogStoreError
from stratalog.base.randomness import SystemIdGenerator


class DemoPlaces:
    """A work directory with the data directory in it, and a store of its own. Not thread-safe.

    With `--store` the objects have a prefix of their own below that URL, so that neither the demonstration
    nor the clean-up touches other objects.
    """

    def __init__(self, keep: Path | None, store_url: str | None) -> None:
        """Choose the places of the demo and make its root directory. Raises click.ClickException where `keep`
        holds something already, or the store is one that no second server finds, InvalidConfigError and
        StoreAccessDeniedError for a URL that names no store. Then nothing is made.
        """
        if store_url is not None:
            _require_usable(store_url)
        self.is_kept = keep is not None
        if keep is None:
            self.root = Path(tempfile.mkdtemp(prefix="stratalog-demo-"))
        else:
            self.root = keep.absolute()
            try:
                self.root.mkdir(parents=True, exist_ok=True)
                is_empty = not any(self.root.iterdir())
            except OSError as error:
                raise click.ClickException(
                    f"--keep needs an empty or new directory: {error.strerror}, {self.root}"
                ) from None
            if not is_empty:
                raise click.ClickException(
                    f"--keep needs an empty or new directory, and {self.root} is not empty"
                )
        self._has_own_store = store_url is None
        self.store_url = (
            (self.root / "store").as_uri()
            if store_url is None
            else _below(store_url, f"demo-{SystemIdGenerator().uuid()}")
        )

    @property
    def data_dir(self) -> Path:
        return self.root / "data"

    @property
    def server_log(self) -> Path:
        return self.root / "server.log"

    @property
    def spark_scratch(self) -> Path:
        return self.root / "spark"

    def wipe_data_dir(self) -> None:
        shutil.rmtree(self.data_dir)

    def clean_up(self, *, was_served: bool) -> None:
        """Remove the work directory and the objects, unless they are to be kept.

        It follows an error as often as not, and must not hide it: what cannot be removed is a warning. Where
        no server has served from here the store is not asked at all: it may be why.
        """
        if self.is_kept:
            shutil.rmtree(self.spark_scratch, ignore_errors=True)
            return
        shutil.rmtree(self.root, ignore_errors=True)
        if self._has_own_store:
            return
        shown = self.store_url.partition("?")[0]
        if not was_served:
            click.echo(f"note: the server did not start, so nothing was removed below {shown}", err=True)
            return
        try:
            self._delete_objects()
        except LogStoreError as error:
            click.echo(f"warning: the objects below {shown} are left over: {error}", err=True)

    def _delete_objects(self) -> None:
        from stratalog.objectstore.open_store import open_store

        store = open_store(self.store_url)
        try:
            store.delete_many([found.key for found in store.list("")])
        finally:
            store.close()


def _require_usable(store_url: str) -> None:
    """Check the URL of the store, without asking the store."""
    from stratalog.objectstore.open_store import open_store

    open_store(store_url).close()
    if urlsplit(store_url).scheme == "memory":
        raise click.ClickException(
            "--store memory:// ends with its server, and the demo starts a second one on what the first has"
            " left; use file:///dir or s3://bucket/prefix"
        )


def _below(url: str, name: str) -> str:
    """The URL with one more path element; a query stays where it is."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + "/" + name))
