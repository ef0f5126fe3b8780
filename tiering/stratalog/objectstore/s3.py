"""An object store in an S3 bucket, through boto3. The only module that imports boto3.

The clients share one session. Reads, plain writes and deletions retry in botocore's standard mode.
Conditional writes use a client that sends once: a second attempt of a write that landed would be refused and
hide that it landed. Nothing is retried above botocore, and a body that was cut off is never resumed.

Until the store has answered once, a failing connection has a short timeout and is not retried, so a wrong
endpoint is reported at once. A store that has answered before gets the full timeouts and retries.

Every wait is bounded: connecting, each silence of the server, and the whole call, or each part of a multipart
upload (`S3Settings.call_timeout_s`). After the deadline of a call no request begins, no block of a body is
sent and no piece is awaited. A stream lives as long as its reader, with the same bound on each silence.

Differences from boto3's defaults: Request and response checksums only `when_required`, because botocore would
choose one for us and some servers fail on it in ranges and errors. Instead every write carries its CRC-32C
(or what `S3Settings.checksum` says), which S3, MinIO and SeaweedFS verify and others ignore. A server that
announces it also gets that of a whole object in parts, and one that a server tells is compared. No `Expect:
100-continue`, which costs a round trip. The body is not hashed into the signature where TLS or the loopback
interface protects it already. Large objects are sent in windows, one for each part of a multipart upload;
each is read once from its source and held until the server has it. Bodies are read in pieces of 16 MiB. Bytes
are counted here, so that an early end is always detected.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import cache, partial
from itertools import chain
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote, urlsplit

import boto3
import botocore.session
from botocore.awsrequest import AWSPreparedRequest
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    ProxyConnectionError,
    SSLError,
    SSOError,
    TokenRetrievalError,
)
from botocore.handlers import add_expect_header
from botocore.loaders import Loader
from botocore.parsers import ResponseParserError
from botocore.response import StreamingBody
from botocore.utils import parse_timestamp
from urllib3.exceptions import HTTPError

from stratalog.base.clock import Clock
from stratalog.base.errors import (
    DeletionRefusedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreAccessDeniedError,
    StoreCorruptError,
    StoreError,
    StoreNotUsableError,
    StoreUnavailableError,
)
from stratalog.objectstore.call_deadline import PIECE_BYTES, CallDeadline, CallTimeoutError, read_in_time
from stratalog.objectstore.content_digest import content_crc, other_bytes
from stratalog.objectstore.object_key import check_key, check_prefix, is_key, is_prefix
from stratalog.objectstore.ordered_listing import ListingPage, list_in_key_order
from stratalog.objectstore.parts_body import PartsBody, part_windows
from stratalog.objectstore.protocol import (
    DEFAULT_PART_BYTES,
    LEAST_PART_BYTES,
    MAX_PART_COUNT,
    Buffer,
    ObjectInfo,
    ObjectPlace,
    ObjectUpload,
    ReadStream,
    StoredObject,
    UnfinishedUpload,
)
from stratalog.objectstore.s3_bucket_state import bucket_remarks, versions_of
from stratalog.objectstore.s3_copy import PartsCopy, copy_whole
from stratalog.objectstore.s3_errors import error_of_answer
from stratalog.objectstore.s3_request_options import S3RequestOptions, crc_text, whole_crc
from stratalog.objectstore.s3_settings import ARCHIVE_CLASSES, S3Settings, endpoint_shown, is_protected

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from types_boto3_s3.type_defs import (
        CompletedPartTypeDef,
        GetObjectOutputTypeDef,
        ObjectIdentifierTypeDef,
        ObjectTypeDef,
    )

_SMALL_BODY_BYTES: Final = 1 << 20
_KEYS_PER_DELETE: Final = 1000
# Codes of servers for an object of a bulk deletion that they keep: AWS, and MinIO for a locked one.
_REFUSED_DELETIONS: Final = frozenset({"AccessDenied", "InvalidRequest", "ObjectLocked"})

_NO_OPTIONS: Final[Mapping[str, str]] = MappingProxyType({})

# No usable credentials were found, as opposed to credentials that the server refuses.
_CREDENTIAL_ERRORS: Final = (
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    SSOError,
    TokenRetrievalError,
)
# There is no server at the endpoint.
_NO_CONNECTION_ERRORS: Final = (ConnectTimeoutError, EndpointConnectionError, ProxyConnectionError, SSLError)


class _CurrentCall(threading.local):
    """The current call of a thread, for the hooks of its requests. Each thread has its own."""

    deadline: CallDeadline


class _S3Stream:
    """One user at a time, as every `ReadStream`. Counts bytes to detect an early end."""

    def __init__(self, body: StreamingBody, size: int, etag: str, errors: Callable[[], Any]) -> None:
        self._body = body
        self._remaining_bytes = size
        self._etag = etag
        self._errors = errors

    def read(self, size: int) -> bytes:
        wanted_bytes = min(size, self._remaining_bytes)
        pieces: list[bytes] = []
        with self._errors():
            while wanted_bytes > 0:
                piece = self._body.read(min(wanted_bytes, PIECE_BYTES))
                if not piece:
                    raise StoreUnavailableError(
                        "the store ended a response in the middle of an object; try again"
                    )
                pieces.append(piece)
                wanted_bytes -= len(piece)
                self._remaining_bytes -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def etag(self) -> str:
        return self._etag

    def close(self) -> None:
        # Closing a body before its end closes its connection; a body that was read has returned it already.
        self._remaining_bytes = 0
        with suppress(BotoCoreError, HTTPError, OSError):
            self._body.close()


class _S3Upload:
    """One user at a time, as every `ObjectUpload`. Keeps what completion must list of each part."""

    def __init__(
        self,
        send: Callable[[int, Sequence[memoryview]], CompletedPartTypeDef],
        complete: Callable[[Sequence[CompletedPartTypeDef], int], None],
        abort: Callable[[], None],
    ) -> None:
        self._send = send
        self._complete = complete
        self._abort = abort
        self._completed: dict[int, CompletedPartTypeDef] = {}

    def put_part(self, number: int, data: Sequence[Buffer]) -> None:
        assert number <= MAX_PART_COUNT, "S3 takes no more parts: an object of this size needs larger ones"
        self._completed[number] = self._send(number, [memoryview(piece).cast("B") for piece in data])

    def complete(self, crc: int) -> None:
        self._complete([self._completed[number] for number in sorted(self._completed)], crc)

    def abort(self) -> None:
        self._abort()


class S3ObjectStore:
    """An object store in a bucket of S3. Thread-safe: boto3's clients are, and one flag is set once."""

    def __init__(
        self, clock: Clock, settings: S3Settings, on_request: Callable[[str, str], None] | None = None
    ) -> None:
        """`on_request(method, key)` is called for each request on the wire, retries included; no key in
        listings.

        The store is not contacted yet. Raises StoreAccessDeniedError if no credentials can be found.
        """
        self._clock = clock
        self._settings = settings
        self._options = S3RequestOptions(settings)
        self._bucket = settings.bucket
        self._root = settings.root
        self._on_request = on_request
        self._current = _CurrentCall()
        self._was_reached = False
        self._endpoint_shown = endpoint_shown(settings.endpoint_url)
        with self._errors():
            session = boto3.session.Session(
                botocore_session=_quick_session(),
                aws_access_key_id=settings.access_key_id,
                aws_secret_access_key=settings.secret_access_key,
                region_name=settings.region,
                profile_name=settings.profile,
            )
            if session.get_credentials() is None:
                # Each client would look for an instance's role again, which takes seconds.
                raise NoCredentialsError
            patience_s, first_s = settings.connect_timeout_s, settings.first_connect_timeout_s
            self._first_client = self._make_client(session, settings.max_attempts, min(first_s, patience_s))
            self._patient_client = self._make_client(session, settings.max_attempts, patience_s)
            self._client_once = self._make_client(session, 1, patience_s)
        self._endpoint_shown = endpoint_shown(self._first_client.meta.endpoint_url)

    @property
    def url(self) -> str:
        return self._settings.url

    @property
    def _client(self) -> S3Client:
        """The client for everything but conditional writes."""
        return self._patient_client if self._was_reached else self._first_client

    def put(self, key: str, data: Buffer, *, if_match: str | None = None, if_absent: bool = False) -> str:
        assert if_match is None or not if_absent, "a write has one precondition"
        conditions: dict[str, str] = {}
        if if_match is not None:
            conditions["IfMatch"] = if_match
        if if_absent:
            conditions["IfNoneMatch"] = "*"
        return self._put_whole(check_key(key), [memoryview(data).cast("B")], conditions)

    def put_parts(self, key: str, parts: Iterable[Buffer], *, part_bytes: int = DEFAULT_PART_BYTES) -> None:
        assert part_bytes >= LEAST_PART_BYTES, "S3 takes no parts below 5 MiB but the last"
        check_key(key)
        windows = part_windows(parts, part_bytes)
        first, is_last = next(windows)
        if is_last:
            self._put_whole(key, first, {}, self._options.of_data_object)
        else:
            self._put_multipart(key, chain([first], (window for window, _ in windows)))

    def open_upload(self, key: str) -> ObjectUpload:
        with self._call(key):
            begun = self._client.create_multipart_upload(
                Bucket=self._bucket,
                Key=self._name(key),
                **cast("Any", {**self._options.of_new_upload, **self._options.of_data_object}),
            )
            upload_id = begun["UploadId"]
        # A server that does not say so may take the checksum of the whole object for one of its parts', or
        # for one of the algorithm that it chose.
        announced = begun.get("ChecksumType"), begun.get("ChecksumAlgorithm")
        has_whole_crc = announced == ("FULL_OBJECT", "CRC32C")
        return _S3Upload(
            partial(self._put_part, key, upload_id),
            partial(self._complete, key, upload_id, has_whole_crc),
            partial(self.abort_upload, UnfinishedUpload(key, upload_id, 0)),
        )

    def place_of(self, key: str) -> ObjectPlace | None:
        endpoint = self._first_client.meta.endpoint_url
        return ObjectPlace(endpoint, self._bucket, self._name(key), self._settings.bucket_owner)

    def copy(self, source: ObjectPlace, key: str, size_bytes: int) -> bool:
        target = self.place_of(key)
        if target is None or source.server != target.server:
            return False
        try:
            if size_bytes <= self._settings.copy_part_bytes:
                with self._call(key, self._deadline(size_bytes)):
                    options = {**self._options.of_new_object, **self._options.of_data_object}
                    copy_whole(self._client, target, source, options)
            else:
                self._copy_parts(source, target, key, size_bytes)
        except (StoreAccessDeniedError, StoreNotUsableError):
            # These credentials may not read the source, or the server makes no copies.
            return False
        return True

    def get(self, key: str) -> StoredObject:
        with self._call(key):
            return self._whole(key, self._client.get_object(Bucket=self._bucket, Key=self._name(key)))

    def get_if_changed(self, key: str, etag: str) -> StoredObject | None:
        with self._call(key):
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=self._name(key), IfNoneMatch=etag)
            except ClientError as error:
                if _status(error) == 304:
                    return None
                raise
            return self._whole(key, answer)

    def get_range(self, key: str, position: int, size: int) -> bytes:
        deadline = self._deadline(size)
        stream = self.open_range(key, position, size)
        try:
            with self._errors(key):
                return read_in_time(stream, size, deadline)
        finally:
            stream.close()

    def open_range(self, key: str, position: int, size: int, *, if_match: str | None = None) -> ReadStream:
        assert position >= 0, "an object begins at 0"
        assert size > 0, "a range has at least one byte"
        wanted = f"bytes {position}-{position + size - 1}/"
        with self._call(key):
            condition = {} if if_match is None else {"IfMatch": if_match}
            answer = self._client.get_object(
                Bucket=self._bucket,
                Key=self._name(key),
                Range=f"bytes={position}-{position + size - 1}",
                **cast("Any", condition),
            )
            stream = _S3Stream(answer["Body"], size, answer.get("ETag", ""), lambda: self._errors(key))
            sent, sent_bytes = answer.get("ContentRange", ""), answer["ContentLength"]
        if if_match is not None and answer.get("ETag") != if_match:
            # A server that ignores the condition.
            stream.close()
            raise PreconditionFailedError("the object has changed; read it again", key=key, store=self.url)
        if sent.startswith(wanted) and sent_bytes == size:
            return stream
        stream.close()
        if not sent:
            raise StoreNotUsableError(
                "the store ignores Range; use a complete S3 server", key=key, store=self.url
            )
        raise StoreCorruptError(
            "the object ends before the requested range; restore it from a copy",
            key=key,
            asked=wanted,
            sent=sent[:64],
        )

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        return list_in_key_order(self._list_page, check_prefix(prefix), start_after)

    def delete_many(self, keys: Sequence[str]) -> None:
        refused: dict[str, str] = {}
        batch: list[ObjectIdentifierTypeDef] = []
        for key in keys:
            batch += self._deletions(key)
            while len(batch) >= _KEYS_PER_DELETE:
                refused |= self._delete_batch(batch[:_KEYS_PER_DELETE])
                del batch[:_KEYS_PER_DELETE]
        if batch:
            refused |= self._delete_batch(batch)
        if refused:
            key, code = next(iter(refused.items()))
            raise DeletionRefusedError(
                "the store refuses to delete objects; if they are not locked, allow the server to delete",
                keys=tuple(refused),
                key=key,
                refused_count=len(refused),
                store=self.url,
                store_code=code,
            )

    def _deletions(self, key: str) -> Sequence[ObjectIdentifierTypeDef]:
        """The identifiers to delete, so that the object is gone: its name, or all of its versions."""
        name = self._name(key)
        if not self._settings.deletes_versions:
            return ({"Key": name},)
        with self._call(key):
            return tuple(versions_of(self._client, self._bucket, name))

    def _delete_batch(self, batch: Sequence[ObjectIdentifierTypeDef]) -> dict[str, str]:
        """Delete; returns the server's code for each key that it keeps. Raises StoreError for any other
        failure."""
        with self._call():
            answer = self._client.delete_objects(
                Bucket=self._bucket, Delete={"Objects": list(batch), "Quiet": True}
            )
        refused: dict[str, str] = {}
        for failed in answer.get("Errors", []):
            code, key = failed.get("Code", ""), failed.get("Key", "").removeprefix(self._root)
            if code in _REFUSED_DELETIONS:
                refused[key] = code[:64]
            elif code not in ("NoSuchKey", "NoSuchVersion", "NotFound"):
                raise error_of_answer(500, code, key=key, store=self.url)
        return refused

    def list_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        asked = self._root + check_prefix(prefix)
        markers: dict[str, Any] | None = {}
        while markers is not None:
            with self._call():
                answer = self._client.list_multipart_uploads(Bucket=self._bucket, Prefix=asked, **markers)
                if asked and _is_minio(answer["ResponseMetadata"]["HTTPHeaders"]):
                    # It takes a prefix for a whole key. Without one it lists those of the bucket.
                    asked = ""
                    continue
                found = [
                    UnfinishedUpload(
                        item["Key"].removeprefix(self._root),
                        item["UploadId"],
                        _milliseconds(item["Initiated"]),
                    )
                    for item in answer.get("Uploads", [])
                    if "Key" in item and "UploadId" in item and "Initiated" in item
                    if item["Key"].startswith(self._root + prefix)
                ]
                markers = (
                    {
                        "KeyMarker": answer["NextKeyMarker"],
                        "UploadIdMarker": answer["NextUploadIdMarker"],
                    }
                    if answer.get("IsTruncated")
                    else None
                )
            yield from (one for one in found if is_key(one.key))

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        name = self._name(upload.key)
        try:
            with self._call():
                self._client.abort_multipart_upload(Bucket=self._bucket, Key=name, UploadId=upload.upload_id)
        except StoreError as error:
            if error.fields.get("store_code") not in ("NoSuchUpload", "NoSuchKey"):
                raise

    def make_bucket(self) -> None:
        """Make the bucket, unless it is there: for servers on this machine. Nothing else makes one. Raises
        StoreError."""
        try:
            with self._call():
                self._client.create_bucket(Bucket=self._bucket)
        except StoreError as error:
            if error.fields.get("store_code") not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
                raise

    def remarks(self) -> Sequence[str]:
        # Many servers and policies do not let a store look at its bucket, and nothing depends on it.
        versioning, has_object_lock = "", False
        with suppress(StoreError), self._call():
            versioning = self._client.get_bucket_versioning(Bucket=self._bucket).get("Status", "")
        if versioning:
            with suppress(StoreError), self._call():
                lock = self._client.get_object_lock_configuration(Bucket=self._bucket)
                has_object_lock = lock["ObjectLockConfiguration"].get("ObjectLockEnabled") == "Enabled"
        return bucket_remarks(
            versioning,
            has_object_lock=has_object_lock,
            deletes_versions=self._settings.deletes_versions,
        )

    def close(self) -> None:
        for client in (self._first_client, self._patient_client, self._client_once):
            client.close()

    def _put_whole(
        self,
        key: str,
        window: Sequence[memoryview],
        conditions: Mapping[str, str],
        options: Mapping[str, str] = _NO_OPTIONS,
    ) -> str:
        client = self._client_once if conditions else self._client
        size = sum(view.nbytes for view in window)
        with self._call(key, self._deadline(size), is_conditional_write=bool(conditions)):
            checksum = self._options.checksum(window)
            answer = client.put_object(
                Bucket=self._bucket,
                Key=self._name(key),
                Body=self._body(window),
                ContentLength=size,
                **cast("Any", {**checksum, **conditions, **options}),
            )
            etag = answer["ETag"]
        if "ChecksumCRC32C" in checksum and not conditions:
            self._require_crc(key, answer, checksum["ChecksumCRC32C"])
        return etag

    def _put_multipart(self, key: str, windows: Iterable[Sequence[memoryview]]) -> None:
        upload, crc = self.open_upload(key), 0
        try:
            for number, window in enumerate(windows, start=1):
                crc = content_crc(window, crc)
                upload.put_part(number, window)
            upload.complete(crc)
        except BaseException:
            # Parts without an object would cost money for ever.
            with suppress(StoreError):
                upload.abort()
            raise

    def _put_part(
        self, key: str, upload_id: str, number: int, window: Sequence[memoryview]
    ) -> CompletedPartTypeDef:
        checksum, size = self._options.checksum(window), sum(view.nbytes for view in window)
        with self._call(key, self._deadline(size)):
            answer = self._client.upload_part(
                Bucket=self._bucket,
                Key=self._name(key),
                UploadId=upload_id,
                PartNumber=number,
                Body=self._body(window),
                ContentLength=size,
                **cast("Any", checksum),
            )
            part: CompletedPartTypeDef = {"PartNumber": number, "ETag": answer["ETag"]}
            if "ChecksumCRC32C" in checksum:
                part["ChecksumCRC32C"] = checksum["ChecksumCRC32C"]
            return part

    def _complete(
        self,
        key: str,
        upload_id: str,
        has_whole_crc: bool,
        parts: Sequence[CompletedPartTypeDef],
        crc: int,
    ) -> None:
        checksum = {"ChecksumCRC32C": crc_text(crc), "ChecksumType": "FULL_OBJECT"} if has_whole_crc else {}
        try:
            with self._call(key):
                answer = self._client.complete_multipart_upload(
                    Bucket=self._bucket,
                    Key=self._name(key),
                    UploadId=upload_id,
                    MultipartUpload={"Parts": parts},
                    **cast("Any", checksum),
                )
                self._require_crc(key, answer, crc_text(crc))
        except StoreUnavailableError as error:
            code = error.fields.get("store_code")
            if has_whole_crc and code in ("BadDigest", "XAmzContentChecksumMismatch"):
                raise other_bytes(key, store=self.url, sent_crc=f"{crc:08x}") from None
            # An earlier request has ended the upload: it was completed or aborted.
            if code != "NoSuchUpload" or not self._is_there(key, crc):
                raise

    def _is_there(self, key: str, crc: int) -> bool:
        """Whether the object of a completed upload is there: its key was never used before. Raises
        StoreCorruptError if the server says that it has other bytes."""
        try:
            with self._call(key):
                answer = self._client.head_object(
                    Bucket=self._bucket, Key=self._name(key), ChecksumMode="ENABLED"
                )
        except ObjectNotFoundError:
            return False
        self._require_crc(key, answer, crc_text(crc))
        return True

    def _require_crc(self, key: str, answer: Mapping[str, Any], sent: str) -> None:
        """Raise StoreCorruptError if the server tells another checksum of the whole object."""
        found = whole_crc(answer)
        if found is not None and found != sent:
            raise other_bytes(key, store=self.url, found_crc=found[:16], sent_crc=sent)

    def _copy_parts(self, source: ObjectPlace, target: ObjectPlace, key: str, size_bytes: int) -> None:
        part_bytes, deadline = self._settings.copy_part_bytes, self._deadline()
        copying = PartsCopy(self._client, target, source)
        try:
            with self._call(key, deadline):
                copying.run(
                    size_bytes,
                    part_bytes,
                    self._options.of_data_object,
                    lambda: deadline.extend(part_bytes / self._settings.least_bytes_per_s),
                )
        except BaseException:
            with suppress(StoreError), self._call(key):
                copying.abort()
            raise

    def _whole(self, key: str, answer: GetObjectOutputTypeDef) -> StoredObject:
        size = answer["ContentLength"]
        stream = _S3Stream(answer["Body"], size, answer["ETag"], lambda: self._errors(key))
        try:
            data = read_in_time(stream, size, self._deadline(size))
        finally:
            stream.close()
        return StoredObject(data, answer["ETag"], self._date_ms(answer["ResponseMetadata"]["HTTPHeaders"]))

    def _list_page(self, prefix: str, start_after: str, token: str | None) -> ListingPage:
        options: dict[str, Any] = {"StartAfter": self._root + start_after} if start_after else {}
        if token is not None:
            options["ContinuationToken"] = token
        with self._call():
            answer = self._client.list_objects_v2(
                Bucket=self._bucket, Prefix=self._root + prefix, Delimiter="/", **options
            )
            # An empty listing decides something (a new store, nothing to collect), so it must be certain.
            next_token = answer["NextContinuationToken"] if answer["IsTruncated"] else None
        # Names outside the alphabet are not our objects: markers of folders, or foreign files.
        root_size = len(self._root)
        directories = [str(item.get("Prefix"))[root_size:] for item in answer.get("CommonPrefixes", [])]
        return ListingPage(
            [info for info in map(self._object_info, answer.get("Contents", [])) if is_key(info.key)],
            [directory for directory in directories if is_prefix(directory)],
            next_token,
        )

    def _object_info(self, item: ObjectTypeDef) -> ObjectInfo:
        # According to the type stubs S3 may omit any of these; it never does.
        assert "Key" in item, "a listed object has a key"
        assert "Size" in item, "a listed object has a size"
        assert "LastModified" in item, "a listed object has a date"
        return ObjectInfo(
            key=item["Key"].removeprefix(self._root),
            size=item["Size"],
            modified_ms=_milliseconds(item["LastModified"]),
            is_archived=item.get("StorageClass") in ARCHIVE_CLASSES,
        )

    def _body(self, window: Sequence[memoryview]) -> IO[bytes] | bytes:
        body = PartsBody(window, self._current.deadline.check)
        # Small bodies are sent together with the header.
        # The HTTP library needs less of a file than the type stubs say.
        return cast("IO[bytes]", body) if body.size_bytes > _SMALL_BODY_BYTES else body.read()

    def _deadline(self, size: int = 0) -> CallDeadline:
        return CallDeadline(
            self._clock, self._settings.call_timeout_s + size / self._settings.least_bytes_per_s
        )

    def _name(self, key: str) -> str:
        return self._root + check_key(key)

    def _date_ms(self, headers: dict[str, str]) -> int:
        """Time of the server's clock, which ages are compared with. Raises StoreNotUsableError without it."""
        try:
            return _milliseconds(parsedate_to_datetime(headers["date"]))
        except (KeyError, ValueError) as error:
            raise StoreNotUsableError(
                "the store's responses have no Date; use a complete S3 server"
            ) from error

    def _make_client(
        self, session: boto3.session.Session, max_attempts: int, connect_timeout_s: float
    ) -> S3Client:
        settings = self._settings
        config = Config(
            connect_timeout=connect_timeout_s,
            read_timeout=settings.read_timeout_s,
            retries={"mode": "standard", "total_max_attempts": max_attempts},
            max_pool_connections=settings.max_connections,
            tcp_keepalive=True,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3=cast("Any", {"addressing_style": settings.addressing}),
        )
        client: S3Client = cast("Any", session).client(
            "s3", endpoint_url=settings.endpoint_url, config=config
        )
        # The endpoint is known only now: it may have come from the environment or from a profile.
        effective_config: Any = client.meta.config
        effective_config.s3["payload_signing_enabled"] = not is_protected(client.meta.endpoint_url)
        client.meta.events.unregister("before-call.s3", add_expect_header)
        self._options.register(client.meta.events)
        client.meta.events.register("before-send.s3", self._before_request)
        client.meta.events.register("response-received.s3", self._after_attempt)
        return client

    def _before_request(self, request: AWSPreparedRequest, **_: object) -> None:
        """Called by botocore before each attempt. An error ends the call; a result would replace the
        response.
        """
        self._current.deadline.check()
        if self._on_request is None:
            return
        target = urlsplit(request.url)
        path = unquote(target.path).removeprefix("/")
        if not (target.hostname or "").startswith(f"{self._bucket}."):
            path = path.removeprefix(self._bucket).removeprefix("/")
        self._on_request(request.method, path.removeprefix(self._root))

    def _after_attempt(self, exception: Exception | None, **_: object) -> None:
        """Called by botocore after each attempt. An error ends the call without further attempts."""
        if self._was_reached:
            return
        if isinstance(exception, _NO_CONNECTION_ERRORS):
            raise exception
        self._was_reached = True

    @contextmanager
    def _call(
        self, key: str = "", deadline: CallDeadline | None = None, *, is_conditional_write: bool = False
    ) -> Generator[None]:
        """The context of one call, or of a part of it: sets its deadline and converts its errors."""
        self._current.deadline = deadline or self._deadline()
        with self._errors(key, is_conditional_write=is_conditional_write):
            yield

    @contextmanager
    def _errors(self, key: str = "", *, is_conditional_write: bool = False) -> Generator[None]:
        """Turn errors of boto3 into ours, without botocore's texts, whose length is unbounded."""
        try:
            yield
        except ClientError as error:
            raise self._error_of_answer(error, key, is_conditional_write) from None
        except ProfileNotFound as error:
            raise StoreAccessDeniedError(
                "there is no such profile; correct AWS_PROFILE or the store's url, or add it to a file",
                store=self.url,
                profile=str(error.kwargs["profile"])[:64],
                looked_in=", ".join(_profile_files()),
            ) from None
        except _CREDENTIAL_ERRORS as error:
            raise StoreAccessDeniedError(
                "no credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
                store=self.url,
                reason=type(error).__name__,
            ) from None
        except (ParamValidationError, ResponseParserError, ValueError, KeyError) as error:
            # A KeyError means that the response lacks a part that S3 always sends: an HTML page, for example.
            raise StoreNotUsableError(
                "this is not the response of an S3 server; correct the store's url or endpoint",
                store=self.url,
                endpoint=self._endpoint_shown,
                reason=type(error).__name__,
            ) from None
        except (BotoCoreError, CallTimeoutError, HTTPError, OSError) as error:
            raise StoreUnavailableError(
                "the store cannot be reached, ended a response early or is too slow; check its endpoint and"
                " that it runs",
                **({"key": key} if key else {}),
                store=self.url,
                endpoint=self._endpoint_shown,
                reason=type(error).__name__,
            ) from None

    def _error_of_answer(self, error: ClientError, key: str, is_conditional_write: bool) -> StoreError:
        return error_of_answer(
            _status(error),
            error.response.get("Error", {}).get("Code") or "",
            key=key,
            store=self.url,
            request_id=error.response.get("ResponseMetadata", {}).get("RequestId") or "",
            is_conditional_write=is_conditional_write,
        )


