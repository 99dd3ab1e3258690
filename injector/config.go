// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package injector

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"evenkeel.dev/xds"
)

// Config is what injected pods get. It is the injector's configuration file, in
// YAML; annotations of a namespace or a pod override single values.
type Config struct {
	// SidecarImage is the image of evenkeel-sidecar. It must be set.
	SidecarImage string `json:"sidecarImage"`
	// InitImage is the image of evenkeel-init. It must be set.
	InitImage string `json:"initImage"`
	// ImagePullPolicy of both. Empty: IfNotPresent.
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// ImagePullSecrets are added to the pod's own; they must exist in its
	// namespace. Empty: none.
	ImagePullSecrets []string `json:"imagePullSecrets,omitempty"`
	// XDSAddress is the control plane's host:port. It must be set.
	XDSAddress string `json:"xdsAddress"`
	// OutboundPorts are the destination ports that are redirected to the sidecar.
	// Empty: 50051. Annotation: outbound-ports.
	OutboundPorts []uint16 `json:"outboundPorts,omitempty"`
	// StartTimeout is how long the app's start waits for its sidecar. Zero: 10s.
	// Annotation: start-timeout.
	StartTimeout metav1.Duration `json:"startTimeout,omitzero"`
	// ReadyTimeout is how long the pod's readiness waits for its clients once the
	// app is ready. Zero: 15s. Annotation: ready-timeout.
	ReadyTimeout metav1.Duration `json:"readyTimeout,omitzero"`
	// DrainTimeout is how long SIGTERM is held back at most. Empty: 30s; "0s":
	// nothing is held back, and preStop hooks stay as they are. It is added to the
	// grace period. Annotation: drain-timeout.
	DrainTimeout *metav1.Duration `json:"drainTimeout,omitempty"`
	// DrainMin is how long SIGTERM is held back at least, for clients that have no
	// sidecar: a duration, or auto (10s where the pod is reached from outside of the
	// cluster, 3s where a Service selects it, else 0). Empty: auto. Annotation:
	// drain-min.
	DrainMin string `json:"drainMin,omitempty"`
	// DrainStreams: RPCs that are older than this when the drain begins are not
	// waited for. Zero: 30s. Annotation: drain-streams.
	DrainStreams metav1.Duration `json:"drainStreams,omitzero"`
	// LogLevel of sidecar and init step. Empty: info. Annotation: log-level.
	LogLevel string `json:"logLevel,omitempty"`
	// LogFormat of sidecar and init step: json or text. Empty: json.
	LogFormat string `json:"logFormat,omitempty"`
	// CgroupRoot is the node's directory that the cgroup2 file system is mounted
	// on or below. Empty: /sys/fs/cgroup, which fits cgroup2 and hybrid nodes.
	CgroupRoot string `json:"cgroupRoot,omitempty"`
	// Resources of the sidecar. Zero fields have the defaults named there.
	Resources Resources `json:"resources,omitzero"`
}

// Resources of the sidecar's container.
type Resources struct {
	// CPURequest. Zero: 100m. Annotation: sidecar-cpu.
	CPURequest resource.Quantity `json:"cpuRequest,omitzero"`
	// CPULimit is used only in a pod all of whose containers have a CPU limit: a
	// ResourceQuota on limits.cpu refuses pods in which one has none, and in any
	// other pod a limit only throttles. Zero: 2. Annotation: sidecar-cpu-limit.
	CPULimit resource.Quantity `json:"cpuLimit,omitzero"`
	// MemoryRequest. Zero: 32Mi. Annotation: sidecar-memory.
	MemoryRequest resource.Quantity `json:"memoryRequest,omitzero"`
	// MemoryLimit. Zero: 256Mi. Annotation: sidecar-memory-limit.
	MemoryLimit resource.Quantity `json:"memoryLimit,omitzero"`
}

