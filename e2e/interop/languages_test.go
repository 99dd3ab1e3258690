// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package interop

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"evenkeel.dev/e2e/internal/toolcache"
)

// The newest releases that the registries serve; those for Node are in package toolcache.
const (
	grpcJava   = "1.79.0"
	grpcPython = "1.85.3"
	grpcTools  = "1.85.1"
)

// A language is an implementation of gRPC: its interop client and server.
type language struct {
	name string
	// client is the command line for a case against host:50051; server that for a server at a port of loopback.
	client func(c testCase, host string) []string
	server func(port int) []string
	// soakLimits: the client has flags for the bounds of the soak cases, whose defaults suit an idle machine.
	soakLimits bool
}

// installLanguages brings what the languages other than Go need.
func installLanguages() (map[string]language, error) {
	here, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	all := map[string]language{"go": goLanguage()}
	for _, install := range []func(here string) (language, error){javaLanguage, pythonLanguage, nodeLanguage} {
		l, err := install(here)
		if err != nil {
			return nil, err
		}
		all[l.name] = l
	}
	return all, nil
}

// flags are those that all clients have, the gRPC project's and those here.
func flags(c testCase, host string) []string {
	return append([]string{"--test_case=" + c.name, "--server_host=" + host, "--server_port=50051"}, c.args...)
}

func goLanguage() language {
	return language{
		name:       "go",
		client:     func(c testCase, host string) []string { return goClient().command(c, host) },
		server:     goServer,
		soakLimits: true,
	}
}

//go:embed java/pom.xml
var pom string

// javaLanguage: io.grpc:grpc-interop-testing has the gRPC project's own programs. They use netty, whose sockets are IPv6 ones with
// IPv4-mapped addresses.
func javaLanguage(string) (language, error) {
	if err := toolcache.Require(toolcache.Need{Command: "java", Package: "default-jre-headless"}); err != nil {
		return language{}, err
	}
	dir, err := toolcache.Install("grpc-java-"+grpcJava, func(dir string) error {
		if err := toolcache.Require(toolcache.Need{Command: "mvn", Package: "maven"}); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "pom.xml"), []byte(strings.ReplaceAll(pom, "VERSION", grpcJava)), 0o644); err != nil {
			return err
		}
		cmd := exec.Command("mvn", "--batch-mode", "--quiet", "dependency:copy-dependencies", "-DoutputDirectory="+filepath.Join(dir, "lib"))
		cmd.Dir = dir
		return toolcache.Run(cmd)
	})
	// The programs are short-lived: little is gained by compiling well.
	java := []string{
		"java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m", "-cp", filepath.Join(dir, "lib", "*"),
	}
	const classes = "io.grpc.testing.integration.TestService"
	return language{
		name: "java",
		client: func(c testCase, host string) []string {
			return append(append(slices.Clip(java), classes+"Client", "--use_tls=false"), flags(c, host)...)
		},
		server: func(port int) []string {
			return append(slices.Clip(java), classes+"Server", "--use_tls=false", "--port="+strconv.Itoa(port))
		},
		soakLimits: true,
	}, err
}

// pythonLanguage: grpcio's own programs are not published; python/ has ours.
func pythonLanguage(here string) (language, error) {
	err := toolcache.Require(toolcache.Need{Command: "python3", Package: "python3"}, toolcache.Need{Command: "pip3", Package: "python3-pip"})
	if err != nil {
		return language{}, err
	}
	// grpcio has native code for one version of Python.
	tag, err := exec.Command("python3", "-c", `import sys; print("cp%d%d" % sys.version_info[:2])`).Output()
	if err != nil {
		return language{}, err
	}
	dir, err := toolcache.Install("grpc-python-"+grpcPython+"-"+strings.TrimSpace(string(tag)), func(dir string) error {
		return toolcache.Run(exec.Command("python3", "-m", "pip", "install", "--quiet", "--target="+dir,
			"grpcio=="+grpcPython, "grpcio-tools=="+grpcTools))
	})
	python := func(program string, args ...string) []string {
		return append([]string{
			"env", "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH=" + dir + ":" + filepath.Join(here, "proto"),
			"python3", filepath.Join(here, "python", program),
		}, args...)
	}
	return language{
		name:   "python",
		client: func(c testCase, host string) []string { return python("client.py", flags(c, host)...) },
		server: func(port int) []string { return python("server.py", "--port="+strconv.Itoa(port)) },
	}, err
}

// nodeLanguage: @grpc/grpc-js' own programs are not published; node/ has ours.
func nodeLanguage(here string) (language, error) {
	if err := toolcache.Require(toolcache.Need{Command: "node", Package: "nodejs"}); err != nil {
		return language{}, err
	}
	dir, err := toolcache.NodePackages()
	node := func(program string, args ...string) []string {
		return append([]string{"env", "NODE_PATH=" + filepath.Join(dir, "node_modules"), "node", filepath.Join(here, "node", program)}, args...)
	}
	return language{
		name:   "node",
		client: func(c testCase, host string) []string { return node("client.js", flags(c, host)...) },
		server: func(port int) []string { return node("server.js", "--port="+strconv.Itoa(port)) },
	}, err
}
