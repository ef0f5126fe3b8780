"""The gRPC servicers and the conversion between messages and values."""
