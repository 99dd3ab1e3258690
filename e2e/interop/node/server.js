// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel
'use strict';

// The gRPC interop server for @grpc/grpc-js; see client.js.

const timers = require('node:timers/promises');
const {grpc, testing, INITIAL, TRAILING, flags} = require('./messages.js');

const args = flags({port: 0});

// echo answers with the metadata that the interop tests want back: the initial at once, the trailing is returned.
function echo(call) {
  const initial = new grpc.Metadata();
  const trailing = new grpc.Metadata();
  for (const value of call.metadata.get(INITIAL)) initial.add(INITIAL, value);
  for (const value of call.metadata.get(TRAILING)) trailing.add(TRAILING, value);
  call.sendMetadata(initial);
  return trailing;
}

function status(request, metadata) {
  const want = request.response_status;
  return want && want.code !== 0 ? {code: want.code, details: want.message, metadata} : null;
}

async function respond(call, request) {
  for (const {size, interval_us} of request.response_parameters) {
    if (interval_us > 0) await timers.setTimeout(interval_us / 1000);
    if (call.cancelled) return;
    call.write({payload: {body: Buffer.alloc(size)}});
  }
}

const server = new grpc.Server({'grpc.max_receive_message_length': -1});
server.addService(testing.TestService.service, {
  EmptyCall(call, callback) {
    callback(null, {});
  },
  UnaryCall(call, callback) {
    const trailing = echo(call);
    const err = status(call.request, trailing);
    if (err) return callback(err);
    callback(null, {payload: {body: Buffer.alloc(call.request.response_size)}}, trailing);
  },
  async StreamingOutputCall(call) {
    await respond(call, call.request);
    call.end();
  },
  StreamingInputCall(call, callback) {
    let sum = 0;
    call.on('data', (request) => { sum += request.payload.body.length; });
    call.on('end', () => callback(null, {aggregated_payload_size: sum}));
  },
  async FullDuplexCall(call) {
    const trailing = echo(call);
    // A cancelled call ends its requests by an error: there is nobody to answer any more.
    call.on('error', () => {});
    try {
      // Reading to the end must not destroy the stream: the answer's end is still to be written.
      for await (const request of call.iterator({destroyOnReturn: false})) {
        const err = status(request, trailing);
        if (err) return call.emit('error', err);
        await respond(call, request);
      }
    } catch {
      return;
    }
    call.end(trailing);
  },
});
server.bindAsync(`127.0.0.1:${args.port}`, grpc.ServerCredentials.createInsecure(), (err) => {
  if (err) throw err;
});
