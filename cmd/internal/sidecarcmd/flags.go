// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import (
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"evenkeel.dev/cmd/internal/run"
	"evenkeel.dev/xds"
)

// Config is the command line of `sidecar run`.
type Config struct {
	ListenPort  uint
	PodListen   string
	DebugListen string

	XDS      string
	XDSCA    string
	XDSToken string

	Namespace string
	Pod       string
	PodUID    string
	Node      string
	Zone      string
	Workload  string

	OutboundPorts ports
	StateDir      string
	Log           run.LogConfig

	ReadyTimeout time.Duration
	DrainTimeout time.Duration
	DrainMin     floor
	DrainStreams time.Duration
	AppGrace     time.Duration

	// From the environment, which is not shown to who lists processes.
	HoldSecret string
	Hooks      map[string]hook
	PodIP      string
}

// minSecret is the least length of the secret, in hexadecimal digits: 16 bytes.
const minSecret = 32

func newRunFlags(c *Config) *flag.FlagSet {
	fs := flag.NewFlagSet("run", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // errors are printed once, by us
	fs.UintVar(&c.ListenPort, "listen-port", xds.PortOutbound, "`port` on 127.0.0.1 and ::1 that the redirect leads to")
	fs.StringVar(&c.PodListen, "pod-listen", ":"+strconv.Itoa(xds.PortPod), "`address` of /ready and /metrics")
	fs.StringVar(&c.DebugListen, "debug-listen", net.JoinHostPort("127.0.0.1", strconv.Itoa(xds.PortDebug)), "`address` of /debug and /wait; loopback")
	fs.StringVar(&c.XDS, "xds", net.JoinHostPort(xds.DefaultServerName, strconv.Itoa(xds.PortXDS)), "control plane: `host:port`, or unix:///path for plain text without a token")
	fs.StringVar(&c.XDSCA, "xds-ca", "/var/run/evenkeel/ca/ca.crt", "`file` with the control plane's CA, PEM; read again at each connect")
	fs.StringVar(&c.XDSToken, "xds-token", "/var/run/evenkeel/token/token", "`file` with the service-account token; read again at each connect")
	fs.StringVar(&c.Namespace, "namespace", "", "`namespace` of the pod (required)")
	fs.StringVar(&c.Pod, "pod", "", "`name` of the pod (required)")
	fs.StringVar(&c.PodUID, "pod-uid", "", "`UID` of the pod; without one nobody can be told to connect to it, and it is ready at once")
	fs.StringVar(&c.Node, "node", "", "`name` of the node")
	fs.StringVar(&c.Zone, "zone", "", "`zone` of the node")
	fs.StringVar(&c.Workload, "workload", "", "`name` of the controller that owns the pod")
	c.OutboundPorts = ports{xds.DefaultOutboundPort}
	fs.Var(&c.OutboundPorts, "outbound-ports", "comma-separated `ports` that are redirected; the first is meant where a name has none")
	fs.StringVar(&c.StateDir, "state-dir", "", "`directory` that outlives a restart of the container (an emptyDir); none: nothing is kept")
	fs.DurationVar(&c.ReadyTimeout, "ready-timeout", 15*time.Second, "the pod is ready after this `duration` from when its app is, whoever is not connected to it")
	fs.DurationVar(&c.DrainTimeout, "drain-timeout", 30*time.Second, "the app gets its SIGTERM after this `duration` at the latest, whoever still uses it")
	c.DrainMin = floorAuto
	fs.Var(&c.DrainMin, "drain-min", "the app gets its SIGTERM after this `duration` at the earliest, for clients outside the mesh; auto: as its Services need")
	fs.DurationVar(&c.DrainStreams, "drain-streams", 30*time.Second, "RPCs that are older than this `duration` when the drain begins are not waited for")
	fs.DurationVar(&c.AppGrace, "app-grace", 30*time.Second, "the pod's own termination grace `period`, without what was added for the drain")
	c.Log.RegisterFlags(fs)
	return fs
}

// parseRun reads the flags of `run` and its environment, and checks them.
// flag.ErrHelp: help was asked for.
func parseRun(args []string, getenv func(string) string) (*Config, error) {
	var c Config
	fs := newRunFlags(&c)
	if err := parse(fs, args); err != nil {
		return nil, err
	}
	c.HoldSecret, c.PodIP = getenv(xds.EnvHoldSecret), getenv(xds.EnvPodIP)
	hooks, hooksErr := parseHooks(getenv(xds.EnvHooks))
	c.Hooks = hooks
	// A socket is local and plain: the defaults that belong to TLS do not apply,
	// what was asked for explicitly is refused.
	if strings.HasPrefix(c.XDS, "unix:") {
		var asked []error
		fs.Visit(func(f *flag.Flag) {
			if f.Name == "xds-token" || f.Name == "xds-ca" {
				asked = append(asked, fmt.Errorf("--%s has no use with --xds=%s", f.Name, c.XDS))
			}
		})
		if len(asked) > 0 {
			return nil, errors.Join(asked...)
		}
		c.XDSCA, c.XDSToken = "", ""
	}
	if err := errors.Join(c.Validate(), hooksErr); err != nil {
		return nil, err
	}
	return &c, nil
}

func parse(fs *flag.FlagSet, args []string) error {
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	return nil
}

// Validate reports everything that is wrong at once.
func (c *Config) Validate() error {
	var errs []error
	bad := func(name, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--%s %s", name, fmt.Sprintf(format, args...)))
	}
	if c.ListenPort > 65535 {
		bad("listen-port", "%d is not a port (0 to 65535; 0: any free one)", c.ListenPort)
	}
	if err := checkListen(c.PodListen); err != nil {
		bad("pod-listen", "%q: %s", c.PodListen, err)
	}
	if err := checkListen(c.DebugListen); err != nil {
		bad("debug-listen", "%q: %s", c.DebugListen, err)
	} else if a, err := netip.ParseAddrPort(c.DebugListen); err != nil || !a.Addr().IsLoopback() {
		bad("debug-listen", "%q is not a loopback address: it shows profiles and memory to whoever asks", c.DebugListen)
	}
	if path, ok := strings.CutPrefix(c.XDS, "unix:"); ok {
		if strings.TrimPrefix(path, "//") == "" {
			bad("xds", "%q names no socket (unix:///path)", c.XDS)
		}
	} else {
		if host, port, err := net.SplitHostPort(c.XDS); err != nil || host == "" || port == "" {
			bad("xds", "%q is neither host:port nor unix:///path", c.XDS)
		}
		if c.XDSCA == "" {
			bad("xds-ca", "is empty: the control plane could not be told from an impostor (only --xds=unix: needs none)")
		}
	}
	if c.Namespace == "" {
		bad("namespace", "is required")
	}
	if c.Pod == "" {
		bad("pod", "is required")
	}
	if len(c.OutboundPorts) == 0 {
		bad("outbound-ports", "is empty")
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"ready-timeout", c.ReadyTimeout},
		{"drain-timeout", c.DrainTimeout},
		{"drain-streams", c.DrainStreams},
		{"app-grace", c.AppGrace},
	} {
		if d.value < 0 {
			bad(d.name, "%s is below zero", d.value)
		}
	}
	return errors.Join(append(errs, c.validateEnv()...)...)
}

