#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright Authors of Evenkeel
"""The gRPC interop test cases for grpcio, with the flags of the gRPC project's clients.

grpcio's own program is not published. The cases are those of
https://github.com/grpc/grpc/blob/master/doc/interop-test-descriptions.md.
"""

import argparse
import queue
import sys
import time

import grpc

pb, services = grpc.protos_and_services("interop.proto")

REQUEST_SIZE, RESPONSE_SIZE = 271828, 314159
STREAM_REQUESTS = (27182, 8, 1828, 45904)
STREAM_RESPONSES = (31415, 9, 2653, 58979)
LARGE = 10 << 20
SPECIAL = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"
INITIAL, TRAILING = "x-grpc-test-echo-initial", "x-grpc-test-echo-trailing-bin"
TIMEOUT = 60


def check(got, want, what):
    if got != want:
        raise AssertionError(f"{what}: got {got!r:.200}, want {want!r:.200}")


def simple(request=REQUEST_SIZE, response=RESPONSE_SIZE, **more):
    return pb.SimpleRequest(response_size=response, payload=pb.Payload(body=bytes(request)), **more)


def output(sizes, request=0, **more):
    if isinstance(sizes, int):
        sizes = (sizes,)
    return pb.StreamingOutputCallRequest(
        response_parameters=[pb.ResponseParameters(size=n, **more) for n in sizes],
        payload=pb.Payload(body=bytes(request)))


def fails(call, code, message=None, or_code=None):
    try:
        call()
    except grpc.RpcError as err:
        if err.code() != or_code:
            check(err.code(), code, "status")
        if message is not None:
            check(err.details(), message, "message")
        return
    raise AssertionError(f"no error, want {code}")


class Feed:
    """A request stream that the test sends into."""

    def __init__(self):
        self._queue = queue.Queue()

    def send(self, message):
        self._queue.put(message)

    def close(self):
        self._queue.put(None)

    def __iter__(self):
        return iter(self._queue.get, None)


