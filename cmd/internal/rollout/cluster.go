// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"evenkeel.dev/xds"
	xdsrollout "evenkeel.dev/xds/rollout"
)

// controlPlane selects the pods of the chart's control plane.
const controlPlane = "app.kubernetes.io/name=evenkeel,app.kubernetes.io/component=xds"

// askTimeout bounds one question to the API server or, through it, to a replica.
const askTimeout = 5 * time.Second

// ErrNoCluster is wrapped by the errors of Connect.
var ErrNoCluster = errors.New("no cluster")

// Config says which cluster is meant.
type Config struct {
	// Kubeconfig and Context as for kubectl. Zero: $KUBECONFIG, ~/.kube/config, or the pod's own; the current context.
	Kubeconfig, Context string
	// Namespace of the workload. Zero: the context's.
	Namespace string
	// SystemNamespace is where Evenkeel is installed. Zero: evenkeel-system.
	SystemNamespace string
}

// Cluster asks a cluster's API server.
type Cluster struct {
	client            kubernetes.Interface
	namespace, system string
}

// Connect reads the configuration; nothing is dialled yet.
func Connect(cfg Config) (*Cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = cfg.Kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: cfg.Context})
	rest, err := loader.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, fmt.Errorf("%w: give --kubeconfig=FILE or set KUBECONFIG", ErrNoCluster)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoCluster, err)
	}
	rest.Timeout = askTimeout
	// A burst for every replica at once; the default's 5 a second would be seen.
	rest.QPS, rest.Burst = 50, 100
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoCluster, err)
	}
	c := &Cluster{client: client, namespace: cfg.Namespace, system: cfg.SystemNamespace}
	if c.namespace == "" {
		if c.namespace, _, err = loader.Namespace(); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNoCluster, err)
		}
	}
	if c.system == "" {
		c.system = "evenkeel-system"
	}
	return c, nil
}

// Status asks everybody once.
func (c *Cluster) Status(ctx context.Context, w Workload) (*Status, error) {
	o, selector, err := c.object(ctx, w)
	if err != nil {
		return nil, err
	}
	members, err := c.members(ctx, selector)
	if err != nil {
		return nil, err
	}
	answers, err := c.ask(ctx, w)
	if err != nil {
		return nil, err
	}
	return merge(c.namespace, w, o, members, answers), nil
}

// object reads the workload, and which pods are its own.
func (c *Cluster) object(ctx context.Context, w Workload) (object, *metav1.LabelSelector, error) {
	apps := c.client.AppsV1()
	var o object
	var selector *metav1.LabelSelector
	var err error
	switch w.Kind {
	case Deployment:
		d, e := apps.Deployments(c.namespace).Get(ctx, w.Name, metav1.GetOptions{})
		if err = e; err == nil {
			o = object{replicas(d.Spec.Replicas), int(d.Status.UpdatedReplicas), int(d.Status.ReadyReplicas), int(d.Status.Replicas), d.Status.ObservedGeneration >= d.Generation}
			selector = d.Spec.Selector
		}
	case StatefulSet:
		s, e := apps.StatefulSets(c.namespace).Get(ctx, w.Name, metav1.GetOptions{})
		if err = e; err == nil {
			o = object{replicas(s.Spec.Replicas), int(s.Status.UpdatedReplicas), int(s.Status.ReadyReplicas), int(s.Status.Replicas), s.Status.ObservedGeneration >= s.Generation}
			if s.Status.UpdateRevision == s.Status.CurrentRevision {
				o.updated = int(s.Status.Replicas) // it counts nothing as updated between two updates
			}
			selector = s.Spec.Selector
		}
	case DaemonSet:
		d, e := apps.DaemonSets(c.namespace).Get(ctx, w.Name, metav1.GetOptions{})
		if err = e; err == nil {
			o = object{int(d.Status.DesiredNumberScheduled), int(d.Status.UpdatedNumberScheduled), int(d.Status.NumberReady), int(d.Status.CurrentNumberScheduled), d.Status.ObservedGeneration >= d.Generation}
			selector = d.Spec.Selector
		}
	}
	if err != nil {
		return object{}, nil, fmt.Errorf("%s in namespace %s: %w", w, c.namespace, err)
	}
	return o, selector, nil
}

func replicas(n *int32) int {
	if n == nil {
		return 1 // the API's default
	}
	return int(*n)
}

func (c *Cluster) members(ctx context.Context, selector *metav1.LabelSelector) ([]member, error) {
	list, err := c.client.CoreV1().Pods(c.namespace).List(ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(selector)})
	if err != nil {
		return nil, fmt.Errorf("pods in namespace %s: %w", c.namespace, err)
	}
	members := make([]member, 0, len(list.Items))
	for i := range list.Items {
		p := &list.Items[i]
		members = append(members, member{
			name: p.Name, uid: string(p.UID), node: p.Spec.NodeName, created: p.CreationTimestamp.Time,
			ready: slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			}),
			deleted: p.DeletionTimestamp != nil,
			done:    p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed,
			sidecar: slices.ContainsFunc(p.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == xds.SidecarContainer }),
		})
	}
	return members, nil
}

// ask puts the question to every replica of the control plane, through the API server.
func (c *Cluster) ask(ctx context.Context, w Workload) ([]answer, error) {
	pods := c.client.CoreV1().Pods(c.system)
	list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: controlPlane})
	if err != nil {
		return nil, fmt.Errorf("control plane in namespace %s: %w", c.system, err)
	}
	if len(list.Items) == 0 {
		return nil, fmt.Errorf("no pod of Evenkeel's control plane in namespace %s: is it installed elsewhere? (--system-namespace)", c.system)
	}
	answers := make([]answer, len(list.Items))
	var asked sync.WaitGroup
	for i := range list.Items {
		asked.Go(func() {
			name := list.Items[i].Name
			v, err := c.askReplica(ctx, name, w)
			answers[i] = answer{replica: name, view: v, err: err}
		})
	}
	asked.Wait()
	var errs []error
	for _, a := range answers {
		if a.err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", a.replica, a.err))
		}
	}
	if len(errs) == len(answers) {
		return nil, fmt.Errorf("no replica of the control plane answers: %w", errors.Join(errs...))
	}
	return answers, nil
}

// withBody adds what the replica said: client-go keeps the body of an answer that
// is none of the API's beside its own words for the status.
func withBody(err error) error {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) && status.Status().Details != nil {
		for _, cause := range status.Status().Details.Causes {
			if text := strings.TrimSpace(cause.Message); text != "" && text != "unknown" {
				return fmt.Errorf("%w: %.200s", err, text)
			}
		}
	}
	return err
}

func (c *Cluster) askReplica(ctx context.Context, pod string, w Workload) (*xdsrollout.View, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	raw, err := c.client.CoreV1().Pods(c.system).
		ProxyGet("http", pod, strconv.Itoa(xds.PortXDSAdmin), "debug/rollout", map[string]string{"namespace": c.namespace, "workload": w.String()}).
		DoRaw(ctx)
	if apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("you need the permission to get pods/proxy in namespace %s: %w", c.system, err)
	}
	if err != nil {
		return nil, withBody(err)
	}
	var v xdsrollout.View
	if err := json.Unmarshal(raw, &v); err != nil {
		return nil, fmt.Errorf("answered %.100q: %w", raw, err)
	}
	return &v, nil
}
