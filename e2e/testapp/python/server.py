#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright Authors of Evenkeel
"""The grpcio server of the end-to-end tests.

It speaks the service of e2e/testapp/internal/echo and answers /ready, /stats and
/hook as the Go server does. SIGTERM ends it at once: the kernel does not deliver a
signal without a handler to PID 1, so the handler does nothing but exit.
"""

import argparse
import concurrent.futures
import http.server
import json
import os
import signal
import socket
import socketserver
import threading
import time
import urllib.request

import grpc

SERVICE = "evenkeel.e2e.Echo"
CODES = {c.value[0]: c for c in grpc.StatusCode}
# A lasting stream has a thread of its own all the time.
THREADS = 400


class Echo:
    """The four methods; messages are bytes of JSON."""

    def __init__(self, name):
        self._name = name
        self.started = self.ended = 0
        self._lock = threading.Lock()

    def _count(self, started=0, ended=0):
        with self._lock:
            self.started += started
            self.ended += ended

    def counted(self, method):
        def stream(request, context):
            self._count(started=1)
            try:
                yield from method(request, context)
            finally:
                self._count(ended=1)

        return stream

    def counted_one(self, method):
        def one(request, context):
            self._count(started=1)
            try:
                return method(request, context)
            finally:
                self._count(ended=1)

        return one

    def _answer(self, message, context, received):
        request = json.loads(message)
        if request.get("delay_ms"):
            time.sleep(request["delay_ms"] / 1000)
        if request.get("status"):
            context.abort(CODES[request["status"]], "as asked, by " + self._name)
        peer = context.peer().partition(":")[2]  # ipv4:10.0.0.1:1234
        return json.dumps({
            "server": self._name, "peer": peer, "authority": "", "received": received,
            "payload": "x" * request.get("reply_bytes", 0),
        }).encode()

    def unary(self, message, context):
        return self._answer(message, context, 1)

    def server_stream(self, message, context):
        for _ in range(max(1, json.loads(message).get("messages", 0))):
            yield self._answer(message, context, 1)

    def client_stream(self, messages, context):
        last, n = b"{}", 0
        for n, last in enumerate(messages, 1):
            pass
        return self._answer(last, context, n)

    def bidi(self, messages, context):
        for n, message in enumerate(messages, 1):
            yield self._answer(message, context, n)


def report(url, what, name):
    if url:
        urllib.request.urlopen(f"{url}?what={what}&pod={name}", timeout=3).close()


def admin(echo, name, url, ready_at):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            code, body = 200, b""
            if self.path == "/ready":
                code = 200 if time.monotonic() >= ready_at else 503
            elif self.path == "/stats":
                body = json.dumps({"name": name, "started": echo.started, "ended": echo.ended}).encode()
            elif self.path == "/hook":
                report(url, "hook", name)
            else:
                code = 404
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    return Handler


class AdminServer(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["server"])
    parser.add_argument("--name", default=socket.gethostname())
    parser.add_argument("--listen", default=":50051")
    parser.add_argument("--http", default=":8080")
    parser.add_argument("--report", default="")
    args = parser.parse_args()

    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    echo = Echo(args.name)
    handlers = {
        "Unary": grpc.unary_unary_rpc_method_handler(echo.counted_one(echo.unary)),
        "ServerStream": grpc.unary_stream_rpc_method_handler(echo.counted(echo.server_stream)),
        "ClientStream": grpc.stream_unary_rpc_method_handler(echo.counted_one(echo.client_stream)),
        "Bidi": grpc.stream_stream_rpc_method_handler(echo.counted(echo.bidi)),
    }
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(THREADS), options=(("grpc.so_reuseport", 0),))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_insecure_port("0.0.0.0" + args.listen if args.listen.startswith(":") else args.listen)
    server.start()
    host, _, port = args.http.rpartition(":")
    web = AdminServer((host, int(port)), admin(echo, args.name, args.report, time.monotonic()))
    threading.Thread(target=web.serve_forever, daemon=True).start()
    print(f"serving name={args.name} grpcio={grpc.__version__}", flush=True)
    # The handler runs in this thread.
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