class Cases:
    def __init__(self, args, dial):
        self.args, self.dial = args, dial
        self.channel = dial()
        self.stub = services.TestServiceStub(self.channel)

    def empty_unary(self):
        check(self.stub.EmptyCall(pb.Empty(), timeout=TIMEOUT), pb.Empty(), "response")

    def large_unary(self):
        check(len(self.stub.UnaryCall(simple(), timeout=TIMEOUT).payload.body), RESPONSE_SIZE, "bytes")

    def very_large_request(self):
        check(len(self.stub.UnaryCall(simple(LARGE, LARGE), timeout=TIMEOUT).payload.body), LARGE, "bytes")

    def client_streaming(self):
        requests = (pb.StreamingInputCallRequest(payload=pb.Payload(body=bytes(n))) for n in STREAM_REQUESTS)
        got = self.stub.StreamingInputCall(requests, timeout=TIMEOUT)
        check(got.aggregated_payload_size, sum(STREAM_REQUESTS), "sum")

    def server_streaming(self):
        got = [len(r.payload.body) for r in self.stub.StreamingOutputCall(output(STREAM_RESPONSES), timeout=TIMEOUT)]
        check(tuple(got), STREAM_RESPONSES, "sizes")

    def ping_pong(self):
        feed = Feed()
        call = self.stub.FullDuplexCall(iter(feed), timeout=TIMEOUT)
        for request, response in zip(STREAM_REQUESTS, STREAM_RESPONSES):
            feed.send(output(response, request))
            check(len(next(call).payload.body), response, "size")
        feed.close()
        check(list(call), [], "rest")

    def empty_stream(self):
        check(list(self.stub.FullDuplexCall(iter(()), timeout=TIMEOUT)), [], "responses")

    def timeout_on_sleeping_server(self):
        feed = Feed()
        feed.send(output(31415, 27182))
        fails(lambda: list(self.stub.FullDuplexCall(iter(feed), timeout=0.001)), grpc.StatusCode.DEADLINE_EXCEEDED)
        feed.close()
        # And one that the server does see.
        begin = time.monotonic()
        # When the server's clock is first, it resets the stream, of which grpcio makes CANCELLED, also without a proxy.
        fails(lambda: list(self.stub.StreamingOutputCall(output(1, interval_us=5_000_000), timeout=0.5)),
              grpc.StatusCode.DEADLINE_EXCEEDED, or_code=grpc.StatusCode.CANCELLED)
        if time.monotonic() - begin < 0.4:
            raise AssertionError("the deadline came too early")

    def cancel_after_begin(self):
        feed = Feed()
        call = self.stub.StreamingInputCall.future(iter(feed), timeout=TIMEOUT)
        call.cancel()
        feed.close()
        check(call.code(), grpc.StatusCode.CANCELLED, "status")

    def cancel_after_first_response(self):
        feed = Feed()
        call = self.stub.FullDuplexCall(iter(feed), timeout=TIMEOUT)
        feed.send(output(31415, 27182))
        check(len(next(call).payload.body), 31415, "size")
        call.cancel()
        feed.close()
        fails(lambda: next(call), grpc.StatusCode.CANCELLED)

    def _status(self, message):
        status = pb.EchoStatus(code=2, message=message)
        fails(lambda: self.stub.UnaryCall(pb.SimpleRequest(response_status=status), timeout=TIMEOUT),
              grpc.StatusCode.UNKNOWN, message)
        request = pb.StreamingOutputCallRequest(response_status=status)
        fails(lambda: list(self.stub.FullDuplexCall(iter([request]), timeout=TIMEOUT)), grpc.StatusCode.UNKNOWN, message)

    def status_code_and_message(self):
        self._status("test status message")

    def special_status_message(self):
        status = pb.EchoStatus(code=2, message=SPECIAL)
        fails(lambda: self.stub.UnaryCall(pb.SimpleRequest(response_status=status), timeout=TIMEOUT),
              grpc.StatusCode.UNKNOWN, SPECIAL)

    def custom_metadata(self):
        for binary in (b"\xab\xab\xab", bytes(range(256)), b""):
            sent = ((INITIAL, "test_initial_metadata_value"), (TRAILING, binary))

            def echoed(call):
                check(dict(call.initial_metadata()).get(INITIAL), sent[0][1], "initial metadata")
                check(dict(call.trailing_metadata()).get(TRAILING), binary, "trailing metadata")

            response, call = self.stub.UnaryCall.with_call(simple(), metadata=sent, timeout=TIMEOUT)
            check(len(response.payload.body), RESPONSE_SIZE, "bytes")
            echoed(call)
            call = self.stub.FullDuplexCall(iter([output(RESPONSE_SIZE, REQUEST_SIZE)]), metadata=sent, timeout=TIMEOUT)
            check([len(r.payload.body) for r in call], [RESPONSE_SIZE], "sizes")
            echoed(call)

    def unimplemented_method(self):
        fails(lambda: self.stub.UnimplementedCall(pb.Empty(), timeout=TIMEOUT), grpc.StatusCode.UNIMPLEMENTED)

    def unimplemented_service(self):
        stub = services.UnimplementedServiceStub(self.channel)
        fails(lambda: stub.UnimplementedCall(pb.Empty(), timeout=TIMEOUT), grpc.StatusCode.UNIMPLEMENTED)

    def client_compressed_unary_noprobe(self):
        for compression, value in ((grpc.Compression.Gzip, True), (grpc.Compression.NoCompression, False)):
            request = simple(expect_compressed=pb.BoolValue(value=value))
            got = self.stub.UnaryCall(request, compression=compression, timeout=TIMEOUT)
            check(len(got.payload.body), RESPONSE_SIZE, "bytes")

    def server_compressed_unary(self):
        for value in (True, False):
            got = self.stub.UnaryCall(simple(response_compressed=pb.BoolValue(value=value)), timeout=TIMEOUT)
            check(len(got.payload.body), RESPONSE_SIZE, "bytes")

    def server_compressed_streaming(self):
        sizes = (31415, 92653)
        request = output(sizes, compressed=pb.BoolValue(value=True))
        got = [len(r.payload.body) for r in self.stub.StreamingOutputCall(request, timeout=TIMEOUT)]
        check(tuple(got), sizes, "sizes")

    def _soak(self, stub):
        request = simple(self.args.soak_request_size, self.args.soak_response_size)
        for _ in range(self.args.soak_iterations):
            got = stub().UnaryCall(request, timeout=TIMEOUT)
            check(len(got.payload.body), self.args.soak_response_size, "bytes")

    def rpc_soak(self):
        self._soak(lambda: self.stub)

    def channel_soak(self):
        def fresh():
            self.channel.close()
            self.channel = self.dial()
            return services.TestServiceStub(self.channel)
        self._soak(fresh)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server_host", required=True)
    parser.add_argument("--server_port", type=int, required=True)
    parser.add_argument("--test_case", required=True)
    parser.add_argument("--soak_iterations", type=int, default=10)
    parser.add_argument("--soak_request_size", type=int, default=REQUEST_SIZE)
    parser.add_argument("--soak_response_size", type=int, default=RESPONSE_SIZE)
    args = parser.parse_args()

    def dial():
        # Messages beyond 4 MiB; and a pool of connections per channel, or channel_soak would not remake them.
        return grpc.insecure_channel(f"{args.server_host}:{args.server_port}", options=(
            ("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)))

    cases = Cases(args, dial)
    getattr(cases, args.test_case)()
    cases.channel.close()


if __name__ == "__main__":
    sys.exit(main())
