"""The producer id of all senders of a producer, and its successors."""

from __future__ import annotations

from typing import NamedTuple

from stratalog.client.channel import CALL_TIMEOUT_S, ServerChannel
from stratalog.client.retry import Patience
from stratalog.v1 import log_pb2, log_pb2_grpc


class ProducerIdentity(NamedTuple):
    """The id of a producer, and its epoch."""

    producer_id: int
    producer_epoch: int


class ProducerIdentities:
    """The newest identity, for lanes that begin anew. Belongs to one event loop."""

    def __init__(self) -> None:
        self.newest: ProducerIdentity | None = None
        """None before the first one. A former identity never comes back."""

    async def renew(self, channel: ServerChannel, patience: Patience) -> None:
        """Take a new identity from a server, by one attempt. Raises LogStoreError."""
        stub = log_pb2_grpc.LogServiceStub(channel.grpc)
        call = stub.InitProducer(log_pb2.InitProducerRequest(), timeout=CALL_TIMEOUT_S)
        response = await channel.attempt(call, patience)
        self.newest = ProducerIdentity(response.producer_id, response.producer_epoch)
