// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel
'use strict';

const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');
const path = require('node:path');

const definition = loader.loadSync(path.join(__dirname, '..', 'proto', 'interop.proto'), {
  keepCase: true, defaults: true,
});

module.exports = {
  grpc,
  testing: grpc.loadPackageDefinition(definition).grpc.testing,
  INITIAL: 'x-grpc-test-echo-initial',
  TRAILING: 'x-grpc-test-echo-trailing-bin',
  // flags parses --name=value.
  flags(defaults) {
    const all = {...defaults};
    for (const arg of process.argv.slice(2)) {
      const [, name, value] = /^--?([a-z_]+)=(.*)$/s.exec(arg) ?? [];
      if (!(name in all)) throw new Error(`unknown flag ${arg}`);
      all[name] = typeof all[name] === 'number' ? Number(value) : value;
    }
    return all;
  },
};
