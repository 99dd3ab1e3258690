// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel
'use strict';

// The gRPC interop test cases for @grpc/grpc-js, with the flags of the gRPC project's clients. Its own program is not
// published. The cases are those of https://github.com/grpc/grpc/blob/master/doc/interop-test-descriptions.md.

const assert = require('node:assert/strict');
const {once} = require('node:events');
const {grpc, testing, INITIAL, TRAILING, flags} = require('./messages.js');

const REQUEST_SIZE = 271828;
const RESPONSE_SIZE = 314159;
const STREAM_REQUESTS = [27182, 8, 1828, 45904];
const STREAM_RESPONSES = [31415, 9, 2653, 58979];
const LARGE = 10 << 20;
const SPECIAL = '\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n';

const args = flags({
  server_host: '', server_port: 0, test_case: '',
  soak_iterations: 10, soak_request_size: REQUEST_SIZE, soak_response_size: RESPONSE_SIZE,
});

function dial(options = {}) {
  return new testing.TestService(`${args.server_host}:${args.server_port}`, grpc.credentials.createInsecure(), {
    'grpc.max_receive_message_length': -1,
    'grpc.service_config_disable_resolution': 1,
    // A pool of connections per channel, or channel_soak would not remake them.
    'grpc.use_local_subchannel_pool': 1,
    ...options,
  });
}

const stub = dial();
const deadline = (ms = 60000) => ({deadline: Date.now() + ms});
const payload = (size) => ({type: 0, body: Buffer.alloc(size)});
const simple = (request = REQUEST_SIZE, response = RESPONSE_SIZE, more = {}) =>
  ({response_size: response, payload: payload(request), ...more});
const output = (sizes, request = 0, more = {}) =>
  ({response_parameters: [sizes].flat().map((size) => ({size, ...more})), payload: payload(request)});

// unary resolves to {response, initial, trailing}, or rejects with the status.
function unary(method, request, {metadata = new grpc.Metadata(), client = stub, ...options} = {}) {
  return new Promise((resolve, reject) => {
    const got = {};
    const call = client[method](request, metadata, {...deadline(), ...options}, (err, response) => {
      if (err) return reject(err);
      got.response = response;
      // The status comes before the callback or after it.
      if (got.trailing) resolve(got);
    });
    call.on('metadata', (m) => { got.initial = m; });
    call.on('status', (s) => { got.trailing = s.metadata; if (got.response) resolve(got); });
  });
}

async function large(request, client = stub) {
  const {response} = await unary('UnaryCall', request, {client});
  assert.equal(response.payload.body.length, request.response_size);
}

// sizes reads a stream to its end; it rejects with the status unless that is OK.
async function sizes(call) {
  const all = [];
  for await (const message of call) all.push(message.payload.body.length);
  return all;
}

async function fails(promise, code, message) {
  try {
    await promise;
  } catch (err) {
    if (err instanceof assert.AssertionError) throw err;
    assert.equal(err.code, code, err.stack);
    if (message !== undefined) assert.equal(err.details, message);
    return;
  }
  assert.fail(`no error, want ${code}`);
}

