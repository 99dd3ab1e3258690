#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright Authors of Evenkeel
"""The grpcio client of the end-to-end tests.

It has the flags, the HTTP interface and the JSON of the Go client
(e2e/testapp/internal/client and internal/stats: the contract is there). It is an
ordinary grpcio program: an ordinary name:port target, no channel options but
those that a flag asks for.

It sends lasting streams too (--stream-rate), and tells what it saw at its end
(--report).

What differs: grpcio hides its sockets, so "connects" counts the changes of a
channel to READY, "disconnects" those from READY, "connect_failures" those to
TRANSIENT_FAILURE, and "remotes" stays empty.
"""

import argparse
import collections
import http.server
import json
import random
import signal
import socketserver
import threading
import time
import urllib.parse
import urllib.request

import grpc

SERVICE = "/evenkeel.e2e.Echo/"
KINDS = ("unary", "server-stream", "client-stream", "bidi")
LASTING = ("long-server-stream", "long-bidi")
STREAM_MESSAGES = 3
PACE = 0.25  # how often a lasting stream has a message each way
END_TIMEOUT = 50
BUCKET_MS = 100
MAX_BUCKETS = 6000
MAX_LATENCIES = 200_000
MAX_ERRORS = 50
MAX_FAILURES = 200
MAX_IN_FLIGHT = 1000


def now_ms():
    return int(time.time() * 1000)