const (
	defaultStartTimeout = 10 * time.Second
	maxStartTimeout     = 10 * time.Minute
	defaultReadyTimeout = 15 * time.Second
	defaultDrainTimeout = 30 * time.Second
	defaultDrainStreams = 30 * time.Second
	drainMinAuto        = "auto"
	// maxHold bounds what a pod's start and end may be held back: more is a typing
	// error that nobody would notice before a node has to be emptied.
	maxHold         = 10 * time.Minute
	maxDrainStreams = 24 * time.Hour
	// maxOutboundPorts is also the bound of the redirect's port set.
	maxOutboundPorts = 64
	// minMemoryLimit is what the supervisor and the worker need to stay up.
	minMemoryLimit = "48Mi"
)

// ParseConfig reads the configuration file. Unknown keys are errors: a misspelt
// one would otherwise be a setting that silently does nothing.
func ParseConfig(file []byte) (*Config, error) {
	if len(bytes.TrimSpace(file)) == 0 {
		return nil, errors.New("injector configuration is empty")
	}
	cfg := &Config{}
	if err := yaml.UnmarshalStrict(file, cfg); err != nil {
		return nil, fmt.Errorf("injector configuration: %w", err)
	}
	cfg = cfg.WithDefaults()
	return cfg, cfg.Validate()
}

// WithDefaults returns a copy of c with its zero fields filled.
func (c *Config) WithDefaults() *Config {
	d := *c
	d.OutboundPorts = slices.Clone(c.OutboundPorts)
	if d.ImagePullPolicy == "" {
		d.ImagePullPolicy = corev1.PullIfNotPresent
	}
	if len(d.OutboundPorts) == 0 {
		d.OutboundPorts = []uint16{xds.DefaultOutboundPort}
	}
	if d.StartTimeout.Duration == 0 {
		d.StartTimeout.Duration = defaultStartTimeout
	}
	if d.ReadyTimeout.Duration == 0 {
		d.ReadyTimeout.Duration = defaultReadyTimeout
	}
	if d.DrainTimeout == nil {
		d.DrainTimeout = &metav1.Duration{Duration: defaultDrainTimeout}
	}
	if d.DrainMin == "" {
		d.DrainMin = drainMinAuto
	}
	if d.DrainStreams.Duration == 0 {
		d.DrainStreams.Duration = defaultDrainStreams
	}
	if d.LogLevel == "" {
		d.LogLevel = "info"
	}
	if d.LogFormat == "" {
		d.LogFormat = "json"
	}
	if d.CgroupRoot == "" {
		d.CgroupRoot = "/sys/fs/cgroup"
	}
	quantity := func(q *resource.Quantity, v string) {
		if q.IsZero() {
			*q = resource.MustParse(v)
		}
	}
	quantity(&d.Resources.CPURequest, "100m")
	quantity(&d.Resources.CPULimit, "2")
	quantity(&d.Resources.MemoryRequest, "32Mi")
	quantity(&d.Resources.MemoryLimit, "256Mi")
	return &d
}

// Validate reports every field that cannot work, by its name in the file.
func (c *Config) Validate() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("injector configuration: %s: %s", field, fmt.Sprintf(format, args...)))
	}
	for field, image := range map[string]string{"sidecarImage": c.SidecarImage, "initImage": c.InitImage} {
		if image == "" || strings.ContainsAny(image, " \t\n") {
			bad(field, "%q is no image reference", image)
		}
	}
	if !slices.Contains([]corev1.PullPolicy{corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever}, c.ImagePullPolicy) {
		bad("imagePullPolicy", "%q, want Always, IfNotPresent or Never", c.ImagePullPolicy)
	}
	for i, s := range c.ImagePullSecrets {
		if msgs := validation.IsDNS1123Subdomain(s); len(msgs) > 0 {
			bad(fmt.Sprintf("imagePullSecrets[%d]", i), "%q: %s", s, msgs[0])
		}
	}
	if host, port, err := net.SplitHostPort(c.XDSAddress); err != nil {
		bad("xdsAddress", "%q, want host:port", c.XDSAddress)
	} else if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || host == "" {
		bad("xdsAddress", "%q, want host:port with a port from 1 to 65535", c.XDSAddress)
	}
	if err := checkPorts(c.OutboundPorts); err != nil {
		bad("outboundPorts", "%s", err)
	}
	if err := checkStartTimeout(c.StartTimeout.Duration); err != nil {
		bad("startTimeout", "%s", err)
	}
	for _, f := range []struct {
		name      string
		d, lo, hi time.Duration
	}{
		{"readyTimeout", c.ReadyTimeout.Duration, time.Millisecond, maxHold},
		{"drainTimeout", c.DrainTimeout.Duration, 0, maxHold},
		{"drainStreams", c.DrainStreams.Duration, time.Millisecond, maxDrainStreams},
	} {
		if err := checkBetween(f.d, f.lo, f.hi); err != nil {
			bad(f.name, "%s", err)
		}
	}
	if err := checkDrainMin(c.DrainMin); err != nil {
		bad("drainMin", "%s", err)
	}
	if err := checkLogLevel(c.LogLevel); err != nil {
		bad("logLevel", "%s", err)
	}
	if c.LogFormat != "json" && c.LogFormat != "text" {
		bad("logFormat", "%q, want json or text", c.LogFormat)
	}
	if !strings.HasPrefix(c.CgroupRoot, "/") {
		bad("cgroupRoot", "%q, want an absolute path", c.CgroupRoot)
	}
	c.Resources.validate(bad)
	return errors.Join(errs...)
}