const cases = {
  async empty_unary() {
    assert.deepEqual((await unary('EmptyCall', {})).response, {});
  },
  large_unary: () => large(simple()),
  very_large_request: () => large(simple(LARGE, LARGE)),
  async client_streaming() {
    const sum = await new Promise((resolve, reject) => {
      const call = stub.StreamingInputCall(new grpc.Metadata(), deadline(), (err, r) => (err ? reject(err) : resolve(r)));
      for (const n of STREAM_REQUESTS) call.write({payload: payload(n)});
      call.end();
    });
    assert.equal(sum.aggregated_payload_size, STREAM_REQUESTS.reduce((a, b) => a + b));
  },
  async server_streaming() {
    assert.deepEqual(await sizes(stub.StreamingOutputCall(output(STREAM_RESPONSES), deadline())), STREAM_RESPONSES);
  },
  async ping_pong() {
    const call = stub.FullDuplexCall(deadline());
    const responses = call[Symbol.asyncIterator]();
    for (const [i, n] of STREAM_REQUESTS.entries()) {
      call.write(output(STREAM_RESPONSES[i], n));
      assert.equal((await responses.next()).value.payload.body.length, STREAM_RESPONSES[i]);
    }
    call.end();
    assert.equal((await responses.next()).done, true);
  },
  async empty_stream() {
    const call = stub.FullDuplexCall(deadline());
    call.end();
    assert.deepEqual(await sizes(call), []);
  },
  async timeout_on_sleeping_server() {
    const call = stub.FullDuplexCall(deadline(1));
    call.write(output(31415, 27182));
    await fails(sizes(call), grpc.status.DEADLINE_EXCEEDED);
    // And one that the server does see.
    const begin = Date.now();
    await fails(sizes(stub.StreamingOutputCall(output(1, 0, {interval_us: 5e6}), deadline(500))), grpc.status.DEADLINE_EXCEEDED);
    assert.ok(Date.now() - begin > 400, 'the deadline came too early');
  },
  async cancel_after_begin() {
    await fails(new Promise((resolve, reject) => {
      stub.StreamingInputCall(new grpc.Metadata(), deadline(), (err) => (err ? reject(err) : resolve())).cancel();
    }), grpc.status.CANCELLED);
  },
  async cancel_after_first_response() {
    const call = stub.FullDuplexCall(deadline());
    call.write(output(31415, 27182));
    const [first] = await once(call, 'data');
    assert.equal(first.payload.body.length, 31415);
    call.cancel();
    const [err] = await once(call, 'error');
    assert.equal(err.code, grpc.status.CANCELLED);
  },
  async status_code_and_message() {
    const response_status = {code: 2, message: 'test status message'};
    await fails(unary('UnaryCall', {response_status}), 2, response_status.message);
    const call = stub.FullDuplexCall(deadline());
    call.write({response_status});
    call.end();
    await fails(sizes(call), 2, response_status.message);
  },
  special_status_message: () => fails(unary('UnaryCall', {response_status: {code: 2, message: SPECIAL}}), 2, SPECIAL),
  async custom_metadata() {
    for (const binary of [Buffer.from('ababab', 'hex'), Buffer.from([...Array(256).keys()])]) {
      const metadata = new grpc.Metadata();
      metadata.set(INITIAL, 'test_initial_metadata_value');
      metadata.set(TRAILING, binary);
      const echoed = (initial, trailing) => {
        assert.deepEqual(initial.get(INITIAL), ['test_initial_metadata_value']);
        assert.deepEqual(trailing.get(TRAILING), [binary]);
      };
      const got = await unary('UnaryCall', simple(), {metadata});
      echoed(got.initial, got.trailing);
      const call = stub.FullDuplexCall(metadata, deadline());
      const initial = once(call, 'metadata');
      const status = once(call, 'status');
      call.write(output(RESPONSE_SIZE, REQUEST_SIZE));
      call.end();
      assert.deepEqual(await sizes(call), [RESPONSE_SIZE]);
      echoed((await initial)[0], (await status)[0].metadata);
    }
  },
  unimplemented_method: () => fails(unary('UnimplementedCall', {}), grpc.status.UNIMPLEMENTED),
  async unimplemented_service() {
    const client = new testing.UnimplementedService(`${args.server_host}:${args.server_port}`, grpc.credentials.createInsecure());
    await fails(unary('UnimplementedCall', {}, {client}), grpc.status.UNIMPLEMENTED);
    client.close();
  },
  async client_compressed_unary_noprobe() {
    const client = dial({'grpc.default_compression_algorithm': 2});
    await large(simple(REQUEST_SIZE, RESPONSE_SIZE, {expect_compressed: {value: true}}), client);
    client.close();
    await large(simple(REQUEST_SIZE, RESPONSE_SIZE, {expect_compressed: {value: false}}));
  },
  async server_compressed_unary() {
    for (const value of [true, false]) await large(simple(REQUEST_SIZE, RESPONSE_SIZE, {response_compressed: {value}}));
  },
  async server_compressed_streaming() {
    const want = [31415, 92653];
    assert.deepEqual(await sizes(stub.StreamingOutputCall(output(want, 0, {compressed: {value: true}}), deadline())), want);
  },
  async rpc_soak() {
    for (let i = 0; i < args.soak_iterations; i++) await large(simple(args.soak_request_size, args.soak_response_size));
  },
  async channel_soak() {
    for (let i = 0; i < args.soak_iterations; i++) {
      const client = dial();
      await large(simple(args.soak_request_size, args.soak_response_size), client);
      client.close();
    }
  },
};

cases[args.test_case]().then(() => stub.close(), (err) => {
  console.error(err);
  process.exitCode = 1;
  stub.close();
});