func (c *Config) validateEnv() []error {
	var errs []error
	if s := c.HoldSecret; s != "" {
		if _, err := hex.DecodeString(s); err != nil || len(s) < minSecret {
			// The value stays out of the log.
			errs = append(errs, fmt.Errorf("%s is not at least %d hexadecimal digits", xds.EnvHoldSecret, minSecret))
		}
	}
	if c.PodIP != "" {
		if _, err := netip.ParseAddr(c.PodIP); err != nil {
			errs = append(errs, fmt.Errorf("%s %q is not an IP address", xds.EnvPodIP, c.PodIP))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Hooks)) {
		if err := c.Hooks[name].validate(c.PodIP); err != nil {
			errs = append(errs, fmt.Errorf("%s: container %q: %w", xds.EnvHooks, name, err))
		}
	}
	if len(c.Hooks) > 0 && c.HoldSecret == "" {
		errs = append(errs, fmt.Errorf("%s has no use without %s: nobody could call %s", xds.EnvHooks, xds.EnvHoldSecret, xds.PathHold))
	}
	return errs
}

func checkListen(s string) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return errors.New("want address:port")
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("port %q is not a number from 0 to 65535", port)
	}
	if host != "" {
		if _, err := netip.ParseAddr(host); err != nil {
			return fmt.Errorf("host %q is not an IP address", host)
		}
	}
	return nil
}

// floor is the least duration of a drain, a flag.Value. Negative: auto.
type floor time.Duration

const floorAuto floor = -1

// String is the flag's form.
func (f *floor) String() string {
	switch {
	case f == nil:
		return ""
	case *f < 0:
		return "auto"
	default:
		return time.Duration(*f).String()
	}
}

// Set reads the flag's form.
func (f *floor) Set(s string) error {
	if s == "auto" {
		*f = floorAuto
		return nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return errors.New("want auto, or a duration that is not below zero")
	}
	*f = floor(d)
	return nil
}

// ports is a comma-separated list of ports, a flag.Value.
type ports []uint16

// String is the flag's form.
func (p *ports) String() string {
	if p == nil {
		return ""
	}
	texts := make([]string, len(*p))
	for i, v := range *p {
		texts[i] = strconv.Itoa(int(v))
	}
	return strings.Join(texts, ",")
}

// Set reads the flag's form.
func (p *ports) Set(s string) error {
	var list ports
	for text := range strings.SplitSeq(s, ",") {
		v, err := strconv.ParseUint(strings.TrimSpace(text), 10, 16)
		if err != nil || v == 0 {
			return fmt.Errorf("port %q is not a number from 1 to 65535", text)
		}
		list = append(list, uint16(v))
	}
	*p = list
	return nil
}

// waitConfig is the command line of `sidecar wait`.
type waitConfig struct {
	Timeout time.Duration
	Debug   string
}

func newWaitFlags(c *waitConfig) *flag.FlagSet {
	fs := flag.NewFlagSet("wait", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.DurationVar(&c.Timeout, "timeout", 10*time.Second, "return with 0 after this `duration` in any case")
	fs.StringVar(&c.Debug, "debug", net.JoinHostPort("127.0.0.1", strconv.Itoa(xds.PortDebug)), "`address` of the sidecar's debug port")
	return fs
}

func parseWait(args []string) (*waitConfig, error) {
	var c waitConfig
	if err := parse(newWaitFlags(&c), args); err != nil {
		return nil, err
	}
	var errs []error
	if c.Timeout <= 0 {
		errs = append(errs, fmt.Errorf("--timeout %s is not above zero", c.Timeout))
	}
	if _, err := netip.ParseAddrPort(c.Debug); err != nil {
		errs = append(errs, fmt.Errorf("--debug %q is not ip:port", c.Debug))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &c, nil
}