func (r Resources) validate(bad func(field, format string, args ...any)) {
	for field, q := range map[string]resource.Quantity{
		"resources.cpuRequest": r.CPURequest, "resources.cpuLimit": r.CPULimit, "resources.memoryRequest": r.MemoryRequest,
	} {
		if q.Sign() <= 0 {
			bad(field, "%s, must be above 0", q.String())
		}
	}
	if r.MemoryLimit.Cmp(resource.MustParse(minMemoryLimit)) < 0 {
		bad("resources.memoryLimit", "%s, must be at least %s", r.MemoryLimit.String(), minMemoryLimit)
	}
	if r.CPURequest.Cmp(r.CPULimit) > 0 {
		bad("resources.cpuRequest", "%s is above cpuLimit (%s)", r.CPURequest.String(), r.CPULimit.String())
	}
	if r.MemoryRequest.Cmp(r.MemoryLimit) > 0 {
		bad("resources.memoryRequest", "%s is above memoryLimit (%s)", r.MemoryRequest.String(), r.MemoryLimit.String())
	}
}

func checkPorts(ports []uint16) error {
	if len(ports) == 0 {
		return errors.New("no port")
	}
	if len(ports) > maxOutboundPorts {
		return fmt.Errorf("%d ports, at most %d are possible", len(ports), maxOutboundPorts)
	}
	for i, p := range ports {
		switch {
		case p == 0:
			return errors.New("port 0, want 1 to 65535")
		case ownPort(int32(p)):
			return fmt.Errorf("port %d is Evenkeel's own", p)
		case slices.Contains(ports[:i], p):
			return fmt.Errorf("port %d is there twice", p)
		}
	}
	return nil
}

// ownPort tells the ports that the sidecar listens on, and the control plane's,
// which must never be relayed by the sidecar that depends on it.
func ownPort(p int32) bool { return p == xds.PortXDS || sidecarPort(p) }

func sidecarPort(p int32) bool {
	return p == xds.PortOutbound || p == xds.PortPod || p == xds.PortDebug
}

func checkStartTimeout(d time.Duration) error {
	if d <= 0 || d > maxStartTimeout {
		return fmt.Errorf("%s, want above 0 and at most %s", d, maxStartTimeout)
	}
	return nil
}

func checkBetween(d, lo, hi time.Duration) error {
	if d < lo || d > hi {
		return fmt.Errorf("%s, want %s to %s", d, lo, hi)
	}
	return nil
}

// checkDrainMin accepts auto, and durations.
func checkDrainMin(v string) error {
	if v == drainMinAuto {
		return nil
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		return fmt.Errorf("%q is neither auto nor a duration such as 5s", v)
	}
	return checkBetween(d, 0, maxHold)
}

func checkLogLevel(l string) error {
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, l) {
		return fmt.Errorf("%q, want debug, info, warn or error", l)
	}
	return nil
}