class Stats:
    """Counts; any thread may use it. Mirrors package stats."""

    def __init__(self):
        self._lock = threading.Lock()
        self.reset()

    def reset(self):
        with self._lock:
            self._since = now_ms()
            self._counts = collections.Counter()
            self._by_server = collections.Counter()
            self._authorities = collections.Counter()
            self._peers = collections.Counter()
            self._kinds = collections.defaultdict(lambda: {"started": 0, "succeeded": 0, "failed": 0})
            self._errors = {}
            self._failures = []
            self._latencies = collections.deque(maxlen=MAX_LATENCIES)
            self._last_success = 0
            self._timeline = {}

    def count(self, what):
        with self._lock:
            self._counts[what] += 1

    def started(self, kind):
        with self._lock:
            self._counts["started"] += 1
            self._kinds[kind]["started"] += 1

    def _bucket(self, ms):
        start = ms - ms % BUCKET_MS
        if start not in self._timeline and len(self._timeline) >= MAX_BUCKETS:
            return None
        return self._timeline.setdefault(start, {"ms": start, "by_server": collections.Counter(), "failed": 0})

    def succeeded(self, kind, reply, latency_s):
        ms = now_ms()
        with self._lock:
            self._counts["succeeded"] += 1
            self._kinds[kind]["succeeded"] += 1
            self._by_server[reply["server"]] += 1
            self._authorities[reply["authority"]] += 1
            self._peers[reply["peer"].rsplit(":", 1)[0].strip("[]")] += 1
            self._last_success = ms
            if kind not in LASTING:
                self._latencies.append(int(latency_s * 1e6))
            bucket = self._bucket(ms)
            if bucket:
                bucket["by_server"][reply["server"]] += 1

    def failed(self, kind, began_ms, code, message, replies):
        ms = now_ms()
        with self._lock:
            self._counts["failed"] += 1
            self._kinds[kind]["failed"] += 1
            if len(self._failures) < MAX_FAILURES:
                self._failures.append({
                    "began_ms": began_ms, "ended_ms": ms, "kind": kind, "code": code, "message": message,
                    "server": replies[-1]["server"] if replies else "", "answers": len(replies),
                })
            bucket = self._bucket(ms)
            if bucket:
                bucket["failed"] += 1
            error = self._errors.get((code, message))
            if error:
                error["count"] += 1
                error["last_ms"] = ms
            elif len(self._errors) < MAX_ERRORS:
                self._errors[code, message] = {
                    "code": code, "message": message, "count": 1, "first_ms": ms, "last_ms": ms,
                }

    def snapshot(self, timeline):
        with self._lock:
            latencies = sorted(self._latencies)
            size = len(latencies)
            s = {
                "since_ms": self._since,
                "now_ms": now_ms(),
                "started": self._counts["started"],
                "succeeded": self._counts["succeeded"],
                "failed": self._counts["failed"],
                "skipped": self._counts["skipped"],
                "by_server": dict(self._by_server),
                "authorities": dict(self._authorities),
                "peers": dict(self._peers),
                "kinds": {kind: dict(n) for kind, n in self._kinds.items()},
                "failures": [dict(f) for f in self._failures],
                "errors": [dict(e) for e in self._errors.values()],
                "connects": self._counts["connects"],
                "disconnects": self._counts["disconnects"],
                "connect_failures": self._counts["connect_failures"],
                "remotes": {},
                "latency_us": {
                    "p50": latencies[size // 2] if size else 0,
                    "p99": latencies[size * 99 // 100] if size else 0,
                    "max": latencies[-1] if size else 0,
                },
                "last_success_ms": self._last_success,
            }
            if timeline:
                s["timeline"] = [
                    {"ms": b["ms"], "by_server": dict(b["by_server"]), "failed": b["failed"]}
                    for _, b in sorted(self._timeline.items())
                ]
            return s


class Channel:
    """One grpc channel."""

    def __init__(self, call, stats):
        self._call = call
        self._stats = stats
        options = []
        if call.policy:
            options.append(("grpc.lb_policy_name", call.policy))
        # grpcio shares connections of channels with equal arguments in one
        # process: a channel of the test means a connection of its own.
        options.append(("grpc.use_local_subchannel_pool", 1))
        if call.no_retry:
            options.append(("grpc.enable_retries", 0))
        if call.tls:
            raise ValueError("tls: grpcio cannot leave a certificate unchecked: use the Go client")
        self._channel = grpc.insecure_channel(call.target, options=options)
        self._state = None
        self._channel.subscribe(self._changed)
        self._unary = self._channel.unary_unary(SERVICE + "Unary")
        self._methods = {
            "server-stream": self._channel.unary_stream(SERVICE + "ServerStream"),
            "client-stream": self._channel.stream_unary(SERVICE + "ClientStream"),
            "bidi": self._channel.stream_stream(SERVICE + "Bidi"),
        }
        self._request = json.dumps({
            "payload": "x" * call.bytes, "reply_bytes": call.bytes,
            "delay_ms": int(call.delay * 1000), "messages": STREAM_MESSAGES,
        }).encode()

    def _changed(self, state):
        if state is grpc.ChannelConnectivity.READY:
            self._stats.count("connects")
        elif self._state is grpc.ChannelConnectivity.READY:
            self._stats.count("disconnects")
        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            self._stats.count("connect_failures")
        self._state = state

    def close(self):
        self._channel.unsubscribe(self._changed)
        self._channel.close()

    def do(self, kind, length, replies):
        """One RPC; its answers are appended to replies as they come."""
        lasting = kind in LASTING
        args = {"timeout": self._call.deadline + (length if lasting else 0), "metadata": self._call.metadata}
        if kind in ("unary", "client-stream"):
            if kind == "unary":
                answer = self._unary(self._request, **args)
            else:
                answer = self._methods[kind](iter([self._request] * STREAM_MESSAGES), **args)
            replies.append(json.loads(answer))
            return
        messages = max(1, int(length / PACE))
        if kind == "long-server-stream":
            request = dict(json.loads(self._request), messages=messages, delay_ms=int(PACE * 1000))
            answers = self._methods["server-stream"](json.dumps(request).encode(), **args)
        elif kind == "server-stream":
            answers = self._methods[kind](self._request, **args)
        elif kind == "long-bidi":
            over = threading.Event()
            answers = self._methods["bidi"](self._paced(messages, over), **args)
            answers.add_callback(over.set)
        else:
            answers = self._methods[kind](iter([self._request] * STREAM_MESSAGES), **args)
        for answer in answers:
            replies.append(json.loads(answer))
        if not replies:
            raise ValueError("the stream ended well without an answer")
        servers = {r["server"] for r in replies}
        if len(servers) > 1:
            raise ValueError("one stream was answered by " + " and ".join(sorted(servers)))

    def _paced(self, messages, over):
        for i in range(messages):
            if i and over.wait(PACE):
                return
            yield self._request


class HTTP1:
    """Requests instead of RPCs, each on a new connection."""

    def __init__(self, call, stats):
        self._call = call
        self._stats = stats

    def close(self):
        pass

    def do(self, _kind, _length, replies):
        request = urllib.request.Request("http://" + self._call.target + "/", data=b"x" * self._call.bytes)
        with urllib.request.urlopen(request, timeout=self._call.deadline) as response:
            self._stats.count("connects")
            replies.append(json.load(response))
        self._stats.count("disconnects")


class Load:
    """RPCs over some channels."""

    def __init__(self, call, channels, stats):
        self._call = call
        self._stats = stats
        make = HTTP1 if call.protocol == "http1" else Channel
        self._channels = [make(call, stats) for _ in range(max(1, channels))]
        self._lock = threading.Lock()
        self._turn = self._streams = self.open = 0

    def close(self):
        for channel in self._channels:
            channel.close()

    def one(self):
        kind = self._call.kind
        with self._lock:
            self._turn += 1
            turn = self._turn
        self._send(turn, KINDS[turn % 4] if kind == "mix" else kind, self._call.length)

    def lasting(self, shortest, longest):
        with self._lock:
            self._streams += 1
            turn = self._streams
        self._send(turn, LASTING[turn % 2], random.uniform(shortest, longest))

    def _send(self, turn, kind, length):
        with self._lock:
            self.open += 1
        self._stats.started(kind)
        begin, began_ms, replies = time.monotonic(), now_ms(), []
        try:
            self._channels[turn % len(self._channels)].do(kind, length, replies)
        except grpc.RpcError as e:
            # The names of grpc-go: UNAVAILABLE is Unavailable.
            self._stats.failed(kind, began_ms, "".join(w.capitalize() for w in e.code().name.split("_")), e.details(), replies)
        except Exception as e:  # counted, with its text: a test client must go on
            self._stats.failed(kind, began_ms, "CLIENT", repr(e), replies)
        else:
            self._stats.succeeded(kind, replies[-1], time.monotonic() - begin)
        finally:
            with self._lock:
                self.open -= 1

    def wait(self):
        """Until no RPC is in flight; False if that takes too long."""
        deadline = time.monotonic() + END_TIMEOUT
        time.sleep(0.05)  # what was just due has begun
        while self.open and time.monotonic() < deadline:
            time.sleep(0.02)
        return not self.open

    def burst(self, n, concurrency):
        left = iter(range(n))
        lock = threading.Lock()

        def worker():
            while True:
                with lock:
                    if next(left, None) is None:
                        return
                self.one()

        workers = [threading.Thread(target=worker) for _ in range(max(1, concurrency))]
        for w in workers:
            w.start()
        for w in workers:
            w.join()

    def steady(self, rate, stop, one):
        """Sends at a constant rate: what is due is sent, however slow answers are."""
        idle = []  # workers that wait for an order
        lock = threading.Lock()
        total = 0

        def worker(order):
            while True:
                order.acquire()
                if stop.is_set():
                    return
                one()
                with lock:
                    idle.append(order)

        last, due = time.monotonic(), 0.0
        orders = []
        while not stop.wait(0.005):
            now = time.monotonic()
            due += (now - last) * rate.value
            last = now
            while due >= 1:
                due -= 1
                with lock:
                    order = idle.pop() if idle else None
                if order is None and total < MAX_IN_FLIGHT:
                    total += 1
                    order = threading.Semaphore(0)
                    orders.append(order)
                    threading.Thread(target=worker, args=(order,), daemon=True).start()
                if order is None:
                    self._stats.count("skipped")
                else:
                    order.release()
        for order in orders:
            order.release()


class Rate:
    def __init__(self, value):
        self.value = value


class Call:
    """What RPCs a load sends."""

    FIELDS = ("target", "protocol", "policy", "kind", "tls", "deadline", "delay", "bytes", "metadata", "length", "no_retry")

    def __init__(self, **fields):
        for name in self.FIELDS:
            setattr(self, name, fields[name])
        if self.kind not in KINDS + LASTING + ("mix",):
            raise ValueError(f"kind: {self.kind!r}")
        if self.protocol not in ("grpc", "http1"):
            raise ValueError(f"protocol: {self.protocol!r}: want grpc or http1")

    def but(self, query):
        """This call with the parameters of /run."""
        fields = {name: getattr(self, name) for name in self.FIELDS}
        sizes = {"n": 1, "concurrency": 1, "channels": 1}
        for key, value in query.items():
            if key in ("target", "protocol", "policy", "kind"):
                fields[key] = value
            elif key == "tls":
                fields[key] = value == "true"
            elif key == "bytes":
                fields[key] = int(value)
            elif key in ("deadline_ms", "delay_ms", "length_ms"):
                fields[key[:-3]] = int(value) / 1000
            elif key in sizes:
                sizes[key] = int(value)
            else:
                raise ValueError(f"{key}: no such parameter")
        return Call(**fields), sizes


def handler(call, stats, load, rate, streams):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self, code, body):
            data = body.encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json" if body.startswith("{") else "text/plain")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _query(self):
            url = urllib.parse.urlparse(self.path)
            return url.path, dict(urllib.parse.parse_qsl(url.query))

        def do_GET(self):
            path, query = self._query()
            if path == "/ready":
                self._answer(200, "")
            elif path == "/stats":
                self._answer(200, json.dumps(stats.snapshot("timeline" in query)))
            else:
                self._answer(404, "no such path\n")

        def do_POST(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path, query = self._query()
            try:
                if path == "/reset":
                    stats.reset()
                    self._answer(200, "")
                elif path == "/rate":
                    rate.value = int(query["value"])
                    streams.value = float(query.get("streams", streams.value))
                    self._answer(200, "")
                elif path == "/stop":
                    rate.value = streams.value = 0
                    if load.wait():
                        self._answer(200, json.dumps(stats.snapshot(True)))
                    else:
                        self._answer(504, f"{load.open} RPCs are still in flight\n")
                elif path == "/run":
                    own, (run, sizes) = Stats(), call.but(query)
                    burst = Load(run, sizes["channels"], own)
                    try:
                        burst.burst(sizes["n"], sizes["concurrency"])
                    finally:
                        burst.close()
                    self._answer(200, json.dumps(own.snapshot(True)))
                else:
                    self._answer(404, "no such path\n")
            except (ValueError, KeyError) as e:
                self._answer(400, f"{e}\n")

        def log_message(self, *_):
            pass

    return Handler


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 64


def duration(text):
    """A Go duration of one unit: 5s, 100ms, 1m."""
    for suffix, scale in (("ms", 0.001), ("s", 1), ("m", 60)):
        if text.endswith(suffix):
            return float(text[: -len(suffix)]) * scale
    return float(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["client"])
    parser.add_argument("--target", required=True)
    parser.add_argument("--http", default=":8080")
    parser.add_argument("--rate", type=int, default=0)
    parser.add_argument("--channels", type=int, default=1)
    parser.add_argument("--policy", default="")
    parser.add_argument("--protocol", default="grpc")
    parser.add_argument("--kind", default="unary")
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--deadline", type=duration, default=5.0)
    parser.add_argument("--delay", type=duration, default=0.0)
    parser.add_argument("--bytes", type=int, default=0)
    parser.add_argument("--metadata", default="")
    parser.add_argument("--no-retry", action="store_true")
    parser.add_argument("--stream-rate", type=float, default=0.0)
    parser.add_argument("--stream-length", default="0s-0s")
    parser.add_argument("--linger", type=duration, default=0.0)
    parser.add_argument("--report", default="")
    flags = vars(parser.parse_args())
    flags["metadata"] = tuple(tuple(kv.split("=", 1)) for kv in flags["metadata"].split(",") if "=" in kv)
    flags["length"] = 0.0
    shortest, longest = (duration(d) for d in flags["stream_length"].split("-"))

    call = Call(**{name: flags[name] for name in Call.FIELDS})
    stats, rate, streams = Stats(), Rate(flags["rate"]), Rate(flags["stream_rate"])
    told, stop = threading.Event(), threading.Event()
    load = Load(call, flags["channels"], stats)
    host, _, port = flags["http"].rpartition(":")
    server = Server((host, int(port)), handler(call, stats, load, rate, streams))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"running target={call.target} rate={rate.value} grpcio={grpc.__version__}", flush=True)
    for s in (signal.SIGTERM, signal.SIGINT):
        signal.signal(s, lambda *_: told.set())
    for r, one in ((rate, load.one), (streams, lambda: load.lasting(shortest, longest))):
        threading.Thread(target=load.steady, args=(r, stop, one), daemon=True).start()
    told.wait()
    time.sleep(flags["linger"])
    rate.value = streams.value = 0
    load.wait()
    stop.set()
    if flags["report"]:
        body = json.dumps(stats.snapshot(True)).encode()
        urllib.request.urlopen(urllib.request.Request(flags["report"], data=body), timeout=5).close()


if __name__ == "__main__":
    main()
