// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package toolcache

import "os/exec"

// Versions of @grpc/grpc-js and @grpc/proto-loader: the newest that the registry
// serves.
const (
	GRPCNode    = "1.14.7"
	ProtoLoader = "0.8.1"
)

// NodePackages installs them with npm and returns the folder that has node_modules.
func NodePackages() (string, error) {
	return Install("grpc-node-"+GRPCNode, func(dir string) error {
		if err := Require(Need{Command: "npm", Package: "npm"}); err != nil {
			return err
		}
		cmd := exec.Command("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "@grpc/grpc-js@"+GRPCNode, "@grpc/proto-loader@"+ProtoLoader)
		cmd.Dir = dir
		return Run(cmd)
	})
}
