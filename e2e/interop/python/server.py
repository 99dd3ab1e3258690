#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright Authors of Evenkeel
"""The gRPC interop server for grpcio; see client.py."""

import argparse
import concurrent.futures
import time

import grpc

pb, services = grpc.protos_and_services("interop.proto")

INITIAL, TRAILING = "x-grpc-test-echo-initial", "x-grpc-test-echo-trailing-bin"
CODES = {c.value[0]: c for c in grpc.StatusCode}


def echo_metadata(context):
    for key, value in context.invocation_metadata():
        if key == INITIAL:
            context.send_initial_metadata(((key, value),))
        elif key == TRAILING:
            context.set_trailing_metadata(((key, value),))


def echo_status(request, context):
    if request.HasField("response_status"):
        context.abort(CODES[request.response_status.code], request.response_status.message)


class TestService(services.TestServiceServicer):
    def EmptyCall(self, request, context):
        return pb.Empty()

    def UnaryCall(self, request, context):
        echo_metadata(context)
        echo_status(request, context)
        return pb.SimpleResponse(payload=pb.Payload(body=bytes(request.response_size)))

    def StreamingOutputCall(self, request, context):
        echo_status(request, context)
        for parameters in request.response_parameters:
            time.sleep(parameters.interval_us / 1e6)
            yield pb.StreamingOutputCallResponse(payload=pb.Payload(body=bytes(parameters.size)))

    def StreamingInputCall(self, requests, context):
        return pb.StreamingInputCallResponse(aggregated_payload_size=sum(len(r.payload.body) for r in requests))

    def FullDuplexCall(self, requests, context):
        echo_metadata(context)
        for request in requests:
            yield from self.StreamingOutputCall(request, context)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    args = parser.parse_args()
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(16), options=(("grpc.max_receive_message_length", -1),))
    services.add_TestServiceServicer_to_server(TestService(), server)
    server.add_insecure_port(f"127.0.0.1:{args.port}")
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
