# Evenkeel's few commands; `make` explains them.
GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS  = -s -w -X evenkeel.dev/cmd/internal/run.Version=$(VERSION)

.DEFAULT_GOAL := help
.PHONY: help build generate fmt lint test test-quick fuzz bench demo e2e e2e-long cluster cluster-down images

help: ## show this help
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build the CLI and the daemons into bin/
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/evenkeel ./cmd/sidecar ./cmd/xds ./cmd/injector ./cmd/redirect

generate: ## regenerate the eBPF objects and the protobuf code (needs clang 14 and protoc)
	$(GO) generate ./redirect/... ./xds/...

fmt: ## format the Go code
	@.ci/step lint fmt

lint: ## check the house rules (import table, forbidden calls, formatting, generated code)
	@.ci/step lint

test: ## everything: lint, unit, race, kernel, interop and cluster tests (as root; under 45 min on 2 cores)
	@.ci/step all

test-quick: ## unit and kernel tests only
	@.ci/step unit

fuzz: ## each fuzz target for 30 s
	@.ci/step fuzz

bench: ## CPU time per RPC against nghttpx, HAProxy and nginx; writes e2e/bench/results.json
	@.ci/step bench

demo: build ## eight clients pinned to two of six servers, without and with Evenkeel (as root)
	bin/evenkeel demo

e2e: ## the tests on a real two-node Kubernetes
	@.ci/step e2e

e2e-long: ## the rollouts of e2e, 20 times in a row each (about 40 min)
	@.ci/step e2e-long

cluster: ## start a real two-node Kubernetes on this machine
	@$(GO) run ./e2e/cluster/cmd/cluster up

cluster-down: ## end it; leaves nothing behind
	@$(GO) run ./e2e/cluster/cmd/cluster down

images: ## write the OCI archives of the daemons into bin/images
	@.ci/step images
