// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package cluster

import (
	"context"
	"fmt"
)

// Event is a Kubernetes Event.
type Event struct {
	// Type is Normal or Warning.
	Type, Reason, Message string
	// Kind and Name are those of the object that it is about.
	Kind, Name string
	// Count is how often it was recorded; at least 1.
	Count int
}

// Events lists those of a namespace.
func (c *Cluster) Events(ctx context.Context, namespace string) ([]Event, error) {
	var list struct {
		Items []struct {
			Type, Reason, Message string
			InvolvedObject        struct{ Kind, Name string }
			Count                 int
		}
	}
	if err := c.api.get(ctx, "/api/v1/namespaces/"+namespace+"/events", &list); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	events := make([]Event, 0, len(list.Items))
	for _, i := range list.Items {
		events = append(events, Event{
			Type: i.Type, Reason: i.Reason, Message: i.Message, Kind: i.InvolvedObject.Kind, Name: i.InvolvedObject.Name,
			Count: max(1, i.Count), // those of the newer API carry it in a series
		})
	}
	return events, nil
}
