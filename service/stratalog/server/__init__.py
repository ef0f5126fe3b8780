"""The gRPC server: settings, servicers, concurrency and the composition root. The only layer that owns
threads.
"""
