// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package cluster

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// Phases are the moments of one pod's life. What a pod's status says about times
// counts whole seconds; these are to the millisecond: of the API's changes, when
// this process saw them; of containers' starts and exits, when containerd did.
// A zero time has not come yet, or had come before Watch was called.
type Phases struct {
	Name, UID, Node string
	Created         time.Time
	// Ready is when the pod's condition became true first.
	Ready time.Time
	// Deleting is when a deletion was asked for, Gone when the object went.
	Deleting, Gone time.Time
	Containers     map[string]ContainerPhases
}

// ContainerPhases are the moments of a container's last run.
type ContainerPhases struct {
	Started time.Time
	// Ready is when its status said so first.
	Ready    time.Time
	Exited   time.Time
	ExitCode int
}

// Watch follows the pods of one namespace until its context ends.
type Watch struct {
	c         *Cluster
	namespace string

	// mu guards what follows.
	mu    sync.Mutex
	pods  map[string]*watched // by UID
	tasks map[string]ContainerPhases
	errs  []error
	ended sync.WaitGroup
}

type watched struct {
	Phases
	// ids are the containers' in containerd.
	ids   map[string]string
	ready map[string]time.Time
	// happened are the moments that have come, also those without a time.
	happened map[string]bool
}

// Watch begins to follow. The caller ends ctx and then calls Wait.
func (c *Cluster) Watch(ctx context.Context, namespace string) (*Watch, error) {
	w := &Watch{c: c, namespace: namespace, pods: map[string]*watched{}, tasks: map[string]ContainerPhases{}}
	for _, name := range c.Nodes() {
		p, err := c.nodeProcess(name)
		if err != nil {
			continue // is off
		}
		cmd := exec.CommandContext(ctx, c.programs["ctr"], "-a", p.root()+"/run/containerd/containerd.sock", "-n", "k8s.io", "events")
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			return nil, fmt.Errorf("cluster: watch containers of %s: %w", name, err)
		}
		w.ended.Go(func() {
			for sc := bufio.NewScanner(out); sc.Scan(); {
				w.task(sc.Text())
			}
			_ = cmd.Wait() // it ends with ctx, or with its node
		})
	}
	version, err := w.list(ctx)
	if err != nil {
		return nil, err
	}
	w.ended.Go(func() {
		for ctx.Err() == nil {
			err := w.follow(ctx, version)
			if ctx.Err() != nil {
				return
			}
			// A change between the two is missed: its time would be a lie.
			w.mu.Lock()
			w.errs = append(w.errs, fmt.Errorf("the watch was interrupted: %w", err))
			w.mu.Unlock()
			if version, err = w.list(ctx); err != nil {
				pause(ctx, time.Second)
			}
		}
	})
	return w, nil
}

// Wait returns when all has ended after ctx has; its error says what was missed.
func (w *Watch) Wait() error {
	w.ended.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(w.errs...)
}

// Pods returns what is known, ordered by creation and name.
func (w *Watch) Pods() []Phases {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []Phases
	for _, p := range w.pods {
		one := p.Phases
		one.Containers = map[string]ContainerPhases{}
		for name, id := range p.ids {
			ct := w.tasks[id]
			ct.Ready = p.ready[name]
			one.Containers[name] = ct
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b Phases) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name)) })
	return all
}

// task reads a line of `ctr events`: "DATE TIME +0000 UTC NAMESPACE TOPIC JSON".
func (w *Watch) task(line string) {
	f := strings.SplitN(line, " ", 7)
	if len(f) < 7 || f[5] != "/tasks/start" && f[5] != "/tasks/exit" {
		return
	}
	at, err := time.Parse("2006-01-02 15:04:05.999999999 -0700 MST", strings.Join(f[:4], " "))
	if err != nil {
		return
	}
	var e struct {
		Container string `json:"container_id"`
		ID        string `json:"id"`
		Status    int    `json:"exit_status"`
	}
	if err := json.Unmarshal([]byte(f[6]), &e); err != nil || e.ID != "" && e.ID != e.Container {
		return // an exec's
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.tasks[e.Container]
	if f[5] == "/tasks/start" {
		t.Started = at
	} else {
		t.Exited, t.ExitCode = at, e.Status
	}
	w.tasks[e.Container] = t
}

// list takes the pods that are there: what has happened to them has no time.
func (w *Watch) list(ctx context.Context) (version string, err error) {
	var list struct {
		Metadata struct{ ResourceVersion string }
		Items    []apiPod
	}
	if err := w.c.api.get(ctx, "/api/v1/namespaces/"+w.namespace+"/pods", &list); err != nil {
		return "", fmt.Errorf("cluster: watch: %w", err)
	}
	for i := range list.Items {
		w.saw("", &list.Items[i], time.Time{})
	}
	return list.Metadata.ResourceVersion, nil
}

func (w *Watch) follow(ctx context.Context, version string) error {
	path := "/api/v1/namespaces/" + w.namespace + "/pods?watch=1&resourceVersion=" + version
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.c.api.base+path, nil)
	if err != nil {
		return err
	}
	res, err := (&http.Client{Transport: w.c.api.http.Transport}).Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", path, res.Status)
	}
	for d := json.NewDecoder(res.Body); ; {
		var e struct {
			Type   string
			Object apiPod
		}
		if err := d.Decode(&e); err != nil {
			return err
		}
		if e.Type == "ERROR" {
			return errors.New("the API server ended it")
		}
		w.saw(e.Type, &e.Object, time.Now())
	}
}

// saw takes a pod as it is now.
func (w *Watch) saw(what string, a *apiPod, now time.Time) {
	p := a.pod()
	w.mu.Lock()
	defer w.mu.Unlock()
	k := w.pods[p.UID]
	if k == nil {
		k = &watched{ids: map[string]string{}, ready: map[string]time.Time{}, happened: map[string]bool{}}
		k.Name, k.UID = p.Name, p.UID
		w.pods[p.UID] = k
	}
	// first takes the time at which something came true; none for what list found.
	first := func(t *time.Time, moment string, is bool) {
		if is && !k.happened[moment] {
			k.happened[moment] = true
			*t = now
		}
	}
	k.Node = p.Node
	first(&k.Created, "created", true)
	first(&k.Ready, "ready", p.Ready)
	first(&k.Deleting, "deleting", p.Deleting)
	first(&k.Gone, "gone", what == "DELETED")
	for _, ct := range p.Containers {
		if ct.ID != "" {
			k.ids[ct.Name] = ct.ID
		}
		at := k.ready[ct.Name]
		first(&at, ct.Name+" ready", ct.Ready)
		k.ready[ct.Name] = at
	}
}
