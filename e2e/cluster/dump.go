// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Dump writes into dir what explains a failed test: objects, events, the logs of
// all containers and daemons, and the API server's audit log. It takes what it
// gets: its error joins what could not be read.
func (c *Cluster) Dump(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("cluster: dump: %w", err)
	}
	var errs []error
	save := func(file, text string, err error) {
		errs = append(errs, err)
		if text != "" {
			errs = append(errs, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
		}
	}
	for file, args := range map[string]string{
		"pods.txt":       "get pods -A -o wide",
		"pods.yaml":      "get pods -A -o yaml",
		"describe.txt":   "describe pods -A",
		"events.txt":     "get events -A --sort-by=.metadata.creationTimestamp",
		"workloads.yaml": "get deployments,replicasets,statefulsets,daemonsets -A -o yaml",
		"services.yaml":  "get services,endpointslices -A -o yaml",
		"nodes.yaml":     "get nodes -o yaml",
		"webhooks.yaml":  "get mutatingwebhookconfigurations -o yaml",
	} {
		out, err := c.Kubectl(ctx, strings.Fields(args)...)
		save(file, out, err)
	}
	errs = append(errs, c.dumpLogs(ctx, filepath.Join(dir, "pods")))
	for _, name := range append(c.Nodes(), switchName) {
		if b, err := os.ReadFile(c.logOf(name)); err == nil {
			save(name+".log", string(b), nil)
		}
		from := filepath.Join(c.NodeDir(name), "log")
		if _, err := os.Stat(from); err == nil {
			to := filepath.Join(dir, name)
			errs = append(errs, os.RemoveAll(to), os.CopyFS(to, os.DirFS(from)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("cluster: dump into %s: %w", dir, err)
	}
	return nil
}

// dumpLogs copies the containers' logs, of earlier runs too, as the nodes keep
// them: so those of a node that is off and of a dead API server can be read.
func (c *Cluster) dumpLogs(ctx context.Context, dir string) error {
	var errs []error
	for _, name := range c.Nodes() {
		if err := ctx.Err(); err != nil {
			return err
		}
		// NAMESPACE_POD_UID/CONTAINER/RESTARTS.log
		from := filepath.Join(c.NodeDir(name), "varlog", "pods")
		if _, err := os.Stat(from); err != nil {
			continue // no pod has run here
		}
		to := filepath.Join(dir, name)
		errs = append(errs, os.RemoveAll(to), os.CopyFS(to, os.DirFS(from)))
	}
	return errors.Join(errs...)
}
