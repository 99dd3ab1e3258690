// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package xdscmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"time"
)

// viewTimeout bounds the wait for an answer to /debug/rollout.
const viewTimeout = 5 * time.Second

// A namespace is a DNS label; a workload is named by its sidecars, usually as kind/name.
var (
	namespacePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	workloadPattern  = regexp.MustCompile(`^[A-Za-z0-9][-A-Za-z0-9_./]{0,316}$`)
)

// rolloutQuery is what is asked of /debug/rollout.
type rolloutQuery struct{ namespace, workload string }

func parseRolloutQuery(raw string) (rolloutQuery, error) {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return rolloutQuery{}, fmt.Errorf("malformed query: %w", err)
	}
	var q rolloutQuery
	for name, v := range values {
		if len(v) != 1 {
			return rolloutQuery{}, fmt.Errorf("%d values of %.40q; want one", len(v), name)
		}
		switch name {
		case "namespace":
			q.namespace = v[0]
		case "workload":
			q.workload = v[0]
		case "timeout": // a Kubernetes client's own, which the API server's proxy passes on
		default:
			return rolloutQuery{}, fmt.Errorf("unknown parameter %.40q; want ?namespace=NAMESPACE[&workload=KIND/NAME]", name)
		}
	}
	switch {
	case q.namespace == "":
		return rolloutQuery{}, errors.New("no namespace; want ?namespace=NAMESPACE[&workload=KIND/NAME]")
	case !namespacePattern.MatchString(q.namespace):
		return rolloutQuery{}, fmt.Errorf("namespace %.80q is not a namespace's name", q.namespace)
	case values.Has("workload") && !workloadPattern.MatchString(q.workload):
		return rolloutQuery{}, fmt.Errorf("workload %.80q: want KIND/NAME, such as deployment/pricing", q.workload)
	}
	return q, nil
}

// rollout answers who has answered for the pods of a namespace or a workload.
func (p *parts) rollout(w http.ResponseWriter, r *http.Request) {
	q, err := parseRolloutQuery(r.URL.RawQuery)
	if err != nil {
		answer(w, http.StatusBadRequest, err.Error())
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), viewTimeout)
	defer cancel()
	v, err := p.tracker.View(ctx, q.namespace, q.workload)
	if err != nil {
		answer(w, http.StatusServiceUnavailable, fmt.Sprintf("no answer: %s", err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the peer may be gone
}
