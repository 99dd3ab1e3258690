// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel
'use strict';

// The @grpc/grpc-js server of the end-to-end tests. It speaks the service of e2e/testapp/internal/echo and answers /ready, /stats
// and /hook as the Go server does. SIGTERM ends it at once: the kernel does not deliver a signal without a handler to PID 1, so the
// handler does nothing but exit.

const http = require('node:http');
const os = require('node:os');
const timers = require('node:timers/promises');
const grpc = require('@grpc/grpc-js');

const flags = {name: os.hostname(), listen: ':50051', http: ':8080', report: ''};
for (const arg of process.argv.slice(2)) {
  if (arg === 'server') continue;
  const [, name, value] = /^--([a-z]+)=(.*)$/s.exec(arg) ?? [];
  if (!(name in flags)) throw new Error(`unknown argument ${arg}`);
  flags[name] = value;
}

process.on('SIGTERM', () => process.exit(0));

const counts = {name: flags.name, started: 0, ended: 0};

async function answer(call, message, received) {
  const request = JSON.parse(message);
  if (request.delay_ms) await timers.setTimeout(request.delay_ms);
  if (request.status) throw Object.assign(new Error('as asked'), {code: request.status, details: `as asked, by ${flags.name}`});
  return Buffer.from(JSON.stringify({
    server: flags.name, peer: call.getPeer(), authority: call.getHost(), received, payload: 'x'.repeat(request.reply_bytes ?? 0),
  }));
}

// one makes a method with one answer, many one with a stream of them.
const one = (f) => (call, callback) => {
  counts.started++;
  f(call).then((reply) => callback(null, reply), (err) => callback(err)).finally(() => { counts.ended++; });
};
const many = (f) => (call) => {
  counts.started++;
  // A cancelled call ends its requests by an error: there is nobody to answer any more.
  call.on('error', () => {});
  f(call).then(() => call.end(), (err) => { if (!call.cancelled) call.emit('error', err); }).finally(() => { counts.ended++; });
};

const implementation = {
  Unary: one((call) => answer(call, call.request, 1)),
  ServerStream: many(async (call) => {
    const {messages = 0} = JSON.parse(call.request);
    for (let i = 0; i < Math.max(1, messages) && !call.cancelled; i++) call.write(await answer(call, call.request, 1));
  }),
  ClientStream: one(async (call) => {
    let n = 0;
    let last = '{}';
    for await (const message of call) { n++; last = message; }
    return answer(call, last, n);
  }),
  Bidi: many(async (call) => {
    let n = 0;
    // Reading to the end must not destroy the stream: the answer's end is still to be written.
    for await (const message of call.iterator({destroyOnReturn: false})) call.write(await answer(call, message, ++n));
  }),
};

const same = (b) => b;
const definition = {};
for (const name of Object.keys(implementation)) {
  definition[name] = {
    path: `/evenkeel.e2e.Echo/${name}`,
    requestStream: name === 'ClientStream' || name === 'Bidi', responseStream: name === 'ServerStream' || name === 'Bidi',
    requestSerialize: same, requestDeserialize: same, responseSerialize: same, responseDeserialize: same,
  };
}

const server = new grpc.Server();
server.addService(definition, implementation);
server.bindAsync(`0.0.0.0${flags.listen}`, grpc.ServerCredentials.createInsecure(), (err) => {
  if (err) throw err;
  http.createServer((req, res) => {
    if (req.url === '/ready') {
      res.end();
    } else if (req.url === '/stats') {
      res.end(JSON.stringify(counts));
    } else if (req.url === '/hook') {
      http.get(`${flags.report}?what=hook&pod=${flags.name}`, (r) => { r.resume(); res.end(); })
        .on('error', (e) => { res.statusCode = 502; res.end(e.message); });
    } else {
      res.statusCode = 404;
      res.end();
    }
  }).listen(Number(flags.http.slice(1)), () => console.log(`serving name=${flags.name}`));
});
