"""Protocol buffers: what gRPC calls carry, for the server and for the client.

The `.proto` files are the definition. `interfaces.binpb` is compiled from them by `make protos`; a
test compares the two. Classes are made of it when it is imported, so no code is generated. It needs
the extra `grpc`.
"""
