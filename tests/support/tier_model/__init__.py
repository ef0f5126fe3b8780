"""Random lives of whole servers below gRPC, and the list of records that they are compared with."""
