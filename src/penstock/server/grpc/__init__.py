"""gRPC: `penstock.v1.QueueService`, and the service of RivetQ. It needs the extra `grpc`."""