class _SharedLoader(Loader):
    """A reader of the descriptions of services. Thread-safe: threads may read one twice, and keep either."""

    @property
    def search_paths(self) -> list[str]:
        """A copy: each session of boto3 adds the same folder, which describes no clients."""
        return list(super().search_paths)


@cache
def _loader_of(*search_paths: str) -> Loader:
    return _SharedLoader([*search_paths], include_default_search_paths=False)


def _quick_session() -> botocore.session.Session:
    """A session whose clients parse times without a guess at their format, which takes a ninth of a GET, and
    which reads what describes a client, two thirds of the work to make one, once in a process."""
    session = botocore.session.Session()
    own_loader: Any = session.get_component("data_loader")
    session.register_component("data_loader", _loader_of(*own_loader.search_paths))
    factory: Any = session.get_component("response_parser_factory")
    factory.set_parser_defaults(timestamp_parser=_moment)
    return session


def _moment(text: str | float) -> datetime:
    """The time in a response: RFC 5322 in headers, ISO 8601 in bodies, and the library's guess for any other
    form. Raises ValueError."""
    for parse in (parsedate_to_datetime, datetime.fromisoformat):
        with suppress(ValueError, TypeError, AttributeError):
            return parse(cast("str", text))
    moment: datetime = cast("Any", parse_timestamp)(text)
    return moment


def _profile_files() -> list[str]:
    """The files in which botocore looks for profiles, according to the environment."""
    session = botocore.session.Session()
    return [str(session.get_config_variable(name)) for name in ("credentials_file", "config_file")]


def _status(error: ClientError) -> int:
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)


def _is_minio(headers: Mapping[str, str]) -> bool:
    return headers.get("server", "").startswith("MinIO")


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
